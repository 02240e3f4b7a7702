"""The UI message door with the published AI SDK: its reader, its chat, its transport."""

import json
from pathlib import Path
from typing import Any

from agentic_rag.server.dialects.ui_message import UiMessage
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.clients.live import BROKEN, FOUND, delegated, live
from tests.node import run_client
from tests.server.dialects.streams import STREAMS

Output = dict[str, Any]


def record_streams() -> dict[str, list[Output]]:
    """Return the encoder's output for every stream."""
    streams: dict[str, list[Output]] = {}
    for name, events in STREAMS.items():
        encoder = UiMessage()
        streams[name] = [json.loads(frame) for event in events for frame in encoder.frames(event)]
    return streams


def texts(message: Output) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def of_kind(message: Output, kind: str) -> list[Output]:
    return [part for part in message["parts"] if part["type"] == kind]


async def test_the_stock_reader_and_transport_send_regenerate_edit_stop_and_continue(tmp_path: Path) -> None:
    slow = Stalled(say("A slow answer to the end."), 4)
    streams = tmp_path / "streams.json"
    streams.write_text(json.dumps(record_streams()))
    steps = (*FOUND, *FOUND, say("Still 25."), say("None."), *delegated(), *BROKEN, slow)
    async with live(tmp_path, *steps) as server:
        native = await server.rig.say(await server.rig.conversation(server.domain), "How much leave?")
        results: list[Any] = await run_client("ui_message.mjs", server.address, server.domain, str(streams))
        conversation = results[len(STREAMS)]["messages"][1]["metadata"]["conversationId"]
        messages = (await server.rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
    check_recorded({result["name"]: result for result in results[: len(STREAMS)]})
    first, regenerated, edited, delegates, reset, slowly, idle, forged = results[len(STREAMS) :]
    check_found(first["messages"][1], native)
    assert [texts(message) for message in regenerated["messages"]] == ["How much leave?", "Still 25."]
    assert regenerated["messages"][1]["id"] != first["messages"][1]["id"]
    assert [texts(message) for message in edited["messages"]] == ["How much unpaid leave?", "None."]
    check_delegates(delegates)
    assert texts(reset["messages"][-1]) == "Other words."
    assert texts(slowly["half"]) in ("A ", "A slow ", "A slow answer ")
    assert texts(slowly["messages"][-1]) == "A slow answer to the end."
    assert slowly["messages"][-1]["id"] == slowly["half"]["id"]
    assert idle == {"nothing": [None, None]}
    assert forged["status"] == "error"
    refusal = json.loads(forged["error"])
    assert (refusal["type"], refusal["error"]["code"]) == ("error", "VALIDATION_ERROR")
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    assert answers == ["None.", "Both have answered.", "Other words.", "A slow answer to the end."]
    assert [message["id"] for message in messages if message["role"] == "assistant"][-1] == slowly["messages"][-1]["id"]


def check_recorded(by_name: dict[str, Output]) -> None:
    assert set(by_name) == set(STREAMS)
    full = by_name["full"]["message"]
    assert texts(full).endswith("naïve\r\n\u2028end. And so on.")
    assert {part["toolCallId"]: part["state"] for part in of_kind(full, "dynamic-tool")} == {
        "call_1": "output-available",
        "call_2": "output-error",
        "call_3": "output-error",
        "call_d1": "output-available",
        "call_d2": "output-available",
    }
    assert [part["data"]["status"] for part in of_kind(full, "data-delegate")] == ["ok", "ok"]
    assert texts(by_name["reset"]["message"]) == "Other words."
    assert texts(by_name["resumed"]["message"]) == "after."
    assert texts(by_name["interrupted"]["message"]) == "I was about"
    failures = {name for name, result in by_name.items() if result["errors"]}
    assert failures == {"error before text", "error after text", "a call taken back"}
    assert by_name["error after text"]["errors"] == ["The model gives no answer."]
    assert by_name["error after text"]["message"]["metadata"]["error"]["code"] == "LLM_SERVICE_ERROR"


def check_found(message: Output, native: list[Output]) -> None:
    """The answer, its call and its citations equal those of the native stream."""
    last_event = native[-1]
    assert texts(message) == "You get 25 days."
    assert message["metadata"]["references"] == last_event["references"] != []
    (tool,) = of_kind(message, "dynamic-tool")
    (tool_call,) = [event for event in native if event["type"] == "tool_call"]
    (result,) = [event for event in native if event["type"] == "tool_result"]
    assert (tool["toolName"], tool["input"], tool["state"]) == (
        tool_call["toolName"],
        tool_call["arguments"],
        "output-available",
    )
    assert tool["output"] == result["content"]
    (source,) = of_kind(message, "source-document")
    assert source["providerMetadata"]["agentic-rag"]["chunkId"] == last_event["references"][0]["chunkId"]
    assert source["title"] == "handbook.md"


def check_delegates(output: Output) -> None:
    assert texts(output["messages"][-1]) == "Both have answered."
    delegate_events = [part["data"] for part in output["heard"] if part["type"] == "data-delegate-event"]
    words = {delegate_event["agent"]: "" for delegate_event in delegate_events}
    for delegate_event in delegate_events:
        words[delegate_event["agent"]] += delegate_event["text"] if delegate_event["type"] == "text" else ""
    assert words == {"researcher": "First.", "assistant": "Second."}
    assert [part["data"]["status"] for part in of_kind(output["messages"][-1], "data-delegate")] == ["ok", "ok"]
