"""The command line: serve, chat, ingest, domains, roles.

Owns arguments, what is printed, and exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration,
3 the data folder belongs to another process, 4 the port is in use. Everything but `serve` talks REST
(`command_client`). Imports little: a command loads what it needs.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agentic_rag.chat import chat
from agentic_rag.errors import AgenticRagError, StartupError

if TYPE_CHECKING:
    from agentic_rag.command_client import Client

T = TypeVar("T")

app = typer.Typer(
    name="agentic-rag",
    help="An agentic RAG server: the model drives its tools, every citation is tied to an exact passage.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 usage or configuration, 3 data folder in use, 4 port in use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
domains_app = typer.Typer(help="List, show, create and delete domains.", no_args_is_help=True)
roles_app = typer.Typer(help="List, show and check the roles of a domain.", no_args_is_help=True)
app.add_typer(domains_app, name="domains")
app.add_typer(roles_app, name="roles")
app.command(name="chat")(chat)

Data = Annotated[
    Path | None, typer.Option("--data", help="Data folder (AGENTIC_RAG_DATA; default: ./data).", file_okay=False)
]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENTIC_RAG_URL", help="Address of the server; default: the one on the data folder."),
]
Domain = Annotated[str, typer.Argument(help="Id of the domain.")]


def main() -> None:
    """Run the command line; errors are one line on stderr."""
    try:
        app()
    except Exception as exc:
        error = _first_cause(exc)
        if error is None:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code if isinstance(error, StartupError) else 1)


def _first_cause(exc: BaseException) -> AgenticRagError | None:
    """Return our own error, also from inside the groups in which task groups raise."""
    if isinstance(exc, BaseExceptionGroup):
        return next((found for inner in exc.exceptions if (found := _first_cause(inner))), None)
    return exc if isinstance(exc, AgenticRagError) else None


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback only (default 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (default 8000).", min=0, max=65535)] = None,
    data: Data = None,
    allow_any_command: Annotated[
        bool, typer.Option("--allow-any-command", help="Let MCP entries start any program. For a single user only.")
    ] = False,
) -> None:
    """Serve until interrupted (Ctrl-C)."""
    import gc
    import logging

    gc.disable()  # until the server listens: what imports make lives for ever, looking for garbage in it takes 8 %
    from agentic_rag.server.auth import check_bind
    from agentic_rag.settings import load_settings

    settings = load_settings(host=host, port=port, data=data)
    check_bind(settings.host)
    # Before anything else is imported: MCPServer configures logging if nothing did.
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    for chatty in ("alembic", "httpx2", "httpcore2", "mcp", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(max(logging.getLogger().level, logging.WARNING))
    import anyio

    from agentic_rag.app import Application
    from agentic_rag.serving import address_of, bind, serve

    listener = bind(settings.host, settings.port)

    def say() -> None:
        gc.freeze()
        gc.enable()
        address = address_of(listener)
        if allow_any_command:
            typer.echo("WARNING: MCP entries may start any program on this machine (--allow-any-command).")
        typer.echo(f"Agentic RAG serves {address} (data folder: {settings.data}). Stop it with Ctrl-C.")
        typer.echo('Ask the demo:  .venv/bin/agentic-rag chat demo "What does the warranty cover?"')
        typer.echo("Your own:      .venv/bin/agentic-rag domains create NAME, then: agentic-rag ingest DOMAIN PATH...")
        sys.stdout.flush()

    async def run() -> None:
        async with Application(settings, any_command=allow_any_command) as application:
            await serve(application, listener, say)

    with listener:
        anyio.run(run)


@app.command()
def ingest(
    domain: Domain,
    paths: Annotated[list[Path], typer.Argument(help="Files, and folders whose files are taken.", show_default=False)],
    data: Data = None,
    url: Url = None,
) -> None:
    """Upload files to a domain and wait until they can be searched."""
    from agentic_rag.command_ingest import ingest_files

    failed = _run(data, url, lambda client: ingest_files(client, domain, paths))
    if failed:
        raise typer.Exit(1)


@domains_app.command("list")
def list_domains(data: Data = None, url: Url = None) -> None:
    """List all domains."""
    found = _run(data, url, lambda client: client.call("GET", "/api/domains"))
    rows = [[each["id"], each["name"], str(each["documentCount"]), str(each["version"])] for each in found["items"]]
    _table(["id", "name", "documents", "version"], rows)


@domains_app.command("show")
def show_domain(domain: Domain, data: Data = None, url: Url = None) -> None:
    """Show a domain with its settings as JSON."""
    _json(_run(data, url, lambda client: client.call("GET", f"/api/domains/{_quoted(domain)}")))


@domains_app.command("create")
def create_domain(
    name: Annotated[str, typer.Argument(help="Its name.")],
    description: Annotated[str, typer.Option(help="What it is about.")] = "",
    data: Data = None,
    url: Url = None,
) -> None:
    """Create a domain and print its id."""
    body = {"name": name, "description": description}
    typer.echo(_run(data, url, lambda client: client.call("POST", "/api/domains", json=body))["id"])


@domains_app.command("delete")
def delete_domain(
    domain: Domain,
    workspace: Annotated[bool, typer.Option("--workspace", help="Delete its workspace folder too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Delete a domain with its conversations and documents."""
    if not yes:
        typer.confirm(f"Delete {domain} with its conversations and documents?", abort=True)
    params = {"workspace": "true" if workspace else "false"}
    _run(data, url, lambda client: client.call("DELETE", f"/api/domains/{_quoted(domain)}", params=params))


@roles_app.command("list")
def list_roles(domain: Domain, data: Data = None, url: Url = None) -> None:
    """List the roles of a domain."""
    found = _run(data, url, lambda client: client.call("GET", f"/api/domains/{_quoted(domain)}/roles"))
    rows = [[each["id"], each["title"], each["source"], str(each["findings"])] for each in found["items"]]
    _table(["id", "title", "source", "findings"], rows)


@roles_app.command("show")
def show_role(domain: Domain, role: str, data: Data = None, url: Url = None) -> None:
    """Show a role as a model gets it."""
    path = f"/api/domains/{_quoted(domain)}/roles/{_quoted(role)}"
    found = _run(data, url, lambda client: client.call("GET", path))
    if found["text"] is not None:
        typer.echo(found["text"])
    for finding in found["findings"]:
        typer.echo(_finding(finding), err=True)
    if found["text"] is None:
        raise typer.Exit(1)


@roles_app.command("check")
def check_roles(domain: Domain, data: Data = None, url: Url = None) -> None:
    """Check all role files of a domain; exit code 1 when one is broken."""
    found = _run(data, url, lambda client: client.call("GET", f"/api/domains/{_quoted(domain)}/role-findings"))
    for finding in found["items"]:
        typer.echo(_finding(finding))
    if any(finding["severity"] == "error" for finding in found["items"]):
        raise typer.Exit(1)


def _run(data: Path | None, url: str | None, command: "Callable[[Client], Awaitable[T]]") -> T:
    import anyio

    from agentic_rag.command_client import with_client
    from agentic_rag.settings import load_settings

    settings = load_settings(data=data)
    return anyio.run(with_client, settings, url, command)


def _quoted(part: str) -> str:
    from urllib.parse import quote

    return quote(part, safe="")


def _finding(found: dict[str, Any]) -> str:
    place = f"{found['file']}:{found['line']}:{found['column']}"
    return f"{place}: {found['severity']} {found['code']}: {found['message']} ({found['hint']})"


def _json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table; lines with tabs when a program reads them."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(head):
        table.add_column(name, no_wrap=number == 0)  # ids are copied
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
