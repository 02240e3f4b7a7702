"""The contents of the frames between a server and its index process: the values of `Index` as JSON and raw floats.

The module does no I/O. A request has a number, a method of `Index` and its arguments. An answer has the same number,
and a value or a fault. Dense vectors are sent as consecutive 32-bit floats, the precision that the engine stores.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from mcp_servers.frames import Frame
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.edge_points import pack_payload, unpack_payload
from mcp_servers.retriever.errors import (
    IndexClosed,
    IndexDamaged,
    IndexFault,
    IndexMismatch,
    IndexOwned,
    IndexUnavailable,
)
from mcp_servers.retriever.index import Dense, LegResults, Scored, Selection
from mcp_servers.retriever.lexical import Sparse

_FAULTS: dict[str, type[IndexFault]] = {
    kind.__name__: kind for kind in (IndexOwned, IndexClosed, IndexUnavailable, IndexDamaged, IndexMismatch)
}


def pack_vectors(vectors: Iterable[Sequence[float]]) -> bytes:
    """Return vectors of one dimension as raw floats."""
    return b"".join(array("f", vector).tobytes() for vector in vectors)


def unpack_vectors(floats: bytes, count: int) -> list[list[float]]:
    """Reverse `pack_vectors`; ``count`` is the number of vectors."""
    values = array("f")
    values.frombytes(floats)
    dimension = len(values) // count if count else 0
    if not dimension:
        return []
    return [values[at : at + dimension].tolist() for at in range(0, len(values), dimension)]


def pack_chunks(chunks: Iterable[Chunk]) -> list[Json]:
    """Return chunks as JSON values."""
    return [chunk.to_json() for chunk in chunks]


def unpack_chunks(values: Iterable[Json]) -> list[Chunk]:
    """Reverse `pack_chunks`."""
    return [Chunk.from_json(value) for value in values]


def pack_dense(dense: Dense | None) -> tuple[Json, bytes]:
    """Return the JSON fields that describe dense vectors, and the vectors as raw floats."""
    if dense is None:
        return {}, b""
    windows = None if dense.windows is None else [*dense.windows]
    return {"embedder": dense.embedder, "windows": windows}, pack_vectors(dense.vectors)


def unpack_dense(data: Json, floats: bytes, count: int) -> Dense | None:
    """Reverse `pack_dense`; ``count`` is the number of chunks."""
    if "embedder" not in data:
        return None
    windows = data["windows"]
    return Dense(data["embedder"], unpack_vectors(floats, count if windows is None else sum(windows)), windows)


def unpack_sparse(values: list[tuple[list[int], list[float]]] | None) -> list[Sparse] | None:
    """Return the BM25 vectors of a request from lists of token ids and weights."""
    return None if values is None else [Sparse(indices, weights) for indices, weights in values]


def pack_selection(selection: Selection) -> Json:
    """Return a filter as JSON values."""
    return asdict(selection)


def unpack_selection(data: Json) -> Selection:
    """Reverse `pack_selection`."""
    ids = data["document_ids"]
    return Selection(**{**data, "document_ids": None if ids is None else tuple(ids)})


_LEGS = ("lexical", "dense", "lexical_rest", "dense_rest", "fused")


def pack_legs(legs: LegResults, payloads: Mapping[str, Json]) -> Json:
    """Return candidates as JSON values; ``payloads`` are those of the chunks to send along, by chunk id.

    Each leg is a list of places in the list of all ids, and a list of scores: most ids are in several legs.
    """
    ids_of_legs = [[*map(itemgetter(0), getattr(legs, name))] for name in _LEGS]
    scores_of_legs = [[*map(itemgetter(1), getattr(legs, name))] for name in _LEGS]
    ids = [*dict.fromkeys(chain.from_iterable(ids_of_legs))]
    places = dict(zip(ids, range(len(ids)), strict=True))
    places_of_legs = [[*map(places.__getitem__, leg)] for leg in ids_of_legs]
    tokens = [*legs.tokens]
    token_places = {token: place for place, token in enumerate(tokens)}
    return {
        "ids": ids,
        "legs": [*zip(places_of_legs, scores_of_legs, strict=True)],
        "self_score": legs.self_score,
        "chunks": [pack_payload(chunk_id, payload) for chunk_id, payload in payloads.items()],
        "tokens": tokens,
        "weights": [*legs.tokens.values()],
        "matched": {chunk_id: [token_places[token] for token in matched] for chunk_id, matched in legs.matched.items()},
    }


def unpack_legs(data: Json) -> LegResults:
    """Reverse `pack_legs`."""
    chunk_id_at = data["ids"].__getitem__
    lexical, dense, lexical_rest, dense_rest, fused = (
        tuple(map(Scored, map(chunk_id_at, places), scores)) for places, scores in data["legs"]
    )
    tokens = data["tokens"]
    return LegResults(
        lexical,
        dense,
        data["self_score"],
        lexical_rest,
        dense_rest,
        tuple(map(unpack_payload, data["chunks"])),
        dict(zip(tokens, data["weights"], strict=True)),
        {chunk_id: frozenset(tokens[place] for place in places) for chunk_id, places in data["matched"].items()},
        fused,
    )


def pack_sample(sample: Sequence[tuple[Chunk, Sequence[Sequence[float]]]]) -> Frame:
    """Return chunks with the vectors of their windows as a frame."""
    windows = [len(vectors) for _, vectors in sample]
    floats = pack_vectors(vector for _, vectors in sample for vector in vectors)
    return Frame({"value": pack_chunks(chunk for chunk, _ in sample), "windows": windows}, floats)


def unpack_sample(frame: Frame) -> list[tuple[Chunk, list[list[float]]]]:
    """Reverse `pack_sample`."""
    chunks, windows = unpack_chunks(frame.data["value"]), frame.data["windows"]
    vectors = iter(unpack_vectors(frame.floats, sum(windows)))
    return [(chunk, [*islice(vectors, count)]) for chunk, count in zip(chunks, windows, strict=True)]


def pack_fault(fault: IndexFault) -> Json:
    """Return a fault as JSON values."""
    facts: dict[str, Any] = {
        name: value if isinstance(value, str | int | float | None) else str(value)
        for name, value in vars(fault).items()
        if not name.startswith("__")
    }
    return {"kind": type(fault).__name__, **facts}


def unpack_fault(data: Json) -> IndexFault:
    """Reverse `pack_fault`."""
    facts = dict(data)
    return _FAULTS[facts.pop("kind")](**facts)
