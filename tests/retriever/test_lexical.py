"""The lexical leg: numbers, codes, dates and clauses are words in every spelling."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from mcp_servers.retriever.chunking import Chunk, chunk_document
from mcp_servers.retriever.document import Block, ParsedDocument
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.lexical import MAX_QUERY_TOKENS, document_vectors, query_vector
from mcp_servers.retriever.retrieval import Retriever

TEXTS = {
    "price": "HX-4471-B | Seal ring | 371.45 | 22.5% | 237",
    "other": "HX-4472-B | Seal kit | 99.10 | 10% | 12",
    "space": "Payment within 30\u00a0working\u202fdays of receipt.",
    "wide": "值班电话：４４７１，房间Ａ１２。",
    "dash": "The COVID\u201119 rules of 21 June 2031 are over.",
    "soft": "The co\u00adop\u00aderation ends on 2031-11-14.",
    "clause": "5.2 The fire watch stays.\n5.3 Nobody smokes.",
    "law": "Siehe § 437 BGB und 1 460 Kronen.",
    "account": "Please pay to IBAN DE89 3704 0044 0532 0130 00 or call +47 22 00 11 22.",
    "chinese": "二〇三一年四月一日起废止，六万元以上须比价。",
}


@pytest.fixture
async def retriever(tmp_path: Path) -> AsyncIterator[Retriever]:
    async with aclosing(EdgeIndex(tmp_path)) as index:
        for name, text in TEXTS.items():
            await index.upsert("c", chunks_of(name, text))
        yield Retriever(index)


def chunks_of(name: str, text: str) -> list[Chunk]:
    return chunk_document(ParsedDocument((Block("prose", text),)), name, f"{name}.txt")


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("HX-4471-B price", "price"),
        ("ＨＸ－４４７１－Ｂ", "price"),
        ("hx 4471 b", "price"),
        ("hx4471b", "price"),
        ("371,45", "price"),
        ("22.5 %", "price"),
        ("working days", "space"),
        ("working\u00a0days", "space"),
        ("A12", "wide"),
        ("房间A12", "wide"),
        ("COVID-19", "dash"),
        ("2031-06-21", "dash"),
        ("am 21. Juni 2031", "dash"),
        ("cooperation", "soft"),
        ("November 14, 2031", "soft"),
        ("clause 5.2", "clause"),
        ("§ 437", "law"),
        ("DE89370400440532013000", "account"),
        ("de89 3704 0044 0532 0130 00", "account"),
        ("4722001122", "account"),
        ("1460", "law"),
        ("1,460 crowns", "law"),
        ("2031年4月1日", "chinese"),
        ("60000", "chinese"),
    ],
)
async def test_a_number_is_found_in_every_notation(retriever: Retriever, query: str, document: str) -> None:
    retrieval = await retriever.search("c", query, 1)
    assert [hit.document_id for hit in retrieval.hits] == [document]


async def test_a_code_in_no_passage_makes_every_passage_irrelevant(retriever: Retriever) -> None:
    known_code = await retriever.search("c", "What is the price of HX-4471-B?", 3)
    unknown_code = await retriever.search("c", "What is the price of HX-4473-B?", 3)
    assert max(hit.relevance_score for hit in known_code.hits) > 0.5
    assert max((hit.relevance_score for hit in unknown_code.hits), default=0.0) <= 0.05


@pytest.mark.parametrize(
    "query", ["7", "x" * 10_000, "1 " * 5_000, "?!§%", "\u202e\u200f", "שלום ４４ 中文 abc", "\ud800", "〇" * 500, "-"]
)
async def test_an_odd_question_is_answered_or_finds_nothing(retriever: Retriever, query: str) -> None:
    retrieval = await retriever.search("c", query, 3)
    assert len(retrieval.hits) <= 3
    assert all(0 <= hit.relevance_score <= 1 for hit in retrieval.hits)


def test_question_phrases_are_not_part_of_a_question() -> None:
    assert query_vector("Wie viele sind es, und was ist das?").indices == []
    assert query_vector("多少？是什么？").indices == []
    assert len(query_vector("How many crowns?").indices) == 1


def test_a_long_question_has_a_bounded_number_of_tokens() -> None:
    assert len(query_vector(" ".join(f"word{n}x" for n in range(5_000))).indices) == MAX_QUERY_TOKENS


def test_a_vector_holds_each_token_once() -> None:
    (vector,) = document_vectors(["HX-4471-B HX-4471-B 4471 4471 2031-06-21 21 June 2031"])
    assert len(set(vector.indices)) == len(vector.indices) == len(vector.values)
    assert all(value > 0 for value in vector.values)
