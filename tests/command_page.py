"""The page docs/command-line.md, generated from the commands. ``scripts/write_commands`` writes it."""

from collections.abc import Iterator
from pathlib import Path

import typer.main
from typer._click.core import Command, Context
from typer.core import TyperGroup

from agentic_rag.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"

_HEAD = """\
# Commands

`agentic-rag COMMAND --help` shows the same in the terminal. `scripts/write_commands` writes this page.

Commands talk to the server that runs on the data folder (`--data`, default `./data`), or to the one at `--url`. Without
a running server they do their work in their own process. `--key` before the command, or `AGENTIC_RAG_KEY`, is the API
key. Tables are tab-separated lines if the output is not a terminal, and JSON with `--json`. `agentic-rag
--install-completion` lets your shell complete commands and options.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused or failed; one line on stderr says why |
| 2 | wrong usage or configuration |
| 3 | the data folder belongs to another process |
| 4 | the port is in use |
| 130 | Ctrl-C; one line on stderr says what to do next |

A command that takes long shows its progress on a terminal. Ctrl-C ends it and leaves nothing incomplete.

"""


def make_page() -> str:
    """Return the text of the page."""
    sections = [_section(" ".join(words), command) for words, command in commands_of(typer.main.get_command(app))]
    return _HEAD + "\n".join(sections)


def commands_of(root: Command) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield every command below a group that is not a group, with its words."""
    assert isinstance(root, TyperGroup)
    return _walk(root, ())


def _walk(group: TyperGroup, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, TyperGroup):
            yield from _walk(command, (*above, name))
        elif not command.hidden:
            yield (*above, name), command


def _section(words: str, command: Command) -> str:
    context = Context(command)
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    lines = [f"## {words}\n\n```\nagentic-rag {words} {usage}".rstrip() + "\n```", _one_line(command.help)]
    records = [param.get_help_record(context) for param in command.params if param.name not in ("data", "url")]
    rows = [f"| `{names}` | {_one_line(text)} |" for names, text in filter(None, records)]
    if rows:
        lines.append("\n".join(["| argument or option | |", "|---|---|", *rows]))
    return "\n\n".join(lines) + "\n"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
