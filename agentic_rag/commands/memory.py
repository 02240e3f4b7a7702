"""``agentic-rag memory``: show, export and import the memory of a role.

Reads and writes PromptX folders on this machine. REST transfers engrams, never a database file, because a server must
not open a foreign database. The caller and the domain's ``memoryScope`` determine whose memory it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import orjson
import typer

from agentic_rag.base.errors import InvalidInput
from agentic_rag.commands.line import AsJson, Data, Url, quote_part, run, say, settings_of, table
from mcp_servers.promptx.errors import MemoryUnavailable
from mcp_servers.promptx.ledger import LOCK_FILE, Engram, EngramJson, Ledger
from mcp_servers.promptx.snapshot import NETWORK_LOCK, read_network
from mcp_servers.safe_files import Folder

if TYPE_CHECKING:
    from agentic_rag.base.settings import Settings
    from agentic_rag.commands.client import ServerClient

memory_app = typer.Typer(help="Show, export and import the memory of a role.", no_args_is_help=True)

BATCH_BYTES = 512 * 1024
"""Maximum bytes of an import request; a server accepts twice as much."""
BATCH_ENGRAMS = 500
BATCH_WORDS = 5_000
"""Maximum recall counts of a request: the server writes the memory's network for each request."""

Role = Annotated[str, typer.Argument(help="Id of the role.")]
Domain = Annotated[str, typer.Option("--domain", help="Id of the domain.", show_default=False)]


@memory_app.command("show")
def show_memory(
    role: Role,
    domain: Domain,
    query: Annotated[str, typer.Option("--query", "-q", help="Only those whose text or keywords contain this.")] = "",
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1, max=100)] = 20,
    offset: Annotated[int, typer.Option(help="How many to skip first.", min=0)] = 0,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Show memories of a role, newest first: id, type, strength, time, keywords, text."""
    params = {"role": role, "q": query, "limit": str(limit), "offset": str(offset)}
    page = run(data, url, lambda client: client.call("GET", _path(domain), params=params))
    rows = [
        [item["id"], item["type"], f"{item['strength']:g}", item["createdAt"], " ".join(item["cues"]), item["content"]]
        for item in page["items"]
    ]
    table(["id", "type", "strength", "created", "keywords", "memory"], rows, page["items"], as_json)
    if page["total"] > offset + len(rows):
        say(f"{page['total']} in all; go on with --offset {offset + len(rows)}.", err=True)


@memory_app.command("export")
def export_memory(
    role: Role,
    domain: Domain,
    to: Annotated[Path | None, typer.Option("--to", help="Folder to write (default: ./ROLE).", file_okay=False)] = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Write a role's memory as a PromptX folder, ready for ~/.promptx/cognition/.

    An existing memory is never replaced.
    """
    target = to or Path(role)
    if (target / "engrams.db").exists():
        raise InvalidInput("--to", f"{target} holds a memory already.")
    params = {"role": role}
    export = run(data, url, lambda client: client.call("GET", f"{_path(domain)}/export", params=params))
    write_folder(target, MemoryFolder(export["engrams"], export["frequencies"]))
    say(f"{len(export['engrams'])} memories written to {target}")


@memory_app.command("import")
def import_memory(
    role: Role,
    folder: Annotated[Path, typer.Argument(help="A PromptX folder: of this role, or with cognition/ROLE below.")],
    domain: Domain,
    data: Data = None,
    url: Url = None,
) -> None:
    """Add the memories of a PromptX folder. Existing memories stay unchanged, so you can repeat the import.

    Ids, times, strengths and recall counts are kept. Rejected memories are listed on stderr.
    """
    source = memory_in(folder, role)
    memory, skipped = read_folder(source)

    async def send(client: "ServerClient") -> int:
        added = 0
        path, params = f"{_path(domain)}/import", {"role": role}
        for batch in split_batches(memory.engrams):
            added += (await client.call("POST", path, json={"engrams": batch}, params=params))["added"]
        words = list(memory.frequencies.items())
        for start in range(0, len(words), BATCH_WORDS):
            body = {"frequencies": dict(words[start : start + BATCH_WORDS])}
            await client.call("POST", path, json=body, params=params)
        return added

    added = run(data, url, send)
    for reason in skipped:
        say(reason, err=True)
    say(f"{added} added, {len(memory.engrams) - added} already there, {len(skipped)} left out.")


@memory_app.command("take-over")
def take_over_memories(data: Data = None) -> None:
    """Move the PromptX files of all workspaces into PostgreSQL.

    Otherwise a server moves each file when it uses it.
    """
    settings = settings_of(data)
    if not settings.database_url:
        raise InvalidInput("AGENTIC_RAG_DATABASE_URL", "is not set; beside a SQLite file memories stay in their files.")
    say(f"{anyio.run(_take_over, settings)} memories taken into the database.")


async def _take_over(settings: "Settings") -> int:
    from agentic_rag.backup.upgrading import open_database
    from agentic_rag.roles.memory_store import take_all_over

    database = await open_database(settings)
    try:
        return await take_all_over(database)
    finally:
        await database.aclose()


def memory_in(folder: Path, role: str) -> Path:
    """Return the path of a role's memory in a folder.

    Raises:
        InvalidInput: the folder has none.
    """
    for place in (folder, folder / role, folder / "cognition" / role, folder / ".promptx" / "cognition" / role):
        if (place / "engrams.db").is_file():
            return place
    raise InvalidInput("folder", f"there is no engrams.db in {folder}, nor in cognition/{role} below it.")


@dataclass(frozen=True, slots=True)
class MemoryFolder:
    """Contents of a PromptX folder: engrams in their REST form, and the recall count of each cue."""

    engrams: Sequence[EngramJson]
    frequencies: Mapping[str, int]


def read_folder(folder: Path) -> tuple[MemoryFolder, list[str]]:
    """Return the contents of a PromptX folder, and the rejected engrams with reasons.

    Raises:
        InvalidInput: the folder cannot be read.
    """
    from agentic_rag.base.forms import read_form
    from agentic_rag.server.routes.roles import EngramForm

    place = Folder(folder.absolute())
    locked_before = place.is_file(LOCK_FILE)
    ledger = Ledger(place, read_only=True)
    good: list[EngramJson] = []
    skipped: list[str] = []
    try:
        for engram in ledger.all():
            item = engram.to_json()
            try:
                read_form(EngramForm, item, engram.id[:40])
            except InvalidInput as exc:
                skipped.append(f"left out: {exc}")
            else:
                good.append(item)
    except MemoryUnavailable as exc:
        raise InvalidInput("folder", exc.reason) from exc
    finally:
        ledger.close()
        if not locked_before:  # leave a foreign folder unchanged
            place.remove(LOCK_FILE)
    file = read_network(place)
    return MemoryFolder(good, file.frequencies if file else {}), skipped


def write_folder(folder: Path, content: MemoryFolder) -> None:
    """Write a PromptX folder.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    from mcp_servers.promptx.memory import Memory

    place = Folder(folder.absolute())
    memory = Memory(place)
    try:
        memory.add([Engram.from_json(item) for item in content.engrams], content.frequencies)
        memory.save()
    except MemoryUnavailable as exc:
        raise InvalidInput("--to", f"{folder} cannot be written: {exc.reason}.") from exc
    finally:
        memory.close()
    for name in (LOCK_FILE, NETWORK_LOCK):
        place.remove(name)


def split_batches(engrams: Sequence[EngramJson]) -> Iterator[list[EngramJson]]:
    """Yield the engrams in batches that fit into a request."""
    part: list[EngramJson] = []
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
    return f"/api/domains/{quote_part(domain)}/memories"
