"""The sandbox around a child: bubblewrap, found and tried once.

Owns the argument list of the sandbox: separate namespaces, only the child's folders, no network unless declared, no
needless system calls, and no memory-backed place that the child could fill without limit. Knows no server.
https://github.com/containers/bubblewrap
"""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentic_rag.tools.launch.environment import SEARCH_PATH
from agentic_rag.tools.launch.seccomp import filter_program

LAUNCHER = str(Path(__file__).with_name("launcher.py"))

PROBE_SECONDS = 10
"""Time limit of the trial run."""

TMP_BYTES, SHARED_BYTES = 64 * 1024 * 1024, 16 * 1024 * 1024
"""Sizes of a child's ``/tmp`` and ``/dev/shm``, which are memory."""

CLOSING = ("--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/")
"""Options at the end of the list, which make mounts read-only.

The directories that bubblewrap creates to hold the folders are memory without a size limit. The settings of the whole
kernel below ``/proc/sys`` belong to root, and a child of a server that runs as root counts as root there, even as the
user nobody. bubblewrap covers them only where the folder itself could be written.
"""

NOBODY: Final = 65534
"""The user and group id of every child in its sandbox.

A server that runs as root also drops to it outside, so that a child that escapes its namespaces is not root.
"""

WITHOUT = (
    "Without it MCP servers that are programs do not start (for a single user on loopback: serve --allow-unsandboxed), "
    "and documents are read by processes that have limits and no sandbox. Servers over HTTP and our own tools work."
)
"""Text for the operator on the features that work without a sandbox."""

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone")
_ETC_NETWORK = (
    "resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "services", "protocols",
    "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/ca-trust/extracted", "ca-certificates",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A bubblewrap that works on this machine.

    ``executable``: its absolute path. ``user``: the id that a server run by root drops to before it starts bubblewrap;
    None for other users, and where this machine does not let that id create a user namespace.
    """

    executable: str
    user: int | None = None

    def options(self, *, network: bool) -> list[str]:
        """Return the beginning of the command line; folders and the program follow (see `launcher`)."""
        options = [
            self.executable,
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *("--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--hostname", "mcp"),
            *("--ro-bind", "/usr", "/usr"),
        ]
        if not network:
            options.append("--unshare-net")
        for name in _SYSTEM:
            folder = Path("/") / name
            if folder.is_symlink():
                options += ["--symlink", os.readlink(folder), str(folder)]
            elif folder.is_dir():
                options += ["--ro-bind", str(folder), str(folder)]
        for name in (*_ETC, *(_ETC_NETWORK if network else ())):
            options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        return [
            *(*options, "--proc", "/proc", "--dev", "/dev"),
            *("--size", str(SHARED_BYTES), "--tmpfs", "/dev/shm", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"),
        ]


@functools.cache
def system_call_filter(*, network: bool) -> bytes:
    """Return the filter for this machine, for a child with or without network; empty for an unknown machine type."""
    return filter_program(os.uname().machine, network=network)


@functools.cache
def find_sandbox() -> Sandbox | str:
    """Return the sandbox of this machine, or the reason why there is none.

    Runs bubblewrap once per process, which blocks for a moment. An installed bubblewrap may fail: a kernel or a
    container may forbid user namespaces. Old versions cannot bind a folder by an open descriptor; without a descriptor,
    a path could change between its check and its use.
    """
    program = next((path for folder in SEARCH_PATH if os.access(path := f"{folder}/bwrap", os.X_OK)), None)
    if program is None:
        return "bubblewrap is not installed (the package is called bubblewrap)"
    if os.geteuid() == 0 and _try(unprivileged := Sandbox(program, NOBODY)) is None:
        return unprivileged
    return _try(Sandbox(program)) or Sandbox(program)


def launch_command(
    sandbox: Sandbox,
    folders: Sequence[tuple[str, bool]],
    program: Sequence[str],
    *,
    network: bool = False,
    options: Sequence[str] = (),
    limits: Sequence[tuple[str, int]] = (),
) -> list[str]:
    """Return the command line with which `launcher` runs a program in a sandbox.

    Args:
        sandbox: the sandbox of this machine, from `find_sandbox`.
        folders: the folders that the program sees besides the system's, each with whether it may write there.
        program: the program and its arguments.
        network: whether the program may use the network.
        options: further options of bubblewrap.
        limits: resource limits: a name in the `resource` module, and a value.
    """
    plan = {
        "limits": limits,
        "files": {},
        "folders": folders,
        "sandbox": [*sandbox.options(network=network), *options],
        "closing": CLOSING,
        "filter": system_call_filter(network=network).hex(),
        "nice": 0,
        "user": sandbox.user,
    }
    return [sys.executable, "-I", "-S", LAUNCHER, str(os.getpid()), json.dumps(plan), *program]


MAX_LIBRARIES = 200
"""Maximum number of shared libraries next to an interpreter that a sandbox shows."""


def interpreter_files(executable: Path) -> list[str]:
    """Return the files of an interpreter outside ``/usr``: its file, its standard library and its shared libraries.

    The whole prefix is not included: that of ``~/bin/node`` is a home folder. Blocks.
    """
    if executable.is_relative_to("/usr"):
        return []
    files, library = [str(executable)], executable.parent.parent / "lib"
    version = re.match(r"python3\.\d+", executable.name)
    if version is not None and (library / version[0] / "os.py").is_file():
        files.append(str(library / version[0]))
        libraries = sorted(path for path in library.glob("*.so*") if path.is_file() and not path.is_symlink())
        files += map(str, libraries[:MAX_LIBRARIES])
    return files


def _try(sandbox: Sandbox) -> str | None:
    """Run a program in a sandbox as `launcher` does; return why that failed, or None. Blocks for a moment."""
    command = launch_command(sandbox, [("/usr", False)], ["/usr/bin/true"])
    try:
        trial = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, env={}, cwd="/", check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"bubblewrap does not run here: {exc}"
    if trial.returncode:
        words = trial.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"bubblewrap does not work here: {words[-1] if words else f'exit code {trial.returncode}'}"
    return None
