"""A model that writes a secret, at any place and in any pieces: it is neither shown nor stored."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.messages import BROKEN_INPUT, sendable_use
from agentic_rag.base.redaction import Pieces, Redaction
from agentic_rag.models.base import BlockStopped, ModelEvent, ModelRequest, TextDelta
from agentic_rag.models.redacted_model import RedactedAnswer
from agentic_rag.testing.scripted import Broken, ScriptedModel
from agentic_rag.testing.steps import Say, Step, Think, Use, say, use
from tests.secrets.test_leaks import assert_nowhere, capture_logs
from tests.server.rig import Rig, types_of
from tests.ws.serving import client, serving

pytestmark = pytest.mark.attack(kind="secrets")

SECRET = "sk-planted-0123456789-wxyz"
VALUES = [SECRET, "sk-planted-0123456789-wxyz-longer", "planted-0123456789", "aaaaaaaa", "aaaaaaaaab"]


def make_redaction(*values: str) -> Redaction:
    redact = Redaction()
    for number, value in enumerate(values):
        redact.add(f"S{number}", value)
    return redact


parts = st.sampled_from([*VALUES, SECRET[:9], SECRET[9:], "a", "sk", "-", " and ", "\n", "Ü"])


@given(values=st.sets(st.sampled_from(VALUES)), words=st.lists(parts, max_size=12), cuts=st.lists(st.integers(1, 40)))
def test_redaction_is_the_same_in_any_chunking_and_loses_nothing(
    values: set[str], words: list[str], cuts: list[int]
) -> None:
    redact, text = make_redaction(*sorted(values)), "".join(words)
    pieces, rest, redacted = Pieces(redact), text, ""
    for position in cuts:
        piece, rest = rest[:position], rest[position:]
        redacted += pieces.take(piece)
        assert not any(value in redacted for value in values)
    redacted += pieces.take(rest) + pieces.end()
    assert redacted == redact(text)


def test_text_that_cannot_become_a_secret_is_sent_at_once() -> None:
    pieces = Pieces(make_redaction(SECRET))
    assert [pieces.take(piece) for piece in ("The sk", "y is blue, sk-", "planted flowers.")] == [
        "The ",
        "sky is blue, ",
        "sk-planted flowers.",
    ]


async def events_of_model(model: ScriptedModel, redact: Redaction) -> list[ModelEvent]:
    request = ModelRequest("m", 10, (), ({"role": "user", "content": [{"type": "text", "text": "Hi"}]},))
    answer = RedactedAnswer(redact)
    async with model.stream(request) as events:
        return [redacted_event async for event in events for redacted_event in answer.take(event)]


async def test_without_secrets_a_models_events_are_unchanged() -> None:
    step = Step((Think("Hm."), Say("Fine."), Use("search_documents", {"query": "x"}, "t1")))
    plain, redacted_model = ScriptedModel(step), ScriptedModel(step)
    assert await events_of_model(plain, Redaction()) == await events_of_model(redacted_model, make_redaction(SECRET))


async def test_a_text_that_ends_like_the_start_of_a_secret_is_complete() -> None:
    events = await events_of_model(ScriptedModel(say("The risk-")), make_redaction("-secret-secret"))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "The risk-"


@pytest.mark.parametrize("outer", [list, dict])
def test_deeply_nested_arguments_are_refused_without_recursion(outer: type) -> None:
    """A JSON parser accepts a thousand levels, and a model can write them in two kilobytes."""
    nested: object = SECRET
    for _ in range(1000):
        nested = [nested] if outer is list else {"a": nested}
    block_read = {"type": "tool_use", "id": "t1", "name": "look", "input": {"q": nested}}
    (stop_event,) = RedactedAnswer(make_redaction(SECRET)).take(BlockStopped(0, block_read))
    assert isinstance(stop_event, BlockStopped)
    block = sendable_use(stop_event.block, ())
    assert block["input"] == {}
    assert "nested deeper" in block[BROKEN_INPUT]


def cut_text(text: str) -> tuple[str, ...]:
    return tuple(text[at : at + 5] for at in range(0, len(text), 5))


TALKS: dict[str, tuple[Any, ...]] = {
    "text": (Step((Say(f"It is {SECRET}, keep it.", pieces=cut_text(f"It is {SECRET}, keep it.")),)),),
    "arguments": (use("promptx_recall", query=f"find {SECRET}"), say("Done.")),
    "name of an argument": (use("promptx_recall", **{"role": "assistant", "query": "x", SECRET: 1}), say("Done.")),
    "name of a tool": (Step((Use(SECRET, {}),)), say("Done.")),
    "broken arguments": (Step((Use("promptx_recall", raw=f'{{"query": "{SECRET}'),)), say("Done.")),
    "beside a call": (Step((Say(f"I look for {SECRET}"), Use("promptx_discover", {}))), say(SECRET)),
    "a broken stream": (Broken(say(f"{SECRET} {SECRET} and more"), after=4), say(f"Once more: {SECRET}")),
}


@pytest.mark.parametrize("where", TALKS)
async def test_a_secret_in_a_models_text_is_neither_shown_nor_stored(tmp_path: Path, where: str) -> None:
    with capture_logs() as log:
        async with Rig(tmp_path, *TALKS[where], say("The next turn."), retry_budget_seconds=5) as rig:
            domain = await rig.domain()
            await rig.ok("PUT", f"/api/domains/{domain}/secrets/KEY", {"value": SECRET})
            conversation = await rig.conversation(domain)
            first_events = await rig.say(conversation, "Hi")
            assert first_events[-1]["type"] == "done"
            if "argument" in where:
                assert [event["status"] for event in first_events if event["type"] == "tool_result"] == ["denied"]
            elif where != "name of a tool":
                text = "".join(event["text"] for event in first_events if event["type"] == "text")
                assert "[secret KEY]" in text
            second_events = await rig.say(conversation, "Go on")  # the fake checks that the transcript can be sent
            assert types_of(second_events)[-1] == "done"
            conversation_path, turn_path = (
                f"/api/conversations/{conversation}",
                f"/api/turns/{first_events[0]['turnId']}",
            )
            responses = [
                await rig.ok("GET", response_path)
                for response_path in (
                    conversation_path,
                    f"{conversation_path}/messages",
                    f"{conversation_path}/tool-calls",
                    turn_path,
                    "/api/conversations",
                    "/api/audit",
                )
            ]
            replayed_events = (await rig.http.get(f"{turn_path}/events")).text
            assert SECRET not in json.dumps([first_events, second_events, responses]) + replayed_events
            assert "sk-pl" not in replayed_events
            assert SECRET not in str([request.messages for request in rig.model.requests])
    assert SECRET not in log.getvalue()
    assert_nowhere(tmp_path)


async def test_signed_thinking_stays_sendable_and_is_shown_without_the_secret(tmp_path: Path) -> None:
    thought = f"The key is {SECRET}, I must not say it."
    steps = (Step((Think(thought, cut_text(thought)), Use("promptx_discover", {}))), say("Done."), say("Again."))
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/KEY", {"value": SECRET})
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "Hi")
        assert types_of(events)[-1] == "done"
        assert "[secret KEY]" in "".join(event["text"] for event in events if event["type"] == "thinking")
        assert types_of(await rig.say(conversation, "Go on"))[-1] == "done"
        messages = await rig.ok("GET", f"/api/conversations/{conversation}/messages")
        assert SECRET not in json.dumps([events, messages])


async def test_a_summary_that_contains_a_secret_is_redacted(tmp_path: Path) -> None:
    turns = [say(f"Answer {number}.") for number in range(10)]
    async with Rig(tmp_path, *turns, say(f'{{"facts": ["They spoke of {SECRET}."]}}'), say("Next.")) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/KEY", {"value": SECRET})
        conversation = await rig.conversation(domain)
        for number in range(10):
            await rig.say(conversation, f"Question {number}")
        conversation_path = f"/api/conversations/{conversation}"
        compaction = await rig.ok("POST", f"{conversation_path}/compact")
        assert compaction["summary"] == "Facts:\n- They spoke of [secret KEY]."
        responses = [await rig.ok("GET", f"{conversation_path}/archives"), await rig.say(conversation, "Go on")]
        assert SECRET not in json.dumps(responses)
    assert_nowhere(tmp_path)


async def test_titles_searches_and_errors_redact_secrets_typed_by_a_user(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hello.")) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        path = f"/api/domains/{domain}"
        await rig.ok("PUT", f"{path}/secrets/KEY", {"value": SECRET})
        conversation = await rig.conversation(domain)
        await rig.say(conversation, f"{SECRET} is my key")
        await rig.upload(domain, "a.md", f"# A\n\nThe key is {SECRET} here.".encode())
        hits = await rig.ok("POST", f"{path}/documents/search", {"query": f"key {SECRET}"})
        document = (await rig.ok("GET", f"{path}/documents"))["items"][0]["id"]
        responses = [
            hits,
            await rig.ok("GET", "/api/conversations"),
            await rig.ok("GET", f"/api/conversations/{conversation}"),
            await rig.ok("GET", f"/api/conversations/{conversation}/messages"),
            await rig.ok("GET", f"{path}/documents/{document}/chunks"),
            await rig.ok("GET", f"{path}/retrievals"),
            await rig.ok("GET", f"{path}/retrievals/{hits['retrievalId']}"),
            await rig.refused("GET", f"/api/nothing/{SECRET}"),
            await rig.refused("GET", f"/api/conversations/{SECRET}"),
        ]
        async with client(address) as socket:
            responses += [
                await socket.ask(SECRET),
                await socket.ask("subscribe", conversationId=conversation, turnId=SECRET, after=0),
                await socket.ask("message", conversationId=conversation, content="x", onBusy=SECRET),
            ]
        assert [frame["type"] for frame in responses[-3:]] == ["error"] * 3
        assert SECRET not in json.dumps(responses)


async def test_a_refusal_that_names_a_secret_is_redacted(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}"
        await rig.ok("PUT", f"{path}/secrets/KEY", {"value": SECRET})
        entry = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"], "env": {SECRET: "x"}}
        response = await rig.http.patch(path, json={"settings": {"mcpServers": {"x": entry}}})
        assert response.status_code == 422
        rows = await rig.ok("GET", "/api/audit", params={"outcome": "refused"})
        assert len(rows["items"]) == 1
        assert SECRET not in json.dumps(rows) + response.text
