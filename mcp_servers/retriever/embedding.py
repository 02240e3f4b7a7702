"""What an embedder and a reranker are, and which one a setting means.

    ""                    fastembed's small multilingual model
    fastembed:<model>     a model fastembed knows by name
    /path or ./path       a folder with model.onnx, tokenizer.json and tokenizer_config.json
    http(s)://…/v1#model  an endpoint with the shape of OpenAI's /embeddings
    none                  no dense leg: lexical mode

What is embedded and where the vectors go is decided elsewhere. Importing this loads no model runtime.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

DEFAULT_MODEL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
"""384 dimensions, 220 MB, fifty languages."""


class Embedder(Protocol):
    """`name` is recorded with the vectors it makes: another name means vectors that cannot be compared."""

    @property
    def name(self) -> str: ...

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, all of one dimension. Raises `ModelMissing` or `EmbedderFailed`."""

    async def embed_query(self, text: str) -> list[float]: ...

    async def aclose(self) -> None: ...


class Reranker(Protocol):
    """Reads question and passage together: slow, and better than either leg."""

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """A score for each text, higher is better; scores of different queries cannot be compared."""


def make_embedder(setting: str, cache: Path, api_key: str = "") -> Embedder | None:
    """The embedder that `setting` means, or None for lexical mode; nothing is loaded or fetched yet.

    `cache` is where fastembed keeps models. Raises ValueError on a setting of no known form.
    """
    if setting == "none":
        return None
    if setting.startswith(("http://", "https://")):
        from mcp_servers.retriever.http_embedder import HttpEmbedder

        base, _, model = setting.partition("#")
        return HttpEmbedder(base, model, api_key)
    # Imported here: 85 MB of runtime that lexical mode and HTTP do without.
    from mcp_servers.retriever.fast_embedder import FastEmbedder

    if setting == "" or setting.startswith("fastembed:"):
        return FastEmbedder(setting.removeprefix("fastembed:") or DEFAULT_MODEL, cache)
    if setting.startswith(("/", "./", "../", "~")):
        return FastEmbedder(Path(setting).expanduser(), cache)
    raise ValueError(f"{setting!r} is not an embedder: fastembed:<model>, a folder, a URL or none")
