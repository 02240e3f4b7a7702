"""``agentic-rag mcp``: allow, list, revoke, check and test MCP servers.

``allow``, ``list`` and ``revoke`` write in the data folder itself, where a running server sees the change: the owner of
the machine may allow any command line. Requests of domain admins are decided over REST
(`agentic_rag.commands.launch_requests`). ``check`` and ``test`` use REST.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import anyio
import typer

from agentic_rag.base.errors import InvalidInput
from agentic_rag.commands.line import (
    AsJson,
    Data,
    Url,
    printable,
    run,
    say,
    say_network_ends_keyless,
    settings_of,
    show_json,
    table,
)

if TYPE_CHECKING:
    from agentic_rag.commands.client import ServerClient
    from agentic_rag.tools.launch.catalogue import CatalogueEntry

MAX_FILE_BYTES = 1024 * 1024
JSON_BODY = {"content-type": "application/json"}
STATUS_WORDS = {
    "ready": "ready",
    "needs_secret": "needs a secret",
    "needs_approval": "needs approval",
    "needs_sign_in": "needs a sign-in",
    "change_proposed": "change proposed",
    "not_possible": "not possible",
}
"""Printed words for the states of a checked server."""

TEST_SECONDS = 900.0
"""Time limit for the test of a file, including the installation of its packages."""

mcp_app = typer.Typer(
    help="Allow, list, revoke, check and test MCP servers; decide what admins ask for.", no_args_is_help=True
)


@mcp_app.command("allow", context_settings={"ignore_unknown_options": True})
def allow(
    line: Annotated[list[str], typer.Argument(help="The whole line, after --: program and every argument.")],
    network: Annotated[bool, typer.Option("--network", help="Let the program use the network.")] = False,
    env: Annotated[list[str] | None, typer.Option("--env", help="Variable that entries may set; repeatable.")] = None,
    read_only: Annotated[
        list[str] | None, typer.Option("--read-only", help="Name of a tool without effects; repeatable.")
    ] = None,
    read: Annotated[
        list[Path] | None, typer.Option("--read", help="Another folder that the program may read; repeatable.")
    ] = None,
    data: Data = None,
) -> None:
    """Allow one exact command line, bound to the current version of its program.

    A package (npx, uvx) is installed at the given version, else the newest. A program and each file in its command line
    are bound to their SHA-256. Name a script by its absolute path, or put it into mcp/local of the data folder and name
    it from there (python3 ./server.py). The slots {path:workspace}, {text} and {url} may stand for arguments.
    """
    from agentic_rag.access.acts import Acts, act
    from agentic_rag.base.settings import client_environment
    from agentic_rag.tools.launch.allowed import ExtraRights, LaunchCatalogue
    from agentic_rag.tools.launch.packages import Packages
    from agentic_rag.tools.launch.registry_clients import client_sandbox

    settings = settings_of(data)
    folder = settings.data / "mcp"
    grant = ExtraRights(
        network, tuple(env or ()), tuple(read_only or ()), tuple(str(path.resolve()) for path in read or ())
    )
    packages = Packages(folder, client_environment(), sandbox=client_sandbox)
    # Models and MCP servers write in these folders, so a file there must not become a program.
    kept_out = (settings.workspaces, folder / "homes")
    entry = anyio.run(LaunchCatalogue(folder).allow, line, grant, packages, kept_out)
    rights = {"network": network, "readOnly": list(grant.read_only), "env": list(grant.env), "read": len(grant.folders)}
    Acts(settings.data).leave(act("mcp.allow", entry.id, **rights))
    say(f"allowed {entry.id}: {_runs(entry)}")
    if network:
        say_network_ends_keyless(data, None)


@mcp_app.command("list")
def list_allowed(
    all_entries: Annotated[bool, typer.Option("--all", help="Include the built-in entries.")] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the command lines that the operator allowed."""
    from agentic_rag.tools.launch.allowed import LaunchCatalogue

    catalogue = LaunchCatalogue(settings_of(data).data / "mcp")
    entries = catalogue.entries() if all_entries else catalogue.allowed_entries()
    rows = [(entry.id, _runs(entry), "network" if entry.network else "no network") for entry in entries]
    answer = [{"id": ident, "runs": runs, "network": network == "network"} for ident, runs, network in rows]
    table(("id", "runs", "network"), rows, answer, as_json)


@mcp_app.command("revoke")
def revoke(ident: Annotated[str, typer.Argument(help="The id that allow and list print.")], data: Data = None) -> None:
    """Revoke a permission. The change takes effect at the next start of an MCP server."""
    from agentic_rag.access.acts import Acts, act
    from agentic_rag.tools.launch.allowed import LaunchCatalogue

    folder = settings_of(data).data
    if not LaunchCatalogue(folder / "mcp").revoke(ident):
        raise InvalidInput("id", f"nothing is allowed under {ident!r}.")
    Acts(folder).leave(act("mcp.revoke", ident))
    say(f"revoked {ident}")


@mcp_app.command("test")
def try_entries(
    domain: Annotated[str, typer.Argument(help="Id of the domain.")],
    file: Annotated[Path, typer.Argument(help="JSON file with mcpServers.", exists=True, dir_okay=False)],
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Start the servers in a file, list their tools, and stop them. Nothing is saved.

    Exit code 1: a server is not ready.
    """
    body = _read_file(file)

    async def test(client: "ServerClient") -> Any:
        path = f"/api/domains/{quote(domain, safe='')}/mcp-servers/test"
        return await client.call("POST", path, content=body, headers=JSON_BODY, seconds=TEST_SECONDS)

    report = run(data, url, test)
    if as_json:
        show_json(report)
        raise typer.Exit(any(server["state"] != "ready" for server in report["items"]))
    for note in (*report.get("changes", ()), *report.get("warnings", ())):
        say(printable(f"{note['path']}: {note['text']}"), err=True)
    failed = False
    for server in report["items"]:
        failed = failed or server["state"] != "ready"
        say(printable(f"{server['name']}: {server['state']}{': ' if server['reason'] else ''}{server['reason']}"))
        for tool in server["tools"]:
            say(f"  {printable(tool['name'])}\t{printable(str(tool['description']).partition(chr(10))[0])}")
        if server["state"] != "ready":
            for text in server["log"]:
                say(f"  | {printable(text)}", err=True)
    if failed:
        raise typer.Exit(1)


@mcp_app.command("check")
def check_file(
    domain: Annotated[str, typer.Argument(help="Id of the domain.")],
    file: Annotated[
        Path, typer.Argument(help="File of MCP servers, in the format of any MCP client.", exists=True, dir_okay=False)
    ],
    add: Annotated[
        list[str] | None, typer.Option("--add", help="Save this server as proposed; may be given more than once.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Check each server in a file: ready, or missing something. Only the servers named with --add are saved.

    The file may have comments and trailing commas. Exit code 1: a server cannot run as configured.
    """
    body = _read_file(file)
    base = f"/api/domains/{quote(domain, safe='')}/mcp-servers"

    async def check(client: "ServerClient") -> Any:
        report = await client.call("POST", f"{base}/check", content=body, headers=JSON_BODY, seconds=TEST_SECONDS)
        if add:
            request_body = {"document": body.decode("utf-8-sig", "replace"), "accept": add}
            report["added"] = (await client.call("POST", f"{base}/add", json=request_body))["names"]
        return report

    report = run(data, url, check)
    if as_json:
        show_json(report)
    else:
        for row in report["items"]:
            _print_row(row, domain)
        for name in report.get("added", ()):
            say(printable(f"saved {name}"))
    for note in (*report["changes"], *report["warnings"]):
        say(printable(f"{note['path']}: {note['text']}"), err=True)
    if any(row["status"] == "not_possible" for row in report["items"]):
        raise typer.Exit(1)


def _print_row(row: dict[str, Any], domain: str) -> None:
    """Print the state and needs of a server, with the commands that provide them."""
    name = row["name"] or row["key"]
    tools = row.get("connection", {}).get("tools", ())
    say(
        printable(
            f"{name}: {STATUS_WORDS.get(row['status'], row['status'])}{f' ({len(tools)} tools)' if tools else ''}"
        )
    )
    reported = {problem["message"] for problem in row["problems"]}
    if row["reason"] and row["reason"] not in reported:
        say(printable(f"  {row['reason']}"))
    for problem in row["problems"]:
        say(printable(f"  {problem['path']}: {problem['message']}"))
    for need in row["needs"]:
        if need["kind"] == "secret":
            say(printable(f"  set it: agentic-rag secrets set {domain} {need['name']}"))
        else:
            say(printable(f"  set the variable {need['name']} in the settings of the domain"))
    if "approval" in row:
        say(printable(f"  ask an operator: POST {row['approval']['request']}"))
        if row["approval"]["allow"]:
            say(printable(f"  or, as the operator: {row['approval']['allow']}"))
    if "proposed" in row:
        say(printable(f"  proposed: {json.dumps(row['proposed'], ensure_ascii=False)}"))
        if row["saveable"]:
            say(printable(f"  accept it with: --add {name}"))
    for note in (*row["changes"], *row["warnings"]):
        say(printable(f"{note['path']}: {note['text']}"), err=True)


def _read_file(file: Path) -> bytes:
    """Return the bytes of a file, which the server reads as JSON with comments.

    Raises:
        InvalidInput: the file cannot be read or is too large.
    """
    try:
        with file.open("rb") as opened:
            body = opened.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise InvalidInput(str(file), f"this file cannot be read: {exc}") from exc
    if len(body) > MAX_FILE_BYTES:
        raise InvalidInput(str(file), f"larger than {MAX_FILE_BYTES} bytes.")
    return body


def _runs(entry: "CatalogueEntry") -> str:
    from agentic_rag.tools.launch.catalogue import template

    return f"{' '.join(entry.runs.line)} {template(entry)}"
