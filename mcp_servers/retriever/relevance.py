"""The probability that a passage is relevant to a question: the `relevance_score`, to which the threshold applies.

The score is a probability and not a share of words: of passages with 0.7 about 70 % are relevant. It is a logistic
function of a few features, and each feature only ever counts in one direction:

- for the passage: the share of the question's weight that its words match, its closeness in meaning, and its distance
  from the best passages of other documents. If a document answers the question, its passage stands out; otherwise many
  passages match a little;
- against the passage: the most important thing that the question names and the passage lacks.

So one more word of the question, or more similarity, never makes a passage less relevant, and similarity alone can
carry a passage in other words or in another language. Three rules follow for codes, numbers and names, which have no
synonyms: see `WITHOUT_CODE` and `WITH_CODE`. All features are relative to the collection (the BM25 score of the
question itself, the cosines that `calibration` measured), so that no collection needs labels. The module does no I/O.

The weights for words alone are those of a regression on every second question of Cranfield (English abstracts) and
CMRC 2018 (Chinese paragraphs). The weights with a dense leg were fitted on the open question set, on the demo and on
58 questions about four other documents, each question once more without the documents that answer it. The weight of the
form was chosen with the open set, the demo and half of `bench/questions/plain.jsonl`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from mcp_servers.retriever.coverage import Coverage

WEIGHED = 30
"""Fused candidates that a passage is compared with."""

RIVALS = 3
"""Other documents among which a passage is ranked: the features use the best and the last of them."""

FEW_DOCUMENTS = 3
"""Minimum number of documents among the candidates; with fewer, their sections are compared instead."""

FLOOR = 0.1
"""Added to shares before their division, because the ratio of two weak matches means nothing."""

UNMATCHED, MATCHED, CLOSE, APART = -2.3, 1.6, 4.5, 1.0
"""Log odds of a passage without a word of the question or a likeness to it, and the gain from all words, from the
closeness of a match, and from a distance that large to the best passage of another document."""

LACKING = 4.2
"""Log odds that a passage loses if it lacks a thing that is the whole question."""

EXPLAINED = 3.0
"""Log odds that a passage in another language loses if others have all words of the question: a question in the words
of the documents is answered in those words."""

FAR, DISTANT = 0.2, 1.5
"""Closeness below which a passage in another language becomes less relevant, and the log odds that it loses at
closeness 0. Such a passage has no words to check, and among hundreds of passages one is always a little close by
chance."""

UNNAMED = 1.0
"""Log odds that a passage in another script loses if no passage has the name in the question: most names are written
alike everywhere."""

FORMLESS = 3.0
"""Log odds that a passage loses if it has no answer of the form that the question asks for."""

WITHOUT_CODE = 0.05
"""Highest probability of a passage without the code, the clause or the number that the question names, or for a
question with a name that no candidate has."""

WITH_CODE = 0.5
"""Lowest probability of a passage in another language with the code, the clause or the number of the question."""


class Match(NamedTuple):
    """The features of one candidate.

    ``share``: its BM25 score divided by that of the question itself, 0..1. ``closeness``: its cosine, scaled from noise
    (0) to a match (1), None without a cosine. ``document`` and ``section``: its place, None if the chunk was not read.
    ``lacks_code`` and ``has_code``: the question names a code that the passage lacks or has. ``coverage``: how the
    passage covers the words of the question, None if the chunk was not read or is in another language. ``lacks_form``:
    the passage has no answer of the form that the question asks for, such as an amount of money. ``lacks_name``: the
    question has a name that no candidate has, and the passage is in another script.
    """

    share: float
    closeness: float | None = None
    document: str | None = None
    section: object = None
    lacks_code: bool = False
    has_code: bool = False
    coverage: Coverage | None = None
    lacks_form: bool = False
    lacks_name: bool = False


NO_MATCH = 0.1
"""Relevance of the best passage for a question, or for a part of one, below which nothing matches."""

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
    by_coverage = _Rivals(groups, [match.coverage.held if match.coverage else 0.0 for match in matches])
    scores: list[float] = []
    for match, group in zip(matches, groups, strict=True):
        odds = _odds_of_words(match, by_words.of(group))
        if dense_weight and match.closeness is not None:
            meaning = _odds_of_meaning(match, match.closeness, by_meaning.of(group)[0], by_coverage.of(group)[0])
            odds += dense_weight * (meaning - odds)
        probability = min(max(1 / (1 + math.exp(-odds)), UNSURE), 1 - UNSURE)
        if match.lacks_code:
            probability = min(probability, WITHOUT_CODE)
        elif match.has_code and match.coverage is None:
            probability = max(probability, WITH_CODE)
        scores.append(probability)
    return scores


def _place(match: Match) -> tuple[object, ...]:
    return match.document, match.section


def _odds_of_words(match: Match, rivals: tuple[float, float]) -> float:
    """Return the log odds of a match by its words."""
    first, last = (math.log((match.share + FLOOR) / (rival + FLOOR)) for rival in rivals)
    lacking = match.coverage.lacking if match.coverage else 0.0
    # A quarter of the weight, because without a dense leg a passage with another word for the thing would be lost.
    lost = LACKING / 4 * lacking + FORMLESS / 4 * match.lacks_form
    return -2.82 + 3.84 * match.share + 2.13 * first + 1.7 * last - lost


def _odds_of_meaning(match: Match, closeness: float, rival: float, explained: float) -> float:
    """Return the log odds of a match by its words and its meaning.

    ``rival`` is the closeness of the best passage of another document, and ``explained`` the share of the question's
    words in one.
    """
    if match.coverage:
        words = MATCHED * match.coverage.held - LACKING * match.coverage.lacking
    else:
        words = -EXPLAINED * explained - DISTANT * max(0.0, FAR - closeness) / FAR
    lost = FORMLESS * match.lacks_form + UNNAMED * match.lacks_name
    return UNMATCHED + words - lost + CLOSE * closeness + APART * (closeness - rival)


class _Rivals:
    """The best score of each group, to compare a match with the other groups."""

    def __init__(self, groups: Sequence[object], scores: Sequence[float]) -> None:
        best: dict[object, float] = {}
        for group, score in zip(groups, scores, strict=True):
            if group is not None:
                best[group] = max(best.get(group, score), score)
        self._best = sorted(best.items(), key=lambda item: -item[1])[: RIVALS + 1]
        self._rivals: dict[object, tuple[float, float]] = {}

    def of(self, group: object) -> tuple[float, float]:
        """Return the scores of the first and the last rival of a group; 0 if the group has no rival."""
        if group not in self._rivals:
            scores = [score for other, score in self._best if other != group][:RIVALS]
            self._rivals[group] = (scores[0], scores[-1]) if scores else (0.0, 0.0)
        return self._rivals[group]
