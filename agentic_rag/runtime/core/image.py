"""A definition frozen under the hash of its content.

Owns the hash. A turn records the image it ran on, so that a resumed turn runs on the settings it began with
and a reader can tell which settings gave an answer. Knows no database.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agentic_rag.runtime.core.definition import Definition

MAX_KNOWN = 256
"""Images that `Images` remembers; one a domain and user."""


@dataclass(frozen=True, slots=True)
class Image:
    """``id`` is ``img_`` and the first 32 hex digits of the SHA-256 of the canonical JSON form, ``content``."""

    id: str
    definition: Definition
    content: Mapping[str, Any]

    @classmethod
    def of(cls, definition: Definition) -> "Image":
        """Freeze a definition."""
        content = definition.to_json()
        canonical = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        return cls(f"img_{hashlib.sha256(canonical).hexdigest()[:32]}", definition, content)


class Images:
    """The images of late: a definition that is as it was for its user's last turn is not hashed again."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, object], Image] = OrderedDict()

    def of(self, definition: Definition) -> Image:
        """Freeze a definition."""
        key = (definition.domain_id, definition.bound.get("user"))
        image = self._known.get(key)
        if image is None or image.definition != definition:
            image = self._known[key] = Image.of(definition)
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return image
