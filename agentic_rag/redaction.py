"""Secret values in texts that leave: found by value, replaced by ``[secret NAME]``.

Owns the set of known values, the forms in which they are looked for, and the filter for logs. Knows no vault and
no route. Values shorter than `SHORTEST` are not looked for: they would be found everywhere.

Values are replaced inside strings only: a number or the structure of a document never changes.
"""

import base64
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

SHORTEST = 8
"""Characters."""


class Redactor:
    """All secret values this process has seen. One a process; a value is never forgotten while it runs.

    A replaced or deleted secret is still secret, and a server started with it may still print it.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def add(self, name: str, value: str) -> None:
        """Look for a value from now on, as it is and as JSON, URLs and basic authentication write it."""
        if value in self._names:  # most of the time: each turn looks its secrets up anew
            return
        for part in _parts(value):
            for form in _forms(part):
                if len(form) >= SHORTEST and form not in self._names:
                    self._names[form] = name
                    self._pattern = None

    def __call__(self, text: str) -> str:
        """Return the text without any known value."""
        if not self._names:
            return text
        if self._pattern is None:
            longest_first = sorted(self._names, key=len, reverse=True)  # one value may be part of another
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        return self._pattern.sub(lambda found: f"[secret {self._names[found[0]]}]", text)

    def json(self, value: Any) -> Any:
        """Return a JSON value with every string redacted; the names of members are structure, and stay."""
        if not self._names:
            return value
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {key: self.json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value

    def found_in(self, value: Any) -> bool:
        """Whether a string of a JSON value holds a known value."""
        if not self._names:
            return False
        if isinstance(value, str):
            return self(value) != value
        if isinstance(value, Mapping):
            return any(self.found_in(key) or self.found_in(item) for key, item in value.items())
        return isinstance(value, list | tuple) and any(map(self.found_in, value))


def _parts(value: str) -> Iterator[str]:
    yield value
    if value.strip() != value:
        yield value.strip()
    scheme, _, rest = value.strip().partition(" ")
    if rest and scheme.lower() in ("bearer", "basic", "token"):
        yield rest.strip()


def _forms(value: str) -> set[str]:
    data = value.encode("utf-8", "surrogatepass")
    plain = base64.b64encode(data).decode()
    return {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(data, safe=""),
        plain,
        plain.rstrip("="),
        plain.replace("+", "-").replace("/", "_").rstrip("="),
    }


class RedactingFilter(logging.Filter):
    """Redacts the message and the traceback of each record that passes a handler."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redact(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redact(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redact(record.stack_info)
        return True


@contextmanager
def redacted_logs(redact: Redactor) -> Iterator[None]:
    """Redact what the root's handlers write; a record of any logger passes them.

    On the handlers, not on the loggers: a logger's filter does not see the records of its children.
    """
    passing = RedactingFilter(redact)
    handlers = [*logging.getLogger().handlers, *([logging.lastResort] if logging.lastResort else [])]
    for handler in handlers:
        handler.addFilter(passing)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(passing)
