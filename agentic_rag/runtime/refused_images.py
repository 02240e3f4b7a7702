"""The images in this process that a model's service could not read.

No request to that model contains such an image. After a restart, the service refuses the image once more. Knows no
turn.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import Block
from agentic_rag.models.base import ModelRequest

MAX_IMAGES: Final = 10_000
"""Most images remembered. The oldest is dropped."""

_REFUSALS: Final = frozenset({400, 415, 422})
_IMAGE: Final = re.compile(r"\bimages?\b|\bimage_|\.image\.", re.IGNORECASE)
_PLACE: Final = re.compile(r"\bmessages\.(\d+)\.content\.(\d+)(?:(?:\.tool_result)?\.content\.(\d+))?")
"""``messages.2.content.0.tool_result.content.1.image.source.base64: …``"""


class RefusedImages:
    """The verdicts of models' services about images, by model and ref."""

    def __init__(self) -> None:
        self._readable: dict[tuple[str, str], bool] = {}

    def accept(self, model: str, refs: AbstractSet[str]) -> None:
        """Record that a model's service accepted a request with these images."""
        for ref in refs:
            self._note(model, ref, readable=True)

    def refuse(self, model: str, refs: AbstractSet[str], named: AbstractSet[str]) -> AbstractSet[str]:
        """Record a refusal of a request with the images ``refs``, and return the images that are dropped.

        These are the images that the refusal names, else those that the service has never accepted, else all.
        """
        new = {ref for ref in refs if (model, ref) not in self._readable}
        dropped = named & refs or new or refs
        for ref in dropped:
            self._note(model, ref, readable=False)
        return dropped

    def without_refused(self, model: str, refs: AbstractSet[str]) -> AbstractSet[str]:
        """Return the images that a request to a model may contain."""
        return {ref for ref in refs if self._readable.get((model, ref), True)} if self._readable else refs

    def _note(self, model: str, ref: str, *, readable: bool) -> None:
        self._readable[model, ref] = readable
        if len(self._readable) > MAX_IMAGES:
            del self._readable[next(iter(self._readable))]


def refuses_image(error: ModelError) -> bool:
    """Return whether a service refused a request because of an image in it."""
    return error.http_status in _REFUSALS and not error.started and _IMAGE.search(str(error)) is not None


def named_images(error: ModelError, request: ModelRequest, pictures: Mapping[str, str]) -> set[str]:
    """Return the refs of the images whose place in a request an error names. ``pictures``: base64 data by ref."""
    place = _PLACE.search(str(error))
    if place is None:
        return set()
    message, block, part = (None if number is None else int(number) for number in place.groups())
    content = request.messages[message]["content"] if message is not None and message < len(request.messages) else []
    blocks = content[block : block + 1] if block is not None else []
    parts = [inner for outer in blocks for inner in _parts_of(outer)]
    if part is not None:
        parts = parts[part : part + 1]
    sent = {inner["source"].get("data") for inner in parts if inner["type"] == "image"}
    return {ref for ref, data in pictures.items() if data in sent}


def _parts_of(block: Block) -> list[Block]:
    return block["content"] if block["type"] == "tool_result" else [block]
