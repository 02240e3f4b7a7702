"""What strangers wrote, on its way to an operator's terminal: shown, and never obeyed.

Owns which characters steer a terminal or turn text around, what is shown in their place, and the form of a log line.
Everything the command line prints and the server logs passes here.
"""

import logging
import re
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


class SafeFormatter(logging.Formatter):
    """Formats log records for a terminal. A line of a message after its first is indented: it is no record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's own name
        return super().formatMessage(record).replace("\r\n", "\n").replace("\n", "\n    ")

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


def log_handler(stream: TextIO) -> logging.Handler:
    """Return what writes the log of a server for an operator."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler
