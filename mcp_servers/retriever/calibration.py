"""How far the dense leg can be trusted in one collection: measured on the collection itself.

A piece is taken out of the middle of sampled chunks and asked; found must be what is left of the chunk, among what is
left of the others. The two share a subject but no text, so that only an embedder that understands the script finds it
as well as BM25 does. (A piece of the text that is to be found, any encoder finds where chunks are short.) The same
pieces show which cosine means nothing (a question and a chunk it is not of) and which a match (nearly the chunk).
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import mul
from statistics import fmean, median

import anyio.to_thread

from mcp_servers.retriever.embedding import Embedder, token_limit
from mcp_servers.retriever.errors import IndexMismatch
from mcp_servers.retriever.index import Calibration, Dense, Index
from mcp_servers.retriever.lexical import document_vectors, query_vector
from mcp_servers.retriever.windows import text_windows

SAMPLE = 64
"""Chunks asked for; an embedder is given each once more, in two parts."""

DRAWN = 4 * SAMPLE
"""Chunks that the sample is taken from evenly, over all documents: chunks picked at random may be mostly of one table,
and what they say of noise would differ from one measurement to the next."""

PIECE = 5
"""The question is this part of a chunk's words: a fifth."""

MINIMUM_SAMPLE = 4
"""Chunks of one script below which nothing is said about it."""

LUCK = 3
"""Standard deviations above the mean rank of a guess, up to which a leg is not said to have found anything."""

FULL_TRUST = 0.85
NO_TRUST = 0.6
"""Competence at which the dense leg counts fully, and at which it is left out; between them linearly. Over 40 samples
each, the English encoder had 0.9 and more on English, long or short, and 0.26 to 0.54 on Chinese."""

UNMEASURED = 0.5
"""What the dense leg's vote counts where nothing could be measured: little text, or chunks nothing can tell apart.
At this weight even random vectors leave the passage that BM25 finds in its place (0.98 of its reciprocal rank; at
full weight down to 0.83), and what shares no word with the question is still found."""

REMEASURE_GROWTH = 2
"""A collection that has grown this many times is measured again."""

EQUAL = 1e-6
"""Scores that differ by less do so by rounding."""

_SCRIPTS = {
    "cjk": re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"),
    "cyrillic": re.compile(r"[\u0400-\u052f]"),
    "arabic": re.compile(r"[\u0600-\u06ff\u0750-\u077f]"),
    "indic": re.compile(r"[\u0900-\u0dff]"),
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]"),
}

_WORD = re.compile(
    rf"{_SCRIPTS['cjk'].pattern}|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""A CJK character is a word here."""


def script(text: str) -> str:
    """The script that carries most of `text`; "other" without letters of a known one.

    A CJK character counts four times: it says as much as that many letters.
    """
    weights = {name: len(pattern.findall(text)) * (4 if name == "cjk" else 1) for name, pattern in _SCRIPTS.items()}
    best = max(weights, key=lambda name: weights[name])
    return best if weights[best] else "other"


def dense_weight(calibration: Calibration | None, query: str) -> float:
    """0..1: what the dense leg's vote counts for a question in this script.

    In a script of which the collection has too little to measure, as much as in those that it has: a question in
    another language is answered by them.
    """
    known = calibration.competence if calibration else {}
    if not known:
        return UNMEASURED
    name = script(query)
    competence = known[name] if name in known else fmean(known.values())
    return min(max((competence - NO_TRUST) / (FULL_TRUST - NO_TRUST), 0.0), 1.0)


def dense_relevance(calibration: Calibration | None, cosine: float) -> float:
    """0..1: from what an unrelated chunk scores to what a chunk scores that is nearly the question."""
    if calibration is None or calibration.match <= calibration.noise:
        return min(max(cosine, 0.0), 1.0)
    return min(max((cosine - calibration.noise) / (calibration.match - calibration.noise), 0.0), 1.0)


def is_stale(calibration: Calibration | None, points: int) -> bool:
    return calibration is None or points >= REMEASURE_GROWTH * max(calibration.points, 1)


async def calibrate(index: Index, collection: str, embedder: Embedder) -> Calibration:
    """Measure. Costs two embeddings for each of `SAMPLE` chunks; raises `EmbeddingError` and `IndexFault`, of which
    `IndexMismatch` says that the embedder's vectors are now of another dimension than the collection's."""
    parts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    whole: dict[str, list[list[list[float]]]] = defaultdict(list)
    limit = await token_limit(embedder)
    drawn = await index.sample(collection, DRAWN)
    drawn.sort(key=lambda pair: (pair[0].document_id, pair[0].ordinal))
    for chunk, stored in drawn[:: max(math.ceil(len(drawn) / SAMPLE), 1)]:
        if both := split(chunk.text):
            name = script(chunk.text)
            parts[name].append(both)
            whole[name].append(stored)
    competence: dict[str, float] = {}
    matches: list[float] = []
    noise: list[float] = []
    for name, pairs in parts.items():
        questions = [await embedder.embed_query(question) for question, _ in pairs]
        _check(questions, [windows[0] for windows in whole[name]])
        texts = [text_windows(answer, limit) for _, answer in pairs]
        vectors = await embedder.embed_documents([text for windows in texts for text in windows])
        answers = Dense(embedder.name, vectors, [len(windows) for windows in texts]).by_chunk()
        unrelated, copies, cosines = await anyio.to_thread.run_sync(_compare, questions, answers, whole[name])
        noise += unrelated
        matches += copies
        if len(pairs) >= MINIMUM_SAMPLE:
            shared = await anyio.to_thread.run_sync(_shared_words, pairs)
            if (measured := measured_competence(shared, cosines)) is not None:
                competence[name] = measured
    return Calibration(
        competence=competence,
        noise=median(noise) if noise else 0.0,
        match=median(matches) if matches else 1.0,
        points=await index.count(collection),
    )


def _check(vectors: Sequence[Sequence[float]], stored: Sequence[Sequence[float]]) -> None:
    for vector, other in zip(vectors, stored, strict=True):
        if len(vector) != len(other):
            raise IndexMismatch("dimension", len(other), len(vector))


def split(text: str) -> tuple[str, str] | None:
    """The middle words of the text, and what is left of it; None for a text of one word."""
    words = [found.span() for found in _WORD.finditer(text)]
    if len(words) < 2:
        return None
    size = max(len(words) // PIECE, 1)
    first = (len(words) - size) // 2
    start, end = words[first][0], words[first + size - 1][1]
    return text[start:end], text[:start] + " " + text[end:]


def measured_competence(lexical: Sequence[Sequence[float]], dense: Sequence[Sequence[float]]) -> float | None:
    """0..1: how well the dense leg finds the answers, relative to BM25, beyond what guessing finds.

    `leg[i][j]` is the score of answer j for question i; i is the right one. None when neither finds more than luck.
    """
    count = len(dense)
    guess = fmean(1 / rank for rank in range(1, count + 1))
    variance = fmean(1 / rank**2 for rank in range(1, count + 1)) - guess**2
    luck = guess + LUCK * math.sqrt(variance / count)
    by_words, by_meaning = _mean_reciprocal_rank(lexical), _mean_reciprocal_rank(dense)
    if max(by_words, by_meaning) < luck:
        return None
    return min(max((by_meaning - guess) / (max(by_words, luck) - guess), 0.0), 1.0)


def _mean_reciprocal_rank(scores: Sequence[Sequence[float]]) -> float:
    """Equal scores share their ranks: what cannot tell anything apart does no better than a guess."""
    found: list[float] = []
    for own, row in enumerate(scores):
        better = sum(each > row[own] + EQUAL for each in row)
        equal = sum(abs(each - row[own]) <= EQUAL for each in row)
        found.append(fmean(1 / rank for rank in range(better + 1, better + equal + 1)))
    return fmean(found)


Windows = Sequence[Sequence[float]]
"""The vectors of one text."""


def _compare(
    questions: Sequence[Sequence[float]], answers: Sequence[Windows], whole: Sequence[Windows]
) -> tuple[list[float], list[float], list[list[float]]]:
    """Cosines: of questions with chunks that they are not of, of answers with their own chunk, of all questions with
    all answers. Of a text in windows, the best window counts, as in a search."""
    asked = _cosines(questions, whole)
    unrelated = [each for own, row in enumerate(asked) for at, each in enumerate(row) if at != own]
    copies = [fmean(row[0] for row in _cosines(answer, [chunk])) for answer, chunk in zip(answers, whole, strict=True)]
    return unrelated, copies, _cosines(questions, answers)


def _cosines(questions: Windows, texts: Sequence[Windows]) -> list[list[float]]:
    normal = [[_normalise(vector) for vector in windows] for windows in texts]
    return [
        [max(sum(map(mul, question, vector)) for vector in windows) for windows in normal]
        for question in map(_normalise, questions)
    ]


def _normalise(vector: Sequence[float]) -> list[float]:
    length = math.hypot(*vector) or 1.0
    return [each / length for each in vector]


def _shared_words(pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
    """BM25 of each answer for each question, as if the answers were the collection."""
    answers = [dict(zip(*vector, strict=True)) for _, answer in pairs for vector in document_vectors([answer])]
    holders = Counter(token for answer in answers for token in answer)
    rarity = {token: math.log((len(pairs) - have + 0.5) / (have + 0.5) + 1) for token, have in holders.items()}
    asked = [[token for token in query_vector(question).indices if token in rarity] for question, _ in pairs]
    return [[sum(rarity[token] * answer.get(token, 0.0) for token in tokens) for answer in answers] for tokens in asked]
