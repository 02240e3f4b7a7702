"""The filter of system calls, run by a small interpreter, for every supported machine type."""

import errno
import struct
from collections.abc import Sequence

import pytest

from agentic_rag.tools.launch.seccomp import ALLOW, FAIL, KILL, MACHINES, X32, filter_program

pytestmark = pytest.mark.attack(kind="spawning")

ANYTHING = 0o7777_7777_7777
"""The content of a register that nobody has set."""


def verdict(machine: str, call: str | int, *arguments: int, audit: int | None = None, network: bool = False) -> int:
    """Return the kernel's decision about a call. The program is checked as the kernel checks it."""
    machine_rules = MACHINES[machine]
    number = machine_rules.calls[call] if isinstance(call, str) else call
    registers = [*arguments, *[ANYTHING] * (6 - len(arguments))]
    values = [register & 0xFFFF_FFFF_FFFF_FFFF for register in registers]
    data = struct.pack("<IIQ6Q", number, machine_rules.audit if audit is None else audit, 0, *values)
    return run(list(struct.iter_unpack("<HBBI", filter_program(machine, network=network))), data)


def run(program: Sequence[tuple[int, ...]], data: bytes) -> int:
    accumulator, position = 0, 0
    while True:
        operation, if_so, if_not, operand = program[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x06:
            return operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[operation]
            position += if_so if holds else if_not


@pytest.mark.parametrize("machine", MACHINES)
def test_no_system_call_that_sets_id_bits_is_allowed(machine: str) -> None:
    not_permitted, calls = FAIL | errno.EPERM, MACHINES[machine].calls
    for bits in (0o4000, 0o2000, 0o6000):
        ways: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
            ("chmod", (1, 0o755), (1, 0o755 | bits)),
            ("fchmod", (1, 0o755), (1, 0o755 | bits)),
            ("fchmodat", (1, 2, 0o755), (1, 2, 0o755 | bits)),
            ("fchmodat2", (1, 2, 0o755), (1, 2, 0o755 | bits)),
            ("creat", (1, 0o755), (1, 0o755 | bits)),
            ("mknod", (1, 0o100755), (1, 0o100755 | bits)),
            ("mknodat", (1, 2, 0o100755), (1, 2, 0o100755 | bits)),
            ("open", (1, 0o101, 0o755), (1, 0o101, 0o755 | bits)),
            ("openat", (1, 2, 0o101, 0o755), (1, 2, 0o101, 0o755 | bits)),
            ("openat", (1, 2, 0o20200001, 0o755), (1, 2, 0o20200001, 0o755 | bits)),
        ]
        for call, without_id_bits, with_id_bits in ways:
            if call in calls:
                assert verdict(machine, call, *without_id_bits) == ALLOW, call
                assert verdict(machine, call, *with_id_bits) == not_permitted, call
    assert verdict(machine, "openat", 1, 2, 0) == ALLOW  # opens only: its mode is the content of the register
    assert verdict(machine, "openat2") == FAIL | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_unneeded_system_calls_fail_and_needed_ones_work(machine: str) -> None:
    for call in (
        "mount",
        "setns",
        "ptrace",
        "bpf",
        "keyctl",
        "process_vm_readv",
        "open_by_handle_at",
        "perf_event_open",
    ):
        assert verdict(machine, call, 0) == FAIL | errno.EPERM, call
    for call in ("clone3", "io_uring_setup", "io_uring_enter", "userfaultfd", "memfd_create"):
        assert verdict(machine, call, 0) == FAIL | errno.ENOSYS, call
    assert verdict(machine, "clone", 0x3D0F00) == ALLOW  # a thread
    assert verdict(machine, "clone", 0x1200011) == ALLOW  # a process
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, "clone", namespace | 17) == FAIL | errno.EPERM
        assert verdict(machine, "unshare", namespace) == FAIL | errno.EPERM
    assert verdict(machine, "unshare", 0x400) == ALLOW  # its own table of files
    assert {family for family in range(64) if verdict(machine, "socket", family, 1) == ALLOW} == {1, 2, 10, 16}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_child_with_network_can_create_only_connected_unix_socket_pairs(machine: str) -> None:
    families = {family for family in range(64) if verdict(machine, "socket", family, 1, network=True) == ALLOW}
    assert families == {2, 10, 16}
    assert verdict(machine, "socket", 1, 1, network=True) == FAIL | errno.EAFNOSUPPORT
    flags = 0o2004000  # SOCK_CLOEXEC | SOCK_NONBLOCK
    for kind in range(16):
        verdicts = {
            network: verdict(machine, "socketpair", 1, kind | flags, network=network) for network in (True, False)
        }
        assert verdicts[False] == ALLOW
        assert (verdicts[True] == ALLOW) == (kind in (1, 5)), kind
    assert verdict(machine, "clone", 0x1200011, network=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_system_call_of_another_architecture_is_refused(machine: str) -> None:
    assert verdict(machine, "openat", 1, 2, 0, audit=0x40000003) == KILL  # 32 bits, by ``int 0x80``
    assert verdict(machine, X32 | 1) == FAIL | errno.ENOSYS
    assert verdict(machine, 1) == ALLOW


def test_an_unknown_architecture_has_no_system_call_filter() -> None:
    assert filter_program("riscv64") == b""
