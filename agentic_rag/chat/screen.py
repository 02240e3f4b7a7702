"""What a person sees of a turn: text as it streams, tools, hits, notices, citations.

Owns the rendering of events. Whatever comes from the server is data: it is never read as markup, and its
control characters do not reach the terminal. Knows no connection.
"""

import json
from typing import Any

from rich.console import Console

_KEPT = {0x09, 0x0A}
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_UNSAFE = (*(code for code in range(0x20) if code not in _KEPT), *range(0x7F, 0xA0), *_BIDI)
_SHOWN = dict.fromkeys(_UNSAFE, "�") | {0x0D: None}
_ESCAPED = {code: f"\\u{code:04x}" for code in _UNSAFE}

MAX_ARGUMENTS = 160
MAX_SNIPPET = 100
MAX_RESULT = 200
"""Characters of a line that only tells what happens; citations are shown whole."""


def safe(text: object) -> str:
    """Return text that cannot steer a terminal."""
    return str(text).translate(_SHOWN)


def one_line(text: object, limit: int) -> str:
    """Return text on one line of at most ``limit`` characters."""
    line = safe(" ".join(str(text).split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


class Screen:
    """Shows one turn after the other. With ``as_json`` each event is one line as it came."""

    def __init__(self, console: Console, errors: Console, *, as_json: bool = False) -> None:
        self._console = console
        self._errors = errors
        self._json = as_json
        self._style = ""
        self._midline = False
        self._after_line = False
        self._marks: set[int] = set()

    def show(self, raw: str, event: dict[str, Any]) -> None:
        """Show one event; ``raw`` is its text as received."""
        if self._json:
            self._console.out(raw.translate(_ESCAPED), highlight=False)
            return
        show = getattr(self, f"_show_{event['type']}", None)
        if show is not None:  # what a newer server tells beyond this is not for us
            show(event)

    def answer(self, text: str) -> None:
        """Show a stored answer whose events are gone."""
        if self._json:
            self._console.out(json.dumps({"type": "message", "content": text}), highlight=False)
        else:
            self._stream(text, "")
            self._break()

    def note(self, text: str) -> None:
        """Tell something about the connection, beside the answer."""
        self._break()
        self._errors.out(safe(text), highlight=False, style="dim")

    def problem(self, text: str) -> None:
        """Tell what went wrong, in one line."""
        self._break()
        self._errors.out(f"error: {one_line(text, 1000)}", highlight=False, style="red")

    # One method for each event that a person wants to see

    def _show_turn_started(self, event: dict[str, Any]) -> None:
        self._marks.clear()
        self._after_line = False

    def _show_thinking(self, event: dict[str, Any]) -> None:
        if not event.get("agent"):
            self._stream(event["text"], "dim italic")

    def _show_text(self, event: dict[str, Any]) -> None:
        if not event.get("agent"):
            self._marks.clear()
            self._stream(event["text"], "")

    def _show_source_reference(self, event: dict[str, Any]) -> None:
        if event["number"] not in self._marks and not event.get("agent"):
            self._marks.add(event["number"])
            self._console.out(f"[{event['number']}]", end="", highlight=False, style="cyan")
            self._midline = True

    def _show_tool_call(self, event: dict[str, Any]) -> None:
        arguments = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in event["arguments"].items()
        )
        self._line(f"→ {self._tool(event)}({one_line(arguments, MAX_ARGUMENTS)})", "blue")

    def _show_tool_progress(self, event: dict[str, Any]) -> None:
        total = f"/{event['total']:g}" if event.get("total") else ""
        self._line(f"  … {event['progress']:g}{total} {one_line(event.get('message') or '', MAX_RESULT)}", "dim")

    def _show_tool_result(self, event: dict[str, Any]) -> None:
        failed = event["status"] != "ok"
        told = f": {one_line(event['content'], MAX_RESULT)}" if failed else ""
        line = f"← {self._tool(event)} {safe(event['status'])} {event['durationMs']} ms{told}"
        self._line(line, "red" if failed else "green")

    def _show_retrieval(self, event: dict[str, Any]) -> None:
        hits = event["hits"]
        noun = "hit" if len(hits) == 1 else "hits"
        self._line(f"  {safe(event['source'])}: {len(hits)} {noun} for {one_line(event['query'], MAX_SNIPPET)}", "dim")
        for hit in hits:
            snippet = one_line(hit["snippet"], MAX_SNIPPET)
            self._line(
                f"    {_place(hit['name'], hit.get('page'), hit.get('cells'))} {hit['score']:.2f}  {snippet}", "dim"
            )

    def _show_step_reset(self, event: dict[str, Any]) -> None:
        self._line("(the connection to the model broke: what it said since the last tool call is said again)", "dim")

    def _show_retrying(self, event: dict[str, Any]) -> None:
        self._line(f"(retrying in {event['inMs'] / 1000:.1f} s: {one_line(event['reason'], MAX_RESULT)})", "dim")

    def _show_notice(self, event: dict[str, Any]) -> None:
        self._line(f"! {safe(event['code'])}: {safe(event['message'])}", "yellow")

    def _show_done(self, event: dict[str, Any]) -> None:
        if event["references"]:
            self._line("")
        for reference in event["references"]:
            place = _place(reference["documentName"], reference.get("page"), reference.get("cells"))
            self._line(f"[{reference['number']}] {place}", "cyan")
            self._line(f"    {safe(' '.join(reference['citedText'].split()))}", "dim")
        usage, seconds = event["usage"], event["timings"].get("total", 0) / 1000
        stopped = "" if event["stopReason"] == "end_turn" else f"stopped: {safe(event['stopReason'])} · "
        tokens = f"{usage['inputTokens']} tokens in, {usage['outputTokens']} out"
        self._line(f"{stopped}{safe(event['model'])} · {tokens} · {seconds:.1f} s", "dim")

    def _show_error(self, event: dict[str, Any]) -> None:
        self.problem(f"{event['code']}: {event['message']}")

    def _show_interrupted(self, event: dict[str, Any]) -> None:
        self._line("(interrupted)", "yellow")

    @staticmethod
    def _tool(event: dict[str, Any]) -> str:
        agent = f"{safe(event['agent'])}: " if event.get("agent") else ""
        return agent + safe(event["toolName"])

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
        """Begin a new line unless one has begun."""
        if self._midline:
            self._console.out("", highlight=False)
            self._midline = False


def _place(name: str, page: int | None, cells: str | None) -> str:
    if cells:
        return f"{safe(name)}, {safe(cells)}"
    return safe(name) if page is None else f"{safe(name)}, page {page}"
