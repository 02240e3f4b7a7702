"""The command line: serve, chat, ingest, domains, roles, mcp, models, secrets, keys, users, usage, audit, backup.

Defines arguments, output and exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration, 3 the data folder
belongs to another process, 4 the port is in use, 130 Ctrl-C. All commands except `serve` use REST
(`agentic_rag.commands.client`). `agentic_rag.commands` says why functions here contain imports.
"""

import logging
import os
import sys
import traceback
from contextlib import suppress
from functools import partial
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from typer.main import get_command_name

from agentic_rag.base import garbage
from agentic_rag.base.errors import ServerStopping, first_cause
from agentic_rag.base.startup_errors import StartupError
from agentic_rag.base.terminal import log_handler
from agentic_rag.chat import chat
from agentic_rag.commands.access import audit_app, keys_app
from agentic_rag.commands.backup import backup, restore
from agentic_rag.commands.bundles import export_domain, import_domain
from agentic_rag.commands.evaluate import evaluate
from agentic_rag.commands.launch_requests import requests_app
from agentic_rag.commands.line import (
    AsJson,
    Data,
    Url,
    advising,
    printable,
    quote_part,
    say,
    settings_of,
    show_json,
    table,
)
from agentic_rag.commands.line import run as run_command
from agentic_rag.commands.mcp import mcp_app
from agentic_rag.commands.memory import memory_app
from agentic_rag.commands.models import models_app
from agentic_rag.commands.notifications import endpoints_app, schedules_app
from agentic_rag.commands.roles import roles_app
from agentic_rag.commands.secrets import secrets_app
from agentic_rag.commands.sources import sources_app
from agentic_rag.commands.upgrade import downgrade, upgrade
from agentic_rag.commands.usage import budgets_app, usage
from agentic_rag.commands.users import users_app
from agentic_rag.server.peer_credentials import system_tells
from agentic_rag.tools.launch.sandbox import WITHOUT, find_sandbox

if TYPE_CHECKING:
    from agentic_rag.base.settings import Settings

app = typer.Typer(
    name="agentic-rag",
    help="An agentic RAG server: the model drives its tools, every citation is tied to an exact passage.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 usage or configuration, 3 data folder in use, 4 port in use, "
    "130 interrupted.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
domains_app = typer.Typer(help="List, show, create, move and delete domains.", no_args_is_help=True)
domains_app.command("export")(export_domain)
domains_app.command("import")(import_domain)
app.add_typer(domains_app, name="domains")
app.add_typer(roles_app, name="roles")
app.add_typer(memory_app, name="memory")
mcp_app.add_typer(requests_app)
app.add_typer(mcp_app, name="mcp")
app.add_typer(models_app, name="models")
app.add_typer(secrets_app, name="secrets")
app.add_typer(keys_app, name="keys")
app.add_typer(users_app, name="users")
app.add_typer(audit_app, name="audit")
app.add_typer(budgets_app, name="budgets")
app.add_typer(endpoints_app, name="endpoints")
app.add_typer(schedules_app, name="schedules")
app.add_typer(sources_app, name="sources")
app.command(name="chat")(chat)
app.command(name="usage")(usage)
app.command(name="evaluate")(evaluate)
app.command(name="backup")(backup)
app.command(name="restore")(restore)
app.command(name="upgrade")(upgrade)
app.command(name="downgrade")(downgrade)

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

Domain = Annotated[str, typer.Argument(help="Id of the domain.")]


@app.callback()
def options(
    key: Annotated[
        str | None,
        typer.Option(help="API key; safer in AGENTIC_RAG_KEY, which other users of this machine cannot see."),
    ] = None,
) -> None:
    """Handle the options of all commands."""
    from agentic_rag.commands.client import given_key

    if key:
        given_key.set(key)


def main() -> None:
    """Run the command line. Errors are printed as one line on stderr.

    If the reader of the output has gone (``agentic-rag chat … | head``), the command ends quietly with exit code 1.
    """
    _keep_only(app, sys.argv[1:])
    try:
        app()
    except BaseException as exc:
        if _reader_is_gone(exc):
            os._exit(1)  # at an ordinary exit the interpreter would flush the output and report the broken pipe
        if _is_interrupted(exc):
            sys.exit(INTERRUPTED)
        if not isinstance(exc, Exception):
            raise
        error = first_cause(exc)
        if error is None:
            say("".join(traceback.format_exception(exc)), err=True)
            sys.exit(1)
        say(f"error: {error}", err=True)
        sys.exit(error.exit_code if isinstance(error, StartupError) else 1)


def _keep_only(group: typer.Typer, words: list[str]) -> None:
    """Remove all commands but the one that the words name, if they name one.

    Typer examines the parameters of every command before it runs one: 80 ms of CPU for all of them. If the words start
    with an option or an unknown name, all commands stay, because the help and the suggestions list them.
    """
    if not words:
        return
    commands = [
        info
        for info in group.registered_commands
        if words[0] == (info.name or (info.callback and get_command_name(info.callback.__name__)))
    ]
    groups = [
        info
        for info in group.registered_groups
        if info.typer_instance and words[0] in (info.name, info.typer_instance.info.name)
    ]
    if commands or groups:
        group.registered_commands, group.registered_groups = commands, groups
    for info in groups:
        assert info.typer_instance is not None
        _keep_only(info.typer_instance, words[1:])


def _is_interrupted(exc: BaseException) -> bool:
    """Return whether Ctrl-C ended the command, also in the middle of its clean-up or of its imports."""
    if isinstance(exc, BaseExceptionGroup):
        return any(_is_interrupted(inner) for inner in exc.exceptions)
    return isinstance(exc, KeyboardInterrupt)


def _reader_is_gone(exc: BaseException) -> bool:
    """Return True if writing failed because nothing reads the output. Rich raises SystemExit for that."""
    if isinstance(exc, BaseExceptionGroup):
        return all(_reader_is_gone(inner) or isinstance(inner, SystemExit) for inner in exc.exceptions)
    return isinstance(exc, BrokenPipeError)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address (default 127.0.0.1); others need a key.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (default 8000).", min=0, max=65535)] = None,
    data: Data = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of server processes (default 1); more need PostgreSQL and Qdrant.")
    ] = None,
    allow_any_command: Annotated[
        bool, typer.Option("--allow-any-command", help="Let MCP entries start any program. For a single user only.")
    ] = False,
    allow_unsandboxed: Annotated[
        bool,
        typer.Option("--allow-unsandboxed", help="Without bubblewrap, start MCP servers with no sandbox. Single user."),
    ] = False,
    user: Annotated[
        str | None, typer.Option("--user", help="Run as this user of the machine; only root can choose one.")
    ] = None,
    allow_root: Annotated[bool, typer.Option("--allow-root", hidden=True)] = False,
) -> None:
    """Serve until interrupted (Ctrl-C)."""
    garbage.do_not_look()  # collection takes 8 % of the start, so it is off until turns can run
    from agentic_rag.base.settings import load_settings

    settings = load_settings(host=host, port=port, data=data, workers=workers)
    # Before other imports: `MCPServer` configures logging if nothing else has.
    handler = log_handler(sys.stderr, lines_of_json=settings.log_format == "json")
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    for chatty in ("alembic", "httpx", "httpx2", "httpcore2", "mcp", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(max(logging.getLogger().level, logging.WARNING))
    if user is not None:
        from agentic_rag.operations.process_user import become_user

        become_user(user, settings)
    _serve(settings, any_command=allow_any_command, unsandboxed=allow_unsandboxed)


def _serve(settings: "Settings", *, any_command: bool, unsandboxed: bool) -> None:
    """Serve in this process, or start and supervise workers."""
    from agentic_rag.app.application import open_application
    from agentic_rag.app.local_workers import AT_ONCE, LocalWorkers, Worker
    from agentic_rag.app.serving import STOPS, address_of, answer_meanwhile, bind, serve

    announce = partial(_announce, settings.data, any_command, unsandboxed)
    worker: Worker | None = None
    if settings.workers == 1:
        listener = bind(settings.host, settings.port)
    else:
        workers_here = LocalWorkers(settings)
        worker = workers_here.begin()
        if worker is None:  # the parent process: it ends in `look_after`, and only workers continue below
            announce(workers_here.address)
            worker = workers_here.look_after()
        settings, listener = worker.settings, worker.listener

    async def run() -> None:
        async with open_application(
            settings,
            any_command=any_command,
            unsandboxed=unsandboxed,
            meanwhile=answer_meanwhile(settings, listener),
            local_key=worker.local_key if worker else None,
        ) as application:
            ready = worker.tell_ready if worker else partial(announce, address_of(listener))
            await serve(application, listener, ready, AT_ONCE if worker else STOPS)

    with listener, suppress(ServerStopping):  # raised at a stop before the store was open
        anyio.run(run, backend_options={"use_uvloop": True})  # less CPU per delta; uvicorn's own choice, too


def _announce(data: Path, any_command: bool, unsandboxed: bool, address: str) -> None:
    """Print that the server answers, and the next commands to try."""
    from agentic_rag.operations.process_user import warn_if_root

    warn_if_root()
    _warn(any_command, unsandboxed)
    say(f"Agentic RAG serves {address} (data folder: {data}). Stop it with Ctrl-C.")
    program = _own_name()
    say(f'Ask the demo:  {program} chat demo "How many days of paid leave do full-time staff have?"')
    say(f"Your own:      {program} domains create NAME (it prints an ID), then: {program} ingest ID PATH...")
    sys.stdout.flush()


def _own_name() -> str:
    """Return the command to run this program: relative if it is below the working folder, else the whole path."""
    called = Path(normpath(Path(sys.argv[0]).absolute()))
    return str(called.relative_to(Path.cwd()) if called.is_relative_to(Path.cwd()) else called)


def _warn(any_command: bool, unsandboxed: bool) -> None:
    """Print warnings about risky options."""
    if any_command:
        say("WARNING: MCP entries may start any program on this machine (--allow-any-command).")
    if unsandboxed:
        say("WARNING: without bubblewrap MCP servers run with no sandbox (--allow-unsandboxed).")
    if not system_tells():
        say("This system does not tell whose a connection is: clients need a key, the command line has one.")


@app.command()
def ingest(
    domain: Domain,
    paths: Annotated[
        list[Path], typer.Argument(help="Files to upload, and folders with such files.", show_default=False)
    ],
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Keep running, and upload files that are added or changed. Deleted files stay."),
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label that readers need to see the documents; repeatable. Others are kept."),
    ] = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Upload files to a domain and wait until they can be searched.

    Exit code 1: a file failed. Exit code 3: all files succeeded, but files in a folder were skipped.
    """
    from agentic_rag.commands.ingest import ingest_files

    with advising(
        "Uploaded files stay, and a server on the data folder indexes them. Run the command again for the rest: a file "
        "that the domain has is not added twice."
    ):
        code = run_command(data, url, lambda client: ingest_files(client, domain, paths, watch, label or ()))
    if code:
        raise typer.Exit(code)


@app.command()
def stale(
    domain: Domain,
    days: Annotated[int, typer.Option(help="How many days back citations count.")] = 90,
    older_than: Annotated[int, typer.Option(help="Days after which a document without a review date is old.")] = 730,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """List documents that need a review, those that answers cite most often first."""
    params = {"days": str(days), "olderThan": str(older_than)}
    path = f"/api/domains/{quote_part(domain)}/stale-documents"
    page = run_command(data, url, lambda client: client.call("GET", path, params=params))
    rows = [
        (
            str(item["citations"]),
            printable(item["documentName"]),
            item["date"],
            item.get("reviewBy", ""),
            item["reason"],
            printable(item.get("newerName", "")),
        )
        for item in page["items"]
    ]
    table(("citations", "document", "date", "review by", "reason", "newer version"), rows, page["items"], as_json)


@app.command()
def reindex(
    domain: Domain,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Restore the collection from before the last re-indexing.")
    ] = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Rebuild a domain's index with the current embedder, while searches use the old one; then switch to it."""
    from agentic_rag.commands.ingest import reindex as run

    with advising("A running server continues the rebuild. Run the command again to wait for its end."):
        problem = run_command(data, url, lambda client: run(client, domain, rollback))
    if problem is not None:
        say(f"error: {problem}", err=True)
        raise typer.Exit(1)


@app.command("fetch-model")
def fetch_model(
    name: Annotated[str | None, typer.Argument(help="A fastembed model; default: the configured or small one.")] = None,
) -> None:
    """Download an embedding model to this machine."""
    from agentic_rag.commands.model import fetch_model as run

    with advising("The model is not complete. Run the command again."):
        problem = anyio.run(run, settings_of(), name)
    if problem is not None:
        say(f"error: {problem}", err=True)
        raise typer.Exit(1)


@app.command()
def doctor(
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild damaged data that can be derived from other data.")
    ] = False,
    data: Data = None,
) -> None:
    """Check database, documents, stored results, memories, secrets and index. Exit code 1: a problem remains.

    Stop the server first. `--repair` rebuilds derived data. Damaged source data is listed with how to restore it. The
    first line names the embedder that searches use and the number of tokens it reads. Further lines show the progress
    of domains that use context lines.
    """
    from agentic_rag.commands.doctor import DATABASE_CODES, describe_embedder, describe_lines, examine

    settings = settings_of(data)
    with advising("Run the command again: it begins with the first check."):
        findings = anyio.run(examine, settings, repair)
        say(printable(anyio.run(describe_embedder, settings)))
        if DATABASE_CODES.isdisjoint(finding.code for finding in findings):
            for line in anyio.run(describe_lines, settings):
                say(printable(line))
    if isinstance(sandbox := find_sandbox(), str):
        say(printable(f"There is no sandbox: {sandbox}. {WITHOUT}"))
    for finding in findings:
        say(printable(str(finding)))
    remaining = sum(finding.by_hand for finding in findings) if repair else len(findings)
    if not findings:
        say("Everything fits together.")
    elif not repair:
        say(f"{len(findings)} found; --repair does what stands in brackets.")
    else:
        say(f"{len(findings)} found, {'repaired' if not remaining else f'{len(findings) - remaining} repaired'}.")
    if remaining:
        raise typer.Exit(1)


@app.command("open")
def open_page(
    show: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser, if there is one.")] = True,
    data: Data = None,
    url: Url = None,
) -> None:
    """Print the server's address with a ticket for one sign-in, and open the browser."""
    from agentic_rag.commands.page import open_browser, ticket_address

    address = ticket_address(data, url)
    say(address)
    if show:
        open_browser(address)


@domains_app.command("list")
def list_domains(as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List all domains: id, name, number of documents, version."""
    page = run_command(data, url, lambda client: client.call("GET", "/api/domains"))
    rows = [[item["id"], item["name"], str(item["documentCount"]), str(item["version"])] for item in page["items"]]
    table(["id", "name", "documents", "version"], rows, page["items"], as_json)


@domains_app.command("show")
def show_domain(domain: Domain, data: Data = None, url: Url = None) -> None:
    """Show a domain with its settings as JSON."""
    show_json(run_command(data, url, lambda client: client.call("GET", f"/api/domains/{quote_part(domain)}")))


@domains_app.command("create")
def create_domain(
    name: Annotated[str, typer.Argument(help="Name of the domain.")],
    description: Annotated[str, typer.Option(help="One line about the domain.")] = "",
    data: Data = None,
    url: Url = None,
) -> None:
    """Create a domain and print its id."""
    body = {"name": name, "description": description}
    say(run_command(data, url, lambda client: client.call("POST", "/api/domains", json=body))["id"])


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
    run_command(data, url, lambda client: client.call("DELETE", f"/api/domains/{quote_part(domain)}", params=params))


if __name__ == "__main__":
    main()
