"""Measurement of how far the dense leg can be trusted in a collection, on the collection's own text.

A piece from the middle of each sampled chunk serves as a question. The search must find the rest of its chunk among
the rests of the other chunks. Question and rest share a subject but no text, so only an embedder that understands the
script finds the rest as well as BM25 does. (If the question were part of the searched text, any encoder would find
short chunks.) The same pieces show the cosine of noise (a question and a chunk of another origin) and of a match (a
rest and its own chunk).
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
from mcp_servers.retriever.index import Calibration, Dense, Index, mean_vector
from mcp_servers.retriever.lexical import document_vectors, query_vector
from mcp_servers.retriever.windows import text_windows

SAMPLE = 64
"""Chunks measured; the embedder embeds both parts of each."""

DRAWN = 4 * SAMPLE
"""Chunks from which the sample is taken at even distances, in document order, so that it does not come mostly from one
long table."""

PIECE = 5
"""Divisor of a chunk's words: the question is a fifth of them."""

MINIMUM_SAMPLE = 4
"""Minimum number of chunks of a script for which its competence is measured."""

LUCK = 3
"""Standard deviations above the mean score of a guess that a leg must exceed to count as finding anything."""

FULL_TRUST = 0.85
NO_TRUST = 0.6
"""Competence at which the dense leg counts fully, and at which it is ignored; its weight is linear between the two.
Over 40 samples each, the English encoder had 0.9 and more on English, long or short, and 0.26 to 0.54 on Chinese."""

UNMEASURED = 0.5
"""Weight of the dense leg if nothing could be measured: too little text, or chunks that neither leg tells apart. At
this weight even random vectors hardly move the passage that BM25 finds (0.98 of its reciprocal rank; at full weight
down to 0.83), and passages that share no word with the question are still found."""

REMEASURE_GROWTH = 2
"""Growth factor of a collection after which it is measured again."""

CENTRED = 0.25
"""Share of the mean vector of a collection's chunks that is subtracted from a question's vector. On the open set hit@5
of paraphrases is 0.69 with it and 0.62 without; Cranfield 0.548 and 0.549."""

DIGITS = 6
"""Decimal places of the stored mean vector."""

EQUAL = 1e-6
"""Scores that differ by less are equal, except for rounding."""

Windows = Sequence[Sequence[float]]
"""The vectors of one text."""

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
    """Return the script of most of `text`, or "other" if it has no letters of a known script.

    A CJK character counts four times, because it carries as much meaning as about four letters.
    """
    if text.isascii():
        return "latin" if _SCRIPTS["latin"].search(text) else "other"
    weights = {name: len(pattern.findall(text)) * (4 if name == "cjk" else 1) for name, pattern in _SCRIPTS.items()}
    best = max(weights, key=lambda name: weights[name])
    return best if weights[best] else "other"


def dense_weight(calibration: Calibration | None, query: str) -> float:
    """Return the weight of the dense leg for a question in this script, 0..1.

    If the collection has too little text of the script, the weight is the mean of the measured scripts, because text
    in those scripts answers the question.
    """
    measured = calibration.competence if calibration else {}
    if not measured:
        return UNMEASURED
    name = script(query)
    competence = measured[name] if name in measured else fmean(measured.values())
    return min(max((competence - NO_TRUST) / (FULL_TRUST - NO_TRUST), 0.0), 1.0)


def dense_relevance(calibration: Calibration | None, cosine: float) -> float:
    """Scale a cosine to 0..1, from the score of an unrelated chunk to the score of a match."""
    if calibration is None or calibration.match <= calibration.noise:
        return min(max(cosine, 0.0), 1.0)
    return min(max((cosine - calibration.noise) / (calibration.match - calibration.noise), 0.0), 1.0)


def subtract_centre(vector: Sequence[float], centre: Sequence[float]) -> list[float]:
    """Return a question's vector without `CENTRED` of the collection's mean.

    Content that all passages share does not tell which of them answers. The vector is unchanged if ``centre`` is empty
    or of another dimension, as after a change of the model, when the dense leg finds nothing.
    """
    if len(vector) != len(centre):
        return list(vector)
    return [number - CENTRED * mean for number, mean in zip(_normalise(vector), centre, strict=True)]


def is_stale(calibration: Calibration | None, points: int, *, exactly: bool = False) -> bool:
    if calibration is None:
        return True
    return points != calibration.points if exactly else points >= REMEASURE_GROWTH * max(calibration.points, 1)


async def calibrate(index: Index, collection: str, embedder: Embedder) -> Calibration:
    """Measure the dense leg of a collection. Costs two embeddings for each of `SAMPLE` chunks.

    Raises:
        EmbeddingError: the embedder failed.
        IndexFault: the index failed. `IndexMismatch` if the embedder's dimension is no longer the collection's.
    """
    parts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    whole: dict[str, list[list[list[float]]]] = defaultdict(list)
    limit = await token_limit(embedder)
    drawn = await index.sample(collection, DRAWN)
    drawn.sort(key=lambda pair: (pair[0].document_name, pair[0].ordinal, pair[0].text))
    sample = drawn[:: max(math.ceil(len(drawn) / SAMPLE), 1)]
    centre = _mean([stored for _, stored in sample])
    for chunk, stored in sample:
        if both := split(chunk.text):
            name = script(chunk.text)
            parts[name].append(both)
            whole[name].append(stored)
    competence: dict[str, float] = {}
    matches: list[float] = []
    noise: list[float] = []
    for name, pairs in parts.items():
        questions = [await embedder.embed_query(question) for question, _ in pairs]
        # Before the answers are embedded, which takes longer.
        _check(questions, [windows[0] for windows in whole[name]])
        questions = [subtract_centre(vector, centre) for vector in questions]
        texts = [text_windows(answer, limit) for _, answer in pairs]
        vectors = await embedder.embed_documents([text for windows in texts for text in windows])
        answers = Dense(embedder.name, vectors, [len(windows) for windows in texts]).by_chunk()
        # In a thread, because comparing all questions with all answers is plain Python and takes a while.
        unrelated, copies, cosines = await anyio.to_thread.run_sync(_compare, questions, answers, whole[name], centre)
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
        centre=centre,
    )


def _mean(chunks: Sequence[Windows]) -> tuple[float, ...]:
    """Return the mean of the normalised mean vectors of chunks."""
    vectors = [_normalise(mean_vector(windows)) for windows in chunks]
    return tuple(round(fmean(column), DIGITS) for column in zip(*vectors, strict=True))


def _check(vectors: Sequence[Sequence[float]], stored: Sequence[Sequence[float]]) -> None:
    for vector, stored_vector in zip(vectors, stored, strict=True):
        if len(vector) != len(stored_vector):
            raise IndexMismatch("dimension", len(stored_vector), len(vector))


def split(text: str) -> tuple[str, str] | None:
    """Return the middle words of the text and the rest of the text, or None if it has fewer than two words."""
    words = [match.span() for match in _WORD.finditer(text)]
    if len(words) < 2:
        return None
    size = max(len(words) // PIECE, 1)
    first = (len(words) - size) // 2
    start, end = words[first][0], words[first + size - 1][1]
    return text[start:end], text[:start] + " " + text[end:]


def measured_competence(lexical: Sequence[Sequence[float]], dense: Sequence[Sequence[float]]) -> float | None:
    """Return how well the dense leg finds the answers relative to BM25, 0..1, where 0 is guessing.

    `lexical[i][j]` and `dense[i][j]` are the scores of answer j for question i, whose right answer is i. Returns None
    if neither leg does better than luck.
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
    """Return the mean reciprocal rank. Equal scores share their ranks, so that constant scores are only a guess."""
    ranks: list[float] = []
    for own, row in enumerate(scores):
        better = sum(score > row[own] + EQUAL for score in row)
        equal = sum(abs(score - row[own]) <= EQUAL for score in row)
        ranks.append(fmean(1 / rank for rank in range(better + 1, better + equal + 1)))
    return fmean(ranks)


def _compare(
    questions: Sequence[Sequence[float]], answers: Sequence[Windows], whole: Sequence[Windows], centre: Sequence[float]
) -> tuple[list[float], list[float], list[list[float]]]:
    """Return three sets of cosines; the best window of a text counts, as in a search.

    The sets are: questions with unrelated chunks, answers with their own chunk, and all questions with all answers.
    """
    cosines = _cosines(questions, whole)
    unrelated = [cosine for own, row in enumerate(cosines) for place, cosine in enumerate(row) if place != own]
    copies = [
        fmean(row[0] for row in _cosines([subtract_centre(window, centre) for window in answer], [chunk]))
        for answer, chunk in zip(answers, whole, strict=True)
    ]
    return unrelated, copies, _cosines(questions, answers)


def _cosines(questions: Windows, texts: Sequence[Windows]) -> list[list[float]]:
    normal = [[_normalise(vector) for vector in windows] for windows in texts]
    return [
        [max(sum(map(mul, question, vector)) for vector in windows) for windows in normal]
        for question in map(_normalise, questions)
    ]


def _normalise(vector: Sequence[float]) -> list[float]:
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]


def _shared_words(pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
    """Return the BM25 score of each answer for each question, as if the answers were the collection."""
    answers = [dict(zip(*vector, strict=True)) for _, answer in pairs for vector in document_vectors([answer])]
    holders = Counter(token for answer in answers for token in answer)
    rarity = {token: math.log((len(pairs) - have + 0.5) / (have + 0.5) + 1) for token, have in holders.items()}
    asked_tokens = [[token for token in query_vector(question).indices if token in rarity] for question, _ in pairs]
    return [
        [sum(rarity[token] * answer.get(token, 0.0) for token in tokens) for answer in answers]
        for tokens in asked_tokens
    ]
