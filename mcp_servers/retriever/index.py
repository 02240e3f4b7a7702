"""The `Index` protocol, which both implementations fulfil, and the values of its methods.

The module also defines the text of a chunk that is embedded. Other modules choose the engine, rank the hits and
present them.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import PurePath
from typing import Literal, NamedTuple, Protocol, cast

from mcp_servers.retriever.chunking import CHUNKER_VERSION, Chunk
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import IndexMismatch
from mcp_servers.retriever.lexical import TOKENIZER, Sparse

LEXICAL = "bm25"
DENSE = "dense"
WINDOWS = "windows"
"""Names of a point's vectors. `WINDOWS` is a multivector for embedders with a token limit, and `DENSE` its mean."""

COARSE = 1_000
"""Points with the nearest means, whose windows a search compares; all points in a smaller collection."""

UPSERT_BATCH = 64
"""Maximum number of points of one write; the embedded index splits it further if the engine takes too long."""

COMPLETED = 20
"""Best candidates of one leg that the other leg scores too; the rest could not reach the top."""

MAX_NAMES = 1_000
"""Maximum number of document names in one answer."""

MAX_DOCUMENTS = 1_000_000
"""Limit for listing a collection's documents, because both engines require one."""

KEYWORD_FIELDS = ("document_id", "document_name", "type", "heading_path")
"""Payload fields that a Qdrant server indexes as keywords for filters; `ordinal` has an integer index."""

Vectors = list[float] | list[list[float]]
"""One vector, or the vectors of a multivector."""

_COLLECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}(?:@[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Dense:
    """Dense vectors of one embedder, all of one dimension, in the order of the chunks they belong to.

    ``windows`` is the number of vectors of each chunk (see `windows.chunk_windows`); None means one for each chunk.
    """

    embedder: str
    vectors: Sequence[Sequence[float]]
    windows: Sequence[int] | None = None

    def by_chunk(self) -> list[list[Sequence[float]]]:
        """Return the vectors of each chunk."""
        rest = iter(self.vectors)
        return [list(islice(rest, count)) for count in self.windows or [1] * len(self.vectors)]

    def by_name(self) -> list[dict[str, Vectors]]:
        """Return the vectors of each chunk's point, by their names in the index."""
        points: list[dict[str, Vectors]] = []
        for vectors in self.by_chunk():
            point: dict[str, Vectors] = {DENSE: mean_vector(vectors)}
            if self.windows is not None:
                point[WINDOWS] = [list(vector) for vector in vectors]
            points.append(point)
        return points

    def of_chunks(self, part: slice) -> "Dense":
        """Return the vectors of some of the chunks."""
        if self.windows is None:
            return replace(self, vectors=self.vectors[part])
        chosen = [vector for vectors in self.by_chunk()[part] for vector in vectors]
        return replace(self, vectors=chosen, windows=self.windows[part])


def mean_vector(vectors: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean direction of vectors, which represents a chunk of several windows in the first, coarse search."""
    if len(vectors) == 1:
        return list(vectors[0])
    units: list[list[float]] = []
    for vector in vectors:
        length = math.hypot(*vector) or 1.0
        units.append([number / length for number in vector])
    return [*map(sum, zip(*units, strict=True))]


def stored_windows(vectors: Mapping[str, Vectors]) -> list[list[float]]:
    """Return the vectors of a chunk's windows from those of its point."""
    return cast(list[list[float]], vectors[WINDOWS] if WINDOWS in vectors else [vectors[DENSE]])


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measurements of the dense leg in one collection (see `calibration`).

    `competence` is 0..1 by script. `noise` is the cosine of an unrelated chunk, `match` that of a matching one, and
    `points` is the size of the collection at the time. `centre` is the mean vector of the sampled chunks, of which a
    part is subtracted from a question's vector; empty means that nothing is subtracted.
    """

    competence: Mapping[str, float]
    noise: float
    match: float
    points: int
    centre: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, data: Json) -> "Calibration":
        """Reverse `dataclasses.asdict` and JSON."""
        return cls(**{**data, "centre": tuple(data.get("centre", ()))})


@dataclass(frozen=True, slots=True)
class CollectionMeta:
    """The tokenizer, chunker and embedder that produced a collection's vectors, and its calibration.

    `embedder` and `dimension` are None until the first dense vectors. `windowed` means that chunks have a vector for
    each window.
    """

    tokenizer: str = TOKENIZER
    chunker: str = CHUNKER_VERSION
    embedder: str | None = None
    dimension: int | None = None
    calibration: Calibration | None = None
    windowed: bool = False

    def with_dense(self, dense: Dense) -> "CollectionMeta":
        """Return the record of the collection after vectors like these were added.

        Raises:
            IndexMismatch: the collection has vectors of another embedder or dimension.
        """
        dimension = len(dense.vectors[0])
        if self.embedder not in (None, dense.embedder):
            raise IndexMismatch("embedder", self.embedder, dense.embedder)
        if self.dimension not in (None, dimension):
            raise IndexMismatch("dimension", self.dimension, dimension)
        if self.embedder is not None and self.windowed != (dense.windows is not None):
            raise IndexMismatch("embedder", f"{self.embedder} (other windows)", dense.embedder)
        return replace(self, embedder=dense.embedder, dimension=dimension, windowed=dense.windows is not None)

    def to_json(self) -> Json:
        """Return the record as JSON, as an index stores it with the collection."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> "CollectionMeta":
        """Reverse `to_json`; missing fields take their defaults."""
        calibration = data.get("calibration")
        return cls(**{**data, "calibration": Calibration.from_json(calibration) if calibration else None})


@dataclass(frozen=True, slots=True)
class Selection:
    """A filter on chunks; None and "" mean any.

    `document_ids` are the documents that the caller may see; an empty tuple matches nothing. `document` is an id or an
    exact name, `type` a file name ending without its dot, and `heading` an element of the heading path.
    """

    document_ids: tuple[str, ...] | None = None
    document: str | None = None
    type: str | None = None
    heading: str | None = None


EVERYTHING = Selection()


class Scored(NamedTuple):
    chunk_id: str
    score: float


@dataclass(frozen=True, slots=True)
class LegResults:
    """Candidates of both legs, each best first.

    `self_score` is the BM25 score of a chunk whose text is the query itself. `lexical_rest` and `dense_rest` are the
    scores that a leg gives to the best candidates that only the other leg found; chunks without a word of the query
    have no lexical score. `chunks` are the chunks that the index sent along (see `CandidateLimit`).

    `tokens` is the weight (inverse document frequency) of each token of the question. `matched` has the tokens that
    each of the first candidates contains. `fused` are all candidates in the order of the fusion, if the index fused
    them to find the chunks of `CandidateLimit`.
    """

    lexical: tuple[Scored, ...] = ()
    dense: tuple[Scored, ...] = ()
    self_score: float = 0.0
    lexical_rest: tuple[Scored, ...] = ()
    dense_rest: tuple[Scored, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    tokens: Mapping[int, float] = field(default_factory=dict)
    matched: Mapping[str, frozenset[int]] = field(default_factory=dict)
    fused: tuple[Scored, ...] = ()

    def share(self, chunk_id: str) -> float:
        """Return the share of the question's weight that a candidate's tokens match, 0..1."""
        total = sum(self.tokens.values())
        held = sum(self.tokens[token] for token in self.matched.get(chunk_id, ()))
        return held / total if total > 0 else 0.0

    def lexical_share(self) -> float:
        """Return the highest `share` among the first `LEADERS` lexical candidates."""
        return max((self.share(candidate.chunk_id) for candidate in self.lexical[:LEADERS]), default=0.0)


LEADERS = 5
"""First lexical candidates, of which the best match decides the weight of the lexical leg."""

FusionMethod = Literal["dbsf", "rrf"]


@dataclass(frozen=True, slots=True)
class CandidateLimit:
    """The candidates whose chunks a search reads: the best `count` after this fusion, and the `firsts` of each leg.

    The index sends these chunks along, which saves a request.
    """

    method: FusionMethod
    dense_weight: float
    count: int
    firsts: int = 0

    def first_places(self, legs: LegResults) -> tuple[str, ...]:
        """Return the ids of the first candidates of each leg."""
        return tuple(candidate.chunk_id for leg in (legs.lexical, legs.dense) for candidate in leg[: self.firsts])


class Index(Protocol):
    """Stores chunks with their vectors, one collection for each domain. Any task may call any method.

    `collection` is a name, or `name@n` as returned by `rebuild`. Reading a collection that does not exist finds
    nothing. The methods raise only `IndexFault` errors.
    """

    async def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
        *,
        known_only: bool = False,
    ) -> None:
        """Insert chunks, or replace those of the same id; create the collection if needed.

        `lexical` are the BM25 vectors, if the caller has computed them. With `known_only`, chunks are only replaced:
        those that were deleted meanwhile are skipped.

        Raises:
            IndexMismatch: the collection has vectors of another embedder or dimension than `dense`.
        """

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        """Add dense vectors to chunks that were indexed without them; ids of chunks deleted since are skipped."""

    async def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        """Return up to `limit` chunks that have no dense vector yet."""

    async def delete_document(self, collection: str, document_id: str) -> None: ...

    async def drop(self, collection: str) -> None:
        """Remove the collection with all its generations."""

    async def count(self, collection: str, document_id: str | None = None) -> int: ...

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        """Return the document's chunks with ordinals from `offset` to below `offset + limit`, in order."""

    async def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        """Return chunks by id; unknown ids are left out."""

    async def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]: ...

    async def document_names(self, collection: str, selection: Selection, part: str = "") -> list[str]:
        """Return the names of the documents that match `selection`, sorted, at most 1 000.

        `part` limits them to the names that contain this text, in upper or lower case.
        """

    async def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
        lead: CandidateLimit | None = None,
    ) -> LegResults:
        """Return up to `limit` candidates of each leg; the dense leg is empty without `vector` or dense vectors.

        The index may send the chunks that `lead` describes along, if that is cheaper than another request.
        """

    async def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[list[float]]]]:
        """Return up to `limit` chunks with the normalised vectors of their windows.

        Equal documents under equal names give the same chunks: those with the smallest `sample_key`.
        """

    async def meta(self, collection: str) -> CollectionMeta | None: ...

    async def set_calibration(self, collection: str, calibration: Calibration) -> None: ...

    async def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        """Create an empty generation beside the live one and return the collection name for filling it."""

    async def swap(self, collection: str, generation: str) -> None:
        """Make `generation` (from `rebuild`) live and keep the old one for `roll_back`."""

    async def roll_back(self, collection: str) -> bool:
        """Make the generation before the last `swap` live again; return False if there is none."""

    async def wait_for_loss(self) -> None:
        """Wait until stored data may be lost: the index was restarted, or quarantined a damaged collection."""

    async def aclose(self) -> None: ...


def only_in(leg: Sequence[Scored], other: Sequence[Scored]) -> list[str]:
    """Return the ids of the best `COMPLETED` candidates of `leg` that `other` lacks."""
    rated = {candidate.chunk_id for candidate in other}
    return [candidate.chunk_id for candidate in leg if candidate.chunk_id not in rated][:COMPLETED]


def split_name(collection: str) -> tuple[str, int | None]:
    """Split `law@3` into `("law", 3)`. Raises ValueError on a name that could be a path or an alias of another."""
    if not _COLLECTION.fullmatch(collection):
        raise ValueError(f"{collection!r} is not a collection name")
    name, _, generation = collection.partition("@")
    return name, int(generation) if generation else None


def sample_key(document_name: str, ordinal: int) -> bytes:
    """Return a number of a chunk that is as good as random, and equal for equal documents in other collections."""
    return sha256(f"{document_name}\0{ordinal}".encode("utf-8", "surrogatepass")).digest()


def searchable_text(chunk: Chunk) -> str:
    """Return the text of a chunk that its vectors represent: its headings, its context line and its text."""
    context = (chunk.context,) if chunk.context else ()
    return "\n".join((*chunk.heading_path, *context, chunk.text))


def names_with_part(names: Iterable[str], part: str) -> list[str]:
    """Return the answer of `Index.document_names` for the names of all documents that match its selection."""
    wanted = part.casefold()
    return sorted({name for name in names if wanted in name.casefold()})[:MAX_NAMES]


def ending(name: str) -> str:
    """Return a file name's ending in lower case without its dot, as `Selection.type` has it."""
    return PurePath(name).suffix.lower().lstrip(".")
