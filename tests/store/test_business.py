"""Domains, conversations, documents, images and retrievals on each database."""

from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.base.errors import NotFound, VersionConflict
from agentic_rag.base.ids import ConversationId, DocumentId, SessionId
from agentic_rag.store import conversations, documents, domains, images, retrievals
from agentic_rag.store.conversations import SortBy, TitleSource
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentProgress, DocumentStatus
from agentic_rag.store.retrievals import RetrievalRecord

from .records import AT, conversation, document, domain

LATER = "2026-11-21T13:00:00.000Z"


async def test_a_domain_is_restored_unchanged(database: Database) -> None:
    await database.write(lambda conn: domains.insert(conn, domain(settings={"language": "zh", "expertise": "劳动法"})))
    restored = await database.read(lambda conn: domains.get(conn, "dom_1"))
    assert restored is not None
    assert restored == domain(settings={"language": "zh", "expertise": "劳动法"})
    assert await database.read(lambda conn: domains.get(conn, "dom_9")) is None
    with pytest.raises(IntegrityError):
        await database.write(lambda conn: domains.insert(conn, domain()))


async def test_domains_are_listed_oldest_first(database: Database) -> None:
    def fill(conn: Connection) -> None:
        domains.insert(conn, domain("dom_2", created_at=LATER))
        domains.insert(conn, domain("dom_3"))

    await database.write(fill)
    assert [record.id for record in await database.read(domains.list_all)] == ["dom_3", "dom_2"]


async def test_a_change_from_an_old_version_is_refused_and_changes_nothing(database: Database) -> None:
    await database.write(lambda conn: domains.insert(conn, domain()))

    async def update(version: int | None, name: str) -> int:
        return await database.write(
            lambda conn: domains.update(conn, "dom_1", version=version, updated_at=LATER, name=name)
        )

    assert await update(1, "first") == 2
    with pytest.raises(VersionConflict) as conflict:
        await update(1, "second")
    assert (conflict.value.given, conflict.value.current) == (1, 2)
    assert await update(None, "third") == 3
    row = await database.read(lambda conn: domains.get(conn, "dom_1"))
    assert row is not None
    assert (row.name, row.version, row.updated_at, row.settings) == (
        "third",
        3,
        LATER,
        {"language": "auto"},
    )
    with pytest.raises(NotFound):
        await database.write(lambda conn: domains.update(conn, "dom_9", version=None, updated_at=LATER))


async def test_deleting_a_domain_deletes_its_documents_images_and_retrievals(database: Database) -> None:
    retrieval = RetrievalRecord(
        id="ret_1", domain_id="dom_1", query="q", mode="lexical", trace={"bm25": []}, created_at=AT
    )

    def fill(conn: Connection) -> None:
        domains.insert(conn, domain())
        documents.insert(conn, document())
        documents.insert(conn, document("doc_2", domain_id="dom_2"))
        images.put(conn, "img_1", "dom_1", {})
        retrievals.put(conn, retrieval)

    await database.write(fill)
    trace_record = await database.read(lambda conn: retrievals.get(conn, "ret_1"))
    assert trace_record is not None
    assert trace_record.trace == {"bm25": []}
    assert await database.write(lambda conn: domains.delete(conn, "dom_1")) is True
    assert await database.write(lambda conn: domains.delete(conn, "dom_1")) is False

    def look_up_records(conn: Connection) -> list[object]:
        return [
            domains.get(conn, "dom_1"),
            documents.get(conn, DocumentId("doc_1")),
            images.get(conn, "img_1"),
            retrievals.get(conn, "ret_1"),
        ]

    assert await database.read(look_up_records) == [None] * 4
    assert await database.read(lambda conn: documents.get(conn, DocumentId("doc_2"))) is not None


async def test_a_stored_image_does_not_change(database: Database) -> None:
    await database.write(lambda conn: images.put(conn, "img_1", "dom_1", {"b": 1, "a": [2]}))
    await database.write(lambda conn: images.put(conn, "img_1", "dom_1", {"other": True}))
    image = await database.read(lambda conn: images.get(conn, "img_1"))
    assert image == {"b": 1, "a": [2]}
    assert list(image) == ["b", "a"]


async def test_a_conversation_is_visible_to_its_owner_only(database: Database) -> None:
    await database.write(lambda conn: conversations.insert(conn, conversation(owner_id="ann", meta={"k": [1]})))

    def look_up(conn: Connection) -> list[bool]:
        records = (
            conversations.get(conn, ConversationId("conv_1")),
            conversations.get(conn, ConversationId("conv_1"), "ann"),
            conversations.get(conn, ConversationId("conv_1"), "bob"),
            conversations.by_session(conn, SessionId("sess_conv_1")),
            conversations.by_session(conn, SessionId("sess_9")),
        )
        return [record is not None and record.meta == {"k": [1]} for record in records]

    assert await database.read(look_up) == [True, True, False, True, False]


async def test_conversations_are_listed_in_pages_sorted_and_filtered(database: Database) -> None:
    def fill(conn: Connection) -> None:
        for record in (
            conversation("conv_1", title="Notice period", message_count=4, last_message_at=LATER),
            conversation("conv_2", title="50% OFF_season", domain_id="dom_2", last_message_at=AT),
            conversation("conv_3", title="notice 通知期", status="archived"),
            conversation("conv_4", title="Vacation", owner_id="ann", updated_at=LATER),
        ):
            conversations.insert(conn, record)

    await database.write(fill)

    async def list_ids(**options: Any) -> tuple[str, int]:
        records, total = await database.read(lambda conn: conversations.list_page(conn, **options))
        return "".join(record.id.removeprefix("conv_") for record in records), total

    assert await list_ids() == ("4321", 4)
    assert await list_ids(sort_order="asc") == ("1234", 4)
    assert await list_ids(page_size=3) == ("432", 4)
    assert await list_ids(page=2, page_size=3) == ("1", 4)
    assert await list_ids(page=9) == ("", 4)
    assert await list_ids(sort_by="last_message_at") == ("1243", 4)
    assert await list_ids(sort_by="last_message_at", sort_order="asc") == ("2134", 4)
    assert await list_ids(sort_by="message_count", sort_order="desc", page_size=1) == ("1", 4)
    assert await list_ids(q="NOTICE", sort_order="asc") == ("13", 2)
    assert await list_ids(q="通知") == ("3", 1)
    assert await list_ids(q="50%") == ("2", 1)
    assert await list_ids(q="f_s") == ("2", 1)
    assert await list_ids(q="_") == ("2", 1)
    assert await list_ids(domain_id="dom_1", status="active", owner_id="local") == ("1", 1)


@pytest.mark.parametrize("sort_by", ["started_at", "updated_at", "last_message_at", "title", "message_count"])
async def test_pages_have_no_gap_or_repeat_among_equal_values(database: Database, sort_by: SortBy) -> None:
    def fill(conn: Connection) -> None:
        for number in range(25):
            conversations.insert(conn, conversation(f"conv_{number:02}"))

    await database.write(fill)

    def list_three_pages(conn: Connection) -> list[str]:
        pages = [conversations.list_page(conn, page=number, page_size=10, sort_by=sort_by) for number in (1, 2, 3)]
        return [record.id for records, _ in pages for record in records]

    assert await database.read(list_three_pages) == [f"conv_{number:02}" for number in reversed(range(25))]


async def test_a_conversation_changes_by_field_and_counts_its_messages(database: Database) -> None:
    await database.write(lambda conn: conversations.insert(conn, conversation()))
    is_changed = await database.write(
        lambda conn: conversations.update(
            conn, ConversationId("conv_1"), title="New", title_source=TitleSource.USER, meta={"a": 1}
        )
    )
    updated = await database.write(lambda conn: conversations.add_messages(conn, ConversationId("conv_1"), 2, LATER))
    assert is_changed is True
    assert updated is not None
    assert (updated.domain_id, updated.owner_id, updated.memory) == ("dom_1", "local", None)
    stored = await database.read(lambda conn: conversations.get(conn, ConversationId("conv_1")))
    assert stored is not None
    assert (stored.title, stored.title_source, stored.meta, stored.status) == ("New", "user", {"a": 1}, "active")
    assert (stored.message_count, stored.last_message_at, stored.updated_at) == (2, LATER, LATER)
    assert await database.write(lambda conn: conversations.update(conn, ConversationId("conv_9"), title="x")) is False
    assert (
        await database.write(lambda conn: conversations.add_messages(conn, ConversationId("conv_9"), 2, LATER)) is None
    )


async def test_conversations_of_a_domain_are_named_with_their_sessions(database: Database) -> None:
    def fill(conn: Connection) -> None:
        conversations.insert(conn, conversation("conv_1"))
        conversations.insert(conn, conversation("conv_2", domain_id="dom_2"))

    await database.write(fill)
    assert await database.read(lambda conn: conversations.ids_of_domain(conn, "dom_1")) == [("conv_1", "sess_conv_1")]
    assert await database.write(lambda conn: conversations.delete(conn, ConversationId("conv_1"))) is True
    assert await database.write(lambda conn: conversations.delete(conn, ConversationId("conv_1"))) is False
    assert await database.read(lambda conn: conversations.ids_of_domain(conn, "dom_1")) == []


async def test_equal_bytes_are_one_document_of_a_domain(database: Database) -> None:
    await database.write(lambda conn: documents.insert(conn, document(sha256="abc")))
    with pytest.raises(IntegrityError):
        await database.write(lambda conn: documents.insert(conn, document("doc_2", sha256="abc")))
    await database.write(lambda conn: documents.insert(conn, document("doc_3", sha256="abc", domain_id="dom_2")))
    stored = await database.read(lambda conn: documents.by_sha(conn, "dom_1", "abc"))
    assert stored is not None
    assert stored.id == "doc_1"
    assert await database.read(lambda conn: documents.by_sha(conn, "dom_1", "def")) is None


async def test_documents_are_listed_and_counted_by_state(database: Database) -> None:
    def fill(conn: Connection) -> None:
        for number, status in enumerate(("queued", "parsing", "indexed", "failed", "indexed")):
            documents.insert(conn, document(f"doc_{number}", status=status))
        documents.insert(conn, document("doc_9", domain_id="dom_2", status="chunking"))

    await database.write(fill)

    def list_ids(conn: Connection) -> list[str]:
        lists = (
            documents.list_of(conn, "dom_1"),
            documents.list_of(conn, "dom_1", status=DocumentStatus.INDEXED),
            documents.list_unfinished(conn),
        )
        return ["".join(record.id.removeprefix("doc_") for record in records) for records in lists]

    assert await database.read(list_ids) == ["01234", "24", "019"]
    assert await database.read(lambda conn: documents.count_indexed(conn, "dom_1")) == 2
    assert await database.read(lambda conn: documents.count_indexed(conn, "dom_2")) == 0


async def test_a_document_changes_by_field_until_it_is_deleted(database: Database) -> None:
    await database.write(lambda conn: documents.insert(conn, document()))

    def fail(conn: Connection) -> bool:
        return documents.update(
            conn,
            DocumentId("doc_1"),
            status=DocumentStatus.FAILED,
            progress=DocumentProgress(stage=DocumentStatus.PARSING, pages=12),
            error_code="NO_TEXT",
            error_message="no text layer on 12 of 12 pages",
            updated_at=LATER,
        )

    assert await database.write(fail) is True
    stored = await database.read(lambda conn: documents.get(conn, DocumentId("doc_1")))
    assert stored is not None
    assert (stored.status, stored.progress, stored.error_code, stored.name) == (
        DocumentStatus.FAILED,
        DocumentProgress(stage=DocumentStatus.PARSING, pages=12),
        "NO_TEXT",
        "handbook.md",
    )
    assert await database.write(lambda conn: documents.delete(conn, DocumentId("doc_1"))) is True
    assert await database.write(fail) is False
    assert await database.write(lambda conn: documents.delete(conn, DocumentId("doc_1"))) is False
