"""Placeholders in MCP entries: ``${VAR}`` and ``${VAR:-default}``. Pure.

Owns their syntax, the error texts for all other kinds that people paste, and their replacement. Knows no variable and
no secret: the caller looks values up.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentic_rag.base.errors import PlaceholderUnset

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""Pattern for the name of a variable or secret."""

_OURS = re.compile(r"\$\{(" + NAME + r")(?::-([^{}]*))?\}")
_ANY = re.compile(r"\$\{|\{\{|\{(?=(?:env|file|input|secret|secrets):)")
_FOREIGN = re.compile(r"\$?\{{1,3}\s*([\w .:-]{0,60}[A-Za-z0-9])\s*\}{1,3}", re.ASCII)
_SCHEME = re.compile(r"\s*(?:bearer|basic|token|apikey|api-key|key|digest)?[\s:=,;/@._-]*", re.IGNORECASE)
_PLAIN = re.compile(
    r"\$?\{(?:input|env):[A-Za-z_][A-Za-z0-9_.-]{0,63}\}|\$?\{\{ ?(?:secrets\.)?[A-Z_][A-Z0-9_]{0,63} ?\}\}", re.ASCII
)
"""Other clients' placeholders. A value that consists of just one may be quoted in messages."""

_BEHIND_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\\]+[/?][^#]*\Z")
_RENAMED = re.compile(r"\$\{(input|env):([A-Za-z_][A-Za-z0-9_.-]{0,63})\}")
"""``${input:id}`` of VS Code and ``${env:NAME}`` of Cursor and Windsurf."""

_KINDS = (
    "'${', '{{' and '{env:' begin a placeholder; the only kinds are ${VAR} and ${VAR:-default}. "
    "A value that holds such characters is set as a secret of the domain."
)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One ``${name}``; ``default`` None: it must be set."""

    name: str
    default: str | None = None


def find_problem(text: str, *, secret: bool = False) -> str:
    """Return the problem of the first unknown placeholder, and the one to use instead; empty if there is none.

    ``secret``: the text may hold a secret. Then nothing of it is quoted, unless all of it is another client's
    placeholder.
    """
    rest = _OURS.sub("\0", text)  # a mark that joins nothing: the remaining text must not become a placeholder
    first = _ANY.search(rest)
    if first is None:
        return ""
    if secret and not stands_alone(text):
        return _KINDS
    return _advice(rest[first.start() :])


def secret_name(text: str) -> str:
    """Return the variable or secret name that replaces another client's input or variable."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:60] or "VALUE"
    return f"VAR_{name}" if name[0].isdigit() else name


def rename_foreign(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text with ``${input:id}`` and ``${env:NAME}`` written as ``${NAME}``, and their words (``input:id``).

    The text around a placeholder is kept. The text never gets longer.
    """
    if "${" not in text:
        return text, ()
    names = tuple(f"{match[1]}:{match[2]}" for match in _RENAMED.finditer(text))
    return (_RENAMED.sub(lambda match: f"${{{secret_name(match[2])}}}", text), names) if names else (text, ())


def stands_alone(text: str) -> bool:
    """Return whether a text is just another client's placeholder, perhaps after ``Bearer``, and may be quoted."""
    scheme = _SCHEME.match(text)
    return _PLAIN.fullmatch(text, scheme.end() if scheme else 0) is not None


def find_placeholders(text: str) -> Iterator[Placeholder]:
    """Yield the placeholders of a text that has no problem (see `find_problem`)."""
    for match in _OURS.finditer(text):
        yield Placeholder(match[1], match[2])


def expand(text: str, value_of: Callable[[str], str | None]) -> str:
    """Replace every placeholder in a text by its value. A value that looks like a placeholder is not replaced again.

    Raises:
        PlaceholderUnset: ``value_of`` returned None for a placeholder without a default.
    """

    def replacement(match: re.Match[str]) -> str:
        value = value_of(match[1])
        if value is None and match[2] is None:
            raise PlaceholderUnset(match[1])
        return match[2] if value is None else value

    return _OURS.sub(replacement, text)


def split_placeholders(text: str) -> Iterator[str | Placeholder]:
    """Yield the parts of a text in order: the texts around placeholders, and the placeholders."""
    at = 0
    for match in _OURS.finditer(text):
        yield text[at : match.start()]
        yield Placeholder(match[1], match[2])
        at = match.end()
    yield text[at:]


def is_behind_host(beginning: str) -> bool:
    """Return whether an address that begins so has its host already, so that more text cannot change the server."""
    return _BEHIND_HOST.match(beginning) is not None


def names_before_path(address: str) -> frozenset[str]:
    """Return the names of placeholders in an address's scheme or host, or behind its ``#``."""
    names: set[str] = set()
    prefix = "" if "://" in address.partition("${")[0] else "https://"  # the first placeholder is the host or the base
    for part in split_placeholders(address):
        if isinstance(part, Placeholder):
            if not is_behind_host(prefix):
                names.add(part.name)
            part = "x"
        prefix += part
    return frozenset(names)


def refers_only(text: str) -> bool:
    """Return whether a text has only placeholders without defaults, perhaps after ``Bearer``: it holds no secret."""
    if not text or any(placeholder.default for placeholder in find_placeholders(text)) or _OURS.search(text) is None:
        return False
    return _SCHEME.fullmatch(_OURS.sub("", text)) is not None


def _advice(rest: str) -> str:
    """Return the message for a placeholder that begins here; it is quoted only if it clearly is one."""
    match = _FOREIGN.match(rest)
    if match is None:
        return _KINDS
    parts = [part for part in re.split(r"[:.]", match[1]) if part.strip()]
    name = re.sub(r"[^A-Za-z0-9]+", "_", parts[-1]).strip("_").upper()
    if name[:1].isdigit():
        name = f"VAR_{name}"
    return (
        f"the placeholder {match[0]!r} is not known; use ${{{name}}} and set {name} as a variable or a secret "
        "of the domain."
    )
