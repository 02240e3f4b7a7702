"""The refusals of the AG-UI and AI SDK doors in the words of their protocols, and the ids they accept."""

from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import RunErrorEvent

from agentic_rag.testing.steps import say
from tests.access.tenants import bearer, tenants
from tests.server.rig import Rig

Json = dict[str, Any]
USER: Json = {"id": "u", "role": "user", "content": "Hi"}
PART: Json = {"type": "text", "text": "Hi"}
CALL: Json = {"id": "c", "type": "function", "function": {"name": "x", "arguments": "{}"}}


def run_of(*messages: Json, **fields: Any) -> Json:
    return {"threadId": "t", "runId": "r", "messages": list(messages or (USER,)), **fields}


BAD_RUNS: dict[str, tuple[Any, str]] = {
    "no object": ([], "body"),
    "no run": ({"threadId": "t", "messages": [USER]}, "runId"),
    "an odd role": (run_of({"id": "u", "role": "boss", "content": "x"}), "messages.0"),
    "a system message": (run_of({"id": "s", "role": "system", "content": "x"}, USER), "messages.0.role"),
    "a developer's message": (run_of({"id": "s", "role": "developer", "content": "x"}, USER), "messages.0.role"),
    "a result of no call": (run_of({"id": "t", "role": "tool", "toolCallId": "c", "content": "x"}, USER), "toolCallId"),
    "a result at the end": (
        run_of(
            USER,
            {"id": "a", "role": "assistant", "toolCalls": [CALL]},
            {"id": "t", "role": "tool", "toolCallId": "c", "content": "x"},
        ),
        "messages",
    ),
    "no question": (run_of(USER, {"id": "a", "role": "assistant", "content": "x"}), "messages"),
    "an image": (
        run_of({"id": "u", "role": "user", "content": [{"type": "image", "source": {"type": "url", "value": "x"}}]}),
        "content.0.source.value",
    ),
    "a document": (
        run_of({"id": "u", "role": "user", "content": [{"type": "document", "source": {"type": "url", "value": "x"}}]}),
        "content.0.type",
    ),
    "no answer": (run_of(resume=[{"interruptId": "i", "status": "later"}]), "resume.0.status"),
    "a long id": (run_of(runId="r" * 201), "runId"),
    "a NUL": (run_of(threadId="a\0"), "threadId"),
}


async def test_bad_input_is_refused_with_its_place_and_starts_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/ag-ui/{await rig.domain()}"
        for name, (body, place) in BAD_RUNS.items():
            refusal = await rig.http.post(path, json=body)
            assert refusal.status_code == 422, name
            error = RunErrorEvent.model_validate(refusal.json())
            assert (error.code, place in error.message) == ("VALIDATION_ERROR", True), (name, error.message)
        for body in (
            {},
            {"id": "c", "messages": []},
            {"id": "c", "messages": [{"id": "a", "role": "assistant", "parts": []}]},
            {"id": "c", "messages": [{"id": "u", "role": "user", "parts": [{"type": "file", "url": "x"}]}]},
            {
                "id": "c",
                "messages": [
                    {"id": "s", "role": "system", "parts": [PART]},
                    {"id": "u", "role": "user", "parts": [PART]},
                ],
            },
        ):
            refusal = await rig.http.post(path.replace("ag-ui", "ui-message"), json=body)
            assert (refusal.status_code, refusal.json()["type"], refusal.json()["error"]["code"]) == (
                422,
                "error",
                "VALIDATION_ERROR",
            )
        unknown = await rig.http.post("/api/ag-ui/dom_none", json=run_of())
        assert (unknown.status_code, unknown.json()["code"]) == (404, "DOMAIN_NOT_FOUND")
        assert (await rig.ok("GET", "/api/conversations"))["total"] == 0


async def test_a_run_is_resumed_only_by_its_own_offsets(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One."), say("Two.")) as rig:
        path = f"/api/ag-ui/{await rig.domain()}"
        first_stream = (await rig.http.post(path, json=run_of())).text
        second_stream = (await rig.http.post(path, json=run_of(runId="r2"))).text
        ids = [
            [line[4:] for line in text.splitlines() if line.startswith("id: ")]
            for text in (first_stream, second_stream)
        ]
        resumed_stream = (await rig.http.get(path, params={"runId": "r", "offset": "-1"})).text
        assert resumed_stream == first_stream
        later_events = (await rig.http.get(path, params={"runId": "r"}, headers={"last-event-id": ids[0][2]})).text
        assert first_stream.endswith(later_events)
        assert later_events.startswith(f"id: {ids[0][3]}\n")
        repeated = await rig.http.post(path, json=run_of(), headers={"last-event-id": ids[0][2]})
        assert repeated.text == later_events
        turn = ids[0][0].partition(":")[0]
        for params, status in [
            ({"runId": "r"}, 422),
            ({"runId": "r", "offset": "x"}, 422),
            ({"runId": "r", "offset": ids[1][0]}, 422),
            ({"runId": "r", "offset": f"{turn}:999"}, 422),
            ({"runId": "r", "offset": "turn_none:1"}, 404),
            ({"runId": "none", "offset": "-1"}, 404),
        ]:
            refusal = await rig.http.get(path, params=params)
            assert (refusal.status_code, refusal.json()["type"]) == (status, "RUN_ERROR"), params
        wrong = await rig.http.post(path, json=run_of(), headers={"last-event-id": ids[1][0]})
        assert wrong.status_code == 422
        mismatch_response = await rig.http.post(path, json=run_of({**USER, "content": "Else"}))
        assert mismatch_response.json()["code"] == "IDEMPOTENCY_MISMATCH"


@pytest.mark.attack(kind="web")
async def test_another_users_ids_are_unknown_at_these_endpoints(tmp_path: Path) -> None:
    async with tenants(tmp_path) as t:
        mallory, foreign_thread = bearer(t.mallory), t.ids["conversation"]
        own = f"/api/ag-ui/{t.own_domain}"
        refusal = await t.rig.http.post(own, json=run_of(threadId=foreign_thread), headers=mallory)
        nobodys = await t.rig.http.post(own, json=run_of(threadId="conv_none"), headers=mallory)
        for response in (refusal, nobodys):
            assert (response.status_code, response.json()["code"]) == (404, "CONVERSATION_NOT_FOUND")
        turn = t.ids["turn"]
        resumed_response = await t.rig.http.get(own, params={"runId": "r", "offset": f"{turn}:1"}, headers=mallory)
        assert (resumed_response.status_code, resumed_response.json()["code"]) == (404, "TURN_NOT_FOUND")
        chat = await t.rig.http.get(f"/api/ui-message/{t.own_domain}/{foreign_thread}/stream", headers=mallory)
        assert chat.status_code == 404
        fresh = await t.rig.http.get(f"/api/ui-message/{t.own_domain}/fresh/stream", headers=mallory)
        assert (fresh.status_code, fresh.content) == (204, b"")
