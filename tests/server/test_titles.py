"""A conversation's title: from its first message immediately, then from a model, which may fail in any way."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.conversations import naming
from agentic_rag.conversations.naming import AGENT, CALL_SECONDS
from agentic_rag.conversations.titles import MAX_CHARACTERS, read_title, title_of
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.scripted import Broken, Scripted, Stalled
from agentic_rag.testing.steps import Say, Step, say
from tests.server.rig import Rig, types_of
from tests.ws.serving import client, serving

QUESTION = "How many days of paid leave do full-time staff have?"


async def name(rig: Rig) -> None:
    """Generate all titles that are due."""
    await rig.application.parts.naming.run()


async def title(rig: Rig, conversation: str) -> str:
    return str((await rig.ok("GET", f"/api/conversations/{conversation}"))["title"])


async def calls(rig: Rig) -> int:
    """Return the number of calls for titles in the usage."""
    usage = await rig.ok("GET", "/api/usage?groupBy=agent")
    return sum(item["calls"] for item in usage["items"] if item["agent"] == AGENT)


async def test_a_model_names_a_conversation_after_its_first_turn_and_only_once(tmp_path: Path) -> None:
    steps = (say("27 days."), say('**"Paid leave of full-time staff"**.'), say("Also 27."))
    async with Rig(tmp_path, *steps, titles="model") as rig:
        domain = await rig.domain(model="claude-of-the-domain")
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, QUESTION)
        assert [event["title"] for event in events if event["type"] == "title"] == [QUESTION]
        await name(rig)
        record = await rig.ok("GET", f"/api/conversations/{conversation}")
        assert (record["title"], record["titleSource"]) == ("Paid leave of full-time staff", "auto")
        title_request = rig.model.requests[1]
        assert (title_request.model, title_request.tools, title_request.thinking) == ("claude-of-the-domain", (), "off")
        assert QUESTION in str(title_request.messages)
        assert "27 days" not in str(title_request)
        assert await calls(rig) == 1
        later_events = await rig.say(conversation, "And next year?")
        await name(rig)
        assert "title" not in types_of(later_events)
        assert await title(rig, conversation) == "Paid leave of full-time staff"


FAILING: dict[str, Scripted] = {
    "failing": ModelError("overloaded", http_status=529),
    "breaking off": Broken(say("Paid leave"), 3),
    "refusing": Step((Say("I cannot"),), stop_reason="refusal"),
    "cut off": Step((Say("Paid leave of all"),), stop_reason="max_tokens"),
    "saying nothing": say("\n"),
    "talkative": say("Sure! Here is a title:\n\nPaid leave"),
    "too long": say("leave " * 12),
    "json": say('{"title": "Paid leave"}'),
    "html": say("<b>Paid leave</b>"),
    "punctuation": say("“…”"),
    "repeating": say(QUESTION),
}


async def test_a_model_without_a_title_keeps_the_first_title(tmp_path: Path) -> None:
    steps = [step for failing in FAILING.values() for step in (say("27 days."), failing)]
    async with Rig(tmp_path, *steps, titles="model") as rig:
        domain = await rig.domain()
        for calls, kind in enumerate(FAILING, 1):
            conversation = await rig.conversation(domain)
            assert types_of(await rig.say(conversation, QUESTION))[-1] == "done"
            await name(rig)
            assert (kind, len(rig.model.requests)) == (kind, 2 * calls)
            assert await title(rig, conversation) == QUESTION


async def test_a_slow_title_model_times_out_and_does_not_delay_a_turn(tmp_path: Path) -> None:
    slow = Stalled(say("Never."), 1)
    open_streams = []

    def answer(request: ModelRequest) -> Step:
        open_streams.append(rig.model.open_streams)
        return say("Also 27.")

    async with Rig(tmp_path, say("27 days."), slow, answer, titles="model") as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, QUESTION)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(name, rig)
            await slow.reached.wait()
            assert types_of(await rig.say(conversation, "And next year?"))[-1] == "done"
        assert open_streams == [1]  # its title was still being generated
        assert rig.model.open_streams == 0
        assert await title(rig, conversation) == QUESTION
        assert await calls(rig) == 1


async def test_a_draining_server_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "CALL_SECONDS", 3_600.0)  # otherwise it would end without it
    slow = Stalled(say("Never."), 1)
    async with Rig(tmp_path, say("27 days."), slow, titles="model") as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, QUESTION)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(name, rig)
            await slow.reached.wait()
            assert await rig.application.drain(0) == 0
            assert rig.model.open_streams == 0
            assert await calls(rig) == 1
        assert await title(rig, conversation) == QUESTION


async def test_a_title_that_the_user_sets_meanwhile_stays(tmp_path: Path) -> None:
    title_answer = Stalled(say("Paid leave"), 1)
    async with Rig(tmp_path, say("27 days."), title_answer, titles="model") as rig, anyio.create_task_group() as tasks:
        conversation = await rig.conversation()
        await rig.say(conversation, QUESTION)
        tasks.start_soon(name, rig)
        await title_answer.reached.wait()
        await rig.ok("PATCH", f"/api/conversations/{conversation}", {"title": "Mine"})
        title_answer.until.set()
        await name(rig)
        assert await title(rig, conversation) == "Mine"


async def test_a_conversation_deleted_during_its_turn_is_gone_and_its_call_is_counted(tmp_path: Path) -> None:
    title_answer = Stalled(say("Paid leave"), 1)
    async with Rig(tmp_path, say("27 days."), title_answer, titles="model") as rig, anyio.create_task_group() as tasks:
        conversation = await rig.conversation()
        await rig.say(conversation, QUESTION)
        tasks.start_soon(name, rig)
        await title_answer.reached.wait()
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        title_answer.until.set()
        await name(rig)
        assert (await rig.http.get(f"/api/conversations/{conversation}")).status_code == 404
        assert await calls(rig) == 1


class Killed(BaseException):
    """Simulates the end of the process."""


async def test_a_kill_before_the_title_keeps_the_first_title_and_asks_no_model_again(tmp_path: Path) -> None:
    def kill(request: ModelRequest) -> Step:
        raise Killed

    async with Rig(tmp_path, say("27 days."), kill, titles="model") as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, QUESTION)
        with pytest.raises(BaseExceptionGroup) as exc_info:
            await name(rig)
        assert exc_info.group_contains(Killed)
    async with Rig(tmp_path, titles="model") as rig:
        await name(rig)
        assert rig.model.requests == []
        assert await title(rig, conversation) == QUESTION


@pytest.mark.parametrize(
    ("settings", "fields"),
    [({"titles": "message"}, {}), ({"titles": "model"}, {"title": "Mine"})],
    ids=["the operator wants none", "the user has named it"],
)
async def test_no_model_is_asked_when_titles_are_off(
    tmp_path: Path, settings: dict[str, Any], fields: dict[str, str]
) -> None:
    async with Rig(tmp_path, say("27 days."), **settings) as rig:
        conversation = await rig.conversation(**fields)
        await rig.say(conversation, QUESTION)
        await name(rig)
        assert len(rig.model.requests) == 1
        assert await title(rig, conversation) == fields.get("title", QUESTION)


async def test_failed_turns_and_unstored_calls_request_no_title(tmp_path: Path) -> None:
    model_error = ModelError("no", http_status=400, kind="invalid_request_error")
    async with Rig(tmp_path, model_error, say("27 days."), titles="model") as rig:
        domain = await rig.domain()
        assert types_of(await rig.say(await rig.conversation(domain), QUESTION))[-1] == "error"
        body = {"model": domain, "messages": [{"role": "user", "content": QUESTION}]}
        await rig.ok("POST", "/v1/chat/completions", body)
        await name(rig)
        assert len(rig.model.requests) == 2


async def test_without_a_language_model_no_title_is_requested(tmp_path: Path) -> None:
    async with Rig(tmp_path, scripted=False, titles="model") as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, QUESTION)
        await name(rig)
        assert await calls(rig) == 0
        assert await title(rig, conversation) == QUESTION


async def test_a_retry_keeps_the_title_and_an_edit_changes_it(tmp_path: Path) -> None:
    steps = (say("1"), say("Paid leave"), say("2"), say("3"), say("Sick leave"))
    async with Rig(tmp_path, *steps, titles="model") as rig:
        conversation = await rig.conversation()
        first = (await rig.say(conversation, QUESTION))[0]["userMessageId"]
        await name(rig)
        path = f"/api/conversations/{conversation}/messages/{first}"
        assert "title" not in (await rig.http.post(f"{path}/retry", json={})).text
        await name(rig)
        assert await title(rig, conversation) == "Paid leave"
        assert "title" in (await rig.http.post(f"{path}/edit", json={"content": "What of sick leave?"})).text
        assert await title(rig, conversation) == "What of sick leave?"
        await name(rig)
        assert await title(rig, conversation) == "Sick leave"


SPEAK = {"native": True, "observable": True, "knowledge": False, "ag-ui": False}


@pytest.mark.parametrize(("dialect", "hears"), SPEAK.items())
async def test_subscribed_sockets_are_notified_between_turns(tmp_path: Path, dialect: str, hears: bool) -> None:
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(Rig(tmp_path, say("27 days."), say("Paid leave"), titles="model"))
        conversation = await rig.conversation()
        address = await stack.enter_async_context(serving(rig.application.app))
        socket = await stack.enter_async_context(client(address, dialect))
        await socket.say("subscribe", conversationId=conversation)
        await socket.say("ping")
        while "pong" not in str(await socket.hear()):
            pass
        await rig.say(conversation, QUESTION)
        await name(rig)
        await socket.say("ping")
        frames: list[dict[str, Any]] = []
        while not frames or "pong" not in str(frames[-1]):
            frames.append(await socket.hear())
        title_frames = [frame for frame in frames if frame.get("type") == "title" and "seq" not in frame]
        assert [frame["title"] for frame in title_frames] == (["Paid leave"] if hears else [])


@pytest.mark.parametrize(
    ("unknown", "answer"),
    [((), '{"name": "Paid leave"}'), (("output_config.format",), "Paid leave")],
    ids=["structured", "a gateway without structured outputs"],
)
async def test_a_title_is_a_separate_call_of_the_messages_api(
    tmp_path: Path, unknown: tuple[str, ...], answer: str
) -> None:
    async with FakeMessagesAPI(say("27 days."), say(answer), unknown=unknown) as api:
        async with Rig(tmp_path, instead=AnthropicModel(api.key or "", api.url), titles="model") as rig:
            conversation = await rig.conversation()
            await rig.say(conversation, QUESTION)
            await name(rig)
            assert await title(rig, conversation) == "Paid leave"
        assert not api.requests[1].get("tools")
        formats_sent = ["format" in request.get("output_config", {}) for request in api.requests]
        assert formats_sent == ([False, True, False] if unknown else [False, True])


def test_the_wait_for_a_title_is_short() -> None:
    assert CALL_SECONDS <= 3


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Paid leave", "Paid leave"),
        (" «Bezahlter Urlaub» \n", "Bezahlter Urlaub"),
        ("《年假天数》", "年假天数"),
        ("# `Paid` *leave*.", "Paid leave"),
        ("\u202ePaid\u202c leave", "Paid leave"),
        ("One\nTwo", None),
        ("x" * (MAX_CHARACTERS + 1), None),
        ("", None),
        ("---", None),
    ],
)
def test_an_answer_is_a_valid_title_or_ignored(answer: str, expected: str | None) -> None:
    assert read_title(answer, "end_turn") == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# Leave\n\nHow *many* days?", "Leave How many days?"),
        ("- **27** days\n- `none`", "27 days none"),
        ("[the handbook](https://example.com/a) and ![a picture](b.png)", "the handbook and a picture"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("> quoted ~~not~~", "quoted not"),
        ("2 * 3 * 4 in snake_case_name", "2 * 3 * 4 in snake_case_name"),
        ("a < b & c > d", "a < b & c > d"),
        ("**年假**有多少天？", "年假有多少天？"),
        ("---", "---"),
        ("[x]: http://nowhere", "[x]: http://nowhere"),
    ],
)
def test_a_title_has_no_markup(content: str, expected: str) -> None:
    assert title_of(content) == expected
