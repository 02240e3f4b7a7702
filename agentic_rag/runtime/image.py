"""A definition frozen under the hash of its content.

Owns the hash. A turn records the image it ran on, so that a resumed turn runs on the settings it began with
and a reader can tell which settings gave an answer. Knows no database.
"""

import hashlib
from dataclasses import dataclass

import orjson

from agentic_rag.runtime.definition import Definition


@dataclass(frozen=True, slots=True)
class Image:
    """``id`` is ``img_`` and the first 32 hex digits of the SHA-256 of the canonical JSON form."""

    id: str
    definition: Definition

    @classmethod
    def of(cls, definition: Definition) -> "Image":
        """Freeze a definition."""
        canonical = orjson.dumps(definition.to_json(), option=orjson.OPT_SORT_KEYS)
        return cls(f"img_{hashlib.sha256(canonical).hexdigest()[:32]}", definition)
