"""One question to one scripted model through every door: each stores the same turn, and its stream reports it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx2
import orjson
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ResourceLink, TextContent

from agentic_rag.base.messages import plain_text
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Cite, Say, Step, Use, say, use
from tests.access.tenants import bearer
from tests.server.dialects.reading import parse_sse
from tests.server.rig import Json, Rig
from tests.ws.serving import client, serving

QUESTION = "How much leave is there, and how do I travel?"
ANSWER = "There are 27 days. Go by train."
LEAVE = b"# Leave\n\nFull-time staff have 27 days of paid leave a year.\n"
TRAVEL = b"# Travel\n\nJourneys below 600 km are made by train.\n"

LOOK = Step((Use("promptx_recall", {"query": "leave"}), Use("search_documents", {"query": "paid leave"})))
HAND_OVER = Step(
    (
        Use("delegate", {"role": "researcher", "task": "Leave"}),
        Use("delegate", {"role": "assistant", "task": "Travel"}),
    )
)
DAYS = (Say("There are "), Say("27 days.", (Cite(0),)), Say(" "))
CITED = Step((*DAYS, Say("Go by train.")))
CITED_TWICE = Step((*DAYS, Say("Go by train.", (Cite(1),))))

Scripts = dict[str, tuple[Step, ...]]
"""The steps of each task."""

ALONE: Scripts = {QUESTION: (LOOK, CITED)}
WITH_DELEGATES: Scripts = {
    QUESTION: (HAND_OVER, CITED_TWICE),
    "Leave": (use("search_documents", query="paid leave"), say("It is 27 days.", Cite(0))),
    "Travel": (use("search_documents", query="journeys by train"), say("By train.", Cite(0))),
}
STORED_CALLS = {
    "alone": [
        ("", "promptx_recall", {"query": "leave"}, "ok"),
        ("", "search_documents", {"query": "paid leave"}, "ok"),
    ],
    "with delegates": [
        ("", "delegate", {"role": "assistant", "task": "Travel"}, "ok"),
        ("", "delegate", {"role": "researcher", "task": "Leave"}, "ok"),
        ("assistant", "search_documents", {"query": "journeys by train"}, "ok"),
        ("researcher", "search_documents", {"query": "paid leave"}, "ok"),
    ],
}
SCRIPTS = {"alone": ALONE, "with delegates": WITH_DELEGATES}
SOURCES = {"alone": {"Leave.md"}, "with delegates": {"Leave.md", "Travel.md"}}
"""The citations of the answer; with delegates, the documents that they found."""
WITHOUT_CHUNKS = {"message", "knowledge", "chat"}
"""Formats that name only the documents of citations."""


def answer(scripts: Scripts, request: ModelRequest) -> Step:
    """Return the next step of the task in a request. Delegates ask in parallel."""
    first = plain_text(request.messages[0]["content"])
    (task,) = [script for script in scripts if first.startswith(script)]
    return scripts[task][sum(message["role"] == "assistant" for message in request.messages)]


@dataclass(frozen=True, slots=True)
class StreamContent:
    """The content of a stream about a turn, as far as its format allows.

    ``cited``: the citations in the text, as document and chunk, which some formats do not name; ``listed``: those at
    its end. ``calls``: the main agent's calls. None: the format has no field for it.
    """

    text: str
    cited: set[tuple[str, str | None]] | None = None
    listed: set[tuple[str, str | None]] | None = None
    calls: list[tuple[str, Any]] | None = None


def cited_by(references: Iterable[Json], document: str = "documentId", chunk: str = "chunkId") -> set[Any]:
    return {(reference[document], reference.get(chunk)) for reference in references}


def keep_main_agent(items: Iterable[Json], field: str = "agent") -> list[Json]:
    """Return the main agent's events."""
    return [item for item in items if not item.get(field)]


def from_native(events: list[Json]) -> StreamContent:
    own_events = keep_main_agent(events)
    assert own_events[-1]["type"] == "done"
    return StreamContent(
        "".join(event["text"] for event in own_events if event["type"] == "text"),
        cited_by(event for event in own_events if event["type"] == "source_reference"),
        cited_by(own_events[-1]["references"]),
        [(event["toolName"], event["arguments"]) for event in own_events if event["type"] == "tool_call"],
    )


def from_observable(events: list[Json]) -> StreamContent:
    own_events = keep_main_agent(events)
    assert own_events[-1]["type"] == "done"
    return StreamContent(
        "".join(event["text"] for event in own_events if event["type"] == "text"),
        cited_by((event for event in own_events if event["type"] == "source_reference"), "document_id", "chunk_id"),
        cited_by(own_events[-1]["references"], "document_id", "chunk_id"),
        [(event["tool_name"], event["arguments"]) for event in own_events if event["type"] == "tool_call"],
    )


def from_message(pairs: list[tuple[str, Any]]) -> StreamContent:
    assert pairs[-1][0] == "message_complete"
    return StreamContent(
        "".join(data["delta"] for kind, data in pairs if kind == "content_delta"),
        cited_by(data for kind, data in pairs if kind == "source_reference"),
    )


def from_agentx(pairs: list[tuple[str, Any]]) -> StreamContent:
    (final,) = [frame["data"] for kind, frame in pairs if kind == "message_complete"]
    executing = keep_main_agent(frame["data"] for kind, frame in pairs if kind == "tool_executing")
    return StreamContent(
        "".join(frame["data"]["text"] for kind, frame in pairs if kind == "text_delta"),
        None,
        cited_by(final["references"]),
        [(call["toolName"], call["arguments"]) for call in executing],
    )


def from_knowledge(pairs: list[tuple[str, Any]]) -> StreamContent:
    kind, final = pairs[-1]
    assert kind == "done"
    text = "".join(data for kind, data in pairs if kind == "chunk")
    marks = {f"[[{reference['entityName']}]]" for reference in final["references"]}
    assert {mark for mark in marks if text.count(mark) == 1} == marks
    for mark in marks:
        text = text.replace(mark, "")
    return StreamContent(text, None, cited_by(final["references"], "entityId"))


def from_chat(pairs: list[tuple[str, Any]]) -> StreamContent:
    parts = [data for _, data in pairs[:-1]]
    assert (pairs[-1][1], parts[-1]["type"]) == ("[DONE]", "done")
    final = parts[-1]["data"]
    text = "".join(part["data"]["content"] for part in parts if part["type"] == "text")
    assert final["final_message"] == {"role": "assistant", "content": text}
    calls = [(tool_call["tool_name"], tool_call["arguments"]) for tool_call in final["tool_calls"]]
    return StreamContent(text, None, cited_by(final["references"], "document_id"), calls)


def from_ag_ui(pairs: list[tuple[str, Any]]) -> StreamContent:
    events = keep_main_agent((data for _, data in pairs), "subagentRunId")
    assert events[-1]["type"] == "RUN_FINISHED"
    names = {event["toolCallId"]: event["toolCallName"] for event in events if event["type"] == "TOOL_CALL_START"}
    arguments = dict.fromkeys(names, "")
    for event in events:
        if event["type"] == "TOOL_CALL_ARGS":
            arguments[event["toolCallId"]] += event["delta"]
    return StreamContent(
        "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"),
        cited_by(event["value"] for event in events if event.get("name") == "source_reference"),
        cited_by(events[-1]["result"]["references"]),
        [(name, orjson.loads(arguments[call])) for call, name in names.items()],
    )


def from_ui_message(pairs: list[tuple[str, Any]]) -> StreamContent:
    parts = [data for _, data in pairs[:-1]]
    assert (pairs[-1][1], parts[-1]["type"]) == ("[DONE]", "finish")
    citations = [
        citation["source"] for part in parts if part["type"] == "text-end" for citation in part.get("citations", ())
    ]
    sources = [part for part in parts if part["type"] == "source-document"]
    return StreamContent(
        "".join(part["delta"] for part in parts if part["type"] == "text-delta"),
        cited_by(source["providerMetadata"]["agentic-rag"] for source in citations),
        cited_by(source["providerMetadata"]["agentic-rag"] for source in sources),
        [(part["toolName"], part["input"]) for part in parts if part["type"] == "tool-input-available"],
    )


def from_completion(pairs: list[tuple[str, Any]]) -> StreamContent:
    assert pairs[-1][1] == "[DONE]"
    chunks = [data for _, data in pairs[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    extension = chunks[-1]["agentic_rag"]
    return StreamContent(
        "".join(delta.get("content") or "" for delta in deltas),
        cited_by(annotation["agentic_rag"] for delta in deltas for annotation in delta.get("annotations", ())),
        cited_by(extension["references"]),
        [(call["toolName"], call["arguments"]) for call in keep_main_agent(extension["toolCalls"])],
    )


def from_response(pairs: list[tuple[str, Any]]) -> StreamContent:
    kind, last_data = pairs[-1]
    assert kind == "response.completed"
    response = last_data["response"]
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    text = "".join(data["delta"] for kind, data in pairs if kind == "response.output_text.delta")
    assert "".join(part["text"] for part in parts) == text
    assert {note["file_id"] for part in parts for note in part["annotations"]} <= {
        reference["documentId"] for reference in response["agentic_rag"]["references"]
    }
    calls = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert len(calls) == len(response["agentic_rag"]["toolCalls"])
    return StreamContent(
        text,
        {(note["file_id"], note["agentic_rag"]["chunkId"]) for part in parts for note in part["annotations"]},
        cited_by(response["agentic_rag"]["references"]),
        [(call["toolName"], call["arguments"]) for call in keep_main_agent(response["agentic_rag"]["toolCalls"])],
    )


# The doors


def parse_stream(text: str) -> list[tuple[str, Any]]:
    """Return the names and the data of a stream's events."""
    return [(event.event, _value(event.data)) for event in parse_sse(text)]


def _value(data: str) -> Any:
    return orjson.loads(data) if data.startswith("{") else data


async def ask(rig: Rig, path: str, body: Json, headers: dict[str, str] | None = None) -> list[tuple[str, Any]]:
    response = await rig.http.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return parse_stream(response.text)


async def by_stream(rig: Rig, domain: str, dialect: str) -> list[tuple[str, Any]]:
    path = f"/api/conversations/{await rig.conversation(domain)}/messages?dialect={dialect}"
    return await ask(rig, path, {"content": QUESTION})


async def native_stream(rig: Rig, domain: str) -> StreamContent:
    return from_native([data for _, data in await by_stream(rig, domain, "native")])


async def native_socket(rig: Rig, domain: str) -> StreamContent:
    conversation = await rig.conversation(domain)
    async with serving(rig.application.app) as address, client(address) as c:
        assert (await c.ask("message", conversationId=conversation, content=QUESTION))["type"] == "accepted"
        return from_native(await c.hear_turn())


async def durable_stream(rig: Rig, domain: str) -> StreamContent:
    path = f"/api/conversations/{await rig.conversation(domain)}/messages"
    turn = await rig.ok("POST", path, {"content": QUESTION}, headers={"accept": "application/json"})
    events: list[Json] = []
    params = {"offset": "-1", "live": "long-poll"}
    while True:
        response = await rig.http.get(f"/api/turns/{turn['id']}/stream", params=params)
        events += response.json() if response.status_code == 200 else []
        if response.headers.get("stream-closed"):
            return from_native(events)
        params["offset"] = response.headers["stream-next-offset"]


async def observable(rig: Rig, domain: str) -> StreamContent:
    return from_observable([data for _, data in await by_stream(rig, domain, "observable")])


async def message(rig: Rig, domain: str) -> StreamContent:
    return from_message(await by_stream(rig, domain, "message"))


async def agentx(rig: Rig, domain: str) -> StreamContent:
    return from_agentx(await by_stream(rig, domain, "agentx"))


async def knowledge(rig: Rig, domain: str) -> StreamContent:
    conversation = await rig.ok("POST", "/api/conversation", {})
    return from_knowledge(await ask(rig, f"/api/conversation/{conversation['id']}/message", {"content": QUESTION}))


async def chat(rig: Rig, domain: str) -> StreamContent:
    return from_chat(await ask(rig, "/api/v1/chat", {"message": QUESTION, "agent_id": domain}))


async def ag_ui(rig: Rig, domain: str) -> StreamContent:
    run = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": QUESTION}]}
    return from_ag_ui(await ask(rig, f"/api/ag-ui/{domain}", run))


async def ui_message(rig: Rig, domain: str) -> StreamContent:
    message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": QUESTION}]}
    return from_ui_message(await ask(rig, f"/api/ui-message/{domain}", {"id": "c", "messages": [message]}))


async def completion(rig: Rig, domain: str) -> StreamContent:
    body = {"model": domain, "messages": [{"role": "user", "content": QUESTION}], "stream": True, "store": True}
    return from_completion(await ask(rig, "/v1/chat/completions", body))


async def response(rig: Rig, domain: str) -> StreamContent:
    body = {"model": domain, "input": QUESTION, "stream": True, "store": True}
    return from_response(await ask(rig, "/v1/responses", body, {"x-agentic-rag-items": "openai"}))


async def _mcp(rig: Rig, domain: str, mode: Literal["auto", "legacy"]) -> StreamContent:
    key_header = bearer(rig.application.access.local_key)
    async with (
        serving(rig.application.app) as address,
        httpx2.AsyncClient(headers=key_header, trust_env=False, timeout=30) as http,
        Client(streamable_http_client(f"http://{address}/mcp/{domain}", http_client=http), mode=mode) as mcp_client,
    ):
        result = await mcp_client.call_tool("ask", {"question": QUESTION})
    text, *links = result.content
    assert isinstance(text, TextContent)
    assert result.structured_content is not None
    assert result.structured_content["answer"] == text.text
    citations = result.structured_content["citations"]
    linked_chunks = {link.uri.rpartition("/")[2] for link in links if isinstance(link, ResourceLink)}
    assert linked_chunks == {citation["chunk_id"] for citation in citations}
    return StreamContent(text.text, cited_by(citations, "document_id", "chunk_id"))


async def mcp(rig: Rig, domain: str) -> StreamContent:
    return await _mcp(rig, domain, "auto")


async def mcp_of_the_older_era(rig: Rig, domain: str) -> StreamContent:
    return await _mcp(rig, domain, "legacy")


DOORS: tuple[Callable[[Rig, str], Awaitable[StreamContent]], ...] = (
    native_stream,
    native_socket,
    durable_stream,
    observable,
    message,
    agentx,
    knowledge,
    chat,
    ag_ui,
    ui_message,
    completion,
    response,
    mcp,
    mcp_of_the_older_era,
)


@asynccontextmanager
async def open_default_domain(folder: Path, scripts: Scripts) -> AsyncGenerator[tuple[Rig, str, dict[str, str]]]:
    """Open a rig whose default domain has two documents; yield it, the domain, and the documents' ids by name."""
    async with Rig(folder) as rig:
        domain = await rig.domain(subRoleIds=["researcher", "assistant"])
        uploads = [await rig.upload(domain, name, text) for name, text in (("Leave.md", LEAVE), ("Travel.md", TRAVEL))]
        documents = {document["name"]: document["id"] for document in uploads}
    model = ScriptedModel(then=partial(answer, scripts))
    async with Rig(folder, instead=model, default_domain=domain) as rig:
        yield rig, domain, documents
    model.assert_consumed()


async def conversations(rig: Rig) -> set[str]:
    page = await rig.ok("GET", "/api/conversations", params={"pageSize": 100})
    return {item["id"] for item in page["items"]}


async def read_stored_turn(rig: Rig, conversation: str) -> tuple[Any, ...]:
    """Return the stored records of a conversation's only turn, without ids and times.

    The order in which two delegates end does not depend on the door, so their calls and passages are sorted and
    unnumbered.
    """
    question, answer = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
    calls = (await rig.ok("GET", f"/api/conversations/{conversation}/tool-calls"))["items"]
    names = ("documentId", "chunkId", "documentName", "citedText", "score", "page", "agent", "verified")
    references = [{name: reference.get(name) for name in names} for reference in answer["references"]]
    return (
        [(message["role"], message["content"]) for message in (question, answer)],
        sorted(references, key=orjson.dumps),
        sorted(
            ((call["agent"], call["toolName"], call["arguments"], call["status"]) for call in calls),
            key=lambda call: orjson.dumps(call),
        ),
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("alone", marks=pytest.mark.nightly("with delegates, which is more, it runs every time")),
        "with delegates",
    ],
)
async def test_every_endpoint_stores_and_announces_the_same_turn(tmp_path: Path, name: str) -> None:
    async with open_default_domain(tmp_path, SCRIPTS[name]) as (rig, domain, documents):
        first: tuple[Any, ...] | None = None
        for door in DOORS:
            before = await conversations(rig)
            report = await door(rig, domain)
            (conversation,) = await conversations(rig) - before
            stored_turn = await read_stored_turn(rig, conversation)
            messages, references, calls = first = first or stored_turn
            assert stored_turn == first, door.__name__
            assert messages == [("user", QUESTION), ("assistant", ANSWER)]
            assert calls == STORED_CALLS[name]
            passages = {(reference["documentId"], reference["chunkId"]) for reference in references}
            assert sorted(document for document, _ in passages) == sorted(documents[source] for source in SOURCES[name])
            check_told(report, passages, name, door.__name__)


def check_told(report: StreamContent, passages: set[tuple[str, str]], name: str, door: str) -> None:
    """Compare a stream's content with the stored and cited content."""
    assert report.text == ANSWER, door
    expected = {(document, None) for document, _ in passages} if door in WITHOUT_CHUNKS else passages
    assert [references for references in (report.cited, report.listed) if references is not None] in (
        [expected],
        [expected, expected],
    ), door
    if report.calls is not None:
        main_calls = [(tool, arguments) for agent, tool, arguments, _ in STORED_CALLS[name] if not agent]
        assert sorted(report.calls, key=orjson.dumps) == main_calls, door
