"""Failures of MCP servers: a call always ends, and other servers keep working."""

import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from mcp_types import JSONRPCError, JSONRPCResponse

from agentic_rag.base.errors import ServerUnavailable
from agentic_rag.tools.connection import LISTINGS, TAIL_LINES
from agentic_rag.tools.connector import MachineShare
from agentic_rag.tools.toolset import open_toolset
from agentic_rag.tools.transports.inbound import PARTS
from agentic_rag.tools.transports.stdio import LINE_BYTES, STDERR_CHARS, parse_line, read_batch
from tests.tools.support import QUICK, START, call, hostile, open_hub, plain, text_of, until


def resident_bytes() -> int:
    """Return the memory that this process uses now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


pytestmark = pytest.mark.attack(kind="model")


async def test_a_crash_in_the_middle_of_a_call_is_an_error_and_the_next_call_works(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        for name in ("crash", "half_then_crash"):
            outcome = await call(toolset, name)
            assert outcome.status == "error"
            assert "exit code 3" in text_of(outcome)
            assert text_of(await call(toolset, "fine", timeout=20)) == "fine"


async def test_the_other_servers_continue_when_one_dies(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile(name="one"), hostile(name="two")], wait=START)
        results: list[str] = []

        async def call_survivor() -> None:
            results.extend([text_of(await call(toolset, "two__fine")) for _ in range(20)])

        async with anyio.create_task_group() as calls:
            calls.start_soon(call_survivor)
            calls.start_soon(call, toolset, "one__crash")
        assert results == ["fine"] * 20


@pytest.mark.parametrize("name", ["silence", "wrong_id"])
async def test_a_server_that_never_answers_times_out(tmp_path: Path, name: str) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        outcome = await call(toolset, name, timeout=0.1)
        assert outcome.status == "error"
        assert "within 0.1 s" in text_of(outcome)
        assert text_of(await call(toolset, "fine")) == "fine"


async def test_endless_progress_ends_at_the_hard_cap(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        outcome = await call(toolset, "flood_progress", timeout=0.1)
        assert "within 0.1 s" in text_of(outcome)
        assert text_of(await call(toolset, "fine")) == "fine"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("garbage", "after garbage"),
        ("batch", "in a list \ufffd, 😀"),
        ("not_utf8", "caf\ufffd \ufffd\ufffd\ufffd"),
        ("lone_surrogate", "a\ufffdb 😀 \\ud800"),
    ],
)
async def test_garbage_and_broken_text_affect_no_other_input(tmp_path: Path, name: str, expected: str) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        assert text_of(await call(toolset, name)) == expected


@pytest.mark.parametrize("name", ["deep", "deep_id_last"])
async def test_json_nested_too_deep_ends_its_call_at_once(tmp_path: Path, name: str) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        outcome = await call(toolset, name)
        assert outcome.status == "error"
        assert "cannot be read" in text_of(outcome)
        assert text_of(await call(toolset, "fine")) == "fine"


@pytest.mark.parametrize("mib", [1, 200])
async def test_a_result_beyond_the_line_cap_is_refused_and_the_connection_stays_open(tmp_path: Path, mib: int) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        outcome = await call(toolset, "long_line", timeout=50, mib=mib)
        assert outcome.status == "error"
        assert str(LINE_BYTES) in text_of(outcome)
        assert text_of(await call(toolset, "fine")) == "fine"
        assert [status.state for status in hub.status()] == ["ready"]


async def test_a_result_with_too_many_parts_is_refused_before_they_are_read(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        outcome = await call(toolset, "wide", timeout=50)
        assert outcome.status == "error"
        assert f"more than {PARTS} parts" in text_of(outcome)
        assert text_of(await call(toolset, "fine")) == "fine"
        assert [status.state for status in hub.status()] == ["ready"]


async def test_a_request_with_too_many_parts_closes_the_mcp_servers_connection(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        outcome = await call(toolset, "asks_widely", timeout=50)
        assert f"a request of more than {PARTS} parts" in text_of(outcome)
        assert text_of(await call(toolset, "fine", timeout=20)) == "fine"


async def test_an_endless_line_closes_the_mcp_servers_connection(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        outcome = await call(toolset, "endless", timeout=50)
        assert "a line of more than" in text_of(outcome)
        assert text_of(await call(toolset, "fine", timeout=20)) == "fine"


async def test_closed_output_of_a_living_process_is_a_lost_server(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        assert "closed its output" in text_of(await call(toolset, "close_output"))
        assert text_of(await call(toolset, "fine", timeout=20)) == "fine"


async def test_answers_against_the_protocol_and_error_answers_are_error_results(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        for _ in range(4):  # an error answer is no failure of the connection, however many follow
            assert text_of(await call(toolset, "rpc_error")) == "no such row"
        assert (await call(toolset, "not_a_result")).status == "error"
        assert [status.state for status in hub.status()] == ["ready"]


async def test_a_changed_tool_list_applies_from_the_next_turn(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        specs = [plain(), hostile()]
        first_toolset = await open_toolset(hub, specs, wait=START)
        names_before = [tool.name for tool in first_toolset.tools]
        for server in ("plain", "hostile"):
            assert text_of(await call(first_toolset, f"{server}__grow")) == "ok"
        assert [tool.name for tool in first_toolset.tools] == names_before

        async def has_grown() -> bool:
            second_toolset = await open_toolset(hub, specs)
            return {tool.name for tool in second_toolset.tools} - set(names_before) == {
                "plain__grown",
                "hostile__grown",
            }

        await until(has_grown)
        await call(first_toolset, "hostile__vanish")

        async def has_vanished() -> bool:
            return not any(tool.server == "hostile" for tool in (await open_toolset(hub, specs)).tools)

        await until(has_vanished)


async def test_a_slow_mcp_server_delays_a_turn_only_up_to_the_limit(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        await hub.acquire([hostile(name="quick")], wait=START)
        with anyio.fail_after(START / 2):
            toolset = await open_toolset(hub, [hostile("silent", "slow"), hostile(name="quick")], wait=0.5)
        assert {tool.server for tool in toolset.tools} == {"quick"}
        assert toolset.notices == (("slow", "it is still starting"),)
        assert toolset.missing == {"slow": True}, "a server that is starting is no server that is down"
        assert {status.name: status.state for status in hub.status()} == {"quick": "ready", "slow": "starting"}


async def test_a_server_silent_on_the_newer_protocol_is_asked_in_the_older_one(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, initialize=6, probe=30)) as hub:
        toolset = await open_toolset(hub, [hostile("deaf-to-discover")], wait=START)
        assert text_of(await call(toolset, "fine")) == "fine"


async def test_a_server_that_ignores_the_newer_protocol_is_asked_in_the_older_one_in_the_same_start(
    tmp_path: Path,
) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, probe=0.3, idle=0.2)) as hub:
        toolset = await open_toolset(hub, [hostile("deaf-to-discover")], wait=START)
        methods = text_of(await call(toolset, "starts"))
        assert methods.startswith("server/discover initialize notifications/initialized tools/list ")  # one process
        assert [status.state for status in hub.status()] == ["ready"]
        del toolset
        await until(lambda: hub.status() == ())  # it was idle, and the whole connection was released
        second_toolset = await open_toolset(hub, [hostile("deaf-to-discover")], wait=START)
        assert text_of(await call(second_toolset, "starts")).startswith("initialize ")  # its protocol version is cached


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("requests", "more than 100 requests"),
        ("log", "unrequested messages"),
        pytest.param("answers", "unrequested messages", marks=pytest.mark.nightly("a log floods every time")),
        ("garbage", "lines that are no messages"),
    ],
)
async def test_a_flooding_server_is_disconnected_with_a_reason_for_the_admin(
    tmp_path: Path, what: str, reason: str
) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, backoff=60)) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        memory_before = resident_bytes()
        outcome = await call(toolset, "flood", timeout=50, what=what)
        assert outcome.status == "error"
        assert reason in text_of(outcome)
        await until(lambda: reason in hub.status()[0].reason)
        assert resident_bytes() - memory_before < 200 * 2**20


@pytest.mark.parametrize("what", ["progress", "log", "changes"])
async def test_many_ignorable_messages_do_not_slow_an_mcp_server(tmp_path: Path, what: str) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        assert text_of(await call(toolset, "flood", timeout=50, what=what, count=6_000)) == "flooded"
        assert text_of(await call(toolset, "fine")) == "fine"


async def test_frequent_tool_changes_are_listed_at_a_limited_rate(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        for _ in range(20):
            toolset = await open_toolset(hub, [hostile()], wait=START)
            await call(toolset, "flood", what="changes", count=1)
        assert text_of(await call(toolset, "starts")).count("tools/list") <= 1 + LISTINGS


async def test_a_domain_with_too_many_servers_waits_and_others_do_not(tmp_path: Path) -> None:
    share = MachineShare(servers=2, starts=1)
    async with open_hub(tmp_path, share=share) as hub:
        silent = [hostile("silent", f"silent{number}", domain="greedy") for number in range(4)]
        with anyio.move_on_after(0.1):
            await open_toolset(hub, silent, wait=START)
        modest = await open_toolset(hub, [hostile(domain="modest")], wait=START)  # while those of the other one start
        assert text_of(await call(modest, "fine")) == "fine"
    async with open_hub(tmp_path, share=share) as hub:
        toolset = await open_toolset(
            hub, [hostile(name=f"s{number}", domain="greedy") for number in range(3)], wait=START
        )
        assert len({tool.server for tool in toolset.tools}) == 2
        assert "2 servers of its domain run already" in str(toolset.notices)


async def test_a_server_that_fails_three_times_stays_down_until_it_is_restarted(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile("dies")], wait=START)
        status = hub.status()[0]
        assert status.state == "failed"
        assert "exit code 4" in status.reason
        assert status.log == ("cannot open the database",) * 3
        assert toolset.notices == (("hostile", status.reason),)
        with anyio.fail_after(240):  # an open circuit answers immediately
            await open_toolset(hub, [hostile("dies")], wait=START)
        assert len(hub.status()[0].log) == 3
        assert hub.restart("hostile") == 1
        await until(lambda: len(hub.status()[0].log) == 6)


async def test_noise_around_every_message_is_ignored(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile("noisy")], wait=START)
        assert text_of(await call(toolset, "fine")) == "fine"
        assert any(line.startswith("stdout, not a message") for line in hub.status()[0].log)


async def test_a_server_that_reads_nothing_delays_callers_only_by_their_timeout(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        with anyio.fail_after(12):  # the protocol library waits 5 s for the server after each message at the end
            for _ in range(3):
                outcome = await call(toolset, "deafen", timeout=0.2, text="x" * 1024 * 1024)
                assert "within 0.2 s" in text_of(outcome)


async def test_the_last_stderr_lines_of_a_server_are_kept_and_cut(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        assert text_of(await call(toolset, "chatter")) == "said"
        await until(lambda: any(line.startswith("line 199") for line in hub.status()[0].log))
        lines = hub.status()[0].log
        assert len(lines) == TAIL_LINES
        assert {len(line) for line in lines} == {STDERR_CHARS}
        assert text_of(await call(toolset, "fine")) == "fine"


async def test_a_server_that_is_down_keeps_its_tools_in_the_list(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, backoff=60)) as hub:
        first_toolset = await open_toolset(hub, [hostile()], wait=START)
        await call(first_toolset, "crash")
        await until(lambda: hub.status()[0].state == "degraded")  # the call noticed it first
        second_toolset = await open_toolset(hub, [hostile()], wait=0.1)
        assert second_toolset.tools == first_toolset.tools
        assert second_toolset.notices == (("hostile", "it ended with exit code 3"),)
        assert second_toolset.missing == {"hostile": False}
        outcome = await call(second_toolset, "fine", timeout=0.1)
        assert outcome.status == "error"
        assert "exit code 3" in text_of(outcome)
        member_text = text_of(await call(second_toolset, "fine", timeout=0.1, admin=False))
        assert member_text.startswith("The MCP server 'hostile' is not available now; an admin")


async def test_cancelling_the_caller_cancels_the_call_at_the_server(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with open_hub(tmp_path / "homes") as hub:
        toolset = await open_toolset(hub, [plain()], wait=START)
        async with anyio.create_task_group() as calls:
            with anyio.CancelScope() as scope:

                async def interrupt() -> None:
                    await until(lambda: journal.exists() and "started" in journal.read_text())
                    scope.cancel()

                calls.start_soon(interrupt)
                await call(toolset, "slow", 60, journal=str(journal))
        assert scope.cancelled_caught
        await until(lambda: "cancelled" in journal.read_text())


async def test_a_timeout_sends_a_cancellation_to_the_server(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with open_hub(tmp_path / "homes") as hub:
        toolset = await open_toolset(hub, [plain()], wait=START)
        assert (await call(toolset, "slow", 0.5, journal=str(journal))).status == "error"
        await until(lambda: "cancelled" in journal.read_text())


async def test_progress_renews_the_timeout_and_reaches_the_caller_in_order(tmp_path: Path) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def progress(count: float, total: float | None, message: str | None) -> None:
        reports.append((count, total, message))

    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [plain()], wait=START)
        outcome = await call(toolset, "count", 2.0, progress, upto=12, pause=0.25)  # three seconds in all
        assert text_of(outcome) == "counted"
        assert reports == [(step, 12, f"step {step}") for step in range(1, 13)]


async def test_closing_the_pool_ends_running_calls(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    reasons: list[str] = []
    async with anyio.create_task_group() as calls, open_hub(tmp_path / "homes") as hub:
        toolset = await open_toolset(hub, [plain()], wait=START)

        async def call_slow_tool() -> None:
            reasons.append(text_of(await call(toolset, "slow", 60, journal=str(journal))))

        calls.start_soon(call_slow_tool)
        await until(journal.exists)
    assert reasons == ["The MCP server 'plain' is not available: it was stopped"]


async def test_a_closed_hub_refuses_calls(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        connection = (await hub.acquire([hostile()], wait=START))["hostile"]
    with pytest.raises(ServerUnavailable):
        await connection.call("fine", {}, timeout=1)


@pytest.mark.parametrize("line", [b"[", b'{"a":', rb"\ud800", b"\\", b'"', b" "])
def test_a_hostile_megabyte_is_not_a_message(line: bytes) -> None:
    assert parse_line(line * (LINE_BYTES // len(line))) is None


@pytest.mark.parametrize(
    "line", [b"[]", b"[1]", b"[{}", b'[{"a":1},2]', b"[" * 9_000, b'{"a":[{}]}', b"[" + b"{}," * 5_000 + b"{}]", b""]
)
def test_an_invalid_batch_is_refused(line: bytes) -> None:
    assert read_batch(line) == []


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":NaN,"b":[-Infinity,1e999]}}', {"a": None, "b": [None, None]}),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":NaN,"b":' + b"9" * 5000 + b"}}", {"a": None, "b": None}),
        (b'{"id":7,"result":{"a":1}}', {"a": 1}),
        (b'{"jsonrpc":"1.0","id":7,"error":null,"result":{"a":1}}', {"a": 1}),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":7,"result":{"a":1}}\r', {"a": 1}),
        (b'{"jsonrpc":"2.0","id":7,"result":[1]}', {}),
    ],
)
def test_a_response_that_violates_the_protocol_is_read_as_far_as_possible(line: bytes, result: object) -> None:
    response = parse_line(line)
    assert isinstance(response, JSONRPCResponse)
    assert (response.id, response.result) == (7, result)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (b'"no such table"', "no such table"),
        (b'{"code":"E1","message":"no such table"}', "no such table"),
        (b'{"message":["no such table"]}', '["no such table"]'),
        (b'{"code":1,"message":"' + b"y" * 9_000 + b'","data":NaN}', "y" * 2_000),
    ],
)
def test_an_error_that_violates_the_protocol_keeps_its_text(error: bytes, words: str) -> None:
    response = parse_line(b'{"jsonrpc":"2.0","id":7,"error":' + error + b"}")
    assert isinstance(response, JSONRPCError)
    assert (response.id, response.error.message) == (7, words)


@pytest.mark.parametrize("ident", [b"true", b"null", b"[]", b"1.5"])
def test_a_response_without_a_call_id_is_ignored(ident: bytes) -> None:
    assert parse_line(b'{"id":' + ident + b',"result":{"a":NaN}}') is None
