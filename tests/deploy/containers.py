"""A container's conditions on this machine, made by ``unshare``: what the files of `docs/deploy` ask a runtime for."""

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
    """Return the folder for temporary files that goes with a data folder."""
    return data.parent / "tmp"


def container(data: Path, *command: str, masked: str = "") -> list[str]:
    """Return what runs a command as another user, with no capability, where only two folders can be written.

    It has a process namespace and a whole ``/proc`` of its own. ``masked``: a program that is not there.
    """
    own = ("--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    inside = ("sh", "-c", _INSIDE % (USER, USER), "sh", str(data), str(temporary(data)), masked)
    return ["unshare", *own, *inside, *command]


def process_in(outside: int) -> int:
    """Return the number of the process that a container was started for, as this machine counts."""
    return int(Path(f"/proc/{outside}/task/{outside}/children").read_text().split()[0])


@functools.cache
def problem() -> str:
    """Return why there can be no such container on this machine; empty: there can."""
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return "unshare or setpriv is not on this machine"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        temporary(data).mkdir()
        done = subprocess.run(container(data, "true"), capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""
