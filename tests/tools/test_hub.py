"""The pool: who shares a connection, who must not, and when connections start and stop."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from agentic_rag.base.errors import AgenticRagError, ServerUnavailable
from agentic_rag.tools.base import SystemServer
from agentic_rag.tools.connection import HARD_CAP, Connection
from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.toolset import open_toolset
from tests.tools.support import QUICK, START, Hub, call, hostile, open_hub, plain, stdio_spec, text_of, until


async def test_two_hundred_conversations_on_three_servers_have_three_children(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    specs = [hostile(name=name, domain="law", env={"STARTS": str(log)}) for name in ("a", "b", "c")]
    async with open_hub(tmp_path / "homes") as hub:

        async def converse() -> None:
            toolset = await open_toolset(hub, specs, wait=START)
            assert text_of(await call(toolset, "a__fine")) == "fine"

        async with anyio.create_task_group() as conversations:
            for _ in range(200):
                conversations.start_soon(converse)
        assert len(hub.status("law")) == 3
    assert len(log.read_text().splitlines()) == 3


async def test_two_users_never_share_a_connection_of_a_user_entry(tmp_path: Path) -> None:
    def spec(user: str, identity: str) -> LaunchSpec:
        return hostile(name=identity, domain="law", user=user, identity=identity)

    async with open_hub(tmp_path) as hub:

        async def identify(user: str, identity: str) -> tuple[str, str]:
            toolset = await open_toolset(hub, [spec(user, identity)], wait=START)
            environment = (await call(toolset, "environment")).structured
            return environment["(pid)"], environment["HOME"]

        anna, ben = await identify("anna", "user"), await identify("ben", "user")
        assert anna[0] != ben[0]
        assert anna[1] != ben[1]
        assert await identify("anna", "user") == anna
        assert await identify("anna", "domain") == await identify("ben", "domain")


@pytest.mark.parametrize("change", [{"domain": "b"}, {"workspace": "/b"}, {"env": {"KEY": "2"}}])
def test_each_domain_workspace_and_secret_has_its_own_connection(change: dict[str, Any]) -> None:
    base: dict[str, Any] = {"domain": "a", "workspace": "/a", "env": {"KEY": "1"}}
    assert plain(**{**base, **change}).key() != plain(**base).key()


async def test_all_domains_share_one_connection_to_a_built_in_server() -> None:
    server = MCPServer("promptx")
    async with Hub({"promptx": server}) as hub:
        first = await hub.acquire([SystemServer("promptx", "system")])
        second = await hub.acquire([SystemServer("promptx", "system")])
        assert first["promptx"] is second["promptx"]


async def test_a_user_cannot_reach_a_built_in_server_by_its_name() -> None:
    async with Hub({"promptx": MCPServer("promptx")}) as hub:
        toolset = await open_toolset(hub, [stdio_spec("promptx", name="promptx")])
        assert toolset.tools == ()
        assert [status.state for status in hub.status()] == ["failed"]


async def test_an_idle_user_server_is_stopped_and_started_again_by_a_call(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, idle=0.1)) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        await until(lambda: hub.status() == ())
        assert text_of(await call(toolset, "fine", timeout=20)) == "fine"
        await until(lambda: hub.status() == ())


async def test_a_running_call_keeps_a_server_from_idling_out(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, idle=0.1)) as hub:
        toolset = await open_toolset(hub, [plain()], wait=START)
        assert text_of(await call(toolset, "count", upto=4, pause=0.2)) == "counted"


async def test_the_status_shows_the_domain_asked_for(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        await hub.acquire([hostile(domain="a")], wait=START)
        await hub.acquire([hostile(domain="b"), hostile(name="other", domain="b")], wait=START)
        assert [(status.domain, status.name) for status in hub.status("b")] == [("b", "hostile"), ("b", "other")]
        assert len(hub.status()) == 3
        assert hub.restart("hostile", "a") == 1
        assert hub.restart("nobody") == 0


async def test_a_corrected_entry_replaces_its_failed_one(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        await hub.acquire([hostile("dies")], wait=START)
        assert [status.state for status in hub.status()] == ["failed"]
        await hub.acquire([hostile("ok")], wait=START)
        assert [status.state for status in hub.status()] == ["ready"]


async def test_a_cancelled_hub_leaves_no_child(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with open_hub(tmp_path) as hub:
            await hub.acquire([hostile(), hostile("silent", "slow")], wait=2)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_starting_mcp_server_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    with anyio.fail_after(START / 2):  # its own limit for the start would be longer
        async with open_hub(tmp_path) as hub:
            await hub.acquire([hostile("silent")], wait=0.2)


async def test_a_restart_abandons_a_hanging_start(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, initialize=1000)) as hub:
        await hub.acquire([hostile("silent")], wait=0.5)
        assert hub.restart("hostile") == 1
        assert [status.state for status in hub.status()] == ["starting"]


async def test_stopping_ends_calls_to_servers_in_memory_too() -> None:
    server = MCPServer("slow")
    has_started = anyio.Event()
    order: list[str] = []

    @server.tool()
    async def wait() -> str:
        has_started.set()
        try:
            await anyio.sleep_forever()
        finally:
            order.append("tool")
        return ""

    async def use_server(hub: Hub) -> None:
        connection = (await hub.acquire([SystemServer("slow", "system")]))["slow"]
        with pytest.raises(ServerUnavailable):
            await connection.call("wait", {}, timeout=60)
        order.append("caller")

    async with anyio.create_task_group() as tasks, Hub({"slow": server}, patience=QUICK) as hub:
        tasks.start_soon(use_server, hub)
        await has_started.wait()
    assert order == ["tool", "caller"]


async def test_a_call_with_steady_progress_ends_at_the_hard_cap() -> None:
    server = MCPServer("busy")
    reports = 0

    @server.tool()
    async def forever(ctx: Context) -> str:
        nonlocal reports
        while True:
            await anyio.sleep(0.01)
            reports += 1
            await ctx.report_progress(reports)

    async with Hub({"busy": server}) as hub:
        connection = (await hub.acquire([SystemServer("busy", "system")]))["busy"]
        with anyio.fail_after(240), pytest.raises(ServerUnavailable):
            await connection.call("forever", {}, timeout=0.1)
    assert reports > HARD_CAP  # it lived longer than one timeout


async def test_a_connection_stopped_before_its_start_starts_no_process() -> None:
    dials: list[str] = []

    async def dial(report_loss: Callable[[str], None], tail: deque[str]) -> MCPServer:
        dials.append("dialled")
        return MCPServer("late")

    async with anyio.create_task_group() as tasks:
        connection = Connection("late", dial, lambda owner: tasks.start_soon(owner) and None)
        connection.start()
        connection.stop()
        with anyio.fail_after(240):
            await connection.wait_ended()
    assert dials == []
    assert connection.state == "stopped"


async def test_only_remaining_servers_keep_running_and_a_returning_one_restarts(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        kept, removed, in_other_domain = (
            hostile(name="kept", domain="a"),
            hostile(name="gone", domain="a"),
            hostile(domain="b"),
        )
        toolset = await open_toolset(hub, [kept, removed, in_other_domain], wait=START)
        stopping = hub.keep("a", {"kept": kept.entry.hash()})
        assert [connection.state for connection in stopping] == ["stopped"]
        with anyio.fail_after(240):
            for connection in stopping:
                await connection.wait_ended()
        assert [(status.domain, status.name) for status in hub.status()] == [("a", "kept"), ("b", "hostile")]
        assert "it was stopped" in text_of(await call(toolset, "gone__fine"))
        returned = await open_toolset(hub, [removed], wait=START)
        assert text_of(await call(returned, "gone__fine")) == "fine"


async def test_a_turn_started_before_an_edit_keeps_the_older_server_until_its_end(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, retired=0.5)) as hub:
        old_toolset = await open_toolset(hub, [hostile(domain="a")], wait=START)
        connection = hub.connections()[0]
        new_toolset = await open_toolset(hub, [hostile("noisy", domain="a")], wait=START)
        assert connection.retired
        for toolset in (old_toolset, new_toolset):
            assert text_of(await call(toolset, "fine")) == "fine"
        assert hub.connections()[0] is not connection
        assert hub.restart("hostile", "a") == 1
        await until(lambda: connection.state == "stopped")
        assert [connection.retired for connection in hub.connections()] == [False]
        assert text_of(await call(old_toolset, "fine", timeout=20)) == "fine"


async def test_a_trial_of_a_slow_server_times_out_and_leaves_no_child(tmp_path: Path) -> None:
    policy = LaunchPolicy(tmp_path, lifted=LiftedRules(any_command=True, loopback=True))

    class Observer:
        async def server_refused(self, spec: LaunchSpec, error: AgenticRagError) -> None:
            raise AssertionError(error)

    async with Hub(policy=policy, observer=Observer()) as hub:
        state = await hub.trial(hostile("silent"), seconds=0.3)
    assert (state.state, state.reason) == ("starting", "it was not ready after 0.3 s")
    assert policy.sweep() == 0
