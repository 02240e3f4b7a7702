"""Both stores of memories: PromptX's files, and the database that servers share."""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
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
    found: Ground = request.getfixturevalue(request.param)
    return found


def new(content: str, schema: str = "home city", replaces: str = "") -> NewEngram:
    return NewEngram(content, schema, 0.5, "ATOMIC", replaces)


def save(memory: Memory, engram: NewEngram, now: int = NOW, author: str = "") -> str:
    [saved] = memory.remember([engram], now, author=author).saved
    return saved.id


def shown(memory: Memory, query: str | None) -> set[str]:
    found = memory.recall(query, "balanced", NOW)
    return {each.content for each in (*found.engrams, *found.answer, *found.overview)}


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
        found = memory.recall(case["query"], case["mode"] or "balanced", case["now_ms"], counted=False)
        assert found.mind.activated == case["activated_cues"]
        assert [[edge.source, edge.target, edge.weight] for edge in found.edges] == case["connections"]
        assert [engram.content for engram in found.engrams] == case["engrams_in_order"]
        assert list(found.mindmap) == case["mindmap"]
    assert len(CASES) == 24


@pytest.mark.parametrize("query", ["home", "LIVES", None])
def test_a_memory_saved_or_replaced_on_one_server_is_recalled_on_another_at_once(
    ground: Ground, query: str | None
) -> None:
    one, other = ground.memory(), ground.memory()
    assert shown(other, query) == set()
    old = save(one, new("lives in Berlin"))
    assert shown(other, query) == {"lives in Berlin"}
    newest = save(other, new("lives in Paris", replaces=old), NOW + 1)
    assert shown(one, query) == {"lives in Paris"}
    [kept] = one.browse(which="replaced").engrams
    assert (kept.id, kept.content, kept.replaced_by) == (old, "lives in Berlin", newest)
    assert [each.id for each in other.lineage(newest)] == [newest, old]
    one.forget(newest)
    assert shown(other, query) == set()
    assert other.export() == []


def test_refusals_are_the_same_and_leave_nothing(ground: Ground) -> None:
    memory = ground.memory()
    old = save(memory, new("lives in Berlin"), author="anna")
    with pytest.raises(UnknownReplaced):
        memory.remember([new("a b"), new("lives in Rome", replaces="nothing")], NOW)
    with pytest.raises(NotYours):
        memory.remember([new("lives in Rome", replaces=old)], NOW, author="ben", own_only=True)
    with pytest.raises(MemoryFull):
        memory.remember([new("has a cat", "pet cat"), new("has a dog", "pet dog")], NOW, limit=2)
    save(memory, new("lives in Paris", replaces=old))
    with pytest.raises(BadEngram, match="was replaced before"):
        memory.remember([new("has a cat", "pet cat"), new("lives in Rome", replaces=old)], NOW)
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
    first = save(memory, new("Anna lives in Berlin", "Anna home Berlin"))
    again = memory.remember([new("Anna lives in Berlin", "Anna home Berlin")], NOW + 1)
    assert ([duplicate.id for duplicate in again.duplicates], again.saved) == ([first], ())
    near = memory.remember([new("Anna lives in Berlin now", "Anna home Berlin")], NOW + 2)
    assert [[old.id for old in each.similar] for each in near.near] == [[first]]


def test_a_page_of_hits_equals_that_part_of_the_whole_list(ground: Ground) -> None:
    memory = ground.memory()
    memory.add(_sample(), {})
    wanted: list[tuple[str, Which]] = [
        ("", "all"),
        ("ANNA", "current"),
        ("ü", "all"),
        ("Ü", "all"),
        ('"tea"', "current"),
        ("%", "all"),
        ("", "proposed"),
    ]
    found = {each: [engram.id for engram in memory.browse(0, 50, each[0], each[1]).engrams] for each in wanted}
    assert found == {
        ("", "all"): ["e4", "e3", "e2", "e1"],
        ("ANNA", "current"): ["e1"],
        ("ü", "all"): ["e3"],
        ("Ü", "all"): ["e2"],
        ('"tea"', "current"): ["e1"],
        ("%", "all"): [],
        ("", "proposed"): ["e4"],
    }
    page = memory.browse(1, 2, "", "all")
    assert ([each.id for each in page.engrams], page.total) == (["e3", "e2"], 4)


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
    assert memory.add([replace(each, content="other") for each in _sample()], {"tea": 2}) == 0
    other = ground.memory()
    assert other.export() == _sample()
    assert other.frequencies() == {"tea": 3}
    other.recall("tea", "focused", NOW)
    other.save()
    assert ground.memory().frequencies()["tea"] == 3 + RECALL_STEP
    other.delete(["e1"])
    assert "tea" not in ground.memory().frequencies()


def test_memories_of_users_roles_and_the_domain_are_separate_and_deleted_together(ground: Ground) -> None:
    shelf = ground.shelf()
    places = [(ROLE, ""), ("law", ""), (ROLE, "anna"), (ROLE, "a.b %41 ß"), ("law", "anna")]
    for role, user in places:
        save(ground.memory(shelf, role, user), new(f"told {role} {user}"))
    for role, user in places:
        assert [each.content for each in ground.memory(shelf, role, user).export()] == [f"told {role} {user}"]
    of_anna = memory_folder(ground.workspace, "user", "anna", "any").parent
    assert sorted(shelf.roles(of_anna)) == [ROLE, "law"]
    shelf.remove(of_anna)
    assert [shelf.roles(of_anna), ground.memory(ground.shelf(), ROLE, "anna").export()] == [[], []]
    assert not shelf.has(memory_folder(ground.workspace, "user", "anna", ROLE))
    assert len(ground.memory(shelf, "law").export()) == 1


def test_two_servers_remembering_for_one_role_at_once_lose_nothing(ground: Ground) -> None:
    memories = [ground.memory(), ground.memory()]

    def tell(number: int) -> None:
        for each in range(12):
            memories[number].remember([new(f"said {number} {each}", f"n{number} w{number}x{each}")], NOW + each)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(tell, (0, 1)))
    memory = ground.memory()
    assert memory.browse().total == 24
    words = ["n0", "n1", *(f"w{number}x{each}" for number in (0, 1) for each in range(12))]
    assert set(memory.recall(words, "focused", NOW).mind.activated) == {"mind", *words}
    assert {each.content for each in memories[0].export()} == {each.content for each in memories[1].export()}


# --- both stores --------------------------------------------------------------------------------------------


class Twins:
    """The same memory in both stores, which receive the same calls."""

    def __init__(self, files: Ground, server: Ground) -> None:
        self.grounds = (files, server)
        self.shelves = [each.shelf() for each in self.grounds]

    def both(self, seed: int, work: Callable[[Memory], Any]) -> Any:
        """Make the same call on both, with the same new ids, and return both answers."""
        said = []
        for ground, shelf in zip(self.grounds, self.shelves, strict=True):
            random.seed(seed)
            said.append(work(ground.memory(shelf)))
        assert said[0] == said[1]
        return said[0]

    def restart(self) -> None:
        for shelf in self.shelves:
            shelf.close()


@needs_postgresql
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly("one seed runs every time")) for seed in (1, 2, 3))]
)
def test_file_and_database_memories_stay_equal_under_any_operations(files: Ground, server: Ground, seed: int) -> None:
    choose = random.Random(seed)
    twins = Twins(files, server)
    for step in range(30):
        now = NOW + choose.choice([step, -step, 0])
        ids: list[str] = [each.id for each in twins.both(0, Memory.export)]
        current = [engram.id for engram in twins.both(0, Memory.browse).engrams]
        cues = choose.choices(WORDS, k=choose.randint(2, 5))
        told = NewEngram(" ".join(choose.choices(WORDS, k=3)), " ".join(cues), choose.random(), "LINK")
        act = choose.random()
        if act < 0.15 and current:
            told = replace(told, replaces=choose.choice(current))
        twins.both(step, partial(_act, act, told, ids, now))
        if 0.75 <= act < 0.8:
            twins.restart()
        query = choose.choice([None, choose.choice(WORDS), cues, "nowhere tea", "ANNA"])
        twins.both(0, partial(_look, query, choose.choice(["focused", "balanced", "creative"])))
        twins.both(0, Memory.frequencies)
    twins.both(0, Memory.save)
    twins.restart()
    twins.both(0, Memory.export)
    twins.both(0, Memory.frequencies)
    twins.both(0, partial(_look, None, "creative"))


def _act(act: float, told: NewEngram, ids: list[str], now: int, memory: Memory) -> object:
    if act < 0.6:
        return memory.remember([told], now)
    if act < 0.7:
        return memory.delete(ids[:2])
    engram = Engram(f"i{now}", told.content, "PATTERN", 0.5, now, tuple(told.schema.split()), proposed=True)
    return memory.propose([engram]) if act < 0.75 else None


def _look(query: str | list[str] | None, mode: str, memory: Memory) -> object:
    found = memory.recall(query, mode, NOW)
    return found.mind, found.center, found.fallback, found.engrams, found.answer, found.overview, found.mindmap


# --- PromptX's files in a workspace of a server that shares a store -----------------------------------------


@needs_postgresql
def test_a_workspace_file_is_imported_into_the_database_once(server: Ground, tmp_path: Path) -> None:
    lay_recorded(server)
    folder = memory_folder(server.workspace, "domain", None, ROLE)
    kept = shutil.copytree(folder.path, tmp_path / "kept")
    before = Memory(folder)
    engrams, counts = before.export(), before.frequencies()
    before.close()
    shelf = server.shelf()
    assert shelf.roles(folder.parent) == [ROLE]
    assert (server.memory(shelf).export(), server.memory(shelf).frequencies()) == (engrams, counts)
    assert not has_memory(folder)
    assert not [entry.name for entry in folder.entries() if not entry.name.startswith(".")]
    for name in ("engrams.db", "network.json"):  # the state after a kill between the commit and the file's removal
        shutil.copyfile(kept / name, folder.path / name)
    again = server.memory(server.shelf())
    assert (again.export(), again.frequencies()) == (engrams, counts)
    again.forget(engrams[0].id)
    assert engrams[0].id not in {each.id for each in server.memory(server.shelf()).export()}


@needs_postgresql
def test_two_servers_import_a_file_at_once(server: Ground) -> None:
    lay_recorded(server)
    shelves: list[MemoryCache] = [server.shelf(), server.shelf()]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda shelf: server.memory(shelf).export(), shelves))
    assert found[0] == found[1]
    assert len(found[0]) > 50


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
        told = [process.stdout.readline() for _ in range(5)] if not place else []
        if not place:
            process.kill()
        told += process.stdout.readlines()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    memory = server.memory()
    engrams = memory.export()
    assert len(engrams) % SIZE == 0
    assert len(engrams) >= SIZE * len(told) > 0
    words = list(dict.fromkeys(cue for engram in engrams for cue in engram.cues))
    assert set(memory.recall(words, "focused", NOW).mind.activated) == {"mind", *words}
    save(memory, new("and goes on"))
    assert server.memory().browse().total == len(engrams) + 1
