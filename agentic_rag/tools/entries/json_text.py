"""JSON in the form of configuration files: with comments, trailing commas and a byte order mark. Pure.

`read_json_text` blanks out comments and trailing commas in place and passes the rest to the standard library, so that
each error keeps its line and column. Comment marks inside strings are untouched. The work grows linearly with the text.
Single quotes, unquoted keys and other extensions of JSON5 are refused like any other broken JSON.
"""

import codecs
import json
import re
from collections.abc import Sequence

from agentic_rag.base.errors import InvalidInput

# Each alternative always matches to its end, also when the closing mark is missing: no text is scanned twice.
_STRING = r'"(?:[^"\\\n]++|\\.)*+"?'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_VISIBLE = re.compile(r"[^\n]")
_SMART_QUOTES = "\u201c\u201d\u2018\u2019\u00ab\u00bb"


class RepeatedKeys(dict[str, object]):
    """A JSON object with repeated keys. ``repeated``: those keys; the last value of each is kept."""

    repeated: frozenset[str]

    def __init__(self, pairs: Sequence[tuple[str, object]]) -> None:
        super().__init__(pairs)
        keys: set[str] = set()
        twice: set[str] = set()
        for key, _ in pairs:
            (twice if key in keys else keys).add(key)
        self.repeated = frozenset(twice)


def read_json_text(data: bytes | str, path: str = "body") -> object:
    """Return the JSON value of a text. An object with a repeated key is a `RepeatedKeys`.

    Args:
        data: at most as long as the caller allows; bytes are UTF-8, or UTF-16 with a byte order mark.
        path: the name of the text in messages.

    Raises:
        InvalidInput: Names the line and the column of the invalid part.
    """
    text = data if isinstance(data, str) else _decode(data, path)
    text = text.removeprefix("\ufeff")
    try:
        plain = _TRAILING_COMMA.sub(_blank_comma, _COMMENT.sub(_blank_comment, text))
    except _Unclosed as exc:
        raise InvalidInput(path, f"{_place(text, exc.at)}: this comment has no end; close it with */.") from exc
    try:
        value: object = json.loads(plain, object_pairs_hook=_make_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        raise InvalidInput(path, f"not valid JSON: {_place(text, exc.pos)}: {_explain(exc, plain)}") from exc
    except RecursionError as exc:
        raise InvalidInput(path, "not valid JSON: objects and lists are nested too deep.") from exc
    except ValueError as exc:  # a constant that JSON does not have, or a number of thousands of digits
        raise InvalidInput(path, f"not valid JSON: {str(exc)[:200]}") from exc
    return value


class _Unclosed(Exception):
    """A block comment without an end. ``at``: its start."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at


def _decode(data: bytes, path: str) -> str:
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            path, f"not valid JSON: byte {exc.start} is not {encoding.upper()}; save it as UTF-8."
        ) from exc


def _blank_comment(match: re.Match[str]) -> str:
    text = match[0]
    if text[0] == '"':
        return text
    if text.startswith("/*") and (len(text) < 4 or not text.endswith("*/")):
        raise _Unclosed(match.start())
    return _VISIBLE.sub(" ", text)


def _blank_comma(match: re.Match[str]) -> str:
    return " " if match[0] == "," else match[0]


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    return document if len(document) == len(pairs) else RepeatedKeys(pairs)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value; use a number, a text or null.")


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"


def _explain(exc: json.JSONDecodeError, text: str) -> str:
    """Explain an error and how to correct it; at most one character of the text is quoted."""
    character = text[exc.pos : exc.pos + 1]
    if character and character in _SMART_QUOTES:
        return 'a typographic quotation mark; JSON needs the straight one (").'
    if character == "'":
        return 'a text in single quotes; JSON needs double quotes (").'
    if not character.strip() and not text[exc.pos :].strip():
        return "the text ends too early; a closing bracket or quotation mark is missing."
    reasons = {
        "Extra data": "there is more text after the end of the JSON value.",
        "Expecting ',' delimiter": "a comma or a closing bracket is missing before this.",
        "Expecting ':' delimiter": "a colon is missing after the key.",
        "Expecting value": "a value is missing here.",
        "Expecting property name enclosed in double quotes": 'a key in double quotes (") is expected here.',
        "Invalid \\escape": "a backslash in a text is written twice: C:\\\\Users\\\\me.",
        "Invalid control character at": "a line end or a tab inside a text; write \\n or \\t.",
        "Unterminated string starting at": "this text has no closing quotation mark.",
    }
    message = exc.msg.removesuffix(": ").strip()
    return next((words for start, words in reasons.items() if message.startswith(start)), f"{message}.")
