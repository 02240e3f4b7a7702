"""Lookup of a conversation's passages that no longer exist, or that its reader may no longer see.

Each chunk is looked up in the index once, and again after a document of the domain has changed. A deletion interrupts
no turn, because each step checks the passages that it is about to send.
"""

from collections.abc import Collection
from functools import partial

from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.transcript import GoneChunks, Transcript
from agentic_rag.runtime.services import Resources


async def find_gone(resources: Resources, domain_id: str, transcript: Transcript) -> frozenset[str]:
    """Return ids of the chunks in the sent messages that no answer may cite any more.

    Retries while the store refuses.

    If several servers share a store, another one may delete a document, so each call looks up all chunks.
    """
    services, chunks = resources.services, transcript.cited
    if not chunks:
        return frozenset()
    mark = None if resources.shared else services.documents_mark(domain_id)
    gone_chunks = transcript.gone_chunks
    if mark is None or gone_chunks.mark is not mark:
        gone_chunks = GoneChunks(mark)
    if new := chunks - gone_chunks.asked:
        missing = await resources.journal.insist(partial(services.missing_chunks, domain_id, new))
        gone_chunks = GoneChunks(mark, frozenset(chunks), (gone_chunks.gone & chunks) | missing)
    transcript.note_gone(gone_chunks)
    return gone_chunks.gone & chunks


async def find_hidden(resources: Resources, definition: Definition, transcript: Transcript) -> frozenset[str]:
    """Return ids of the documents in the sent messages that the reader may not see. Retries while the store refuses.

    Each call looks up the reader's present rights, so that a lost right counts from the next request to the model.
    """
    documents = frozenset(transcript.cited_documents)
    if not documents:
        return frozenset()
    return frozenset(await resources.journal.insist(partial(resources.hidden_documents, definition, documents)))


def chunks_of(transcript: Transcript, documents: Collection[str]) -> frozenset[str]:
    """Return the ids of the chunks of some documents in the sent messages."""
    chunks = transcript.cited_documents if documents else {}
    return frozenset(chunk for document in documents for chunk in chunks.get(document, ()))
