"""The cache of idle transcripts stays within a number of bytes, and an evicted transcript is read again unchanged."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from agentic_rag.base.ids import ConversationId, SessionId
from agentic_rag.base.messages import text_block
from agentic_rag.runtime.core.window import memory_of
from agentic_rag.runtime.transcript_cache import TranscriptCache
from agentic_rag.store import sessions
from agentic_rag.store.clock import now
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.scripted import ScriptedModel
from tests.runtime.harness import SESSION, bench
from tests.runtime.test_append_only import ask, brain, open_world

MANY = 300
SIGNED = ("signature", "data")


@dataclass
class Kept:
    """A session of the property below."""

    id: SessionId
    idle: bool = True
    loaded: bool = True

    def unload(self) -> None:
        self.loaded = False


uses = st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans())


@given(st.lists(uses, max_size=30), st.integers(0, 60))
def test_the_transcript_cache_keeps_recently_used_entries_within_its_limit(
    said: Sequence[tuple[int, int, bool]], most: int
) -> None:
    made = [Kept(SessionId(f"sess_{number}")) for number in range(6)]
    kept = TranscriptCache(most)
    sizes: dict[int, int] = {}
    used: set[int] = set()
    for number, size, busy in said:
        if busy:
            made[number].idle = False
            kept.forget(made[number].id)
            sizes.pop(number, None)
            continue
        made[number].idle = made[number].loaded = True
        kept.keep(made[number], size)
        sizes.pop(number, None)
        sizes[number] = size
        while sum(sizes.values()) > most and len(sizes) > 1:
            del sizes[next(iter(sizes))]
        assert kept.size == sum(sizes.values())
        assert all(made[each].loaded for each in sizes)
        used.add(number)
        assert not any(made[each].loaded for each in used - sizes.keys() if made[each].idle)


async def test_a_busy_session_keeps_its_cached_transcript() -> None:
    kept, busy = TranscriptCache(10), Kept(SessionId("sess_busy"))
    kept.keep(busy, 8)
    busy.idle = False
    kept.keep(Kept(SessionId("sess_other")), 8)
    assert busy.loaded
    assert kept.size == 8


async def test_hundreds_of_idle_conversations_stay_in_memory(tmp_path: Path) -> None:
    ids = [SessionId(f"sess_{number}") for number in range(MANY)]

    def create(conn: Connection) -> None:
        for each in ids:
            sessions.create(conn, each, SessionLabels(conversation_id=ConversationId(each)), created_at=now())

    async with ScriptedModel() as model, bench(tmp_path, model) as b:
        await b.database.write(create)
        made = [await b.runtime.session(each) for each in ids]
        assert all(each.loaded for each in made)


async def test_beyond_its_size_a_cache_drops_the_least_recently_used_entry(tmp_path: Path) -> None:
    ids = [SessionId(f"sess_{number}") for number in range(4)]

    def create(conn: Connection) -> None:
        for each in ids:
            sessions.create(conn, each, SessionLabels(conversation_id=ConversationId(each)), created_at=now())

    async with ScriptedModel() as model, bench(tmp_path, model, transcript_bytes=6_500) as b:
        await b.database.write(create)
        made = [await b.runtime.session(ids[place]) for place in (0, 1, 2, 0, 3)]
        assert [each.loaded for each in (made[0], made[1], made[2], made[4])] == [True, False, True, True]


@pytest.mark.parametrize("seed", range(3))
async def test_a_conversation_that_is_let_go_at_random_says_what_one_in_memory_says(tmp_path: Path, seed: int) -> None:
    """Histories and requests are equal."""
    chance = Random(seed)
    evicted = [chance.random() < 0.6 for _ in range(6)]
    assert any(evicted)
    histories, requests = [], []
    for letting_go in (False, True):
        folder = tmp_path / str(letting_go)
        folder.mkdir()
        async with FakeMessagesAPI(then=brain) as api, open_world(folder, api) as (b, world):
            for number, goes in enumerate(evicted):
                await ask(b, world, f"Question {number}?")
                live = await b.runtime.session(SESSION)
                with anyio.fail_after(240):
                    while not live.idle:
                        await live.change()
                if letting_go and goes:
                    live.unload()
                assert live.loaded != (letting_go and goes)
            histories.append([(each["role"], _said(each["content"])) for each in await b.transcript()])
        requests.append([_said(request) for request in api.requests])
        assert api.refused == []
    assert histories[0] == histories[1]
    assert requests[0] == requests[1]


def _said(content: object) -> object:
    """Return content without its variable parts: ids, and the signatures over them."""
    if isinstance(content, dict):
        return {key: _said(value) for key, value in content.items() if not key.endswith(("id", "ref", *SIGNED))}
    return [_said(each) for each in content] if isinstance(content, list) else content


def test_the_memory_estimate_of_a_value_counts_all_its_texts() -> None:
    words = "w" * 10_000
    weight = memory_of([text_block(words), {"deep": [words + "x"]}])
    assert 20_000 < weight < 21_500
    assert weight > sys.getsizeof(words) * 2
