"""``agentic-rag fetch-model``: get an embedding model onto this machine, with progress.

Owns the progress bar. The server itself never fetches a model that its operator did not name.
"""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from agentic_rag.documents.embedding_state import fetch
from agentic_rag.settings import Settings
from mcp_servers.retriever.embedding import DEFAULT_MODEL
from mcp_servers.retriever.fast_embedder import FastEmbedder


async def fetch_model(settings: Settings, name: str | None) -> str | None:
    """Fetch the named model, else the configured one, else the default one; return why that failed."""
    configured = settings.embedding.removeprefix("fastembed:") if settings.embedding.startswith("fastembed:") else ""
    model = FastEmbedder(name or configured or DEFAULT_MODEL, settings.model_cache.expanduser())
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(model.name, total=None)

        def show(here: int, expected: int) -> None:
            progress.update(task, completed=here, total=max(here, expected) or None)

        problem = await fetch(model, show)
        await model.aclose()
    return None if problem is None else f"{problem}, and it could not be fetched"
