"""The real server against the fake Messages API: thinking, parallel tools, citations, and stops at every event."""

import itertools
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, say
from tests.e2e.serving import Event, Server, serving, serving_without_demo, text_of

HANDBOOK = b"# Leave\n\nYou get 27 days of paid leave a year.\n\n# Office hours\n\nThe office opens at eight.\n"
QUESTION = "How many days of leave do I get, and when does the office open?"


def answer_request(request: dict[str, Any]) -> Reply:
    """Answer by the request's content: three steps for the question, one for anything else."""
    last = max(i for i, message in enumerate(request["messages"]) if _asks(message))
    steps_so_far = sum(message["role"] == "assistant" for message in request["messages"][last:])
    if request["messages"][last]["content"][-1]["text"] != QUESTION:
        return Reply(say("The second answer."))
    if steps_so_far == 0:
        calls = (Use("promptx_action", {"role": "assistant"}), Use("search_documents", {"query": "days of paid leave"}))
        return Reply(Step((Think("First the role, and a search."), *calls)), rate=120)
    if steps_so_far == 1:
        return Reply(Step((Think("And the other half."), Use("search_documents", {"query": "office hours"}))), rate=120)
    citing_part = Say(
        "You get paid leave, as the handbook says.", (Cite(0), Cite(0, cited_text="an invented sentence"))
    )
    return Reply(Step((Think("Now I know."), Say("Here it is: "), citing_part, Say(" That is all."))), rate=120)


def _asks(message: dict[str, Any]) -> bool:
    """Whether the message is from a user, and not only from tools."""
    return message["role"] == "user" and any(block["type"] == "text" for block in message["content"])


def key(api: FakeMessagesAPI) -> dict[str, str]:
    return {"ANTHROPIC_API_KEY": api.key, "ANTHROPIC_BASE_URL": api.url, "AGENTIC_RAG_THINKING": "adaptive"}


async def test_a_turn_of_three_steps_thinks_calls_in_parallel_and_cites(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=answer_request, enforced=False) as api:
        with serving_without_demo(tmp_path / "data", **key(api)) as server:
            domain = await server.make_domain_with("handbook.md", HANDBOOK)
            async with server.chat(await server.conversation(domain)) as chat:
                events = await chat.say(QUESTION)
                kinds = [event["type"] for event in events]
                assert kinds.count("iteration_start") == 3
                assert kinds[-1] == "done"
                assert "thinking" in kinds
                calls = [place for place, kind in enumerate(kinds) if kind == "tool_call"]
                results = [place for place, kind in enumerate(kinds) if kind == "tool_result"]
                assert len(calls) == len(results) == 3
                assert calls[1] < results[0]
                references = events[-1]["references"]
                assert len(references) == 1
                assert references[0]["citedText"] != "an invented sentence"
                assert events[-1]["usage"]["cacheReadTokens"] >= 0
                second_turn = await chat.say("And now?")
                assert text_of(second_turn) == "The second answer."
    assert api.refused == []
    histories = [request["messages"] for request in api.requests]
    assert all("_passage" not in str(history) and "_references" not in str(history) for history in histories)


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.nightly("a stop at every event of the turn"))])
async def test_a_turn_stopped_at_any_event_leaves_a_usable_conversation(tmp_path: Path, every: int) -> None:
    async with FakeMessagesAPI(then=answer_request, enforced=False) as api:
        with serving_without_demo(tmp_path / "data", **key(api)) as server:
            domain = await server.make_domain_with("handbook.md", HANDBOOK)
            async with server.chat(await server.conversation(domain)) as chat:
                total = (await chat.say(QUESTION))[-1]["seq"]
            ends = [await _stop_at(server, domain, number) for number in range(1, total, every)]
    assert api.refused == []
    assert ends.count("interrupted") >= len(ends) * 3 // 4, ends


async def _stop_at(server: Server, domain: str, number: int) -> str:
    """Interrupt a turn at the event with this number, then send a second message; return how the turn ended."""
    conversation = await server.conversation(domain)

    def stop(event: Event) -> Event | None:
        return {"type": "interrupt", "conversationId": conversation} if event["seq"] == number else None

    async with server.chat(conversation) as chat:
        events = await chat.say(QUESTION, stop)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        second_turn = await chat.say("And now?")
        assert second_turn[-1]["type"] == "done", second_turn[-1]
        assert text_of(second_turn) == "The second answer."
    return str(events[-1]["type"])


async def test_an_interrupted_answer_is_reset_and_repeated_in_full(tmp_path: Path) -> None:
    interrupted_reply = Reply(
        say("A long answer that will break off."), Fault(error_after=6, error_type="overloaded_error")
    )
    async with FakeMessagesAPI(interrupted_reply, say("A whole answer.")) as api:
        with serving_without_demo(tmp_path / "data", **key(api)) as server:
            async with server.chat(await server.conversation(await server.domain())) as chat:
                events = await chat.say("Hello")
    kinds = [event["type"] for event in events]
    reset = kinds.index("step_reset")
    assert text_of(events[reset:]) == "A whole answer."
    assert kinds[-1] == "done"


async def test_a_bad_key_and_an_unreachable_endpoint_have_plain_errors(tmp_path: Path) -> None:
    async with FakeMessagesAPI() as api:
        settings = {"ANTHROPIC_API_KEY": "not-the-key", "ANTHROPIC_BASE_URL": api.url}
        with serving_without_demo(tmp_path / "one", **settings) as server:
            async with server.chat(await server.conversation(await server.domain())) as chat:
                events = await chat.say("Hello")
                assert events[-1]["code"] == "LLM_SERVICE_ERROR"
                assert "ANTHROPIC_API_KEY" in events[-1]["message"]
                assert "not-the-key" not in str(events)
                assert (await chat.say("Hello?"))[-1]["type"] == "error"
    settings = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": api.url, "AGENTIC_RAG_RETRY_BUDGET_SECONDS": "0.1"}
    with serving_without_demo(tmp_path / "two", **settings) as server:
        async with server.chat(await server.conversation(await server.domain())) as chat:
            events = await chat.say("Hello")
            assert events[-1]["code"] == "LLM_SERVICE_ERROR"
            assert "ANTHROPIC_BASE_URL" in events[-1]["message"]


async def test_a_killed_server_continues_its_turn(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=answer_request, enforced=False) as api:
        data = tmp_path / "data"
        with serving_without_demo(data, **key(api)) as server:
            conversation = await server.conversation(await server.make_domain_with("handbook.md", HANDBOOK))
            frames: list[Event] = []
            async with server.chat(conversation) as chat:
                await chat.send(type="message", conversationId=conversation, content=QUESTION)
                while not [event for event in frames if event["type"] == "tool_result"]:
                    frames.append(await chat.frame())
                server.child.kill()
                await anyio.to_thread.run_sync(server.child.wait)
        events = [event for event in frames if "seq" in event and event["type"] not in ("accepted", "subscribed")]
        turn, last = events[-1]["turnId"], events[-1]["seq"]
        with serving(data, **key(api)) as server:
            async with server.chat(conversation) as chat:
                await chat.send(type="subscribe", conversationId=conversation, turnId=turn, after=last)
                while not events or events[-1]["type"] not in ("done", "error", "interrupted"):
                    received = await chat.frame()
                    if "seq" in received and received["type"] != "subscribed":
                        events.append(received)
                assert events[-1]["type"] == "done"
                numbers = [event["seq"] for event in events]
                assert numbers == sorted(set(numbers))
                void = next(event["voids"] for event in events if event["type"] == "resumed")
                gaps = [
                    (before + 1, after - 1) for before, after in itertools.pairwise([0, *numbers]) if after > before + 1
                ]
                assert all(void[0] <= first and last <= void[1] for first, last in gaps)
                second_turn = await chat.say("And now?")
                assert text_of(second_turn) == "The second answer."
    assert api.refused == []
