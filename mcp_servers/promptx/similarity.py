"""Whether memories say the same, or about the same: what a new one is compared with. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.tokenizer import ALIKE, fold, gist_of, likeness

MAX_NEAR: Final = 3
"""Engrams that are named as like a new one."""
KNOWN: Final = 0.8
"""Share of common words from which a text says nothing that another does not."""
MAX_WORDS: Final = 200
"""Words and parts of a new engram that are looked for among the cues of those there are."""
PARTS: Final = (2, 3, 4)
"""Signs of the parts of a text without spaces that may be cues."""

_WORD: Final = re.compile(r"[^\W_]+")


def near_words(engram: Engram) -> list[str]:
    """Return what may be a cue of engrams that say about the same: its cues and the words of its text, both as they
    are and folded."""
    texts = [*engram.cues, *_WORD.findall(engram.content[: MAX_WORDS * 10])]
    parts = [word[at : at + size] for word in texts if not word.isascii() for size in PARTS for at in range(len(word))]
    return list(dict.fromkeys([*texts, *map(fold, texts), *parts]))[:MAX_WORDS]


def is_same(first: Engram, second: Engram) -> bool:
    """Whether two engrams have the same text and the same cues, upper and lower case and spaces aside."""
    return _plain(first.content) == _plain(second.content) and (
        {fold(cue) for cue in first.cues} == {fold(cue) for cue in second.cues}
    )


def is_known(engram: Engram, others: Sequence[Engram]) -> bool:
    """Whether one of the others says what an engram says, in nearly the same words."""
    text = gist_of(engram.content)
    return any(likeness(text, gist_of(each.content)) >= KNOWN for each in others)


def nearest(engram: Engram, others: Sequence[Engram]) -> tuple[Engram, ...]:
    """Return those of the others that are about what an engram is about, at most `MAX_NEAR`, the most alike first."""
    text, everything = _words(engram)
    rated: list[tuple[float, int, Engram]] = []
    for each in others:
        other_text, other = _words(each)
        rated.append((max(likeness(text, other_text), likeness(everything, other)), each.created_at, each))
    near = sorted((each for each in rated if each[0] >= ALIKE), key=lambda each: each[:2], reverse=True)
    return tuple(each for *_, each in near[:MAX_NEAR])


def _words(engram: Engram) -> tuple[frozenset[str], frozenset[str]]:
    """The words of an engram's text, and these with the ones of its cues."""
    text = gist_of(engram.content)
    return text, text | gist_of("", engram.cues)


def _plain(text: str) -> str:
    return " ".join(fold(text).split())
