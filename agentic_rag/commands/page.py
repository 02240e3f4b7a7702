"""`agentic-rag open`: print the address of the web page with a ticket for one sign-in.

The ticket is in the fragment after ``#``, which browsers do not send to servers.
"""

import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from agentic_rag.base.errors import ServerUnreachable
from agentic_rag.base.settings import load_settings
from agentic_rag.commands.line import run
from agentic_rag.operations.data_folder import find_server


def ticket_address(data: Path | None, url: str | None) -> str:
    """Return the address of a running server with a new ticket.

    Raises:
        ServerUnreachable: no server runs on the data folder.
        RequestRefused: the server issues no ticket.
    """
    folder = load_settings(data=data).own
    address = url or find_server(folder)
    if address is None:
        raise ServerUnreachable(str(folder), "no server runs on this data folder")
    ticket = run(data, url, lambda client: client.call("POST", "/api/ws-tickets"))
    return f"{address}/#ticket={ticket['ticket']}"


def open_browser(address: str) -> None:
    """Open an address in the user's browser if there is a display; a text browser would block the terminal."""
    if sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        with suppress(webbrowser.Error):
            webbrowser.open(address)
