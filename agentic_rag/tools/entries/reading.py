"""Reading ``mcpServers`` as people have it: tolerant in, strict out. Pure.

Owns the roots, the names, and from one pasted entry to its normalised form. Each field's own rules are in
`reading_fields`. Starts nothing, looks nothing up, and raises nothing but its two errors, whatever the JSON is.

Shapes: Claude Desktop, Claude Code, Cursor, Cline, VS Code, LibreChat, and their close relatives. The normalised
entry is ``{type, command, args, env}`` or ``{type, url, headers}``, with ``enabled, identity, timeoutMs?, tools?``.
A value of ``env`` or ``headers`` is one of

- text: placeholders only, no secret in it;
- ``{"value": text, "secret": false}``: may be shown;
- ``{"value": text, "secret": true}``: to be sealed by whoever stores it;
- ``{"set": true, "last4"?}``: the mask that a GET showed; the stored value stays.

Reading a normalised document changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentic_rag.errors import InvalidInput, ServerReserved
from agentic_rag.tools.entries import fields
from agentic_rag.tools.entries.fields import Note, Notes
from agentic_rag.tools.entries.names import fitting, is_reserved

__all__ = ["Note", "Reading", "read_servers"]

MAX_SERVERS = 100

_ROOTS = ("mcpServers", "mcp_servers", "servers")
_TELLING = ("command", "cmd", "url", "serverUrl", "httpUrl", "type", "transport", "transportType")
"""Keys by whose text a mapping is known for an entry, not a map of entries."""

_ALIASES = {
    "transport": "type",
    "transportType": "type",
    "cmd": "command",
    "envs": "env",
    "environment": "env",
    "serverUrl": "url",
    "httpUrl": "url",
    "timeout_ms": "timeoutMs",
}
_KNOWN = frozenset({"type", "command", "args", "env", "url", "headers", "enabled", "identity", "timeoutMs", "tools"})
_SHOWN = {"origin": "user", "readOnly": False}
"""What a GET adds to a user's entry; it may come back."""

_NOTHING: Mapping[str, Any] = {}

_ADVICE = {
    "autoApprove": "calls are allowed by the domain's toolPolicy",
    "alwaysAllow": "calls are allowed by the domain's toolPolicy",
    "trust": "calls are allowed by the domain's toolPolicy",
    "envFile": "files of variables are not read; set secrets of the domain",
    "cwd": "a server runs in a private folder",
    "inputs": "nobody is asked at start; use ${NAME} and set secrets of the domain",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """``servers`` by name, normalised; what was changed to get there; what was not used; names sent as ``null``."""

    servers: dict[str, dict[str, Any]] = field(repr=False)
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    deleted: frozenset[str] = frozenset()


def read_servers(
    document: object, path: str = "mcpServers", *, ours: Mapping[str, Any] = _NOTHING, deletes: bool = False
) -> Reading:
    """Return the normalised servers of a document.

    ``document``: a map of entries, or one under ``mcpServers``, ``servers`` or ``mcp.servers``. ``path``: what the
    map is called in messages, whichever root it stands under. ``ours``: our own entries as a GET shows them; one that
    comes back unchanged is ignored. ``deletes``: ``null`` in place of an entry means its name.

    Raises:
        InvalidInput: names the place of what cannot be understood or may not be.
        ServerReserved: an entry has, or looks like, the name of one of ours.
    """
    notes = Notes()
    entries = _entries(document, path, notes)
    if len(entries) > MAX_SERVERS:
        raise InvalidInput(path, f"{len(entries)} servers; at most {MAX_SERVERS} are possible.")
    servers: dict[str, dict[str, Any]] = {}
    taken: dict[str, str] = {}
    deleted: set[str] = set()
    for given, entry in entries.items():
        if given in ours and is_reserved(given) and fields.same(entry, ours[given]):
            continue
        name = server_name(given, path)
        if entry is None and deletes:
            deleted.add(name)
            continue
        place = f"{path}.{fields.shown(given)}"
        other = taken.get(name.casefold())
        if other is not None:
            raise InvalidInput(place, f"another server is stored as {other!r} already; choose another name.")
        if name != given:
            notes.change(place, f"stored as {name!r}.")
        taken[name.casefold()] = name
        servers[name] = _entry(entry, place, notes)
    return Reading(servers, tuple(notes.changes), tuple(notes.warnings), frozenset(deleted))


def server_name(given: str, path: str) -> str:
    """Return the name under which an entry is stored.

    Raises:
        InvalidInput: nothing of it can be used.
        ServerReserved: it is, or looks like, one of ours.
    """
    place = f"{path}.{fields.shown(given)}"
    name = fitting(given)
    if is_reserved(given) or is_reserved(name):
        raise ServerReserved(place)
    if not name:
        raise InvalidInput(place, "a server's name has letters, digits, - and _, at most 32.")
    return name


def _entries(document: object, path: str, notes: Notes) -> Mapping[str, object]:
    """Return the map of entries, out of what it is wrapped in; what stands beside it is warned of."""
    entries = fields.mapping(document, path)
    inner = entries.get("mcp")
    if isinstance(inner, Mapping) and not _is_entry(inner) and any(_is_root(inner, root) for root in _ROOTS):
        _beside(entries, "mcp", path, notes)
        return _entries(inner, f"{path}.mcp", notes)
    for root in _ROOTS:
        if _is_root(entries, root):
            _beside(entries, root, path, notes)
            return fields.mapping(entries[root], path)
    return entries


def _is_root(entries: Mapping[str, object], root: str) -> bool:
    inner = entries.get(root)
    return isinstance(inner, Mapping) and not _is_entry(inner)


def _is_entry(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(value.get(key), str) for key in _TELLING)


def _beside(entries: Mapping[str, object], root: str, path: str, notes: Notes) -> None:
    for key in entries:
        if key != root:
            notes.unused(f"{path}.{fields.shown(key)}", _ADVICE.get(key, ""))


def _entry(value: object, path: str, notes: Notes) -> dict[str, Any]:
    given = _renamed(fields.mapping(value, path), path, notes)
    kind = fields.kind(given, path, notes)
    entry: dict[str, Any] = {"type": kind}
    if kind == "stdio":
        entry["command"], entry["args"] = fields.command_line(given, path, notes)
        entry["env"] = fields.pairs(given.get("env"), f"{path}.env", notes, header=False)
        _not_used(given, ("url", "headers"), path, notes)
    else:
        entry["url"] = fields.url(given.get("url"), f"{path}.url", notes)
        entry["headers"] = fields.pairs(given.get("headers"), f"{path}.headers", notes, header=True)
        _not_used(given, ("command", "args", "env"), path, notes)
    entry["enabled"] = fields.enabled(given, path, notes)
    entry["identity"] = fields.identity(given.get("identity"), f"{path}.identity")
    timeout = fields.timeout(given, path, notes)
    if timeout is not None:
        entry["timeoutMs"] = timeout
    tools = fields.tools(given, path, notes)
    if tools is not None:
        entry["tools"] = tools
    return entry


def _renamed(given: Mapping[str, object], path: str, notes: Notes) -> dict[str, object]:
    """Return an entry under our own keys; what is under no key we know is warned of and left out."""
    entry: dict[str, object] = {}
    for key, value in given.items():
        name = _ALIASES.get(key, key)
        place = f"{path}.{fields.shown(key)}"
        if name in _KNOWN or name in fields.OTHER_KEYS:
            if name in entry and not fields.same(entry[name], value):
                raise InvalidInput(place, f"{name} is given twice, with different values.")
            if name != key:
                notes.change(place, f"read as {name}.")
            entry[name] = value
        elif not (key in _SHOWN and fields.same(value, _SHOWN[key])):
            notes.unused(place, _ADVICE.get(key, ""))
    return entry


def _not_used(given: Mapping[str, object], keys: tuple[str, ...], path: str, notes: Notes) -> None:
    for key in keys:
        value = given.get(key)
        if value in (None, "", [], {}):
            continue
        if key in ("url", "command"):
            raise InvalidInput(f"{path}.{key}", "an entry has either a command or a url, not both.")
        notes.unused(f"{path}.{key}", "this type of server has none")
