"""The full-text index over questions and answers, on both databases."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.ids import ConversationId, MessageId, SessionId
from agentic_rag.store import message_texts, sessions
from agentic_rag.store.database import Database
from agentic_rag.store.message_texts import SearchTerms, TextScope
from agentic_rag.store.sessions import SessionLabels
from tests.store.conftest import needs_postgresql
from tests.store.records import AT

MINE = TextScope("mira", "dom_1")
TEXTS = {
    "airflow": "The summer bypass opens at night: the BRISA-900 moves 1 350 m³/h.",
    "leave": "上海办公室的年假可以顺延到次年3月31日。",
    "zurich": "Das Büro in Zürich hat sechs Räume.",
    "code": "Call `read_holding_registers(10)` and read 4.2.0.",
    "thai": "วันหยุดพักผ่อนประจำปี",
}


def add(conn: Connection, name: str, text: str, scope: TextScope = MINE, session: str = "sess_1") -> None:
    place = (SessionId(session), ConversationId(f"conv_{session}"), MessageId(name))
    message_texts.add(conn, scope, *place, "user", text)


def search_ids(conn: Connection, query: str, scope: TextScope = MINE) -> list[str]:
    return [match.message_id for match in message_texts.search(conn, scope, SearchTerms.of(query))]


CASES = {
    "bypass": ["airflow"],
    "bypa": ["airflow"],
    "pass": [],
    "NIGHT summer": ["airflow"],
    "brisa-900": ["airflow"],
    "brisa-9": ["airflow"],
    "900-brisa": [],
    "年假": ["leave"],
    "假": ["leave"],
    "假年": [],
    "办公室 顺延": ["leave"],
    "3月": ["leave"],
    "zurich raume": ["zurich"],
    "ZÜRICH": ["zurich"],
    "read_holding": ["code"],
    "4.2.0": ["code"],
    "วันหยุด": ["thai"],
    "": [],
    '" OR words:*': [],
    "NOT NEAR(": [],
    "§q": [],
}
"""Queries and the names of the texts that each finds."""


async def test_a_search_finds_words_beginnings_and_parts_of_chinese_texts(database: Database) -> None:
    def search_all(conn: Connection) -> dict[str, list[str]]:
        for name, text in TEXTS.items():
            add(conn, name, text)
        return {query: search_ids(conn, query) for query in CASES}

    assert await database.write(search_all) == CASES


async def test_searches_list_the_newest_messages_of_owner_and_domain_first(database: Database) -> None:
    def search_all(conn: Connection) -> list[list[str]]:
        add(conn, "old", "filter")
        add(conn, "other-domain", "filter", TextScope("mira", "dom_2"))
        add(conn, "other-owner", f"filter {' '.join(MINE.words)}", TextScope("ben", "dom_1"))
        add(conn, "new", "filter")
        return [
            search_ids(conn, "filter"),
            search_ids(conn, "filter", TextScope("mira")),
            search_ids(conn, "filter", TextScope("m")),
        ]

    assert await database.write(search_all) == [["new", "old"], ["new", "other-domain", "old"], []]


@needs_postgresql
@pytest.mark.xdist_group("postgresql_url")
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_postgresql_uses_its_index_for_rare_and_common_words(database: Database) -> None:
    """A naive plan reads all messages, newest first, until it has enough matches: seconds for 100 000 messages."""

    def fill(conn: Connection) -> None:
        prefix = " ".join(MINE.words)
        rows = [
            {
                "id": number,
                "session_id": "s",
                "conversation_id": "c",
                "message_id": f"m{number}",
                "role": "user",
                "words": words,
            }
            for number in range(1, 3_001)
            for words in [f"{prefix} the filter {'rare' if number == 7 else number}"]
        ]
        conn.execute(sa.insert(message_texts.TEXTS), rows)
        conn.execute(sa.text("ANALYZE message_texts"))

    def search(conn: Connection) -> dict[str, tuple[list[str], str]]:
        statements: list[tuple[str, Any]] = []

        def note_statement(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            statements.append((statement, parameters))

        sa.event.listen(conn, "before_cursor_execute", note_statement)
        results = {query: search_ids(conn, query) for query in ("rare", "the", "the rare", "missing")}
        sa.event.remove(conn, "before_cursor_execute", note_statement)
        searches = [statement_call for statement_call in statements if "message_texts" in statement_call[0]]
        conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plans = [
            conn.exec_driver_sql(f"EXPLAIN {statement}", parameters_given).scalars()
            for statement, parameters_given in searches
        ]
        return {query: (results[query], "\n".join(plan)) for query, plan in zip(results, plans, strict=True)}

    await database.write(fill)
    results_by_query = await database.read(search)
    assert results_by_query["rare"][0] == results_by_query["the rare"][0] == ["m7"]
    assert results_by_query["missing"][0] == []
    assert results_by_query["the"][0] == [f"m{number}" for number in range(3_000, 1_000, -1)]
    for query, (_, plan) in results_by_query.items():
        assert "Bitmap Index Scan on message_search" in plan, (query, plan)


async def test_a_deleted_session_leaves_the_index_in_the_same_transaction(database: Database) -> None:
    def delete_session(conn: Connection) -> tuple[list[str], list[str], int]:
        sessions.create(conn, SessionId("sess_1"), SessionLabels(), created_at=AT)
        add(conn, "gone", "secretword")
        add(conn, "stays", "secretword", session="sess_2")
        ids_before = search_ids(conn, "secretword")
        sessions.delete(conn, SessionId("sess_1"))
        message_texts.purge(conn)
        rows_left = conn.execute(sa.text("SELECT count(*) FROM message_texts")).scalar_one()
        return ids_before, search_ids(conn, "secretword"), rows_left

    assert await database.write(delete_session) == (["stays", "gone"], ["stays"], 1)


async def test_deleted_text_is_erased_from_the_sqlite_file(sqlite: Database) -> None:
    def read_blocks(conn: Connection) -> list[bytes]:
        sessions.create(conn, SessionId("sess_1"), SessionLabels(), created_at=AT)
        add(conn, "gone", "unrepeatable")
        add(conn, "stays", "ordinary", session="sess_2")
        sessions.delete(conn, SessionId("sess_1"))
        message_texts.purge(conn)
        return list(conn.execute(sa.text("SELECT block FROM message_search_data")).scalars())

    blocks = b"".join(await sqlite.write(read_blocks))
    assert b"ordinary" in blocks
    assert b"unrepeatable" not in blocks


def test_marks_are_positions_in_the_original_text() -> None:
    text = "Die Ｂrisa‑900 läuft; 年假 und BRISA-900."
    spans = SearchTerms.of("brisa-90 年假").spans_in(text)
    assert [text[start:end] for start, end in spans] == ["Ｂrisa‑900", "年假", "BRISA-900"]
    assert SearchTerms.of("brisa missing").spans_in(text) == []
