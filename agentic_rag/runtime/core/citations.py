"""Verification of a model's citations against the cited passages. Pure.

Owns the check that makes a citation true: the passage at the cited index must contain the cited text. Also selects the
passages that a delegate hands to its caller with the answer. Knows no turn and no numbering of events.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentic_rag.base.events import CitedTable, Reference
from agentic_rag.base.json_form import from_json, to_json
from agentic_rag.base.messages import PASSAGE, REFERENCES, Block, Message, Passage, without_private
from agentic_rag.models.base import Citation
from agentic_rag.runtime.core.sent_messages import CitablePassage
from mcp_servers.folding import fold

MAX_ROWS = 20
"""Most rows of a table that one citation shows as cells."""
MAX_REFERENCES = 1_000
"""Most references of one turn, because each new citation is compared with all of them."""


def with_resolving(block: Block, citations: Sequence[Citation], passages: Sequence[CitablePassage | None]) -> Block:
    """Return a text block without the citations that do not quote a passage of the request.

    The text is sent back to a service, and a strict service refuses a citation that another service invented. A
    citation of a passage whose document was deleted meanwhile is kept, because the request still contains the words.
    """
    if "citations" not in block:
        return block
    resolving = [citation.raw for citation in citations if _resolves(citation, passages)]
    return {key: value for key, value in block.items() if key != "citations"} | (
        {"citations": resolving} if resolving else {}
    )


def _resolves(citation: Citation, passages: Sequence[CitablePassage | None]) -> bool:
    if not 0 <= citation.search_result_index < len(passages):
        return False
    citable = passages[citation.search_result_index]
    if citable is None:
        return True
    if not 0 <= citation.start < citation.end <= len(citable.texts):
        return False
    texts = citable.texts[citation.start : citation.end]
    return _is_quoted(citation.cited_text, texts)


def _is_quoted(cited: str, texts: Sequence[str]) -> bool:
    """Return whether sentences contain the cited text, joined with or without spaces.

    Both are compared folded (`fold`).
    """
    words = fold(cited).text.strip()
    return bool(words) and any(words in fold(joint.join(texts)).text for joint in ("", " "))


def verify(
    citation: Citation, passages: Sequence[CitablePassage | None], references: Sequence[Reference]
) -> Reference | None:
    """Return the reference for a citation: one of ``references``, or a new one with the next number.

    Returns None if the passage does not contain the cited text. Both are compared folded, so spaces, case and character
    width do not matter. The reference holds the passage's own text. Returns None too if there are `MAX_REFERENCES`
    references and the citation needs a new one.
    """
    if not 0 <= citation.search_result_index < len(passages):
        return None
    citable = passages[citation.search_result_index]
    if citable is None or not 0 <= citation.start < citation.end <= len(citable.texts):
        return None
    texts = citable.texts[citation.start : citation.end]
    spaced = " ".join(" ".join(texts).split())
    deleted = "" in citable.source.chunk_ids[citation.start : citation.end]  # the document was deleted
    if deleted or not _is_quoted(citation.cited_text, texts):
        return None
    chunk = citable.source.chunk_ids[citation.start]
    verified = None if citation.verified else False
    for reference in references:
        if (reference.chunk_id, reference.cited_text, reference.verified) == (chunk, spaced, verified):
            return reference
    if len(references) >= MAX_REFERENCES:
        return None
    return Reference(
        number=len(references) + 1,
        document_id=citable.source.document_id,
        document_name=citable.source.document_name,
        chunk_id=chunk,
        page=citable.source.page,
        cells=citable.source.cells,
        cited_text=spaced,
        score=citable.source.score,
        agent=citable.source.agent,
        verified=verified,
        table=_cited_table(citation, citable),
        scanned=citable.source.scanned,
        scanned_by=citable.source.scanned_by,
        document_date=citable.source.document_date,
        review_by=citable.source.review_by,
        source_uri=citable.source.source_uri,
    )


def _cited_table(citation: Citation, citable: CitablePassage) -> CitedTable | None:
    """Return the cited rows with their header if the citation covers only rows of one table, else None."""
    for table in citable.source.tables or ():
        if table.first <= citation.start and citation.end <= table.last and citation.end - citation.start <= MAX_ROWS:
            rows = tuple(_cells(text) for text in citable.texts[citation.start : citation.end])
            return CitedTable(table.header, rows)
    return None


def _cells(row: str) -> tuple[str, ...]:
    """Return the cells of a table row as the retriever writes it: `Ada |  | 50`. The outer spaces may be missing."""
    row = row.strip()
    return tuple(f"{' ' * row.startswith('| ')}{row}{' ' * row.endswith(' |')}".split(" | "))


def references_of(messages: Sequence[Message]) -> list[Reference]:
    """Return the references of a turn from its committed messages, sorted by number."""
    references: dict[int, Reference] = {}
    for message in messages:
        for block in message["content"]:
            for document in block.get(REFERENCES, ()):
                reference = from_json(Reference, document)
                references.setdefault(reference.number, reference)
    return [references[number] for number in sorted(references)]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Passages that support a delegate's answer.

    ``blocks``: ``search_result`` blocks. ``left_out``: how many did not fit.
    """

    blocks: tuple[Block, ...] = ()
    left_out: int = 0


def evidence_of(
    messages: Sequence[Message], references: Sequence[Reference], agent: str, budget: int, *, uncited: bool = False
) -> Evidence:
    """Return the passages that a delegate's references cite, for the transcript of the calling agent.

    Each passage is whole, with all its sentences and their chunks. Passages over the budget are left out.

    Args:
        messages: the delegate's messages, oldest first.
        references: the citations of its answer, by number.
        agent: path of the delegate.
        budget: most UTF-8 bytes for the texts of all passages together.
        uncited: also return passages that were found and not cited, because the delegate was cut off.
    """
    results = [block for message in messages for block in message["content"] if block["type"] == "tool_result"]
    passages = [
        (part, passage) for block in results for part in block["content"] if (passage := Passage.of(part)) is not None
    ]
    chosen = [place for reference in references if (place := _place_of(reference, passages)) is not None]
    if uncited:
        chosen += sorted(passages, key=lambda pair: -pair[1].score)
    distinct: dict[tuple[str, tuple[str, ...]], tuple[Block, Passage]] = {}
    for part, passage in chosen:
        distinct.setdefault((passage.document_id, passage.chunk_ids), (part, passage))
    blocks: list[Block] = []
    for part, passage in distinct.values():
        size = len(part["title"].encode()) + sum(len(inner["text"].encode()) for inner in part["content"])
        if size <= budget:
            budget -= size
            handed_on = replace(passage, agent=passage.agent or agent)
            blocks.append(without_private(part) | {PASSAGE: to_json(handed_on)})
    return Evidence(tuple(blocks), len(distinct) - len(blocks))


def _place_of(reference: Reference, passages: Sequence[tuple[Block, Passage]]) -> tuple[Block, Passage] | None:
    """Return the newest passage that contains a reference's text, or None."""
    for part, passage in reversed(passages):
        spaced = " ".join(" ".join(inner["text"] for inner in part["content"]).split())
        if reference.chunk_id in passage.chunk_ids and reference.cited_text in spaced:
            return part, passage
    return None
