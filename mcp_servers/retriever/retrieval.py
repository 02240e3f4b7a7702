"""A search from question to hits: both legs, their fusion, relevance, threshold and joined neighbours.

The search works on any `Index` and knows nothing of MCP, citations or users; the tool that calls it is in `server`.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile, zip_longest
from typing import Protocol
from uuid import uuid4

import anyio

from mcp_servers.answer_forms import has_form
from mcp_servers.folding import fold_text
from mcp_servers.retriever.calibration import (
    calibrate,
    dense_relevance,
    dense_weight,
    is_stale,
    script,
    subtract_centre,
)
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.coverage import LANGUAGE_SAMPLE, read_question
from mcp_servers.retriever.embedding import Embedder, Reranker
from mcp_servers.retriever.errors import EmbeddingError, IndexMismatch, UnknownDocument
from mcp_servers.retriever.fusion import fuse_legs
from mcp_servers.retriever.hits import Candidate, Hit, Retrieval, join_chunks, share_place
from mcp_servers.retriever.index import (
    Calibration,
    CandidateLimit,
    CollectionMeta,
    FusionMethod,
    Index,
    LegResults,
    Scored,
    Selection,
    searchable_text,
)
from mcp_servers.retriever.lexical import Sparse, language_of, query_vector, self_score
from mcp_servers.retriever.questions import required_codes, split_question
from mcp_servers.retriever.relevance import NO_MATCH, WEIGHED, WITHOUT_CODE, Match, probabilities

CANDIDATES = 100
"""Candidates requested from each leg for the fusion."""

TRACED = 50
"""Fused candidates that a `Retrieval` keeps, to explain why a chunk was or was not found."""

RERANKED = 50
"""Candidates that a reranker reads."""

FIRST_PLACES = 3
"""Best candidates of each leg, which a reranker reads at any rank in the fusion."""

COMPARED = 12
"""Minimum number of candidates whose text is compared with the words of the question: those that may become hits."""

MAX_QUERY = 4_000
"""Maximum number of characters of a question; the rest is ignored."""

SPARE = 2
"""Chunks considered for each requested hit, because joining neighbours reduces their number."""

WHOLE, RELEVANT = 0.5, 0.5
"""Weights of a passage's score for the whole question, and of its relevance for the part, beside its score for the part
among the passages for one part of a question."""

BEST, IN_ITS_LANGUAGE = 3, 2
"""After this many best passages, so many come first that are in the language of the question. If question and answer
have no word in common, the embedder finds passages in other languages closer by chance. On the open set, hit@5 of
paraphrases is 0.77 instead of 0.69 and of last thirds 0.92 instead of 0.85; other languages stay at 1."""

MAX_JOINED = 4
"""Maximum number of chunks of one hit."""

MAX_SUGGESTIONS = 20


_ENDING = " .?!;。？！；"
"""Characters at the end of a part that do not belong to its text."""

_RatedChunk = tuple[Candidate, Chunk]


@dataclass(frozen=True, slots=True)
class _Vote:
    """The dense leg of one search: the question's vector and its weight; ``note`` explains a missing vote."""

    vector: list[float] | None = None
    weight: float = 0.0
    calibration: Calibration | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Weighed:
    """Candidates for a question or a part of one; ``passages`` are those above the threshold, with their chunks."""

    vote: _Vote
    candidates: list[Candidate]
    passages: list[_RatedChunk]
    first_places: tuple[str, ...]
    is_hybrid: bool


class Searcher(Protocol):
    """The part of `Retriever` that the MCP tool needs; the client of a running server implements it too."""

    async def search(
        self,
        collection: str,
        query: str,
        top_k: int,
        threshold: float = 0.0,
        document_ids: Sequence[str] | None = None,
        document: str | None = None,
        *,
        file_type: str | None = None,
        heading: str | None = None,
    ) -> Retrieval: ...


class Retriever:
    """Searches the collections of `index`; one instance serves all domains.

    A search uses the embedder that produced the collection's vectors: `embedder`, or the one that `others` returns for
    its name, for example while a new embedder's vectors are being computed. Without an embedder, searches are lexical.
    """

    def __init__(
        self,
        index: Index,
        embedder: Embedder | None = None,
        *,
        fusion: FusionMethod = "dbsf",
        reranker: Reranker | None = None,
        others: Callable[[str], Embedder | None] = lambda name: None,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._others = others
        self._fusion: FusionMethod = fusion
        self._reranker = reranker
        self._calibrating = anyio.Lock()

    async def search(
        self,
        collection: str,
        query: str,
        top_k: int,
        threshold: float = 0.0,
        document_ids: Sequence[str] | None = None,
        document: str | None = None,
        *,
        file_type: str | None = None,
        heading: str | None = None,
    ) -> Retrieval:
        """Return at most `top_k` hits with a relevance of at least `threshold`, best first.

        `document_ids` limits the visible documents. `document` (an id, a name or part of one), `file_type` (the
        ending, without its dot) and `heading` (one of the heading path) narrow the search further. If the embedder or
        the reranker fails, the search continues without it.

        Raises:
            UnknownDocument: `document` names no document or several.
            IndexFault: the index cannot answer.
        """
        started = time.perf_counter()
        visible = Selection(None if document_ids is None else tuple(document_ids), None, file_type, heading)
        selection = (
            replace(visible, document=await self._resolve(collection, visible, document)) if document else visible
        )
        question = query[:MAX_QUERY]
        count = max(WEIGHED, top_k * SPARE, RERANKED if self._reranker else 0)
        whole = await self._weigh(collection, question, selection, count, threshold)
        parts = {
            part: (await self._weigh(collection, part, selection, max(WEIGHED, top_k * SPARE), threshold)).passages
            for part in split_question(question)
        }
        ranked = _with_parts(question, whole.passages, parts)
        vote = whole.vote
        reranked = False
        if self._reranker and ranked:
            try:
                ranked = await _rerank(self._reranker, question, _for_reranker(ranked, whole.first_places))
                reranked = True
            except EmbeddingError as error:
                vote = replace(vote, note=str(error))
        ranked = ranked[: top_k * SPARE]
        by_id = {candidate.chunk_id: candidate for candidate, _ in ranked}
        retrieval = Retrieval(
            retrieval_id=uuid4().hex,
            collection=collection,
            query=query,
            mode="hybrid" if whole.is_hybrid else "lexical",
            hits=(),
            candidates=tuple(by_id.get(candidate.chunk_id, candidate) for candidate in whole.candidates[:TRACED]),
            took_ms=(time.perf_counter() - started) * 1000,
            dense_weight=vote.weight,
            note=vote.note,
            threshold=threshold,
            top_k=top_k,
            fusion=self._fusion,
            reranked=reranked,
            unmatched=_parts_without_match(parts),
        )
        return retrieval.with_hits(_join(ranked, top_k))

    async def _weigh(
        self, collection: str, question: str, selection: Selection, count: int, threshold: float
    ) -> _Weighed:
        """Return the candidates for a question, and read the chunks of the first ``count``."""
        vote = await self._vote(collection, question)
        lead = CandidateLimit(self._fusion, vote.weight, count, FIRST_PLACES)
        legs = await self._index.search_legs(collection, question, vote.vector, selection, CANDIDATES, lead)
        fused = fuse_legs(legs, lead)
        chunks = {chunk.chunk_id: chunk for chunk in legs.chunks}
        # With the ties of the last one, so that the choice among equals does not depend on the index.
        firsts = lead.first_places(legs)
        wanted = dict.fromkeys([*(scored.chunk_id for scored in _first_with_ties(fused, count)), *firsts])
        if missing := [chunk_id for chunk_id in wanted if chunk_id not in chunks]:
            chunks |= await self._index.get(collection, missing)
        fused = _in_fixed_order(fused, chunks)[: max(TRACED, count)]
        compared = max(COMPARED, count if count > WEIGHED else 0)
        candidates = _candidates(question, fused, legs, vote, chunks, threshold, compared)
        passages = [
            (candidate, chunks[candidate.chunk_id])
            for candidate in candidates
            if candidate.above_threshold and candidate.chunk_id in chunks
        ]
        passages = _codes_first(question, passages)
        return _Weighed(vote, candidates, passages, firsts, bool(vote.vector and legs.dense))

    async def calibrate(self, collection: str, *, exactly: bool = False) -> Calibration | None:
        """Return the calibration of the dense leg, measured now if it is missing or the collection has doubled.

        With ``exactly``, it is also measured if the number of chunks has changed at all. The first hybrid search calls
        this, if no earlier call measured: some seconds with a local model. Returns None if the collection has no dense
        vectors of an available embedder. Raises `EmbeddingError` and `IndexFault`.
        """
        meta = await self._index.meta(collection)
        embedder = self._embedder_of(meta)
        if embedder is None or meta is None:
            return None
        if is_stale(meta.calibration, await self._index.count(collection), exactly=exactly):
            async with self._calibrating:
                # Another search may have measured while this one waited for the lock.
                meta = await self._index.meta(collection) or meta
                if is_stale(meta.calibration, await self._index.count(collection), exactly=exactly):
                    calibration = await calibrate(self._index, collection, embedder)
                    await self._index.set_calibration(collection, calibration)
                    return calibration
        return meta.calibration

    def _embedder_of(self, meta: CollectionMeta | None) -> Embedder | None:
        """Return the embedder that produced a collection's vectors, or None if there is none."""
        if meta is None or meta.embedder is None:
            return None
        if self._embedder is not None and self._embedder.name == meta.embedder:
            return self._embedder
        return self._others(meta.embedder)

    async def _vote(self, collection: str, query: str) -> _Vote:
        try:
            calibration = await self.calibrate(collection)
            embedder = self._embedder_of(await self._index.meta(collection))
            if embedder is None or calibration is None:
                return _Vote()
            weight = dense_weight(calibration, query)
            if not weight:
                return _Vote(note=f"the embedder does not know this script ({script(query)}) well enough to vote")
            vector = subtract_centre(await embedder.embed_query(query), calibration.centre)
            return _Vote(vector, weight, calibration)
        except (EmbeddingError, IndexMismatch) as error:
            return _Vote(note=str(error))

    async def _resolve(self, collection: str, selection: Selection, document: str) -> str:
        """Return the id or full name that `document` stands for. Raises `UnknownDocument`."""
        if await self._index.document_names(collection, replace(selection, document=document)):
            return document
        names = await self._index.document_names(collection, selection, document)
        if len(names) == 1:
            return names[0]
        suggestions = names or await self._index.document_names(collection, selection)
        raise UnknownDocument(document, suggestions[:MAX_SUGGESTIONS])


def search_passages(
    collection: str, passages: Sequence[tuple[Chunk, Sparse]], query: str, top_k: int, threshold: float = 0.0
) -> Retrieval:
    """Search chunks in memory by words, with their BM25 vectors; for few passages that are in no index."""
    started = time.perf_counter()
    chunks = {chunk.chunk_id: chunk for chunk, _ in passages}
    question = query[:MAX_QUERY]

    def weigh(part: str) -> tuple[list[Candidate], list[_RatedChunk]]:
        legs = _lexical_legs(part, passages)
        fused = _in_fixed_order(fuse_legs(legs, CandidateLimit("dbsf", 0.0, WEIGHED)), chunks)[:TRACED]
        candidates = _candidates(part, fused, legs, _Vote(), chunks, threshold, COMPARED)
        return candidates, [
            (candidate, chunks[candidate.chunk_id]) for candidate in candidates if candidate.above_threshold
        ]

    candidates, whole = weigh(question)
    parts = {part: weigh(part)[1] for part in split_question(question)}
    ranked = _with_parts(question, whole, parts)
    retrieval = Retrieval(
        retrieval_id=uuid4().hex,
        collection=collection,
        query=query,
        mode="lexical",
        hits=(),
        candidates=tuple(candidates),
        took_ms=(time.perf_counter() - started) * 1000,
        threshold=threshold,
        top_k=top_k,
        fusion="dbsf",
        unmatched=_parts_without_match(parts),
    )
    return retrieval.with_hits(_join(ranked[: top_k * SPARE], top_k))


def _lexical_legs(question: str, passages: Sequence[tuple[Chunk, Sparse]]) -> LegResults:
    """Return the BM25 leg over chunks in memory, as an index returns it."""
    tokens = query_vector(question).indices
    vectors = [(chunk.chunk_id, dict(zip(vector.indices, vector.values, strict=True))) for chunk, vector in passages]
    counts = {token: sum(token in vector for _, vector in vectors) for token in tokens}
    # the engine's formula, so that scores mean the same as in a collection
    weights = {token: math.log(1 + (len(vectors) - count + 0.5) / (count + 0.5)) for token, count in counts.items()}
    matched = {
        chunk_id: frozenset(token for token in tokens if token in vector)
        for chunk_id, vector in vectors
        if any(token in vector for token in tokens)
    }
    scores = [
        Scored(chunk_id, sum(weights[token] * vector[token] for token in matched[chunk_id]))
        for chunk_id, vector in vectors
        if chunk_id in matched
    ]
    best = sorted(scores, key=lambda scored: -scored.score)[:CANDIDATES]
    return LegResults(tuple(best), self_score=self_score(weights.values()), tokens=weights, matched=matched)


def _first_with_ties(fused: Sequence[Scored], count: int) -> Sequence[Scored]:
    """Return the first ``count`` candidates, and those with the same score as the last one, if it has any."""
    if len(fused) <= count or not fused[count - 1].score:
        return fused[:count]
    return [*fused[:count], *takewhile(lambda scored: scored.score == fused[count - 1].score, fused[count:])]


def _in_fixed_order(fused: Sequence[Scored], chunks: Mapping[str, Chunk]) -> list[Scored]:
    """Order candidates with the same score by the name of their document and their place in it.

    An index returns them in the order of its points, which differs between two indexes of the same documents.
    Candidates whose chunk was not read come last.
    """

    def key(scored: Scored) -> tuple[float, bool, str, int]:
        chunk = chunks.get(scored.chunk_id)
        return -scored.score, chunk is None, chunk.document_name if chunk else "", chunk.ordinal if chunk else 0

    return sorted(fused, key=key)


def _candidates(
    question: str,
    fused: Sequence[Scored],
    legs: LegResults,
    vote: _Vote,
    chunks: Mapping[str, Chunk],
    threshold: float,
    compared: int,
) -> list[Candidate]:
    """Return the fused candidates with the scores and ranks of both legs and their probability of being relevant."""
    lexical, dense = dict(legs.lexical + legs.lexical_rest), dict(legs.dense + legs.dense_rest)
    lexical_ranks, dense_ranks = _ranks(legs.lexical), _ranks(legs.dense)
    required = required_codes(question)
    words = read_question(question, frozenset(legs.tokens))
    weights = words.weigh(legs.tokens)
    near = frozenset(scored.chunk_id for scored in fused[:compared])
    own_script = script(question)
    names_nothing = words.missing_name(list(legs.matched.values()))

    def match(chunk_id: str) -> Match:
        # A damaged index may return impossible scores: negative ones or NaN.
        share = max(0.0, min(lexical.get(chunk_id, 0.0) / legs.self_score, 1.0)) if legs.self_score > 0 else 0.0
        cosine, chunk = dense.get(chunk_id), chunks.get(chunk_id)
        closeness = None if cosine is None else dense_relevance(vote.calibration, cosine)
        document, section = (chunk.document_id, chunk.heading_path) if chunk else (None, None)
        tokens = legs.matched.get(chunk_id)
        if tokens is None:  # the index reports tokens for the first candidates only
            return Match(share, closeness, document, section)
        holds_code = any(code.ids & tokens for code in required)
        lacks_code = bool(required) and not holds_code
        lacks_name = names_nothing and chunk is not None
        if lacks_name and chunk and script(chunk.text) == own_script:
            lacks_code, lacks_name = True, False  # a name has no other word, except in another script
        coverage, has_code, lacks_form = None, False, False
        if chunk and chunk_id in near:
            text = f"{chunk.document_name}\n{searchable_text(chunk)}"
            coverage = words.coverage(text, tokens, weights, "\n".join(chunk.heading_path))
            has_code = any(code.identifies and code.ids & tokens for code in required)
            lacks_form = not has_form(chunk.text, words.form)
        return Match(share, closeness, document, section, lacks_code, has_code, coverage, lacks_form, lacks_name)

    relevant = probabilities([match(scored.chunk_id) for scored in fused], vote.weight)
    return [
        Candidate(
            scored.chunk_id,
            lexical.get(scored.chunk_id),
            dense.get(scored.chunk_id),
            scored.score,
            score,
            lexical_ranks.get(scored.chunk_id),
            dense_ranks.get(scored.chunk_id),
            rank,
            score >= threshold,
        )
        for rank, (scored, score) in enumerate(zip(fused, relevant, strict=True), 1)
    ]


def _ranks(leg: Sequence[Scored]) -> dict[str, int]:
    return {scored.chunk_id: rank for rank, scored in enumerate(leg, 1)}


def _codes_first(question: str, passages: list[_RatedChunk]) -> list[_RatedChunk]:
    """Return passages in the same order, but those without the question's code last."""
    if not required_codes(question):
        return passages
    return sorted(passages, key=lambda passage: passage[0].relevance_score <= WITHOUT_CODE)


def _parts_without_match(parts: Mapping[str, list[_RatedChunk]]) -> tuple[str, ...]:
    """Return the parts of a question without a passage that matches, or nothing if no part has one.

    If no part has a match, the relevance for the whole question tells more.
    """
    without = tuple(
        part
        for part, passages in parts.items()
        if max((candidate.relevance_score for candidate, _ in passages), default=0.0) < NO_MATCH
    )
    return tuple(part.rstrip(_ENDING) for part in without) if len(without) < len(parts) else ()


def _with_parts(question: str, whole: list[_RatedChunk], parts: Mapping[str, list[_RatedChunk]]) -> list[_RatedChunk]:
    """Return the best passage for the whole question, and then those for its parts by turns.

    Without that, a document that answers one part well would take all places. ``parts`` has the passages for each part.
    A part often leaves out the subject that another part names, so a passage's score for the whole question counts too.
    Its relevance counts because fusion prefers passages that repeat the name of the thing. Passages without the code of
    a part get no turn for it: they are about other things, whose values a reader would take for its own.
    """
    if not parts:
        return _with_own_language(question, whole)
    scores = _relative_scores(whole)
    lists: list[list[_RatedChunk]] = []
    for part, passages in parts.items():
        own = _relative_scores(passages)

        def worth(passage: _RatedChunk, own: Mapping[str, float] = own) -> float:
            candidate = passage[0]
            by_whole = WHOLE * scores.get(candidate.chunk_id, 0.0)
            return own[candidate.chunk_id] + by_whole + RELEVANT * candidate.relevance_score

        if required_codes(part):
            passages = [passage for passage in passages if passage[0].relevance_score > WITHOUT_CODE]
        lists.append(sorted(passages, key=worth, reverse=True))
    # A dict keeps the first place of a passage that stands in several lists.
    order: dict[str, _RatedChunk] = {}
    for passage in [*whole[:1], *chain.from_iterable(zip_longest(*lists)), *whole]:
        if passage is not None:
            earlier = order.setdefault(passage[0].chunk_id, passage)
            if passage[0].relevance_score > earlier[0].relevance_score:  # the passage answers this part
                order[passage[0].chunk_id] = passage
    return [*order.values()]


def _with_own_language(question: str, passages: list[_RatedChunk]) -> list[_RatedChunk]:
    """Return the best passages, then the best of the others in the question's language, then the rest (see `BEST`)."""
    language = language_of(fold_text(question))
    if language is None:
        return passages
    rest = passages[BEST:]
    # Lazily, because detecting the language of a passage takes longer than everything else here.
    in_language = (place for place, (_, chunk) in enumerate(rest) if _is_in(chunk, language))
    promoted = [*islice(in_language, IN_ITS_LANGUAGE)]
    return [
        *passages[:BEST],
        *(rest[place] for place in promoted),
        *(passage for place, passage in enumerate(rest) if place not in promoted),
    ]


def _is_in(chunk: Chunk, language: str) -> bool:
    return language_of(fold_text(chunk.text[-LANGUAGE_SAMPLE:])) == language


def _relative_scores(passages: Sequence[_RatedChunk]) -> dict[str, float]:
    """Return the fused score of each passage relative to the best one."""
    best = max((candidate.fused for candidate, _ in passages), default=0.0) or 1.0
    return {candidate.chunk_id: candidate.fused / best for candidate, _ in passages}


def _for_reranker(ranked: Sequence[_RatedChunk], first_places: Sequence[str]) -> list[_RatedChunk]:
    """Return the passages for the reranker: the best ones, and always the first places of both legs."""
    best, rest = ranked[:RERANKED], ranked[RERANKED:]
    firsts = [passage for passage in rest if passage[0].chunk_id in first_places]
    return [*best[: RERANKED - len(firsts)], *firsts]


async def _rerank(
    reranker: Reranker, query: str, ranked: Sequence[tuple[Candidate, Chunk]]
) -> list[tuple[Candidate, Chunk]]:
    """Sort passages by the reranker's scores and add the scores to the candidates."""
    scores = await reranker.rerank(query, [searchable_text(chunk) for _, chunk in ranked])
    order = sorted(range(len(ranked)), key=lambda place: -scores[place])
    return [
        (replace(ranked[place][0], reranked=scores[place], reranked_rank=rank), ranked[place][1])
        for rank, place in enumerate(order, 1)
    ]


def _join(ranked: Sequence[tuple[Candidate, Chunk]], top_k: int) -> list[Hit]:
    """Return hits in the order of their best chunk; chunks that adjoin in the same place become one hit."""
    groups: list[list[tuple[Candidate, Chunk]]] = []
    for candidate, chunk in ranked:
        for group in groups:
            if len(group) < MAX_JOINED and any(_are_neighbours(chunk, member) for _, member in group):
                group.append((candidate, chunk))
                break
        else:
            if len(groups) < top_k:
                groups.append([(candidate, chunk)])
    return [_hit(group) for group in groups]


def _are_neighbours(first: Chunk, second: Chunk) -> bool:
    return abs(first.ordinal - second.ordinal) == 1 and share_place(first, second)


def _hit(group: Sequence[tuple[Candidate, Chunk]]) -> Hit:
    best = group[0][0]
    chunks = sorted((chunk for _, chunk in group), key=lambda chunk: chunk.ordinal)
    relevance = max(candidate.relevance_score for candidate, _ in group)
    return join_chunks(chunks, score=best.fused, relevance_score=relevance)
