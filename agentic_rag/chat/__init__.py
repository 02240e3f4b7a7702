"""`agentic-rag chat`: talk to a domain in the terminal.

Defines the command's arguments and exit codes. `agentic_rag.chat.talk` handles the connection,
`agentic_rag.chat.screen` the output. Both are imported when the command runs, because every command imports this
module.
"""

from pathlib import Path
from typing import Annotated

import typer


def chat(
    domain: Annotated[str, typer.Argument(help="Id of the domain.")],
    message: Annotated[str | None, typer.Argument(help="Question; without it, you type messages.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Continue this conversation.")] = None,
    url: Annotated[
        str | None,
        typer.Option(envvar="AGENTIC_RAG_URL", help="Address of the server; default: the one on the data folder."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data folder (AGENTIC_RAG_DATA; default: ./data).", file_okay=False)
    ] = None,
    key: Annotated[str | None, typer.Option(envvar="AGENTIC_RAG_KEY", help="API key.", show_envvar=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> None:
    """Ask a domain and follow its work live: answer, tool calls, hits and citations.

    Ctrl-C stops the answer, a second Ctrl-C leaves. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 5 no
    server, 130 interrupted.
    """
    # imported when the command runs, so that --help and other commands start fast
    from agentic_rag.chat.command import run

    code = run(domain, message, conversation=conversation, url=url, data=data, key=key, as_json=as_json)
    if code:
        raise typer.Exit(code)
