"""Usage, payloads, compactions, evaluation runs and leases on each database."""

import hashlib
import os
import sqlite3
import stat
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection

from agentic_rag.base.errors import LeaseLost, StorageFull
from agentic_rag.base.events import Usage
from agentic_rag.base.ids import DocumentId, SessionId, TurnId
from agentic_rag.store import compactions, documents, domains, evaluation, payloads, sessions, turns, usage
from agentic_rag.store.clock import new_id
from agentic_rag.store.database import Database
from agentic_rag.store.evaluation import RunRecord, RunState
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.statements import sqlite_of

from .records import AT, compaction, document, domain, message, payload, turn, usage_record


async def test_usage_is_read_unchanged_and_summed_by_turn(database: Database) -> None:
    rows = [
        usage_record("usage_1", turn_id="turn_1", step=1),
        usage_record("usage_2", turn_id="turn_1", step=2, agent="a/b"),
    ]
    await database.write(lambda conn: usage.put(conn, [*rows, usage_record("usage_3")]))
    await database.write(lambda conn: usage.put(conn, []))
    assert await database.read(lambda conn: usage.of_session(conn, SessionId("sess_1"))) == [
        *rows,
        usage_record("usage_3"),
    ]
    assert await database.read(lambda conn: usage.of_turn(conn, TurnId("turn_1"))) == Usage(2, 4, 6, 8)
    assert await database.read(lambda conn: usage.of_turn(conn, TurnId("turn_9"))) == Usage()


async def test_a_payload_is_readable_in_its_session_only(database: Database) -> None:
    await database.write(lambda conn: payloads.put(conn, payload()))
    assert await database.read(lambda conn: payloads.get(conn, SessionId("sess_1"), "ref_1")) == payload()
    assert await database.read(lambda conn: payloads.get(conn, SessionId("sess_2"), "ref_1")) is None
    assert await database.read(payloads.all_refs) == {"ref_1"}
    await database.write(lambda conn: payloads.forget(conn, ["ref_1"]))
    assert await database.read(payloads.all_refs) == set()


async def test_the_name_of_a_payload_file_is_on_disk_before_its_record_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    await PayloadFiles(tmp_path / "payloads").write(new_id("ref"), b"data")
    assert synced == [False, True]  # the bytes, then the folder that names them


async def test_more_records_are_forgotten_than_a_statement_has_parameters(database: Database) -> None:
    def forget(conn: Connection) -> None:
        if conn.dialect.name == "sqlite":  # some builds take more than the usual number
            sqlite_of(conn).setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        payloads.put(conn, payload())
        documents.insert(conn, document(lines_joined=True))
        others = [f"no_{number}" for number in range(33_000)]
        payloads.forget(conn, [*others, "ref_1"])
        documents.unmark_joined(conn, "dom_1", [*others, "doc_1"])

    await database.write(forget)
    assert await database.read(payloads.all_refs) == set()
    record = await database.read(lambda conn: documents.get(conn, DocumentId("doc_1")))
    assert record is not None
    assert not record.lines_joined


async def test_a_compaction_covers_the_messages_up_to_its_end(database: Database) -> None:
    head = [{"type": "text", "text": "summary"}]

    def fill(conn: Connection) -> None:
        sessions.create(conn, SessionId("sess_1"), SessionLabels(), created_at=AT)
        for seq in (1, 2, 3):
            sessions.append_message(conn, message(seq))
        compactions.put(conn, compaction())
        sessions.archive(conn, SessionId("sess_1"), "comp_1", 2, head)
        compactions.put(conn, compaction("comp_2", from_seq=3, to_seq=3))
        sessions.archive(conn, SessionId("sess_1"), "comp_2", 3, head)

    await database.write(fill)
    archives = await database.read(lambda conn: compactions.of_session(conn, SessionId("sess_1")))
    assert [archive.id for archive in archives] == ["comp_2", "comp_1"]
    assert await database.read(lambda conn: compactions.get(conn, SessionId("sess_1"), "comp_1")) == compaction()
    assert await database.read(lambda conn: compactions.get(conn, SessionId("sess_2"), "comp_1")) is None
    rows = await database.read(lambda conn: sessions.page(conn, SessionId("sess_1"), 10, places=(1, 2)))
    assert [row.seq for row in rows] == [1, 2]
    assert await database.read(lambda conn: sessions.count_messages(conn, SessionId("sess_1"))) == (3, 3)
    session = await database.read(lambda conn: sessions.get(conn, SessionId("sess_1")))
    assert session is not None
    assert (session.window_start, session.head, session.compaction_id) == (4, head, "comp_2")


async def test_a_process_without_the_lease_cannot_write(database: Database) -> None:
    await database.write(lambda conn: turn(fence=1).insert(conn))
    await database.write(lambda conn: turns.hold(conn, TurnId("turn_1"), 1))
    assert await database.write(lambda conn: turns.is_held(conn, TurnId("turn_1"), 1))
    assert await database.write(lambda conn: turns.take_lease(conn, TurnId("turn_1"), "other")) == 2
    with pytest.raises(LeaseLost):
        await database.write(lambda conn: turns.hold(conn, TurnId("turn_1"), 1))
    assert not await database.write(lambda conn: turns.is_held(conn, TurnId("turn_1"), 1))
    record = await database.read(lambda conn: turns.get(conn, TurnId("turn_1")))
    assert record is not None
    assert (record.owner, record.fence) == ("other", 2)


async def test_payload_files_are_written_once_and_removed(tmp_path: Path) -> None:
    files = PayloadFiles(tmp_path / "payloads")
    ref, data = new_id("ref"), "文字".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    assert files.list_refs() == set()
    assert await files.read(ref, sha256) is None
    await files.write(ref, data)
    assert await files.read(ref, sha256) == data
    assert files.list_refs() == {ref}
    files.path_of(ref).write_bytes(data[:-1])
    assert await files.read(ref, sha256) is None
    await files.remove([ref, ref])
    assert files.list_refs() == set()


@pytest.mark.parametrize("ref", ["../test.db", "", "ref_", "ref_/etc/passwd", "ref_" + "0" * 25 + "\x00"])
async def test_a_ref_is_never_a_path(tmp_path: Path, ref: str) -> None:
    files = PayloadFiles(tmp_path / "payloads")
    assert await files.read(ref, "") is None
    with pytest.raises(ValueError, match="not a ref"):
        await files.write(ref, b"x")


async def test_a_payload_that_cannot_be_written_is_storage_full(tmp_path: Path) -> None:
    (tmp_path / "payloads").write_bytes(b"a file where the folder should be")
    with pytest.raises(StorageFull):
        await PayloadFiles(tmp_path / "payloads").write(new_id("ref"), b"x")


async def test_a_run_is_queued_again_only_by_the_process_that_runs_it(database: Database) -> None:
    record = RunRecord(
        id="run_1",
        domain_id="dom_1",
        tier="retrieval",
        purpose="check",
        subject={},
        case_ids=["case_1"],
        user_id="ann",
        created_at=AT,
    )
    await database.write(lambda conn: domains.insert(conn, domain()))
    await database.write(lambda conn: evaluation.insert_run(conn, record))
    await database.write(lambda conn: evaluation.claim_run(conn, "retrieval", "replica_b", AT, ""))
    states = []
    for owner in ("replica_a", "replica_b"):
        await database.write(partial(evaluation.requeue_run, run_id="run_1", owner=owner))
        run = await database.read(lambda conn: evaluation.get_run(conn, "dom_1", "run_1"))
        states.append(None if run is None else run.state)
    assert states == [RunState.RUNNING, RunState.QUEUED]
