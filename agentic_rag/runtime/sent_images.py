"""Images of a user's message, on their way to the store.

Owns the order of writes: files are written before the transaction that accepts the message, and deleted if the message
is not accepted. A kill between the two leaves a file without a record, which the doctor finds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import anyio

from agentic_rag.base.messages import KeptImage
from agentic_rag.store.payloads import PayloadFiles


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image and its bytes."""

    image: KeptImage
    data: bytes


class KeptImages:
    """Context manager that writes images, and deletes them at the end of the block unless `keep` was called.

    Raises `StorageFull` on entry if the images cannot be written. Then no file is left.
    """

    def __init__(self, files: PayloadFiles, images: Sequence[SentImage]) -> None:
        self._files = files
        self._images = images
        self._are_kept = not images

    async def __aenter__(self) -> Self:
        try:
            for image in self._images:
                await self._files.write(image.image.ref, image.data)
        except BaseException:
            await self._remove()
            raise
        return self

    async def __aexit__(self, kind: object, exc: object, trace: object) -> None:
        await self._remove()

    def keep(self) -> None:
        """Keep the images, because the message was accepted."""
        self._are_kept = True

    async def _remove(self) -> None:
        if not self._are_kept:
            with anyio.CancelScope(shield=True):
                await self._files.remove([image.image.ref for image in self._images])
