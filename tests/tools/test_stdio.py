"""Children over stdio: how they start, what they inherit, and that they end."""

import os
import signal
import sys
from collections import deque
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.errors import CommandNotAllowed, InvalidInput
from agentic_rag.tools.launch.environment import MARKER
from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.toolset import open_toolset
from agentic_rag.tools.transports import stdio
from tests.tools.support import START, Hub, alive, call, hostile, http_spec, open_hub, plain, stdio_spec, text_of, until


def open_to_others(path: Path) -> int:
    return path.stat().st_mode & 0o077


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


async def test_a_stdio_server_is_called_in_both_protocol_eras(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [plain(), hostile()], wait=START)
        assert text_of(await call(toolset, "plain__echo", text="你好")) == "你好"
        assert text_of(await call(toolset, "hostile__fine")) == "fine"
        assert {status.name: status.protocol for status in hub.status()} == {
            "plain": "2026-07-28",
            "hostile": "2025-06-18",
        }


async def test_a_child_gets_a_new_environment_and_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [plain(env={"TOKEN": "t"})], wait=START)
        outcome = await call(toolset, "environment")
        environment = outcome.structured
        home = Path(environment["HOME"])
        assert set(environment) - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "TOKEN", MARKER, "(cwd)", "(pid)", "(sid)"}
        assert environment["(cwd)"] == str(home)
        assert home.parent == tmp_path
        assert open_to_others(home) == 0
        assert environment["(sid)"] == environment["(pid)"]
        assert "hello from stderr" in hub.status()[0].log


async def test_closing_the_pool_kills_the_child_and_its_children(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [plain()], wait=START)
        pids = [int(text_of(await call(toolset, "breed", detach=detach))) for detach in (False, True)]
        pids.append(int((await call(toolset, "environment")).structured["(pid)"]))
        assert all(alive(pid) for pid in pids)
    await until(lambda: not any(alive(pid) for pid in pids))


FLUSHING = """
import pathlib, sys
pathlib.Path("started").touch()
sys.stdin.read()
sys.stdout.write("x" * 1_000_000)
sys.stdout.flush()
pathlib.Path("ended").touch()
"""


async def test_a_child_that_writes_much_after_its_input_ended_exits_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "EXIT_SECONDS", 60.0)  # far longer than the child takes on a busy machine
    policy = LaunchPolicy(tmp_path, lifted=LiftedRules(any_command=True, loopback=True))
    command = policy.resolve(stdio_spec(sys.executable, "-c", FLUSHING))
    async with stdio.StdioTransport(command, lambda reason: None, deque()):
        await until((command.cwd / "started").exists)
    assert (command.cwd / "ended").exists()


async def test_a_child_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tools.servers.host", str(tmp_path)]
    async with await anyio.open_process(command, cwd=Path(__file__).parents[2]) as host:
        assert host.stdout is not None
        with anyio.fail_after(240):
            child, grandchild = (int(word) for word in (await host.stdout.receive()).split())
        host.kill()
        await until(lambda: not alive(child))
    assert alive(grandchild)  # it left the session, so only its marker identifies it
    assert LaunchPolicy(tmp_path).sweep() == 1
    await until(lambda: not alive(grandchild))


async def test_a_sweep_leaves_the_children_of_other_data_folders_alone(tmp_path: Path) -> None:
    async with open_hub(tmp_path / "one") as hub:
        await open_toolset(hub, [hostile()], wait=START)
        assert LaunchPolicy(tmp_path / "two").sweep() == 0


async def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        pid = int((await call(toolset, "environment")).structured["(pid)"])
        os.kill(pid, signal.SIGKILL)
        await until(lambda: hub.status()[0].state != "ready")
        outcome = await call(toolset, "environment", timeout=20)
        assert int(outcome.structured["(pid)"]) != pid


def test_without_the_operators_permission_no_user_server_is_started(tmp_path: Path) -> None:
    for anything, loopback in ((False, False), (True, False), (False, True)):
        policy = LaunchPolicy(tmp_path, lifted=LiftedRules(any_command=anything, loopback=loopback))
        with pytest.raises(CommandNotAllowed) as refusal:
            policy.resolve(plain("files"))
        assert refusal.value.path == "mcpServers.files.command"
        assert "--allow-any-command" in refusal.value.remedy
        with pytest.raises(CommandNotAllowed):
            policy.endpoint(http_spec("http://169.254.169.254/"))
    assert is_empty(tmp_path)


async def test_a_refused_entry_is_a_notice_and_spawns_nothing(tmp_path: Path) -> None:
    async with Hub(policy=LaunchPolicy(tmp_path)) as hub:  # as if started without the flag
        toolset = await open_toolset(hub, [plain("files")])
        assert toolset.tools == ()
        assert toolset.notices[0][0] == "files"
        assert "--allow-any-command" in toolset.notices[0][1]
        assert [status.state for status in hub.status()] == ["failed"]
        assert is_empty(tmp_path)


@pytest.mark.parametrize(
    ("line", "env", "path"),
    [
        ([""], {}, "mcpServers.x.command"),
        (["bin/tool"], {}, "mcpServers.x.command"),
        (["no-such-program"], {}, "mcpServers.x.command"),
        (["sh\x00"], {}, "mcpServers.x.command"),
        (["sh", "a\x00b"], {}, "mcpServers.x.args"),
        (["sh"], {"A=B": "1"}, "mcpServers.x.env.A=B"),
        (["sh"], {"A": "1\x00"}, "mcpServers.x.env.A"),
    ],
)
def test_an_entry_that_cannot_run_names_the_field(
    tmp_path: Path, line: list[str], env: dict[str, str], path: str
) -> None:
    policy = LaunchPolicy(tmp_path, lifted=LiftedRules(any_command=True, loopback=True))
    with pytest.raises(InvalidInput) as refusal:
        policy.resolve(stdio_spec(*line, env=env))
    assert refusal.value.path == path


def test_a_bare_name_is_found_on_the_fixed_path_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = tmp_path / "sh"
    shadow.write_text("#!/bin/sh\n")
    shadow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    policy = LaunchPolicy(tmp_path / "homes", lifted=LiftedRules(any_command=True, loopback=True))
    assert policy.resolve(stdio_spec("sh")).executable in ("/usr/bin/sh", "/bin/sh")


def test_no_program_under_a_workspace_is_run(tmp_path: Path) -> None:
    program = tmp_path / "workspace" / "tool"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(program)
    policy = LaunchPolicy(tmp_path / "homes", lifted=LiftedRules(any_command=True, loopback=True))
    for path in (program, link):
        with pytest.raises(CommandNotAllowed):
            policy.resolve(stdio_spec(str(path), workspace=str(tmp_path / "workspace")))


def test_secrets_of_an_entry_are_in_no_repr(tmp_path: Path) -> None:
    spec = plain(env={"TOKEN": "hunter2"})
    policy = LaunchPolicy(tmp_path, lifted=LiftedRules(any_command=True, loopback=True))
    assert "hunter2" not in repr(spec) + repr(policy.resolve(spec)) + spec.key()
