"""How far the dense leg can be trusted in one collection: measured on the collection itself.

A sentence of a sampled chunk is asked as if it were a question. An embedder that understands the script finds the
chunk it came from nearly as well as BM25 does; one that does not, does not (an English encoder: 0.95 on English
abstracts, 0.3 on Chinese paragraphs). The same questions show which cosine means nothing and which means a match.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.embedding import Embedder
from mcp_servers.retriever.index import Calibration, Index, Scored

SAMPLE = 48
"""Chunks asked for; an embedder answers each in about 20 ms."""

MINIMUM_SAMPLE = 4
"""Questions of one script below which nothing is said about it."""

DEPTH = 10

FULL_TRUST = 0.8
NO_TRUST = 0.5
"""Competence at which the dense leg counts fully, and at which it is left out; between them linearly."""

REMEASURE_GROWTH = 2
"""A collection that has grown this many times is measured again."""

_SCRIPTS = {
    "cjk": re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"),
    "cyrillic": re.compile(r"[\u0400-\u052f]"),
    "arabic": re.compile(r"[\u0600-\u06ff\u0750-\u077f]"),
    "indic": re.compile(r"[\u0900-\u0dff]"),
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]"),
}


def script(text: str) -> str:
    """The script that carries most of `text`; "other" without letters of a known one.

    A CJK character counts four times: it says as much as that many letters.
    """
    weights = {name: len(pattern.findall(text)) * (4 if name == "cjk" else 1) for name, pattern in _SCRIPTS.items()}
    best = max(weights, key=lambda name: weights[name])
    return best if weights[best] else "other"


def dense_weight(calibration: Calibration | None, query: str) -> float:
    """0..1: what the dense leg's vote counts for a question in this script; 1 where nothing was measured."""
    competence = calibration.competence.get(script(query), 1.0) if calibration else 1.0
    return min(max((competence - NO_TRUST) / (FULL_TRUST - NO_TRUST), 0.0), 1.0)


def dense_relevance(calibration: Calibration | None, cosine: float) -> float:
    """0..1: from what an unrelated chunk scores to what the chunk a question came from scores."""
    if calibration is None or calibration.match <= calibration.noise:
        return min(max(cosine, 0.0), 1.0)
    return min(max((cosine - calibration.noise) / (calibration.match - calibration.noise), 0.0), 1.0)


def is_stale(calibration: Calibration | None, points: int) -> bool:
    return calibration is None or points >= REMEASURE_GROWTH * max(calibration.points, 1)


async def calibrate(index: Index, collection: str, embedder: Embedder) -> Calibration:
    """Measure. Costs `SAMPLE` embeddings and searches; raises `EmbeddingError` and `IndexFault`."""
    sample = await index.sample(collection, SAMPLE)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    matches: list[float] = []
    noise: list[float] = []
    for chunk, _ in sample:
        question = _question(chunk)
        vector = await embedder.embed_query(question)
        legs = await index.search_legs(collection, question, vector, limit=DEPTH)
        found[script(question)].append((_reciprocal_rank(legs.dense, chunk), _reciprocal_rank(legs.lexical, chunk)))
        for other, stored in sample:
            (matches if other is chunk else noise).append(_cosine(vector, stored))
    return Calibration(
        competence={name: _competence(ranks) for name, ranks in found.items() if len(ranks) >= MINIMUM_SAMPLE},
        noise=median(noise) if noise else 0.0,
        match=median(matches) if matches else 1.0,
        points=await index.count(collection),
    )


def _question(chunk: Chunk) -> str:
    """A sentence from the chunk's middle: the first and last may stand in its neighbours too."""
    return chunk.text[slice(*chunk.sentences[len(chunk.sentences) // 2])]


def _reciprocal_rank(leg: Sequence[Scored], chunk: Chunk) -> float:
    return next((1 / rank for rank, each in enumerate(leg, 1) if each.chunk_id == chunk.chunk_id), 0.0)


def _competence(ranks: Sequence[tuple[float, float]]) -> float:
    """Mean reciprocal rank of the dense leg, relative to BM25's: both suffer alike where passages repeat."""
    lexical = fmean(rank for _, rank in ranks)
    return min(fmean(rank for rank, _ in ranks) / lexical, 1.0) if lexical else 1.0


def _cosine(question: Sequence[float], stored: Sequence[float]) -> float:
    """The index stores vectors normalised; an HTTP embedder need not give them so."""
    return sum(a * b for a, b in zip(question, stored, strict=True)) / (math.hypot(*question) or 1.0)
