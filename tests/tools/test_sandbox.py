"""The limits of a running hostile server: nothing outside its folders, nothing on the network, nothing lasting."""

import json
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.errors import CommandNotAllowed
from agentic_rag.tools.launch import launcher as launcher_module
from agentic_rag.tools.launch import policy as launch
from agentic_rag.tools.launch.allowed import ExtraRights
from agentic_rag.tools.launch.environment import MARKER
from agentic_rag.tools.launch.policy import LiftedRules, StdioCommand
from agentic_rag.tools.launch.sandbox import CLOSING, NOBODY, Sandbox, find_sandbox, interpreter_files
from agentic_rag.tools.launch.seccomp import MACHINES
from agentic_rag.tools.toolset import open_toolset
from tests.tools.captives import (
    PYTHON,
    Captive,
    allow_captive,
    assert_no_heartbeat,
    beats,
    captive,
    find_processes,
    needs_bubblewrap,
    parent_of,
    policy_in,
)
from tests.tools.support import QUICK, START, Hub, alive, line_of, stdio_spec, until

pytestmark = pytest.mark.attack(kind="spawning")


@needs_bubblewrap
async def test_a_child_sees_only_the_system_its_program_and_its_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("of the host")
    async with captive(tmp_path) as child:
        for path in (secret, "/etc/passwd", "/etc/shadow", "/root/.ssh", Path.home() / ".bashrc", "/proc/1/environ"):
            is_allowed, answer = await child.try_to("read", path)
            assert not is_allowed or MARKER in str(answer), (path, answer)
        assert (await child.try_to("look", "/root"))[1] != sorted(os.listdir("/root")) or os.getuid()
        assert (await child.try_to("look", tmp_path))[1] == ["mcp"]
        assert (await child.try_to("look", tmp_path / "mcp"))[1] == ["homes"]
        assert (await child.try_to("look", child.policy.homes))[1] == [child.home.name]
        assert set((await child.try_to("look", "/etc"))[1]) <= {
            *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone")
        }


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up root")
async def test_a_child_of_root_is_unprivileged_outside_its_sandbox_too(tmp_path: Path) -> None:
    async with captive(tmp_path) as child:
        assert await child.try_to("write", "mine") == (True, "written")
        assert (child.home / "mine").stat().st_uid == NOBODY


@needs_bubblewrap
async def test_a_child_can_write_only_in_its_folder(tmp_path: Path) -> None:
    async with captive(tmp_path) as child:
        assert await child.try_to("write", "mine") == (True, "written")
        assert (child.home / "mine").read_text() == "x"
        for path in ("/usr/x", "/etc/x", "/x", tmp_path / "x", child.policy.homes / "x", "/proc/sys/kernel/x"):
            await child.try_to("write", path)
            assert not exists(path)
        own = f"/tmp/{secrets.token_hex(8)}"  # in a private /tmp
        assert (await child.try_to("write", own))[0]
        assert not exists(own)


@needs_bubblewrap
async def test_a_child_cannot_change_kernel_or_process_settings(tmp_path: Path) -> None:
    """They belong to root. If root runs the server, a child has their owner, whatever the owner's name inside is."""
    async with captive(tmp_path) as child:
        for path in ("sys/kernel/core_pattern", "sys/vm/overcommit_memory", "sys/kernel/domainname"):
            assert not (await child.try_to("open", f"/proc/{path}"))[0], path
        is_allowed, reason = await child.try_to("open", "/proc/self/oom_score_adj")
        assert not is_allowed
        assert "Read-only file system" in str(reason)


@needs_bubblewrap
async def test_a_child_is_unprivileged_and_inherits_no_descriptor_or_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    async with captive(tmp_path) as child:
        assert (await child.try_to("descriptors"))[1] == [0, 1, 2]
        environment = (await child.try_to("environment"))[1]
        assert set(environment) - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "PWD", MARKER, "(uid)"}
        assert environment["(uid)"] == "65534"
        assert len((await child.try_to("processes"))[1]) <= 3


@needs_bubblewrap
async def test_the_network_is_off_unless_the_entry_declares_it(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with captive(tmp_path / "off") as child:
            assert not (await child.try_to("connect", address))[0]
            assert not (await child.try_to("connect", "192.0.2.1:80"))[0]
        with pytest.raises(BlockingIOError):
            listener.accept()  # nobody connected
        async with captive(tmp_path / "on", network=True) as child:
            assert await child.try_to("connect", address) == (True, "connected")


@needs_bubblewrap
async def test_detached_processes_of_a_child_end_with_it(tmp_path: Path) -> None:
    async with captive(tmp_path, "--heartbeat") as child:
        assert await child.try_to("detach") == (True, "detached")
        await until(lambda: beats(child.policy.homes) > 10)


@needs_bubblewrap
async def test_a_daemon_that_forked_twice_and_dropped_its_marker_dies_with_its_server(tmp_path: Path) -> None:
    async with captive(tmp_path) as child:
        assert await child.try_to("daemon") == (True, "detached")
        await until(lambda: beats(child.policy.homes) > 10)
        assert (await child.try_to("look", "."))[0]


@needs_bubblewrap
async def test_a_child_cannot_read_secrets_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-host")
    for name in ("secret.key", "agentic-rag.db", "workspaces/law/documents/a.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("sk-of-the-host")
    async with captive(tmp_path) as child:
        places = [
            *(tmp_path / name for name in ("secret.key", "agentic-rag.db")),
            tmp_path / "workspaces/law/documents/a.md",
            *(f"/proc/{pid}/environ" for pid in (os.getpid(), os.getppid(), 1, "self")),
            *(f"/proc/1/root{tmp_path}/secret.key", f"/proc/self/root{tmp_path}/secret.key"),
            *("/proc/1/cwd/../../../secret.key", "../../../secret.key"),
            *("/proc/self/cwd/../../../secret.key", "/proc/kcore", "/dev/mem", "/etc/shadow"),
        ]
        for place in places:
            _, answer = await child.try_to("read", place)
            assert "sk-of-the-host" not in str(answer), place


@needs_bubblewrap
async def test_a_child_with_workspace_access_sees_no_memory_prompt_or_document(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    workspace = tmp_path / "workspaces" / "law"
    private_names = (".promptx/cognition.user/anna/assistant/engrams.db", "prompt/a.md", "documents/a.md")
    private_files = [workspace / name for name in private_names]
    for file in (*private_files, workspace / "files" / "a.md"):
        file.parent.mkdir(parents=True)
        file.write_text("sk-of-the-host" if file in private_files else "for servers")
    spec = await allow_captive(policy, "{path:workspace}")
    line = [*line_of(spec)[:-1], "."]
    spec = stdio_spec(*line, name="captive", domain="law", workspace=str(workspace))
    assert policy.review(spec).catalogue_id
    async with Hub(policy=policy, patience=QUICK) as hub:
        child = Captive(policy, hub, await open_toolset(hub, [spec], wait=START))
        assert (await child.try_to("read", workspace / "files" / "a.md")) == (True, "for servers")
        assert (await child.try_to("read", "a.md")) == (True, "for servers")  # its working directory is the folder
        for file in private_files:
            for name in (file, f"../{file.relative_to(workspace)}", f"/proc/self/cwd/../{file.relative_to(workspace)}"):
                is_allowed, answer = await child.try_to("read", name)
                assert (is_allowed, "sk-of-the-host" in str(answer)) == (False, False), name


@needs_bubblewrap
async def test_a_child_cannot_reach_local_sockets(tmp_path: Path) -> None:
    name = f"agentic-rag-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract_socket, socket.socket(socket.AF_UNIX) as file_socket:
        abstract_socket.bind(f"\0{name}")
        file_socket.bind(str(tmp_path / "host.sock"))
        for listener in (abstract_socket, file_socket):
            listener.listen()
        async with captive(tmp_path) as child:
            for place in (f"@{name}", tmp_path / "host.sock", "/run/docker.sock", "/var/run/docker.sock"):
                assert not (await child.try_to("knock", place))[0], place


@needs_bubblewrap
@pytest.mark.parametrize("network", [False, True])
async def test_a_child_cannot_reach_abstract_sockets_of_the_host(tmp_path: Path, network: bool) -> None:
    stream, datagrams = (f"agentic-rag-test-{kind}-{network}-{os.getpid()}" for kind in ("stream", "datagram"))
    with (
        socket.socket(socket.AF_UNIX) as stream_socket,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram_socket,
    ):
        stream_socket.bind(f"\0{stream}")
        stream_socket.listen()
        datagram_socket.bind(f"\0{datagrams}")
        async with captive(tmp_path, network=network) as child:
            assert not (await child.try_to("knock", f"@{stream}"))[0]
            assert not (await child.try_to("pair", f"SOCK_DGRAM @{datagrams}"))[0]
            assert await child.try_to("pair", "SOCK_STREAM") == (True, "x")
            assert await child.try_to("pair", "SOCK_SEQPACKET") == (True, "x")


@needs_bubblewrap
async def test_a_fork_bomb_ends_with_its_child(tmp_path: Path) -> None:
    async with captive(tmp_path) as child:
        assert await child.try_to("breed", 200) == (True, "200")


@needs_bubblewrap
async def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with captive(tmp_path) as child:
        is_allowed, _ = await child.try_to("fill", 2 << 30)
        assert not is_allowed
        assert (child.home / "big").stat().st_size <= 1 << 30


@needs_bubblewrap
async def test_a_child_cannot_create_a_namespace(tmp_path: Path) -> None:
    async with captive(tmp_path) as child:
        is_allowed, answer = await child.try_to("run", '["/usr/bin/unshare", "-Ur", "/usr/bin/id"]')
        assert not is_allowed or "uid=" not in answer


@needs_bubblewrap
async def test_a_child_cannot_create_a_setuid_program(tmp_path: Path) -> None:
    ways = ("chmod", "fchmod", "fchmodat", "fchmodat2", "group", "open", "mknod", "openat2")
    async with captive(tmp_path) as child:
        for way in ways:
            is_allowed, answer = await child.try_to("set_id", way)
            assert not is_allowed, (way, answer)
        assert (await child.try_to("run", '["/bin/chmod", "755", "copy-chmod"]'))[0]  # it may use other modes
        modes = [file.stat().st_mode for file in child.home.iterdir()]
    assert modes
    assert not any(mode & 0o6000 for mode in modes)


@needs_bubblewrap
async def test_a_child_cannot_use_system_calls_that_no_server_needs(tmp_path: Path) -> None:
    calls = MACHINES[os.uname().machine].calls
    async with captive(tmp_path) as child:
        for name in ("io_uring_setup", "userfaultfd", "memfd_create", "clone3", "keyctl", "bpf", "ptrace", "setns"):
            is_allowed, answer = await child.try_to("system_call", [calls[name], 0, 0, 0, 0, 0])
            assert not is_allowed, (name, answer)
            assert "Operation not permitted" in answer or "not implemented" in answer, (name, answer)
        for namespace in (0x10000000, 0x00020000, 0x40000000):
            is_allowed, answer = await child.try_to("system_call", [calls["unshare"], namespace])
            assert not is_allowed, (namespace, answer)
        is_allowed, answer = await child.try_to("system_call", [calls["socket"], 40, 1, 0])  # of a virtual machine
        assert not is_allowed
        assert "not supported" in answer


@needs_bubblewrap
async def test_a_childs_files_in_memory_are_bounded(tmp_path: Path) -> None:
    async with captive(tmp_path) as child:
        for folder in ("/", "/dev", "/etc", "/home"):
            assert not (await child.try_to("write", f"{folder}/x"))[0], folder
        assert int((await child.try_to("pile_up", "/tmp"))[1]) <= 64
        assert int((await child.try_to("pile_up", "/dev/shm"))[1]) <= 64


@needs_bubblewrap
async def test_a_child_beyond_its_memory_limit_is_ended_with_the_reason(tmp_path: Path) -> None:
    async with captive(tmp_path, limits={"memory_bytes": 64 << 20}) as child:
        is_allowed, answer = await child.try_to("hoard", 512)  # private memory: the kernel refuses it
        assert not is_allowed
        assert "MemoryError" in answer
        is_allowed, answer = await child.try_to("share", 160)  # shared memory belongs to no process
        assert not is_allowed
        assert "it used more than 64 MiB of memory" in answer
        assert (await child.try_to("look", "."))[0]  # it is started again


@needs_bubblewrap
async def test_a_child_that_spins_is_ended_with_the_reason(tmp_path: Path) -> None:
    async with captive(tmp_path, limits={"cpu_seconds": 1}) as child:
        is_allowed, answer = await child.try_to("spin", 15)
        assert not is_allowed
        assert "it used more than 1 s of processor time" in answer


@needs_bubblewrap
async def test_a_child_with_too_many_processes_is_ended_with_the_reason(tmp_path: Path) -> None:
    async with captive(tmp_path, limits={"processes": 40}) as child:
        is_allowed, answer = await child.try_to("swarm", 100)
        assert not is_allowed
        assert "it ran more than 40 processes" in answer


@needs_bubblewrap
@pytest.mark.parametrize("way", ["files", "names", "nameless", "closed"])
async def test_a_child_beyond_its_disk_limit_is_ended_with_the_reason(tmp_path: Path, way: str) -> None:
    async with captive(tmp_path, limits={"disk_bytes": 20 << 20}) as child:
        is_allowed, answer = await child.try_to("keep", way)
        assert not is_allowed
        assert "its writable folders hold more than 20 MiB" in answer


@needs_bubblewrap
async def test_a_child_that_writes_while_the_disk_is_low_is_ended_with_the_reason(tmp_path: Path) -> None:
    async with captive(tmp_path, disk_reserve=1 << 60) as child:
        is_allowed, answer = await child.try_to("keep", "files")
        assert not is_allowed
        assert "less than the reserve of" in answer
        assert "it went on writing" in answer


@needs_bubblewrap
async def test_a_killed_child_ends_with_its_children_and_is_restarted(tmp_path: Path) -> None:
    async with captive(tmp_path, "--heartbeat") as child:
        pids = find_processes(child.policy.marker)
        assert len(pids) >= 4  # bubblewrap twice, the server, its grandchild
        os.kill(next(pid for pid in pids if parent_of(pid) == os.getpid()), signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids))

        async def is_answering() -> bool:  # a call that arrives before the death was noticed fails with it
            return (await child.try_to("look", "."))[0]

        await until(is_answering)


@needs_bubblewrap
async def test_a_program_swapped_after_its_approval_is_not_started(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    program = tmp_path / "bin" / "server.py"
    program.parent.mkdir()
    program.write_text((Path(__file__).parent / "servers" / "captive.py").read_text())
    spec = await allow_captive(policy)
    line = [*line_of(spec)[:3], str(program), "--heartbeat"]
    assert policy.packages is not None
    await policy.catalogue.allow(line, _grant(), policy.packages, [policy.homes])
    spec = stdio_spec(*line, name="swapped")
    command = policy.resolve(spec)
    program.write_text(program.read_text() + "\n")  # one byte, between the check and the start
    async with Hub(policy=policy, patience=QUICK) as hub:
        toolset = await open_toolset(hub, [spec], wait=START)
        assert toolset.tools == ()
        assert "is not the file that was allowed" in toolset.notices[0][1]
    with pytest.raises(CommandNotAllowed):
        policy.resolve(spec)
    # even if that check has passed, the launcher checks again
    process = await anyio.run_process(_launch(command), check=False, env=dict(command.env), cwd=command.cwd)
    assert process.returncode == 126
    assert b"is not the file that was allowed" in process.stderr
    assert policy.sweep() == 0
    await assert_no_heartbeat(policy.homes)
    assert beats(policy.homes) == 0


@needs_bubblewrap
async def test_a_folder_swapped_for_a_link_after_its_check_is_not_mounted(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    workspace = tmp_path / "workspace"
    docs = workspace / "files" / "docs"
    docs.mkdir(parents=True)
    assert policy.packages is not None
    spec = await allow_captive(policy)
    line = [*line_of(spec), "{path:workspace}"]
    await policy.catalogue.allow(line, _grant(), policy.packages, [policy.homes])
    command = policy.resolve(stdio_spec(*line[:-1], "docs", name="docs", workspace=str(workspace)))
    docs.rmdir()
    docs.symlink_to("/etc")
    process = await anyio.run_process(_launch(command), check=False, env=dict(command.env), cwd=command.cwd)
    assert process.returncode == 126
    assert b"is not what it was" in process.stderr or b"symbolic link" in process.stderr


async def test_without_a_sandbox_a_users_server_fails_with_the_reason(tmp_path: Path) -> None:
    for lifted in (None, LiftedRules(unsandboxed=True), LiftedRules(loopback=True)):
        folder = tmp_path / secrets.token_hex(4)
        policy = policy_in(folder, sandbox="bubblewrap is not installed", lifted=lifted)
        spec = await allow_captive(policy, "--heartbeat")
        async with Hub(policy=policy, patience=QUICK) as hub:
            toolset = await open_toolset(hub, [spec], wait=START)
            assert toolset.tools == ()
            assert [status.state for status in hub.status()] == ["failed"]
            assert "bubblewrap is not installed" in hub.status()[0].reason
            assert "--allow-unsandboxed" in hub.status()[0].reason
        assert not policy.homes.exists()


async def test_a_single_user_on_loopback_can_run_without_a_sandbox(tmp_path: Path) -> None:
    policy = policy_in(tmp_path, sandbox="none", lifted=LiftedRules(unsandboxed=True, loopback=True))
    spec = await allow_captive(policy, "--heartbeat")
    async with Hub(policy=policy, patience=QUICK) as hub:
        toolset = await open_toolset(hub, [spec], wait=START)
        assert len(toolset.tools) > 5
        await until(lambda: beats(policy.homes) > 2)
    assert policy.sweep() == 0
    await assert_no_heartbeat(policy.homes)


def test_a_bubblewrap_command_shares_no_namespace_except_a_declared_network() -> None:
    off, on = (Sandbox("/usr/bin/bwrap").options(network=network) for network in (False, True))
    for option in ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"):
        assert option in off
        assert option in on
    assert "--unshare-net" in off
    assert "--unshare-net" not in on
    assert "/etc/resolv.conf" in on
    assert "/etc/resolv.conf" not in off
    assert not {"--share-net", "--dev-bind", "--bind"} & {*on, *off}


def exists(path: str | Path) -> bool:
    return os.path.exists(path)


def _grant() -> ExtraRights:
    return ExtraRights(folders=(sys.base_prefix,))


def _launch(command: StdioCommand) -> list[str]:
    launcher = str(Path(launch.__file__).with_name("launcher.py"))
    return [sys.executable, "-I", "-S", launcher, str(os.getpid()), command.plan(), command.executable, *command.args]


@needs_bubblewrap
async def test_an_interpreter_is_bound_without_its_prefix(tmp_path: Path) -> None:
    home = tmp_path / "ann"
    for name in ("bin/node", "bin/notes", ".ssh/id_ed25519", "lib/secret.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("secret")
    assert interpreter_files(home / "bin" / "node") == [str(home / "bin" / "node")]
    paths = interpreter_files(Path(PYTHON))
    assert sys.base_prefix not in paths
    sandbox = find_sandbox()
    assert not isinstance(sandbox, str)
    plan = {
        "limits": [],
        "files": {},
        "folders": [(place, False) for place in paths],
        "sandbox": sandbox.options(network=False),
        "closing": CLOSING,
        "filter": "",
        "nice": 0,
        "user": None,
    }
    launcher = Path(launcher_module.__file__)
    script = f"import ssl, json, os; print(json.dumps(sorted(os.listdir({sys.base_prefix!r}))))"
    line = [sys.executable, "-I", "-S", str(launcher), str(os.getpid()), json.dumps(plan), PYTHON, "-c", script]
    process = await anyio.run_process(line, check=False, env={}, cwd="/")
    assert process.returncode == 0, process.stderr
    assert set(json.loads(process.stdout)) <= {"bin", "lib"}
