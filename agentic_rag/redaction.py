"""Secret values in texts that leave: found by value, replaced by ``[secret NAME]``.

Owns which values are looked for where, the forms in which they are looked for, texts that come in pieces, and the
filter for logs. Knows no vault and no route. Values shorter than `SHORTEST` are not looked for: they would be found
everywhere.

A domain's values are looked for in that domain alone, and named there alone. What is redacted shows that somebody
keeps this value: looked for elsewhere, it would gag others who say the same words, and confirm a guess.

Values are replaced inside strings only: a number or the structure of a document never changes.
"""

import base64
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

SHORTEST = 8
"""Characters."""


class Redaction:
    """The values that are looked for in one place. ``parts``: what it takes over from others as they are now.

    ``named`` False: whoever reads there is not told which secret it was.
    """

    def __init__(self, parts: Iterable["Redaction"] = (), *, named: bool = True) -> None:
        self._names: dict[str, str] = {}
        self._named = named
        self._pattern: re.Pattern[str] | None = None
        self._by_start: defaultdict[str, list[str]] = defaultdict(list)
        for part in parts:
            for form, name in part._names.items():
                self._look_for(form, name)

    @property
    def idle(self) -> bool:
        """Whether no value is known yet."""
        return not self._names

    @property
    def known(self) -> int:
        """How many forms of values are looked for. It only grows: what was redacted at the same number still is."""
        return len(self._names)

    def add(self, name: str, value: str) -> None:
        """Look for a value from now on, as it is and as JSON, URLs and basic authentication write it."""
        if value in self._names:  # most of the time: each turn looks its secrets up anew
            return
        for part in _parts(value):
            for form in _forms(part):
                if len(form) >= SHORTEST:
                    self._look_for(form, name)

    def _look_for(self, form: str, name: str) -> None:
        if form not in self._names:
            self._names[form] = name
            self._by_start[form[0]].append(form)
            self._pattern = None

    def __call__(self, text: str) -> str:
        """Return the text without any known value."""
        return self._pattern_of_all().sub(self._mask, text) if self._names else text

    def _pattern_of_all(self) -> re.Pattern[str]:
        if self._pattern is None:
            longest_first = sorted(self._names, key=len, reverse=True)  # one value may be part of another
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        return self._pattern

    def _mask(self, found: re.Match[str]) -> str:
        return f"[secret {self._names[found[0]]}]" if self._named else "[secret]"

    def split(self, text: str) -> tuple[str, str]:
        """Return what of a text's beginning may leave now, redacted, and the rest, as it is.

        The rest may be the beginning of a value whose end is still to come.
        """
        if not self._names:
            return text, ""
        pattern, parts, at = self._pattern_of_all(), [], 0
        while True:
            safe = self._safe(text, at)
            found = pattern.search(text, at)
            if found is None or found.start() >= safe:
                parts.append(text[at:safe])
                return "".join(parts), text[safe:]
            parts += [text[at : found.start()], self._mask(found)]
            at = found.end()

    def _safe(self, text: str, at: int) -> int:
        """Return from where on the text is the beginning of a longer value; its length: nowhere."""
        for start in range(at, len(text)):
            forms = self._by_start.get(text[start])
            if forms and any(len(form) > len(text) - start and form.startswith(text[start:]) for form in forms):
                return start
        return len(text)

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

    def members(self, value: Any) -> Any:
        """Return a JSON value redacted as by `json`, with the names of members too: a model chose them."""
        if isinstance(value, Mapping):
            return {self(key): self.members(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.members(item) for item in value]
        return self.json(value)

    def found_in(self, value: Any) -> bool:
        """Whether a string of a JSON value holds a known value."""
        if not self._names:
            return False
        if isinstance(value, str):
            return self(value) != value
        if isinstance(value, Mapping):
            return any(self.found_in(key) or self.found_in(item) for key, item in value.items())
        return isinstance(value, list | tuple) and any(map(self.found_in, value))


class Redactor:
    """All secret values this process has seen, by domain. One a process; a value is never forgotten while it runs.

    A replaced or deleted secret is still secret, and a server started with it may still print it.

    Called itself, it redacts what belongs to no domain and is for operators (logs, audit rows): all values, no name.
    """

    def __init__(self) -> None:
        self._all = Redaction(named=False)
        self._domains: WeakValueDictionary[str, Redaction] = WeakValueDictionary()
        self._kept: set[Redaction] = set()
        """Those that know a value; others go with whoever asked for them."""

    def __call__(self, text: str) -> str:
        """Return the text without the values of any domain."""
        return self._all(text)

    def json(self, value: Any) -> Any:
        """Return a JSON value without the values of any domain; see `Redaction.json`."""
        return self._all.json(value)

    def of(self, domain_id: str) -> Redaction:
        """Return what redacts all that happens in a domain, now and when further values are added."""
        found = self._domains.get(domain_id)
        if found is None:
            found = self._domains[domain_id] = Redaction()
        return found

    def among(self, domain_ids: Iterable[str]) -> Redaction:
        """Return what redacts a text for somebody who may see these domains, where it belongs to none of them."""
        return Redaction(map(self.of, domain_ids), named=False)

    def add(self, domain_id: str, name: str, value: str) -> None:
        """Look for a value of a domain from now on."""
        domain = self.of(domain_id)
        domain.add(name, value)
        self._all.add(name, value)
        self._kept.add(domain)

    @contextmanager
    def trying(self, domain_id: str, values: Mapping[str, str]) -> Iterator[Redaction]:
        """Yield what redacts a trial in a domain; its ``values`` count for it, and while it runs for the logs.

        Not for the domain: anybody who may try an entry would gag it until the process ends.
        """
        trial = Redaction([self.of(domain_id)])
        for name, value in values.items():
            trial.add(name, value)
        self._kept.add(trial)
        self._all = Redaction(self._kept, named=False)
        try:
            yield trial
        finally:
            self._kept.discard(trial)
            self._all = Redaction(self._kept, named=False)


class Pieces:
    """Redacts a text that comes in pieces: a value is found wherever its pieces were cut."""

    def __init__(self, redact: Redaction) -> None:
        self._redact = redact
        self._held = ""

    def take(self, piece: str) -> str:
        """Take the next piece and return what may leave now, possibly nothing."""
        left, self._held = self._redact.split(self._held + piece)
        return left

    def end(self) -> str:
        """Return what was still held."""
        held, self._held = self._held, ""
        return self._redact(held)


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

    def __init__(self, redact: Redaction | Redactor) -> None:
        super().__init__()
        self._redact = redact
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.__dict__ |= {"msg": self._redact(record.getMessage()), "args": None}
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redact(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redact(record.stack_info)
        return True


@contextmanager
def redacted_logs(redact: Redaction | Redactor) -> Iterator[None]:
    """Redact, as long as this is open, what the root's handlers write; a record of any logger passes them.

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
