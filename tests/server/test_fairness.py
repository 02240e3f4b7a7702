"""A domain whose folder hangs blocks only itself: the others' roles, memories, documents and turns work."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from agentic_rag.testing.scripted import Scripted
from agentic_rag.testing.steps import say, use
from mcp_servers.promptx.ledger import LOCK_FILE
from tests.server.rig import Json, Rig, types_of

ENGRAM = {"content": "The archive closes at five.", "schema": "archive\nhours", "type": "ATOMIC", "strength": 0.8}
IMPORTED = {"content": "c", "cues": ["a", "b"], "type": "ATOMIC", "strength": 0.5, "createdAt": 1}
MANY = 45
"""More than the forty threads that all domains once shared."""

REMEMBER = use("promptx_remember", engrams=[ENGRAM])


@contextmanager
def hold_memory(rig: Rig, domain: str) -> Iterator[None]:
    """Hold a memory's lock, like another process that hangs, so that its writers block in their threads."""
    [lock] = (rig.settings.workspaces / domain).rglob(LOCK_FILE)
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Stuck:
    """Requests to the hanging domain; each ``act`` is recorded when it is answered."""

    def __init__(self, rig: Rig, domain: str) -> None:
        self._rig = rig
        self._domain = domain
        self.answered: list[Json | list[Json]] = []

    async def add(self, number: int) -> None:
        path = f"/api/domains/{self._domain}/memories/import?role=assistant"
        self.answered.append(await self._rig.ok("POST", path, {"engrams": [{**IMPORTED, "id": f"{number}_a"}]}))

    async def remember(self, number: int) -> None:
        conversation = await self._rig.conversation(self._domain)
        self.answered.append(await self._rig.say(conversation, f"Keep {number}"))


@pytest.mark.sqlite("locks a memory's file")
@pytest.mark.parametrize("act", ["add", "remember"])
async def test_a_hanging_domain_does_not_delay_others(tmp_path: Path, act: str) -> None:
    turns = act == "remember"
    engrams = [{**ENGRAM, "content": f"Shelf {number} is empty."} for number in range(MANY if turns else 0)]
    hanging: list[Scripted] = [use("promptx_remember", engrams=[engram]) for engram in engrams]
    recall = use("promptx_recall", query="archive")
    remaining: list[Scripted] = [say("Kept.")] * len(hanging)
    steps = [REMEMBER, say("Kept."), REMEMBER, say("Kept."), *hanging, recall, say("At five."), *remaining]
    async with Rig(tmp_path, *steps, messages_per_minute=1000) as rig:
        blocked_domain, free_domain = await rig.domain(), await rig.domain()
        for domain in (blocked_domain, free_domain):
            await rig.say(await rig.conversation(domain), "Keep that.")
        stuck = Stuck(rig, blocked_domain)
        async with anyio.create_task_group() as tasks:
            with hold_memory(rig, blocked_domain):
                for number in range(MANY):
                    tasks.start_soon(getattr(stuck, act), number)
                await anyio.wait_all_tasks_blocked()
                roles = (await rig.ok("GET", f"/api/domains/{free_domain}/roles"))["items"]
                assert "assistant" in [role["id"] for role in roles]
                assert (await rig.ok("GET", f"/api/domains/{free_domain}/memories"))["total"] == 1
                assert (await rig.upload(free_domain, "hours.md", b"# Hours\n\nThe archive closes."))["status"] == (
                    "indexed"
                )
                events = await rig.say(await rig.conversation(free_domain), "When?")
                assert types_of(events)[-1] == "done"
                assert "retrieval" in types_of(events)
                assert stuck.answered == []
        assert len(stuck.answered) == MANY
        total = (await rig.ok("GET", f"/api/domains/{blocked_domain}/memories?limit=1"))["total"]
        assert total == MANY + 1
        assert rig.application.parts.threads.owners == frozenset()
