"""``agentic-rag ingest`` and ``reindex``: upload files and show their indexing progress, or rebuild the index.

Selects the files, watches folders and shows progress bars. Uses REST only.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from agentic_rag.base.errors import RequestRefused
from agentic_rag.base.terminal import safe
from agentic_rag.commands.client import ServerClient
from agentic_rag.commands.line import waiting
from mcp_servers.retriever.formats import why_unread

POLL_SECONDS = 0.25
WATCH_MILLISECONDS = 500
"""Maximum duration of the first wait for changes; later waits end at a change."""
STAGES = ("queued", "parsing", "chunking", "indexing", "indexed")
SETTLED = ("indexed", "failed")


FAILED, SKIPPED = 1, 3
"""Exit codes: a file failed; or all files succeeded, but files in the named folders were skipped."""


@dataclass(slots=True)
class Choice:
    """The files to upload, and the skipped files of named folders, each with the reason.

    ``hidden`` counts hidden files and hidden folders. A hidden folder counts once.
    """

    files: list[Path] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    hidden: int = 0


async def ingest_files(
    client: ServerClient, domain: str, paths: Sequence[Path], watch: bool = False, labels: Sequence[str] = ()
) -> int:
    """Upload all files, wait until each is indexed or failed, and return the exit code: 0, `FAILED` or `SKIPPED`.

    The documents get ``labels`` in addition to those that they have.

    With ``watch``, never return: upload each file that is added to the paths or changed. A changed file replaces its
    document.
    """
    uploads = _Uploads(client, _base(domain), labels)
    await client.call("GET", uploads.base)  # report an unknown domain once, not for each file
    choice = await anyio.to_thread.run_sync(choose_files, paths)
    failed = await uploads.take(choice.files, watch)
    _show_skipped(choice)
    if watch:
        await _watch(uploads, paths)
    if failed or not (choice.files or choice.skipped):
        return FAILED
    return SKIPPED if choice.skipped else 0


def _show_skipped(choice: Choice) -> None:
    """Print each skipped file with the reason, and the number of hidden ones."""
    console = Console(stderr=True)
    for path, why in choice.skipped:
        console.print(safe(f"{path}: skipped, {why}"), markup=False, highlight=False, soft_wrap=True)
    if choice.hidden:
        console.print(f"Hidden files and folders skipped: {choice.hidden}", highlight=False)
    if not choice.files:
        console.print("No file to ingest.", highlight=False)


async def _watch(uploads: "_Uploads", paths: Sequence[Path]) -> None:
    from watchfiles import Change, awatch  # its engine is loaded for this only

    watching = False
    async for changes in awatch(*paths, yield_on_timeout=True, rust_timeout=WATCH_MILLISECONDS):
        if watching:
            names = {name for change, name in changes if change is not Change.deleted}
            changed = await anyio.to_thread.run_sync(_still_there, sorted(names), paths)
        else:  # files that changed during the first upload
            Console(stderr=True).print("Watching. Stop with Ctrl-C.", highlight=False)
            watching = True
            changed = (await anyio.to_thread.run_sync(choose_files, paths)).files
        if changed := await anyio.to_thread.run_sync(uploads.news, changed):
            await uploads.take(changed, True)


async def reindex(client: ServerClient, domain: str, rollback: bool) -> str | None:
    """Rebuild a domain's collection and wait, or restore the previous one. Returns the error text, or None."""
    path = f"/api/domains/{quote(domain, safe='')}/reindex"
    began = time.monotonic()
    with waiting("Re-indexing") as show:
        state = await client.call("POST", path, json={"rollback": rollback})
        while state["state"] == "rebuilding":
            await anyio.sleep(POLL_SECONDS)
            show(f"Re-indexing, {time.monotonic() - began:.0f} s")
            state = await client.call("GET", path)
    if state["state"] == "failed":
        return str(state.get("reason", ""))
    Console(stderr=True).print("The collection before is back." if rollback else "The documents are being re-indexed.")
    return None


def choose_files(paths: Sequence[Path]) -> Choice:
    """Return the named files, and all readable files of named folders, in name order."""
    choice = Choice()
    for path in paths:
        if path.is_dir():
            _choose_inside(path, choice)
        else:
            choice.files.append(path)
    return choice


def _choose_inside(folder: Path, choice: Choice) -> None:
    for place, folders, names in os.walk(folder, onerror=lambda error: choice.skipped.append(_unreadable(error))):
        hidden = [name for name in (*folders, *names) if name.startswith(".")]
        choice.hidden += len(hidden)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(set(names) - set(hidden)):
            path = Path(place, name)
            if why := _why_skipped(path):
                choice.skipped.append((path, why))
            else:
                choice.files.append(path)


def _unreadable(error: OSError) -> tuple[Path, str]:
    return Path(str(error.filename)), f"the folder cannot be read ({error.strerror})"


def _why_skipped(path: Path) -> str:
    """Return why a file of a folder is not uploaded; empty if it is."""
    if why := why_unread(path.name):
        return why
    if not path.is_file():
        return "it is a link that leads nowhere" if path.is_symlink() else "it is no regular file"
    return ""


def _counts(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and not why_unread(path.name)


def _still_there(names: Iterable[str], paths: Sequence[Path]) -> list[Path]:
    """Return the changed files below the paths that would be uploaded."""
    chosen = []
    for path in (Path(name) for name in names):
        roots = [root.absolute() for root in paths if path.is_relative_to(root.absolute())]
        if path.is_file() and any(root == path or _counts(path, root) for root in roots):
            chosen.append(path)
    return chosen


class _Uploads:
    """The name and state of each uploaded file, so that a changed file replaces its own document."""

    def __init__(self, client: ServerClient, base: str, labels: Sequence[str]) -> None:
        self._labels = ",".join(labels)
        self.base = base
        self._client = client
        self._names: dict[str, str] = {}
        self._stamps: dict[str, str] = {}
        self._copies: dict[str, str] = {}
        """Duplicates: the path of each, and the name of the document with the same bytes."""
        self._again: list[Path] = []
        """Former duplicates to upload again, because the other file changed."""

    def news(self, paths: Iterable[Path]) -> list[Path]:
        """Return the files that changed since their upload."""
        return [path for path in paths if self._stamps.get(_key(path)) != _stamp_of(path)]

    async def take(self, paths: Sequence[Path], replace: bool) -> int:
        """Upload files and show their indexing progress. Returns how many failed."""
        console = Console(stderr=True)
        # Two files of one name in different folders are two documents, so neither may replace the other.
        same_name = Counter(path.name for path in paths)
        queue = list(paths)
        failed = 0
        with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[stage]}")) as progress:
            waiting: dict[str, TaskID] = {}
            while queue:
                path = queue.pop(0)
                try:
                    document = await self._upload(path, replace and same_name[path.name] == 1)
                except OSError as exc:
                    console.print(safe(f"{path}: cannot be read ({exc.strerror})"), markup=False, highlight=False)
                    failed += 1
                except RequestRefused as exc:
                    reason = str(exc).removeprefix(f"{path.name}: ")
                    console.print(safe(f"{path}: {reason}"), markup=False, highlight=False, soft_wrap=True)
                    failed += 1
                else:
                    if document["id"] not in waiting:
                        name = progress.add_task(_plain(document["name"]), total=len(STAGES) - 1, stage="queued")
                        waiting[document["id"]] = name
                    if (copied := self._copies.get(_key(path))) is not None:
                        text = f"{path}: has the same content as {copied}, so it was not added again"
                        console.print(safe(text), markup=False, highlight=False, soft_wrap=True)
                    queue += self._again  # former duplicates whose document has just got another content
                    self._again = []
            failed += await self._count_settled(progress, waiting, console)
        return failed

    async def _count_settled(self, progress: Progress, waiting: dict[str, TaskID], console: Console) -> int:
        """Wait until all documents are indexed or failed. Returns how many failed."""
        failed = 0
        while waiting:
            for document_id, task in list(waiting.items()):
                document = await self._client.call("GET", f"{self.base}/{document_id}")
                _show(progress, task, document)
                if document["status"] == "failed":
                    message = document["error"]["message"]
                    text = message if document["name"] in message else f"{document['name']}: {message}"
                    console.print(safe(text), markup=False, highlight=False, soft_wrap=True)
                    failed += 1
                if document["status"] in SETTLED:
                    del waiting[document_id]
            if waiting:
                await anyio.sleep(POLL_SECONDS)
        return failed

    async def _upload(self, path: Path, replace: bool) -> dict[str, Any]:
        """Upload a file under its document's name. Files of one name in two folders are two documents."""
        key = _key(path)
        stamp = await anyio.to_thread.run_sync(_stamp_of, path)
        name = self._names.get(key)
        file = await anyio.to_thread.run_sync(path.open, "rb")
        with file:
            params = {"replace": "true"} if replace or name is not None else {}
            params |= {"label": self._labels} if self._labels else {}
            answer = await self._client.call("POST", self.base, params=params, file=(name or path.name, file))
        document: dict[str, Any] = answer["items"][0]
        self._stamps[key] = stamp
        self._remember(key, document["name"])
        return document

    def _remember(self, key: str, name: str) -> None:
        """Record which file owns a document. A duplicate must never replace another file's document."""
        before = self._names.pop(key, None)
        self._copies.pop(key, None)
        if name in self._names.values():
            self._copies[key] = name
        else:
            self._names[key] = name
        if before is not None:
            copies = (Path(copy) for copy, of in self._copies.items() if of == before and copy != key)
            self._again += [copy for copy in copies if copy.is_file()]


def _key(path: Path) -> str:
    """Return the same key for a file whether its path is relative or absolute."""
    return str(path.absolute())


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
    """Return a name escaped for Rich."""
    return safe(name).replace("[", r"\[")


def _stamp_of(path: Path) -> str:
    """Return a value that changes when the file is written: size and time. Empty if the file is gone."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}"
