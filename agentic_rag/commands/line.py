"""Shared parts of commands: their options, the connection to the server, and table output.

Every command imports this module, so it imports little; see `agentic_rag.commands`.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import quote

import anyio
import typer

from agentic_rag.base.terminal import safe, safe_json

if TYPE_CHECKING:
    from agentic_rag.base.settings import Settings
    from agentic_rag.commands.client import ServerClient

T = TypeVar("T")

Data = Annotated[
    Path | None, typer.Option("--data", help="Data folder (AGENTIC_RAG_DATA; default: ./data).", file_okay=False)
]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENTIC_RAG_URL", help="Address of the server; default: the one on the data folder."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON instead of a table.")]


def settings_of(data: Path | None = None) -> "Settings":
    """Return the operator's settings, with the data folder of ``--data`` if the command line names one."""
    from agentic_rag.base.settings import load_settings

    return load_settings(data=data)


def run(
    data: Path | None, url: str | None, command: "Callable[[ServerClient], Awaitable[T]]", key: str | None = None
) -> T:
    """Run a command against the server that `client.with_client` finds, with the caller's API key if one is given."""
    from agentic_rag.commands.client import given_key, with_client

    if key:
        given_key.set(key)
    return anyio.run(with_client, settings_of(data), url, command)


@contextmanager
def advising(advice: Callable[[], str] | str) -> Iterator[None]:
    """If Ctrl-C ends the block, print what to do next. The command then ends with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"Interrupted. {advice if isinstance(advice, str) else advice()}", err=True)
        raise


@contextmanager
def waiting(words: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what the block waits for. The yielded function replaces the text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(words) as status:
        yield status.update


def quote_part(part: str) -> str:
    """Return text quoted as one segment of a URL path."""
    return quote(part, safe="")


def show_json(value: object) -> None:
    """Print a JSON value."""
    typer.echo(safe_json(json.dumps(value, indent=2, ensure_ascii=False)))


def say(text: object, *, err: bool = False) -> None:
    """Print text, on stderr with ``err``. Its control characters do not reach the terminal."""
    typer.echo(safe(text), err=err)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], answer: object, as_json: bool) -> None:
    """Print a table on a terminal, otherwise tab-separated lines without a header.

    ``as_json`` prints ``answer`` instead, the JSON value from which the caller made the rows. Control characters and
    line breaks in cells are replaced.
    """
    if as_json:
        show_json(answer)
        return
    lines = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in lines:
            say("\t".join(line))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(head):
        grid.add_column(name, no_wrap=number == 0)  # ids stay on one line, so that they can be copied
    for line in lines:
        grid.add_row(*(Text(cell) for cell in line))
    Console().print(grid)


def say_network_ends_keyless(data: Path | None, url: str | None) -> None:
    """Print what changes for other programs and browsers once an MCP server may use the network, on stderr."""
    from agentic_rag.operations.data_folder import open_command

    command = "agentic-rag open" if url else open_command(settings_of(data).own)
    say("Once an MCP server may use the network, a server without keys asks every program for a key,", err=True)
    say("because the MCP server could connect as you. Commands with --data still work without one.", err=True)
    say(f"To sign a browser in, run: {command}", err=True)


def printable(text: str) -> str:
    """Return text on one line without terminal control characters."""
    return safe(" ".join(text.split()))
