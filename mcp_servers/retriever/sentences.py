"""Sentence spans in Latin, Chinese and mixed text, and the token estimate that chunk sizes are counted in.

Pure. It knows nothing of documents or chunks; a sentence is the smallest unit that can be cited.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Half-open character range."""

    start: int
    end: int


MAX_SENTENCE_TOKENS = 200
"""Longer runs without a full stop (tables pasted as text, legal enumerations) are cut at a comma or space."""

_CLOSERS = "」』”’）】》〉\"')\\]"
_BOUNDARY = re.compile(
    rf"[。！？；…]+[{_CLOSERS}]*"  # full-width marks end a sentence wherever they stand
    # Latin marks only before white space: 3.5, example.com. Possessive, and never begun inside a run: a line of a
    # million dots must not cost a million times a million steps.
    rf"|(?<![.!?])[.!?]++[{_CLOSERS}]*+(?=\s)"
    r"|\n\s*\n"
    r"|\n(?=[ \t]*(?:[-*•·‣▪–][ \t]|\(?\d{1,3}[.)、][ \t]?|[（(]?[一二三四五六七八九十]+[)）、]))"
)
_ABBREVIATIONS = re.compile(
    r"mr|mrs|ms|dr|prof|st|nos?|figs?|eqs?|sec|ch|vol|vs|etc|al|cf|approx|dept|inc|ltd|co|corp|jr|sr"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|e\.g|i\.e|u\.s|u\.k|a\.m|p\.m",
    re.IGNORECASE,
)
_LAST_WORD = re.compile(r"[\w.]+$")
_CJK = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_INDENTATION = 24
"""How far before a number its line may begin for it to number an item."""

_BREAKS = re.compile(r"[，、,;:：)）]\s*|\s+")


def estimate_tokens(text: str) -> int:
    """About the number of model tokens: a CJK character is one, four other characters are one."""
    wide = len(_CJK.findall(text))
    return wide + (len(text) - wide + 3) // 4


def split_sentences(text: str) -> Iterator[Span]:
    """Spans of the sentences in `text`, in order, trimmed of white space; none is empty.

    Every character that is not white space lies in exactly one span.
    """
    start = 0
    short_line = max((len(line) for line in text.split("\n")), default=0) * 0.6
    for end in _ends(text, short_line):
        yield from fit(text, Span(start, end))
        start = end
    yield from fit(text, Span(start, len(text)))


def fit(text: str, span: Span) -> Iterator[Span]:
    """`span` trimmed of white space, and cut where it exceeds `MAX_SENTENCE_TOKENS`."""
    start, end = trim(text, span)
    while start < end:
        # No more characters than this fit whatever they are, so no more are looked at.
        window = text[start : min(end, start + 4 * MAX_SENTENCE_TOKENS + 1)]
        tokens = estimate_tokens(window)
        if tokens <= MAX_SENTENCE_TOKENS:
            yield Span(start, end)
            return
        limit = start + max(1, len(window) * MAX_SENTENCE_TOKENS // tokens)
        cut = limit
        for found in _BREAKS.finditer(text, start + (limit - start) // 2, limit):
            cut = found.end()
        yield trim(text, Span(start, cut))
        start = cut
        while start < end and text[start].isspace():
            start += 1


def trim(text: str, span: Span) -> Span:
    """`span` without the white space at its ends; empty at its start when there is nothing else."""
    start, end = span
    while start < end and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return Span(start, end)


def _ends(text: str, short_line: float) -> Iterator[int]:
    line_start = 0
    breaks = {found.end(): found for found in _BOUNDARY.finditer(text)}
    for newline in re.finditer(r"\n", text):
        # A line much shorter than its neighbours ended on purpose: a title, an address, an item.
        if newline.start() - line_start < short_line:
            breaks.setdefault(newline.end(), newline)
        line_start = newline.end()
    for end in sorted(breaks):
        found = breaks[end]
        if found[0].isspace() and text[end - len(found[0]) - 1 : end].isspace():
            continue  # one of many blank lines: nothing ends here that has not ended
        if found[0][0] not in ".!?" or _closes_sentence(text, found.start(), end):
            yield end


def _closes_sentence(text: str, mark: int, end: int) -> bool:
    """Whether the Latin mark at `mark` ends a sentence: not after an abbreviation, an initial or a list number."""
    rest = text[end : end + 8].lstrip()
    if rest and rest[0].islower():
        return False
    if text[mark] != "." or text[mark:end].count(".") > 1:
        return True
    word = _LAST_WORD.search(text, max(0, mark - 12), mark)
    if word is None:
        return True
    if _ABBREVIATIONS.fullmatch(word[0]) or (len(word[0]) == 1 and word[0].isupper()):
        return False
    before = text[max(0, word.start() - _INDENTATION) : word.start()]
    return not (
        word[0].isdigit() and (word.start() <= _INDENTATION or "\n" in before) and not before.split("\n")[-1].strip()
    )
