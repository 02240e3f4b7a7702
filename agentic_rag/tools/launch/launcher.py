"""The first program of every child: checks it once more, sets limits, binds its life to ours, becomes the server.

Owns what must happen between fork and exec. Run as a script by ``python -I -S``, so that no Python code runs in
a fork of the many-threaded server (which may deadlock on a lock another thread held). Knows nothing of this
package and must import only the standard library.

Arguments: our process id, the plan as JSON, absolute executable, its arguments. The plan::

    limits   [[name of an rlimit, value], …]
    files    {path: SHA-256}     each must still be that file, or nothing is run
    folders  [[path, writable], …]   each must still be reached without a symbolic link
    sandbox  the beginning of a bubblewrap command line, or an empty list
    closing  options that follow the folders
    filter   a seccomp program in hexadecimal, or nothing
    nice     how much lower its priority is than ours

In a sandbox files and folders are bound by the descriptors that were checked, so that a swap afterwards has no
effect. bubblewrap closes them: an open folder from outside would be a way out.
"""

import ctypes
import hashlib
import json
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``: the signal a process gets when its parent dies; it survives exec."""

O_PATH = getattr(os, "O_PATH", 0)
"""Linux only, as is the sandbox."""


def main() -> None:
    parent, plan_text, executable, *args = sys.argv[1:]
    plan = json.loads(plan_text)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the signal was set
        raise SystemExit(1)
    binds = []
    for path, writable in plan["folders"]:
        binds += ["--bind-fd" if writable else "--ro-bind-fd", str(checked_folder(path)), path]
    for path, digest in plan["files"].items():
        binds += ["--ro-bind-fd", str(checked_file(path, digest)), path]
    for name, value in plan["limits"]:
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (limit, limit))
    os.nice(plan["nice"])
    command = [executable, *args]
    if plan["sandbox"]:
        closing = [*plan["closing"], "--chdir", os.getcwd(), "--"]
        descriptors = [int(each) for each in binds[1::3]]
        if plan["filter"]:
            descriptors.append(memory_file(bytes.fromhex(plan["filter"])))
            closing = ["--seccomp", str(descriptors[-1]), *closing]
        command = [*plan["sandbox"], *binds, *closing, *command]
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
    os.execve(command[0], command, os.environ)


def checked_file(path: str, digest: str) -> int:
    """Return a descriptor of the very file that was approved."""
    descriptor = walk(path, O_PATH or os.O_RDONLY)
    readable = f"/proc/self/fd/{descriptor}" if O_PATH else descriptor
    with open(readable, "rb", closefd=bool(O_PATH)) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        refuse(f"{path} is not the file that was allowed: its SHA-256 is {found}")
    return descriptor


def memory_file(data: bytes) -> int:
    """Return a descriptor from which the bytes are read; bubblewrap closes it."""
    descriptor = os.memfd_create("filter")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def checked_folder(path: str) -> int:
    return walk(path, O_PATH or os.O_RDONLY)


def walk(path: str, flags: int) -> int:
    """Open a resolved path; a symbolic link anywhere in it has been put there since it was resolved."""
    folder = os.open("/", (O_PATH or os.O_RDONLY) | os.O_DIRECTORY)
    *parents, last = path.strip("/").split("/")
    try:
        for name in parents:
            inner = os.open(name, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        found = os.open(last, flags | os.O_NOFOLLOW, dir_fd=folder)
        if is_link(found):
            refuse(f"{path} is a symbolic link now")
    except OSError as exc:
        refuse(f"{path} is not what it was: {exc.strerror}")
    os.close(folder)
    return found


def is_link(descriptor: int) -> bool:
    """``O_PATH | O_NOFOLLOW`` opens a link itself instead of failing."""
    return (os.fstat(descriptor).st_mode & 0o170000) == 0o120000


def refuse(why: str) -> None:
    sys.stderr.write(f"not started: {why}\n")
    raise SystemExit(126)


if __name__ == "__main__":
    main()
