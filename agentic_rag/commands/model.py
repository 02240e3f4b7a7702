"""``agentic-rag fetch-model``: download a model with a progress bar, or check a model folder."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from agentic_rag.base.settings import Settings
from mcp_servers.retriever.embedders import DEFAULT_MODEL
from mcp_servers.retriever.errors import EmbeddingError
from mcp_servers.retriever.fast_embedder import FastEmbedder, FastReranker
from mcp_servers.retriever.model_files import find_source

_PATHS = ("/", "./", "../", "~")


async def fetch_model(settings: Settings, name: str | None) -> str | None:
    """Download the named model (an embedder or a reranker), else the configured one, else the default one.

    A folder is only checked, because nothing can be downloaded into it. Returns the error text, or None.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    try:
        model = _model(name or _configured_model(settings), settings.model_cache.expanduser())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(model.name, total=None)

            def show(here: int, expected: int) -> None:
                progress.update(task, completed=here, total=max(here, expected) or None)

            await model.fetch(show)
    except EmbeddingError as exc:
        return str(exc)
    await model.aclose()
    console.print(f"{model.name} is here and can be loaded.", markup=False, highlight=False)
    return None


def _configured_model(settings: Settings) -> str:
    if settings.embedding.startswith(("fastembed:", *_PATHS)):
        return settings.embedding
    return DEFAULT_MODEL


def _model(name: str, cache: Path) -> FastEmbedder | FastReranker:
    if name.startswith(_PATHS):
        return FastEmbedder(Path(name).expanduser(), cache)
    source = find_source(name.removeprefix("fastembed:"))
    return FastEmbedder(source.name, cache) if source.kind == "embedder" else FastReranker(source.name, cache)
