"""The probability that a passage is relevant to a question: the `relevance_score`, to which the threshold applies.

The score is a probability and not a share of words: of passages with 0.7 about 70 % are relevant. Two features decide:
how much of the question a passage matches, and how far the passage stands out from those of other documents. If a
document answers the question, its passage stands out; otherwise many passages match a little. Both features are
relative to the collection (the BM25 score of the question itself, the cosines that `calibration` measured), so that no
collection needs labels. The module does no I/O.

The weights are those of a logistic regression over the best ten of each question, fitted on every second question of
Cranfield (English abstracts) and, for words alone, of CMRC 2018 (Chinese paragraphs), each time once more without the
passages that answer. On the other halves the expected calibration error is 0.06 on Cranfield, with and without a dense
leg, and 0.02 on CMRC; `scripts/bench_retrieval` measures it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from mcp_servers.retriever.coverage import Coverage
from mcp_servers.retriever.fusion import MOST_WORDS, lexical_weight

WEIGHED = 30
"""Fused candidates that a passage is compared with."""

RIVALS = 3
"""Other documents among which a passage is ranked: the features use the best and the last of them."""

FEW_DOCUMENTS = 3
"""Minimum number of documents among the candidates; with fewer, their sections are compared instead."""

FLOOR = 0.1
"""Added to shares before their division, because the ratio of two weak matches means nothing."""


EVEN, STEEP = 0.25, 8.0
"""Closeness at which a passage without a word of the question has probability 0.5, and the slope of the probability."""

WITHOUT_CODE = 0.05
"""Highest probability of a passage without the code, the clause or the number that the question names."""

SOME_WORDS = 0.1
"""Share of a question's weight below which the words of a passage in its language are ignored, and the margin that a
passage's probability may have over its share."""

WITHOUT_THING = 0.2
"""Factor for a passage that has words of the question but lacks a thing that the question names."""

WITH_CODE_WITHOUT_THING = 0.6
"""The same factor for a passage with the code of the question, such as the row of a table."""

EXPLAINED = 0.25
"""Share of a question in the best passage of its language above which passages without its words, or in other
languages, count less: a question in the words of the documents is answered in those words."""

SMALL_THING, LARGE_THING = 0.16, 0.4
"""Share of a question's weight below which a thing may be missing, with and without a dense leg. Without the dense leg
the limit is higher, because a passage with another word for the thing would be lost."""

WITH_CODE = 0.5
"""Lowest probability of a passage in another language with the code, the clause or the number of the question."""


class Match(NamedTuple):
    """The features of one candidate.

    ``share``: its BM25 score divided by that of the question itself, 0..1. ``closeness``: its cosine, scaled from noise
    (0) to a match (1), None without a cosine. ``document`` and ``section``: its place, None if the chunk was not read.
    ``lacks_code`` and ``has_code``: the question names a code that the passage lacks or has. ``held``: the share of
    the question's weight whose tokens the passage has, None if unknown. ``coverage``: how the passage covers the words
    of the question, None if the chunk was not read or is in another language.
    """

    share: float
    closeness: float | None = None
    document: str | None = None
    section: object = None
    lacks_code: bool = False
    has_code: bool = False
    held: float | None = None
    coverage: Coverage | None = None


UNSURE = 1e-9
"""Smallest distance of a probability from 0 and 1: no passage is certain, and rounding must not make it so."""


def probabilities(matches: Sequence[Match], dense_weight: float = 0.0) -> list[float]:
    """Return the probability of each match, 0..1. ``dense_weight`` is the weight of the dense leg."""
    documents = {match.document for match in matches if match.document is not None}
    groups = [
        None if match.document is None else match.document if len(documents) >= FEW_DOCUMENTS else _place(match)
        for match in matches
    ]
    by_words = _Rivals(groups, [match.share for match in matches])
    by_meaning = _Rivals(groups, [match.closeness or 0.0 for match in matches])
    best = max((match.coverage.held for match in matches if match.coverage), default=0.0)
    others = 1 - max(best - EXPLAINED, 0.0) / (1 - EXPLAINED)
    return [
        min(
            max(_probability(match, by_words.of(group), by_meaning.of(group), dense_weight, others), UNSURE), 1 - UNSURE
        )
        for match, group in zip(matches, groups, strict=True)
    ]


def _place(match: Match) -> tuple[object, ...]:
    return match.document, match.section


def _probability(
    match: Match, by_words: tuple[float, float], by_meaning: tuple[float, float], dense_weight: float, others: float
) -> float:
    """Return the probability of a match. ``others`` is a factor for passages without the question's words."""
    first, last = (math.log((match.share + FLOOR) / (rival + FLOOR)) for rival in by_words)
    odds = -2.82 + 3.84 * match.share + 2.13 * first + 1.7 * last
    if dense_weight and match.closeness is not None:
        apart = match.closeness - by_meaning[1]
        hybrid = -2.79 + 0.54 * match.share + 3.03 * last + 4.45 * match.closeness + 2.69 * apart
        odds += dense_weight * (hybrid - odds)
        # A passage in another language, or in other words, shares no word with the question: only its meaning counts.
        words = 1.0 if match.held is None else lexical_weight(match.held) / MOST_WORDS
        alone = others * dense_weight / (1 + math.exp(-STEEP * (match.closeness - EVEN)))
        return _apply_limits(match, words / (1 + math.exp(-odds)) + (1 - words) * alone)
    return _apply_limits(match, 1 / (1 + math.exp(-odds)), most=1.0)  # the odds count the shared words already


def _apply_limits(match: Match, probability: float, most: float | None = None) -> float:
    """Limit the probability of a passage that lacks a code or a thing that the question names.

    ``most`` is the limit for a passage in the question's language. None means the passage's share of the question's
    words plus `SOME_WORDS`.
    """
    if match.lacks_code:
        return min(probability, WITHOUT_CODE)
    coverage = match.coverage
    if coverage is None:
        return max(probability, WITH_CODE) if match.has_code else probability
    if coverage.held >= SOME_WORDS:
        # The passage is in the language of the question, so it would contain its words.
        probability = min(probability, SOME_WORDS + coverage.held if most is None else most)
        if coverage.lacking >= (SMALL_THING if most is None else LARGE_THING):
            probability *= WITH_CODE_WITHOUT_THING if match.has_code else WITHOUT_THING
    return probability


class _Rivals:
    """The best score of each group, to compare a match with the other groups."""

    def __init__(self, groups: Sequence[object], scores: Sequence[float]) -> None:
        best: dict[object, float] = {}
        for group, score in zip(groups, scores, strict=True):
            if group is not None:
                best[group] = max(best.get(group, score), score)
        self._best = sorted(best.items(), key=lambda item: -item[1])[: RIVALS + 1]

    def of(self, group: object) -> tuple[float, float]:
        """Return the scores of the first and the last rival of a group; 0 if the group has no rival."""
        scores = [score for other, score in self._best if other != group][:RIVALS]
        return (scores[0], scores[-1]) if scores else (0.0, 0.0)
