"""Embedding and reranking on this machine by fastembed (ONNX): by model name, or from a folder.

Weights are looked for locally only; `fetch` alone uses the network. Loading and running happen in worker threads
(the runtime lets go of the interpreter lock). Which setting leads here is `embedding`'s to say.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import anyio
import anyio.to_thread

from mcp_servers.retriever.errors import EmbedderFailed, ModelMissing

BATCH = 8
"""Texts in one trip to the worker thread: about 0.3 s of one core.

The model runs on one text at a time. Nothing is padded then, and an int8 model, which scales its activations over
the whole run, gives a text the same vector whatever stands beside it - as it does for the question, which is alone.
"""

PROGRESS_SECONDS = 0.5


class FastEmbedder:
    """`Embedder` on a fastembed model name or a model folder; the model is loaded at the first use.

    `threads` bounds the cores one run uses (None: all).
    """

    def __init__(self, model: str | Path, cache: Path, threads: int | None = None) -> None:
        self._model = model
        self._cache = cache
        self._threads = threads
        self._loaded: Any = None
        self._loading = Lock()
        self._documents = anyio.CapacityLimiter(1)
        self._queries = anyio.CapacityLimiter(2)

    @property
    def name(self) -> str:
        return f"local:{self._model.name}" if isinstance(self._model, Path) else f"fastembed:{self._model}"

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for at in range(0, len(texts), BATCH):
            batch = texts[at : at + BATCH]
            vectors += await anyio.to_thread.run_sync(self._embed, batch, False, limiter=self._documents)
        return vectors

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await anyio.to_thread.run_sync(self._embed, [text], True, limiter=self._queries)
        return vector

    async def fetch(self, on_progress: Callable[[int, int], None]) -> None:
        """Download the model if it is not here, then load it. `on_progress(bytes here, bytes expected)` is called
        twice a second. Raises `ModelMissing` when it cannot be had; cancelling waits for the file in flight."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._report, on_progress)
            try:
                await anyio.to_thread.run_sync(self._load, False)
            finally:
                tasks.cancel_scope.cancel()

    async def load(self) -> None:
        """Load the model if it is on this machine. Raises `ModelMissing`."""
        await anyio.to_thread.run_sync(self._load, True)

    async def aclose(self) -> None:
        self._loaded = None

    async def _report(self, on_progress: Callable[[int, int], None]) -> None:
        from fastembed import TextEmbedding

        sizes = {each["model"]: each["size_in_GB"] for each in TextEmbedding.list_supported_models()}
        expected = int(sizes.get(str(self._model), 0) * 2**30)
        while True:
            files = [path for path in self._cache.rglob("*") if path.is_file() and not path.is_symlink()]
            on_progress(sum(path.stat().st_size for path in files), expected)
            await anyio.sleep(PROGRESS_SECONDS)

    def _embed(self, texts: Sequence[str], query: bool) -> list[list[float]]:
        model = self._load(True)
        try:
            vectors = model.query_embed(texts) if query else model.passage_embed(texts, batch_size=1)
            return [vector.tolist() for vector in vectors]
        except Exception as exc:  # the ONNX runtime raises its own undeclared classes
            raise EmbedderFailed(self.name, str(exc)) from exc

    def _load(self, local_only: bool) -> Any:
        with self._loading:
            if self._loaded is None:
                try:
                    self._loaded = self._open(local_only)
                except Exception as exc:  # fastembed: ValueError, huggingface_hub and ONNX classes
                    raise ModelMissing(str(self._model)) from exc
            return self._loaded

    def _open(self, local_only: bool) -> Any:
        from fastembed import TextEmbedding

        if isinstance(self._model, str):
            return TextEmbedding(
                self._model, cache_dir=str(self._cache), threads=self._threads, local_files_only=local_only
            )
        _register(self.name, self._model)
        return TextEmbedding(
            self.name, specific_model_path=str(self._model), threads=self._threads, local_files_only=True
        )


class FastReranker:
    """`Reranker` on a fastembed cross-encoder, by name; local files only."""

    def __init__(self, model: str, cache: Path) -> None:
        self._model = model
        self._cache = cache
        self._loaded: Any = None
        self._worker = anyio.CapacityLimiter(1)

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        return await anyio.to_thread.run_sync(self._rerank, query, list(texts), limiter=self._worker)

    def _rerank(self, query: str, texts: Iterable[str]) -> list[float]:
        from fastembed.rerank.cross_encoder import TextCrossEncoder

        if self._loaded is None:
            try:
                self._loaded = TextCrossEncoder(self._model, cache_dir=str(self._cache), local_files_only=True)
            except Exception as exc:  # as in `FastEmbedder._load`
                raise ModelMissing(self._model) from exc
        try:
            return [float(score) for score in self._loaded.rerank(query, texts)]
        except Exception as exc:  # as in `FastEmbedder._embed`
            raise EmbedderFailed(self._model, str(exc)) from exc


def _register(name: str, folder: Path) -> None:
    """Make fastembed know the model in `folder`: mean or CLS pooling by its own word, vectors normalised."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    if any(each["model"].lower() == name.lower() for each in TextEmbedding.list_supported_models()):
        return
    files = [path for path in ("model.onnx", "onnx/model.onnx", "model_optimized.onnx") if (folder / path).is_file()]
    if not files:
        raise FileNotFoundError(folder / "model.onnx")
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
