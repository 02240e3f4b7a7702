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

LONG = "".join(f"line {number} 文字\n" for number in range(3_000))


def with_server() -> Definition:
    return definition(entries=(McpEntry("srv", StdioTarget("x")),))


async def dump(request: CallRequest) -> CallOutcome:
    return ok(LONG)


def results(request: ModelRequest) -> list[str]:
    return [
        plain_text(block["content"])
        for message in request.messages
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


async def test_a_long_result_is_shown_by_head_and_tail_and_can_be_read_to_its_end(tmp_path: Path) -> None:
    read: list[str] = []

    def read_on(request: ModelRequest) -> Step:
        said = results(request)[-1]
        if not read:
            assert said.startswith(LONG[:1000])
            assert said.endswith(LONG[-1000:])
            ref = said.split('ref "')[1].split('"')[0]
            start = 0
        else:
            ref = read[0]
            start = int(said.rsplit("go on with from ", 1)[1].rstrip("]"))
        read.append(ref)
        return Step((Use("read_tool_result", {"ref": ref, "from": start}),))

    last = (len(LONG.encode()) // RESULT_BUDGET) + 1
    steps: list[Scripted] = [use("dump", query="x"), *[read_on] * last, say("Read.")]
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(dump=dump)) as b:
        limits = definition().limits.__class__(max_steps=20)
        events = await b.say("Read it", definition=definition(entries=with_server().entries, limits=limits))
        assert text_of(events) == "Read."
        parts = [text.rsplit("\n[characters", 1)[0] for text in results(model.requests[-1])[1:]]
        assert "".join(parts) == LONG
        first = next(event.fields() for event in events if event.type == "tool_result")
        assert (first["truncated"], first["ref"]) == (True, read[0])
        payload = await b.database.read(lambda conn: payloads.get(conn, SESSION, read[0]))
        assert payload is not None
        assert payload.size == len(LONG.encode())
        calls = await b.database.read(lambda conn: tool_calls.of_turn(conn, TurnId(events[0].turn_id)))
        assert (calls[0].size, calls[0].ref) == (payload.size, read[0])
        assert (calls[1].ref, calls[1].status) == (None, "ok")


async def test_a_ref_is_bound_to_its_session_and_a_bad_range_is_refused(tmp_path: Path) -> None:
    def ask(request: ModelRequest) -> Step:
        ref = results(request)[-1].split('ref "')[1].split('"')[0]
        uses: tuple[dict[str, Any], ...] = (
            {"ref": "ref_" + "0" * 26},
            {"ref": "../test.db"},
            {"ref": ref, "from": 9_999_999},
            {"ref": ref, "find": ""},
            {"ref": ref, "find": "x" * 201},
        )
        return Step(tuple(Use("read_tool_result", each) for each in uses))

    steps = (use("dump", query="x"), ask, say("Fine."))
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
    def look(request: ModelRequest) -> Step:
        said = results(request)[-1]
        if 'ref "' in said:
            kept.append(said.split('ref "')[1].split('"')[0])
            return Step((Use("read_tool_result", {"ref": kept[0], "find": "LINE 2999 "}),))
        place = int(said.split("[characters ")[1].split(" ")[0])
        return Step((Use("read_tool_result", {"ref": kept[0], "from": place}),))

    kept: list[str] = []
    async with (
        ScriptedModel(use("dump", query="x"), look, look, say("Fine.")) as model,
        bench(tmp_path, model, toolset(dump=dump)) as b,
    ):
        await b.say("Go", definition=with_server())
        around, read = results(model.requests[-1])[1:]
        assert "line 2999 文字" in around
        assert around.endswith(f"[1 of 1 places, {len(LONG)} characters in all]")
        assert read.startswith(around.split("]\n", 1)[1].rsplit("\n[", 1)[0])


async def test_the_tool_is_always_offered_and_no_server_can_replace_it(tmp_path: Path) -> None:
    async def false(request: CallRequest) -> CallOutcome:
        return ok("stolen")

    tools = MemoryToolset({"read_tool_result": (info("read_tool_result"), false), "dump": (info("dump"), dump)})
    steps = (say("One."), use("read_tool_result", ref="ref_x"), say("Two."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(dump=dump)) as b:
        await b.say("A")
        assert [tool["name"] for tool in model.requests[0].tools] == ["read_tool_result", "dump"]
        with_own = with_server()
        async with bench(tmp_path / "..", model, tools) as other:
            events = await other.say("B", definition=with_own)
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
    done = finished_call("toolu_1", "plot", info("plot"), {}, outcome, lambda: "ref_1")
    if size < RESULT_BUDGET:
        assert done.block["_structured"] == {"chart": "x" * size}
        assert done.kept == ()
    else:
        assert done.block["_structured"] == {"_ref": "ref_1"}
        assert [(kept.ref, kept.media_type) for kept in done.kept] == [("ref_1", "application/json")]
    assert done.ref is None
    assert not done.bodies[-1].truncated  # type: ignore[union-attr]


def test_a_role_is_cut_at_the_end_of_a_section_with_a_mark() -> None:
    sections = [f"## Part {number}\n" + f"rule {number} 规则\n" * 400 for number in range(40)]
    cut = cut_at_section("".join(sections), ROLE_BUDGET)
    kept, _, mark = cut.rpartition("\n\n[truncated: kept ")
    assert "".join(sections).startswith(kept)
    assert kept.endswith(sections[kept.count("##") - 1].rstrip())
    assert mark == f"{len(kept)} of {len(''.join(sections))} characters]"
    tool = info("promptx_action", origin="system")
    outcome = ok("".join(sections), {"role": "r", "hash": "h"})
    done = finished_call("toolu_1", "promptx_action", tool, {}, outcome)
    assert plain_text(done.block["content"]) == cut
    assert done.block["_role"] == {"role": "r", "hash": "h"}
    assert done.bodies[-1].truncated  # type: ignore[union-attr]


texts = st.text(st.characters(codec="utf-8"), max_size=200)


@given(texts, st.integers(1, 100))
def test_a_cut_by_bytes_never_breaks_a_character(text: str, count: int) -> None:
    assert text.startswith(first_bytes(text, count))
    assert text.endswith(last_bytes(text, count))
    assert len(first_bytes(text, count).encode()) <= count


@given(st.text("a文🙂\n", min_size=1, max_size=20), st.integers(0, 5_999))
def test_every_part_names_the_start_of_the_next(text: str, start: int) -> None:
    whole = text * (30_000 // len(text))
    shown = part_of(whole, start)
    part, _, place = shown.rpartition("\n[characters ")
    stop = int(place.split(" to ")[1].split(" of ")[0])
    assert whole[start:stop] == part
    assert (f"go on with from {stop}" in place) == (stop < len(whole))
    assert len(head_and_tail(whole, "ref_1").encode()) < RESULT_BUDGET + 200


@given(st.text("abAB \n", max_size=3_000), st.text("ab ", min_size=1, max_size=3), st.integers(0, 3_000))
def test_every_occurrence_in_a_text_is_found_by_continuing(text: str, sought: str, start: int) -> None:
    found: list[int] = []
    place: int | None = min(start, len(text))
    expected = text.lower()[place:].count(sought)
    while place is not None:
        shown = passages_with(text, sought, place)
        assert len(shown.encode()) < RESULT_BUDGET
        if "does not occur" in shown:
            break
        *passages, last = shown.rsplit("\n[", 1)
        for passage in passages[0].split("[characters ")[1:]:
            (first, stop), body = passage.split("]\n")[0].split(" to "), passage.split("]\n", 1)[1]
            assert text[int(first) : int(stop)].rstrip("\n") == body.rstrip("\n")
        found.append(int(last.split(" of ")[0]))
        place = int(last.split("from ")[1].rstrip("]")) if "from " in last else None
    assert sum(found) == expected
