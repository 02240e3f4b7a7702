"""``agentic-rag ingest``: upload files, and show how they become searchable.

Owns the choice of files and the progress bar. Knows REST only.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from agentic_rag.command_client import Client, Refused
from mcp_servers.retriever.formats import SUFFIXES

POLL_SECONDS = 0.25
STAGES = ("queued", "parsing", "chunking", "indexing", "indexed")


async def ingest_files(client: Client, domain: str, paths: Sequence[Path]) -> int:
    """Upload all files, wait until each is indexed or failed; return how many could not be taken in."""
    base = f"/api/domains/{quote(domain, safe='')}/documents"
    await client.call("GET", base)  # an unknown domain is one error, not one for each file
    console = Console(stderr=True)
    failed = 0
    with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[stage]}")) as progress:
        waiting: dict[str, TaskID] = {}
        for path in await anyio.to_thread.run_sync(lambda: list(chosen_files(paths))):
            try:
                document = await _upload(client, base, path)
            except OSError as exc:
                console.print(f"{path}: cannot be read ({exc.strerror})", markup=False, highlight=False)
                failed += 1
            except Refused as exc:
                console.print(f"{path}: {exc}", markup=False, highlight=False)
                failed += 1
            else:
                if document["id"] not in waiting:
                    name = progress.add_task(_plain(document["name"]), total=len(STAGES) - 1, stage="queued")
                    waiting[document["id"]] = name
        while waiting:
            for document_id, task in list(waiting.items()):
                document = await client.call("GET", f"{base}/{document_id}")
                _show(progress, task, document)
                if document["status"] == "failed":
                    text = f"{document['name']}: {document['error']['message']}"
                    console.print(text, markup=False, highlight=False)
                    failed += 1
                if document["status"] in ("indexed", "failed"):
                    del waiting[document_id]
            if waiting:
                await anyio.sleep(POLL_SECONDS)
    return failed


def chosen_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the named files, and of named folders all files that can be read, in order; hidden ones do not count."""
    for path in paths:
        if path.is_dir():
            inside = (each for each in sorted(path.rglob("*")) if each.is_file())
            for each in inside:
                hidden = any(part.startswith(".") for part in each.relative_to(path).parts)
                if not hidden and each.suffix.lower() in SUFFIXES:
                    yield each
        else:
            yield path


async def _upload(client: Client, base: str, path: Path) -> dict[str, Any]:
    file = await anyio.to_thread.run_sync(path.open, "rb")
    with file:
        answer = await client.call("POST", base, file=(path.name, file))
    document: dict[str, Any] = answer["items"][0]
    return document


def _show(progress: Progress, task: TaskID, document: dict[str, Any]) -> None:
    status = document["status"]
    done = STAGES.index(status) if status in STAGES else 0
    details = document["progress"]
    if status == "indexing" and details.get("of"):
        status = f"indexing {details['chunks']}/{details['of']} chunks"
    elif status == "indexed":
        status = f"indexed, {document['chunkCount']} chunks"
    progress.update(task, completed=done, stage=status)


def _plain(name: str) -> str:
    """Return a name that Rich shows as it is."""
    return name.replace("[", r"\[")
