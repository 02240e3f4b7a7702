"""Redaction of secret values in outgoing texts: found by value, replaced by ``[secret NAME]``.

Owns the values to search for in each place, the forms of a value, texts that arrive in pieces, and the filter for logs.
Knows no vault and no route. Values shorter than `SHORTEST` are not searched for: they would match everywhere.

A domain's values are searched for, and named, in that domain alone. A redaction shows that a secret with this value
exists. In other domains it would censor people who use the same words, and confirm a guess.

Values are replaced inside strings only: a number or the structure of a document never changes.
"""

import base64
import json
import logging
import re
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from itertools import product
from typing import Any
from urllib.parse import quote, quote_plus
from weakref import WeakValueDictionary

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

SHORTEST = 8
"""Minimum length of a value in characters."""

KEPT_VALUES, KEPT_BYTES = 800, 256 * 1024
"""Maximum number and bytes of the values of one place. With more, the values seen longest ago are forgotten.

This is four times the limit of a domain (`domains.vault`), because replaced and deleted values are still searched for.
"""

OPERATORS = "of the operator"
"""The name shown in place of an operator's secret."""
NOTHING: Mapping[str, str] = {}

_HEAD = 4
"""Number of first bytes by which forms are grouped."""

_NO_UTF8 = bytes.fromhex("c0 c1 f5 f6 f7 f8 f9 fa fb fc fd fe")
"""Bytes that UTF-8 never uses."""
_NEVER = tuple(b"\xff" + bytes(pair) + _NO_UTF8[::-1] for pair in product(_NO_UTF8, repeat=2))
"""Patterns that never occur in UTF-8 text and rarely in other files, added to every search.

With few patterns, the library compares each one again at every place where it may begin, which is slow for a periodic
value in a periodic text. With this many it runs the automaton alone. No form contains a byte of them, so in a binary
file a match of one cannot hide a form.
"""

_CODING = "utf-8", "surrogatepass"


class _Automaton:
    """Finds all forms of some values at once, in time linear in the text. Immutable."""

    def __init__(self, names: Mapping[bytes, str], version: int) -> None:
        self.version = version
        self._names = list(names.values())
        self._longest = max(map(len, names))
        self._search = BytesAhoCorasick(
            [*names, *_NEVER], matchkind=MatchKind.LeftmostLongest, implementation=Implementation.ContiguousNFA
        )
        self.glance = _glance(names)
        """Quick check: whether a form may be in a text's bytes, or begin at their end."""
        self._beginnings: set[bytes] = set()
        self._by_head: dict[bytes, list[bytes]] = {}
        for form in names:
            self._beginnings.update(form[:size] for size in range(1, _HEAD))
            insort(self._by_head.setdefault(form[:_HEAD], []), form)

    def finds(self, data: bytes) -> bool:
        return bool(self._search.find_matches_as_indexes(data))

    def replace(self, text: str, *, named: bool) -> str:
        """Return the text with each form replaced by a mark, which contains its name if ``named``."""
        data = text.encode(*_CODING)
        redacted = self.replace_bytes(data, named=named)
        return text if redacted is data else redacted.decode(*_CODING)

    def replace_bytes(self, data: bytes, *, named: bool) -> bytes:
        """Return the data with each form replaced by a mark. Without a form, the same object."""
        matches = self._search.find_matches_as_indexes(data) if self.glance(data) else ()
        return self._join(data, matches, len(data), named=named) if matches else data

    def split(self, text: str) -> tuple[str, str]:
        """Return the part that may be sent now, redacted, and the rest: the longest end that begins a longer form."""
        data = text.encode(*_CODING)
        if not self.glance(data):
            return text, ""
        safe = self._safe(data, 0)
        if safe == 0:  # the whole text may be the beginning of a value
            return "", text
        matches: list[tuple[int, int, int]] = []
        for match in self._search.find_matches_as_indexes(data):
            if match[1] >= safe:
                break  # it lies in the part that is held back
            matches.append(match)
            if match[2] > safe:  # the apparent beginning is part of a match
                safe = self._safe(data, match[2])
        if not matches and safe == len(data):
            return text, ""
        return self._join(data, matches, safe, named=True).decode(*_CODING), data[safe:].decode(*_CODING)

    def _join(self, data: bytes, matches: Iterable[tuple[int, int, int]], end: int, *, named: bool) -> bytes:
        parts: list[bytes] = []
        at = 0
        for number, start, stop in matches:
            if number >= len(self._names):  # a pattern of `_NEVER`, which a binary file may hold after all
                continue
            mark = f"[secret {self._names[number]}]" if named else "[secret]"
            parts += data[at:start], mark.encode(*_CODING)
            at = stop
        return b"".join([*parts, data[at:end]])

    def _safe(self, data: bytes, at: int) -> int:
        """Return the index from which the data is the beginning of a longer form; the length if there is none.

        Over all pieces of a text, each index is rejected at most once: the text before the returned one was already
        sent.
        """
        end, by_head = len(data), self._by_head
        first = max(at, end - self._longest + 1)
        for start in range(first, end - _HEAD + 1):  # runs for each byte of a streamed answer
            if (head := data[start : start + _HEAD]) in by_head:
                forms, rest = by_head[head], data[start:]
                after = bisect_right(forms, rest)  # all longer forms that begin with it follow it
                if after < len(forms) and forms[after].startswith(rest):
                    return start
        for start in range(max(first, end - _HEAD + 1), end):
            if data[start:] in self._beginnings:
                return start
        return end


def _glance(forms: Collection[bytes]) -> Callable[[bytes], re.Match[bytes] | None]:
    """Return a function that recognizes most data that neither contain a form nor end with the beginning of one.

    The function checks each of the first bytes independently. This gives false positives, but is much faster.
    """
    pattern = b""
    for place in reversed(range(_HEAD)):
        leading = b"".join(re.escape(bytes([byte])) for byte in sorted({form[place] for form in forms}))
        pattern = b"[%s]" % leading + (rb"(?:\Z|%s)" % pattern if pattern else b"")
    return re.compile(pattern, re.DOTALL).search


class Redaction:
    """The values that are searched for in one place.

    ``parts``: redactions whose present values are copied. ``kept``: a redaction whose values are copied and never
    forgotten.
    """

    def __init__(self, parts: Iterable["Redaction"] = (), kept: "Redaction | None" = None) -> None:
        self._values: dict[str, tuple[str, tuple[bytes, ...]]] = {}
        """Name and forms of each value, the most recently seen at the end."""
        self._size = 0
        self._version = 0
        self._automaton: _Automaton | None = None
        self._kept = frozenset(kept._values if kept else ())
        for part in (*([kept] if kept else []), *parts):
            for value, (name, _) in part._values.items():
                self.add(name, value)

    @property
    def idle(self) -> bool:
        """Whether no value is known yet."""
        return not self._values

    @property
    def version(self) -> int:
        """Version of the set of values; changes with the set."""
        return self._version

    def add(self, name: str, value: str) -> None:
        """Search for a value from now on, in plain form and in the usual encodings."""
        names = self._values.pop(value, None)
        if names is not None:  # the common case: each turn adds its secrets again
            self._values[value] = names
            return
        forms = tuple(
            form.encode(*_CODING)
            for form in dict.fromkeys(form for part in _parts(value) for form in _forms(part))
            if len(form) >= SHORTEST
        )
        if not forms:
            return
        self._values[value] = name, forms
        self._size += len(value)
        most = KEPT_VALUES + len(self._kept)
        while len(self._values) > len(self._kept) + 1 and (len(self._values) > most or self._size > KEPT_BYTES):
            oldest = next(stored for stored in self._values if stored not in self._kept)
            del self._values[oldest]
            self._size -= len(oldest)
        self._version += 1

    def __call__(self, text: str) -> str:
        """Return the text without any known value."""
        return self._current().replace(text, named=True) if self._values else text

    def redact_bytes(self, data: bytes) -> bytes:
        """Return a file's bytes without the UTF-8 of any known value. All other bytes stay, also in binary formats."""
        return self._current().replace_bytes(data, named=True) if self._values else data

    def without_names(self, text: str) -> str:
        """Return the text without any known value, for readers who may not learn the secret's name."""
        return self._current().replace(text, named=False) if self._values else text

    def _current(self) -> _Automaton:
        automaton, version = self._automaton, self._version
        if automaton is None or automaton.version != version:
            names: dict[bytes, str] = {}
            for name, forms in list(self._values.values()):  # logs come from any thread
                for form in forms:
                    names.setdefault(form, name)
            automaton = self._automaton = _Automaton(names, version)
        return automaton

    def is_clear(self, text: str) -> bool:
        """Return whether a quick check shows that a text neither holds a value nor ends with the start of one."""
        automaton = self._automaton
        if automaton is None or automaton.version != self._version:  # as `_current`, without its call for each delta
            if not self._values:
                return True
            automaton = self._current()
        return not automaton.glance(text.encode("utf-8", "surrogatepass"))

    def split(self, text: str) -> tuple[str, str]:
        """Return the part of a text's beginning that may be sent now, redacted, and the rest, unchanged.

        The rest may be the beginning of a value whose end has not arrived yet.
        """
        return self._current().split(text) if self._values else (text, "")

    def json(self, value: Any) -> Any:
        """Return a JSON value with every string redacted; the names of members are structure, and are kept."""
        return _change_strings(value, self) if self._values else value

    def is_clear_json(self, data: bytes) -> bool:
        """Return whether the bytes of a JSON value show that `json` would not change it; true for most values.

        As long as nothing in the bytes is escaped, they contain each string literally.
        """
        return not self._values or not (b"\\" in data or self._current().finds(data))

    def members(self, value: Any) -> Any:
        """Return a JSON value redacted as by `json`, with the names of members too: a model chose them."""
        if isinstance(value, Mapping):
            return {self(key): self.members(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.members(item) for item in value]
        return self.json(value)

    def found_in(self, value: Any) -> bool:
        """Return whether a string of a JSON value holds a known value."""
        if not self._values:
            return False
        if isinstance(value, str):
            return self._current().finds(value.encode(*_CODING))
        if isinstance(value, Mapping):
            return any(self.found_in(key) or self.found_in(item) for key, item in value.items())
        return isinstance(value, list | tuple) and any(map(self.found_in, value))


class Nameless:
    """Redacts the values of several places, for a reader who may not learn the secrets' names."""

    def __init__(self, parts: Iterable[Redaction]) -> None:
        self._parts = tuple(parts)

    def __call__(self, text: str) -> str:
        """Return the text without any value of these places."""
        for part in self._parts:
            text = part.without_names(text)
        return text

    def json(self, value: Any) -> Any:
        """Return a JSON value without these values; see `Redaction.json`."""
        return _change_strings(value, self) if any(not part.idle for part in self._parts) else value


class Redactor:
    """All secret values this process has seen, by domain. One per process.

    A replaced or deleted secret is still secret, and a server started with it may still print it.

    Calling the object redacts texts that belong to no domain and are for operators (logs, audit rows): all values,
    without names. ``own``: the operator's values by their source. They are searched for everywhere, since no domain may
    know them: only a thief can have written one. Their names are never shown.
    """

    def __init__(self, own: Mapping[str, str] = NOTHING) -> None:
        self._own = Redaction()
        for value in own.values():
            self._own.add(OPERATORS, value)
        self._domains: WeakValueDictionary[str, Redaction] = WeakValueDictionary()
        self._kept: dict[Redaction, None] = {} if self._own.idle else {self._own: None}
        """Redactions that know a value; others live only as long as their users hold them."""

    def __call__(self, text: str) -> str:
        """Return the text without the values of any domain."""
        return Nameless(self._kept)(text)

    def json(self, value: Any) -> Any:
        """Return a JSON value without the values of any domain; see `Redaction.json`."""
        return Nameless(self._kept).json(value)

    def of(self, domain_id: str) -> Redaction:
        """Return the redaction for everything in a domain, which also includes values that are added later."""
        redaction = self._domains.get(domain_id)
        if redaction is None:
            redaction = self._domains[domain_id] = Redaction(kept=self._own)
        return redaction

    def among(self, domain_ids: Iterable[str]) -> Nameless:
        """Return the redaction of texts outside these domains, for a reader who may see all of the domains."""
        return Nameless(map(self.of, domain_ids))

    def add(self, domain_id: str, name: str, value: str) -> None:
        """Search for a value of a domain from now on."""
        domain = self.of(domain_id)
        domain.add(name, value)
        self._kept[domain] = None

    @contextmanager
    def trying(self, domain_id: str, values: Mapping[str, str]) -> Iterator[Redaction]:
        """Yield the redaction for a trial in a domain. Its ``values`` apply to the trial and to logs while it runs.

        They do not apply to the domain: otherwise any admin who tries an entry could censor the domain until the
        process ends.
        """
        trial = Redaction([self.of(domain_id)], kept=self._own)
        for name, value in values.items():
            trial.add(name, value)
        self._kept[trial] = None
        try:
            yield trial
        finally:
            self._kept.pop(trial, None)


class Pieces:
    """Redacts a text that arrives in pieces: a value is found even if it is split between pieces."""

    def __init__(self, redact: Redaction) -> None:
        self._redact = redact
        self._held = ""

    def passes(self, piece: str) -> bool:
        """Return whether the next piece may be sent unchanged, and nothing has to be remembered."""
        return not self._held and self._redact.is_clear(piece)

    def take(self, piece: str) -> str:
        """Take the next piece and return the text that may be sent now, possibly none."""
        if self.passes(piece):
            return piece
        ready, self._held = self._redact.split(self._held + piece)
        return ready

    def end(self) -> str:
        """Return the text that is still held."""
        tail, self._held = self._held, ""
        return self._redact(tail) if tail else ""


def _parts(value: str) -> Iterator[str]:
    yield value
    if value.strip() != value:
        yield value.strip()
    scheme, _, rest = value.strip().partition(" ")
    if rest and scheme.lower() in ("bearer", "basic", "token"):
        yield rest.strip()


def _forms(value: str) -> set[str]:
    """Return a value in all forms that are searched for.

    Plain; as in HTML; as in JSON of either, also JSON within JSON, and as in Python; as in URLs, with any set of
    unescaped characters; its bytes in hexadecimal digits (together, or with spaces, colons or hyphens between the
    bytes) and in base64, at any position among other bytes.
    """
    data = value.encode(*_CODING)
    page, attribute = escape(value, quote=False), escape(value)
    pages = {value, page, page.replace('"', "&quot;"), attribute, attribute.replace("&#x27;", "&#39;")}
    quoted = {json.dumps(form, ensure_ascii=plain)[1:-1] for form in pages for plain in (True, False)}
    quoted |= {form.replace("/", "\\/") for form in quoted}
    within = {json.dumps(form, ensure_ascii=plain)[1:-1] for form in quoted for plain in (True, False)}
    urls = {quote(data, safe=safe) for safe in ("", "/", "!'()*")} | {quote_plus(data)}
    lower = {"%".join([head, *(f"{part[:2].lower()}{part[2:]}" for part in rest)]) for head, *rest in _by_percent(urls)}
    plain = base64.b64encode(data).decode()
    encoded = {plain, plain.rstrip("="), *(_align(data, before) for before in range(3))}
    encoded |= {form.replace("+", "-").replace("/", "_") for form in encoded}
    digits = {data.hex(separator) for separator in (" ", ":", "-")} | {data.hex()}
    digits |= {form.upper() for form in digits}
    return {*pages, repr(value)[1:-1], *quoted, *within, *urls, *lower, *encoded, *digits}


def _by_percent(urls: Iterable[str]) -> Iterator[list[str]]:
    return (url.split("%") for url in urls)


def _align(data: bytes, before: int) -> str:
    """Return the base64 of data at an offset of ``before`` bytes: the characters that the data alone determines."""
    encoded = base64.b64encode(bytes(before) + data).decode().rstrip("=")
    undecided = 1 if (before + len(data)) % 3 else 0
    return encoded[before + 1 if before else 0 : len(encoded) - undecided]


_NUMBERS = (int, float)


def _change_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if value is None or isinstance(value, _NUMBERS):  # most other values; the check for a mapping takes longer
        return value
    if isinstance(value, Mapping):
        return {key: _change_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_change_strings(item, change) for item in value]
    return value


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
    """Redact the output of the root logger's handlers while the block runs; records of all loggers pass them.

    The filter is on the handlers, not on the loggers: a logger's filter does not see the records of its children.
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
