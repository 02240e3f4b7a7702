"""Validation of the engrams that a model sends, and their limits.

Error texts name the engram and the correct form. Knows no file. Everything is pure except for new random ids.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_servers.promptx.errors import BadEngram
from mcp_servers.promptx.ids import is_plain
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.network import TYPE_WEIGHT, keywords

MAX_BATCH: Final = 100
MAX_CONTENT: Final = 65_536
"""Maximum characters of one engram. A longer text is a document, and documents have their own search."""
MAX_SCHEMA: Final = 8_192
MAX_CUES: Final = 256
_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class NewEngram:
    """An engram that a model asks to save. `schema` holds the keywords in the model's form."""

    content: str
    schema: str
    strength: float
    type: str
    replaces: str = ""
    """Id of the engram that this one replaces."""


def read_batch(items: Sequence[object]) -> list[NewEngram]:
    """Return the engrams of a batch from a model.

    Raises:
        BadEngram: an item has the wrong shape; the error names its index and the correct form.
    """
    return [_read_engram(index, item) for index, item in enumerate(items)]


def _read_engram(index: int, item: object) -> NewEngram:
    if not isinstance(item, Mapping):
        raise BadEngram(index, "must be an object {content, schema, strength, type}.")
    content, schema, strength, kind = (item.get(name) for name in ("content", "schema", "strength", "type"))
    replaces = item.get("replaces") or ""
    if not isinstance(content, str) or not content.strip():
        raise BadEngram(index, "content must be text that is not empty.")
    if not isinstance(schema, str):
        raise BadEngram(index, "schema must be text: keywords separated by spaces, ' - ' or newlines.")
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength <= 1:
        raise BadEngram(index, "strength must be a number from 0 to 1.")
    if not isinstance(replaces, str) or not is_plain(replaces):
        raise BadEngram(index, "replaces must be the id of a memory, as recall gives it.")
    return NewEngram(content, schema, float(strength), str(kind), replaces)


def make_engram(index: int, item: NewEngram, now_ms: int) -> Engram:
    """Return the engram that a model asks to save, with a new id. Raises `BadEngram`, which names ``index``."""
    suffix = "".join(random.choices(_BASE36, k=9))  # an id, not a secret
    cues = tuple(keywords(item.schema))
    engram = Engram(f"{now_ms}_{suffix}", item.content, item.type, item.strength, now_ms, cues, replaces=item.replaces)
    return check_engram(index, engram, len(item.schema))


def check_engram(index: int, engram: Engram, schema_length: int) -> Engram:
    """Return the engram if it is valid; else raise `BadEngram`.

    ``schema_length``: characters of the keywords in their original form.
    """
    if engram.type not in TYPE_WEIGHT:
        raise BadEngram(index, f"type must be ATOMIC, LINK or PATTERN, not {ascii(engram.type)[:40]}.")
    if not 0 <= engram.strength <= 1:
        raise BadEngram(index, "strength must be a number from 0 to 1.")
    if len(engram.content) > MAX_CONTENT:
        raise BadEngram(index, f"content has {len(engram.content)} characters, {MAX_CONTENT} are allowed.")
    if schema_length > MAX_SCHEMA or len(engram.cues) > MAX_CUES:
        raise BadEngram(index, f"schema is too long: {MAX_CUES} keywords and {MAX_SCHEMA} characters are allowed.")
    if len(engram.cues) < 2:
        # PromptX drops such an engram silently, and the model believes that it was saved.
        raise BadEngram(index, f"schema gives {len(engram.cues)} keyword(s), at least 2 are needed.")
    if not all(map(is_plain, (engram.content, engram.id, *engram.cues))):
        raise BadEngram(index, "content or schema contains NUL or a lone surrogate; send plain Unicode text.")
    return engram
