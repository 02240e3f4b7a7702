"""The result of a search: hits with their sentences, and the candidates from which they were chosen.

The module holds plain values and their JSON forms. A tool result uses the names of the attributes (`Hit.to_json`).
REST and stored searches use the same names in camelCase: the server writes them with its own encoder, and
`Retrieval.from_json` reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Literal, Self, TypeVar

from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.sentences import estimate_tokens

Mode = Literal["lexical", "hybrid"]

T = TypeVar("T", "Sentence", "Hit", "Candidate")


def camel(name: str) -> str:
    """Return a snake_case name in camelCase."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


@dataclass(frozen=True, slots=True)
class Sentence:
    """The smallest unit of a citation; ``start`` and ``end`` are offsets in the text of the chunk."""

    chunk_id: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class HitTable:
    """A table in a hit: the sentences from ``first`` to below ``last`` are its lines.

    ``header`` are the cells of the table's header. The header's line is the first of the sentences only if
    ``has_header`` is true.
    """

    first: int
    last: int
    header: tuple[str, ...]
    has_header: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage: one chunk, or neighbouring chunks of one section.

    ``relevance_score`` is 0..1 and comparable between searches of a collection; ``score`` is the score of the fusion.
    ``passage`` is the number of its first chunk in the document, from 1. ``tables`` are the tables among its sentences.
    ``scanned`` means that OCR read the text from an image, or a language model if ``scanned_by`` is "model".
    """

    document_id: str
    document_name: str
    heading_path: tuple[str, ...]
    page: int | None
    cells: str | None
    score: float
    relevance_score: float
    sentences: tuple[Sentence, ...]
    passage: int = 0
    tables: tuple[HitTable, ...] = ()
    scanned: bool = False
    scanned_by: str = ""

    def to_json(self) -> Json:
        """Return the hit as JSON for the structured content of a tool result."""
        rounded = {"score": round(self.score, 6), "relevance_score": round(self.relevance_score, 4)}
        lists = {"heading_path": [*self.heading_path], "sentences": [asdict(sentence) for sentence in self.sentences]}
        lists["tables"] = [{**asdict(table), "header": [*table.header]} for table in self.tables]
        return {**asdict(self), **rounded, **lists}

    @classmethod
    def from_json(cls, data: Json) -> "Hit":
        """Build the hit from a camelCase object."""
        sentences = tuple(_flat(Sentence, sentence) for sentence in data["sentences"])
        tables = tuple(
            HitTable(table["first"], table["last"], tuple(table["header"]), table["hasHeader"])
            for table in data.get("tables", ())
        )
        return replace(_flat(Hit, data), heading_path=tuple(data["headingPath"]), sentences=sentences, tables=tables)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that a search considered; the score of a leg is None if the leg did not score the chunk.

    Ranks count from 1. A leg's rank is None for a chunk outside the leg's own candidates, even if the leg scored the
    chunk. ``above_threshold`` means relevant enough for a hit. ``reranked`` is the reranker's score, None for chunks
    that the reranker did not read. ``hit`` is the number of the hit that contains the chunk, None if no hit does.
    """

    chunk_id: str
    lexical: float | None
    dense: float | None
    fused: float
    relevance_score: float
    lexical_rank: int | None = None
    dense_rank: int | None = None
    fused_rank: int | None = None
    above_threshold: bool | None = None
    reranked: float | None = None
    reranked_rank: int | None = None
    hit: int | None = None


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The record of one search; ``took_ms`` includes embedding the question.

    ``mode`` is hybrid if the dense leg had a vote, and ``dense_weight`` is the weight of this vote. ``note`` explains
    why the dense leg had no vote although the collection has vectors, or why nothing was reranked. ``incomplete`` names
    the parts that were not searched while a lost index is rebuilt. ``threshold``, ``top_k`` and ``fusion`` are the
    parameters of the search. ``reranked`` means that the reranker decided the order of the hits. ``unmatched`` are the
    parts of a question about several things that no passage matches, if at least one part has a match.
    """

    retrieval_id: str
    collection: str
    query: str
    mode: Mode
    hits: tuple[Hit, ...]
    candidates: tuple[Candidate, ...]
    took_ms: float
    dense_weight: float = 0.0
    note: str | None = None
    incomplete: str | None = None
    threshold: float | None = None
    top_k: int | None = None
    fusion: str | None = None
    reranked: bool = False
    unmatched: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, answer: Json, collection: str) -> Self:
        """Build the record from a server's answer. Raises KeyError and TypeError on another object."""
        return cls(
            retrieval_id=answer["retrievalId"],
            collection=collection,
            query=answer["query"],
            mode=answer["mode"],
            hits=tuple(Hit.from_json(hit) for hit in answer["hits"]),
            candidates=tuple(_flat(Candidate, candidate) for candidate in answer["candidates"]),
            took_ms=answer.get("tookMs", 0.0),
            dense_weight=answer.get("denseWeight", 0.0),
            note=answer.get("note"),
            incomplete=answer.get("incomplete"),
            threshold=answer.get("threshold"),
            top_k=answer.get("topK"),
            fusion=answer.get("fusion"),
            reranked=answer.get("reranked", False),
            unmatched=tuple(answer.get("unmatched", ())),
        )

    def with_hits(self, hits: Sequence[Hit]) -> Self:
        """Return a copy with these hits, whose candidates have the number of the hit that contains them."""
        numbers = {sentence.chunk_id: number for number, hit in enumerate(hits, 1) for sentence in hit.sentences}
        candidates = tuple(
            candidate
            if candidate.hit == numbers.get(candidate.chunk_id)
            else replace(candidate, hit=numbers.get(candidate.chunk_id))
            for candidate in self.candidates
        )
        return replace(self, hits=tuple(hits), candidates=candidates)


def share_place(one: Chunk, other: Chunk) -> bool:
    """Return whether a citation would name the same page, cells and section for both chunks."""
    return _place(one) == _place(other)


def _place(chunk: Chunk) -> tuple[object, ...]:
    return chunk.document_id, chunk.heading_path, chunk.page, chunk.cells, chunk.scanned, chunk.scanned_by


def join_chunks(chunks: Sequence[Chunk], *, score: float = 1.0, relevance_score: float = 1.0) -> Hit:
    """Join chunks of one place, given in their order, into a hit."""
    sentences: list[Sentence] = []
    end = -1
    for chunk in chunks:
        for span in chunk.sentences:
            # Chunks may overlap: the overlap is shown and cited once.
            if chunk.start + span.start >= end:
                sentences.append(Sentence(chunk.chunk_id, chunk.text[span.start : span.end], span.start, span.end))
                end = chunk.start + span.end
    first = chunks[0]
    return Hit(
        document_id=first.document_id,
        document_name=first.document_name,
        heading_path=first.heading_path,
        page=first.page,
        cells=first.cells,
        score=score,
        relevance_score=relevance_score,
        sentences=tuple(sentences),
        passage=first.ordinal + 1,
        tables=tables_of(sentences, {chunk.chunk_id: chunk for chunk in chunks}),
        scanned=first.scanned,
        scanned_by=first.scanned_by,
    )


def tables_of(sentences: Sequence[Sentence], chunks: Mapping[str, Chunk]) -> tuple[HitTable, ...]:
    """Return the tables whose lines are among the sentences of these chunks."""
    tables: list[HitTable] = []
    for number, sentence in enumerate(sentences):
        chunk = chunks[sentence.chunk_id]
        table = next((table for table in chunk.tables if table.start <= sentence.start < table.end), None)
        if table is None:
            continue
        begins = sentence.start == table.start and table.begins_with_header(chunk.text)
        last = tables[-1] if tables else None
        if last is not None and last.last == number and last.header == table.header and not begins:
            tables[-1] = replace(last, last=number + 1)
        else:
            tables.append(HitTable(number, number + 1, table.header, begins))
    return tuple(tables)


def _flat(kind: type[T], data: Json) -> T:
    """Build a value of a class from a camelCase object.

    Raises:
        KeyError: the object lacks a field that has no default.
    """
    keys = {field.name: camel(field.name) for field in fields(kind)}
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    return kind(**{name: data[key] for name, key in keys.items() if name not in optional or key in data})


def hits_within(hits: Sequence[Hit], tokens: int) -> tuple[Hit, ...]:
    """Return the best hits with about ``tokens`` tokens in total, each hit whole, and always the first hit."""
    fitting: list[Hit] = []
    for hit in hits:
        tokens -= sum(estimate_tokens(sentence.text) for sentence in hit.sentences)
        if fitting and tokens < 0:
            break
        fitting.append(hit)
    return tuple(fitting)
