"""Results that are too long for the model: head and tail with a reference; the whole result stays readable."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.events import ToolStatus
from agentic_rag.base.ids import TurnId
from agentic_rag.base.messages import plain_text, text_block
from agentic_rag.models.base import ModelRequest
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.results import (
    RESULT_BUDGET,
    ROLE_BUDGET,
    cut_at_section,
    finished_call,
    first_bytes,
    head_and_tail,
    last_bytes,
    part_of,
    passages_with,
)
from agentic_rag.store import payloads, tool_calls
from agentic_rag.testing.scripted import Scripted, ScriptedModel
from agentic_rag.testing.steps import Step, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from agentic_rag.tools.entries.entry import McpEntry, StdioTarget
from tests.runtime.harness import SESSION, MemoryToolset, bench, definition, info, ok, text_of, toolset

LONG_TEXT = "".join(f"line {number} 文字\n" for number in range(3_000))


def with_server() -> Definition:
    return definition(entries=(McpEntry("srv", StdioTarget("x")),))


async def dump(request: CallRequest) -> CallOutcome:
    return ok(LONG_TEXT)


def result_texts(request: ModelRequest) -> list[str]:
    return [
        plain_text(block["content"])
        for message in request.messages
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


async def test_a_long_result_is_shown_by_head_and_tail_and_can_be_read_to_its_end(tmp_path: Path) -> None:
    refs: list[str] = []

    def read_on(request: ModelRequest) -> Step:
        shown_text = result_texts(request)[-1]
        if not refs:
            assert shown_text.startswith(LONG_TEXT[:1000])
            assert shown_text.endswith(LONG_TEXT[-1000:])
            ref = shown_text.split('ref "')[1].split('"')[0]
            start = 0
        else:
            ref = refs[0]
            start = int(shown_text.rsplit("go on with from ", 1)[1].rstrip("]"))
        refs.append(ref)
        return Step((Use("read_tool_result", {"ref": ref, "from": start}),))

    reads = (len(LONG_TEXT.encode()) // RESULT_BUDGET) + 1
    steps: list[Scripted] = [use("dump", query="x"), *[read_on] * reads, say("Read.")]
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(dump=dump)) as b:
        limits = definition().limits.__class__(max_steps=20)
        events = await b.say("Read it", definition=definition(entries=with_server().entries, limits=limits))
        assert text_of(events) == "Read."
        parts = [text.rsplit("\n[characters", 1)[0] for text in result_texts(model.requests[-1])[1:]]
        assert "".join(parts) == LONG_TEXT
        first_result = next(event.fields() for event in events if event.type == "tool_result")
        assert (first_result["truncated"], first_result["ref"]) == (True, refs[0])
        payload = await b.database.read(lambda conn: payloads.get(conn, SESSION, refs[0]))
        assert payload is not None
        assert payload.size == len(LONG_TEXT.encode())
        calls = await b.database.read(lambda conn: tool_calls.of_turn(conn, TurnId(events[0].turn_id)))
        assert (calls[0].size, calls[0].ref) == (payload.size, refs[0])
        assert (calls[1].ref, calls[1].status) == (None, "ok")


async def test_a_ref_is_bound_to_its_session_and_a_bad_range_is_refused(tmp_path: Path) -> None:
    def read_badly(request: ModelRequest) -> Step:
        ref = result_texts(request)[-1].split('ref "')[1].split('"')[0]
        bad_arguments: tuple[dict[str, Any], ...] = (
            {"ref": "ref_" + "0" * 26},
            {"ref": "../test.db"},
            {"ref": ref, "from": 9_999_999},
            {"ref": ref, "find": ""},
            {"ref": ref, "find": "x" * 201},
        )
        return Step(tuple(Use("read_tool_result", arguments) for arguments in bad_arguments))

    steps = (use("dump", query="x"), read_badly, say("Fine."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(dump=dump)) as b:
        events = await b.say("Go", definition=with_server())
        answers = [event.fields() for event in events if event.type == "tool_result"][1:]
        assert [answer["status"] for answer in answers] == ["error"] * 5
        assert sorted(answer["content"].split(" ")[0] for answer in answers) == [
            "The",
            "The",
            "There",
            "There",
            "from:",
        ]


async def test_words_are_found_in_a_stored_result_with_their_places(tmp_path: Path) -> None:
    def find_and_read(request: ModelRequest) -> Step:
        shown_text = result_texts(request)[-1]
        if 'ref "' in shown_text:
            refs.append(shown_text.split('ref "')[1].split('"')[0])
            return Step((Use("read_tool_result", {"ref": refs[0], "find": "LINE 2999 "}),))
        position = int(shown_text.split("[characters ")[1].split(" ")[0])
        return Step((Use("read_tool_result", {"ref": refs[0], "from": position}),))

    refs: list[str] = []
    async with (
        ScriptedModel(use("dump", query="x"), find_and_read, find_and_read, say("Fine.")) as model,
        bench(tmp_path, model, toolset(dump=dump)) as b,
    ):
        await b.say("Go", definition=with_server())
        match, rest = result_texts(model.requests[-1])[1:]
        assert "line 2999 文字" in match
        assert match.endswith(f"[1 of 1 places, {len(LONG_TEXT)} characters in all]")
        assert rest.startswith(match.split("]\n", 1)[1].rsplit("\n[", 1)[0])


async def test_the_tool_is_always_offered_and_no_server_can_replace_it(tmp_path: Path) -> None:
    async def steal(request: CallRequest) -> CallOutcome:
        return ok("stolen")

    tools = MemoryToolset({"read_tool_result": (info("read_tool_result"), steal), "dump": (info("dump"), dump)})
    steps = (say("One."), use("read_tool_result", ref="ref_x"), say("Two."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(dump=dump)) as b:
        await b.say("A")
        assert [tool["name"] for tool in model.requests[0].tools] == ["read_tool_result", "dump"]
        settings = with_server()
        async with bench(tmp_path / "..", model, tools) as other_bench:
            events = await other_bench.say("B", definition=settings)
            assert [tool["name"] for tool in model.requests[1].tools] == ["read_tool_result", "dump"]
            result = next(event.fields() for event in events if event.type == "tool_result")
            assert (result["server"], result["status"]) == ("agent", "error")
            assert tools.requests == []


async def test_a_result_that_cannot_be_stored_yet_delays_the_turn_and_is_stored_whole(tmp_path: Path) -> None:
    folder = tmp_path / "payloads"
    folder.write_bytes(b"no folder")
    steps = (use("dump", query="x"), say("Works."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(dump=dump)) as b:
        accepted = await b.send("Go", definition())
        with anyio.fail_after(240):
            async for event in b.runtime.follow(accepted.turn_id):
                if event.type == "notice":
                    assert event.fields()["code"] == "STORAGE_STALLED"
                    folder.unlink()
        assert event.type == "done"
        calls = await b.database.read(lambda conn: tool_calls.of_turn(conn, accepted.turn_id))
        assert [call.status for call in calls] == ["ok"]
        assert [path.name for path in folder.iterdir()] == [calls[0].ref]


@pytest.mark.parametrize("size", [10, 20_000])
def test_structured_content_of_a_users_server_is_stored_beside_the_text(size: int) -> None:
    outcome = CallOutcome(ToolStatus.OK, (text_block("shown"),), {"chart": "x" * size})
    finished = finished_call("toolu_1", "plot", info("plot"), {}, outcome, lambda: "ref_1")
    if size < RESULT_BUDGET:
        assert finished.block["_structured"] == {"chart": "x" * size}
        assert finished.kept == ()
    else:
        assert finished.block["_structured"] == {"_ref": "ref_1"}
        assert [(payload.ref, payload.media_type) for payload in finished.kept] == [("ref_1", "application/json")]
    assert finished.ref is None
    assert not finished.bodies[-1].truncated  # type: ignore[union-attr]


def test_a_role_is_cut_at_the_end_of_a_section_with_a_mark() -> None:
    sections = [f"## Part {number}\n" + f"rule {number} 规则\n" * 400 for number in range(40)]
    cut_text = cut_at_section("".join(sections), ROLE_BUDGET)
    beginning, _, mark = cut_text.rpartition("\n\n[truncated: kept ")
    assert "".join(sections).startswith(beginning)
    assert beginning.endswith(sections[beginning.count("##") - 1].rstrip())
    assert mark == f"{len(beginning)} of {len(''.join(sections))} characters]"
    tool = info("promptx_action", origin="system")
    outcome = ok("".join(sections), {"role": "r", "hash": "h"})
    finished = finished_call("toolu_1", "promptx_action", tool, {}, outcome)
    assert plain_text(finished.block["content"]) == cut_text
    assert finished.block["_role"] == {"role": "r", "hash": "h"}
    assert finished.bodies[-1].truncated  # type: ignore[union-attr]


texts = st.text(st.characters(codec="utf-8"), max_size=200)


@given(texts, st.integers(1, 100))
def test_a_cut_by_bytes_never_breaks_a_character(text: str, count: int) -> None:
    assert text.startswith(first_bytes(text, count))
    assert text.endswith(last_bytes(text, count))
    assert len(first_bytes(text, count).encode()) <= count


@given(st.text("a文🙂\n", min_size=1, max_size=20), st.integers(0, 5_999))
def test_every_part_names_the_start_of_the_next(text: str, start: int) -> None:
    long_text = text * (30_000 // len(text))
    shown_part = part_of(long_text, start)
    part, _, position = shown_part.rpartition("\n[characters ")
    stop = int(position.split(" to ")[1].split(" of ")[0])
    assert long_text[start:stop] == part
    assert (f"go on with from {stop}" in position) == (stop < len(long_text))
    assert len(head_and_tail(long_text, "ref_1").encode()) < RESULT_BUDGET + 200


@given(st.text("abAB \n", max_size=3_000), st.text("ab ", min_size=1, max_size=3), st.integers(0, 3_000))
def test_every_occurrence_in_a_text_is_found_by_continuing(text: str, sought: str, start: int) -> None:
    counts: list[int] = []
    position: int | None = min(start, len(text))
    expected = text.lower()[position:].count(sought)
    while position is not None:
        shown_part = passages_with(text, sought, position)
        assert len(shown_part.encode()) < RESULT_BUDGET
        if "does not occur" in shown_part:
            break
        *passages, summary = shown_part.rsplit("\n[", 1)
        for passage in passages[0].split("[characters ")[1:]:
            (begin, stop), body = passage.split("]\n")[0].split(" to "), passage.split("]\n", 1)[1]
            assert text[int(begin) : int(stop)].rstrip("\n") == body.rstrip("\n")
        counts.append(int(summary.split(" of ")[0]))
        position = int(summary.split("from ")[1].rstrip("]")) if "from " in summary else None
    assert sum(counts) == expected
