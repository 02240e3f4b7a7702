"""The history of a domain: numbered and bounded, with the oldest entries removed first."""

from typing import Any

from sqlalchemy import Connection

from agentic_rag.store import domains, history
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.history import GONE, MAX_BYTES, MAX_ROWS, HistoryKind, NewHistory, VersionContent


def change(subject: str, text: str, **fields: Any) -> NewHistory:
    content = VersionContent(text, str(hash(text)))
    return NewHistory(kind=HistoryKind.PROMPT, subject=subject, author="ann", after=content, **fields)


def add_domain(conn: Connection, ident: str) -> None:
    record = DomainRecord(id=ident, name="x", settings={}, workspace="/x", created_at=now(), updated_at=now())
    domains.insert(conn, record)


async def test_revisions_are_numbered_by_domain_and_the_first_change_stores_the_previous_state(
    database: Database,
) -> None:
    def check_revisions(conn: Connection) -> None:
        add_domain(conn, "one")
        add_domain(conn, "two")
        assert (
            history.append(conn, "one", [change("a", "2", before=VersionContent("1", "1"), before_at="then")], "at")
            == 2
        )
        assert history.append(conn, "one", [change("a", "3", before=VersionContent("2", "2"))], "at") == 3
        assert history.append(conn, "two", [change("a", "x")], "at") == 1
        assert history.append(conn, "gone", [change("a", "x")], "at") == 0
        first_version, last_version = history.get(conn, "one", 1), history.get(conn, "one", 3)
        assert first_version is not None
        assert last_version is not None
        assert (first_version.content, first_version.author, first_version.at) == ("1", "", "then")
        previous = history.before(conn, last_version)
        assert previous is not None
        assert (previous.n, previous.content, history.before(conn, first_version)) == (2, "2", None)
        deletion = NewHistory(kind=HistoryKind.PROMPT, subject="a", author="bob", after=GONE)
        history.append(conn, "one", [deletion], "later")
        assert history.last_hashes(conn, "one") == {(HistoryKind.PROMPT, "a"): ("", "later")}
        lines = history.page(conn, "one", 10, kinds=tuple(HistoryKind))
        assert [(line.n, line.gone) for line in lines] == [(4, True), (3, False), (2, False), (1, False)]
        assert [line.n for line in history.page(conn, "one", 2, kinds=(HistoryKind.PROMPT,), below=4)] == [3, 2]
        assert history.page(conn, "one", 2, kinds=(HistoryKind.ROLE,)) == []
        history.rename_author(conn, "ann", "#7")
        assert {line.author for line in history.page(conn, "one", 10, kinds=tuple(HistoryKind))} == {"#7", "", "bob"}
        domains.delete(conn, "one")
        assert history.page(conn, "one", 10, kinds=tuple(HistoryKind)) == []
        assert history.get(conn, "two", 1) is not None

    await database.write(check_revisions)


async def test_the_oldest_rows_are_deleted_beyond_the_limits(database: Database) -> None:
    def check_limits(conn: Connection) -> None:
        add_domain(conn, "many")
        last_number = history.append(conn, "many", [change("a", str(number)) for number in range(MAX_ROWS + 5)], "at")
        assert last_number == MAX_ROWS + 5
        assert history.get(conn, "many", 5) is None
        assert history.get(conn, "many", 6) is not None
        add_domain(conn, "large")
        size = MAX_BYTES // 4
        for letter in "abcdef":
            history.append(conn, "large", [change("a", letter * size)], "at")
        assert [revision for revision in range(1, 7) if history.get(conn, "large", revision)] == [3, 4, 5, 6]
        history.append(conn, "large", [change("a", "x" * (MAX_BYTES + 1))], "at")
        assert [line.n for line in history.page(conn, "large", 10, kinds=tuple(HistoryKind))] == [7]

    await database.write(check_limits)
