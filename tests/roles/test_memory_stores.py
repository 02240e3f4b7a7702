"""Both stores of memories: PromptX's files, and the database that servers share."""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.promptx.errors import BadEngram, MemoryFull, NotYours, UnknownMemory, UnknownReplaced
from mcp_servers.promptx.ledger import Engram, Which, has_memory
from mcp_servers.promptx.memory import Memory, MemoryCache, memory_folder
from mcp_servers.promptx.memory_cache import EngramLedger
from mcp_servers.promptx.network import RECALL_STEP
from mcp_servers.promptx.new_engrams import NewEngram
from tests.programs import Program
from tests.promptx.conftest import DATA
from tests.store.conftest import needs_postgresql, postgresql_url

from .memory_stores import ROLE, Ground, prepare
from .memory_victim import SIZE

__all__ = ["postgresql_url"]
PATIENCE = 240
ROOT = Path(__file__).parents[2]
NOW = 1_795_300_000_000
CASES: list[dict[str, Any]] = json.loads((DATA / "cases.json").read_text("utf-8"))
_ON_SERVER = [needs_postgresql, pytest.mark.xdist_group("postgresql_url")]
WORDS = ["tea", "green", "home", "city", "Anna", "pump", "茶", "2020", "Ünïcode"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def files(tmp_path: Path, stack: ExitStack) -> Ground:
    return Ground(tmp_path / "files", stack)


@pytest.fixture
def server(tmp_path: Path, stack: ExitStack, postgresql_url: str) -> Ground:
    prepare(postgresql_url, tmp_path / "server")
    return Ground(tmp_path / "server", stack, postgresql_url)


@pytest.fixture(params=["files", pytest.param("server", marks=_ON_SERVER)])
def ground(request: pytest.FixtureRequest) -> Ground:
    chosen: Ground = request.getfixturevalue(request.param)
    return chosen


def new_engram(content: str, schema: str = "home city", replaces: str = "") -> NewEngram:
    return NewEngram(content, schema, 0.5, "ATOMIC", replaces)


class InterruptedLedger:
    """A ledger in which another server saves an engram between the first comparison and its write."""

    def __init__(self, ledger: EngramLedger, interrupt: Callable[[], object]) -> None:
        self._ledger = ledger
        self._interrupts = [interrupt]

    def near(self, words: Sequence[str]) -> list[Engram]:
        engrams = self._ledger.near(words)
        while self._interrupts:
            self._interrupts.pop()()
        return engrams

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


@pytest.mark.parametrize("operation", ["remember", "propose"])
def test_two_servers_that_save_the_same_engram_at_once_store_it_once(ground: Ground, operation: str) -> None:
    def save(memory: Memory, place: int) -> None:
        if operation == "remember":
            memory.remember([new_engram("Anna lives in Graz.")], NOW + place)
        else:
            proposal = Engram(f"{NOW}_{place:09}", "Anna lives in Graz.", "ATOMIC", 0.5, NOW, ("home",), proposed=True)
            memory.propose([proposal])

    cache, first = ground.shelf(), ground.memory()
    storage = cache._stock.place(first.folder)
    writer: Any = InterruptedLedger(storage.writer, lambda: save(first, 1))
    second = Memory(first.folder, replace(storage, writer=writer))
    save(second, 2)
    assert [engram.content for engram in first.export()] == ["Anna lives in Graz."]
    second.close()


def save_engram(memory: Memory, engram: NewEngram, now: int = NOW, author: str = "") -> str:
    [saved] = memory.remember([engram], now, author=author).saved
    return saved.id


def recalled_contents(memory: Memory, query: str | None) -> set[str]:
    recollection = memory.recall(query, "balanced", NOW)
    return {engram.content for engram in (*recollection.engrams, *recollection.answer, *recollection.overview)}


def lay_recorded(ground: Ground) -> None:
    """Copy the memory that was recorded from PromptX into the workspace."""
    folder = memory_folder(ground.workspace, "domain", None, ROLE).path
    folder.mkdir(parents=True)
    for name in ("engrams.db", "network.json"):
        shutil.copyfile(DATA / name, folder / name)


def test_all_recorded_recalls_are_reproduced(ground: Ground) -> None:
    lay_recorded(ground)
    memory = ground.memory()
    for case in CASES:
        recollection = memory.recall(case["query"], case["mode"] or "balanced", case["now_ms"], counted=False)
        assert recollection.mind.activated == case["activated_cues"]
        assert [[edge.source, edge.target, edge.weight] for edge in recollection.edges] == case["connections"]
        assert [engram.content for engram in recollection.engrams] == case["engrams_in_order"]
        assert list(recollection.mindmap) == case["mindmap"]
    assert len(CASES) == 24


@pytest.mark.parametrize("query", ["home", "LIVES", None])
def test_a_memory_saved_or_replaced_on_one_server_is_recalled_on_another_at_once(
    ground: Ground, query: str | None
) -> None:
    first_server, second_server = ground.memory(), ground.memory()
    assert recalled_contents(second_server, query) == set()
    old_id = save_engram(first_server, new_engram("lives in Berlin"))
    assert recalled_contents(second_server, query) == {"lives in Berlin"}
    newest_id = save_engram(second_server, new_engram("lives in Paris", replaces=old_id), NOW + 1)
    assert recalled_contents(first_server, query) == {"lives in Paris"}
    [replaced_engram] = first_server.browse(which="replaced").engrams
    assert (replaced_engram.id, replaced_engram.content, replaced_engram.replaced_by) == (
        old_id,
        "lives in Berlin",
        newest_id,
    )
    assert [engram.id for engram in second_server.lineage(newest_id)] == [newest_id, old_id]
    first_server.forget(newest_id)
    assert recalled_contents(second_server, query) == set()
    assert second_server.export() == []


def test_refusals_are_the_same_and_leave_nothing(ground: Ground) -> None:
    memory = ground.memory()
    old = save_engram(memory, new_engram("lives in Berlin"), author="anna")
    with pytest.raises(UnknownReplaced):
        memory.remember([new_engram("a b"), new_engram("lives in Rome", replaces="nothing")], NOW)
    with pytest.raises(NotYours):
        memory.remember([new_engram("lives in Rome", replaces=old)], NOW, author="ben", own_only=True)
    with pytest.raises(MemoryFull):
        memory.remember([new_engram("has a cat", "pet cat"), new_engram("has a dog", "pet dog")], NOW, limit=2)
    save_engram(memory, new_engram("lives in Paris", replaces=old))
    with pytest.raises(BadEngram, match="was replaced before"):
        memory.remember([new_engram("has a cat", "pet cat"), new_engram("lives in Rome", replaces=old)], NOW)
    with pytest.raises(UnknownMemory):
        memory.forget("nothing")
    with pytest.raises(UnknownMemory):
        memory.forget("\0")
    with pytest.raises(MemoryFull):
        memory.check_room(["other"], 2)
    memory.check_room([old], 2)
    assert len(memory.export()) == 2


def test_known_memories_are_not_saved_again_and_similar_ones_are_named(ground: Ground) -> None:
    memory = ground.memory()
    first_id = save_engram(memory, new_engram("Anna lives in Berlin", "Anna home Berlin"))
    repeated = memory.remember([new_engram("Anna lives in Berlin", "Anna home Berlin")], NOW + 1)
    assert ([duplicate.id for duplicate in repeated.duplicates], repeated.saved) == ([first_id], ())
    outcome = memory.remember([new_engram("Anna lives in Berlin now", "Anna home Berlin")], NOW + 2)
    assert [[old.id for old in group.similar] for group in outcome.near] == [[first_id]]


def test_a_page_of_hits_equals_that_part_of_the_whole_list(ground: Ground) -> None:
    memory = ground.memory()
    memory.add(_sample(), {})
    searches: list[tuple[str, Which]] = [
        ("", "all"),
        ("ANNA", "current"),
        ("ü", "all"),
        ("Ü", "all"),
        ('"tea"', "current"),
        ("%", "all"),
        ("", "proposed"),
    ]
    ids = {search: [engram.id for engram in memory.browse(0, 50, search[0], search[1]).engrams] for search in searches}
    assert ids == {
        ("", "all"): ["e4", "e3", "e2", "e1"],
        ("ANNA", "current"): ["e1"],
        ("ü", "all"): ["e3"],
        ("Ü", "all"): ["e2"],
        ('"tea"', "current"): ["e1"],
        ("%", "all"): [],
        ("", "proposed"): ["e4"],
    }
    page = memory.browse(1, 2, "", "all")
    assert ([engram.id for engram in page.engrams], page.total) == (["e3", "e2"], 4)


def _sample() -> list[Engram]:
    return [
        Engram("e1", "Anna drinks", "ATOMIC", 0.5, 1, ("tea", "green", "tea"), author="anna", turn="t1"),
        Engram("e2", "Übermut", "LINK", 1.0, 2, ("mood", "high")),
        Engram("e3", "für 茶", "PATTERN", 0.0, 3, ("茶", "für")),
        Engram("e4", "proposed", "ATOMIC", 0.25, 3, ("a", "b"), proposed=True),
    ]


def test_an_import_keeps_ids_times_authors_and_counts_without_duplicates(ground: Ground) -> None:
    memory = ground.memory()
    assert memory.add(_sample(), {"tea": 3, "nowhere": 9}) == 4
    memory.save()
    assert memory.add([replace(engram, content="other") for engram in _sample()], {"tea": 2}) == 0
    second_server = ground.memory()
    assert second_server.export() == _sample()
    assert second_server.frequencies() == {"tea": 3}
    second_server.recall("tea", "focused", NOW)
    second_server.save()
    assert ground.memory().frequencies()["tea"] == 3 + RECALL_STEP
    second_server.delete(["e1"])
    assert "tea" not in ground.memory().frequencies()


def test_memories_of_users_roles_and_the_domain_are_separate_and_deleted_together(ground: Ground) -> None:
    cache = ground.shelf()
    places = [(ROLE, ""), ("law", ""), (ROLE, "anna"), (ROLE, "a.b %41 ß"), ("law", "anna")]
    for role, user in places:
        save_engram(ground.memory(cache, role, user), new_engram(f"told {role} {user}"))
    for role, user in places:
        assert [engram.content for engram in ground.memory(cache, role, user).export()] == [f"told {role} {user}"]
    folder_of_anna = memory_folder(ground.workspace, "user", "anna", "any").parent
    assert sorted(cache.roles(folder_of_anna)) == [ROLE, "law"]
    cache.remove(folder_of_anna)
    assert [cache.roles(folder_of_anna), ground.memory(ground.shelf(), ROLE, "anna").export()] == [[], []]
    assert not cache.has(memory_folder(ground.workspace, "user", "anna", ROLE))
    assert len(ground.memory(cache, "law").export()) == 1


def test_two_servers_remembering_for_one_role_at_once_lose_nothing(ground: Ground) -> None:
    memories = [ground.memory(), ground.memory()]

    def remember_twelve(number: int) -> None:
        for step in range(12):
            memories[number].remember([new_engram(f"said {number} {step}", f"n{number} w{number}x{step}")], NOW + step)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(remember_twelve, (0, 1)))
    memory = ground.memory()
    assert memory.browse().total == 24
    words = ["n0", "n1", *(f"w{number}x{step}" for number in (0, 1) for step in range(12))]
    assert set(memory.recall(words, "focused", NOW).mind.activated) == {"mind", *words}
    assert {engram.content for engram in memories[0].export()} == {engram.content for engram in memories[1].export()}


# --- both stores --------------------------------------------------------------------------------------------


class Twins:
    """The same memory in both stores, which receive the same calls."""

    def __init__(self, files: Ground, server: Ground) -> None:
        self.grounds = (files, server)
        self.shelves = [ground.shelf() for ground in self.grounds]

    def both(self, seed: int, work: Callable[[Memory], Any]) -> Any:
        """Make the same call on both, with the same new ids, and return both answers."""
        answers = []
        for ground, cache in zip(self.grounds, self.shelves, strict=True):
            random.seed(seed)
            answers.append(work(ground.memory(cache)))
        assert answers[0] == answers[1]
        return answers[0]

    def restart(self) -> None:
        for cache in self.shelves:
            cache.close()


@needs_postgresql
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly("one seed runs every time")) for seed in (1, 2, 3))]
)
def test_file_and_database_memories_stay_equal_under_any_operations(files: Ground, server: Ground, seed: int) -> None:
    chooser = random.Random(seed)
    twins = Twins(files, server)
    for step in range(30):
        now = NOW + chooser.choice([step, -step, 0])
        ids: list[str] = [engram.id for engram in twins.both(0, Memory.export)]
        current = [engram.id for engram in twins.both(0, Memory.browse).engrams]
        cues = chooser.choices(WORDS, k=chooser.randint(2, 5))
        new_memory = NewEngram(" ".join(chooser.choices(WORDS, k=3)), " ".join(cues), chooser.random(), "LINK")
        action_share = chooser.random()
        if action_share < 0.15 and current:
            new_memory = replace(new_memory, replaces=chooser.choice(current))
        twins.both(step, partial(_change_memory, action_share, new_memory, ids, now))
        if 0.75 <= action_share < 0.8:
            twins.restart()
        query = chooser.choice([None, chooser.choice(WORDS), cues, "nowhere tea", "ANNA"])
        twins.both(0, partial(_recall_parts, query, chooser.choice(["focused", "balanced", "creative"])))
        twins.both(0, Memory.frequencies)
    twins.both(0, Memory.save)
    twins.restart()
    twins.both(0, Memory.export)
    twins.both(0, Memory.frequencies)
    twins.both(0, partial(_recall_parts, None, "creative"))


def _change_memory(action_share: float, new_memory: NewEngram, ids: list[str], now: int, memory: Memory) -> object:
    if action_share < 0.6:
        return memory.remember([new_memory], now)
    if action_share < 0.7:
        return memory.delete(ids[:2])
    engram = Engram(f"i{now}", new_memory.content, "PATTERN", 0.5, now, tuple(new_memory.schema.split()), proposed=True)
    return memory.propose([engram]) if action_share < 0.75 else None


def _recall_parts(query: str | list[str] | None, mode: str, memory: Memory) -> object:
    recollection = memory.recall(query, mode, NOW)
    return (
        recollection.mind,
        recollection.center,
        recollection.fallback,
        recollection.engrams,
        recollection.answer,
        recollection.overview,
        recollection.mindmap,
    )


# --- PromptX's files in a workspace of a server that shares a store -----------------------------------------


@needs_postgresql
def test_a_workspace_file_is_imported_into_the_database_once(server: Ground, tmp_path: Path) -> None:
    lay_recorded(server)
    folder = memory_folder(server.workspace, "domain", None, ROLE)
    copy = shutil.copytree(folder.path, tmp_path / "kept")
    file_memory = Memory(folder)
    engrams, counts = file_memory.export(), file_memory.frequencies()
    file_memory.close()
    cache = server.shelf()
    assert cache.roles(folder.parent) == [ROLE]
    assert (server.memory(cache).export(), server.memory(cache).frequencies()) == (engrams, counts)
    assert not has_memory(folder)
    assert not [entry.name for entry in folder.entries() if not entry.name.startswith(".")]
    for name in ("engrams.db", "network.json"):  # the state after a kill between the commit and the file's removal
        shutil.copyfile(copy / name, folder.path / name)
    second_import = server.memory(server.shelf())
    assert (second_import.export(), second_import.frequencies()) == (engrams, counts)
    second_import.forget(engrams[0].id)
    assert engrams[0].id not in {engram.id for engram in server.memory(server.shelf()).export()}


@needs_postgresql
def test_two_servers_import_a_file_at_once(server: Ground) -> None:
    lay_recorded(server)
    shelves: list[MemoryCache] = [server.shelf(), server.shelf()]
    with ThreadPoolExecutor(2) as threads:
        exports = list(threads.map(lambda cache: server.memory(cache).export(), shelves))
    assert exports[0] == exports[1]
    assert len(exports[0]) > 50


# --- kills -------------------------------------------------------------------------------------------------


@needs_postgresql
@pytest.mark.parametrize(
    "place",
    [
        *("commit.ready", ""),
        pytest.param("commit.begin", marks=pytest.mark.nightly("a kill at a later place runs every time")),
        pytest.param("commit.done", marks=pytest.mark.nightly("a kill at an earlier place runs every time")),
    ],
)
def test_a_killed_server_has_saved_whole_batches_and_all_it_acknowledged(server: Ground, place: str) -> None:
    arguments = [server.url, str(server.workspace), place, "4"]
    victim = "tests.roles.memory_victim"
    with Program(arguments, module=victim, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(5)] if not place else []
        if not place:
            process.kill()
        acknowledged += process.stdout.readlines()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    memory = server.memory()
    engrams = memory.export()
    assert len(engrams) % SIZE == 0
    assert len(engrams) >= SIZE * len(acknowledged) > 0
    words = list(dict.fromkeys(cue for engram in engrams for cue in engram.cues))
    assert set(memory.recall(words, "focused", NOW).mind.activated) == {"mind", *words}
    save_engram(memory, new_engram("and goes on"))
    assert server.memory().browse().total == len(engrams) + 1
