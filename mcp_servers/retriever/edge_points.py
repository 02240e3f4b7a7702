"""Conversion between chunks and the points of a shard, and the documents of a shard."""

from collections.abc import Iterable
from typing import Any

import orjson

from mcp_servers.retriever.chunking import Chunk, ChunkTable, TextSpan
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.index import Selection, ending, sample_key

DOCUMENT = "document"
HEADINGS = "heading_path"
ORDINAL = "ordinal"
"""Payload fields for filters."""

STORED = "stored"

Payload = dict[str, Any]
"""A JSON object for the engine."""

_SEPARATOR = "\n"
"""Separator of a document's id and name; the server creates ids, which have no line break."""


class IndexedDocuments:
    """The documents of a shard, collected from the field `DOCUMENT` of their chunks."""

    def __init__(self, values: Iterable[str]) -> None:
        self._names: dict[str, set[str]] = {}
        for value in values:
            document_id, _, name = value.partition(_SEPARATOR)
            self.add(document_id, name)

    def add(self, document_id: str, name: str) -> None:
        self._names.setdefault(document_id, set()).add(name)

    def remove(self, document_id: str) -> None:
        self._names.pop(document_id, None)

    def values(self, selection: Selection) -> list[str]:
        """Return the values of `DOCUMENT` that match a selection, apart from its heading."""
        ids = self._names if selection.document_ids is None else selection.document_ids
        return [
            document_id + _SEPARATOR + name
            for document_id in ids
            for name in self._names.get(document_id, ())
            if not selection.document or selection.document in (document_id, name)
            if not selection.type or selection.type == ending(name)
        ]


def point_payload(chunk: Chunk) -> Payload:
    """Return a point's payload: the text against which citations are checked, and the fields for filters.

    The engine's binding takes about 8 µs for each string and each list element, with the interpreter lock held. So the
    payload has few fields: id and name of the document in one string, the headings, the ordinal, and the rest of the
    chunk as one JSON string.
    """
    offsets = [offset for span in chunk.sentences for offset in span]
    tables = [[*table] for table in chunk.tables]
    place = (chunk.heading_path, chunk.page, chunk.cells)
    added = (chunk.scanned, chunk.scanned_by, chunk.context)
    stored = (*place, chunk.text, chunk.start, chunk.end, offsets, tables, *added)
    payload: Payload = {
        DOCUMENT: chunk.document_id + _SEPARATOR + chunk.document_name,
        ORDINAL: chunk.ordinal,
        STORED: orjson.dumps(stored).decode(),
    }
    if chunk.heading_path:
        # The binding converts a list last and element by element; most chunks have one heading.
        payload[HEADINGS] = list(chunk.heading_path) if len(chunk.heading_path) > 1 else chunk.heading_path[0]
    return payload


def chunk_key(payload: Json) -> bytes:
    """Return the `sample_key` of a point's chunk."""
    return sample_key(payload[DOCUMENT].partition(_SEPARATOR)[2], payload[ORDINAL])


def stored_chunk(chunk_id: str, payload: Json) -> Chunk:
    """Return the chunk of a point; reverses `point_payload`."""
    return _chunk(chunk_id, payload[DOCUMENT], payload[ORDINAL], orjson.loads(payload[STORED]))


def pack_payload(chunk_id: str, payload: Json) -> list[Any]:
    """Return the JSON values of a point's chunk for `unpack_payload`, without parsing its stored JSON."""
    return [chunk_id, payload[DOCUMENT], payload[ORDINAL], orjson.Fragment(payload[STORED])]


def unpack_payload(values: list[Any]) -> Chunk:
    """Reverse `pack_payload`."""
    chunk_id, document, ordinal, stored = values
    return _chunk(chunk_id, document, ordinal, stored)


def _chunk(chunk_id: str, document: str, ordinal: int, stored: list[Any]) -> Chunk:
    document_id, _, document_name = document.partition(_SEPARATOR)
    headings, page, cells, text, start, end, offsets, *added = stored
    absent: list[Any] = [(), False, "", ""]
    tables, scanned, scanned_by, context = added + absent[len(added) :]  # earlier points have fewer members
    return Chunk(
        chunk_id=chunk_id,
        document_id=document_id,
        document_name=document_name,
        ordinal=ordinal,
        heading_path=tuple(headings),
        page=page,
        cells=cells,
        text=text,
        start=start,
        end=end,
        sentences=tuple(map(TextSpan, offsets[::2], offsets[1::2])),
        tables=tuple(ChunkTable(first, last, tuple(header)) for first, last, header in tables),
        scanned=scanned,
        scanned_by=scanned_by,
        context=context,
    )


def document_name(value: str) -> str:
    """Return the name in a value of `DOCUMENT`."""
    return value.partition(_SEPARATOR)[2]
