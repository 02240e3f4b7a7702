"""The module that a client author may copy: its reducer over events of real turns, its connection, its blocks."""

import json
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.base.errors import ModelError
from agentic_rag.testing.scripted import Broken
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, use
from tests.node import CLIENTS, PATIENCE, node
from tests.server.rig import Rig


async def run_module(script: str, request: Any) -> list[Any]:
    """Run a script of the clients with JSON on its stdin; return the values that it printed."""
    command = [str(node()), "--no-warnings", str(CLIENTS / script)]
    with anyio.fail_after(PATIENCE):
        result = await anyio.run_process(command, input=json.dumps(request).encode(), check=False, cwd=CLIENTS)
    assert result.returncode == 0, result.stderr.decode()[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_a_view_built_from_events_equals_the_stored_answer(tmp_path: Path) -> None:
    first = Step((Think("Think 💭."), Say("I look 🔎 it up. "), Use("search_documents", {"query": "leave"})))
    broken_step = Broken(Step((Think("Again"), Say("This is said and taken back. "), Say("Really."))), 6)
    cited_step = Step((Say("They have 🎉 "), Say("25 days", (Cite(0),)), Say(".")))
    failed = ModelError("No.", retryable=False)
    steps = (first, broken_step, cited_step, use("no_such_tool", a=1), failed)
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days of leave a year.")
        conversation = await rig.conversation(domain)
        turns = [await rig.say(conversation, "How many?"), await rig.say(conversation, "And?")]
        messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
    assert any(event["type"] == "step_reset" for event in turns[0])
    view, error, connection = await run_module("console_stream.mjs", {"turns": turns})
    answer = messages[1]
    assert view["text"] == answer["content"] == "I look 🔎 it up. \n\nThey have 🎉 25 days."
    assert view["status"] == "done"
    assert view["references"] == answer["references"]
    assert view["usage"] == answer["metadata"]["usage"]
    kinds = [item["kind"] for item in view["items"]]
    assert kinds == ["thinking", "text", "call", "retrieval", "text"]
    text = view["items"][-1]
    (citation,) = text["citations"]
    assert text["text"][citation["from"] : citation["to"]] == "25 days"
    call = view["items"][2]
    assert (call["status"], call["server"], call["arguments"]) == ("ok", "retriever", {"query": "leave"})
    assert (error["status"], error["error"]["retryable"]) == ("error", False)
    assert [item["status"] for item in error["items"] if item["kind"] == "call"] == ["error"]
    # Disconnect after every few events and repeat the last one: each arrives once, and none is missing.
    numbers = [event["seq"] for event in turns[0]]
    assert connection["heard"] == numbers
    assert connection["subscribed"][:2] == [None, 3]


async def test_closed_blocks_stay_closed_and_are_complete(tmp_path: Path) -> None:
    texts = {
        "One.\n\nTwo\nlines.\n\nThree": ["One.\n\n", "Two\nlines.\n\n", "Three"],
        "- a\n- b\n\n- c\n\nText.\n": ["- a\n- b\n\n- c\n\n", "Text.\n"],
        "1. a\n\n   more of a\n\n2. b\n\nEnd": ["1. a\n\n   more of a\n\n2. b\n\n", "End"],
        "```py\na\n\nb\n```\n\nAfter\n\nx": ["```py\na\n\nb\n```\n\n", "After\n\n", "x"],
        "~~~~\n```\n\n~~~\n\n~~~~\n\nx": ["~~~~\n```\n\n~~~\n\n~~~~\n\n", "x"],
        "| a |\n|---|\n| b |\n\nx\n\n": ["| a |\n|---|\n| b |\n\n", "x\n\n"],
        "\n\n# Head\nText\n\n\n\nMore\n": ["\n\n# Head\nText\n\n\n\n", "More\n"],
        "> a\n\n> b\n\nc": ["> a\n\n> b\n\n", "c"],
        "": [""],
    }
    views = await run_module("console_text.mjs", list(texts))
    assert [view["blocks"] for view in views] == list(texts.values())
    assert all(view["same"] for view in views)
