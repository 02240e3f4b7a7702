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

SESSION_COUNT = 300
SIGNATURE_KEYS = ("signature", "data")


@dataclass
class CachedEntry:
    """A session of the property below."""

    id: SessionId
    idle: bool = True
    loaded: bool = True

    def unload(self) -> None:
        self.loaded = False


uses = st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans())


@given(st.lists(uses, max_size=30), st.integers(0, 60))
def test_the_transcript_cache_keeps_recently_used_entries_within_its_limit(
    accesses: Sequence[tuple[int, int, bool]], most: int
) -> None:
    entries = [CachedEntry(SessionId(f"sess_{number}")) for number in range(6)]
    cache = TranscriptCache(most)
    sizes: dict[int, int] = {}
    used_numbers: set[int] = set()
    for number, size, is_busy in accesses:
        if is_busy:
            entries[number].idle = False
            cache.forget(entries[number].id)
            sizes.pop(number, None)
            continue
        entries[number].idle = entries[number].loaded = True
        cache.keep(entries[number], size)
        sizes.pop(number, None)
        sizes[number] = size
        while sum(sizes.values()) > most and len(sizes) > 1:
            del sizes[next(iter(sizes))]
        assert cache.size == sum(sizes.values())
        assert all(entries[index].loaded for index in sizes)
        used_numbers.add(number)
        assert not any(entries[index].loaded for index in used_numbers - sizes.keys() if entries[index].idle)


async def test_a_busy_session_keeps_its_cached_transcript() -> None:
    cache, busy_entry = TranscriptCache(10), CachedEntry(SessionId("sess_busy"))
    cache.keep(busy_entry, 8)
    busy_entry.idle = False
    cache.keep(CachedEntry(SessionId("sess_other")), 8)
    assert busy_entry.loaded
    assert cache.size == 8


async def test_hundreds_of_idle_conversations_stay_in_memory(tmp_path: Path) -> None:
    ids = [SessionId(f"sess_{number}") for number in range(SESSION_COUNT)]

    def create(conn: Connection) -> None:
        for session_id in ids:
            sessions.create(
                conn, session_id, SessionLabels(conversation_id=ConversationId(session_id)), created_at=now()
            )

    async with ScriptedModel() as model, bench(tmp_path, model) as b:
        await b.database.write(create)
        loaded_sessions = [await b.runtime.session(session_id) for session_id in ids]
        assert all(session.loaded for session in loaded_sessions)


async def test_beyond_its_size_a_cache_drops_the_least_recently_used_entry(tmp_path: Path) -> None:
    ids = [SessionId(f"sess_{number}") for number in range(4)]

    def create(conn: Connection) -> None:
        for session_id in ids:
            sessions.create(
                conn, session_id, SessionLabels(conversation_id=ConversationId(session_id)), created_at=now()
            )

    async with ScriptedModel() as model, bench(tmp_path, model, transcript_bytes=6_500) as b:
        await b.database.write(create)
        loaded_sessions = [await b.runtime.session(ids[index]) for index in (0, 1, 2, 0, 3)]
        assert [
            session.loaded
            for session in (loaded_sessions[0], loaded_sessions[1], loaded_sessions[2], loaded_sessions[4])
        ] == [True, False, True, True]


@pytest.mark.parametrize("seed", range(3))
async def test_a_conversation_that_is_let_go_at_random_says_what_one_in_memory_says(tmp_path: Path, seed: int) -> None:
    """Histories and requests are equal."""
    rng = Random(seed)
    evictions = [rng.random() < 0.6 for _ in range(6)]
    assert any(evictions)
    histories, requests = [], []
    for evicting in (False, True):
        folder = tmp_path / str(evicting)
        folder.mkdir()
        async with FakeMessagesAPI(then=brain) as api, open_world(folder, api) as (b, world):
            for number, evicts in enumerate(evictions):
                await ask(b, world, f"Question {number}?")
                session = await b.runtime.session(SESSION)
                with anyio.fail_after(240):
                    while not session.idle:
                        await session.change()
                if evicting and evicts:
                    session.unload()
                assert session.loaded != (evicting and evicts)
            histories.append([(message["role"], _without_ids(message["content"])) for message in await b.transcript()])
        requests.append([_without_ids(request) for request in api.requests])
        assert api.refused == []
    assert histories[0] == histories[1]
    assert requests[0] == requests[1]


def _without_ids(content: object) -> object:
    """Return content without its variable parts: ids, and the signatures over them."""
    if isinstance(content, dict):
        return {
            key: _without_ids(value)
            for key, value in content.items()
            if not key.endswith(("id", "ref", *SIGNATURE_KEYS))
        }
    return [_without_ids(member) for member in content] if isinstance(content, list) else content


def test_the_memory_estimate_of_a_value_counts_all_its_texts() -> None:
    text = "w" * 10_000
    weight = memory_of([text_block(text), {"deep": [text + "x"]}])
    assert 20_000 < weight < 21_500
    assert weight > sys.getsizeof(text) * 2
