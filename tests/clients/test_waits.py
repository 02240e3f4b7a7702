"""Waits with stock clients: questions reach them, and their answers let the same answer continue."""

import json
from pathlib import Path
from typing import Any

from agentic_rag.base.events import AgentEvent
from agentic_rag.server.dialects.ag_ui import AgUi
from agentic_rag.server.dialects.base import KnownWaits
from agentic_rag.server.dialects.ui_message import UiMessage
from agentic_rag.testing.steps import say, use
from tests.clients.live import live
from tests.node import run_client
from tests.server.dialects.reading import frames
from tests.server.dialects.streams import APPROVING, WAITING
from tests.server.test_waits import REMEMBER

Output = dict[str, Any]
ALL = frozenset({"wait_1", "wait_2", "wait_3"})


def run(
    events: list[AgentEvent], run_id: str, answered_id: str = "", ended_ids: frozenset[str] = frozenset()
) -> list[Output]:
    """Return an AG-UI run of a turn as sent to a client that has answered this wait."""
    known_waits = KnownWaits(ended_ids, frozenset({answered_id}) if answered_id else frozenset())
    chunks = [json.loads(frame) for frame in frames(AgUi("t", run_id, waits=known_waits), events)]
    return [chunk["chunk"] for chunk in chunks if "chunk" in chunk]


def record_streams() -> Output:
    """Return the runs of a turn that waits three times, of one without a wait, and a message in three streams."""
    answers = ("", "wait_1", "wait_2", "wait_3")
    first, second = frozenset({"wait_1", "wait_2"}), frozenset({"wait_3"})
    streams = [KnownWaits(), KnownWaits(first, first), KnownWaits(ALL, second)]
    return {
        "runs": [run(WAITING, f"run-{index}", answer) for index, answer in enumerate(answers)],
        "whole": run(WAITING, "run-0", ended_ids=ALL),
        "streams": [[json.loads(frame) for frame in frames(UiMessage(known), APPROVING)] for known in streams],
    }


async def test_stock_clients_answer_waits_and_the_same_answer_continues(tmp_path: Path) -> None:
    recording = tmp_path / "told.json"
    recording.write_text(json.dumps(record_streams()))
    third_call = use("promptx_remember", engrams=[{"content": "x", "schema": "x", "strength": 0.5, "type": "ATOMIC"}])
    steps = (REMEMBER, say("Done."), REMEMBER, say("Done."), third_call, say("Not kept."))
    async with live(tmp_path, *steps) as server:
        domain = await server.rig.domain(toolPolicy={"promptx_remember": "ask"})
        results: list[Any] = await run_client("waits.mjs", server.address, domain, str(recording))
        waits = (await server.rig.ok("GET", "/api/waits"))["items"]
    runs, ag_ui, streams, ui, declined = results
    check_runs(runs)
    check_ag_ui(ag_ui)
    check_streams(streams)
    check_ui(ui)
    tools = [part for part in declined["declined"]["parts"] if part["type"] == "dynamic-tool"]
    assert [(part["state"], part["approval"]["reason"]) for part in tools] == [("output-denied", "not that")]
    assert (declined["declined"]["parts"][-1]["text"], declined["count"]) == ("Not kept.", 4)
    assert [wait["state"] for wait in waits] == ["declined", "accepted", "accepted"]


def check_runs(output: Output) -> None:
    """A turn in four runs leaves a client the same state as in one run, and its verifier reports nothing."""
    assert output["warnings"] == []
    assert [outcome_part["error"] for outcome_part in output["outcomes"]] == [None] * 4
    assert [outcome_part["outcome"] for outcome_part in output["outcomes"]] == ["interrupt"] * 3 + ["success"]
    assert [outcome_part["interrupts"][0]["id"] for outcome_part in output["outcomes"][:3]] == [
        "wait_1",
        "wait_2",
        "wait_3",
    ]
    assert output["outcomes"][1]["interrupts"][0]["subagentRunId"] == "msg_a/researcher"
    (outcome, messages) = output["whole"]
    assert (outcome["error"], outcome["outcome"]) == (None, "success")
    assert output["messages"] == messages
    calls = {
        tool_call["id"]: tool_call["function"] for message in messages for tool_call in message.get("toolCalls", ())
    }
    assert calls["call_s"]["arguments"] == '{"path": "a.txt"}'


def check_ag_ui(output: Output) -> None:
    assert (output["asked"]["outcome"], output["answered"]["outcome"]) == ("interrupt", "success")
    assert output["asked"]["error"] is output["answered"]["error"] is None
    (interrupt,) = output["asked"]["interrupts"]
    assert interrupt["reason"] == "approval"
    assert interrupt["responseSchema"]["properties"]["arguments"]["properties"].keys() >= {"engrams"}
    assert [message["role"] for message in output["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert "coffee" in output["messages"][2]["content"]
    assert output["messages"][3]["content"] == "Done."


def check_streams(output: Output) -> None:
    """All waiting calls are announced before a stream ends, and each stream continues the same message."""
    requested, available = "approval-requested", "output-available"
    assert output["states"] == [
        [requested, requested, available],
        ["output-denied", available, available, requested],
        ["output-denied"] + [available] * 3,
    ]
    parts = output["message"]["parts"]
    assert [part["text"] for part in parts if part["type"] == "text"] == ["I will write them. ", "Written."]
    assert [part["type"] for part in parts].count("step-start") == 3
    asked_about = [part["data"] for part in parts if part["type"] == "data-input-required"]
    assert [answer["action"] for answer in asked_about] == ["decline", "accept", "accept"]
    assert asked_about[0]["sources"] == [{"kind": "document", "name": "Leave policy.md"}]


def check_ui(output: Output) -> None:
    (tool,) = [part for part in output["before"]["parts"] if part["type"] == "dynamic-tool"]
    assert tool["state"] == "approval-requested"
    assert output["after"]["id"] == output["before"]["id"]
    (tool,) = [part for part in output["after"]["parts"] if part["type"] == "dynamic-tool"]
    assert (tool["state"], tool["approval"]["approved"]) == ("output-available", True)
    assert "coffee" in str(tool["output"])
    assert output["after"]["parts"][-1]["text"] == "Done."
