"""Comparison of a new memory with stored ones: equal, known in other words, or similar. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.tokenizer import ALIKE, fold, gist_of, likeness

MAX_NEAR: Final = 3
"""Maximum number of similar engrams that are reported for a new one."""
KNOWN: Final = 0.8
"""Minimum share of common words for a text to count as known."""
MAX_WORDS: Final = 200
"""Maximum number of words and word parts of a new engram that are looked up among the stored cues."""
PARTS: Final = (2, 3, 4)
"""Lengths, in characters, of the parts of a text without spaces that may be cues."""

_WORD: Final = re.compile(r"[^\W_]+")


def near_words(engram: Engram) -> list[str]:
    """Return possible cues of similar engrams: the cues and words of an engram, both unchanged and folded."""
    texts = [*engram.cues, *_WORD.findall(engram.content[: MAX_WORDS * 10])]
    parts = [word[at : at + size] for word in texts if not word.isascii() for size in PARTS for at in range(len(word))]
    return list(dict.fromkeys([*texts, *map(fold, texts), *parts]))[:MAX_WORDS]


def is_same(first: Engram, second: Engram) -> bool:
    """Return whether two engrams have the same text and cues, apart from upper and lower case and spaces."""
    return _plain(first.content) == _plain(second.content) and (
        {fold(cue) for cue in first.cues} == {fold(cue) for cue in second.cues}
    )


def is_known(engram: Engram, others: Sequence[Engram]) -> bool:
    """Return whether another engram has nearly the same words as an engram."""
    text = gist_of(engram.content)
    return any(likeness(text, gist_of(other.content)) >= KNOWN for other in others)


def nearest(engram: Engram, others: Sequence[Engram]) -> tuple[Engram, ...]:
    """Return the engrams that are similar to an engram, at most `MAX_NEAR`, the most similar first."""
    text, everything = _words(engram)
    rated: list[tuple[float, int, Engram]] = []
    for candidate in others:
        other_text, other = _words(candidate)
        rated.append((max(likeness(text, other_text), likeness(everything, other)), candidate.created_at, candidate))
    near = sorted((rating for rating in rated if rating[0] >= ALIKE), key=lambda rating: rating[:2], reverse=True)
    return tuple(candidate for *_, candidate in near[:MAX_NEAR])


def _words(engram: Engram) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of an engram's text, and the words of its text and cues together."""
    text = gist_of(engram.content)
    return text, text | gist_of("", engram.cues)


def _plain(text: str) -> str:
    return " ".join(fold(text).split())
