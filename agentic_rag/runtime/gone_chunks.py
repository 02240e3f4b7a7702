"""Which passages of a conversation no longer exist: asked of the index once for each, until a document changes.

Owns what is asked anew. A deletion interrupts nobody: each step asks for what it is about to send.
"""

from functools import partial

from agentic_rag.runtime.core.transcript import GoneChunks, Transcript
from agentic_rag.runtime.services import Resources


async def find_gone(resources: Resources, domain_id: str, transcript: Transcript) -> frozenset[str]:
    """Return ids of the chunks in what is sent that no answer may cite any more. A store that refuses is waited for.

    Where several servers share a store another one may delete a document: all are asked for then.
    """
    services, chunks = resources.services, transcript.cited
    if not chunks:
        return frozenset()
    mark = None if resources.shared else services.documents_mark(domain_id)
    known = transcript.gone_chunks
    if mark is None or known.mark is not mark:
        known = GoneChunks(mark)
    if new := chunks - known.asked:
        missing = await resources.journal.insist(partial(services.missing_chunks, domain_id, new))
        known = GoneChunks(mark, frozenset(chunks), (known.gone & chunks) | missing)
    transcript.note_gone(known)
    return known.gone & chunks
