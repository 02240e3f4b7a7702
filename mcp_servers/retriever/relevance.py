"""How likely a passage is relevant to a question: what `relevance_score` says and a threshold cuts on. Pure.

A probability, not a share of words: of passages scored 0.7 about 70 % are relevant. Two things tell: how much of the
question a passage matches, and how far it stands out from the passages of other documents, for a question that is
answered somewhere has its answer stand out, and one that is not has many passages match it a little. Both are taken
relative to what the collection itself shows (the BM25 score of the question itself, the cosines that `calibration`
measured), so that no collection needs labels.

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
"""Fused candidates that stand for what else a question matches."""

RIVALS = 3
"""How many other documents a passage is compared with: the best of them, and the last."""

FEW_DOCUMENTS = 3
"""With fewer documents than that among the candidates, sections of them are compared instead."""

FLOOR = 0.1
"""Added to shares before they are divided: how far apart two weak matches are says nothing."""


EVEN, STEEP = 0.25, 8.0
"""Closeness at which a passage that shares no word with the question is as likely relevant as not, and how fast that
changes."""

WITHOUT_CODE = 0.05
"""At most, for a passage that does not hold the code, the clause or the number which the question names."""

SOME_WORDS = 0.1
"""Share of a question's weight that a passage in its language holds at least, and that counts for nothing more."""

WITHOUT_THING = 0.2
"""Factor for a passage in the question's words that does not hold a thing which the question names."""

WITH_CODE_WITHOUT_THING = 0.6
"""The same factor for a passage that holds the code of the question, such as the row of a table."""

EXPLAINED = 0.25
"""Share of a question that the best passage in its language may hold before passages without any of its words, and in
other languages, count less: somebody who uses the words of the documents is answered in them."""

SMALL_THING, LARGE_THING = 0.16, 0.4
"""Share of a question's weight below which a thing may be missing, where meaning is searched too and where it is not:
by words alone, a passage with another word for the thing would be lost."""

WITH_CODE = 0.5
"""At least, for a passage in another language that holds the code, the clause or the number of the question."""


class Match(NamedTuple):
    """One candidate.

    ``share``: its BM25 score by that of the question itself, 0..1. ``closeness``: where its cosine lies between noise
    (0) and a match (1), None without one. ``document`` and ``section`` say what it is part of, and are None where that
    was not read. ``lacks_code`` and ``has_code``: the question names a code, and the passage does not hold or holds it.
    ``held``: the share of the question's weight whose tokens it holds, None where that was not read. ``coverage``: how
    it fits the question's words, None where that was not read or the passage is in another language.
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
"""How far every probability stays from 0 and 1: no passage is certain, and rounding must not make it so."""


def probabilities(matches: Sequence[Match], dense_weight: float = 0.0) -> list[float]:
    """Return for each match, 0..1, how likely it is relevant. ``dense_weight`` is what the dense leg's vote counts."""
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
    """``others``: what the probability of a passage without the question's words is worth."""
    first, last = (math.log((match.share + FLOOR) / (rival + FLOOR)) for rival in by_words)
    odds = -2.82 + 3.84 * match.share + 2.13 * first + 1.7 * last
    if dense_weight and match.closeness is not None:
        apart = match.closeness - by_meaning[1]
        hybrid = -2.79 + 0.54 * match.share + 3.03 * last + 4.45 * match.closeness + 2.69 * apart
        odds += dense_weight * (hybrid - odds)
        # A passage in another language, or in other words, shares no word with the question: its meaning alone tells.
        words = 1.0 if match.held is None else lexical_weight(match.held) / MOST_WORDS
        alone = others * dense_weight / (1 + math.exp(-STEEP * (match.closeness - EVEN)))
        return _apply_limits(match, words / (1 + math.exp(-odds)) + (1 - words) * alone)
    return _apply_limits(match, 1 / (1 + math.exp(-odds)), most=1.0)  # the odds count the shared words already


def _apply_limits(match: Match, probability: float, most: float | None = None) -> float:
    """Return a probability no higher than a passage deserves that lacks what the question names.

    ``most``: for a passage in the question's language; None: what it holds of the question's words, and a little more.
    """
    if match.lacks_code:
        return min(probability, WITHOUT_CODE)
    coverage = match.coverage
    if coverage is None:
        return max(probability, WITH_CODE) if match.has_code else probability
    if coverage.held >= SOME_WORDS:
        # Of the same language, so that its words would be there.
        probability = min(probability, SOME_WORDS + coverage.held if most is None else most)
        if coverage.lacking >= (SMALL_THING if most is None else LARGE_THING):
            probability *= WITH_CODE_WITHOUT_THING if match.has_code else WITHOUT_THING
    return probability


class _Rivals:
    """The best score of each group, so that a match can be compared with the others'."""

    def __init__(self, groups: Sequence[object], scores: Sequence[float]) -> None:
        best: dict[object, float] = {}
        for group, score in zip(groups, scores, strict=True):
            if group is not None:
                best[group] = max(best.get(group, score), score)
        self._best = sorted(best.items(), key=lambda item: -item[1])[: RIVALS + 1]

    def of(self, group: object) -> tuple[float, float]:
        """Return the scores of the first and the last rival of a group; 0 where it has none."""
        scores = [score for other, score in self._best if other != group][:RIVALS]
        return (scores[0], scores[-1]) if scores else (0.0, 0.0)
