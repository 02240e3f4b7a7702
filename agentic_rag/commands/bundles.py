"""``agentic-rag domains export`` and ``import``: write a domain to one file, and read it back.

Both commands use REST. The file is written under a temporary name and renamed when it is complete.
"""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from agentic_rag.archive.files import write_whole
from agentic_rag.base.bundle_errors import BundleNotWritten
from agentic_rag.base.errors import BackupNotWritten
from agentic_rag.commands.line import Data, Url, advising, printable, quote_part, run, say

if TYPE_CHECKING:
    from agentic_rag.commands.client import ServerClient

SECONDS = 3600.0
"""Time limit for the server to process one bundle; it hashes every document."""
PIECE = 256 * 1024
SHOWN_LINES = 20
"""Lines of one text's difference that are shown."""
SIGNS = {"add": "+", "change": "~", "remove": "-", "keep": "="}


def export_domain(
    domain: Annotated[str, typer.Argument(help="Id of the domain.")],
    file: Annotated[Path, typer.Argument(help="The file to write, a .zip.", dir_okay=False)],
    memories: Annotated[
        bool, typer.Option("--memories", help="Include the shared memories, or yours if each user has their own.")
    ] = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Write a domain into one file: settings, prompts, roles, skills, MCP servers and documents, but no secrets."""
    params = {"memories": "true"} if memories else {}
    path = f"/api/domains/{quote_part(domain)}/bundle"
    try:
        with advising("No bundle was written. Run the command again."), write_whole(file) as target:

            async def fetch(client: "ServerClient") -> Any:
                return await client.fetch(path, params, target, SECONDS)

            headers = run(data, url, fetch)
    except BackupNotWritten as exc:
        raise BundleNotWritten(exc.reason, exc.place) from exc
    except OSError as exc:
        raise BundleNotWritten(exc.strerror or "unknown reason", str(file)) from exc
    say(f"{file} holds the domain {domain} ({file.stat().st_size} bytes).")
    if headers.get("x-left-out", "0") != "0":
        say(
            f"{headers['x-left-out']} files are not in it, since they cannot be read; the server's log names them.",
            err=True,
        )


def import_domain(
    file: Annotated[Path, typer.Argument(help="The bundle.", exists=True, dir_okay=False)],
    into: Annotated[
        str | None, typer.Option("--into", help="Id of the domain to change; default: a new domain.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new domain; default: as in the bundle.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
    remove_others: Annotated[
        bool, typer.Option("--remove-others", help="With --into: delete what the bundle does not contain.")
    ] = False,
    bind: Annotated[
        list[str] | None,
        typer.Option("--bind", help="With --into: a server that may get the domain's secrets; repeatable."),
    ] = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Create a domain from a bundle, or apply a bundle to a domain. Then ask for missing secrets.

    No command line of an MCP server is run. Servers that are not allowed here are imported disabled.
    """
    if into is not None and name is not None:
        raise typer.BadParameter("--name is for a new domain; one that a bundle comes over keeps its name.")
    if into is None and (remove_others or bind):
        raise typer.BadParameter("--remove-others and --bind need --into.")
    params = {"dryRun": "true"} if dry_run else {}
    if name is not None:
        params["name"] = name
    if remove_others:
        params["removeOthers"] = "true"
    if bind:
        params["bind"] = ",".join(bind)
    path = "/api/bundles" if into is None else f"/api/domains/{quote_part(into)}/bundle"

    async def send(client: "ServerClient") -> Any:
        headers = {"Content-Type": "application/zip"}
        return await client.call("POST", path, content=_pieces(file), params=params, headers=headers, seconds=SECONDS)

    with advising("If the server has the whole bundle, it finishes the import: look with `agentic-rag domains list`."):
        report = run(data, url, send)
    _tell(report)
    missing = sorted({secret["name"] for secret in report["secrets"] if secret["state"] == "missing"})
    if not dry_run and missing and sys.stdin.isatty():  # a script sets them with `secrets set`
        _ask_secrets(data, url, report["domainId"], missing)


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    async with await anyio.open_file(file, "rb") as source:
        while data := await source.read(PIECE):
            yield data


def _tell(report: Any) -> None:
    for difference in report["differences"]:
        line_text = f"{SIGNS[difference['action']]} {difference['kind']} {difference['subject']}"
        if difference["kind"] == "setting":
            line_text += f": {difference.get('before')!r} -> {difference.get('after')!r}"
        say(printable(line_text))
        for line in difference.get("lines", "").splitlines()[:SHOWN_LINES]:
            say(f"    {printable(line)}")
    if report["more"]:
        say(f"… and {report['more']} more")
    for note in report["findings"]:
        say(printable(f"{note['path']}: {note['text']}"), err=True)
    for server in report["withheld"]:
        line_text = f"{server['server']} comes switched off: {server['reason']}"
        say(printable(f"{line_text} Ask for its line: POST {server['request']}"), err=True)
    for secret in report["secrets"]:
        if secret["state"] == "confirm":
            server = secret["server"]
            text = f"{server} would get the secret {secret['name']} of this domain: --bind {server}"
            say(printable(text), err=True)
        elif secret["state"] == "missing":
            place = report["domainId"] or "DOMAIN"
            remedy = f"agentic-rag secrets set {place} {secret['name']}"
            say(printable(f"{secret['server']} needs the secret {secret['name']}: {remedy}"), err=True)
    if not report["dryRun"]:
        say(report["domainId"])


def _ask_secrets(data: Path | None, url: str | None, domain: str, names: list[str]) -> None:
    """Ask for the value of each missing secret. An empty answer skips it."""
    for name in names:
        value = typer.prompt(
            f"Value of {printable(name)} (empty: later)", default="", hide_input=True, show_default=False
        )
        if value:
            place = f"/api/domains/{quote_part(domain)}/secrets/{quote_part(name)}"
            run(data, url, lambda client, place=place, value=value: client.call("PUT", place, json={"value": value}))  # type: ignore[misc]
