"""Untrusted text on its way to an operator's terminal: shown, never interpreted.

Owns the characters that control a terminal or change the direction of text, their replacement, and the form of a log
line, which names its request. Everything the command line prints and the server logs passes here.
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
"""Characters that must not reach a terminal.

C0 (escape, bell, carriage return and others) except line ends and tabs, DEL, C1, line separators, characters that
change the direction of text, and surrogates, which cannot be written at all.
"""

SHOWN = "\N{REPLACEMENT CHARACTER}"


def safe(text: object) -> str:
    """Return text that cannot control a terminal; line ends and tabs are kept."""
    return _STEERING.sub(SHOWN, str(text).replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """Return equivalent JSON that cannot control a terminal: such characters are written as escapes."""
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_request: ContextVar[str] = ContextVar("request", default="")


@contextmanager
def log_under(reference: str) -> Iterator[None]:
    """Name a request in the log lines of the block, and of the tasks that are started there."""
    token = _request.set(reference)
    try:
        yield
    finally:
        _request.reset(token)


_turn: ContextVar[tuple[str, str]] = ContextVar("turn", default=("", ""))


@contextmanager
def log_turn(turn_id: str, trace_id: str) -> Iterator[None]:
    """Name a turn and its trace (empty if there is none) in the log lines of the block."""
    token = _turn.set((turn_id, trace_id))
    try:
        yield
    finally:
        _turn.reset(token)


class SafeFormatter(logging.Formatter):
    """Formats log records for a terminal. Further lines of a message are indented, to differ from records."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's own name
        reference = _request.get()
        labels = " ".join(filter(None, (reference, *_turn.get())))
        line = f"{super().formatMessage(record)} [{labels}]" if labels else super().formatMessage(record)
        return line.replace("\r\n", "\n").replace("\n", "\n    ")

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats log records as lines of JSON, for programs: time, level, logger, message, request, turn and trace."""

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
    """Return the handler that writes the log of a server for an operator, or for programs."""
    handler = logging.StreamHandler(stream)
    text = SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if lines_of_json else text)
    return handler
