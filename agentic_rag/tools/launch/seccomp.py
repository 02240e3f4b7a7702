"""The system calls a sandboxed child may not make, as a program for the kernel's filter (seccomp, classic BPF).

Owns the list of refused calls, their numbers on the two machine types we know, and the bytes bubblewrap loads. Pure. A
filter sees registers, never memory. Calls whose arguments are in memory (``openat2``, ``clone3``) fail like unknown
ones, and every C library then uses the older call, which can be inspected.

https://www.kernel.org/doc/html/latest/userspace-api/seccomp_filter.html, numbers from the kernel's ``unistd.h``.
"""

import errno
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K and BPF_JMP|…|BPF_K of ``linux/bpf_common.h``, and BPF_RET|BPF_K."""

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
"""Verdicts of ``linux/seccomp.h``: allow, kill the process, or fail with the error number in the low bits."""

_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data``; each argument has eight bytes, the low four first."""

X32 = 0x40000000
"""On x86_64, numbers from here on are the same calls under another name."""

SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000
"""``O_CREAT | __O_TMPFILE``: without either flag an ``open`` has no mode, and its register holds any value."""

_NAMESPACES = 0x7E020000
"""The CLONE_NEW… flags except CLONE_NEWTIME, which in ``clone`` is part of a signal's number."""
_NEW_TIME = 0x80

_UNIX = 1
_FAMILIES = (_UNIX, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others, such as a virtual machine's sockets, ignore network namespaces."""

_TYPE_BITS = 0xF
_CONNECTED = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET: the ends of such a pair stay connected to each other."""

_UNKNOWN = (
    *("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd"),
    *("memfd_create", "memfd_secret"),  # memory that belongs to no process and to no file system with a size
)
"""Refused like calls that the kernel does not have, so that libraries fall back."""

_FORBIDDEN = frozenset({
    "mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount",
    "fspick", "mount_setattr", "chroot", "setns", "keyctl", "add_key", "request_key", "bpf", "ptrace",
    "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "perf_event_open", "open_by_handle_at",
    "fanotify_init", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "syslog",
    "acct", "swapon", "swapoff", "reboot", "quotactl", "quotactl_fd", "lookup_dcookie", "shmget", "uselib",
    "modify_ldt", "iopl", "ioperm",
})  # fmt: skip

_MODES = {
    "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2,
}  # fmt: skip
"""Index of the argument that is the mode."""

_OPENS = {"open": (1, 2), "openat": (2, 3)}
"""Indexes of the arguments that are flags and mode."""

_NEWER = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437, "pidfd_getfd": 438,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "fchmodat2": 452, "open_tree_attr": 467,
}  # fmt: skip
"""Since 2019 a new call has the same number on every machine type."""

_X86_64 = _NEWER | {
    "open": 2, "shmget": 29, "socket": 41, "socketpair": 53, "clone": 56, "creat": 85, "chmod": 90,
    "fchmod": 91, "ptrace": 101,
    "syslog": 103, "mknod": 133, "uselib": 134, "modify_ldt": 154, "pivot_root": 155, "chroot": 161, "acct": 163,
    "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212, "kexec_load": 246,
    "add_key": 248, "request_key": 249, "keyctl": 250, "openat": 257, "mknodat": 259, "fchmodat": 268, "unshare": 272,
    "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip

_AARCH64 = _NEWER | {
    "lookup_dcookie": 18, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "fchmod": 52,
    "fchmodat": 53, "openat": 56, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "syslog": 116, "ptrace": 117, "reboot": 142, "shmget": 194, "socket": 198,
    "socketpair": 199, "add_key": 217,
    "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225, "perf_event_open": 241,
    "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
    "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type: its number in ``linux/audit.h``, and the numbers of its system calls."""

    audit: int
    calls: Mapping[str, int]


MACHINES = {"x86_64": Machine(0xC000003E, _X86_64), "aarch64": Machine(0xC00000B7, _AARCH64)}


def filter_program(machine: str, *, network: bool = False) -> bytes:
    """Return the filter for a machine type as `os.uname` names it; empty for an unknown type.

    ``network``: for a child that shares the host's network. Abstract UNIX sockets belong to that network too, so such a
    child may create no UNIX sockets except connected pairs. A pair of datagram sockets is refused, because its ends
    could be connected to another address.
    """
    abi = MACHINES.get(machine)
    if abi is None or sys.byteorder != "little":
        return b""
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in _instructions(abi, network))


_Instruction = tuple[int, int, int, int]
"""Operation, how many instructions to skip if it holds, how many if not, operand."""


def _instructions(machine: Machine, network: bool) -> Iterator[_Instruction]:
    """Yield the program: the machine check first, then each call with its own verdict; other calls are allowed."""
    yield _LOAD, 0, 0, _MACHINE
    # Numbers of calls mean something else on another machine type, such as 32-bit x86.
    yield _EQUAL, 1, 0, machine.audit
    yield _RETURN, 0, 0, KILL
    yield _LOAD, 0, 0, _NUMBER
    # The x32 calls of x86-64 have other numbers, which would pass every comparison below.
    yield _AT_LEAST, 0, 1, X32
    yield _RETURN, 0, 0, FAIL | errno.ENOSYS
    for name, number in machine.calls.items():
        verdict = list(_verdict(name, network))
        yield _EQUAL, 0, len(verdict), number
        yield from verdict
    yield _RETURN, 0, 0, ALLOW


def _verdict(name: str, network: bool) -> Iterator[_Instruction]:
    """Yield the verdict on one call; the verdict never falls through, so the number need not be loaded again."""
    if name in _UNKNOWN:
        yield _RETURN, 0, 0, FAIL | errno.ENOSYS
    elif name in _FORBIDDEN:
        yield _RETURN, 0, 0, FAIL | errno.EPERM
    elif name in _MODES:
        yield from _refuse_bits(_MODES[name], SET_ID)
    elif name in _OPENS:
        flags, mode = _OPENS[name]
        yield _LOAD, 0, 0, _ARGUMENTS + 8 * flags
        yield _ANY_BIT, 1, 0, _CREATES
        yield _RETURN, 0, 0, ALLOW
        yield from _refuse_bits(mode, SET_ID)
    elif name == "socket":
        yield _LOAD, 0, 0, _ARGUMENTS
        yield from _allow_values(
            [family for family in _FAMILIES if not (network and family == _UNIX)], errno.EAFNOSUPPORT
        )
    elif name == "socketpair":
        yield _LOAD, 0, 0, _ARGUMENTS + 8
        yield _AND, 0, 0, _TYPE_BITS
        yield from _allow_values(_CONNECTED if network else range(_TYPE_BITS + 1), errno.ESOCKTNOSUPPORT)
    else:
        yield from _refuse_bits(0, {"clone": _NAMESPACES, "unshare": _NAMESPACES | _NEW_TIME}[name])


def _allow_values(values: Sequence[int], error: int) -> Iterator[_Instruction]:
    """Yield instructions that allow these values of the loaded word; others fail with the error number."""
    for place, value in enumerate(values):
        yield _EQUAL, len(values) - place, 0, value
    yield _RETURN, 0, 0, FAIL | error
    yield _RETURN, 0, 0, ALLOW


def _refuse_bits(argument: int, bits: int) -> Iterator[_Instruction]:
    yield _LOAD, 0, 0, _ARGUMENTS + 8 * argument
    yield _ANY_BIT, 0, 1, bits
    yield _RETURN, 0, 0, FAIL | errno.EPERM
    yield _RETURN, 0, 0, ALLOW
