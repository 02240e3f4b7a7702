"""`FakeMessagesAPI` binds thinking to its prefix, keeps refusals and knows its models, like the service."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.prompt_cache import Clock
from agentic_rag.testing.steps import RedactedThinking, Say, Step, Think, Use, say

JSON = dict[str, Any]
TOOL: JSON = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
LATE: JSON = {"name": "late", "description": "Late.", "input_schema": {"type": "object"}, "defer_loading": True}
BETA = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BOUND_ERROR = "bound to a different conversation"


async def ask(api: FakeMessagesAPI, body: JSON, headers: dict[str, str] | None = None) -> httpx2.Response:
    sent_headers = {"anthropic-version": "2023-06-01", "x-api-key": api.key, **(headers or {})}
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(f"{api.url}/v1/messages", json=body, headers=sent_headers)


def user(value: str) -> JSON:
    return {"role": "user", "content": [{"type": "text", "text": value}]}


async def conversation(api: FakeMessagesAPI, model: str = "claude-sonnet-5-5") -> JSON:
    """Return the request of a third turn after two answers with thinking. Nothing in it is changed."""
    body: JSON = {
        "model": model,
        "max_tokens": 4000,
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [dict(TOOL)],
        "messages": [],
    }
    for number in range(2):
        body["messages"].append(user(f"question {number}"))
        answer = await ask(api, body)
        assert answer.status_code == 200, answer.text
        body["messages"].append({"role": "assistant", "content": answer.json()["content"]})
    body["messages"].append(user("question 2"))
    return body


THOUGHTFUL = Step((Think("hm"), Say("So."), RedactedThinking("x"), Say("And so.")))


async def test_a_request_with_appended_parts_is_accepted() -> None:
    async with FakeMessagesAPI(then=THOUGHTFUL) as api:
        body = await conversation(api)
        body["tools"].append(LATE)
        body["system"][0]["cache_control"] = {"type": "ephemeral"}
        body["messages"].append({"role": "system", "content": "Be briefer."})
        assert (await ask(api, body)).status_code == 200
    assert api.refused == []


def _change_system(body: JSON) -> None:
    body["system"][0]["text"] = "Be brief!"


def _change_tool(body: JSON) -> None:
    body["tools"].append({**TOOL, "name": "more"})


def _change_question(body: JSON) -> None:
    body["messages"][0]["content"][0]["text"] += "?"


def _change_answer(body: JSON) -> None:
    body["messages"][1]["content"][1]["text"] += "!"


def _remove_first(body: JSON) -> None:
    del body["messages"][:2]


def _remove_middle(body: JSON) -> None:
    """Remove one of two thinking blocks of the first answer, while later ones stay."""
    del body["messages"][1]["content"][2]


@pytest.mark.parametrize(
    "change", [_change_system, _change_tool, _change_question, _change_answer, _remove_first, _remove_middle]
)
async def test_thinking_after_a_change_is_refused_or_dropped_on_request(change: Callable[[JSON], None]) -> None:
    async with FakeMessagesAPI(then=THOUGHTFUL) as api:
        body = await conversation(api)
        change(body)
        refusal = await ask(api, body)
        assert refusal.status_code == 400
        assert BOUND_ERROR in refusal.json()["error"]["message"]
        assert (await ask(api, {**body, "thinking": DROP})).status_code == 400, "the header is missing"
        response = await ask(api, {**body, "thinking": DROP}, BETA)
        assert response.status_code == 200
        transformations = response.json()["input_transformations"]
        assert {transformation["reason"] for transformation in transformations} == {"prefix_binding_mismatch"}
    assert api.dropped == transformations


async def test_thinking_can_be_left_out_from_the_start() -> None:
    async with FakeMessagesAPI(then=THOUGHTFUL) as api:
        body = await conversation(api)
        body["messages"][1]["content"] = [block for block in body["messages"][1]["content"] if block["type"] == "text"]
        assert (await ask(api, body)).status_code == 200


async def test_older_accounts_and_models_do_not_check() -> None:
    async with FakeMessagesAPI(then=THOUGHTFUL, enforced=False) as api:
        body = await conversation(api)
        _change_system(body)
        assert (await ask(api, body)).status_code == 200
    async with FakeMessagesAPI(then=THOUGHTFUL) as api:
        body = await conversation(api, "claude-opus-5")
        _change_system(body)
        assert (await ask(api, body)).status_code == 200


async def test_thinking_of_another_model_is_silently_left_out() -> None:
    async with FakeMessagesAPI(then=THOUGHTFUL) as api:
        body = await conversation(api)
        assert (await ask(api, {**body, "model": "claude-haiku-5-5"})).status_code == 200
    assert {transformation["reason"] for transformation in api.dropped} == {"model_binding_mismatch"}


async def test_a_changed_signature_is_invalid() -> None:
    async with FakeMessagesAPI(then=THOUGHTFUL) as api:
        body = await conversation(api)
        body["messages"][1]["content"][0]["signature"] += "x"
        refusal = await ask(api, body)
    assert "Invalid `signature`" in refusal.json()["error"]["message"]


async def test_thinking_is_blank_unless_requested() -> None:
    async with FakeMessagesAPI(then=THOUGHTFUL) as api:
        body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [user("a")]}
        assert (await ask(api, body)).json()["content"][0]["thinking"] == ""
        summarized = await ask(api, {**body, "thinking": {"type": "adaptive", "display": "summarized"}})
        assert summarized.json()["content"][0]["thinking"] == "hm"
        without_thinking = await ask(api, {**body, "thinking": {"type": "between_tools"}})
        assert without_thinking.json()["content"][0]["type"] == "text"


async def test_a_refused_message_stays_in_the_page_until_it_is_removed() -> None:
    refusal = Step((Say("I can"),), stop_reason="refusal", category="cyber")
    async with FakeMessagesAPI(refusal, say("Hello.")) as api:
        body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [user("bad")]}
        first_answer = (await ask(api, body)).json()
        assert first_answer["stop_details"]["category"] == "cyber"
        messages = [user("bad"), {"role": "assistant", "content": first_answer["content"]}, user("good")]
        assert (await ask(api, {**body, "messages": messages})).json()["stop_reason"] == "refusal"
        assert (await ask(api, {**body, "messages": [user("good")]})).json()["stop_reason"] == "end_turn"
    assert api.sticky == 1


async def test_a_model_is_described_and_an_unknown_one_is_not_found() -> None:
    headers = {"anthropic-version": "2023-06-01"}
    async with FakeMessagesAPI() as api, httpx2.AsyncClient(trust_env=False, headers=headers) as client:
        assert (await client.get(f"{api.url}/v1/models/claude-sonnet-5-5")).status_code == 401
        client.headers["x-api-key"] = api.key
        description = (await client.get(f"{api.url}/v1/models/claude-sonnet-5-5")).json()
        assert description["capabilities"]["thinking"]["types"]["between_tools"] == {"supported": True}
        assert description["max_tokens"] == 128_000
        assert (await client.get(f"{api.url}/v1/models/claude-sonnet-9")).status_code == 404
        refusal = await ask(api, {"model": "claude-sonnet-9", "max_tokens": 9, "messages": [user("a")]})
        assert (refusal.status_code, refusal.json()["error"]["message"]) == (404, "model: claude-sonnet-9")


async def test_a_prompt_that_is_too_long_says_by_how_much() -> None:
    async with FakeMessagesAPI(context_window=100) as api:
        body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [user("word " * 200)]}
        assert "prompt is too long" in (await ask(api, body)).json()["error"]["message"]


async def test_cache_entries_live_for_the_requested_time() -> None:
    clock = Clock()

    def body(ttl: str, *more: JSON) -> JSON:
        cached = {"type": "text", "text": "rule. " * 1000, "cache_control": {"type": "ephemeral", "ttl": ttl}}
        return {"model": "claude-sonnet-5-5", "max_tokens": 9, "system": [cached], "messages": [user("a"), *more]}

    async def read_from_cache(ttl: str) -> int:
        return int((await ask(api, body(ttl))).json()["usage"]["cache_read_input_tokens"])

    async with FakeMessagesAPI(then=say("a"), clock=clock) as api:
        assert await read_from_cache("5m") == 0
        clock.ahead += 299
        assert await read_from_cache("5m") > 0
        clock.ahead += 299
        assert await read_from_cache("5m") > 0, "each use starts the time again"
        clock.ahead += 301
        usage = (await ask(api, body("1h"))).json()["usage"]
        assert usage["cache_creation"]["ephemeral_1h_input_tokens"] > 0
        clock.ahead += 3599
        assert await read_from_cache("1h") > 0


async def test_a_deferred_tool_is_available_from_its_first_reference() -> None:
    async with FakeMessagesAPI(
        Step((Think("hm"), Use("look", {}, "t1"))), Step((Think("so"), Use("late", {}, "t2"))), then=THOUGHTFUL
    ) as api:
        body: JSON = {"model": "claude-sonnet-5-5", "max_tokens": 9, "tools": [TOOL, LATE], "messages": [user("a")]}
        reference = {"type": "tool_reference", "tool_name": "late"}
        for call_id, content in (("t1", [reference]), ("t2", [{"type": "text", "text": "done"}])):
            answer = (await ask(api, body)).json()
            result = {"type": "tool_result", "tool_use_id": call_id, "content": content}
            body["messages"] += [
                {"role": "assistant", "content": answer["content"]},
                {"role": "user", "content": [result]},
            ]
        assert (await ask(api, body)).status_code == 200
        changed_body = {**body, "tools": [TOOL, {**LATE, "description": "Later."}]}
        assert BOUND_ERROR in (await ask(api, changed_body)).json()["error"]["message"]
