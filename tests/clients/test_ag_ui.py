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

Heard = dict[str, Any]


def recorded() -> dict[str, list[Heard]]:
    """Return the encoder's output for every stream, for a client with known messages and for one without."""
    made: dict[str, list[Heard]] = {}
    for name, events in STREAMS.items():
        for history in (None, [{"id": "m", "role": "user", "content": "Hi"}]):
            encoder = AgUi("thread", "run", history)
            chunks: list[Heard] = []
            for event in events:
                chunks += [each.get("chunk", each) for each in map(json.loads, encoder.frames(event))]
                if encoder.ended:
                    break
            made[f"{name}{', history' if history else ''}"] = chunks
    return made


def texts(heard: Heard, role: str = "assistant") -> list[str]:
    return [message["content"] for message in heard["messages"] if message["role"] == role and message.get("content")]


async def test_the_stock_client_reads_every_stream_and_a_live_server(tmp_path: Path) -> None:
    slow = Stalled(say("I was about to say"), 3)
    streams = tmp_path / "streams.json"
    streams.write_text(json.dumps(recorded()))
    async with live(tmp_path, *FOUND, *FOUND, *delegated(), *BROKEN, slow) as server:
        native = await server.rig.say(await server.rig.conversation(server.domain), "How much leave?")
        heard: list[Any] = await run_client("ag_ui.mjs", f"{server.address}/api/ag-ui/{server.domain}", str(streams))
        listed = await server.rig.ok("GET", "/api/conversations")
    check_recorded({each["name"]: each for each in heard[: len(recorded())]})
    first, again, delegates, reset, stopped, forged, last = heard[len(recorded()) :]
    check_found(first, native)
    assert again["messages"] == first["messages"], "the same run is the same turn"
    assert sorted(delegates["subagents"]) == ["assistant", "researcher"]
    said = [message for message in delegates["messages"] if message["role"] == "assistant" and message.get("content")]
    owners = {each["content"]: each.get("subagentRunId", "").rpartition("/")[2] for each in said}
    assert (owners["First."], owners["Second."]) == ("researcher", "assistant")
    assert texts(delegates)[-1] == "Both have answered."
    assert (texts(reset)[-1], reset["outcome"]) == ("Other words.", "success")
    assert not any("First words" in text for text in texts(reset))
    assert (stopped["outcome"], stopped["error"]) == ("cancelled", None)
    assert texts(stopped)[-1] in ("I ", "I was ", "I was about ")
    assert (forged["payload"]["type"], forged["payload"]["code"]) == ("RUN_ERROR", "VALIDATION_ERROR")
    assert last == {"warnings": []}
    assert [each["messageCount"] for each in listed["items"] if each["id"] == first["ids"]["conversationId"]] == [8]


def check_recorded(by_name: dict[str, Heard]) -> None:
    assert len(by_name) == 2 * len(STREAMS)
    assert [each["warnings"] for each in by_name.values()] == [[]] * len(by_name)
    failed = {name: each["error"] or each["code"] for name, each in by_name.items() if each["outcome"] is None}
    errors = {"error before text", "error after text", "a call taken back"}
    assert {name for name in failed if name.endswith("history")} == {f"{name}, history" for name in errors}
    resets = {name for name, each in by_name.items() if each["code"] == "STEP_RESET"}
    assert resets == {"reset", "reset before text", "reset of a delegate", "resumed"}
    assert set(failed) == resets | errors | {f"{name}, history" for name in errors}
    full = by_name["full"]
    assert texts(full)[-1].endswith("And so on.")
    assert {"From one.", "From two."} <= set(texts(full))
    assert texts(by_name["reset, history"]) == ["Other words."]
    assert texts(by_name["resumed, history"]) == ["after."]
    assert by_name["interrupted"]["outcome"] == "cancelled"
    assert [each.get("pending") for each in by_name.values() if each["outcome"] == "success"] == [[]] * (
        len(by_name) - len(failed) - 2 * 5
    )
    assert by_name["waiting"]["outcome"] == by_name["approving, history"]["outcome"] == "interrupt"


def check_found(heard: Heard, native: list[Heard]) -> None:
    """The answer, its call and its citations equal those of the native stream."""
    done = native[-1]
    assert texts(heard) == ["You get 25 days."]
    assert heard["result"]["references"] == done["references"] != []
    (call,) = [call for message in heard["messages"] for call in message.get("toolCalls", [])]
    (said,) = [event for event in native if event["type"] == "tool_call"]
    assert call["function"]["name"] == said["toolName"]
    assert json.loads(call["function"]["arguments"]) == said["arguments"]
    (result,) = [event for event in native if event["type"] == "tool_result"]
    assert texts(heard, "tool") == [result["content"]]
    named = {each["name"]: each["value"] for each in heard["custom"]}
    (cited,) = [event for event in native if event["type"] == "source_reference"]
    assert named["source_reference"]["citedText"] == cited["citedText"]
    assert named["retrieval"]["hits"][0]["chunkId"] == cited["chunkId"]
    usage, spent = heard["usage"][0], done["usage"]
    assert (usage["model"], usage["outputTokens"]) == (done["model"], spent["outputTokens"])
