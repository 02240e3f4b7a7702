"""How far values travel: a message from the socket to the model's request, and an entry from PATCH to saved."""

from pathlib import Path

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.steps import Step, say
from tests.rooms import Trip, followed
from tests.server.rig import Rig
from tests.ws.serving import client, serving

MARK = "zqxjkvwp"
MESSAGE_ROOMS = 25
"""Six more than before turns waited for people, were measured and paid for: what accepts, stores a turn with its lease,
keeps the books, asks, calls, and tells of a model's calls, are rooms of their own. Three more since a turn costs what
is new in it: what is sent of a conversation is kept by one room, what a socket is told is written before the model is
asked, and an event is written by a room of its own."""
ENTRY_ROOMS = 16
"""Four more than before changes were kept: what is kept of one, without secrets, is a text with rooms of its own."""


async def test_a_message_is_carried_through_few_rooms_from_the_socket_to_the_models_request(tmp_path: Path) -> None:
    arrived: list[list[str]] = []

    def answer(request: ModelRequest) -> Step:
        arrived.append(list(trip.rooms))
        return say("Yes.")

    with followed(MARK) as trip:  # from before the store's threads begin
        async with Rig(tmp_path, say("Warm."), answer) as rig, serving(rig.application.app) as address:
            conversation = await rig.conversation()
            async with client(address) as socket:
                await socket.say("message", conversationId=conversation, content="first")
                await socket.hear_turn()
                trip.begin()
                await socket.say("message", conversationId=conversation, content=f"what is {MARK}?")
                await socket.hear_turn()
    rooms = [room for room in arrived[0] if "/testing/" not in room]
    assert len(rooms) <= MESSAGE_ROOMS, _told(trip, rooms)


async def test_an_entry_is_carried_through_few_rooms_from_patch_to_saved(tmp_path: Path) -> None:
    with followed(MARK) as trip:
        async with Rig(tmp_path) as rig:
            domain = await rig.domain()
            entry = {"url": "https://example.com/mcp", "headers": {"X-Mark": {"value": MARK, "secret": False}}}
            trip.begin()
            await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"notes": entry}}})
    assert len(trip.rooms) <= ENTRY_ROOMS, _told(trip, trip.rooms)


def _told(trip: Trip, rooms: list[str]) -> str:
    return f"{len(rooms)} rooms, {trip.moves} moves, {trip.returns} returns: {' '.join(rooms)}"
