"""``agentic-rag memory``: show, export and import what a role remembers.

Owns the commands, and the reading and writing of PromptX folders on this machine: over REST go engrams, never a
database file, since a server must not open one that somebody else made. Whose memory it is follows from the caller
and the domain's ``memoryScope``.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from agentic_rag.commands.line import Data, Url, quoted, run, table
from agentic_rag.errors import InvalidInput

if TYPE_CHECKING:
    from agentic_rag.commands.client import Client

memory_app = typer.Typer(help="Show, export and import the memory of a role.", no_args_is_help=True)

BATCH_BYTES = 512 * 1024
"""Of one request of an import; a server takes twice as much."""
BATCH_ENGRAMS = 500

Role = Annotated[str, typer.Argument(help="Id of the role.")]
Domain = Annotated[str, typer.Option("--domain", help="Id of the domain.", show_default=False)]


@memory_app.command("show")
def show_memory(
    role: Role,
    domain: Domain,
    query: Annotated[str, typer.Option("--query", "-q", help="Only those whose text or keywords contain this.")] = "",
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1, max=100)] = 20,
    offset: Annotated[int, typer.Option(help="How many to leave out before.", min=0)] = 0,
    data: Data = None,
    url: Url = None,
) -> None:
    """Show memories of a role, newest first: id, type, strength, time, keywords, text."""
    params = {"role": role, "q": query, "limit": str(limit), "offset": str(offset)}
    found = run(data, url, lambda client: client.call("GET", _path(domain), params=params))
    rows = [
        [each["id"], each["type"], f"{each['strength']:g}", each["createdAt"], " ".join(each["cues"]), each["content"]]
        for each in found["items"]
    ]
    table(["id", "type", "strength", "created", "keywords", "memory"], rows)
    if found["total"] > offset + len(rows):
        typer.echo(f"{found['total']} in all; go on with --offset {offset + len(rows)}.", err=True)


@memory_app.command("export")
def export_memory(
    role: Role,
    domain: Domain,
    to: Annotated[Path | None, typer.Option("--to", help="Folder to write (default: ./ROLE).", file_okay=False)] = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Write a role's memory as a PromptX folder, ready to lie in ~/.promptx/cognition/.

    An existing memory is never replaced.
    """
    target = to or Path(role)
    if (target / "engrams.db").exists():
        raise InvalidInput("--to", f"{target} holds a memory already.")
    params = {"role": role}
    found = run(data, url, lambda client: client.call("GET", f"{_path(domain)}/export", params=params))
    write_folder(target, found["engrams"], found["frequencies"])
    typer.echo(f"{len(found['engrams'])} memories written to {target}")


@memory_app.command("import")
def import_memory(
    role: Role,
    folder: Annotated[Path, typer.Argument(help="A PromptX folder: of this role, or with cognition/ROLE below.")],
    domain: Domain,
    data: Data = None,
    url: Url = None,
) -> None:
    """Add the memories of a PromptX folder; those already there stay as they are, so it can be repeated.

    Ids, times, strengths and recall counts are kept. What cannot be taken is named on stderr.
    """
    source = memory_in(folder, role)
    engrams, frequencies, skipped = read_folder(source)

    async def send(client: "Client") -> int:
        added = 0
        path, params = f"{_path(domain)}/import", {"role": role}
        for batch in batches(engrams):
            added += (await client.call("POST", path, json={"engrams": batch}, params=params))["added"]
        words = list(frequencies.items())
        for start in range(0, len(words), BATCH_ENGRAMS):
            body = {"frequencies": dict(words[start : start + BATCH_ENGRAMS])}
            await client.call("POST", path, json=body, params=params)
        return added

    added = run(data, url, send)
    for reason in skipped:
        typer.echo(reason, err=True)
    typer.echo(f"{added} added, {len(engrams) - added} already there, {len(skipped)} left out.")


def memory_in(folder: Path, role: str) -> Path:
    """Return where in a folder the role's memory lies.

    Raises:
        InvalidInput: there is none.
    """
    for place in (folder, folder / role, folder / "cognition" / role, folder / ".promptx" / "cognition" / role):
        if (place / "engrams.db").is_file():
            return place
    raise InvalidInput("folder", f"there is no engrams.db in {folder}, nor in cognition/{role} below it.")


def read_folder(folder: Path) -> tuple[list[dict[str, Any]], Mapping[str, int], list[str]]:
    """Return the engrams of a PromptX folder as REST takes them, recall counts by cue, and what cannot be taken.

    Raises:
        InvalidInput: it cannot be read.
    """
    from agentic_rag.forms import read_form
    from agentic_rag.server.role_routes import NewEngram
    from mcp_servers.promptx.errors import MemoryUnavailable
    from mcp_servers.promptx.ledger import LOCK_FILE, Ledger
    from mcp_servers.promptx.memory import engram_json
    from mcp_servers.promptx.snapshot import NETWORK, read_frequencies

    lock = folder / LOCK_FILE
    locked_before = lock.exists()
    ledger = Ledger(folder.absolute(), read_only=True)
    good: list[dict[str, Any]] = []
    skipped: list[str] = []
    try:
        for engram in ledger.all():
            item = engram_json(engram)
            try:
                read_form(NewEngram, item, engram.id[:40])
            except InvalidInput as exc:
                skipped.append(f"left out: {exc}")
            else:
                good.append(item)
    except MemoryUnavailable as exc:
        raise InvalidInput("folder", exc.reason) from exc
    finally:
        ledger.close()
        if not locked_before:  # the folder is somebody else's: leave it as it was
            lock.unlink(missing_ok=True)
    return good, read_frequencies(folder / NETWORK) or {}, skipped


def write_folder(folder: Path, engrams: Sequence[Mapping[str, Any]], frequencies: Mapping[str, int]) -> None:
    """Write a PromptX folder.

    Raises:
        InvalidInput: it cannot be written.
    """
    from mcp_servers.promptx.errors import MemoryUnavailable
    from mcp_servers.promptx.ledger import LOCK_FILE, Engram
    from mcp_servers.promptx.live import NETWORK_LOCK, LiveFolder

    live = LiveFolder(folder.absolute())
    try:
        live.insert(
            [
                Engram(
                    each["id"], each["content"], tuple(each["cues"]), each["type"], each["createdAt"], each["strength"]
                )
                for each in engrams
            ]
        )
        live.merge_frequencies(frequencies)
        live.save()
    except MemoryUnavailable as exc:
        raise InvalidInput("--to", f"{folder} cannot be written: {exc.reason}.") from exc
    finally:
        live.close()
    for name in (LOCK_FILE, NETWORK_LOCK):
        (folder / name).unlink(missing_ok=True)


def batches(engrams: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the engrams in parts that a request can hold."""
    part: list[dict[str, Any]] = []
    size = 0
    for engram in engrams:
        more = len(orjson.dumps(engram))
        if part and (size + more > BATCH_BYTES or len(part) == BATCH_ENGRAMS):
            yield part
            part, size = [], 0
        part.append(engram)
        size += more
    if part:
        yield part


def _path(domain: str) -> str:
    return f"/api/domains/{quoted(domain)}/memories"
