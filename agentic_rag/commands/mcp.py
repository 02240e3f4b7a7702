"""``agentic-rag mcp``: what the operator allows MCP entries to start, and a trial of entries from a file.

Owns the arguments and what is printed. ``allow``, ``list`` and ``revoke`` write in the data folder itself, where a
running server sees them: a line of one's own is allowed by whoever owns the machine. What admins of domains asked for
is decided over REST (``launch_requests``). ``test`` talks REST.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from agentic_rag.commands.line import printable, say
from agentic_rag.errors import InvalidInput

if TYPE_CHECKING:
    from agentic_rag.commands.client import Client
    from agentic_rag.tools.launch.catalogue import CatalogueEntry

TEST_SECONDS = 900.0
"""How long the test of a file may take: each of its packages may have to be installed."""

mcp_app = typer.Typer(
    help="Allow, list, revoke and test MCP servers; decide what admins ask for.", no_args_is_help=True
)

Data = Annotated[
    Path | None, typer.Option("--data", help="Data folder (AGENTIC_RAG_DATA; default: ./data).", file_okay=False)
]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENTIC_RAG_URL", help="Address of the server; default: the one on the data folder."),
]


@mcp_app.command("allow", context_settings={"ignore_unknown_options": True})
def allow(
    line: Annotated[list[str], typer.Argument(help="The whole line, after --: program and every argument.")],
    network: Annotated[bool, typer.Option("--network", help="It may use the network.")] = False,
    env: Annotated[list[str] | None, typer.Option("--env", help="A variable that entries may set.")] = None,
    read_only: Annotated[
        list[str] | None, typer.Option("--read-only", help="A tool of it that has no effects, by its own name.")
    ] = None,
    read: Annotated[list[Path] | None, typer.Option("--read", help="A folder it may read, beside its own.")] = None,
    data: Data = None,
) -> None:
    """Allow one whole command line, bound to what it is now.

    A package (npx, uvx) is installed at the version given, else the newest; a program and each file its line names
    are bound to their SHA-256. The slots {path:workspace}, {text} and {url} may stand for arguments.
    """
    import anyio

    from agentic_rag.access.acts import Acts, act
    from agentic_rag.settings import client_environment, load_settings
    from agentic_rag.tools.launch.allowed import Grant, LaunchCatalogue
    from agentic_rag.tools.launch.packages import Packages

    settings = load_settings(data=data)
    folder = settings.data / "mcp"
    grant = Grant(network, tuple(env or ()), tuple(read_only or ()), tuple(str(each.resolve()) for each in read or ()))
    packages = Packages(folder, client_environment())
    kept_out = (settings.workspaces, folder / "homes")
    entry = anyio.run(LaunchCatalogue(folder).allow, line, grant, packages, kept_out)
    rights = {"network": network, "readOnly": list(grant.read_only), "env": list(grant.env), "read": len(grant.folders)}
    Acts(settings.data).leave(act("mcp.allow", entry.id, **rights))
    say(f"allowed {entry.id}: {_runs(entry)}")


@mcp_app.command("list")
def list_allowed(
    all_entries: Annotated[bool, typer.Option("--all", help="With the built-in ones.")] = False, data: Data = None
) -> None:
    """List what the operator allowed."""
    from agentic_rag.settings import load_settings
    from agentic_rag.tools.launch.allowed import LaunchCatalogue

    catalogue = LaunchCatalogue(load_settings(data=data).data / "mcp")
    for entry in catalogue.entries() if all_entries else catalogue.allowed_entries():
        say("\t".join([entry.id, _runs(entry), "network" if entry.network else "no network"]))


@mcp_app.command("revoke")
def revoke(ident: Annotated[str, typer.Argument(help="The id that allow and list print.")], data: Data = None) -> None:
    """Take back what was allowed; it counts from the next start of a server."""
    from agentic_rag.access.acts import Acts, act
    from agentic_rag.settings import load_settings
    from agentic_rag.tools.launch.allowed import LaunchCatalogue

    folder = load_settings(data=data).data
    if not LaunchCatalogue(folder / "mcp").revoke(ident):
        raise InvalidInput("id", f"nothing is allowed under {ident!r}.")
    Acts(folder).leave(act("mcp.revoke", ident))
    say(f"revoked {ident}")


@mcp_app.command("test")
def try_entries(
    domain: Annotated[str, typer.Argument(help="Id of the domain.")],
    file: Annotated[Path, typer.Argument(help="JSON as it would be saved.", exists=True, dir_okay=False)],
    data: Data = None,
    url: Url = None,
) -> None:
    """Start the entries of a file, list their tools, and stop them; nothing is saved."""
    import anyio

    from agentic_rag.commands.client import with_client
    from agentic_rag.settings import load_settings

    try:
        document = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as exc:
        raise InvalidInput(str(file), f"this is no JSON file: {exc}") from exc

    async def run(client: "Client") -> Any:
        path = f"/api/domains/{quote(domain, safe='')}/mcp-servers/test"
        return await client.call("POST", path, json=document, seconds=TEST_SECONDS)

    found = anyio.run(with_client, load_settings(data=data), url, run)
    for note in (*found.get("changes", ()), *found.get("warnings", ())):
        say(printable(f"{note['path']}: {note['text']}"), err=True)
    failed = False
    for server in found["items"]:
        failed = failed or server["state"] != "ready"
        say(printable(f"{server['name']}: {server['state']}{': ' if server['reason'] else ''}{server['reason']}"))
        for tool in server["tools"]:
            say(f"  {printable(tool['name'])}\t{printable(str(tool['description']).partition(chr(10))[0])}")
        if server["state"] != "ready":
            for text in server["log"]:
                say(f"  | {printable(text)}", err=True)
    if failed:
        raise typer.Exit(1)


def _runs(entry: "CatalogueEntry") -> str:
    from agentic_rag.tools.launch.catalogue import template

    return f"{' '.join(entry.runs.line)} {template(entry)}"
