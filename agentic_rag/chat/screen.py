"""Terminal output of a turn: streamed text, tools, hits, notices and citations.

Texts from the server are never interpreted as markup, and their control characters do not reach the terminal. Knows no
connection.
"""

import json
from functools import singledispatchmethod
from typing import get_args

from rich.console import Console

from agentic_rag.base.events import (
    Done,
    Error,
    EventBody,
    Interrupted,
    Notice,
    Retrieval,
    Retrying,
    SourceReference,
    StepReset,
    Text,
    Thinking,
    ToolCall,
    ToolCallStarted,
    ToolProgress,
    ToolResult,
    TurnStarted,
)
from agentic_rag.base.json_form import Json, from_json
from agentic_rag.base.terminal import safe, safe_json

_BODIES: dict[str, type[EventBody]] = {kind.type: kind for kind in get_args(EventBody)}

MAX_ARGUMENTS = 160
MAX_SNIPPET = 100
MAX_RESULT = 200
"""Maximum characters of a progress line; citations are shown whole."""


def one_line(text: object, limit: int) -> str:
    """Return text on one line of at most ``limit`` characters."""
    line = safe(" ".join(str(text).split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def read_event(frame: Json) -> EventBody | None:
    """Return the event in a frame, or None for an unknown event of a newer server."""
    kind = _BODIES.get(frame["type"])
    if kind is None:
        return None
    if kind is Done:
        usage = frame["usage"]
        frame = frame | {"usage": {"input": usage["inputTokens"], "output": usage["outputTokens"]}}
    try:
        return from_json(kind, frame)
    except (TypeError, KeyError, ValueError):  # a member is missing or has the wrong type
        return None


class Screen:
    """Shows one turn after the other. With ``as_json``, each event is printed as received, one per line."""

    def __init__(self, console: Console, errors: Console, *, as_json: bool = False) -> None:
        self._console = console
        self._errors = errors
        self._json = as_json
        self._style = ""
        self._midline = False
        self._after_line = False
        self._marks: set[int] = set()

    def show(self, raw: str, frame: Json) -> None:
        """Show one event; ``raw`` is its text as received, ``frame`` its JSON."""
        if self._json:
            self._console.out(safe_json(raw), highlight=False)
            return
        body = read_event(frame)
        if body is not None:
            self._show(body, frame.get("agent") or "")

    def answer(self, text: str) -> None:
        """Show a stored answer whose events were removed."""
        if self._json:
            self._console.out(json.dumps({"type": "message", "content": text}), highlight=False)
        else:
            self._stream(text, "")
            self._break()

    def note(self, text: str) -> None:
        """Print a note about the connection."""
        self._break()
        self._errors.out(safe(text), highlight=False, style="dim")

    def problem(self, text: str) -> None:
        """Print an error on one line."""
        self._break()
        self._errors.out(f"error: {one_line(text, 1000)}", highlight=False, style="red")

    @singledispatchmethod
    def _show(self, body: EventBody, agent: str) -> None:
        """Show one kind of event. ``agent`` is the path of the delegate that sent it. Other events are not shown."""

    @_show.register
    def _(self, body: TurnStarted, agent: str) -> None:
        self._marks.clear()
        self._after_line = False

    @_show.register
    def _(self, body: Thinking, agent: str) -> None:
        if not agent:
            self._stream(body.text, "dim italic")

    @_show.register
    def _(self, body: Text, agent: str) -> None:
        if not agent:
            self._marks.clear()
            self._stream(body.text, "")

    @_show.register
    def _(self, body: SourceReference, agent: str) -> None:
        if body.number not in self._marks and not agent:
            self._marks.add(body.number)
            self._console.out(f"[{body.number}]", end="", highlight=False, style="cyan")
            self._midline = True

    @_show.register
    def _(self, body: ToolCallStarted, agent: str) -> None:
        self._line(f"  … {_tool(body, agent)}", "dim")

    @_show.register
    def _(self, body: ToolCall, agent: str) -> None:
        arguments = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in body.arguments.items()
        )
        self._line(f"→ {_tool(body, agent)}({one_line(arguments, MAX_ARGUMENTS)})", "blue")

    @_show.register
    def _(self, body: ToolProgress, agent: str) -> None:
        total = f"/{body.total:g}" if body.total else ""
        self._line(f"  … {body.progress:g}{total} {one_line(body.message or '', MAX_RESULT)}", "dim")

    @_show.register
    def _(self, body: ToolResult, agent: str) -> None:
        failed = body.status != "ok"
        reason = f": {one_line(body.content, MAX_RESULT)}" if failed else ""
        line = f"← {_tool(body, agent)} {safe(body.status)} {body.duration_ms} ms{reason}"
        self._line(line, "red" if failed else "green")

    @_show.register
    def _(self, body: Retrieval, agent: str) -> None:
        noun = "hit" if len(body.hits) == 1 else "hits"
        query = one_line(body.query, MAX_SNIPPET)
        self._line(f"  {safe(body.source)}: {len(body.hits)} {noun} for {query}", "dim")
        for hit in body.hits:
            snippet = one_line(hit.snippet, MAX_SNIPPET)
            self._line(f"    {_place(hit.name, hit.page, hit.cells)} {hit.score:.2f}  {snippet}", "dim")

    @_show.register
    def _(self, body: StepReset, agent: str) -> None:
        self._line("(the connection to the model broke; the answer since the last tool call is repeated)", "dim")

    @_show.register
    def _(self, body: Retrying, agent: str) -> None:
        self._line(f"(retrying in {body.in_ms / 1000:.1f} s: {one_line(body.reason, MAX_RESULT)})", "dim")

    @_show.register
    def _(self, body: Notice, agent: str) -> None:
        self._line(f"! {safe(body.code)}: {safe(body.message)}", "yellow")

    @_show.register
    def _(self, body: Done, agent: str) -> None:
        if body.references:
            self._line("")
        for reference in body.references:
            place = _place(reference.document_name, reference.page, reference.cells)
            doubt = " (unverified: shares no word with the statement)" if reference.verified is False else ""
            self._line(f"[{reference.number}] {place}{doubt}", "cyan")
            self._line(f"    {safe(' '.join(reference.cited_text.split()))}", "dim")
        seconds = body.timings.get("total", 0) / 1000
        stopped = "" if body.stop_reason == "end_turn" else f"stopped: {safe(body.stop_reason)} · "
        # The embedded extractive model counts no tokens.
        tokens = f" · {body.usage.sent} tokens in, {body.usage.output} out" if body.usage.sent else ""
        self._line(f"{stopped}{safe(body.model)}{tokens} · {seconds:.1f} s", "dim")

    @_show.register
    def _(self, body: Error, agent: str) -> None:
        self.problem(f"{body.code}: {body.message}")

    @_show.register
    def _(self, body: Interrupted, agent: str) -> None:
        self._line("(interrupted)", "yellow")

    # Lines and streams

    def _stream(self, text: str, style: str) -> None:
        if style != self._style:
            self._break()
            self._style = style
        if self._after_line:
            self._console.out("", highlight=False)
            self._after_line = False
        self._console.out(safe(text), end="", highlight=False, style=style or None)
        self._midline = not text.endswith("\n")

    def _line(self, text: str, style: str = "") -> None:
        self._break()
        self._console.out(text, highlight=False, style=style or None)
        self._after_line = True

    def _break(self) -> None:
        """Begin a new line unless the cursor is at the start of one."""
        if self._midline:
            self._console.out("", highlight=False)
            self._midline = False


def _tool(body: ToolCall | ToolCallStarted | ToolResult, agent: str) -> str:
    return (f"{safe(agent)}: " if agent else "") + safe(body.tool_name)


def _place(name: str, page: int | None, cells: str | None) -> str:
    if cells:
        return f"{safe(name)}, {safe(cells)}"
    return safe(name) if page is None else f"{safe(name)}, page {page}"
