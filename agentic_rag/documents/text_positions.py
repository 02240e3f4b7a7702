"""Where a passage stands in another form of the same text: a PDF's page, or the chunk that a citation is of. Pure.

Two readings of one text differ in white space, in hyphens at line ends, in ligatures, in letters with their accents
apart, in dashes and quotation marks. So only letters, marks and figures are compared, in their compatibility form and
without case; each of them knows which character it came from. The time grows with the texts and not faster.
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

CITED_LEAST = 4
"""Letters of a sentence that are enough to be looked for alone, where the whole passage was not found."""


class Range(NamedTuple):
    """Characters of a text, ``end`` not among them."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters of a text that count, and for each the index of its character."""

    text: str
    places: list[int]

    @classmethod
    def of(cls, text: str) -> Self:
        """Return those of a text."""
        folded: list[str] = []
        places: list[int] = []
        for at, char in enumerate(text):
            letters = _fold(char)
            folded.append(letters)
            places += [at] * len(letters)
        return cls("".join(folded), places)

    def within(self, part: Range) -> Range:
        """Return which letters come from the characters of a part."""
        return Range(bisect_left(self.places, part.start), bisect_left(self.places, part.end))

    def characters(self, part: Range) -> Range:
        """Return the characters that some letters, at least one, come from."""
        return Range(self.places[part.start], self.places[part.end - 1] + 1)


@lru_cache(8_192)
def _fold(char: str) -> str:
    """Return what is compared of a character; nothing of white space, punctuation, symbols and controls."""
    decomposed = unicodedata.normalize("NFKD", char).casefold()
    return "".join(each for each in decomposed if unicodedata.category(each)[0] in "LMN")


def find_text(text: str, wanted: str) -> Range | None:
    """Return where ``wanted`` stands in ``text``: as it is, else by its letters; None where it does not."""
    if not wanted.strip():
        return None
    exact = text.find(wanted.strip())
    if exact >= 0:
        return Range(exact, exact + len(wanted.strip()))
    return _find(Letters.of(text), Letters.of(wanted).text)


def _find(letters: Letters, wanted: str, after: int = 0) -> Range | None:
    """Return the characters of the first place behind ``after``, else of the first one, that has these letters."""
    if not wanted:
        return None
    at = letters.text.find(wanted, after)
    if at < 0:
        at = letters.text.find(wanted)
    return None if at < 0 else letters.characters(Range(at, at + len(wanted)))


def sentences_within(text: str, sentences: Sequence[Range], wanted: str) -> Range | None:
    """Return the run of a text's sentences that are in ``wanted``, which goes on before or behind the text."""
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
    """Where a passage and the cited part of it stand: ranges of the other text, in the passage's order.

    ``whole``: all of the passage was found, in one piece.
    """

    passage: tuple[Range, ...] = ()
    cited: tuple[Range, ...] = ()
    whole: bool = False


def locate(page: str, passage: str, sentences: Sequence[Range], cited: Range | None) -> Located:
    """Return where a passage stands in a page's text: as a whole, else sentence by sentence.

    ``sentences`` and ``cited`` are parts of the passage.
    """
    there, wanted = Letters.of(page), Letters.of(passage)
    at = there.text.find(wanted.text) if wanted.text else -1
    if at >= 0:
        found = there.characters(Range(at, at + len(wanted.text)))
        part = None if cited is None else wanted.within(cited)
        marked = part is not None and part.start < part.end
        exact = there.characters(Range(at + part.start, at + part.end)) if part is not None and marked else None
        return Located((found,), () if exact is None else (exact,), True)
    pieces = list(_pieces(there, passage, sentences))
    if cited is None:
        return Located(tuple(found for _, found in pieces))
    alone = _find(there, Letters.of(passage[cited.start : cited.end]).text)
    if alone is not None:
        return Located(tuple(found for _, found in pieces), (alone,))
    near = tuple(found for sentence, found in pieces if sentence.start < cited.end and cited.start < sentence.end)
    return Located(tuple(found for _, found in pieces), near)


def _pieces(there: Letters, passage: str, sentences: Sequence[Range]) -> Iterator[tuple[Range, Range]]:
    """Yield the sentences that are found, each with its place; they are looked for in their order first."""
    after = 0
    for sentence in sentences:
        letters = Letters.of(passage[sentence.start : sentence.end]).text
        if len(letters) < CITED_LEAST:
            continue
        found = _find(there, letters, after)
        if found is not None:
            after = there.within(found).end
            yield sentence, found
