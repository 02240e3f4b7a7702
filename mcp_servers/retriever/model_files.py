"""Models that fastembed knows by name: which there are, whether their files are here, and how they get here.

Owns the one place that uses the network for weights. Nothing is loaded here.
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
"""Called with the bytes that are here and the bytes expected."""

PROGRESS_SECONDS = 0.5
REACH_SECONDS = 10.0
"""For the hub's first answer; without one nothing is loaded that fetching would need."""

MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's files come from, and what they are called. ``size`` is in bytes, roughly."""

    name: str
    kind: Literal["embedder", "reranker"]
    repository: str
    files: tuple[str, ...]
    size: int

    def folder(self, cache: Path) -> Path:
        """Where huggingface_hub keeps the files."""
        return cache / f"models--{self.repository.replace('/', '--')}"

    def is_in(self, cache: Path) -> bool:
        """Whether the weights are there, be they whole or not."""
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
        for each in models:
            if each["model"].casefold() == name.casefold() and each["sources"]["hf"]:
                return ModelSource(
                    each["model"],
                    "embedder" if kind == "embedder" else "reranker",
                    each["sources"]["hf"],
                    (each["model_file"], *each["additional_files"]),
                    int(each["size_in_GB"] * 2**30),
                )
    raise ModelUnknown(name)


def reranker_problem(name: str, cache: Path) -> str:
    """Return why nothing can be reranked by a model of this name now; empty when its files are here. Blocks."""
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
    """Keep fastembed's and huggingface_hub's own words off stderr: our errors and progress say it."""
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from loguru import logger

    logger.disable("fastembed")
    disable_progress_bars()


async def fetch(name: str, cache: Path, on_progress: Progress) -> None:
    """Download the files of a model that are not here; `on_progress(bytes here, bytes expected)` is called twice a
    second. One attempt: whoever wants more makes them. Raises `ModelUnknown` and `FetchFailed`. A cancelled download is
    not waited for: the thread is left to itself, and what it has is taken up by the next attempt."""
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
    """Run ``work`` in a thread for which neither a cancelled caller nor the end of the process waits."""
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
        except BaseException as exc:  # raised to who waits
            problem = exc
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, problem)

    threading.Thread(target=run, daemon=True, name="model-download").start()
    await done


def find_obstacle() -> str:
    """Return why nothing can be fetched now; empty when the hub answers. Blocks, and loads no model's library."""
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
        # Not by loading the model: that tries three times, with 39 seconds of sleep, and keeps the reason to itself.
        TextEmbedding.download_files_from_huggingface(source.repository, str(cache), list(source.files))
    except Exception as exc:  # requests, httpx, huggingface_hub and the disk: each with classes of its own
        said = str(exc).strip().split("\n")[0][:MAX_REASON] or type(exc).__name__
        raise FetchFailed(source.name, f"{constants.ENDPOINT}: {said}") from exc


async def _report(source: ModelSource, cache: Path, on_progress: Progress) -> None:
    while True:
        on_progress(await anyio.to_thread.run_sync(_size, source, cache), source.size)
        await anyio.sleep(PROGRESS_SECONDS)


def _size(source: ModelSource, cache: Path) -> int:
    """Bytes of the model that are here, those in flight included."""
    total = 0
    for path in source.folder(cache).rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:  # a part that was just put in its place
            continue
    return total
