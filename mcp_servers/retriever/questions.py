"""Analysis of a question: its parts, and the codes that an answer must contain.

Both are read from the surface of the question, in any language: punctuation, conjunctions and digits. The module does
no I/O.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from mcp_servers.folding import fold_text
from mcp_servers.retriever.lexical import number_tokens, query_vector, token_id, whole_codes

MAX_PARTS = 3
"""Maximum number of parts of a question that are searched separately."""

MAX_PART = 500
"""Maximum number of characters of a question that is split: a longer text is no question."""

LEAST_NUMBER = 100
"""Smaller numbers are too frequent to identify a passage, so a passage without them may still be relevant."""

IDENTIFYING_DIGITS = 4
"""Minimum number of digits of a number that identifies a passage; 4 or 500 occur everywhere, 4101 does not."""

_LABELLED = re.compile(
    r"\b(?:fault|error|code|line|channel|room|gate|berth|page|table|figure|section|chapter|version|revision|model|lane"
    r"|track|platform|form|type|step|rule|notice|annex|fehler|störung|linie|kanal|raum|zimmer|tor|seite|tabelle"
    r"|abbildung|abschnitt|kapitel|fassung|spur|gleis|formular|parzelle|stufe|regel|anlage|anhang) (\d{1,2})\b"
)
"""A number that is the name of a thing, so that even a small one is required."""
_ENDS = re.compile(r"(?<=[?？!！;；])\s*|(?<=。)")
_CONJUNCTION = re.compile(
    r"\s*[,，]?\s+(?:and|or|versus|vs\.?|und|oder|sowie|et|ou|y|compared (?:with|to)|in comparison (?:with|to)"
    r"|verglichen mit|im vergleich (?:mit|zu|zum|zur))\s+"
    r"|\s*(?:以及|还是|还有|或者|[，、和与跟或])\s*",
    re.IGNORECASE,
)
_COMPARE = re.compile(r"(?:please |bitte )?(?:compare|vergleichen? sie|vergleiche?)\s+(.+)", re.IGNORECASE | re.DOTALL)
_REQUEST = re.compile(r"^(?:请)?(?:比较|对比)(?:一下)?")
_COMPARED_WITH = re.compile(r"\s+(?:with|to|mit)\s+", re.IGNORECASE)
"""A request to compare two things, and the word between them."""
_HEAD = re.compile(
    r"(.+?\s(?:of|between|von|des|zwischen)\s+(?:(?:the|a|an|der|dem|den)\s+)?)\S.*", re.IGNORECASE | re.DOTALL
)
"""A part that begins with what is asked of several things: "the noise of the Brisa 300" and "the Brisa 900"."""
_SHORT = re.compile(r"(?:(?:the|a|an|der|die|das|des|dem|den)\s+)?((?:\S+\s*){1,3})[?.!]?", re.IGNORECASE)
_OF = re.compile(r"(?:of|von)\s+", re.IGNORECASE)
_LINK = re.compile(
    r"\b(?:of|in|on|at|for|with|is|are|how|what|which|who|when|where|von|im|am|für|mit|ist|wie|was|wer|wann|wo)\b",
    re.IGNORECASE,
)
"""A part that is a thing alone, and the words that make it more than that."""
_TAIL = re.compile(r"[^的]+(的[^的]+)")
_LONGEST_THING = 10
"""Maximum number of characters of a thing in a Chinese part: "微风300"."""
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


def split_question(text: str) -> list[str]:
    """Return the parts of a question about several things, or an empty list for a question about one.

    A question is split after its sentences and at its conjunctions, and a request to compare also at "with". Each part
    must have two words, or one in a script without spaces. A question with more than `MAX_PARTS` parts is not split.
    """
    if len(text) > MAX_PART:
        return []
    parts: list[str] = []
    for sentence in filter(None, map(str.strip, _ENDS.split(text))):
        request = _COMPARE.fullmatch(sentence)
        pieces = [piece.strip() for piece in _CONJUNCTION.split(request[1] if request else sentence)]
        if request and len(pieces) == 1:
            pieces = [piece.strip() for piece in _COMPARED_WITH.split(request[1])]
        parts += _share_attribute(pieces) if all(map(_says_something, pieces)) else [sentence]
    parts = [part for part in parts if _says_something(part)]
    return parts if 1 < len(parts) <= MAX_PARTS else []


def _share_attribute(pieces: list[str]) -> list[str]:
    """Return parts that each name what is asked, if only the first one does, or in Chinese only the last one.

    "The noise of the Brisa 300" and "the Brisa 900" become questions for the noise of both.
    """
    if head := _HEAD.fullmatch(pieces[0]):
        alone = [_OF.sub("", piece, count=1) if _OF.match(piece) else piece for piece in pieces[1:]]
        things = [None if _LINK.search(piece) else _SHORT.fullmatch(piece) for piece in alone]
        rest = [head[1] + thing[1] if thing else piece for piece, thing in zip(pieces[1:], things, strict=True)]
        return [pieces[0], *rest]
    tail = _TAIL.fullmatch(pieces[-1])
    if tail and all(len(piece) <= _LONGEST_THING and "的" not in piece for piece in pieces[:-1]):
        return [*(_REQUEST.sub("", piece) + tail[1] for piece in pieces[:-1]), pieces[-1]]
    return pieces


def _says_something(part: str) -> bool:
    return len(query_vector(part).indices) >= (1 if _IDEOGRAPH.search(part) else 2)


class RequiredCode(NamedTuple):
    """A code, clause or larger number of a question. ``ids`` are its tokens, of which a passage needs one.

    ``identifies``: two passages rarely have it by chance, so that a passage with it is relevant in any language.
    """

    ids: frozenset[int]
    identifies: bool


@lru_cache(maxsize=256)
def required_codes(text: str) -> tuple[RequiredCode, ...]:
    """Return the codes, clauses and larger numbers of a question.

    A passage without any of them is unlikely to answer the question.
    """
    text = text[:MAX_PART]
    folded = fold_text(text)
    codes = set(whole_codes(folded))  # "trip 4101" is not a code
    labels = set(_LABELLED.findall(folded))
    required: list[RequiredCode] = []
    for token in dict.fromkeys(number_tokens(text, folded)):
        kind, value = token[0], token[1:]
        if kind == "§":
            required.append(RequiredCode(frozenset((token_id(token), token_id(f"#{value}"))), "." in value))
        elif (kind == "=" and value in codes) or (kind == "#" and (value in labels or _is_telling(value))):
            identifies = kind == "=" or len(value) >= IDENTIFYING_DIGITS
            required.append(RequiredCode(frozenset((token_id(token),)), identifies))
    return tuple(required)


def _is_telling(number: str) -> bool:
    """Return whether a number is rare enough to be required. A year mostly belongs to a date, which may omit it."""
    if number.isdigit():
        return int(number) >= LEAST_NUMBER and not 1900 <= int(number) <= 2100
    return ":" not in number
