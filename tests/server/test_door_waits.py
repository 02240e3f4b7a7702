"""Waits at the doors of AG-UI and of the AI SDK, by plain requests: refusals, repetitions, and no approvals."""

from pathlib import Path
from typing import Any

import anyio
import orjson

from agentic_rag.testing.steps import say, use
from tests.access.tenants import tenants
from tests.server.rig import Rig
from tests.server.test_waits import REMEMBER, open_wait


def chunks_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: {")]
    return [orjson.loads(line) for line in lines]


def run_input(run_id: str, resume: Any = None, thread: str = "thread") -> dict[str, Any]:
    question = {"id": "q", "role": "user", "content": "Remember."}
    return {"threadId": thread, "runId": run_id, "messages": [question], **({"resume": resume} if resume else {})}


def approval_response(approval: Any, **fields: Any) -> dict[str, Any]:
    part = {"type": "dynamic-tool", "state": "approval-responded", "approval": approval, **fields}
    return {"id": "chat", "messages": [{"id": "m", "role": "assistant", "parts": [part]}], "messageId": "m"}


async def test_an_interrupt_is_answered_once_by_its_own_user_in_its_own_thread(tmp_path: Path) -> None:
    async with tenants(tmp_path, steps=(REMEMBER, say("Done."))) as t:
        domain = t.ids["domain"]
        settings = {"settings": {"toolPolicy": {"promptx_remember": "ask"}}}
        await t.rig.ok("PATCH", f"/api/domains/{domain}", settings)
        path = f"/api/ag-ui/{domain}"
        last_chunk = chunks_of((await t.ask(t.ann, "POST", path, run_input("run-1"))).text)[-1]
        assert (last_chunk["type"], last_chunk["outcome"]["type"]) == ("RUN_FINISHED", "interrupt")
        (interrupt,) = last_chunk["outcome"]["interrupts"]
        wait = interrupt["id"]

        async def read_refusal(key: str, entry: Any, thread: str = "thread") -> tuple[int, str]:
            answer = await t.ask(key, "POST", path, run_input("run-2", [entry], thread))
            assert answer.json()["type"] == "RUN_ERROR"
            return answer.status_code, answer.json()["code"]

        accept = {"interruptId": wait, "status": "resolved"}
        assert (await read_refusal(t.mallory, accept))[0] == 404
        assert await read_refusal(t.ann, accept, "another thread") == (404, "WAIT_NOT_FOUND")
        assert await read_refusal(t.ann, {**accept, "interruptId": "wait_none"}) == (404, "WAIT_NOT_FOUND")
        for payload in (5, {"approved": 5}, {"arguments": {"engrams": 5}}, {"scope": "always"}, {"other": 1}):
            assert await read_refusal(t.ann, {**accept, "payload": payload}) == (422, "VALIDATION_ERROR")
        assert (await t.ask(t.ann, "GET", f"/api/waits/{wait}")).json()["state"] == "open"

        first = chunks_of((await t.ask(t.ann, "POST", path, run_input("run-2", [accept]))).text)
        assert (first[0]["type"], first[0]["runId"]) == ("RUN_STARTED", "run-2")
        assert (first[-1]["type"], first[-1]["outcome"]["type"]) == ("RUN_FINISHED", "success")
        repeated = {**accept, "payload": True}
        assert chunks_of((await t.ask(t.ann, "POST", path, run_input("run-2", [repeated]))).text) == first
        for changed in ({**accept, "status": "cancelled"}, {**accept, "payload": {"approved": False}}):
            assert await read_refusal(t.ann, changed) == (409, "WAIT_ANSWERED")
        chunks = chunks_of((await t.ask(t.ann, "POST", path, run_input("run-1"))).text)
        assert [chunk["type"] for chunk in chunks].count("RUN_FINISHED") == 1, "what was answered ends no run"


async def test_the_model_reads_the_reason_of_a_cancelled_interrupt(tmp_path: Path) -> None:
    async with Rig(tmp_path, REMEMBER, say("Not kept.")) as rig:
        path = f"/api/ag-ui/{await rig.domain(toolPolicy={'promptx_remember': 'ask'})}"
        last_chunk = chunks_of((await rig.http.post(path, json=run_input("run-1"))).text)[-1]
        wait = last_chunk["outcome"]["interrupts"][0]["id"]
        entry = {"interruptId": wait, "status": "cancelled", "payload": {"reason": "later"}}
        chunks = chunks_of((await rig.http.post(path, json=run_input("run-2", [entry]))).text)
        assert chunks[-1]["outcome"] == {"type": "success"}
        (result,) = [chunk for chunk in chunks if chunk["type"] == "TOOL_CALL_RESULT"]
        assert result["metadata"]["status"] == "denied"
        assert "later" in result["content"]


async def test_an_approval_in_a_chat_is_answered_once_by_its_own_user(tmp_path: Path) -> None:
    async with tenants(tmp_path, steps=(REMEMBER, say("Done."))) as t:
        domain = t.ids["domain"]
        settings = {"settings": {"toolPolicy": {"promptx_remember": "ask"}}}
        await t.rig.ok("PATCH", f"/api/domains/{domain}", settings)
        path = f"/api/ui-message/{domain}"
        question = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "Remember."}]}
        chunks = chunks_of((await t.ask(t.ann, "POST", path, {"id": "chat", "messages": [question]})).text)
        assert chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}
        (request,) = [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"]
        yes = {"id": request["approvalId"], "approved": True}
        assert (await t.ask(t.mallory, "POST", path, approval_response(yes))).status_code == 404
        misplaced = await t.ask(t.ann, "POST", path, {**approval_response(yes), "id": "another"})
        assert (misplaced.status_code, misplaced.json()["error"]["code"]) == (404, "WAIT_NOT_FOUND")
        for approval in (5, {"approved": True}, {**yes, "approved": "yes"}, {**yes, "approved": False, "reason": 5}):
            assert (await t.ask(t.ann, "POST", path, approval_response(approval))).status_code == 422
        invalid = await t.ask(t.ann, "POST", path, approval_response(yes, input={"engrams": 5}))
        assert (invalid.status_code, invalid.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
        chunks_again = chunks_of((await t.ask(t.ann, "GET", f"{path}/chat/stream")).text)
        assert chunks_again == chunks, "a client that comes back is asked again"
        (data,) = [chunk for chunk in chunks if chunk["type"] == "data-input-required"]
        first = chunks_of(
            (await t.ask(t.ann, "POST", path, approval_response(yes, input=data["data"]["arguments"]))).text
        )
        assert (first[0]["type"], first[0]["messageId"]) == ("start", chunks[0]["messageId"])
        assert first[-1]["finishReason"] == "stop"
        assert chunks_of((await t.ask(t.ann, "POST", path, approval_response(yes))).text) == first
        contradiction = await t.ask(t.ann, "POST", path, approval_response({**yes, "approved": False}))
        assert (contradiction.status_code, contradiction.json()["error"]["code"]) == (409, "WAIT_ANSWERED")


async def test_a_wait_in_a_chat_is_a_part_and_the_stream_continues_after_its_answer(tmp_path: Path) -> None:
    ask_user = use("ask_user", question="Tea or coffee?", options=["tea", "coffee"])
    async with Rig(tmp_path, ask_user, say("Tea it is.")) as rig:
        path = f"/api/ui-message/{await rig.domain(askUser=True)}"
        question = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "What?"}]}
        texts: list[str] = []

        async def chat() -> None:
            texts.append((await rig.http.post(path, json={"id": "chat", "messages": [question]})).text)

        async with anyio.create_task_group() as group:
            group.start_soon(chat)
            wait = await open_wait(rig)
            await rig.ok("POST", f"/api/waits/{wait['id']}", {"action": "accept", "content": {"choices": ["tea"]}})
        chunks = chunks_of(texts[0])
        parts = [chunk for chunk in chunks if chunk["type"] == "data-input-required"]
        assert [(part["id"], part["data"].get("action")) for part in parts] == [
            (wait["id"], None),
            (wait["id"], "accept"),
        ]
        assert parts[0]["data"]["options"] == [{"value": "tea", "title": "tea"}, {"value": "coffee", "title": "coffee"}]
        assert (chunks[-1]["type"], chunks[-1]["finishReason"]) == ("finish", "stop")
        assert [part["type"] for part in chunks].count("start") == 1
