"""Embedding and reranking on this machine with fastembed (ONNX), by model name or from a folder.

Weights are loaded from local files only; just `LocalModel.fetch` uses the network, through `model_files`. Models are
loaded and run in worker threads, because the runtime releases the interpreter lock. `embedders` maps settings to these
classes.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import anyio
import anyio.to_thread

from mcp_servers.retriever import model_files
from mcp_servers.retriever.errors import EmbedderFailed, ModelBroken, ModelMissing
from mcp_servers.retriever.model_files import Progress

BATCH = 8
"""Texts of one call in the worker thread: about 0.3 s of one core.

The model runs on single texts. So no text is padded, and an int8 model, which scales its activations over the whole
run, gives a text the same vector independent of other texts, just as for a question.
"""

MAX_REASON = 200


class LocalModel:
    """A fastembed model by name or from a folder, loaded in a worker thread on first use."""

    def __init__(self, model: str | Path, cache: Path) -> None:
        self._model = model
        self._cache = cache
        self._loaded: Any = None
        self._loading = Lock()

    @property
    def name(self) -> str:
        return f"local:{self._model.name}" if isinstance(self._model, Path) else f"fastembed:{self._model}"

    async def fetch(self, on_progress: Progress) -> None:
        """Download the model if it has a name and is not in the cache (see `model_files.fetch`), then load it.

        Raises:
            ModelMissing: there is no such model.
            FetchFailed: the download failed.
        """
        try:
            await self.load()
        except ModelMissing:
            if isinstance(self._model, Path):
                raise
            await model_files.fetch(self._model, self._cache, on_progress)
            await self.load()

    async def load(self) -> None:
        """Load the model if it is on this machine. Raises `ModelMissing`."""
        _import_loguru()
        await anyio.to_thread.run_sync(self._load)

    async def aclose(self) -> None:
        self._loaded = None

    def _load(self) -> Any:
        with self._loading:
            if self._loaded is None:
                self._loaded = _open_model(self._model, self._cache, self._open)
            return self._loaded

    def _open(self) -> Any:
        raise NotImplementedError


def _import_loguru() -> None:
    """Import fastembed's logger in the event loop's thread.

    Loguru registers hooks for forks when it is imported. Subprocesses start in the event loop's thread and run such
    hooks, so an import in another thread at that moment fails with "release unlocked lock".
    """
    import_module("loguru")


class FastEmbedder(LocalModel):
    """`Embedder` on a model name or a model folder. ``threads`` limits the cores of one run (None: all)."""

    def __init__(self, model: str | Path, cache: Path, threads: int | None = None) -> None:
        super().__init__(model, cache)
        self._threads = threads
        self._documents = anyio.CapacityLimiter(1)
        self._queries = anyio.CapacityLimiter(2)

    async def token_limit(self) -> int | None:
        """Return the number of tokens after which the tokenizer truncates a text. Raises the errors of `load`."""
        await self.load()
        truncation = getattr(getattr(self._load(), "model", None), "tokenizer", None)
        limit = (getattr(truncation, "truncation", None) or {}).get("max_length")
        return limit if isinstance(limit, int) else None

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        _import_loguru()
        vectors: list[list[float]] = []
        for at in range(0, len(texts), BATCH):
            batch = texts[at : at + BATCH]
            vectors += await anyio.to_thread.run_sync(self._embed, batch, False, limiter=self._documents)
        return vectors

    async def embed_query(self, text: str) -> list[float]:
        _import_loguru()
        (vector,) = await anyio.to_thread.run_sync(self._embed, [text], True, limiter=self._queries)
        return vector

    def _embed(self, texts: Sequence[str], query: bool) -> list[list[float]]:
        model = self._load()
        try:
            vectors = model.query_embed(texts) if query else model.passage_embed(texts, batch_size=1)
            return [vector.tolist() for vector in vectors]
        except Exception as exc:  # the ONNX runtime raises its own undeclared classes
            raise EmbedderFailed(self.name, str(exc)) from exc

    def _open(self) -> Any:
        from fastembed import TextEmbedding

        if isinstance(self._model, str):
            return TextEmbedding(self._model, cache_dir=str(self._cache), threads=self._threads, local_files_only=True)
        _register(self.name, self._model)
        return TextEmbedding(
            self.name, specific_model_path=str(self._model), threads=self._threads, local_files_only=True
        )


class FastReranker(LocalModel):
    """`Reranker` on a fastembed cross-encoder by name; only `fetch` uses the network."""

    def __init__(self, model: str, cache: Path) -> None:
        super().__init__(model, cache)
        self._worker = anyio.CapacityLimiter(1)

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        _import_loguru()
        return await anyio.to_thread.run_sync(self._rerank, query, list(texts), limiter=self._worker)

    def _rerank(self, query: str, texts: Iterable[str]) -> list[float]:
        model = self._load()
        try:
            scores = [float(score) for score in model.rerank(query, texts)]
        except Exception as exc:  # as in `FastEmbedder._embed`
            raise EmbedderFailed(str(self._model), str(exc)) from exc
        if not all(map(math.isfinite, scores)):  # NaN and infinity cannot be sorted
            raise EmbedderFailed(str(self._model), "its scores are no numbers")
        return scores

    def _open(self) -> Any:
        from fastembed.rerank.cross_encoder import TextCrossEncoder

        return TextCrossEncoder(str(self._model), cache_dir=str(self._cache), local_files_only=True)


def _open_model(model: str | Path, cache: Path, load: Callable[[], Any]) -> Any:
    """Open a model with ``load``. Raises `ModelMissing` if its files are missing, `ModelBroken` if loading failed."""
    model_files.quiet()
    if isinstance(model, Path) and not model.is_dir():
        raise ModelMissing(str(model))
    try:
        return load()
    except Exception as exc:  # fastembed: ValueError, huggingface_hub and ONNX classes
        if isinstance(model, str) and not model_files.find_source(model).is_in(cache):
            raise ModelMissing(model) from exc
        raise ModelBroken(str(model), str(exc).strip().split("\n")[0][:MAX_REASON]) from exc


def _register(name: str, folder: Path) -> None:
    """Register the model in `folder` with fastembed: pooling by its own configuration, normalised vectors."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    if any(model["model"].lower() == name.lower() for model in TextEmbedding.list_supported_models()):
        return
    files = [path for path in ("model.onnx", "onnx/model.onnx", "model_optimized.onnx") if (folder / path).is_file()]
    if not files:
        raise FileNotFoundError(f"there is no model.onnx in {folder}")
    pooling_file = folder / "1_Pooling" / "config.json"
    pooling = json.loads(pooling_file.read_bytes()) if pooling_file.is_file() else {}
    TextEmbedding.add_custom_model(
        model=name,
        pooling=PoolingType.CLS if pooling.get("pooling_mode_cls_token") else PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf=name),
        dim=json.loads((folder / "config.json").read_bytes())["hidden_size"],
        model_file=files[0],
    )
