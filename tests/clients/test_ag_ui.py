"""The AG-UI door with the published @ag-ui/client: its verifier accepts every stream, its state equals the answer."""

import json
from pathlib import Path
from typing import Any

from agentic_rag.server.dialects.ag_ui import AgUi
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.clients.live import BROKEN, FOUND, delegated, live
from tests.node import run_client
from tests.server.dialects.streams import STREAMS

Output = dict[str, Any]


def record_streams() -> dict[str, list[Output]]:
    """Return the encoder's output for every stream, for a client with known messages and for one without."""
    streams: dict[str, list[Output]] = {}
    for name, events in STREAMS.items():
        for history in (None, [{"id": "m", "role": "user", "content": "Hi"}]):
            encoder = AgUi("thread", "run", history)
            chunks: list[Output] = []
            for event in events:
                chunks += [frame.get("chunk", frame) for frame in map(json.loads, encoder.frames(event))]
                if encoder.ended:
                    break
            streams[f"{name}{', history' if history else ''}"] = chunks
    return streams


def texts(output: Output, role: str = "assistant") -> list[str]:
    return [message["content"] for message in output["messages"] if message["role"] == role and message.get("content")]


async def test_the_stock_client_reads_every_stream_and_a_live_server(tmp_path: Path) -> None:
    slow = Stalled(say("I was about to say"), 3)
    streams = tmp_path / "streams.json"
    streams.write_text(json.dumps(record_streams()))
    async with live(tmp_path, *FOUND, *FOUND, *delegated(), *BROKEN, slow) as server:
        native = await server.rig.say(await server.rig.conversation(server.domain), "How much leave?")
        results: list[Any] = await run_client("ag_ui.mjs", f"{server.address}/api/ag-ui/{server.domain}", str(streams))
        conversations = await server.rig.ok("GET", "/api/conversations")
    check_recorded({result["name"]: result for result in results[: len(record_streams())]})
    first, repeated, delegates, reset, stopped, forged, last = results[len(record_streams()) :]
    check_found(first, native)
    assert repeated["messages"] == first["messages"], "the same run is the same turn"
    assert sorted(delegates["subagents"]) == ["assistant", "researcher"]
    messages = [
        message for message in delegates["messages"] if message["role"] == "assistant" and message.get("content")
    ]
    owners = {message["content"]: message.get("subagentRunId", "").rpartition("/")[2] for message in messages}
    assert (owners["First."], owners["Second."]) == ("researcher", "assistant")
    assert texts(delegates)[-1] == "Both have answered."
    assert (texts(reset)[-1], reset["outcome"]) == ("Other words.", "success")
    assert not any("First words" in text for text in texts(reset))
    assert (stopped["outcome"], stopped["error"]) == ("cancelled", None)
    assert texts(stopped)[-1] in ("I ", "I was ", "I was about ")
    assert (forged["payload"]["type"], forged["payload"]["code"]) == ("RUN_ERROR", "VALIDATION_ERROR")
    assert last == {"warnings": []}
    assert [
        conversation["messageCount"]
        for conversation in conversations["items"]
        if conversation["id"] == first["ids"]["conversationId"]
    ] == [8]


def check_recorded(by_name: dict[str, Output]) -> None:
    assert len(by_name) == 2 * len(STREAMS)
    assert [result["warnings"] for result in by_name.values()] == [[]] * len(by_name)
    failures = {
        name: result["error"] or result["code"] for name, result in by_name.items() if result["outcome"] is None
    }
    errors = {"error before text", "error after text", "a call taken back"}
    assert {name for name in failures if name.endswith("history")} == {f"{name}, history" for name in errors}
    resets = {name for name, result in by_name.items() if result["code"] == "STEP_RESET"}
    assert resets == {"reset", "reset before text", "reset of a delegate", "resumed"}
    assert set(failures) == resets | errors | {f"{name}, history" for name in errors}
    full = by_name["full"]
    assert texts(full)[-1].endswith("And so on.")
    assert {"From one.", "From two."} <= set(texts(full))
    assert texts(by_name["reset, history"]) == ["Other words."]
    assert texts(by_name["resumed, history"]) == ["after."]
    assert by_name["interrupted"]["outcome"] == "cancelled"
    assert [result.get("pending") for result in by_name.values() if result["outcome"] == "success"] == [[]] * (
        len(by_name) - len(failures) - 2 * 5
    )
    assert by_name["waiting"]["outcome"] == by_name["approving, history"]["outcome"] == "interrupt"


def check_found(output: Output, native: list[Output]) -> None:
    """The answer, its call and its citations equal those of the native stream."""
    last_event = native[-1]
    assert texts(output) == ["You get 25 days."]
    assert output["result"]["references"] == last_event["references"] != []
    (call,) = [call for message in output["messages"] for call in message.get("toolCalls", [])]
    (tool_call,) = [event for event in native if event["type"] == "tool_call"]
    assert call["function"]["name"] == tool_call["toolName"]
    assert json.loads(call["function"]["arguments"]) == tool_call["arguments"]
    (result,) = [event for event in native if event["type"] == "tool_result"]
    assert texts(output, "tool") == [result["content"]]
    custom_values = {custom_event["name"]: custom_event["value"] for custom_event in output["custom"]}
    (citation,) = [event for event in native if event["type"] == "source_reference"]
    assert custom_values["source_reference"]["citedText"] == citation["citedText"]
    assert custom_values["retrieval"]["hits"][0]["chunkId"] == citation["chunkId"]
    usage, done_usage = output["usage"][0], last_event["usage"]
    assert (usage["model"], usage["outputTokens"]) == (last_event["model"], done_usage["outputTokens"])
