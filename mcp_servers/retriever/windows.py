"""Embedding of chunks longer than an embedder's token limit, in overlapping windows of which the best one counts.

A window begins with the chunk's headings and contains whole sentences if they fit. Its size follows from the embedder's
token limit. The context line of a chunk has a separate window, so that it takes no room from the text. An embedder
without a limit gets each chunk whole.
"""

import re
from collections.abc import Iterator, Sequence

from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.embedding import Embedder, token_limit
from mcp_servers.retriever.index import Dense, searchable_text
from mcp_servers.retriever.sentences import split_sentences

WIDTH_PER_TOKEN = 2.5
"""Characters of a window for each token that an embedder reads; an ideograph is `IDEOGRAPH` characters wide. No
script that was tried has more tokens than that, so nothing at the end of a window is lost."""

IDEOGRAPH = 2.5

MAX_WINDOWS = 24
"""Maximum number of windows of a chunk. A chunk has about 1 200 characters, so only unusual chunks reach the limit."""

_IDEOGRAPHS = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


def width(text: str) -> float:
    """Return the length of a text, in which an ideograph counts as `IDEOGRAPH` characters."""
    return len(text) + (IDEOGRAPH - 1) * len(_IDEOGRAPHS.findall(text))


def chunk_windows(chunk: Chunk, limit: int | None) -> list[str]:
    """Return the texts to embed for a chunk, at least one, with an embedder that reads ``limit`` tokens."""
    whole = searchable_text(chunk)
    if limit is None or width(whole) <= limit * WIDTH_PER_TOKEN:
        return [whole]
    head = " › ".join(chunk.heading_path)[:limit]  # a long heading gets at most two fifths of the window
    sentences = [chunk.text[span.start : span.end] for span in chunk.sentences] or [chunk.text]
    windows = _windows(sentences, limit, head + "\n" if head else "")
    return [*windows, *_windows([chunk.context], limit)] if chunk.context else windows


def text_windows(text: str, limit: int | None) -> list[str]:
    """Return the windows of a plain text without headings."""
    return [text] if limit is None else _windows([text[span.start : span.end] for span in split_sentences(text)], limit)


def _windows(sentences: Sequence[str], limit: int, head: str = "") -> list[str]:
    room = limit * WIDTH_PER_TOKEN - width(head)
    pieces = [piece for sentence in sentences for piece in _cut(sentence, room)]
    return [head + "\n".join(window) for window in _pack(pieces, room)][:MAX_WINDOWS] or [head]


def _pack(pieces: Sequence[str], room: float) -> Iterator[list[str]]:
    """Fill windows with whole pieces; a window starts with the last piece of the previous window if it is short."""
    first = 0
    while first < len(pieces):
        size, end = width(pieces[first]), first + 1
        while end < len(pieces) and size + width(pieces[end]) <= room:
            size += width(pieces[end])
            end += 1
        yield list(pieces[first:end])
        if end == len(pieces):
            return
        repeated = end - 1 > first and width(pieces[end - 1]) < room / 2
        first = end - 1 if repeated else end


def _cut(sentence: str, room: float) -> Iterator[str]:
    """Cut a sentence that is wider than a window at spaces, each piece overlapping the one before by a third."""
    while width(sentence) > room:
        end = max(int(len(sentence) * room / width(sentence)), 1)
        space = sentence.rfind(" ", end // 2, end)
        yield sentence[: space if space > 0 else end]
        start = max(end * 2 // 3, 1)
        space = sentence.find(" ", start, end)
        sentence = sentence[space + 1 if space > 0 else start :]
    yield sentence


async def embed_chunks(embedder: Embedder, chunks: Sequence[Chunk]) -> Dense:
    """Embed chunks, or their windows if the embedder has a token limit. Raises `EmbeddingError`."""
    limit = await token_limit(embedder)
    windows = [chunk_windows(chunk, limit) for chunk in chunks]
    vectors = await embedder.embed_documents([text for texts in windows for text in texts])
    return Dense(embedder.name, vectors, None if limit is None else [len(texts) for texts in windows])
