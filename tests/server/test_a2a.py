"""A2A's own client and linter (``a2a-sdk``, ``a2a-lint``), unmodified, at `/a2a/{domain}` of a live server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import httpx2
import orjson
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import Broken, Scripted, ScriptedModel, Stalled
from agentic_rag.testing.steps import Cite, Say, Step, Use, say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig
from tests.server.test_waits import REMEMBER, open_wait
from tests.ws.serving import serving

lint: Any = import_module("a2a_lint.cli")
DOCUMENT = b"# Pumps\n\nThe pump holds twelve bar."
FOUND: tuple[Scripted, ...] = (
    use("search_documents", query="pump bar"),
    Step((Say("It holds "), Say("twelve bar.", (Cite(0),)))),
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


class Agent(Rig):
    """A served rig with a domain that has one document, and the key of ann, a member of it."""

    address: str
    pumps: str
    ann: str

    @property
    def url(self) -> str:
        return f"http://{self.address}/a2a/{self.pumps}"

    @asynccontextmanager
    async def client(self, **config: Any) -> AsyncGenerator[Any]:
        """Connect the SDK's client with ann's key."""
        httpx, sdk = import_module("httpx"), import_module("a2a.client")
        async with httpx.AsyncClient(headers=bearer(self.ann), trust_env=False, timeout=60) as http:
            config = {"httpx_client": http, **config}
            yield await sdk.create_client(self.url, client_config=sdk.ClientConfig(**config))

    async def rpc(self, method: str, params: Any, key: str | None = None, **headers: str) -> Json:
        """Send a JSON-RPC request; return its response."""
        body = {"jsonrpc": "2.0", "id": "r", "method": method, "params": params}
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
            answer = await http.post(self.url, json=body, headers={**bearer(key or self.ann), **headers})
        assert answer.status_code == 200, answer.text
        response: Json = answer.json()
        assert response["id"] == "r"
        return response

    async def result(self, method: str, params: Any) -> Any:
        response = await self.rpc(method, params)
        assert "result" in response, response
        return response["result"]

    async def refused_rpc(self, method: str, params: Any, key: str | None = None, **headers: str) -> tuple[int, str]:
        """Send a request that must be refused; return the code and our own code or the protocol's reason."""
        error = (await self.rpc(method, params, key, **headers))["error"]
        (detail,) = error["data"]
        assert detail["@type"].endswith("google.rpc.ErrorInfo")
        assert detail["metadata"]["requestId"]
        assert error["message"]
        return error["code"], detail["metadata"].get("code") or detail["reason"]

    async def stream(self, method: str, params: Any) -> list[Json]:
        """Send a request and return the results of its stream."""
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
            answer = await http.post(self.url, json=body, headers=bearer(self.ann))
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        messages = [orjson.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert all(message["id"] == 7 for message in messages)
        return [message["result"] for message in messages]


@asynccontextmanager
async def agent(folder: Path, *steps: Scripted, limit: int = 60, **settings: Any) -> AsyncGenerator[Agent]:
    async with Agent(folder, *steps, messages_per_minute=limit) as rig, serving(rig.application.app) as address:
        rig.address = address
        rig.pumps = await rig.domain(**settings)
        assert (await rig.upload(rig.pumps, "pump.md", DOCUMENT))["status"] == "indexed"
        rig.ann = await make_key(rig, "ann", "member", rig.pumps)
        yield rig


def message(text: str, **fields: Any) -> Json:
    return {"message": {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


def old_message(text: str, **fields: Any) -> Json:
    parts = [{"kind": "text", "text": text}]
    return {"message": {"kind": "message", "messageId": uuid4().hex, "role": "user", "parts": parts, **fields}}


def sdk_message(text: str, **fields: Any) -> Any:
    types = import_module("a2a.types")
    part = types.Part(text=text)
    message = types.Message(message_id=uuid4().hex, role=types.Role.ROLE_USER, parts=[part], **fields)
    return types.SendMessageRequest(message=message)


def fold(updates: list[Json]) -> tuple[str, list[str], Json]:
    """Return the text of the answer, the states, and the resulting metadata of a stream of version 1.0."""
    text, states = "", [updates[0]["task"]["status"]["state"]]
    metadata: Json = {}
    for update in updates[1:]:
        if "artifactUpdate" in update:
            piece = update["artifactUpdate"]
            piece_text = "".join(part["text"] for part in piece["artifact"]["parts"])
            text = text + piece_text if piece["append"] else piece_text
            metadata = piece["artifact"].get("metadata", metadata)
        else:
            states.append(update["statusUpdate"]["status"]["state"])
    return text, list(dict.fromkeys(states)), metadata


def answer_each(request: ModelRequest) -> Step:
    """Search, then answer with a citation."""
    if all(block["type"] != "tool_result" for block in request.messages[-1]["content"]):
        return Step((Use("search_documents", {"query": "pump bar"}),))
    return Step((Say("It holds "), Say("twelve bar.", (Cite(0),))))


async def test_the_linter_accepts_the_card_the_answer_and_the_stream(tmp_path: Path) -> None:
    async with Agent(tmp_path, instead=ScriptedModel(then=answer_each)) as rig, serving(rig.application.app) as address:
        domain = await rig.domain(starters=["How much does the pump hold?"])
        assert (await rig.upload(domain, "pump.md", DOCUMENT))["status"] == "indexed"
        url = f"http://{address}/a2a/{domain}"
        findings, report = await anyio.to_thread.run_sync(lambda: asyncio.run(lint.lint(url, True, 60)))
        assert lint.summarize(findings) == {"errors": 0, "warnings": 0, "grade": "A"}
        assert [finding["field"] for finding in findings] == ["url"], "it is on plain http here"
        assert report["streamEvents"] > 3
        assert report["liveRoundTripMs"] > 0


async def test_the_stock_client_streams_an_answer_with_citations_and_gets_its_task(tmp_path: Path) -> None:
    async with agent(tmp_path, *FOUND, say("Bar is a unit.")) as rig, rig.client() as client:
        text, states, metadata, task = "", [], None, None
        async for update in client.send_message(sdk_message("How much does the pump hold?")):
            match update.WhichOneof("payload"):
                case "task":
                    task = update.task
                case "artifact_update":
                    piece = update.artifact_update
                    piece_text = "".join(part.text for part in piece.artifact.parts)
                    text = text + piece_text if piece.append else piece_text
                    metadata = piece.artifact.metadata if piece.last_chunk else metadata
                case "status_update":
                    states.append(update.status_update.status.state)
        types = import_module("a2a.types")
        assert text == "It holds twelve bar."
        assert states[-1] == types.TaskState.TASK_STATE_COMPLETED
        assert task is not None
        assert metadata is not None
        (citation,) = metadata["citations"]
        assert (citation["documentName"], citation["citedText"]) == ("pump.md", "The pump holds twelve bar.")
        stored_task = await client.get_task(types.GetTaskRequest(id=task.id))
        assert stored_task.artifacts[0].parts[0].text == text
        assert stored_task.history[0].parts[0].text == "How much does the pump hold?"
        async for update in client.send_message(sdk_message("What is bar?", context_id=task.context_id)):
            last_update = update
        assert last_update.status_update.context_id == task.context_id
        task_list = await client.list_tasks(types.ListTasksRequest(context_id=task.context_id))
        assert (task_list.total_size, [item.id for item in task_list.tasks][-1]) == (2, task.id)
        assert not task_list.tasks[0].artifacts
        async with rig.client(streaming=False) as polling:
            with pytest.raises(Exception, match="has already ended") as exc_info:
                await polling.cancel_task(types.CancelTaskRequest(id=task.id))
        assert type(exc_info.value).__name__ == "TaskNotCancelableError"


async def test_both_versions_show_the_same_task_in_their_own_words(tmp_path: Path) -> None:
    async with agent(tmp_path, *FOUND) as rig:
        task = (await rig.result("SendMessage", message("How much?")))["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["artifacts"][0]["parts"] == [{"text": "It holds twelve bar."}]
        old = await rig.result("tasks/get", {"id": task["id"], "historyLength": 0})
        assert (old["kind"], old["status"]["state"]) == ("task", "completed")
        assert old["artifacts"][0]["parts"] == [{"kind": "text", "text": "It holds twelve bar."}]
        assert "history" not in old
        new = await rig.result("GetTask", {"id": task["id"]})
        assert new == task
        citation = new["artifacts"][0]["metadata"]["citations"][0]
        passage = await rig.http.get(citation["uri"].replace(f"http://{rig.address}", ""))
        assert "twelve bar" in passage.text


async def test_a_retracted_steps_text_is_replaced(tmp_path: Path) -> None:
    async with agent(tmp_path, Broken(say("First words here and on"), 4), say("Other words.")) as rig:
        updates = await rig.stream("SendStreamingMessage", message("Hi"))
        text, states, _ = fold(updates)
        assert text == "Other words."
        assert states == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]


async def test_a_task_that_needs_approval_is_input_required_until_a_message_approves_it(tmp_path: Path) -> None:
    async with agent(tmp_path, REMEMBER, say("Done."), toolPolicy={"promptx_remember": "ask"}) as rig:
        updates = await rig.stream("message/stream", old_message("Remember."))
        assert (updates[-1]["kind"], updates[-1]["final"]) == ("status-update", True)
        assert updates[-1]["status"]["state"] == "input-required"
        text, data = updates[-1]["status"]["message"]["parts"]
        assert "remember" in text["text"]
        assert data["data"]["toolName"] == "promptx_remember"
        task = updates[0]["id"]
        assert (await rig.result("tasks/get", {"id": task}))["status"]["state"] == "input-required"
        task_list = await rig.result("ListTasks", {"status": "TASK_STATE_INPUT_REQUIRED"})
        assert [item["id"] for item in task_list["tasks"]] == [task]
        assert await rig.refused_rpc("SendMessage", message("perhaps", taskId=task)) == (-32602, "VALIDATION_ERROR")
        misplaced = message("yes", taskId=task, contextId="another")
        assert await rig.refused_rpc("SendMessage", misplaced) == (-32602, "VALIDATION_ERROR")
        finished = (await rig.result("SendMessage", message("Yes.", taskId=task)))["task"]
        assert (finished["id"], finished["status"]["state"]) == (task, "TASK_STATE_COMPLETED")
        assert finished["artifacts"][0]["parts"][0]["text"] == "Done."
        refusal = (-32004, "UNSUPPORTED_OPERATION")
        assert await rig.refused_rpc("SendMessage", message("yes", taskId=task)) == refusal
        assert await rig.refused_rpc("SubscribeToTask", {"id": task}) == refusal


async def test_a_question_is_answered_by_text_and_a_call_is_declined_by_data(tmp_path: Path) -> None:
    question = use("ask_user", question="Tea or coffee?", options=["tea", "coffee"])
    steps = (question, say("Tea it is."), REMEMBER, say("Not kept."))
    async with agent(tmp_path, *steps, askUser=True, toolPolicy={"promptx_remember": "ask"}) as rig:
        task = (await rig.result("SendMessage", message("What?")))["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        pieces = await rig.stream("SendStreamingMessage", message("Tea", taskId=task["id"]))
        assert fold(pieces)[:2] == ("Tea it is.", ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"])
        task = (await rig.result("SendMessage", message("Remember.", contextId=task["contextId"])))["task"]
        wait = task["status"]["message"]["parts"][1]["data"]["waitId"]
        for part in ({"action": "maybe"}, {"action": "accept", "waitId": "w"}, {"action": "accept", "content": 5}):
            invalid = message("", taskId=task["id"], parts=[{"data": part}])
            assert await rig.refused_rpc("SendMessage", invalid) == (-32602, "VALIDATION_ERROR")
        decline = [{"data": {"waitId": wait, "action": "decline", "content": {"reason": "later"}}}]
        finished = (await rig.result("SendMessage", message("", taskId=task["id"], parts=decline)))["task"]
        assert finished["artifacts"][0]["parts"][0]["text"] == "Not kept."


async def test_a_running_task_is_followed_from_its_state_and_canceled(tmp_path: Path) -> None:
    stalled = Stalled(say("Some words, and more."), after=2)
    async with agent(tmp_path, stalled, say("Next.")) as rig:
        params = {**message("Hi"), "configuration": {"returnImmediately": True}}
        task = (await rig.result("SendMessage", params))["task"]
        assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        repeated = (await rig.result("SendMessage", params))["task"]
        assert repeated["id"] == task["id"], "a repeated message starts no second task"
        await stalled.reached.wait()
        busy = await rig.refused_rpc("SendMessage", message("Hi", contextId=task["contextId"]))
        assert busy == (-32000, "TURN_IN_PROGRESS")
        assert (await rig.refused_rpc("SendMessage", message("Hi", taskId=task["id"])))[0] == -32004
        followed_streams: list[list[Json]] = []

        async def follow() -> None:
            followed_streams.append(await rig.stream("SubscribeToTask", {"id": task["id"]}))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            canceled = await rig.result("CancelTask", {"id": task["id"]})
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        assert followed_streams[0][0]["task"]["id"] == task["id"]
        assert followed_streams[0][-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
        assert await rig.refused_rpc("tasks/cancel", {"id": task["id"]}) == (-32002, "TASK_NOT_CANCELABLE")
        await rig.result("SendMessage", message("Again", contextId=task["contextId"]))


async def test_a_waiting_task_is_read_from_the_store_by_the_next_server(tmp_path: Path) -> None:
    async with agent(tmp_path, REMEMBER, toolPolicy={"promptx_remember": "ask"}) as rig:
        task = (await rig.result("SendMessage", message("Remember.", contextId="my context")))["task"]
        assert task["contextId"] == "my context"
        pumps, ann = rig.pumps, rig.ann
    async with Agent(tmp_path, say("Done.")) as rig, serving(rig.application.app) as address:
        rig.address, rig.pumps, rig.ann = address, pumps, ann
        rig.http.headers.update(bearer(ann))
        assert (await rig.result("GetTask", {"id": task["id"]}))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        followed_streams: list[list[Json]] = []

        async def follow() -> None:
            followed_streams.append(await rig.stream("tasks/resubscribe", {"id": task["id"]}))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            wait = await open_wait(rig)
            await rig.ok("POST", f"/api/waits/{wait['id']}", {"action": "accept"})
        assert followed_streams[0][0]["status"]["state"] in ("input-required", "working")
        assert (followed_streams[0][-1]["status"]["state"], followed_streams[0][-1]["final"]) == ("completed", True)


async def test_a_failed_answer_is_a_failed_task_with_its_reason(tmp_path: Path) -> None:
    async with agent(tmp_path, ModelError("the request is refused", http_status=400)) as rig:
        failed_task = (await rig.result("SendMessage", message("Hi")))["task"]
        assert failed_task["status"]["state"] == "TASK_STATE_FAILED"
        (part,) = failed_task["status"]["message"]["parts"]
        assert part["metadata"]["code"] == "LLM_SERVICE_ERROR"
        assert "artifacts" not in failed_task
        (newest_task,) = (await rig.result("ListTasks", {"pageSize": 1}))["tasks"]
        assert newest_task["id"] == failed_task["id"]


async def test_bad_requests_get_the_errors_of_the_protocol(tmp_path: Path) -> None:
    async with agent(tmp_path) as rig:
        refused_rpc = rig.refused_rpc
        assert await refused_rpc("NoMethod", {}) == (-32601, "METHOD_NOT_FOUND")
        assert await refused_rpc("GetTask", {"id": "turn_none"}) == (-32001, "TURN_NOT_FOUND")
        assert await refused_rpc("GetTask", []) == (-32602, "INVALID_PARAMS")
        assert await refused_rpc("GetTask", {}) == (-32602, "VALIDATION_ERROR")
        assert await refused_rpc("GetExtendedAgentCard", {}) == (-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
        assert (await refused_rpc("CreateTaskPushNotificationConfig", {}))[0] == -32003
        assert (await refused_rpc("tasks/pushNotificationConfig/set", {}))[0] == -32003
        pushed = {**message("Hi"), "configuration": {"taskPushNotificationConfig": {"url": "https://a.example"}}}
        assert (await refused_rpc("SendMessage", pushed))[0] == -32003
        picture = {**message("Hi"), "configuration": {"acceptedOutputModes": ["image/png"]}}
        assert await refused_rpc("SendMessage", picture) == (-32005, "CONTENT_TYPE_NOT_SUPPORTED")
        for parts, code in (
            ([{"data": {"a": 1}}], -32005),
            ([{"raw": "aGk=", "mediaType": "application/pdf"}], -32005),
            ([{"url": "https://a.example/x.png", "mediaType": "image/png"}], -32602),
            ([{}], -32602),
            ([], -32602),
            ([{"text": ""}], -32602),
        ):
            assert (await refused_rpc("SendMessage", message("", parts=parts)))[0] == code, parts
        assert (await refused_rpc("SendMessage", message("Hi", role="ROLE_AGENT")))[0] == -32602
        conversations = await rig.http.get("/api/conversations", headers=bearer(rig.ann))
        assert conversations.json()["items"] == [], "a refused message leaves no conversation"
        assert (await refused_rpc("SendMessage", message("Hi", taskId="turn_none")))[0] == -32001
        assert (await refused_rpc("SendMessage", message("Hi", contextId="conv_none")))[0] == -32602
        assert (await refused_rpc("ListTasks", {"status": "TASK_STATE_ODD"}))[0] == -32602
        assert (await refused_rpc("ListTasks", {"pageSize": 101}))[0] == -32602
        assert (await rig.result("ListTasks", {"contextId": "not begun"}))["tasks"] == []
        version = {"a2a-version": "2.0"}
        assert await refused_rpc("ListTasks", {}, **version) == (-32009, "VERSION_NOT_SUPPORTED")
        for body, code in (
            ("{", -32700),
            ("[]", -32600),
            ('{"jsonrpc": "2.0", "id": 1.5, "method": "GetTask"}', -32600),
        ):
            async with httpx2.AsyncClient(trust_env=False) as http:
                answer = await http.post(rig.url, content=body, headers=bearer(rig.ann))
            assert (answer.json()["id"], answer.json()["error"]["code"]) == (None, code), body


async def test_the_endpoint_has_the_same_rights_limits_and_audit(tmp_path: Path) -> None:
    async with agent(tmp_path, say("Hello."), limit=3) as rig:
        task = (await rig.result("SendMessage", message("Hi")))["task"]
        bob, own_id = await make_key(rig, "bob", "member", rig.pumps), {"id": task["id"]}
        for method, params in (
            ("GetTask", own_id),
            ("CancelTask", own_id),
            ("SendMessage", message("yes", taskId=task["id"])),
        ):
            assert await rig.refused_rpc(method, params, bob) == (-32001, "TURN_NOT_FOUND")
        assert (await rig.rpc("ListTasks", {}, bob))["result"]["totalSize"] == 0
        audit = await rig.ok("GET", "/api/audit?actor=bob")
        assert {item["action"] for item in audit["items"]} == {"A2A get", "A2A cancel", "A2A send"}
        eve = await make_key(rig, "eve", "member", await rig.domain())
        async with httpx2.AsyncClient(trust_env=False) as http:
            for key, status in ((rig.ann, 200), (eve, 404), ("arag_wrong", 401)):
                card = await http.get(f"{rig.url}/.well-known/agent-card.json", headers=bearer(key))
                assert card.status_code == status
            for key, status in ((eve, 404), ("arag_wrong", 401)):
                body: Json = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}
                answer = await http.post(rig.url, json=body, headers=bearer(key))
                assert (answer.status_code, answer.json()["error"]["code"]) == (status, -32000)
            empty: Json = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("")}
            for _ in range(3):  # a refused message counts, too
                answer = await http.post(rig.url, json=empty, headers=bearer(rig.ann))
            assert (answer.status_code, answer.json()["error"]["data"][0]["reason"]) == (429, "RATE_LIMITED")
            assert int(answer.headers["retry-after"]) > 0
