"""`FakeMessagesAPI` behaves like the service toward a client, and follows its script."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx2
import pytest

from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply, demo, from_script, main, reply_from_json
from agentic_rag.testing.frames import PING
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, say, use

VERSION = {"anthropic-version": "2026-10-21"}
BODY: dict[str, Any] = {"model": "claude-sonnet-5-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


async def post(api: FakeMessagesAPI, body: Any = BODY, headers: dict[str, str] | None = None) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent_headers = {**VERSION, "authorization": f"Bearer {api.key}"} if headers is None else headers
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(f"{api.url}/v1/messages", content=content, headers=sent_headers)


async def test_an_answer_without_streaming_is_one_message() -> None:
    async with (
        FakeMessagesAPI(Step((Think("hm"), Say("So."), Use("look", {"q": 1}, "t1")))) as api,
        anthropic.AsyncAnthropic(api_key=api.key, base_url=api.url, max_retries=0) as client,
    ):
        message = await client.messages.create(**BODY)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens > 0


async def test_a_stream_has_the_frames_of_the_api_in_its_order() -> None:
    async with FakeMessagesAPI(Step((Say("So."), Use("look", {"query": "x"}, "t1")))) as api:
        text = (await post(api, {**BODY, "stream": True})).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    data = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert data[0]["message"]["usage"]["output_tokens"] == 1
    json_pieces = [
        event["delta"]["partial_json"] for event in data if event.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert json_pieces[0] == ""
    assert len(json_pieces) > 2
    assert json.loads("".join(json_pieces)) == {"query": "x"}


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_a_key_is_accepted_in_either_header(header: str) -> None:
    async with FakeMessagesAPI(say("a")) as api:
        key = f"Bearer {api.key}" if header == "authorization" else api.key
        assert (await post(api, headers={**VERSION, header: key})).status_code == 200


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"authorization": "Basic x"}]
)
async def test_a_missing_or_wrong_key_is_refused(headers: dict[str, str]) -> None:
    async with FakeMessagesAPI() as api:
        response = await post(api, headers={**VERSION, **headers})
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"


async def test_without_a_set_key_any_key_is_accepted_but_one_is_required() -> None:
    async with FakeMessagesAPI(say("a"), key=None) as api:
        assert (await post(api)).status_code == 200
        assert (await post(api, headers=VERSION)).status_code == 401


async def test_the_version_header_is_required() -> None:
    async with FakeMessagesAPI() as api:
        response = await post(api, headers={"x-api-key": api.key})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("anthropic-version: ")


async def test_a_refusal_has_the_apis_form_and_names_the_path() -> None:
    async with FakeMessagesAPI() as api:
        response = await post(api, {**BODY, "temperature": 1})
        assert api.refused == ["`temperature` is deprecated for this model."]
    body = response.json()
    assert response.status_code == 400
    assert body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "`temperature` is deprecated for this model."},
        "request_id": response.headers["request-id"],
    }


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": NaN}', b"[" * 100_000])
async def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    async with FakeMessagesAPI() as api:
        assert (await post(api, body)).status_code == 400
        assert api.requests == []


async def test_an_escaped_lone_surrogate_is_refused() -> None:
    async with FakeMessagesAPI() as api:
        body = json.dumps({**BODY, "messages": [{"role": "user", "content": "a\ud800"}]}).encode()
        response = await post(api, body)
    assert "lone surrogate" in response.json()["error"]["message"]


async def test_a_request_past_32_mib_is_too_large() -> None:
    async with FakeMessagesAPI() as api:
        response = await post(api, b'"' + b"x" * (32 * 1024 * 1024) + b'"')
    assert response.status_code == 413


async def test_other_paths_are_not_found() -> None:
    async with FakeMessagesAPI() as api, httpx2.AsyncClient(trust_env=False) as client:
        response = await client.get(api.url + "/v1/other")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


async def test_a_refused_request_uses_no_step() -> None:
    async with FakeMessagesAPI(say("a")) as api:
        assert (await post(api, {**BODY, "foo": 1})).status_code == 400
        assert (await post(api)).status_code == 200
        assert len(api.requests) == 2


async def test_a_callable_sees_the_request_and_its_failure_fails_the_test() -> None:
    def brain(request: dict[str, Any]) -> Step:
        assert request["max_tokens"] == 5, "five are expected"
        return say("ok")

    api = FakeMessagesAPI(brain, brain)
    await api.start()
    assert (await post(api)).status_code == 200
    assert (await post(api, {**BODY, "max_tokens": 6})).status_code == 500
    await api.stop()
    with pytest.raises(AssertionError, match="five are expected"):
        api.assert_consumed()


async def test_a_citation_without_a_source_fails_the_test() -> None:
    api = FakeMessagesAPI(say("a", Cite(3)))
    await api.start()
    assert (await post(api)).status_code == 500
    await api.stop()
    with pytest.raises(AssertionError, match="cites result 3"):
        api.assert_consumed()


async def test_steps_left_and_calls_beyond_the_script_fail_the_test() -> None:
    with pytest.raises(AssertionError, match="1 of 1 scripted steps"):
        await _wait_for_calls(FakeMessagesAPI(say("a")), calls=0)
    with pytest.raises(AssertionError, match="call 2 of 1"):
        await _wait_for_calls(FakeMessagesAPI(say("a")), calls=2)


async def _wait_for_calls(api: FakeMessagesAPI, calls: int) -> None:
    async with api:
        for _ in range(calls):
            await post(api)


async def test_the_cache_counts_the_longest_known_prefix() -> None:
    def body(*texts: str, rules: str = "rule. " * 1000) -> dict[str, Any]:
        content = [{"type": "text", "text": text} for text in texts]
        content[-1]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
        system = [{"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}}]
        return {**BODY, "system": system, "messages": [{"role": "user", "content": content}]}

    async def usage(request: dict[str, Any]) -> tuple[int, int, int]:
        usage_fields = (await post(api, request)).json()["usage"]
        return (
            usage_fields["input_tokens"],
            usage_fields["cache_read_input_tokens"],
            usage_fields["cache_creation_input_tokens"],
        )

    async with FakeMessagesAPI(then=say("a")) as api:
        _, cache_read, cache_written = await usage(body("one"))
        assert cache_read == 0
        assert cache_written > 2000
        assert await usage(body("one")) == (0, cache_written, 0)
        _, cache_read, newly_written = await usage(body("one", "two"))
        assert (cache_read, 0 < newly_written < 100) == (cache_written, True)
        _, cache_read, _ = await usage(body("other"))
        assert 0 < cache_read < cache_written
        assert (await usage(body("one", rules="Rule. " * 1000)))[1] == 0
        assert (await usage(body("one", rules="short")))[1:] == (0, 0)


async def test_a_client_that_disconnects_is_noticed() -> None:
    async with FakeMessagesAPI(Reply(demo(5), Fault(silent_after=3))) as api:
        with anyio.fail_after(240):
            async with httpx2.AsyncClient(trust_env=False) as client:
                headers = {**VERSION, "x-api-key": api.key}
                request = {**BODY, "stream": True}
                async with client.stream("POST", f"{api.url}/v1/messages", json=request, headers=headers):
                    assert not api.calls[0].left.is_set()
            await api.calls[0].left.wait()
            await api.calls[0].done.wait()


async def test_a_paced_answer_has_all_its_deltas() -> None:
    async with FakeMessagesAPI(demo(5), rate=1000) as api:
        assert (await post(api, {**BODY, "stream": True})).text.count("text_delta") == 5


async def test_pings_continue_during_silence() -> None:
    async with (
        FakeMessagesAPI(Reply(demo(5), Fault(silent_after=0, ping_seconds=0.001))) as api,
        httpx2.AsyncClient(trust_env=False) as client,
        client.stream(
            "POST",
            f"{api.url}/v1/messages",
            json={**BODY, "stream": True},
            headers={**VERSION, "x-api-key": api.key},
        ) as response,
    ):
        received = b""
        async for chunk in response.aiter_raw():
            received += chunk
            if received.startswith(PING * 3):
                break


async def test_stopping_ends_endless_answers() -> None:
    async def post_until_stopped() -> None:
        with pytest.raises(httpx2.TransportError):
            await post(api, {**BODY, "stream": True})

    async with FakeMessagesAPI(Reply(demo(5), Fault(silent_after=0))) as api, anyio.create_task_group() as group:
        group.start_soon(post_until_stopped)
        while not api.calls:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(240):
            await api.stop()


def test_a_reply_has_a_json_form() -> None:
    reply = {"blocks": "So.", "fault": {"status": 529, "retry_after": "1"}, "rate": 50}
    assert reply_from_json(reply) == Reply(say("So."), Fault(status=529, retry_after="1"), 50)
    assert reply_from_json({"demo": {"deltas": 2, "text": "a b c"}}).step == Step((Say("a b ", pieces=("a ", "b ")),))
    with pytest.raises(ValueError, match="bloks"):
        reply_from_json({"bloks": "x"})


def test_a_script_file_makes_an_api() -> None:
    api = from_script({"steps": [{"blocks": "a"}], "then": {"blocks": "b"}, "api_key": "k"}, rate=5)
    assert api.key == "k"
    assert FakeMessagesAPI(use("look")).key == "test-key"


def test_a_wrong_script_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"steps": [{"blocks": [{"type": "song"}]}]}')
    with pytest.raises(ValueError, match="song"):
        main(["--script", str(path)])


async def test_the_server_runs_as_a_process_until_it_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"steps": [{"blocks": "first"}], "then": {"demo": {"deltas": 3}}, "api_key": "k"}))
    command = [sys.executable, "-m", "agentic_rag.testing.fake_api", "--port", "0", "--script", str(path)]
    async with await anyio.open_process(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with anyio.fail_after(240):
            url = json.loads(await process.stdout.receive())["url"]
            async with anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client:
                texts = [(await client.messages.create(**BODY)).to_dict()["content"][0]["text"] for _ in range(3)]
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    assert texts == ["first", "The quick brown ", "The quick brown "]
