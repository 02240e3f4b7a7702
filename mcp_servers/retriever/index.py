"""What an index is: the protocol both implementations fulfil, and the values that cross it.

It also says which text of a chunk its vectors are made of. Which engine stores it, how hits are ranked and what a
tool shows of them is decided elsewhere.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
"""Names of a point's vectors. `WINDOWS` is a multivector, of embedders with a token limit only; `DENSE` is its mean."""

COARSE = 1_000
"""Points that a search compares by their windows: those whose mean is nearest. In a collection with fewer, all are."""

UPSERT_BATCH = 64
"""Points handed on at once, at most; the embedded index gives the engine fewer where they take too long."""

COMPLETED = 20
"""Candidates of one leg that the other is asked to score too; the rest could not come to the top."""

MAX_NAMES = 1_000
"""Document names told at once."""

KEYWORD_FIELDS = ("document_id", "document_name", "type", "heading_path")
"""Payload fields that are filtered on in a server; `ordinal` beside them is an integer index."""

Vectors = list[float] | list[list[float]]
"""One vector, or the vectors of a multivector."""

_COLLECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}(?:@[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Dense:
    """Dense vectors of one embedder, all of one dimension, in the order of the chunks they belong to.

    ``windows`` is how many vectors each chunk has (see `windows.chunk_windows`); None: one each, of the whole chunk.
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
    """Return the direction between vectors: what stands for a chunk of several windows in a first, coarse search."""
    if len(vectors) == 1:
        return list(vectors[0])
    lengths = [math.hypot(*vector) or 1.0 for vector in vectors]
    columns = zip(*vectors, strict=True)
    return [sum(number / length for number, length in zip(column, lengths, strict=True)) for column in columns]


def stored_windows(vectors: Mapping[str, Vectors]) -> list[list[float]]:
    """Return the vectors of a chunk's windows from those of its point."""
    return cast(list[list[float]], vectors[WINDOWS] if WINDOWS in vectors else [vectors[DENSE]])


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured of the dense leg in one collection (see `calibration`): its competence 0..1 by script, the
    cosine of an unrelated chunk and of a match, and how many points there were."""

    competence: Mapping[str, float]
    noise: float
    match: float
    points: int


@dataclass(frozen=True, slots=True)
class CollectionMeta:
    """What a collection's vectors were made with. `embedder` and `dimension` are None until dense vectors came.
    `windowed`: chunks have a vector for each window."""

    tokenizer: str = TOKENIZER
    chunker: str = CHUNKER_VERSION
    embedder: str | None = None
    dimension: int | None = None
    calibration: Calibration | None = None
    windowed: bool = False

    def with_dense(self, dense: Dense) -> "CollectionMeta":
        """Return the record of the collection once it has vectors like these.

        Raises:
            IndexMismatch: it has vectors of another embedder or dimension.
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
        """Return the record as an index keeps it beside the collection."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> "CollectionMeta":
        """Reverse `to_json`; what is missing takes its default."""
        calibration = data.get("calibration")
        return cls(**{**data, "calibration": Calibration(**calibration) if calibration else None})


@dataclass(frozen=True, slots=True)
class Selection:
    """A filter; None and "" mean any. `document_ids` is what the caller may see at all: an empty one matches nothing.
    `document` is an id or an exact name, `type` a file name ending without its dot, `heading` one of the path."""

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
    """Candidates of both legs, each best first. `self_score` is the BM25 score of a chunk that is the query itself.
    `…_rest` are the scores a leg gives to the best candidates that only the other one has; chunks without a word of
    the query are in no lexical one. `chunks` are those that came along (see `CandidateLimit`).

    `tokens` is the weight (inverse document frequency) of each token of the question; `matched` says which of them the
    first candidates hold."""

    lexical: tuple[Scored, ...] = ()
    dense: tuple[Scored, ...] = ()
    self_score: float = 0.0
    lexical_rest: tuple[Scored, ...] = ()
    dense_rest: tuple[Scored, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    tokens: Mapping[int, float] = field(default_factory=dict)
    matched: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def share(self, chunk_id: str) -> float:
        """Return the share of the question's weight that the tokens of a candidate match, 0..1."""
        total = sum(self.tokens.values())
        held = sum(self.tokens[token] for token in self.matched.get(chunk_id, ()))
        return held / total if total > 0 else 0.0

    def lexical_share(self) -> float:
        """Return the share that the best of the first lexical candidates matches."""
        return max((self.share(each.chunk_id) for each in self.lexical[:LEADERS]), default=0.0)


LEADERS = 5
"""Lexical candidates of which the best match decides what the lexical leg counts."""

FusionMethod = Literal["dbsf", "rrf"]


@dataclass(frozen=True, slots=True)
class CandidateLimit:
    """Which candidates a search reads first: the best `count` when the legs are fused in this way. An index that is
    far away sends their chunks along, which saves asking for them."""

    method: FusionMethod
    dense_weight: float
    count: int


class Index(Protocol):
    """Stores chunks with their vectors, one collection for each domain. All calls may come from any task.

    `collection` is a name, or `name@n` as `rebuild` gives it. Reading a collection that does not exist finds nothing.
    Raises `IndexFault` errors only.
    """

    async def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
    ) -> None:
        """Insert or replace by chunk id, making the collection when needed. `lexical` are the BM25 vectors if they
        were made elsewhere. Raises `IndexMismatch` when `dense` does not fit what the collection records."""

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        """Give dense vectors to chunks that were indexed without; ids that are gone meanwhile are skipped."""

    async def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        """Up to `limit` chunks that have no dense vector yet."""

    async def delete_document(self, collection: str, document_id: str) -> None: ...

    async def drop(self, collection: str) -> None:
        """Remove the collection with all its generations."""

    async def count(self, collection: str, document_id: str | None = None) -> int: ...

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        """The document's chunks with ordinals from `offset` to below `offset + limit`, in order."""

    async def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        """Chunks by id; unknown ids are left out."""

    async def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]: ...

    async def document_names(self, collection: str, selection: Selection) -> list[str]:
        """Names of the documents that `selection` leaves, sorted, at most 1 000."""

    async def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
        lead: CandidateLimit | None = None,
    ) -> LegResults:
        """Up to `limit` candidates of each leg; the dense one is empty without `vector` or dense vectors. The chunks
        that `lead` asks for come along or not, as is cheaper."""

    async def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[list[float]]]]:
        """Up to `limit` chunks picked at random, with the normalised vectors of their windows."""

    async def meta(self, collection: str) -> CollectionMeta | None: ...

    async def set_calibration(self, collection: str, calibration: Calibration) -> None: ...

    async def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        """Begin an empty generation beside the live one; returns the name to fill it under."""

    async def swap(self, collection: str, generation: str) -> None:
        """Make `generation` (from `rebuild`) the live one; the old one is kept for `roll_back`."""

    async def roll_back(self, collection: str) -> bool:
        """Make the generation before the last `swap` live again; False when there is none."""

    async def wait_for_loss(self) -> None:
        """Return once something may be gone that was there: the index was started anew, or put damage aside."""

    async def aclose(self) -> None: ...


def only_in(leg: Sequence[Scored], other: Sequence[Scored]) -> list[str]:
    """Ids of the best `COMPLETED` candidates of `leg` that `other` has not."""
    have = {each.chunk_id for each in other}
    return [each.chunk_id for each in leg if each.chunk_id not in have][:COMPLETED]


def split_name(collection: str) -> tuple[str, int | None]:
    """`law@3` to `("law", 3)`. Raises ValueError on a name that could be a path or an alias of another."""
    if not _COLLECTION.fullmatch(collection):
        raise ValueError(f"{collection!r} is not a collection name")
    name, _, generation = collection.partition("@")
    return name, int(generation) if generation else None


def searchable_text(chunk: Chunk) -> str:
    """What the vectors of a chunk are made of: its headings and its text."""
    return "\n".join((*chunk.heading_path, chunk.text))


def ending(name: str) -> str:
    """What `Selection.type` is compared with: a file name's ending in lower case, without its dot."""
    return PurePath(name).suffix.lower().lstrip(".")
