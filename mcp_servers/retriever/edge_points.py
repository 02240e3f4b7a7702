"""How a chunk lies in a shard: what its payload holds, and which documents a selection means.

The engine's binding takes about 8 µs of each string and each list element it is given, with the interpreter lock
held, so that a payload has few of them: `document` (id and name of the document in one), the headings, the ordinal,
and all the rest of a chunk as one JSON string. Knows no shard and no query.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from mcp_servers.retriever.chunking import Chunk, Span
from mcp_servers.retriever.index import Selection, ending

DOCUMENT = "document"
HEADINGS = "heading_path"
ORDINAL = "ordinal"
"""Payload fields that are filtered on."""

STORED = "stored"

_SEPARATOR = "\n"
"""Between id and name of a document; ids are made by the server and are one line."""


def point_payload(chunk: Chunk) -> dict[str, Any]:
    """A point's payload: the stored text that citations are checked against, and what filters look at."""
    offsets = [offset for span in chunk.sentences for offset in span]
    stored = (chunk.heading_path, chunk.page, chunk.cells, chunk.text, chunk.start, chunk.end, offsets)
    payload: dict[str, Any] = {
        DOCUMENT: chunk.document_id + _SEPARATOR + chunk.document_name,
        ORDINAL: chunk.ordinal,
        STORED: orjson.dumps(stored).decode(),
    }
    if chunk.heading_path:
        # A list is given element by element after everything else was tried; most chunks have one heading.
        payload[HEADINGS] = list(chunk.heading_path) if len(chunk.heading_path) > 1 else chunk.heading_path[0]
    return payload


def stored_chunk(chunk_id: str, payload: Mapping[str, Any]) -> Chunk:
    document_id, _, document_name = payload[DOCUMENT].partition(_SEPARATOR)
    headings, page, cells, text, start, end, offsets = orjson.loads(payload[STORED])
    return Chunk(
        chunk_id=chunk_id,
        document_id=document_id,
        document_name=document_name,
        ordinal=payload[ORDINAL],
        heading_path=tuple(headings),
        page=page,
        cells=cells,
        text=text,
        start=start,
        end=end,
        sentences=tuple(map(Span, offsets[::2], offsets[1::2])),
    )


class Documents:
    """The documents of a shard, by the values their chunks have in `DOCUMENT`."""

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
        """What `DOCUMENT` may be in the chunks of a selection, its heading apart."""
        ids = self._names if selection.document_ids is None else selection.document_ids
        return [
            document_id + _SEPARATOR + name
            for document_id in ids
            for name in self._names.get(document_id, ())
            if not selection.document or selection.document in (document_id, name)
            if not selection.type or selection.type == ending(name)
        ]


def name_of(value: str) -> str:
    """The name of the document whose chunks have `value`."""
    return value.partition(_SEPARATOR)[2]
