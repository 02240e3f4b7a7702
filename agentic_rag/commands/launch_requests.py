"""``agentic-rag mcp requests``, ``approve``, ``refuse``, ``propose``: allow servers that the catalogue does not have.

All commands use REST; the server decides who may approve. Texts by other users are escaped, so that they cannot control
the terminal.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from agentic_rag.base.errors import InvalidInput
from agentic_rag.commands.line import (
    AsJson,
    Data,
    Url,
    printable,
    quote_part,
    run,
    say,
    say_network_ends_keyless,
    table,
)

if TYPE_CHECKING:
    from agentic_rag.commands.client import ServerClient

requests_app = typer.Typer()

INSTALL_SECONDS = 900.0
"""How long to wait for an approval's installation, which continues in the server after that."""
LOOK_SECONDS = 0.5

Ident = Annotated[str, typer.Argument(help="The request's id, as `mcp requests` prints it.")]


@requests_app.command("requests")
def show_requests(
    state: Annotated[
        str, typer.Option("--state", help="open, approved, installed, refused, withdrawn or all.")
    ] = "open",
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """List the requests of domain admins, with the program that would run."""
    query = "" if state == "all" else f"?state={quote_part(state)}"
    page = run(data, url, lambda client: client.call("GET", f"/api/launch-requests{query}"))
    head = ("id", "domain", "server", "state", "asked by", "line", "would run")
    rows = [
        (
            *(item["id"], item["domainId"], item["server"], item["state"], item["requestedBy"]),
            *(" ".join([item["command"], *item["args"]]), _what(item["facts"])),
        )
        for item in page["items"]
    ]
    table(head, rows, page["items"], as_json)


@requests_app.command("approve")
def approve(
    ident: Ident,
    args: Annotated[
        list[str] | None,
        typer.Argument(help="After --: arguments with slots {path:workspace}, {text}, {url}; default: as proposed."),
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="Let the program use the network.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Let the program write in the folders that fill its slots.")
    ] = False,
    read_only: Annotated[
        list[str] | None, typer.Option("--read-only", help="Name of a tool without effects; repeatable.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Show what would run, allow exactly that, and wait until it is installed."""
    grant: dict[str, Any] = {"network": network, "write": write, "readOnly": read_only or []}
    if args:
        grant["args"] = args

    async def decide(client: "ServerClient") -> Any:
        path = f"/api/launch-requests/{quote_part(ident)}"
        request = await client.call("GET", path)
        _describe(request)
        if network:
            say_network_ends_keyless(data, url)
        if not yes and sys.stdin.isatty():
            typer.confirm("Allow this?", abort=True, err=True)  # on stderr, because stdout is for the result
        # With the fingerprint of the shown request: the server refuses if it has changed since.
        decided = await client.call("POST", f"{path}/approve", json={**grant, "fingerprint": request["fingerprint"]})
        with anyio.move_on_after(INSTALL_SECONDS):
            while decided["state"] == "approved":
                await anyio.sleep(LOOK_SECONDS)
                decided = await client.call("GET", path)
        return decided

    decided = run(data, url, decide)
    if decided["state"] == "installed":
        say(f"allowed {decided['catalogueId']}: SHA-256 {decided['sha256']}")
        return
    say(printable(f"{decided['state']}: {decided['reason'] or 'it is still being installed'}"), err=True)
    raise typer.Exit(1)


@requests_app.command("refuse")
def refuse(
    ident: Ident,
    reason: Annotated[str, typer.Option("--reason", help="Reason, which the admin of the request reads.")],
    data: Data = None,
    url: Url = None,
) -> None:
    """Refuse a request."""
    path = f"/api/launch-requests/{quote_part(ident)}/refuse"
    run(data, url, lambda client: client.call("POST", path, json={"reason": reason}))
    say(f"refused {ident}")


@requests_app.command("propose")
def propose(
    domain: Annotated[str, typer.Argument(help="Id of the domain.")],
    file: Annotated[
        Path,
        typer.Argument(help="A server.json, a bundle (.mcpb), or mcpServers as JSON.", exists=True, dir_okay=False),
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the entry; default: as in the file.")] = "",
    data: Data = None,
    url: Url = None,
) -> None:
    """Request approval for the server in a file, and print the entry to save once the server may run."""
    content = file.read_bytes()
    place = f"/api/domains/{quote_part(domain)}/mcp-servers"

    async def ask(client: "ServerClient") -> Any:
        if content[:2] == b"PK":
            path = f"{place}/{quote_part(name or '-')}/bundle"
            return await client.call("POST", path, content=content, seconds=INSTALL_SECONDS)
        document = _read_json(content, file)
        path = f"{place}/{quote_part(name or _name_in(document))}/request"
        return await client.call("POST", path, json=document, seconds=INSTALL_SECONDS)

    request = run(data, url, ask)
    _describe(request)
    say(printable(json.dumps({request["server"]: request["entry"]}, ensure_ascii=False)))


def _read_json(content: bytes, file: Path) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except ValueError as exc:
        raise InvalidInput(str(file), f"this is neither a bundle nor JSON: {exc}") from exc


def _name_in(document: object) -> str:
    """Return the server name in a document."""
    from agentic_rag.tools.entries.names import fit_name
    from agentic_rag.tools.entries.reading import read_entries

    if isinstance(document, Mapping) and isinstance(document.get("name"), str):
        return fit_name(document["name"])
    names = list(read_entries(document).entries)
    if len(names) != 1:
        raise InvalidInput("--name", f"the file has {len(names)} servers; name one.")
    return names[0]


def _what(facts: Mapping[str, Any]) -> str:
    """Return a short description of the program that would run."""
    name = f"{facts['registry']} {facts['name']} {facts['version']}".strip()
    size = f"{facts['sizeBytes'] / 1024:.0f} KiB in {facts['fileCount']} files"
    return f"{name}, {facts['license'] or 'no license'}, {size}"


def _describe(request: Mapping[str, Any]) -> None:
    """Print a request with everything that an operator needs for a decision."""
    facts = request["facts"]
    lines = [
        ("request", f"{request['id']} ({request['state']}) by {request['requestedBy']} for {request['domainId']}"),
        ("line", " ".join([request["command"], *request["args"]])),
        ("arguments", " ".join(request["template"]) or "none"),
        ("variables", " ".join(request["env"]) or "none"),
        ("runs", _what(facts)),
        ("integrity", facts["integrity"]),
        *(("sets", f"{name}={value}") for name, value in facts["fixed"].items()),
        *(("install script (never run)", script) for script in facts["installScripts"]),
        *(("needs", dependency) for dependency in facts["dependencies"]),
        *(("file", f"{name} {sha}") for name, sha in facts["files"].items()),
        *(("warning", warning) for warning in facts["warnings"]),
        *((("reason", request["reason"]),) if request["reason"] else ()),
    ]
    for label, text in lines:
        say(printable(f"{label}: {text}"), err=True)
