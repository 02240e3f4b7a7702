"""Sentence spans in Latin, Chinese and mixed text, and the token estimate for the sizes of chunks.

The module does no I/O and knows nothing of documents or chunks. A sentence is the smallest unit of a citation.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple


class TextSpan(NamedTuple):
    """A half-open character range."""

    start: int
    end: int


MAX_SENTENCE_TOKENS = 200
"""Maximum number of tokens of a sentence; longer runs without a full stop (pasted tables, legal enumerations) are cut
at a comma or space."""

_CLOSERS = "」』”’）】》〉\"')\\]"
_BOUNDARY = re.compile(
    rf"[。！？；…]+[{_CLOSERS}]*"  # full-width marks end a sentence everywhere
    # Latin marks end one only before white space, because of 3.5 and example.com. The match is possessive and never
    # starts inside a run of marks, so that a line of a million dots does not take quadratic time.
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
"""Maximum number of characters between the start of a line and the number of a list item."""

_BREAKS = re.compile(r"[，、,;:：)）]\s*|\s+")


def estimate_tokens(text: str) -> int:
    """Estimate the number of model tokens: one for each CJK character, one for four other characters."""
    wide = len(_CJK.findall(text))
    return wide + (len(text) - wide + 3) // 4


def split_sentences(text: str) -> Iterator[TextSpan]:
    """Yield the spans of the sentences in `text`, in order, trimmed of white space; none is empty.

    Every character that is not white space belongs to exactly one span.
    """
    start = 0
    short_line = max((len(line) for line in text.split("\n")), default=0) * 0.6
    for end in _ends(text, short_line):
        yield from fit(text, TextSpan(start, end))
        start = end
    yield from fit(text, TextSpan(start, len(text)))


def fit(text: str, span: TextSpan) -> Iterator[TextSpan]:
    """Trim white space from `span` and yield pieces of at most `MAX_SENTENCE_TOKENS`."""
    start, end = trim(text, span)
    while start < end:
        # No text longer than this window fits, so the estimate reads no further.
        window = text[start : min(end, start + 4 * MAX_SENTENCE_TOKENS + 1)]
        tokens = estimate_tokens(window)
        if tokens <= MAX_SENTENCE_TOKENS:
            yield TextSpan(start, end)
            return
        limit = start + max(1, len(window) * MAX_SENTENCE_TOKENS // tokens)
        cut = limit
        for match in _BREAKS.finditer(text, start + (limit - start) // 2, limit):
            cut = match.end()
        yield trim(text, TextSpan(start, cut))
        start = cut
        while start < end and text[start].isspace():
            start += 1


def trim(text: str, span: TextSpan) -> TextSpan:
    """Return `span` without white space at its ends, or an empty span if it has nothing else."""
    start, end = span
    while start < end and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return TextSpan(start, end)


def _ends(text: str, short_line: float) -> Iterator[int]:
    line_start = 0
    breaks = {match.end(): match for match in _BOUNDARY.finditer(text)}
    for newline in re.finditer(r"\n", text):
        # The author broke a line that is much shorter than the longest one: a title, an address, an item.
        if newline.start() - line_start < short_line:
            breaks.setdefault(newline.end(), newline)
        line_start = newline.end()
    for end in sorted(breaks):
        match = breaks[end]
        if match[0].isspace() and text[end - len(match[0]) - 1 : end].isspace():
            continue  # one of several blank lines: the sentence has ended already
        if match[0][0] not in ".!?" or _closes_sentence(text, match.start(), end):
            yield end


def _closes_sentence(text: str, mark: int, end: int) -> bool:
    """Return whether the Latin mark at `mark` ends a sentence: not after an abbreviation, initial or list number."""
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
