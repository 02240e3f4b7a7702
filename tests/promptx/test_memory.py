"""One memory: what is saved, what is recalled, and what survives on disk."""

import fcntl
import json
import os
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from mcp_servers.promptx.errors import BadEngram, BadRecall, BadRoleId, BadScope, MemoryUnavailable
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.memory import CLOSER, MAX_OPEN, Memory, MemoryCache, memory_folder
from mcp_servers.promptx.new_engrams import MAX_BATCH, MAX_CONTENT, read_batch
from mcp_servers.promptx.snapshot import NETWORK_LOCK
from mcp_servers.safe_files import Folder

from .conftest import ROLE

NOW = 1_795_300_000_000


def make_engram(**fields: Any) -> dict[str, Any]:
    return {"content": "the notice period is two months", "schema": "contract notice period", "strength": 0.7} | {
        "type": "ATOMIC",
        **fields,
    }


def remember(memory: Memory, batch: list[Any], now_ms: int) -> list[Engram]:
    return list(memory.remember(read_batch(batch), now_ms).saved)


def read_network(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "network.json").read_text("utf-8"))
    return content


def read_rows(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "engrams.db") as connection:
        result = connection.execute(sql).fetchall()
    connection.close()
    return result


def test_a_memory_is_stored_in_promptx_columns(tmp_path: Path) -> None:
    [engram_saved] = remember(
        Memory(Folder(tmp_path / ROLE)), [make_engram(schema="合同 - notice - 合同", strength=0)], NOW
    )
    stamp, _, suffix = engram_saved.id.partition("_")
    assert stamp == str(NOW)
    assert len(suffix) == 9
    assert set(suffix) <= set("0123456789abcdefghijklmnopqrstuvwxyz")
    assert read_rows(tmp_path / ROLE, "SELECT * FROM engrams") == [
        (engram_saved.id, engram_saved.content, '["合同","notice","合同"]', "ATOMIC", NOW, 0.0, "{}")
    ]
    assert read_rows(tmp_path / ROLE, "SELECT * FROM cue_index") == [
        ("合同", engram_saved.id),
        ("notice", engram_saved.id),
    ]
    assert read_rows(tmp_path / ROLE, "PRAGMA journal_mode") == [("wal",)]


def test_strength_zero_is_stored_as_zero_and_raised_only_in_the_weight(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    remember(memory, [make_engram(schema="a b", strength=0)], NOW)
    recollection = memory.recall("a", "balanced", NOW)
    assert recollection.engrams[0].strength == 0
    assert recollection.edges[1].weight == NOW * 0.8


BAD_ENGRAMS = {
    "one keyword": (make_engram(schema="alone"), "schema gives 1 keyword(s), at least 2 are needed."),
    "strength above 1": (make_engram(strength=1.01), "strength must be a number from 0 to 1."),
    "negative strength": (make_engram(strength=-0.1), "strength must be a number from 0 to 1."),
    "strength as text": (make_engram(strength="0.5"), "strength must be a number from 0 to 1."),
    "strength as truth": (make_engram(strength=True), "strength must be a number from 0 to 1."),
    "strength not a number": (make_engram(strength=float("nan")), "strength must be a number from 0 to 1."),
    "strength beyond floats": (make_engram(strength=10**400), "strength must be a number from 0 to 1."),
    "unknown type": (make_engram(type="FACT"), "type must be ATOMIC, LINK or PATTERN, not 'FACT'."),
    "no type": ({"content": "c", "schema": "a b", "strength": 1}, "type must be ATOMIC, LINK or PATTERN, not 'None'."),
    "blank content": (make_engram(content=" \n"), "content must be text that is not empty."),
    "content as number": (make_engram(content=5), "content must be text that is not empty."),
    "a megabyte": (make_engram(content="x" * 1_000_000), f"content has 1000000 characters, {MAX_CONTENT} are allowed."),
    "schema as list": (make_engram(schema=["a", "b"]), "schema must be text"),
    "endless schema": (make_engram(schema="a b " * 5000), "schema is too long"),
    "NUL": (make_engram(content="a\0b"), "content or schema contains NUL or a lone surrogate"),
    "lone surrogate": (make_engram(schema="a \ud800"), "content or schema contains NUL or a lone surrogate"),
    "not an object": ("a b", "must be an object"),
}


@pytest.mark.parametrize("case", BAD_ENGRAMS)
def test_a_bad_engram_names_its_index_and_none_of_the_batch_is_saved(tmp_path: Path, case: str) -> None:
    bad_engram, reason = BAD_ENGRAMS[case]
    memory = Memory(Folder(tmp_path / ROLE))
    with pytest.raises(BadEngram) as exc_info:
        remember(memory, [make_engram(), bad_engram, make_engram()], NOW)
    assert exc_info.value.index == 1
    assert exc_info.value.reason.startswith(reason)
    assert str(exc_info.value).startswith("engrams[1]: ")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_batch_and_an_endless_one_are_refused(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    with pytest.raises(BadEngram, match="the batch is empty"):
        remember(memory, [], NOW)
    with pytest.raises(BadEngram, match="at most 100"):
        remember(memory, [make_engram()] * (MAX_BATCH + 1), NOW)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("query", "mode", "field"),
    [
        ("a", "wild", "mode"),
        ("a\0", "balanced", "query"),
        (["\udfff"], "balanced", "query"),
        ("a" * 3000, "focused", "query"),
    ],
)
def test_a_bad_recall_names_the_field(tmp_path: Path, query: str | list[str], mode: str, field: str) -> None:
    with pytest.raises(BadRecall) as exc_info:
        Memory(Folder(tmp_path / ROLE)).recall(query, mode, NOW)
    assert exc_info.value.field == field


def test_a_recall_from_an_empty_memory_creates_nothing(tmp_path: Path) -> None:
    recollection = Memory(Folder(tmp_path / ROLE)).recall("a", "balanced", NOW)
    assert (recollection.mind.activated, recollection.engrams, recollection.overview) == (["mind"], (), ())
    assert list(tmp_path.iterdir()) == []


def test_without_a_query_the_strongest_memories_follow_the_map_within_a_budget(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    remember(memory, [make_engram(content=f"{n} " * 500, strength=n / 10) for n in range(10)], NOW)
    recollection = memory.recall(None, "balanced", NOW)
    assert recollection.engrams == ()
    assert [recalled.strength for recalled in recollection.overview] == [0.9, 0.8, 0.7, 0.6]
    assert recollection.mind.activated == ["mind", "contract", "notice", "period"]


def test_a_query_without_a_cue_returns_the_map_and_is_marked(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    remember(memory, [make_engram()], NOW)
    recollection = memory.recall("weather", "balanced", NOW)
    assert (recollection.fallback, recollection.engrams, len(recollection.overview)) == ("dmn", (), 1)


def test_a_chinese_sentence_finds_the_cues_it_contains(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    remember(memory, [make_engram(schema="合同期限 续签", content="合同期限为两年")], NOW)
    recollection = memory.recall("请问合同期限是多久？", "balanced", NOW)
    assert (recollection.fallback, recollection.center) == ("contained", "合同期限")
    assert [recalled.content for recalled in recollection.engrams] == ["合同期限为两年"]


def test_recall_counts_reach_the_file_by_the_next_remember_and_survive_a_restart(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    remember(memory, [make_engram(schema="a b")], NOW)
    memory.save()
    memory.recall("a", "balanced", NOW)
    memory.recall("a", "balanced", NOW)
    remember(memory, [make_engram(schema="c d")], NOW + 1)
    memory.save()
    memory.close()
    memory.recall("b", "balanced", NOW)
    memory.save()
    counts = {word: cue["recallFrequency"] for word, cue in read_network(memory.folder.path)["cues"].items()}
    assert counts == {"a": 6, "b": 6, "c": 2, "d": 2}  # the last recall fell back to the hubs: all four


def test_counts_saved_by_another_process_are_added(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    remember(memory, [make_engram(schema="a b")], NOW)
    memory.save()
    memory.recall("a", "balanced", NOW)
    content = read_network(memory.folder.path)
    content["cues"]["a"]["recallFrequency"] = 10
    (memory.folder.path / "network.json").write_text(json.dumps(content, indent=2), "utf-8")
    memory.save()
    assert read_network(memory.folder.path)["cues"]["a"]["recallFrequency"] == 12


def test_the_network_file_names_the_newest_engram_and_lists_integers_first(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    first, second = remember(memory, [make_engram(schema="b 10 a"), make_engram(schema="9 b")], NOW)
    memory.save()
    content = read_network(memory.folder.path)
    assert list(content) == ["version", "timestamp", "newestEngram", "cues"]
    assert content["newestEngram"] == second.id
    assert list(content["cues"]) == ["9", "10", "b", "a"]
    assert content["cues"]["b"] == {
        "word": "b",
        "connections": [{"target": "10", "weight": NOW * 0.7}],
        "recallFrequency": 0,
        "memories": [first.id, second.id],
    }


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cues": {"a": 1}}', "\udcff", "{}" * 100])
def test_a_corrupt_network_is_rebuilt_from_the_engrams(recorded_folder: Path, damage: str) -> None:
    memory = Memory(Folder(recorded_folder))
    expected = memory.recall(None, "balanced", NOW).mindmap
    memory.close()
    (recorded_folder / "network.json").write_bytes(damage.encode("utf-8", "surrogateescape"))
    assert memory.recall(None, "balanced", NOW).mindmap == expected
    memory.save()
    assert len(read_network(recorded_folder)["cues"]) == 28


def test_a_network_truncated_at_any_line_is_rebuilt_from_the_engrams(recorded_folder: Path) -> None:
    lines = (recorded_folder / "network.json").read_text("utf-8").splitlines(keepends=True)
    for line_count in range(0, len(lines), 97):
        (recorded_folder / "network.json").write_text("".join(lines[:line_count]), "utf-8")
        assert len(Memory(Folder(recorded_folder)).recall(None, "balanced", NOW).mind.activated) > 15


def test_an_outdated_network_is_completed_and_keeps_its_counts(recorded_folder: Path) -> None:
    content = read_network(recorded_folder)
    first_cues = dict(list(content["cues"].items())[:5])
    # The outdated file is also on one line.
    (recorded_folder / "network.json").write_text(json.dumps(content | {"cues": first_cues}), "utf-8")
    Memory(Folder(recorded_folder)).save()
    cues = read_network(recorded_folder)["cues"]
    assert len(cues) == 28
    assert {word: cue["recallFrequency"] for word, cue in cues.items() if cue["recallFrequency"]} == {
        word: cue["recallFrequency"] for word, cue in first_cues.items()
    }


def test_a_deleted_memory_leaves_database_network_and_state(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    first, second = remember(memory, [make_engram(schema="secret word"), make_engram(schema="word other")], NOW)
    memory.recall("secret", "balanced", NOW)
    assert memory.delete([first.id, "unknown"]) == 1
    assert memory.export()[0].id == second.id
    assert list(read_network(memory.folder.path)["cues"]) == ["word", "other"]
    assert not (memory.folder.path / "state.json").exists()
    assert memory.recall("secret", "balanced", NOW).fallback == "dmn"
    assert read_rows(memory.folder.path, "SELECT DISTINCT engram_id FROM cue_index") == [(second.id,)]
    assert not any(b"secret" in path.read_bytes() for path in memory.folder.path.iterdir())


def test_deleting_from_an_empty_memory_creates_nothing(tmp_path: Path) -> None:
    assert Memory(Folder(tmp_path / ROLE)).delete(["1"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_browsing_pages_from_the_newest_and_searches_content_and_keywords(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    for number in range(5):
        remember(memory, [make_engram(content=f"Number {number}", schema=f"key{number} 关键词")], NOW + number)
    page = memory.browse(offset=1, limit=2)
    assert (page.total, [stored_engram.content for stored_engram in page.engrams]) == (5, ["Number 3", "Number 2"])
    assert [stored_engram.content for stored_engram in memory.browse(q="number 4").engrams] == ["Number 4"]
    assert memory.browse(q="KEY1").total == 1
    assert memory.browse(q="关键词").total == 5
    assert memory.browse(q="%").total == 0


def test_an_imported_promptx_folder_recalls_like_the_original(recorded_folder: Path, tmp_path: Path) -> None:
    copy = Memory(Folder(tmp_path / "imported"))
    source = Memory(Folder(recorded_folder))
    assert copy.add(source.export(), source.frequencies()) == 72
    assert copy.add(source.export(), source.frequencies()) == 0
    original = source.recall("w03", "creative", NOW)
    imported = copy.recall("w03", "creative", NOW)
    assert (imported.mindmap, imported.engrams, imported.edges) == (original.mindmap, original.engrams, original.edges)
    assert copy.export() == source.export()


def test_a_memory_database_replaced_at_runtime_is_read_again(recorded_folder: Path, tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    remember(memory, [make_engram()], NOW)
    memory.recall(None, "balanced", NOW)
    memory.close()
    memory.recall(None, "balanced", NOW)
    for name in ("engrams.db", "engrams.db-wal", "engrams.db-shm"):
        (memory.folder.path / name).unlink(missing_ok=True)
    (recorded_folder / "engrams.db").rename(memory.folder.path / "engrams.db")
    assert memory.browse().total == 72
    assert "w00" in memory.recall(None, "balanced", NOW).mind.activated


def test_an_invalid_database_is_named_in_the_error(tmp_path: Path) -> None:
    folder = tmp_path / ROLE
    folder.mkdir()
    (folder / "engrams.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(MemoryUnavailable, match="not a database") as exc_info:
        Memory(Folder(folder)).recall(None, "balanced", NOW)
    assert str(tmp_path) not in str(exc_info.value)


def test_a_folder_that_cannot_be_created_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MemoryUnavailable, match="Not a directory"):
        remember(Memory(Folder(tmp_path / "file" / ROLE)), [make_engram()], NOW)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_allows_recall_and_names_itself_when_refusing_remember(recorded_folder: Path) -> None:
    recorded_folder.chmod(0o555)
    memory = Memory(Folder(recorded_folder))
    assert len(memory.recall("w00", "balanced", NOW).engrams) == 50
    with pytest.raises(MemoryUnavailable):
        remember(memory, [make_engram()], NOW)
    assert memory.browse().total == 72
    recorded_folder.chmod(0o755)


def test_threads_of_one_process_lose_nothing(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))

    def remember_ten(name: int) -> None:
        for number in range(10):
            remember(memory, [make_engram(schema=f"shared t{name} n{number}")], NOW + number)
            memory.recall("shared", "focused", NOW)

    threads = [threading.Thread(target=remember_ten, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.browse().total == 40
    memory.save()
    assert set(read_network(memory.folder.path)["cues"]) == {
        "shared",
        *(f"t{n}" for n in range(4)),
        *(f"n{n}" for n in range(10)),
    }


def make_proposal(number: int, content: str = "the notice period is two months") -> Engram:
    return Engram(f"{NOW}_{number:09}", content, "ATOMIC", 0.6, NOW, ("contract", "notice"), proposed=True)


def test_proposals_made_by_several_threads_at_once_are_stored_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    texts = [f"customer{number} wants invoice{number} by post" for number in range(15)]
    barrier = threading.Barrier(4, timeout=240)

    def propose(thread: int) -> int:
        added_count = 0
        for position, text in enumerate(texts):
            barrier.wait()
            added_count += memory.propose([make_proposal(100 * thread + position, text)])
        return added_count

    # Threads alternate after almost every instruction. Without a lock, about half of the texts would be stored twice.
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(propose, range(4))) == len(texts)
    assert memory.browse().total == len(texts)


def test_a_proposal_repeated_in_one_batch_is_stored_once(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    assert memory.propose([make_proposal(1), make_proposal(2)]) == 1
    assert [stored_engram.id for stored_engram in memory.export()] == [make_proposal(1).id]


def test_scopes_have_separate_folders(tmp_path: Path) -> None:
    assert memory_folder(tmp_path, "domain", None, "助手").path == tmp_path / ".promptx/cognition/助手"
    assert memory_folder(tmp_path, "user", "a.b@c", ROLE).path == tmp_path / ".promptx/cognition.user/a%2Eb%40c" / ROLE


@pytest.mark.parametrize("user", ["alice", "Alice", "a b", "用户", "100%", "a%2Eb", "~", "..x", "a.b@example.com"])
def test_user_ids_and_folders_map_one_to_one_even_on_case_insensitive_disks(user: str) -> None:
    name = memory_folder(Path("/w"), "user", user, ROLE).parent.name
    assert unquote(name) == user
    other_ids = {"alice", "Alice", "a.b", "a%2Eb"} - {user}
    assert name.lower() not in {
        memory_folder(Path("/w"), "user", user_id, ROLE).parent.name.lower() for user_id in other_ids
    }


@pytest.mark.parametrize("user", ["", "..", ".", "../x", "a/b", "a\\b", "a\0", "a\nb", "\ud800", "x" * 300])
def test_a_user_id_that_is_a_path_or_not_text_is_refused(user: str) -> None:
    with pytest.raises(BadScope):
        memory_folder(Path("/w"), "user", user, ROLE)


@pytest.mark.parametrize("role", ["", "..", "../x", "a/b", ".hidden", "a\0", "a\n", "\ud800", "x" * 65])
def test_a_role_name_that_is_not_an_id_has_no_memory(role: str) -> None:
    with pytest.raises(BadRoleId):
        memory_folder(Path("/w"), "domain", None, role)


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(BadScope, match="must be 'domain' or 'user'"):
        memory_folder(Path("/w"), "../x", None, ROLE)


def read_cues(folder: Path) -> list[str]:
    return list(read_network(folder)["cues"])


def test_the_network_file_never_lacks_more_than_a_tenth_of_the_engrams(tmp_path: Path) -> None:
    memory = Memory(Folder(tmp_path / ROLE))
    for number in range(60):
        remember(memory, [make_engram(schema=f"a{number} b{number}")], NOW + number)
        assert 2 * (number + 1) - len(read_cues(memory.folder.path)) <= 2 * (number + 1) / 10
    assert len(read_cues(memory.folder.path)) < 120  # not written each time
    memory.close()
    assert len(read_cues(memory.folder.path)) == 120


def test_an_outdated_network_file_is_completed_when_the_memory_is_closed(
    tmp_path: Path,
) -> None:
    unsaved = Memory(Folder(tmp_path / ROLE))
    for number in range(12):
        remember(unsaved, [make_engram(schema=f"a{number} b{number}")], NOW + number)
    assert len(read_cues(unsaved.folder.path)) < 24
    memory = Memory(Folder(tmp_path / ROLE))
    memory.recall("a1", "balanced", NOW)
    memory.close()
    assert len(read_cues(memory.folder.path)) == 24


def test_a_memory_evicted_from_the_cache_leaves_a_complete_network_file(tmp_path: Path) -> None:
    shelf = MemoryCache()
    memory = shelf.memory(Folder(tmp_path / ROLE))
    for number in range(12):
        remember(memory, [make_engram(schema=f"a{number} b{number}")], NOW + number)
    assert len(read_cues(memory.folder.path)) < 24
    for number in range(MAX_OPEN):
        shelf.memory(Folder(tmp_path / str(number)))
    assert len(read_cues(memory.folder.path)) == 24
    shelf.close()


def test_a_memory_on_a_hanging_folder_delays_no_other(tmp_path: Path) -> None:
    cache = MemoryCache()
    memory = cache.memory(Folder(tmp_path / ROLE))
    for number in range(12):
        remember(memory, [make_engram(schema=f"a{number} b{number}")], NOW + number)
    memory.save_if_behind()
    with (memory.folder.path / NETWORK_LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in range(MAX_OPEN):
            cache.memory(Folder(tmp_path / str(number)))
        assert len(read_cues(memory.folder.path)) < 24
    for thread in threading.enumerate():
        if thread.name == CLOSER:
            thread.join(30)
    assert len(read_cues(memory.folder.path)) == 24
    cache.close()
