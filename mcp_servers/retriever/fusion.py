"""Fusing the ranked lists of the two legs into one. Pure: scores in, scores out.

Distribution-based score fusion (DBSF: https://qdrant.tech/documentation/concepts/hybrid-queries/) maps each leg's
scores linearly so that its mean ± 3 standard deviations become 0..1, and adds them. Reciprocal rank fusion (RRF,
Cormack et al. 2009) adds 1 / (k + rank) instead. Both here take a weight for each leg.
"""

import math
from collections.abc import Sequence
from typing import Literal

from mcp_servers.retriever.index import Scored

FusionMethod = Literal["dbsf", "rrf"]

RRF_K = 60

EQUAL = 1e-9
"""Deviation, relative to the scores, below which they are all the same and differ by rounding."""


def fuse(legs: Sequence[tuple[float, Sequence[Scored]]], method: FusionMethod = "dbsf") -> list[Scored]:
    """One list, best first, from `(weight, candidates best first)` of each leg; scores lie in 0..sum of weights.

    A candidate that a leg does not have gets nothing from it. Ties keep the order of the first leg that has them.
    """
    total: dict[str, float] = {}
    for weight, candidates in legs:
        shares = _distribution([each.score for each in candidates]) if method == "dbsf" else _ranks(len(candidates))
        for candidate, share in zip(candidates, shares, strict=True):
            total[candidate.chunk_id] = total.get(candidate.chunk_id, 0.0) + weight * share
    return sorted((Scored(*item) for item in total.items()), key=lambda each: -each.score)


def _distribution(scores: Sequence[float]) -> list[float]:
    mean = sum(scores) / len(scores) if scores else 0.0
    # `statistics` would compute with fractions: 3 ms for the two legs of a search.
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores)) if scores else 0.0
    if deviation < EQUAL * max(map(abs, scores), default=0.0) or not deviation:
        return [0.5] * len(scores)
    low = mean - 3 * deviation
    return [min(max((score - low) / (6 * deviation), 0.0), 1.0) for score in scores]


def _ranks(count: int) -> list[float]:
    return [1 / (RRF_K + rank) for rank in range(1, count + 1)]
