"""What strangers wrote, on its way to an operator's terminal: shown, and never obeyed.

Owns which characters steer a terminal or turn text around, what is shown in their place, and the form of a log line,
which names the request it belongs to. Everything the command line prints and the server logs passes here.
"""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 (escape, bell, carriage return and others) but for line ends and tabs, DEL, C1, line separators, what turns the
direction of text around, and what cannot be written at all."""

SHOWN = "\N{REPLACEMENT CHARACTER}"


def safe(text: object) -> str:
    """Return text that cannot steer a terminal; line ends and tabs stay."""
    return _STEERING.sub(SHOWN, str(text).replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """Return JSON that cannot steer a terminal and says the same: such characters are written as escapes."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_request: ContextVar[str] = ContextVar("request", default="")


@contextmanager
def log_under(reference: str) -> Iterator[None]:
    """Name a request in the log lines of what is done inside the block, and of the tasks that are started there."""
    token = _request.set(reference)
    try:
        yield
    finally:
        _request.reset(token)


_turn: ContextVar[tuple[str, str]] = ContextVar("turn", default=("", ""))


@contextmanager
def log_turn(turn_id: str, trace_id: str) -> Iterator[None]:
    """Name a turn and its trace (empty: there is none) in the log lines of what is done inside the block."""
    token = _turn.set((turn_id, trace_id))
    try:
        yield
    finally:
        _turn.reset(token)


class SafeFormatter(logging.Formatter):
    """Formats log records for a terminal. A line of a message after its first is indented: it is no record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's own name
        reference = _request.get()
        named = " ".join(filter(None, (reference, *_turn.get())))
        line = f"{super().formatMessage(record)} [{named}]" if named else super().formatMessage(record)
        return line.replace("\r\n", "\n").replace("\n", "\n    ")

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats log records as lines of JSON, for programs: time, level, logger, message, and what they belong to."""

    def format(self, record: logging.LogRecord) -> str:
        turn, trace = _turn.get()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "requestId": _request.get(),
            "turnId": turn,
            "traceId": trace,
            "exception": self.formatException(record.exc_info) if record.exc_info else "",
        }
        return safe_json(json.dumps({name: value for name, value in line.items() if value}, ensure_ascii=False))


def log_handler(stream: TextIO, *, lines_of_json: bool = False) -> logging.Handler:
    """Return what writes the log of a server for an operator, or for programs."""
    handler = logging.StreamHandler(stream)
    text = SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if lines_of_json else text)
    return handler
