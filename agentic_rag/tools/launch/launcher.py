"""The first program of every child: check the plan again, set limits, drop root's id, then become the child.

It does the work between fork and exec. It runs as a script by ``python -I -S``, so that no Python code runs in a fork
of the many-threaded server, which may deadlock on a lock that another thread held. It imports only the standard library
and knows nothing of this package.

Arguments: the server's process id, the plan as JSON, the absolute executable, its arguments. The plan::

    limits   [[name of an rlimit, value], …]
    files    {path: SHA-256}     refuse to start if a file has another hash
    folders  [[path, writable], …]   refuse to start if a path contains a symbolic link
    sandbox  the beginning of a bubblewrap command line, or an empty list
    closing  options that follow the folders
    filter   a seccomp program in hexadecimal, or nothing
    nice     how much lower the child's priority is than the server's
    user     the numeric id that replaces root, or null

In a sandbox, files and folders are bound by the descriptors that were checked, so a swap after the check has no effect.
bubblewrap closes them: an open folder from outside would be a way out.

A server that runs as root drops to ``user`` before it starts bubblewrap, because inside a sandbox that root starts the
child would still own root's files. That user cannot search a private data folder, so the launcher first mounts the
checked files and folders below a tmpfs of a private mount namespace, and gives the user those it could not read.
"""

import ctypes
import hashlib
import json
import os
import resource
import signal
import stat
import sys

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``: the signal a process gets when its parent dies; it survives exec."""
CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE = 0x20000, 0x1000, 0x4000, 0x80000
"""From ``linux/sched.h`` and ``linux/mount.h``."""
STAGE = "/tmp"
"""Mount point of the private tmpfs. bubblewrap replaces the folder in the child's view."""

O_PATH = getattr(os, "O_PATH", 0)
"""Linux only, as is the sandbox."""


def main() -> None:
    parent, plan_text, executable, *args = sys.argv[1:]
    plan = json.loads(plan_text)
    home = os.getcwd()
    user = plan["user"] if plan["sandbox"] and os.geteuid() == 0 else None
    if user is not None:
        enter_private_mounts()  # before the folders are opened: a bind mount needs a source in the same namespace
    binds, inherited = bind_options(plan["folders"], plan["files"], user)
    for name, value in plan["limits"]:
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))
    os.nice(plan["nice"])
    command = [executable, *args]
    if plan["sandbox"]:
        closing = [*plan["closing"], "--chdir", home, "--"]
        if plan["filter"]:
            inherited.append(memory_file(bytes.fromhex(plan["filter"])))
            closing = ["--seccomp", str(inherited[-1]), *closing]
        command = [*plan["sandbox"], *binds, *closing, *command]
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
    if user is not None:
        become(user)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # a change of the user id clears it
    if os.getppid() != int(parent):  # the server died before the signal was set
        raise SystemExit(1)
    os.execve(command[0], command, os.environ)


def become(user: int) -> None:
    """Drop root's ids and groups for those of a user."""
    os.chdir("/")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def bind_options(
    planned_folders: list[tuple[str, bool]], planned_files: dict[str, str], user: int | None
) -> tuple[list[str], list[int]]:
    """Check the plan's files and folders; return bubblewrap's options for them and the descriptors they name."""
    folders = [(checked_folder(path), path, writable) for path, writable in planned_folders]
    files = [(checked_file(path, digest), path) for path, digest in planned_files.items()]
    binds: list[str] = []
    if user is None:
        for descriptor, path, writable in folders:
            binds += ["--bind-fd" if writable else "--ro-bind-fd", str(descriptor), path]
        for descriptor, path in files:
            binds += ["--ro-bind-fd", str(descriptor), path]
        return binds, [int(descriptor) for descriptor in binds[1::3]]
    mount("tmpfs", STAGE, "tmpfs", 0, "mode=0755,size=1m")
    for descriptor, path, writable in [*folders, *((descriptor, path, False) for descriptor, path in files)]:
        lend_tree(descriptor, user, writable=writable)
        binds += ["--bind" if writable else "--ro-bind", stage(descriptor), path]
    return binds, []


def enter_private_mounts() -> None:
    """Give this process a mount namespace of its own; the host's later mounts and unmounts still arrive."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        refuse(f"a mount namespace is not allowed here: {os.strerror(ctypes.get_errno())}")
    mount("none", "/", None, MS_REC | MS_SLAVE)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        refuse(f"{target} cannot be mounted: {os.strerror(ctypes.get_errno())}")


def stage(descriptor: int) -> str:
    """Bind a checked file or folder below `STAGE` and return its path there."""
    target = f"{STAGE}/{descriptor}"
    if stat.S_ISDIR(os.stat(descriptor).st_mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)
    return target


def lend_tree(descriptor: int, user: int, *, writable: bool) -> None:
    """Make a file, or a folder with its contents, usable for ``user``.

    A folder that everyone may read, such as an interpreter's, is left alone unless the child writes there.
    """
    mode = os.stat(descriptor).st_mode
    if not writable and mode & 0o5 == 0o5:
        return
    if not stat.S_ISDIR(mode):
        lend(descriptor, user, writable=writable)
        return
    for _, folders, files, at in os.fwalk(".", dir_fd=descriptor):
        for name in (*folders, *files):
            try:
                lend(name, user, writable=writable, at=at)
            except FileNotFoundError:  # removed meanwhile
                continue
    lend(descriptor, user, writable=writable)


def lend(place: int | str, user: int, *, writable: bool, at: int | None = None) -> None:
    """Give a file or folder of root to ``user`` if that user could not use it. Links are not followed.

    ``place``: an O_PATH descriptor, or a name inside the folder ``at``.
    """
    status = os.stat(place) if isinstance(place, int) else os.stat(place, dir_fd=at, follow_symlinks=False)
    if needs_lending(status, writable=writable):
        if isinstance(place, int):
            os.chown(f"/proc/self/fd/{place}", user, user)
        else:
            os.chown(place, user, user, dir_fd=at, follow_symlinks=False)


def needs_lending(status: os.stat_result, *, writable: bool) -> bool:
    """Return whether root owns a file or folder and other users may not use it."""
    needed = 0o5 if stat.S_ISDIR(status.st_mode) else 0o4
    return status.st_uid == 0 and (writable or status.st_mode & needed != needed)


def checked_file(path: str, digest: str) -> int:
    """Return a descriptor of a file after checking that it is the approved one."""
    descriptor = walk(path, O_PATH or os.O_RDONLY)
    readable = f"/proc/self/fd/{descriptor}" if O_PATH else descriptor
    with open(readable, "rb", closefd=bool(O_PATH)) as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != digest:
        refuse(f"{path} is not the file that was allowed: its SHA-256 is {actual}")
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
    """Open a resolved path. A symbolic link in it was put there after it was resolved, so the start is refused."""
    folder = os.open("/", (O_PATH or os.O_RDONLY) | os.O_DIRECTORY)
    *parents, last = path.strip("/").split("/")
    try:
        for name in parents:
            inner = os.open(name, (O_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        descriptor = os.open(last, flags | os.O_NOFOLLOW, dir_fd=folder)
        if is_link(descriptor):
            refuse(f"{path} is a symbolic link now")
    except OSError as exc:
        refuse(f"{path} is not what it was: {exc.strerror}")
    os.close(folder)
    return descriptor


def is_link(descriptor: int) -> bool:
    """Return whether a descriptor is a link: ``O_PATH | O_NOFOLLOW`` opens a link itself instead of failing."""
    return (os.fstat(descriptor).st_mode & 0o170000) == 0o120000


def refuse(why: str) -> None:
    sys.stderr.write(f"not started: {why}\n")
    raise SystemExit(126)


if __name__ == "__main__":
    main()
