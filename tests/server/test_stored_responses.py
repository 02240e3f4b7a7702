"""OpenAI's own client reads stored responses, and deletes them."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.store import run_events
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import Step, Use, say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig
from tests.server.test_openai import FOUND, Live, assistant, extension_of, open_live, openai, read_stream, user
from tests.server.test_parity import CITED_TWICE, HAND_OVER, WITH_DELEGATES, open_default_domain

REFUSED = (openai.NotFoundError, "response_not_found", "response_id")


async def forget_logs(rig: Rig) -> None:
    """Delete the logs of all turns, as maintenance does after a day."""
    await rig.application.database.write(lambda conn: conn.execute(run_events.RUN_EVENTS.delete()))


def common_fields(response: Any) -> Any:
    """Return the common fields of two responses of one turn, wherever they were read."""
    output = [item for item in response.output if item.type == "mcp_call"]
    notes = [
        (note.file_id, extension_of(note)["chunkId"], note.end_index if hasattr(note, "end_index") else None)
        for item in response.output
        if item.type == "message"
        for part in item.content
        for note in part.annotations
    ]
    calls = [(call.name, call.status, call.arguments, "twelve bar" in call.output) for call in output]
    names = ("model", "status", "usage", "conversation", "created_at", "previous_response_id", "store", "error")
    return [getattr(response, name) for name in names], response.output_text, calls, notes


async def test_a_stored_response_is_returned_from_its_log_or_later_from_its_messages(
    tmp_path: Path,
) -> None:
    async with open_live(tmp_path, *FOUND, say("Still twelve.")) as rig:
        domain = await rig.pumps()
        response = await rig.openai.responses.create(model=domain, input="How much does the pump hold?", store=True)
        retrieved = await rig.openai.responses.retrieve(response.id)
        assert retrieved == response
        assert retrieved.store
        next_response = await rig.openai.responses.create(model=domain, input="Sure?", previous_response_id=response.id)
        assert next_response.previous_response_id == response.id
        assert await rig.openai.responses.retrieve(next_response.id) == next_response
        stream_events = await read_stream(await rig.openai.responses.retrieve(response.id, stream=True))
        assert (stream_events[0].type, stream_events[-1].type) == ("response.created", "response.completed")
        assert stream_events[-1].response == response
        later_events = await read_stream(
            await rig.openai.responses.retrieve(response.id, stream=True, starting_after=4)
        )
        assert later_events == stream_events[5:]
        last_number = len(stream_events) - 1
        assert (
            await read_stream(await rig.openai.responses.retrieve(response.id, stream=True, starting_after=last_number))
            == []
        )
        for number in (last_number + 1, 10**6):
            with pytest.raises(openai.APIStatusError, match=f"before event {number}") as exc_info:
                await rig.openai.responses.retrieve(response.id, stream=True, starting_after=number)
            assert (exc_info.value.status_code, exc_info.value.code) == (410, "LOG_GONE")
        await forget_logs(rig)
        for stored_response in (response, next_response):
            reread = await rig.openai.responses.retrieve(stored_response.id)
            assert common_fields(reread) == common_fields(stored_response)
            assert extension_of(reread)["references"] == extension_of(stored_response)["references"]
        replayed = await read_stream(await rig.openai.responses.retrieve(response.id, stream=True))
        assert replayed[-1].response.output_text == response.output_text


async def test_calls_of_delegates_are_in_the_response_with_and_without_a_log(tmp_path: Path) -> None:
    async with open_default_domain(tmp_path, WITH_DELEGATES) as (rig, domain, _):
        body = {"model": domain, "input": "How much leave is there, and how do I travel?", "store": True}
        headers = {"x-agentic-rag-items": "openai"}
        response = await rig.ok("POST", "/v1/responses", body, headers=headers)
        path = f"/v1/responses/{response['id']}"
        assert await rig.ok("GET", path, headers=headers) == response
        standard_response = await rig.ok("GET", path)
        assert {item["type"] for item in standard_response["output"]} == {"message"}
        assert len(standard_response["agentic_rag"]["toolCalls"]) == len(HAND_OVER.blocks) + 2
        refusal = await rig.refused("GET", path, headers={"x-agentic-rag-items": "mcp"})
        assert refusal == (400, "VALIDATION_ERROR", "x-agentic-rag-items: 'mcp' is not known: standard, openai.")
        await forget_logs(rig)
        reread = await rig.ok("GET", path, headers=headers)

        def calls(response: Any) -> Any:
            items = [item for item in response["output"] if item["type"] == "mcp_call"]
            return sorted((item["name"], item["arguments"], item.get("agentic_rag", {}).get("agent")) for item in items)

        assert calls(reread) == calls(response)
        assert len(calls(response)) == len(HAND_OVER.blocks) + 2
        assert reread["output"][-1]["content"][0]["text"] == response["output"][-1]["content"][0]["text"]
        assert len(reread["output"][-1]["content"][0]["annotations"]) == len(CITED_TWICE.blocks) - 2


async def test_a_response_shows_whether_it_runs_failed_or_was_stopped(
    tmp_path: Path,
) -> None:
    slow = Stalled(say("This takes long."), 3)
    model_error = ModelError("The key is wrong.", http_status=401)
    async with open_live(tmp_path, slow, model_error) as rig:
        domain = await rig.domain()
        stream = await rig.openai.responses.create(model=domain, input="Go", stream=True, store=True)
        first = await anext(aiter(stream))
        with anyio.fail_after(240):
            await slow.reached.wait()
        running = await rig.openai.responses.retrieve(first.response.id)
        assert running.status == "in_progress"
        await rig.ok("POST", f"/api/conversations/{first.response.conversation.id}/interrupt", {})
        events = await read_stream(stream)
        interrupted = await rig.openai.responses.retrieve(first.response.id)
        assert interrupted == events[-1].response
        assert interrupted.error.type == "GENERATION_ABORTED"
        failed_events = [
            event
            async for event in await rig.openai.responses.create(model=domain, input="Go", stream=True, store=True)
        ]
        ident = failed_events[0].response.id
        assert await rig.openai.responses.retrieve(ident) == failed_events[-1].response
        await forget_logs(rig)
        for ident_of_failure, code in ((first.response.id, "GENERATION_ABORTED"), (ident, "LLM_SERVICE_ERROR")):
            response = await rig.openai.responses.retrieve(ident_of_failure)
            assert (response.status, response.error.type) == ("failed", code)


async def test_a_response_is_deleted_with_its_conversation_unless_that_holds_others(tmp_path: Path) -> None:
    async with open_live(tmp_path, *(say(f"Answer {number}.") for number in range(3))) as rig:
        domain = await rig.domain()
        history: Any = [user("Before"), assistant("Indeed."), user("Now")]
        imported = await rig.openai.responses.create(model=domain, input=history, store=True)
        assert imported.previous_response_id is None
        assert (await rig.openai.responses.retrieve(imported.id)).previous_response_id is None
        await rig.openai.responses.delete(imported.id)
        for call in (rig.openai.responses.retrieve, rig.openai.responses.delete):
            await check_not_found(call, imported.id)
        assert (await rig.ok("GET", "/api/conversations"))["total"] == 0
        first = await rig.openai.responses.create(model=domain, input="One", store=True)
        second_response = await rig.openai.responses.create(model=domain, input="Two", previous_response_id=first.id)
        for response in (first, second_response):
            with pytest.raises(openai.ConflictError) as exc_info:
                await rig.openai.responses.delete(response.id)
            assert exc_info.value.code == "RESPONSE_NOT_ALONE"
            assert first.conversation.id in str(exc_info.value)
        assert (await rig.openai.responses.retrieve(first.id)).output_text == "Answer 1."


async def check_not_found(call: Any, ident: str) -> None:
    kind, code, param = REFUSED
    with pytest.raises(kind) as exc_info:
        await call(ident)
    assert (exc_info.value.code, exc_info.value.param, exc_info.value.type) == (code, param, "invalid_request_error")


async def test_only_stored_responses_of_their_owner_can_be_retrieved(tmp_path: Path) -> None:
    async with open_live(tmp_path, say("Kept."), say("Not kept.")) as rig:
        domain = await rig.domain()
        stored_response = await rig.openai.responses.create(model=domain, input="Hi", store=True)
        unstored_response = await rig.openai.responses.create(model=domain, input="Hi")
        for ident in (unstored_response.id, "resp_none", "resp_", stored_response.id.replace("resp_", "turn_") + "x"):
            await check_not_found(rig.openai.responses.retrieve, ident)
        eve = bearer(await make_key(rig, "eve", "member", domain))
        for method in ("GET", "DELETE"):
            answer = await rig.http.request(method, f"/v1/responses/{stored_response.id}", headers=eve)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")


async def test_a_delegates_turn_is_not_a_response(tmp_path: Path) -> None:
    task = Use("delegate", {"role": "researcher", "task": "One"})
    async with Live(tmp_path, Step((task,)), use("promptx_discover"), say("1"), say("2")) as rig:
        domain = await rig.domain(subRoleIds=["researcher"])
        response = await rig.ok("POST", "/v1/responses", {"model": domain, "input": "Go", "store": True})
        turn = response["id"].replace("resp_", "turn_")
        (child,) = (await rig.ok("GET", f"/api/turns/{turn}/children"))["items"]
        ident = child["turn"]["id"].replace("turn_", "resp_")
        assert (await rig.http.get(f"/v1/responses/{ident}")).status_code == 404
