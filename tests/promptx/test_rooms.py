"""How far a recall's cue travels: to the engrams in a turn, and through PromptX itself."""

from pathlib import Path

import pytest
from mcp import Client

from agentic_rag.access.users import User
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.steps import Step, say, use
from mcp_servers.promptx.server import PromptXConfig, create_server
from tests.roles.test_memories import turn
from tests.rooms import followed
from tests.server.rig import Rig

MARK = "zqxjkvwp"
ENGRAM = {"content": "steep it for two minutes", "schema": f"{MARK} green", "strength": 0.8, "type": "ATOMIC"}
ENTRANCE = "agentic_rag/models/observed.py"
LEDGER = "mcp_servers/promptx/ledger.py"
TURN_ROOMS = 28
"""One more than when the run log wrote its events itself: that is ``encoder``'s."""
PROMPTX_ROOMS = 9


@pytest.mark.sqlite("a memory in files")
async def test_a_cue_is_carried_through_few_rooms_from_the_models_call_to_the_engrams(tmp_path: Path) -> None:
    trips: list[list[str]] = []

    def answer(request: ModelRequest) -> Step:
        trips.append(list(trip.rooms))
        return say("Two minutes.")

    recall = use("promptx_recall", query=MARK)
    remember = use("promptx_remember", engrams=[ENGRAM])
    with followed(MARK) as trip:  # from before the threads begin
        async with Rig(tmp_path, remember, say("Saved."), recall, answer) as rig:
            domain = await rig.domain(memoryScope="user")
            anna = User("anna", domains=frozenset({domain}))
            await turn(rig, anna, domain)
            trip.begin()
            assert "steep it" in await turn(rig, anna, domain)
    [rooms] = trips
    entered = next(index for index, room in enumerate(rooms) if room.endswith(ENTRANCE))
    way = [room for room in rooms[entered:] if "/testing/" not in room]  # before: the end of the turn before
    there = next(index for index, room in enumerate(way) if room.endswith(LEDGER)) + 1
    assert there <= TURN_ROOMS, f"{there} rooms: {' '.join(way[:there])}"


async def test_a_cue_is_carried_through_few_rooms_of_promptx_and_back_with_the_engrams(workspace: Path) -> None:
    with followed(MARK) as trip:
        async with Client(create_server(PromptXConfig(workspace))) as client:
            await client.call_tool("promptx_remember", {"role": "assistant", "engrams": [ENGRAM]})
            trip.begin()
            result = await client.call_tool("promptx_recall", {"role": "assistant", "query": MARK})
    assert len(result.structured_content["engrams"]) == 1
    assert len(trip.rooms) <= PROMPTX_ROOMS, f"{len(trip.rooms)} rooms: {' '.join(trip.rooms)}"
