"""The sandbox around a child: bubblewrap, found and tried once.

Owns the argument list that makes a child's world: own namespaces, only its folders, no network unless declared, no
system call that it has no business with, and no place in memory that it could fill without end.
Knows no server. https://github.com/containers/bubblewrap
"""

import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agentic_rag.tools.launch.environment import SEARCH_PATH
from agentic_rag.tools.launch.seccomp import filter_program

PROBE_SECONDS = 10
"""How long the trial run may take."""

TMP_BYTES, SHARED_BYTES = 64 * 1024 * 1024, 16 * 1024 * 1024
"""Sizes of a child's ``/tmp`` and ``/dev/shm``, which are memory."""

CLOSING = ("--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/")
"""Ends the options: what bubblewrap itself made to hold the folders is memory too, of any size. And the settings of the
whole kernel below ``/proc/sys`` belong to root, as whom a child of a server that root runs counts there, nobody or not;
bubblewrap covers them only where the folder itself could be written."""

NOBODY = "65534"
"""Inside, a child is this user; without it a server run by root would show its children that they are root."""

WITHOUT = (
    "Without it MCP servers that are programs do not start (for a single user on loopback: serve --allow-unsandboxed), "
    "and documents are read by processes that have limits and no sandbox. Servers over HTTP and our own tools work."
)
"""What an operator is told."""

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone")
_ETC_NETWORK = (
    "resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "services", "protocols",
    "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/ca-trust/extracted", "ca-certificates",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A bubblewrap that works here. ``executable``: its absolute path."""

    executable: str

    def options(self, *, network: bool) -> list[str]:
        """Return the beginning of the command line; folders and the program follow (see `launcher`)."""
        options = [
            self.executable,
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *("--disable-userns", "--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL"),
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
    """Return the filter for this machine, for a child with or without network; empty where we know none."""
    return filter_program(os.uname().machine, network=network)


@functools.cache
def find_sandbox() -> Sandbox | str:
    """Return the sandbox, or why there is none. Tries it once in the life of the process; blocks for a moment.

    Installed is not enough: a kernel or a container may forbid user namespaces, and old versions cannot take the
    folders as open descriptors, which closes the gap between checking a path and binding it.
    """
    found = next((path for folder in SEARCH_PATH if os.access(path := f"{folder}/bwrap", os.X_OK)), None)
    if found is None:
        return "bubblewrap is not installed (the package is called bubblewrap)"
    sandbox = Sandbox(found)
    root = os.open("/usr", os.O_PATH | os.O_DIRECTORY)
    filtering, rules = [], os.memfd_create("filter")
    if rules_of_trial := system_call_filter(network=True):
        os.write(rules, rules_of_trial)
        os.lseek(rules, 0, os.SEEK_SET)
        filtering = ["--seccomp", str(rules)]
    binds = ["--ro-bind-fd", str(root), "/usr"]
    try:
        trial = subprocess.run(
            [*sandbox.options(network=False), *binds, *filtering, *CLOSING, "--", "/usr/bin/true"],
            pass_fds=(root, rules),
            capture_output=True,
            timeout=PROBE_SECONDS,
            env={},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"bubblewrap does not run here: {exc}"
    finally:
        os.close(root)
        os.close(rules)
    if trial.returncode:
        words = trial.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"bubblewrap does not work here: {words[-1] if words else f'exit code {trial.returncode}'}"
    return sandbox
