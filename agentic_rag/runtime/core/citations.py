"""Citations: from what a model claims to what a passage says. Pure.

Owns the check that makes a citation true: its text must stand in the passage that its index names; and the passages
that a delegate hands on with its answer. Knows no turn and no numbering of events.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentic_rag.events import CitedTable, Reference
from agentic_rag.json_form import from_json, to_json
from agentic_rag.messages import PASSAGE, REFERENCES, Block, Message, Passage, without_private
from agentic_rag.models.base import Citation
from agentic_rag.runtime.core.sent_messages import CitablePassage
from mcp_servers.folding import fold

MAX_ROWS = 20
"""Rows of a table that one citation shows as cells."""
MAX_REFERENCES = 1_000
"""What one turn may cite: each citation is looked for among them."""


def with_resolving(block: Block, citations: Sequence[Citation], passages: Sequence[CitablePassage | None]) -> Block:
    """Return a text with those of its raw citations alone that quote what the request holds at their place.

    The text goes back to a service, and a strict one refuses a citation that another one invented. One of a passage
    whose document was deleted meanwhile stays as it came: its words are still in the request.
    """
    if "citations" not in block:
        return block
    kept = [each.raw for each in citations if _resolves(each, passages)]
    return {key: value for key, value in block.items() if key != "citations"} | ({"citations": kept} if kept else {})


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
    """Whether sentences say what is cited, joined with or without spaces. Text is compared folded (`folding`)."""
    words = fold(cited).text.strip()
    return bool(words) and any(words in fold(joint.join(texts)).text for joint in ("", " "))


def verify(
    citation: Citation, passages: Sequence[CitablePassage | None], known: Sequence[Reference]
) -> Reference | None:
    """Return the reference a citation stands for: one of ``known`` or a new one with the next number.

    None if the cited text is not what the passage says. Both are compared folded, so that spaces, case and the width of
    characters do not count; the reference has the passage's own text. None too past `MAX_REFERENCES`.
    """
    if not 0 <= citation.search_result_index < len(passages):
        return None
    citable = passages[citation.search_result_index]
    if citable is None or not 0 <= citation.start < citation.end <= len(citable.texts):
        return None
    texts = citable.texts[citation.start : citation.end]
    spaced = " ".join(" ".join(texts).split())
    lost = "" in citable.source.chunk_ids[citation.start : citation.end]  # their document was deleted
    if lost or not _is_quoted(citation.cited_text, texts):
        return None
    chunk = citable.source.chunk_ids[citation.start]
    verified = None if citation.verified else False
    for reference in known:
        if (reference.chunk_id, reference.cited_text, reference.verified) == (chunk, spaced, verified):
            return reference
    if len(known) >= MAX_REFERENCES:
        return None
    return Reference(
        number=len(known) + 1,
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
    )


def _cited_table(citation: Citation, citable: CitablePassage) -> CitedTable | None:
    """Return the cited rows with their header, if all that is cited are rows of one table."""
    for table in citable.source.tables or ():
        if table.first <= citation.start and citation.end <= table.last and citation.end - citation.start <= MAX_ROWS:
            rows = tuple(_cells(text) for text in citable.texts[citation.start : citation.end])
            return CitedTable(table.header, rows)
    return None


def _cells(row: str) -> tuple[str, ...]:
    """Return the cells of a table's row as the retriever writes it: `Ada |  | 50`; the outer spaces may be missing."""
    row = row.strip()
    return tuple(f"{' ' * row.startswith('| ')}{row}{' ' * row.endswith(' |')}".split(" | "))


def references_of(messages: Sequence[Message]) -> list[Reference]:
    """Return the references of a turn from its committed messages, by number."""
    references: dict[int, Reference] = {}
    for message in messages:
        for block in message["content"]:
            for document in block.get(REFERENCES, ()):
                reference = from_json(Reference, document)
                references.setdefault(reference.number, reference)
    return [references[number] for number in sorted(references)]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Passages that stand behind an answer: ``search_result`` blocks, and how many more there were."""

    blocks: tuple[Block, ...] = ()
    left_out: int = 0


def evidence_of(
    messages: Sequence[Message], references: Sequence[Reference], agent: str, budget: int, *, uncited: bool = False
) -> Evidence:
    """Return the passages that a delegate's references stand in, for the transcript of the agent that asked it.

    Each is whole, with all its sentences and their chunks: those that do not fit any more are left out.

    Args:
        messages: the delegate's, oldest first.
        references: what its answer cites, by number.
        agent: its path.
        budget: UTF-8 bytes that the texts of the passages may have together.
        uncited: hand on what it found besides, too: its work was cut off.
    """
    results = [block for message in messages for block in message["content"] if block["type"] == "tool_result"]
    passages = [
        (part, passage) for block in results for part in block["content"] if (passage := Passage.of(part)) is not None
    ]
    chosen = [found for reference in references if (found := _place_of(reference, passages)) is not None]
    if uncited:
        chosen += sorted(passages, key=lambda found: -found[1].score)
    distinct: dict[tuple[str, tuple[str, ...]], tuple[Block, Passage]] = {}
    for part, passage in chosen:
        distinct.setdefault((passage.document_id, passage.chunk_ids), (part, passage))
    kept: list[Block] = []
    for part, passage in distinct.values():
        size = len(part["title"].encode()) + sum(len(inner["text"].encode()) for inner in part["content"])
        if size <= budget:
            budget -= size
            handed_on = replace(passage, agent=passage.agent or agent)
            kept.append(without_private(part) | {PASSAGE: to_json(handed_on)})
    return Evidence(tuple(kept), len(distinct) - len(kept))


def _place_of(reference: Reference, passages: Sequence[tuple[Block, Passage]]) -> tuple[Block, Passage] | None:
    """Return the newest passage in which a reference's text stands, None if it is nowhere any more."""
    for part, passage in reversed(passages):
        spaced = " ".join(" ".join(inner["text"] for inner in part["content"]).split())
        if reference.chunk_id in passage.chunk_ids and reference.cited_text in spaced:
            return part, passage
    return None
