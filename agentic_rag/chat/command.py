"""The flow of `agentic-rag chat`: find the server, open a conversation, run one turn or many.

Defines the exit codes. No connection is held between two turns.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from urllib.parse import quote

import anyio
import httpx2
from rich.console import Console

from agentic_rag.base.errors import AgenticRagError, InvalidInput, RequestRefused, ServerUnreachable
from agentic_rag.base.settings import load_settings
from agentic_rag.base.startup_errors import StartupError
from agentic_rag.chat.screen import Screen
from agentic_rag.chat.talk import Ending, Server, Talk
from agentic_rag.commands.client import TIMEOUT_SECONDS, ServerClient, key_for
from agentic_rag.operations.data_folder import find_server

DEFAULT_URL = "http://127.0.0.1:8000"
DONE, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 5, 130

_CODES: dict[Ending, int] = {
    "done": DONE,
    "resync": DONE,
    "error": FAILED,
    "interrupted": INTERRUPTED,
    "left": INTERRUPTED,
}


def run(
    domain: str,
    message: str | None,
    *,
    conversation: str | None,
    url: str | None,
    data: Path | None,
    key: str | None,
    as_json: bool,
) -> int:
    """Run the command and return its exit code."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a stream may be closed
            stream.reconfigure(errors="replace")  # for undecodable input and narrow output encodings
    screen = Screen(Console(), Console(stderr=True), as_json=as_json)
    try:
        settings = load_settings(data=data)
        server = Server(url or find_server(settings.own) or DEFAULT_URL, key or key_for(settings, url))
        chat = TerminalChat(server, screen, anyio.run(open_conversation, server, domain, conversation))
        code = chat.once(message) if message is not None else chat.prompt()
        screen.note(f"conversation {chat.conversation_id}")
    except KeyboardInterrupt:
        return INTERRUPTED
    except AgenticRagError as exc:
        screen.problem(str(exc))
        return _exit_code(exc)
    return code


def _exit_code(exc: AgenticRagError) -> int:
    if isinstance(exc, ServerUnreachable):
        return UNREACHABLE
    return USAGE if isinstance(exc, InvalidInput | StartupError) else FAILED


async def open_conversation(server: Server, domain: str, conversation: str | None) -> str:
    """Return the id of a new conversation, or of the given one once the server has confirmed it.

    Raises:
        RequestRefused: there is no such domain or conversation.
        ServerUnreachable: no server answers.
        InvalidInput: the conversation belongs to another domain.
    """
    async with _http(server) as http:
        if conversation is None:
            record = await ServerClient(http).call("POST", "/api/conversations", json={"domainId": domain})
        else:
            record = await ServerClient(http).call("GET", f"/api/conversations/{quote(conversation, safe='')}")
    if record["domainId"] != domain:
        raise InvalidInput("conversation", f"{conversation!r} belongs to the domain {record['domainId']!r}.")
    return str(record["id"])


async def stored_answer(server: Server, conversation_id: str, turn_id: str | None) -> str:
    """Return the stored answer of a turn; empty if it has none."""
    async with _http(server) as http:
        page = await ServerClient(http).call("GET", f"/api/conversations/{quote(conversation_id, safe='')}/messages")
    for message in page["items"]:
        if message["role"] == "assistant" and message["turnId"] == turn_id:
            return str(message["content"])
    return ""


def _http(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, headers=server.headers, timeout=TIMEOUT_SECONDS, trust_env=False)


class TerminalChat:
    """One conversation in the terminal."""

    def __init__(self, server: Server, screen: Screen, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self._server = server
        self._screen = screen

    def once(self, message: str) -> int:
        """Run one turn and return the exit code."""
        text = message.encode(errors="replace").decode()  # an argument may contain undecodable bytes
        return _CODES[anyio.run(partial(self.turn, text, signals=True))]

    def prompt(self) -> int:
        """Run turns until the input ends. A refused message continues the loop; Ctrl-C at the prompt ends it."""
        for line in self._lines():
            try:
                ending = anyio.run(partial(self.turn, line, signals=True))
            except RequestRefused as exc:
                self._screen.problem(str(exc))
                continue
            if ending == "left":
                return INTERRUPTED
        return DONE

    async def turn(self, text: str, *, signals: bool = False) -> Ending:
        """Run one turn and return how it ended."""
        talk = Talk(self._server, self.conversation_id, self._screen)
        ending = await talk.say(text, signals=signals)
        if ending == "resync":
            self._screen.note("the events of this turn are gone; this is its stored answer")
            self._screen.answer(await stored_answer(self._server, self.conversation_id, talk.turn_id))
        return ending

    @staticmethod
    def _lines() -> Iterator[str]:
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401  # line editing where the platform has it
        while True:
            try:
                line = input("you> " if is_terminal else "")
            except EOFError:
                return
            if line.strip():
                yield line
