"""Files of the models that fastembed knows by name: find them, check the local cache, and download them.

Only this module uses the network for weights. It loads no model.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import httpx2

from mcp_servers.retriever.errors import FetchFailed, ModelMissing, ModelUnknown

Progress = Callable[[int, int], None]
"""A callback that receives the bytes downloaded and the bytes expected."""

PROGRESS_SECONDS = 0.5
REACH_SECONDS = 10.0
"""Timeout of the check whether the hub answers, before the libraries for downloads are imported."""

MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The repository of a model and the names of its files. ``size`` is the approximate size in bytes."""

    name: str
    kind: Literal["embedder", "reranker"]
    repository: str
    files: tuple[str, ...]
    size: int

    def folder(self, cache: Path) -> Path:
        """Return the folder in which huggingface_hub stores the files."""
        return cache / f"models--{self.repository.replace('/', '--')}"

    def is_in(self, cache: Path) -> bool:
        """Return whether the weights exist in the cache, complete or not."""
        return any(self.folder(cache).glob(f"snapshots/*/{self.files[0]}"))


def find_source(name: str) -> ModelSource:
    """Return the source of a model. Raises `ModelUnknown`."""
    # Imported here: 85 MB of runtime.
    from fastembed import TextEmbedding
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    for kind, models in (
        ("embedder", TextEmbedding.list_supported_models()),
        ("reranker", TextCrossEncoder.list_supported_models()),
    ):
        for model in models:
            if model["model"].casefold() == name.casefold() and model["sources"]["hf"]:
                return ModelSource(
                    model["model"],
                    "embedder" if kind == "embedder" else "reranker",
                    model["sources"]["hf"],
                    (model["model_file"], *model["additional_files"]),
                    int(model["size_in_GB"] * 2**30),
                )
    raise ModelUnknown(name)


def reranker_problem(name: str, cache: Path) -> str:
    """Return the reason why this model cannot rerank now, or "" if its files are in the cache. Blocks."""
    try:
        source = find_source(name)
    except ModelUnknown as unknown:
        return f"{unknown}; searches are not reranked."
    if source.kind != "reranker":
        return f"{source.name} is an embedder, not a reranker; searches are not reranked."
    if not source.is_in(cache):
        fetch = f"agentic-rag fetch-model {source.name} gets it"
        return f"{ModelMissing(source.name)}: {fetch}. Until then searches are not reranked."
    return ""


def quiet() -> None:
    """Silence fastembed's and huggingface_hub's output to stderr: our errors and progress replace it."""
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from loguru import logger

    logger.disable("fastembed")
    disable_progress_bars()


async def fetch(name: str, cache: Path, on_progress: Progress) -> None:
    """Download the missing files of a model, in one attempt; the caller retries.

    `on_progress(bytes downloaded, bytes expected)` is called twice a second. A cancelled call returns at once: its
    thread continues in the background, and the next attempt reuses the files that it has downloaded.

    Raises:
        ModelUnknown: fastembed has no model of this name.
        FetchFailed: the download failed.
    """
    source = await anyio.to_thread.run_sync(find_source, name)
    problem: FetchFailed | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_report, source, cache, on_progress)
        try:
            await _run_aside(lambda: _download(source, cache))
        except FetchFailed as exc:
            problem = exc
        tasks.cancel_scope.cancel()
    if problem is not None:
        raise problem
    on_progress(_size(source, cache), source.size)


async def _run_aside(work: Callable[[], None]) -> None:
    """Run ``work`` in a daemon thread, which delays neither a cancelled caller nor the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(problem: BaseException | None) -> None:
        if done.cancelled():
            return
        if problem is None:
            done.set_result(None)
        else:
            done.set_exception(problem)

    def run() -> None:
        problem: BaseException | None = None
        try:
            work()
        except BaseException as exc:  # re-raised in the waiting task
            problem = exc
        with suppress(RuntimeError):  # the event loop is closed, so no task waits
            loop.call_soon_threadsafe(settle, problem)

    threading.Thread(target=run, daemon=True, name="model-download").start()
    await done


def find_obstacle() -> str:
    """Return the reason why downloads fail now, or "" if the hub answers. Blocks, and imports no model library."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "this machine is set to be offline (HF_HUB_OFFLINE)"
    try:
        status = httpx2.head(constants.ENDPOINT, timeout=REACH_SECONDS).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        return f"{constants.ENDPOINT} cannot be reached: {str(exc)[:MAX_REASON] or type(exc).__name__}"
    return f"{constants.ENDPOINT} answers with status {status}" if status >= 500 else ""


def _download(source: ModelSource, cache: Path) -> None:
    from fastembed import TextEmbedding
    from huggingface_hub import constants

    quiet()
    try:
        # Loading the model would download too, but with three attempts, 39 seconds of sleep and no reason on failure.
        TextEmbedding.download_files_from_huggingface(source.repository, str(cache), list(source.files))
    except Exception as exc:  # requests, httpx, huggingface_hub and the disk each raise their own classes
        reason = str(exc).strip().split("\n")[0][:MAX_REASON] or type(exc).__name__
        raise FetchFailed(source.name, f"{constants.ENDPOINT}: {reason}") from exc


async def _report(source: ModelSource, cache: Path, on_progress: Progress) -> None:
    while True:
        on_progress(await anyio.to_thread.run_sync(_size, source, cache), source.size)
        await anyio.sleep(PROGRESS_SECONDS)


def _size(source: ModelSource, cache: Path) -> int:
    """Return the bytes of the model in the cache, including incomplete downloads."""
    total = 0
    for path in source.folder(cache).rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:  # a partial file that was just renamed
            continue
    return total
