"""``agentic-rag ingest`` and ``reindex``: upload files and show how they become searchable; index them anew.

Owns the choice of files, the watching of folders and the progress bar. Knows REST only.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from agentic_rag.commands.client import Client, Refused
from mcp_servers.retriever.formats import SUFFIXES

POLL_SECONDS = 0.25
STAGES = ("queued", "parsing", "chunking", "indexing", "indexed")
SETTLED = ("indexed", "failed")


async def ingest_files(client: Client, domain: str, paths: Sequence[Path], watch: bool = False) -> int:
    """Upload all files, wait until each is indexed or failed; return how many could not be taken in.

    ``watch``: go on for ever with what is added to the paths or changed; a changed file replaces its document.
    """
    base = _base(domain)
    await client.call("GET", base)  # an unknown domain is one error, not one for each file
    failed = await _ingest(client, base, await anyio.to_thread.run_sync(lambda: list(chosen_files(paths))), watch)
    if watch:
        from watchfiles import Change, awatch  # its engine is loaded for this only

        Console(stderr=True).print("Watching. Stop with Ctrl-C.", highlight=False)
        async for changes in awatch(*paths):
            names = {name for change, name in changes if change is not Change.deleted}
            await _ingest(client, base, await anyio.to_thread.run_sync(_still_there, sorted(names), paths), True)
    return failed


async def reindex(client: Client, domain: str, rollback: bool) -> str | None:
    """Make a domain's collection anew and wait for it, or take the last one back; return why that failed."""
    path = f"/api/domains/{quote(domain, safe='')}/reindex"
    state = await client.call("POST", path, json={"rollback": rollback})
    while state["state"] == "rebuilding":
        await anyio.sleep(POLL_SECONDS)
        state = await client.call("GET", path)
    return str(state.get("reason", "")) if state["state"] == "failed" else None


def chosen_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the named files, and of named folders all files that can be read, in order; hidden ones do not count."""
    for path in paths:
        if path.is_dir():
            inside = (each for each in sorted(path.rglob("*")) if each.is_file())
            yield from (each for each in inside if _counts(each, path))
        else:
            yield path


def _counts(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.suffix.lower() in SUFFIXES


def _still_there(names: Iterable[str], paths: Sequence[Path]) -> list[Path]:
    """Return the changed files that count below one of the paths."""
    chosen = []
    for path in (Path(name) for name in names):
        roots = [root.absolute() for root in paths if path.is_relative_to(root.absolute())]
        if path.is_file() and any(root == path or _counts(path, root) for root in roots):
            chosen.append(path)
    return chosen


async def _ingest(client: Client, base: str, paths: Sequence[Path], replace: bool) -> int:
    console = Console(stderr=True)
    failed = 0
    with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[stage]}")) as progress:
        waiting: dict[str, TaskID] = {}
        for path in paths:
            try:
                document = await _upload(client, base, path, replace)
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
                if document["status"] in SETTLED:
                    del waiting[document_id]
            if waiting:
                await anyio.sleep(POLL_SECONDS)
    return failed


async def _upload(client: Client, base: str, path: Path, replace: bool) -> dict[str, Any]:
    file = await anyio.to_thread.run_sync(path.open, "rb")
    with file:
        params = {"replace": "true"} if replace else None
        answer = await client.call("POST", base, params=params, file=(path.name, file))
    document: dict[str, Any] = answer["items"][0]
    return document


def _show(progress: Progress, task: TaskID, document: dict[str, Any]) -> None:
    status = document["status"]
    done: float = STAGES.index(status) if status in STAGES else 0
    details = document["progress"]
    if status == "indexing" and details.get("of"):
        done += details["chunks"] / details["of"]
        rate = f", {details['chunksPerSecond']}/s" if details.get("chunksPerSecond") else ""
        status = f"indexing {details['chunks']}/{details['of']} chunks{rate}"
    elif status == "indexed":
        status = f"indexed, {document['chunkCount']} chunks"
    progress.update(task, completed=done, stage=status)


def _base(domain: str) -> str:
    return f"/api/domains/{quote(domain, safe='')}/documents"


def _plain(name: str) -> str:
    """Return a name that Rich shows as it is."""
    return name.replace("[", r"\[")
