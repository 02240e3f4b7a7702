"""The folded words of memories and queries, and an index from words to memories.

Owns the definition of a word: NFKC and case are folded, and English endings are removed. Text without spaces between
its words (Chinese, Japanese) is split into pairs of adjacent characters. Pure: an index is a value in memory. Knows no
network, no file and no clock.
"""

import math
import re
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from py_rust_stemmers import SnowballStemmer

MAX_TEXT: Final = 2_000
"""Characters of a memory's content that are indexed. A longer memory is found by these and by its keywords."""
MAX_TERMS: Final = 64
"""Maximum number of a query's words that are searched for."""
MAX_UNKNOWN: Final = 8
"""Maximum number of unknown words that are searched for as parts of other words."""
MIN_PART: Final = 4
"""Minimum letters of a word that counts as part of another word, and of a word that contains another."""
PART_WEIGHT: Final = 0.5
"""Weight of a partial match relative to a whole word."""
COMMON: Final = 10
"""A word that more than one in this many memories have is common. It is ignored if the query has a rarer word."""
FEW: Final = 1_000
"""A word that at most this many memories have is never common."""
CLOSE: Final = 0.5
"""Minimum fit of a result, as a share of the best fit."""
ALIKE: Final = 0.5
"""Minimum share of common words for two memories to be similar."""

_RUN: Final = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]+)|([^\W_]+)")
"""A run of characters of a script without spaces, or a word of letters and digits."""

_STOP: Final = frozenset(
    re.findall(
        r"\S+",
        """
        a an and any are as at be been but by can could did do does doing for from had has have he her hers him his
        how i if in into is it its just me more most my no nor not of on or our ours out over own she should so some
        such than that the their them then there these they this those to too up us was we were what when where which
        while who whom why will with would you your yours s t user users tell know remember remind please about
        什么 怎么 多少 哪些 哪个 哪里 请问 一下 可以 我们 你们 他们 是否 如何 为什 的是 是什 么时 时候 用户 告诉 记得
        的 了 是 在 和 吗 呢 我 你 他 她 它 们 有 几
        """,
    )
)
"""Function words. Questions contain them, but they do not identify the subject of a question."""

_stemmer: Final = SnowballStemmer("english")


def fold(text: str) -> str:
    """Return a text in the form for comparison, without differences of case and of compatible characters."""
    # Twice, because folding the case can produce characters that are not in normal form.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return _stemmer.stem_word(word) if word.isascii() else word


def split_words(text: str, *, pairs: bool = True) -> list[str]:
    """Return the folded words of a text, in order and with repetitions, but without function words.

    ``pairs`` False: text without spaces is split into single characters, to compare texts that differ in a few words.
    """
    tokens: list[str] = []
    for run, word in _RUN.findall(fold(text)):
        if word:
            if word not in _STOP:
                tokens.append(_stem(word))
        elif len(run) == 1 or not pairs:
            tokens += run
        else:
            tokens += (pair for pair in map("".join, pairwise(run)) if pair not in _STOP)
    return [word for word in tokens if word not in _STOP]  # stems and single characters were not looked up yet


def words_of(content: str, cues: Iterable[str] = ()) -> frozenset[str]:
    """Return the words that the index stores for a memory."""
    return frozenset(split_words("\n".join((*cues, content[:MAX_TEXT]))))


def gist_of(content: str, cues: Iterable[str] = ()) -> frozenset[str]:
    """Return the words for the comparison of a memory with others."""
    return frozenset(split_words("\n".join((*cues, content[:MAX_TEXT])), pairs=False))


def likeness(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the share of common words, from 0 to 1. It is 0 if one of the sets is empty."""
    return len(first & second) / len(first | second) if first and second else 0.0


class WordIndex:
    """An index from words to memories. Add each memory once. The caller ignores results that were deleted meanwhile."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._places: dict[str, array[int]] = {}
        """word → indexes into `_ids`. The garbage collector skips arrays but would walk millions of list items."""
        self.upto = 0
        """Row of the newest memory in the index."""

    def learn(self, engram_id: str, words: Iterable[str], row: int = 0) -> None:
        """Add a memory with its words, each once, and its row."""
        self.upto = row
        number = len(self._ids)
        self._ids.append(engram_id)
        for word in words:
            places = self._places.get(word)
            if places is None:
                self._places[word] = array("L", (number,))
            else:
                places.append(number)

    def clear(self) -> None:
        """Empty the index item by item, because freeing a huge index at once blocks every thread."""
        while self._places:
            self._places.popitem()

    def find(self, query: str) -> dict[str, float]:
        """Return the fit of memories to a query, by id, for those with at least `CLOSE` of the best fit.

        The fit, from 0 to 1, is the share of the query's words that a memory has. Rare words have more weight. A word
        that no memory has is searched for as a part of their words.
        """
        words = list(dict.fromkeys(split_words(query)[:MAX_TERMS]))
        unknown = [word for word in words if word not in self._places][:MAX_UNKNOWN]
        places: dict[str, Sequence[int]] = {word: self._places[word] for word in words if word in self._places}
        weights = {word: self._rarity(len(numbers)) for word, numbers in places.items()}
        for word in unknown:
            parts = self._parts(word)
            if parts:
                places[word], weights[word] = parts, PART_WEIGHT * self._rarity(len(parts))
        most = max(FEW, len(self._ids) // COMMON)
        sought = {word: numbers for word, numbers in places.items() if len(numbers) <= most}
        return self._fit(sought or places, weights, sum(weights.values()))

    def _fit(self, sought: Mapping[str, Sequence[int]], weights: Mapping[str, float], total: float) -> dict[str, float]:
        sums: dict[int, float] = {}
        for word, numbers in sought.items():
            weight = weights[word] / total
            for number in numbers:
                sums[number] = sums.get(number, 0.0) + weight
        least = CLOSE * max(sums.values(), default=0.0)
        return {self._ids[number]: fit for number, fit in sums.items() if fit >= least}

    def _rarity(self, count: int) -> float:
        return math.log(1 + len(self._ids) / count)

    def _parts(self, word: str) -> Sequence[int]:
        """Return the indexes of memories with a word that contains ``word`` or is contained in it."""
        if len(word) < MIN_PART:
            return ()
        longer = [
            candidate
            for candidate in self._places
            if len(candidate) >= MIN_PART and (word in candidate or candidate in word)
        ]
        return sorted({number for candidate in longer for number in self._places[candidate]})


def newest_first(ids: Sequence[str], words: Mapping[str, frozenset[str]], times: Mapping[str, float]) -> list[str]:
    """Return ids in their order, but sort similar memories among themselves by time, newest first.

    Contradicting memories are similar. So the model reads the current one before the outdated ones.
    """
    groups: list[tuple[frozenset[str], list[int]]] = []
    for place, key in enumerate(ids):
        own = words.get(key, frozenset())
        group = next((places for first, places in groups if likeness(own, first) >= ALIKE), None)
        if group is None:
            groups.append((own, [place]))
        else:
            group.append(place)
    ordered = list(ids)
    for _, places in groups:
        newest = sorted((ids[place] for place in places), key=lambda key: times[key], reverse=True)
        for place, key in zip(places, newest, strict=True):
            ordered[place] = key
    return ordered
