"""Images that come with a user's message, on their way to be kept.

Owns the order in which they are stored: the files before the transaction that accepts the message, and none is left of
a message that was not accepted. A kill between the two leaves a file without a record, which the doctor finds.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from agentic_rag.messages import KeptImage
from agentic_rag.store.payloads import PayloadFiles


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image and its bytes."""

    image: KeptImage
    data: bytes


@asynccontextmanager
async def keep_images(files: PayloadFiles, images: Sequence[SentImage]) -> AsyncGenerator[set[str]]:
    """Write the images; at the end those go whose refs were not put into the set that this yields.

    Raises:
        StorageFull: they cannot be written; nothing is left.
    """
    kept: set[str] = set()
    try:
        for each in images:
            await files.write(each.image.ref, each.data)
        yield kept
    finally:
        gone = [each.image.ref for each in images if each.image.ref not in kept]
        if gone:
            with anyio.CancelScope(shield=True):
                await files.remove(gone)
