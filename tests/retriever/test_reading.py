"""Reading documents as a model does: lists, passages in order, exact words, and a search's description of its hits."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp_types import CallToolResult, RequestParamsMeta, TextContent

from mcp_servers.retriever.chunking import Chunk, chunk_document, outline_of
from mcp_servers.retriever.document import Block, ParsedDocument
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.errors import UnreadableRequest
from mcp_servers.retriever.reading import READ_TOKENS, DocumentFacts, ReadingPosition, find_words, read
from mcp_servers.retriever.retrieval import Retriever
from mcp_servers.retriever.sentences import estimate_tokens
from mcp_servers.retriever.server import create_server

from .corpus import handbook, long_section, rules

META = {"agentic_rag/collection": "domain_test"}


def make_manual(pages: int) -> list[Chunk]:
    """A manual like a PDF: a chapter for every ten pages, one paragraph on each page."""
    blocks: list[Block] = []
    for page in range(1, pages + 1):
        if page % 10 == 1:
            blocks.append(Block("heading", f"Chapter {page // 10 + 1}", 1, page))
        blocks.append(Block("prose", f"On page {page} the pump of type P-{page} is described.", page=page))
    return chunk_document(ParsedDocument(tuple(blocks), pages), "doc-manual", "manual.pdf")


class Shelf:
    """A `Library` of chunks in memory that counts the chunks it returned."""

    def __init__(self, *documents: Sequence[Chunk], dates: dict[str, str] | None = None) -> None:
        self._chunks = {chunks[0].document_id: list(chunks) for chunks in documents}
        self._dates = dates or {}
        self.handed = 0

    async def documents(self, collection: str, document_ids: Sequence[str] | None = None) -> list[DocumentFacts]:
        return [
            DocumentFacts(
                document_id=document_id,
                name=chunks[0].document_name,
                passages=len(chunks),
                date=self._dates.get(document_id),
                languages=("en",),
                pages=max((chunk.page or 0 for chunk in chunks), default=0) or None,
                outline=outline_of(chunks),
            )
            for document_id, chunks in self._chunks.items()
            if document_ids is None or document_id in document_ids
        ]

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        batch = self._chunks[document_id][offset : offset + limit]
        self.handed += len(batch)
        return batch


@asynccontextmanager
async def open_client(index: EdgeIndex, *documents: Sequence[Chunk], **dates: str) -> AsyncIterator[Client]:
    for chunks in documents:
        await index.upsert("domain_test", chunks)
    shelf = Shelf(*documents, dates={f"doc-{name}": date for name, date in dates.items()})
    async with Client(create_server(Retriever(index), shelf, bound_by_meta=True)) as client:
        yield client


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[EdgeIndex]:
    async with aclosing(EdgeIndex(tmp_path / "index")) as index:
        yield index


async def call(client: Client, name: str, **arguments: object) -> CallToolResult:
    return await client.call_tool(name, arguments, meta=cast(RequestParamsMeta, META))


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def texts(result: CallToolResult) -> list[str]:
    return [sentence["text"] for hit in result.structured_content["hits"] for sentence in hit["sentences"]]


async def test_a_long_document_is_read_to_its_end_without_gaps_or_repeats(index: EdgeIndex) -> None:
    chunks = long_section(900)
    sentences: list[str] = []
    start: int | None = 1
    async with open_client(index, chunks) as client:
        while start is not None:
            result = await call(client, "read_document", document="pumps", **{"from": start})
            assert sum(map(estimate_tokens, texts(result))) <= READ_TOKENS * 1.1
            sentences += texts(result)
            start = result.structured_content["next"]
            assert start is None or f"go on with from={start}" in text_of(result)
    assert sorted(set(sentences), key=sentences.index) == [
        f"Sentence number {n} speaks about pumps, valves and their pressure." for n in range(900)
    ]


async def test_pages_are_read_without_reading_those_before_them() -> None:
    chunks = make_manual(1_000)
    shelf = Shelf(chunks)
    (document,) = await shelf.documents("c")
    reply = await read(shelf, "c", document, ReadingPosition(pages="901-903"))
    assert [hit.page for hit in reply.hits] == [901, 902, 903]
    assert shelf.handed < 200
    assert reply.following is None


async def test_a_section_and_the_surroundings_of_a_passage_are_read(index: EdgeIndex) -> None:
    async with open_client(index, make_manual(40), manual="2024-05-01") as client:
        section = await call(client, "read_document", document="manual.pdf", section="chapter 2")
        assert [hit["page"] for hit in section.structured_content["hits"]] == list(range(11, 21))
        surroundings = await call(client, "read_document", document="doc-manual", around=20)
        assert [hit["passage"] for hit in surroundings.structured_content["hits"]][:4] == [17, 18, 19, 20]
        assert "passage 17 of 40, 2024-05-01" in text_of(surroundings)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"document": "nope"}, "no one document called 'nope'. Documents: manual.pdf; handbook.md."),
        (
            {"document": "manual.pdf", "pages": "x"},
            '`pages` is \'x\', but must be a page or a range of pages: "3" or "3-7".',
        ),
        ({"document": "manual.pdf", "pages": "7-3"}, "must be a page or a range"),
        ({"document": "manual.pdf", "pages": "99"}, "manual.pdf has 40 pages, and no text on 99."),
        ({"document": "handbook.md", "pages": "1"}, "has no pages: read it by `section` or `from`."),
        ({"document": "manual.pdf", "around": 41}, "`around` is 41, but manual.pdf has passages 1 to 40."),
        ({"document": "manual.pdf", "from": 0}, "`from` is 0"),
        ({"document": "handbook.md", "section": "pensions"}, "Its first headings: Annual leave; Sick leave."),
    ],
)
async def test_a_missing_place_is_answered_with_the_existing_ones(
    index: EdgeIndex, arguments: dict[str, Any], text: str
) -> None:
    async with open_client(index, make_manual(40), handbook()) as client:
        result = await call(client, "read_document", **arguments)
    assert result.is_error
    assert text in text_of(result)


async def test_exact_words_are_found_in_any_case_and_at_the_end_of_a_chunk(index: EdgeIndex) -> None:
    async with open_client(index, make_manual(40), rules()) as client:
        single_match = await call(client, "find_in_document", document="manual", pattern="  TYPE\np-17 ")
        assert [hit["page"] for hit in single_match.structured_content["hits"]] == [17]
        first_page = await call(client, "find_in_document", document="manual", pattern="the pump of type")
        next_page = first_page.structured_content["next"]
        second_page = await call(
            client, "find_in_document", document="manual", pattern="the pump of type", **{"from": next_page}
        )
        assert second_page.structured_content["hits"][0]["page"] == next_page
        across_chunks = await call(client, "find_in_document", document="manual", pattern="is described. On page 8 the")
        assert [hit["page"] for hit in across_chunks.structured_content["hits"]] == [8]
        chinese = await call(client, "find_in_document", document="规定", pattern="十五天")
        assert texts(chinese)[0] == "员工每年享有十五天带薪年假。"
        no_match = await call(client, "find_in_document", document="manual", pattern=".*")
        assert not no_match.is_error
        assert no_match.structured_content["hits"] == []


@given(st.text(alphabet="ab. \n", min_size=1, max_size=300), st.data())
async def test_every_part_of_a_text_is_found_at_its_place(text: str, data: st.DataObject) -> None:
    chunks = chunk_document(ParsedDocument((Block("prose", f"x {text} x"),)), "d", "d.txt")
    start = data.draw(st.integers(0, len(text) - 1))
    piece = text[start : start + data.draw(st.integers(1, 40))]
    shelf = Shelf(chunks)
    (document,) = await shelf.documents("c")
    if piece.strip():
        assert (await find_words(shelf, "c", document, piece)).hits
    else:
        with pytest.raises(UnreadableRequest):
            await find_words(shelf, "c", document, piece)


@pytest.mark.parametrize(
    ("pattern", "start", "pages"),
    [
        ("type P-1 is described.", 1, [1]),
        ("type P-2 is described. On page 3", 1, [3]),
        ("type P-2 is described. On page 3", 3, [3]),
        ("type P-2 is described.", 3, []),
        (".", 2, [2, 3]),
    ],
)
async def test_words_are_found_in_the_passage_where_they_end(pattern: str, start: int, pages: list[int]) -> None:
    shelf = Shelf(make_manual(3))
    (document,) = await shelf.documents("c")
    assert [hit.page for hit in (await find_words(shelf, "c", document, pattern, start)).hits] == pages


async def test_words_across_three_passages_are_found() -> None:
    shelf = Shelf(make_manual(3))
    (document,) = await shelf.documents("c")
    pattern = "On page 1 the pump of type P-1 is described. On page 2 the pump of type P-2 is described. On page 3"
    assert [hit.page for hit in (await find_words(shelf, "c", document, pattern)).hits] == [3]


async def test_documents_are_listed_in_pages_with_their_topics(index: EdgeIndex) -> None:
    async with open_client(index, make_manual(30), handbook(), manual="2023-01-02", en="2024-05-01") as client:
        result = await call(client, "list_documents")
        assert text_of(result).splitlines() == [
            "2 of 2 documents.",
            "1. manual.pdf (2023-01-02; en; 30 pages; 30 passages): Chapter 1; Chapter 2; Chapter 3",
            "2. handbook.md (2024-05-01; en; 2 passages): Annual leave; Sick leave",
        ]
        assert result.structured_content["othersText"]
        filtered = await call(client, "list_documents", contains="sick")
        assert [document["name"] for document in filtered.structured_content["documents"]] == ["handbook.md"]
        beyond_end = await call(client, "list_documents", **{"from": 3})
        assert "documents 1 to 2" in text_of(beyond_end)


async def test_a_search_filters_by_time_section_and_kind_and_gives_the_place_of_a_passage(index: EdgeIndex) -> None:
    async with open_client(index, make_manual(30), handbook(), manual="2023-01-02", en="2024-05-01") as client:

        async def search_names(**arguments: object) -> set[str]:
            result = await call(client, "search_documents", **{"query": "pump leave", **arguments})
            assert not result.is_error, text_of(result)
            return {hit["document_name"] for hit in result.structured_content["hits"]}

        assert await search_names() == {"manual.pdf", "handbook.md"}
        assert await search_names(after="2024-01-01") == {"handbook.md"}
        assert await search_names(query="pump", before="2024-01-01") == {"manual.pdf"}
        assert await search_names(query="pump", type=".PDF") == {"manual.pdf"}
        assert await search_names(section="Sick leave") == {"handbook.md"}
        single_hit = await call(client, "search_documents", query="medical certificate", top_k=1)
        assert "handbook.md › Handbook › Sick leave (passage 2 of 2, 2024-05-01)" in text_of(single_hit)
        empty = await call(client, "search_documents", query="pump", after="2025-01-01")
        assert "No document is of that time. They are dated 2023-01-02 to 2024-05-01." in text_of(empty)
        bad_date = await call(client, "search_documents", query="pump", after="last year")
        assert "`after` is 'last year', but must be a date: YYYY-MM-DD." in text_of(bad_date)


def test_an_outline_is_the_highest_headings_below_a_title() -> None:
    assert outline_of(handbook()) == ("Annual leave", "Sick leave")
    assert outline_of(make_manual(30)) == ("Chapter 1", "Chapter 2", "Chapter 3")
    assert outline_of(chunk_document(ParsedDocument((Block("prose", "No heading."),)), "d", "d.txt")) == ()


def make_note(*texts: str, name: str = "note") -> list[Chunk]:
    """A document without headings and pages."""
    blocks = tuple(Block("prose", text) for text in texts)
    return chunk_document(ParsedDocument(blocks, None), f"doc-{name}", f"{name}.txt")


async def test_a_document_of_one_sentence_is_read_searched_and_listed(index: EdgeIndex) -> None:
    async with open_client(index, make_note("The gate closes at nine.")) as client:
        assert texts(await call(client, "read_document", document="note")) == ["The gate closes at nine."]
        assert texts(await call(client, "search_documents", query="gate")) == ["The gate closes at nine."]
        assert texts(await call(client, "find_in_document", document="note", pattern="NINE.")) == [
            "The gate closes at nine."
        ]
        assert "1. note.txt (en; 1 passages)" in text_of(await call(client, "list_documents"))
        for arguments in ({"section": "Gates"}, {"pages": "1"}, {"around": 2}, {"from": 2}):
            assert (await call(client, "read_document", document="note", **arguments)).is_error


async def test_a_document_without_headings_is_read_by_passages() -> None:
    shelf = Shelf(make_note(*(f"Line {number} of the long letter, which has no headings." for number in range(2_000))))
    (document,) = await shelf.documents("c")
    start: int | None = 1
    sentences: list[str] = []
    while start is not None:
        reply = await read(shelf, "c", document, ReadingPosition(start=start))
        sentences += [sentence.text for hit in reply.hits for sentence in hit.sentences]
        start = reply.following
    text = "".join(sentences)
    assert all(f"Line {number} of" in text for number in range(2_000))
    with pytest.raises(UnreadableRequest, match="no pages"):
        await read(shelf, "c", document, ReadingPosition(pages="3"))
    with pytest.raises(UnreadableRequest, match="Its first headings: none"):
        await read(shelf, "c", document, ReadingPosition(section="Summary"))


async def test_ten_thousand_pages_are_read_by_page_and_scanned_once() -> None:
    chunks = make_manual(10_000)
    shelf = Shelf(chunks)
    (document,) = await shelf.documents("c")
    reply = await read(shelf, "c", document, ReadingPosition(pages="9901-9902"))
    assert [hit.page for hit in reply.hits] == [9_901, 9_902]
    assert shelf.handed < 300
    shelf.handed = 0
    matches = await find_words(shelf, "c", document, "P-9999")
    assert [hit.page for hit in matches.hits] == [9_999]
    assert shelf.handed <= len(chunks)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)*b", "a" * 199 + "b", "^(.*)*$", "[", "\\", "a" * 200])
async def test_a_hostile_pattern_is_treated_as_words_and_scans_each_passage_once(pattern: str) -> None:
    chunks = make_note(*("a" * 5_000 for _ in range(200)))
    shelf = Shelf(chunks)
    (document,) = await shelf.documents("c")
    matches = await find_words(shelf, "c", document, pattern)
    assert bool(matches.hits) == (pattern == "a" * 200)
    assert shelf.handed <= len(chunks)
