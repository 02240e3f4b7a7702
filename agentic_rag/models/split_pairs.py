r"""Surrogate pairs that a stream splits over two events.

A token may end inside a surrogate pair. Some services then send one half of an emoji in one event and the other half
in the next, as JSON escapes (``\ud83d`` and ``\ude00``). Such JSON is legal (RFC 8259, section 8.2), although strict
parsers refuse it. This module reads such events and joins the halves. Pure.
"""

import json
import re
from collections.abc import Hashable
from typing import Any, Final

import orjson

from agentic_rag.base.messages import clean_json

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_HIGH_AT_END: Final = re.compile("[\ud800-\udbff]\\Z")


def loads(data: bytes | str) -> Any:
    """Parse a JSON text. Strings may hold lone surrogates, which orjson refuses.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data if isinstance(data, str) else data.decode("utf-8", "surrogatepass")
        if "\\u" not in text and not _SURROGATE.search(text):
            raise
        try:
            return json.loads(text, parse_constant=_refuse)
        except RecursionError as exc:  # orjson reports such a depth as an error of the text
            raise ValueError("nested too deep") from exc


def loads_clean(data: str) -> Any:
    """Parse a JSON text and replace lone surrogates by question marks.

    Raises:
        ValueError: the text is not JSON.
    """
    value = loads(data)
    return value if data.isascii() and "\\u" not in data else clean_json(value)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class SplitPairs:
    """Joins split surrogate pairs in several streamed texts, each with its own key."""

    __slots__ = ("_halves",)

    def __init__(self) -> None:
        self._halves: dict[Hashable, str] = {}

    def join(self, key: Hashable, piece: str) -> str:
        """Return the next piece of the text ``key`` in complete characters.

        A high surrogate at the end waits for the next piece. A half without its other half becomes U+FFFD.
        """
        half = self._halves.pop(key, "")
        if not half and (piece.isascii() or not _SURROGATE.search(piece)):
            return piece
        if not piece:
            self._halves[key] = half
            return ""
        text = half + piece
        if _HIGH_AT_END.search(text):
            self._halves[key] = text[-1]
            text = text[:-1]
        # In UTF-16 the two halves are one character.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def end(self, key: Hashable) -> str:
        """End the text ``key``. Returns U+FFFD if half a character is left, else an empty string."""
        return "\ufffd" if self._halves.pop(key, "") else ""
