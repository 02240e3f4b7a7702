"""Text folding, so that spellings that look the same to readers compare equal. Pure.

The lexical index, queries, `find_in_document` and the citation check all compare folded text. Stored text is never
changed: `Folded.offsets` maps every folded character back to the source.

Folding applies, in this order:

- NFKC (full-width digits, ligatures, superscripts), then casefold, then NFKC again, because casefold may undo NFKC;
- U+2010 to U+2015 and the minus sign become ``-``, curly quotes become straight ones;
- soft hyphens, bidirectional marks and other zero-width characters are removed. ZWJ and ZWNJ stay between letters of
  scripts that need them (Arabic, Syriac, Mongolian and the Indic scripts);
- superscript digits after a digit or a word of several letters are separated from it by a space, because they are an
  exponent or the mark of a footnote. Units such as m² stay one word;
- each run of white space, of any kind, becomes one space.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

FOLD_VERSION = "2"
"""Part of a collection's metadata. Change it when any text would fold differently: collections are then re-indexed."""

_MARKS = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u064b-\u065f\u06d6-\u06ed\u093c\u09bc\u09be\u09d7\u0b3e\u0b56\u0b57"
    r"\u0bbe\u0bd7\u0c56\u0cc2\u0cd5\u0cd6\u0d3e\u0d57\u0dca\u0dcf\u0ddf\u102e\u1ab0-\u1aff\u1b35\u1dc0-\u1dff"
    r"\u20d0-\u20f0\u3099\u309a\ufe20-\ufe2f\uff9e\uff9f"
)
"""Characters that may compose with the preceding character."""

MAX_TABLE = 2**15
"""Maximum number of characters in a `CharacterTable`: a stranger's text may have any of a million."""

_SPACE = re.compile(r"[\s\u2800]")
_SEGMENT = re.compile(
    # Words that need at most lower case: printable ASCII and common ideographs, with single spaces between them.
    rf"(?P<plain>[!-~\u4e00-\u9fff]+(?: [!-~\u4e00-\u9fff]+)*(?![{_MARKS}]))"
    r"|(?P<space>[\s\u2800]+)"
    # Conjoining jamo are normalised together, and so are a character and its marks.
    rf"|[\u1100-\u115f][\u1160-\u11a7][\u11a8-\u11ff]?|.[{_MARKS}]*",
    re.DOTALL,
)
_CHARACTERS = {
    **dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-"),
    **dict.fromkeys([*range(0x2018, 0x201C)], "'"),
    **dict.fromkeys([*range(0x201C, 0x2020)], '"'),
    0x2044: "/",
}
_SUPERSCRIPT = frozenset("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽")
_LETTERS_OF_UNIT = 3
"""Maximum number of letters of a unit, such as km or mol, before an exponent."""
_JOINERS = "\u200c\u200d"
_COMPOSING = re.compile(rf"[{_MARKS}\u1100-\u11ff{_JOINERS}{''.join(sorted(_SUPERSCRIPT))}]")
"""Characters whose folding depends on the characters before or after them."""
_JOINING = re.compile(r"[\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc]")
_VISIBLE_FORMAT = frozenset(map(chr, (*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2)))
"""Visible characters of the category "format", such as Arabic number signs."""


class Folded(NamedTuple):
    """A folded text and its offsets in the source.

    ``offsets[i]`` is the start of the folded character ``i`` in the source; ``offsets[len(text)]`` is the length of the
    source.
    """

    text: str
    offsets: Sequence[int]

    def source_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the source span of the folded characters ``start`` to ``end`` (exclusive).

        A source character that folds to several characters is part of the span if one of them is. Removed characters
        behind the last one are excluded.
        """
        if start >= end:
            return self.offsets[start], self.offsets[start]
        last = self.offsets[end - 1]
        after = end
        while after < len(self.text) and self.offsets[after] == last:
            after += 1
        return self.offsets[start], self.offsets[after]


def fold(text: str) -> Folded:
    """Fold a text. The result has the offset in ``text`` of each folded character."""
    pieces: list[str] = []
    offsets: list[int] = []
    spaced = False
    for match in _SEGMENT.finditer(text):
        start, end = match.span()
        if match.lastgroup == "plain":
            pieces.append(match[0].lower())
            offsets.extend(range(start, end))
            spaced = False
            continue
        piece = " " if match.lastgroup == "space" else _fold_segment(match[0])
        if match[0] in _JOINERS and _is_between_joining(text, start):
            piece = match[0]
        if match[0] in _SUPERSCRIPT and _is_mark(text, start):
            piece = f" {piece}"
        piece = piece.lstrip(" ") if spaced else piece
        if not piece:
            continue
        pieces.append(piece)
        offsets.extend([start] * len(piece))
        spaced = piece[-1] == " "
    offsets.append(len(text))
    return Folded("".join(pieces), offsets)


def _is_mark(text: str, at: int) -> bool:
    """Whether a superscript character begins an exponent of a number or the mark of a footnote."""
    letters = text[max(0, at - _LETTERS_OF_UNIT - 1) : at]
    return letters[-1:].isdecimal() or (len(letters) > _LETTERS_OF_UNIT and letters.isalpha())


def fold_text(text: str) -> str:
    """Return ``fold(text).text``, several times faster unless a character depends on its neighbours."""
    if not text.isascii() and _COMPOSING.search(text):
        return fold(text).text
    folded = text.translate(_FOLDED)
    while "  " in folded:
        folded = folded.replace("  ", " ")
    return folded


class CharacterTable(dict[int, str]):
    """A table for `str.translate` that computes the replacement of a character when the character first occurs."""

    def __init__(self, replace: Callable[[str], str]) -> None:
        super().__init__()
        self._replace = replace

    def __missing__(self, code: int) -> str:
        text = self._replace(chr(code))
        if len(self) < MAX_TABLE:
            self[code] = text
        return text


def _is_between_joining(text: str, at: int) -> bool:
    """Whether both neighbours of a joiner belong to scripts in which a joiner changes words."""
    return bool(at and _JOINING.match(text[at - 1]) and _JOINING.match(text, at + 1))


@lru_cache(maxsize=4096)
def _fold_segment(segment: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", segment).casefold())
    return "".join(character for character in folded.translate(_CHARACTERS) if not _is_invisible(character))


def _is_invisible(character: str) -> bool:
    if "\ufe00" <= character <= "\ufe0f" or character in "\u034f\u115f\u1160\u3164\u17b4\u17b5":
        return True
    return unicodedata.category(character) == "Cf" and character not in _VISIBLE_FORMAT


_FOLDED = CharacterTable(lambda character: " " if _SPACE.match(character) else _fold_segment(character))
