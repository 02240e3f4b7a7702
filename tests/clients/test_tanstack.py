"""The AG-UI door with TanStack AI's published adapters."""

from pathlib import Path
from typing import Any

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.clients.live import live
from tests.node import run_client


async def test_the_stock_adapters_resume_join_and_stop_a_run(tmp_path: Path) -> None:
    answers = [say("A slow answer to the end."), say("Another slow answer."), say("I was about to say")]
    async with live(tmp_path, *(Stalled(answer, 4) for answer in answers)) as server:
        results: list[Any] = await run_client("tanstack.mjs", server.address, server.domain)
    dropped, joined, lost, rejoined, stopped, unknown_turn = results
    assert (dropped["text"], dropped["posts"]) == ("A slow answer to the end.", 2)
    assert dropped["kinds"].count("RUN_STARTED") == dropped["kinds"].count("TEXT_MESSAGE_START") == 1
    assert joined["kinds"] == dropped["kinds"]
    assert (lost["text"], lost["sockets"]) == ("Another slow answer.", 2)
    assert rejoined["kinds"] == lost["kinds"]
    assert stopped["outcome"] == "cancelled"
    assert unknown_turn[0] == "TURN_NOT_FOUND"
