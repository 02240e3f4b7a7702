"""The position of a passage in another form of the same text: a PDF's page, or the chunk of a citation. Pure.

Two readings of one text differ in white space, in hyphens at line ends, in ligatures, in letters with their accents
apart, in dashes and quotation marks. So only letters, marks and figures are compared, in their compatibility form and
without case. Each of them keeps the index of its original character. The time grows linearly with the texts.
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

FIRST_CJK = "\u2e80"
"""The first Chinese or Japanese character."""

MAX_PLACES = 1_000
"""Maximum number of positions with the same letters that are compared; a page rarely has ten."""

UNBOUND_LEAST = 12
"""Minimum letters of a text that may match inside a word: spaces between words may differ."""

ROW_LINES = 8
"""Maximum lines of a page that one row of a table may take."""

CITED_LEAST = 4
"""Minimum letters of a sentence that is searched alone if the whole passage was not found."""


class Range(NamedTuple):
    """Characters of a text from ``start`` up to, but not including, ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Letters:
    """The compared letters of a text, each with the index of its character."""

    text: str
    places: list[int]
    source: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the compared letters of a text."""
        folded: list[str] = []
        places: list[int] = []
        for at, char in enumerate(text):
            letters = _fold(char)
            folded.append(letters)
            places += [at] * len(letters)
        return cls("".join(folded), places, text)

    def within(self, part: Range) -> Range:
        """Return the range of letters that come from the characters of a part."""
        return Range(bisect_left(self.places, part.start), bisect_left(self.places, part.end))

    def is_apart(self, part: Range) -> bool:
        """Whether a range of letters begins and ends at word boundaries, which Chinese and Japanese do not have."""
        return not _cuts_word(self.source, self.characters(part))

    def characters(self, part: Range) -> Range:
        """Return the range of characters that a non-empty range of letters comes from."""
        return Range(self.places[part.start], self.places[part.end - 1] + 1)


def _joins(pair: str) -> bool:
    """Whether two neighbouring characters belong to one word or number."""
    return len(pair) == 2 and all(char.isalnum() and char < FIRST_CJK for char in pair)


@lru_cache(8_192)
def _fold(char: str) -> str:
    """Return the compared letters of a character; empty for white space, punctuation, symbols and controls."""
    decomposed = unicodedata.normalize("NFKD", char).casefold()
    return "".join(letter for letter in decomposed if unicodedata.category(letter)[0] in "LMN")


def find_text(text: str, wanted: str) -> Range | None:
    """Return the position of ``wanted`` in ``text``, literally or by its letters; None if absent.

    A position that is a whole line, such as a table's row, is preferred, then one that cuts no word, then any other.
    """
    wanted = wanted.strip()
    if not wanted:
        return None
    places: list[Range] = []
    at = text.find(wanted)
    while at >= 0 and len(places) < MAX_PLACES:
        places.append(Range(at, at + len(wanted)))
        at = text.find(wanted, at + 1)
    if not places:
        return _find(Letters.of(text), Letters.of(wanted))
    whole = (place for place in places if _is_line(text, place))
    apart = (place for place in places if not _cuts_word(text, place))
    return next(whole, None) or next(apart, None) or places[0]


def _is_line(text: str, part: Range) -> bool:
    return text[part.start - 1 : part.start] in ("", "\n") and text[part.end : part.end + 1] in ("", "\n")


def _cuts_word(text: str, part: Range) -> bool:
    return _joins(text[max(part.start - 1, 0) : part.start + 1] if part.start else "") or _joins(
        text[part.end - 1 : part.end + 1]
    )


def _find(letters: Letters, wanted: Letters, after: int = 0) -> Range | None:
    """Return the first position of these letters behind ``after``, else the first position in the text."""
    at = _index(letters, wanted, after)
    return None if at is None else letters.characters(Range(at, at + len(wanted.text)))


def _index(letters: Letters, wanted: Letters, after: int = 0) -> int | None:
    """Return the position of letters: preferably one with the same words, else one that cuts no word.

    Letters are compared without the spaces between them, so that a row `A1 | 25` also matches in `A12 5`. A short text
    that would cut a word is not matched at all.
    """
    if not wanted.text:
        return None
    places = list(_places_of(letters, wanted.text))
    places = [at for at in places if at >= after] + [at for at in places if at < after]
    apart = [at for at in places if letters.is_apart(Range(at, at + len(wanted.text)))]
    if len(apart) > 1:
        words = _words_of(wanted.source)
        for at in apart:
            part = letters.characters(Range(at, at + len(wanted.text)))
            if _words_of(letters.source[part.start : part.end]) == words:
                return at
    if apart:
        return apart[0]
    return places[0] if places and len(wanted.text) >= UNBOUND_LEAST else None


def _places_of(letters: Letters, wanted: str) -> Iterator[int]:
    at = letters.text.find(wanted)
    for _ in range(MAX_PLACES):
        if at < 0:
            return
        yield at
        at = letters.text.find(wanted, at + 1)


def _words_of(text: str) -> list[str]:
    return [word for part in text.split() if (word := Letters.of(part).text)]


def sentences_within(text: str, sentences: Sequence[Range], wanted: str) -> Range | None:
    """Return the longest run of a text's sentences that ``wanted`` contains; ``wanted`` extends beyond the text."""
    whole = Letters.of(wanted).text
    runs: list[list[Range]] = [[]]
    for sentence in sentences:
        letters = Letters.of(text[sentence.start : sentence.end]).text
        if len(letters) >= CITED_LEAST and letters in whole:
            runs[-1].append(sentence)
        else:
            runs.append([])
    longest = max(runs, key=len)
    return Range(longest[0].start, longest[-1].end) if longest else None


@dataclass(frozen=True, slots=True)
class Located:
    """The position of a passage and of its cited part: ranges of the other text, in the passage's order.

    ``whole``: all of the passage was found, in one piece.
    """

    passage: tuple[Range, ...] = ()
    cited: tuple[Range, ...] = ()
    whole: bool = False


def locate(page: str, passage: str, sentences: Sequence[Range], cited: Range | None) -> Located:
    """Return the position of a passage in a page's text, as a whole or else sentence by sentence.

    ``sentences`` and ``cited`` are parts of the passage.
    """
    page_letters, wanted = Letters.of(page), Letters.of(passage)
    at = _index(page_letters, wanted)
    if at is not None:
        position = page_letters.characters(Range(at, at + len(wanted.text)))
        part = None if cited is None else wanted.within(cited)
        # A cited part of punctuation alone has no letters, so it has no position.
        marked = part is not None and part.start < part.end
        exact = page_letters.characters(Range(at + part.start, at + part.end)) if part is not None and marked else None
        return Located((position,), () if exact is None else (exact,), True)
    pieces = list(_pieces(page_letters, passage, sentences))
    if cited is None:
        return Located(tuple(position for _, position in pieces))
    cited_letters = Letters.of(passage[cited.start : cited.end])
    alone = _find(page_letters, cited_letters) or _find_row(page_letters, cited_letters)
    if alone is not None:
        return Located(tuple(position for _, position in pieces), (alone,))
    near = tuple(position for sentence, position in pieces if sentence.start < cited.end and cited.start < sentence.end)
    return Located(tuple(position for _, position in pieces), near)


def _pieces(page_letters: Letters, passage: str, sentences: Sequence[Range]) -> Iterator[tuple[Range, Range]]:
    """Yield the sentences that are found, each with its position. Positions in the passage's order are preferred."""
    after = 0
    for sentence in sentences:
        letters = Letters.of(passage[sentence.start : sentence.end])
        if len(letters.text) < CITED_LEAST:
            continue
        position = _find(page_letters, letters, after) or _find_row(page_letters, letters)
        if position is not None:
            after = page_letters.within(position).end
            yield sentence, position


def _find_row(page: Letters, wanted: Letters) -> Range | None:
    """Return the only run of a page's lines that holds exactly the letters of a table's row, in any order.

    A page has a row in another order if a cell spans several lines, or if the page is shown upside down.
    """
    lines = []
    start = 0
    for text in page.source.split("\n"):
        line = page.within(Range(start, start + len(text)))
        if line.start < line.end:
            lines.append(line)
        start += len(text) + 1
    letters = sorted(wanted.text)
    matches: list[Range] = []
    for first, line in enumerate(lines):
        for last in range(first, min(first + ROW_LINES, len(lines))):
            size = lines[last].end - line.start
            if size > len(wanted.text):
                break
            if size == len(wanted.text) and sorted(page.text[line.start : lines[last].end]) == letters:
                matches.append(Range(line.start, lines[last].end))
    places = [page.characters(match) for match in matches]
    if len(places) > 1:
        words = sorted(_words_of(wanted.source))
        places = [place for place in places if sorted(_words_of(page.source[place.start : place.end])) == words]
    return places[0] if len(places) == 1 else None  # equal rows cannot be told apart
