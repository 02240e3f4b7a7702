"""Citations: from what a model claims to what a passage says. Pure.

Owns the check that makes a citation true: its text must stand in the passage that its index names. Knows no
turn and no numbering of events.
"""

from collections.abc import Sequence

from agentic_rag.events import Reference
from agentic_rag.json_form import from_json
from agentic_rag.messages import REFERENCES, Message
from agentic_rag.models.base import Citation
from agentic_rag.runtime.core.request import CitablePassage


def verify(
    citation: Citation, passages: Sequence[CitablePassage | None], known: Sequence[Reference]
) -> Reference | None:
    """Return the reference a citation stands for: one of ``known`` or a new one with the next number.

    None if the cited text is not what the passage says; spaces aside, nothing is forgiven.
    """
    if not 0 <= citation.search_result_index < len(passages):
        return None
    citable = passages[citation.search_result_index]
    if citable is None or not 0 <= citation.start < citation.end <= len(citable.texts):
        return None
    texts = citable.texts[citation.start : citation.end]
    cited = " ".join(citation.cited_text.split())
    stored = " ".join("".join(texts).split())
    spaced = " ".join(" ".join(texts).split())
    lost = "" in citable.source.chunk_ids[citation.start : citation.end]  # their document was deleted
    if not cited or lost or (cited not in stored and cited not in spaced):
        return None
    chunk = citable.source.chunk_ids[citation.start]
    for reference in known:
        if reference.chunk_id == chunk and reference.cited_text == spaced:
            return reference
    return Reference(
        number=len(known) + 1,
        document_id=citable.source.document_id,
        document_name=citable.source.document_name,
        chunk_id=chunk,
        page=citable.source.page,
        cells=citable.source.cells,
        cited_text=spaced,
        relevance_score=citable.source.score,
    )


def references_of(messages: Sequence[Message]) -> list[Reference]:
    """Return the references of a turn from its committed messages, by number."""
    references: dict[int, Reference] = {}
    for message in messages:
        for block in message["content"]:
            for document in block.get(REFERENCES, ()):
                reference = from_json(Reference, document)
                references.setdefault(reference.number, reference)
    return [references[number] for number in sorted(references)]
