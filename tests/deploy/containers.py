"""The conditions of a container on this machine, created by ``unshare`` as the files of `docs/deploy` require them."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

USER = "10001"

_INSIDE = """\
set -e
for folder in "$1" "$2"; do mount --bind "$folder" "$folder"; done
mount -o remount,bind,ro /
if [ -n "$3" ]; then mount --bind /dev/null "$3"; fi
cd "$1"
shift 3
exec unshare --user --map-user=%s --map-group=%s -- setpriv --no-new-privs --bounding-set=-all -- "$@"
"""


def temporary(data: Path) -> Path:
    """Return the folder for temporary files of a data folder."""
    return data.parent / "tmp"


def container(data: Path, *command: str, masked: str = "") -> list[str]:
    """Return a command that runs as another user without capabilities, and can write to only two folders.

    It has its own process namespace and a complete ``/proc``. ``masked`` is a program to hide.
    """
    own = ("--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    inside = ("sh", "-c", _INSIDE % (USER, USER), "sh", str(data), str(temporary(data)), masked)
    return ["unshare", *own, *inside, *command]


def process_in(outside: int) -> int:
    """Return the process id, on this machine, of a container's main process."""
    return int(Path(f"/proc/{outside}/task/{outside}/children").read_text().split()[0])


@functools.cache
def find_problem() -> str:
    """Return the reason why this machine cannot run such a container, or an empty string."""
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return "unshare or setpriv is not on this machine"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        temporary(data).mkdir()
        result = subprocess.run(container(data, "true"), capture_output=True, text=True, timeout=60, check=False)
    return result.stderr.strip() or f"exit code {result.returncode}" if result.returncode else ""
