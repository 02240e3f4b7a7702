"""Reads pasted ``mcpServers`` documents: accepts many shapes, returns `McpEntry`. Pure.

Owns the roots, the names, and the rules of each field: types, units, and that plain secrets are allowed in ``env`` and
``headers`` only. `collect_entries` reads each entry separately and collects all problems; `read_entries` raises the
first one. Neither starts anything or looks anything up, for any JSON. No note and no error quotes a value of ``env`` or
``headers``.

Shapes: Claude Desktop, Claude Code, Cursor, Cline, VS Code, Windsurf, Zed, LibreChat, and their close relatives: a map
of entries, a list of entries with names, or a single entry. A value of ``env`` or ``headers`` is one of

- text: placeholders only, no secret in it (`Template`);
- ``{"value": text, "secret": false}``: may be shown (`PlainValue`);
- ``{"value": text, "secret": true}``, or any other text: to be sealed before it is stored (`SecretValue`);
- ``{"set": true, "last4"?}``: the mask from a GET; the stored value is kept (`SealedValue`).

Reading the output of `McpEntry.to_json` changes nothing.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from agentic_rag.base.errors import InvalidInput, ServerReserved, raise_first
from agentic_rag.tools.entries.entry import (
    OAUTH_SECRETS,
    EntryOAuthClient,
    HttpKind,
    HttpTarget,
    Identity,
    McpEntry,
    OAuthGrant,
    PlainValue,
    SealedValue,
    SecretValue,
    StdioTarget,
    Target,
    Template,
    Value,
)
from agentic_rag.tools.entries.json_text import RepeatedKeys
from agentic_rag.tools.entries.names import fit_name, is_reserved
from agentic_rag.tools.entries.placeholders import (
    expand,
    find_placeholders,
    find_problem,
    refers_only,
    rename_foreign,
    secret_name,
    stands_alone,
)
from agentic_rag.tools.entries.server_json import is_server_json, read_server_json

Problem = InvalidInput | ServerReserved
"""A problem with one value of a pasted document."""

Pasted = Mapping[str, object]
"""A pasted JSON object: its values can have any type."""

MAX_SERVERS = 100
MAX_TEXT = 8_000
MAX_ITEMS = 100
MAX_TIMEOUT_MS = 3_600_000
SECONDS_BELOW = 1000
"""A bare ``timeout`` below this is read as seconds: no client waits less than a second, none 1 000 s."""

_ROOTS = ("mcpServers", "mcp_servers", "servers", "mcp.servers", "amp.mcpServers", "context_servers")
_TELLING = ("command", "cmd", "url", "serverUrl", "httpUrl", "type", "transport", "transportType")
"""Keys whose text value shows that a mapping is an entry, not a map of entries."""

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
_KNOWN = frozenset(
    {
        "type",
        "command",
        "args",
        "env",
        "url",
        "headers",
        "oauth",
        "enabled",
        "identity",
        "timeoutMs",
        "tools",
        "stateful",
    }
)
_OTHER_FORMS = frozenset(
    {"disabled", "timeout", "timeoutSeconds", "includeTools", "excludeTools", "allowedTools", "disabledTools"}
)
"""Keys that are understood but not stored under their name."""
_SHOWN = {"origin": "user", "readOnly": False}
"""Members that a GET adds to a user's entry; a client may send them back."""

_ADVICE = {
    "autoApprove": "calls are allowed by the domain's toolPolicy",
    "alwaysAllow": "calls are allowed by the domain's toolPolicy",
    "trust": "calls are allowed by the domain's toolPolicy",
    "envFile": "files of variables are not read; write each variable into env as ${NAME}, and set NAME as a secret of "
    "the domain",
    "cwd": "a server runs in a private folder",
}

_KINDS = {"stdio": "stdio", "local": "stdio", "http": "http", "streamablehttp": "http", "remote": "http", "sse": "sse"}
"""Kinds of servers by their possible names, in lower case without hyphens, underscores and spaces."""
_OAUTH = ("clientId", *OAUTH_SECRETS, "scopes", "issuer", "grant")
_SCOPE = re.compile(r"[\x21\x23-\x5B\x5D-\x7E]{1,200}")
"""Scope token, RFC 6749, 3.3."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_SECRET_WORD = r"(?:api[-_]?key|apikey|access[-_]?key|secret[-_]?key|token|secret|password|passwd|pwd|credentials?)"
_SECRET_FLAG = re.compile(rf"--?(?:[a-z0-9]+[-_])*{_SECRET_WORD}(=.+)?", re.IGNORECASE | re.DOTALL)
_SECRET_TEXT = re.compile(
    rf"(?:[a-z0-9]+[-_.])*{_SECRET_WORD}\s*=.+"  # NAME=value
    r"|(?:.*\s)?(?:proxy-)?authorization\s*[:=].+|x-api-key\s*:.+"
    r"|(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abps]|npm|hf|tvly|AIza|AKIA)[-_]?[A-Za-z0-9_-]{16,}",
    re.IGNORECASE | re.DOTALL,
)
_PASSWORD_IN_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
_SECRET_QUERY = re.compile(rf"(?:.*[-_.])?{_SECRET_WORD}|.*(?:apikey|accesstoken|authtoken)|key|auth", re.IGNORECASE)
_SECRET_PATH = re.compile(
    r"(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abps]|npm|hf|tvly|AIza|AKIA)[-_]?[A-Za-z0-9_-]{16,}"
)
"""A part of an address's path that can only be a key."""
_WINDOWS_PROGRAM = re.compile(r"(?:[A-Za-z]:[\\/]|\\\\)[^\"<>|?*]*[\\/]([\w.@-]+)")
_RUNNER = re.compile(r"(npx|node|uvx|uv|python3?|py|bunx?|deno|docker)(?:\.(?:exe|cmd|bat|ps1))?", re.IGNORECASE)
"""Programs with another name on Windows."""
_LINE = re.compile(r"[\w.@-]+[ \t][^\"'\\|&;<>$`]*")
"""A command with arguments in one text, without characters that a shell would interpret."""
_SAMPLE = re.compile(r"<[^<>]{1,60}>|(?:your|my)[-_ ].{1,50}|.{0,40}[-_ ]here|x{6,}|\.{3}|changeme", re.IGNORECASE)


LOOKS_SECRET = "this looks like a secret"
"""The beginning of a message about a value that no message quotes."""
_IN_URL = "Write ${NAME} in its place, and set NAME as a secret of the domain; or use headers."


@dataclass(frozen=True, slots=True)
class Note:
    """A note on the place ``path``, with ``text`` for the admin; never holds a secret."""

    path: str
    text: str


@dataclass(slots=True)
class ReadingNotes:
    """The results of a reading for an admin: changes, unused parts and problems."""

    changes: list[Note] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Record the problem that ends the block, and continue after it."""
        try:
            yield
        except (InvalidInput, ServerReserved) as exc:
            self.problems.append(exc)

    def change(self, path: str, text: str) -> None:
        self.changes.append(Note(path, text))

    def warn(self, path: str, text: str) -> None:
        self.warnings.append(Note(path, text))

    def warn_unused(self, path: str, advice: str) -> None:
        """Warn that a key is not used."""
        self.warn(path, f"this key is not used{': ' + advice if advice else ''}.")


@dataclass(frozen=True, slots=True)
class PastedEntries:
    """The entries of a document by name, the changes and warnings, and the names that were sent as ``null``."""

    entries: dict[str, McpEntry] = field(repr=False)
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    deleted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class InputField:
    """A value that VS Code asks its user for: ``${input:id}``. ``name``: of the secret that replaces it."""

    id: str
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class PastedRow:
    """One entry of a document, read separately. ``entry`` None: it has problems.

    ``key``: its name as pasted.
    ``name``: as it is stored, empty if the key is unusable.
    ``path``: its place in messages.
    ``pasted``: its untrusted value, which may contain secrets.
    """

    key: str
    name: str
    path: str
    entry: McpEntry | None = field(repr=False)
    problems: tuple[Problem, ...]
    changes: tuple[Note, ...]
    warnings: tuple[Note, ...]
    pasted: object = field(repr=False)


@dataclass(frozen=True, slots=True)
class PastedRows:
    """The rows of a document in its order, and the notes on the document as a whole."""

    rows: tuple[PastedRow, ...]
    changes: tuple[Note, ...]
    warnings: tuple[Note, ...]
    deleted: frozenset[str]
    inputs: tuple[InputField, ...]


def read_entries(
    document: object, path: str = "mcpServers", *, own: Pasted | None = None, deletes: bool = False
) -> PastedEntries:
    """Return the entries of a document; see `collect_entries`.

    Raises:
        InvalidInput: Names the place of the first invalid part, with all problems in its details.
        ServerReserved: An entry has, or looks like, the name of one of ours.
    """
    collected = collect_entries(document, path, own=own, deletes=deletes)
    raise_first([problem for row in collected.rows for problem in row.problems])
    entries = {row.name: row.entry for row in collected.rows if row.entry is not None}
    changes = [*collected.changes, *(note for row in collected.rows for note in row.changes)]
    warnings = [*collected.warnings, *(note for row in collected.rows for note in row.warnings)]
    return PastedEntries(entries, tuple(changes), tuple(warnings), collected.deleted)


def collect_entries(
    document: object, path: str = "mcpServers", *, own: Pasted | None = None, deletes: bool = False
) -> PastedRows:
    """Return the entries of a document, each with all its problems.

    Args:
        document: a map of entries, or one under ``mcpServers``, ``servers``, ``mcp.servers`` or ``context_servers``; a
            list of entries with names; a single entry; or a ``server.json`` of the MCP registry.
        path: the name of the map in messages, for any root.
        own: our own servers as a GET shows them; one that comes back unchanged is ignored.
        deletes: ``null`` in place of an entry deletes that name.

    Raises:
        InvalidInput: The document as a whole cannot be read.
    """
    notes = ReadingNotes()
    own = own or {}
    if is_server_json(document) and isinstance(document, Mapping):
        described = read_server_json(document, path)
        notes.change(path, "read as a server.json of the MCP registry.")
        for place, text in described.notes:
            notes.change(place, text)
        document = described.entries
    inputs, document = _take_inputs(document, path, notes)
    pasted, repeated = _unwrap(document, path, notes)
    if len(pasted) > MAX_SERVERS:
        raise InvalidInput(path, f"{len(pasted)} servers; at most {MAX_SERVERS} are possible.")
    rows: list[PastedRow] = []
    names_by_folded: dict[str, str] = {}
    deleted: set[str] = set()
    for key, value in pasted:
        # A GET lists our own servers too, so a client that sends its answer back sends them.
        if key in own and is_reserved(key) and _is_same(value, own[key]):
            continue
        row_notes = ReadingNotes()
        place = f"{path}.{_printable(key)}"
        name = ""
        with row_notes.attempt():
            name = read_name(key, path)
        if value is None and deletes and name:
            deleted.add(name)
            continue
        if key in repeated:
            row_notes.problems.append(InvalidInput(place, "this name is given twice; keep one of the two entries."))
        other = names_by_folded.get(name.casefold()) if name else None
        if other is not None:
            reason = f"another server is stored as {other!r} already; choose another name."
            row_notes.problems.append(InvalidInput(place, reason))
        elif name:
            names_by_folded[name.casefold()] = name
        if name and name != key:
            row_notes.change(place, f"stored as {name!r}.")
        entry = _read_entry(value, name, place, row_notes, inputs)
        problems = tuple(row_notes.problems)
        rows.append(
            PastedRow(
                key,
                name,
                place,
                None if problems else entry,
                problems,
                tuple(row_notes.changes),
                tuple(row_notes.warnings),
                value,
            )
        )
    input_fields = () if inputs is None else inputs
    return PastedRows(tuple(rows), tuple(notes.changes), tuple(notes.warnings), frozenset(deleted), tuple(input_fields))


def _read_entry(
    value: object, name: str, place: str, notes: ReadingNotes, inputs: Sequence[InputField] | None
) -> McpEntry | None:
    pasted: Pasted = {}
    before = len(notes.problems)
    with notes.attempt():
        pasted = _mapping(value, place)
    if len(notes.problems) > before:
        return None
    for key in sorted(_repeated_keys(pasted)):
        notes.problems.append(InvalidInput(f"{place}.{_printable(key)}", "this key is given twice; keep one of them."))
    return _EntryReader(_rename_keys(pasted, place, notes), place, notes, inputs).read(name)


def read_name(text: str, path: str) -> str:
    """Return the name under which an entry is stored.

    Raises:
        InvalidInput: No part of the name is usable.
        ServerReserved: The name is, or looks like, one of ours.
    """
    place = f"{path}.{_printable(text)}"
    name = fit_name(text)
    if is_reserved(text) or is_reserved(name):
        raise ServerReserved(place)
    if not name:
        raise InvalidInput(place, "a server's name has letters, digits, - and _, at most 32.")
    return name


# The document around the entries


def _take_inputs(document: object, path: str, notes: ReadingNotes) -> tuple[list[InputField] | None, object]:
    """Return the ``inputs`` of VS Code's file, None if it has none, and the document without them."""
    if not isinstance(document, Mapping) or not isinstance(document.get("inputs"), list) or _is_entry(document):
        return None, document
    # Without a root beside it, ``inputs`` is the name of a server.
    if not any(_is_root(document, root) for root in (*_ROOTS, "mcp")):
        return None, document
    items = document["inputs"]
    if len(items) > MAX_ITEMS:
        raise InvalidInput(f"{path}.inputs", f"{len(items)} items; at most {MAX_ITEMS} are possible.")
    inputs: list[InputField] = []
    for index, item in enumerate(items):
        ident = item.get("id") if isinstance(item, Mapping) else None
        if not isinstance(ident, str) or not 1 <= len(ident) <= 64:
            notes.warn(f"{path}.inputs.{index}", "this input has no id of at most 64 characters; it is not used.")
            continue
        description = item.get("description") if isinstance(item, Mapping) else None
        hint = _printable(description, 200) if isinstance(description, str) else ""
        inputs.append(InputField(ident, secret_name(ident), hint))
    return inputs, {key: value for key, value in document.items() if key != "inputs"}


def _unwrap(document: object, path: str, notes: ReadingNotes) -> tuple[list[tuple[str, object]], frozenset[str]]:
    """Return the entries with their names, and the repeated names; warn of keys next to the map."""
    if isinstance(document, list | tuple) and document and all(_is_entry(item) for item in document):
        return _named_items(document, path, notes), frozenset()
    outer = _mapping(document, path)
    # The settings of VS Code have their servers two levels down: ``{"mcp": {"servers": {…}}}``.
    inner = outer.get("mcp")
    if isinstance(inner, Mapping) and not _is_entry(inner) and any(_is_root(inner, root) for root in _ROOTS):
        _warn_beside(outer, "mcp", path, notes)
        return _unwrap(inner, f"{path}.mcp", notes)
    for root in _ROOTS:
        if _is_root(outer, root):
            _warn_beside(outer, root, path, notes)
            inside = outer[root]
            if isinstance(inside, list):
                return _named_items(inside, path, notes), frozenset()
            return list(_mapping(inside, path).items()), _repeated_keys(inside)
    if _is_single_entry(outer):
        name = _name_of(outer, 1)
        notes.change(path, f"read as one server, {name!r}.")
        return [(name, _without_name(outer))], frozenset()
    return list(outer.items()), _repeated_keys(outer)


def _named_items(entries: Sequence[object], path: str, notes: ReadingNotes) -> list[tuple[str, object]]:
    notes.change(path, "a list of servers became a map.")
    return [(_name_of(entry, index), _without_name(entry)) for index, entry in enumerate(entries, 1)]


def _repeated_keys(value: object) -> frozenset[str]:
    return value.repeated if isinstance(value, RepeatedKeys) else frozenset()


def _is_root(outer: Pasted, root: str) -> bool:
    inner = outer.get(root)
    if isinstance(inner, list):
        return all(_is_entry(item) for item in inner)
    return isinstance(inner, Mapping) and not _is_entry(inner)


def _is_entry(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(value.get(key), str) for key in _TELLING)


def _is_single_entry(outer: Pasted) -> bool:
    """Return whether a document is an entry itself, and not a map of entries."""
    says_what = any(isinstance(outer.get(key), str) for key in ("command", "cmd", "url", "serverUrl", "httpUrl"))
    return says_what and not any(_is_entry(value) for value in outer.values())


def _name_of(entry: object, number: int) -> str:
    """Return a name for an unnamed entry: its own, its package's, its host's, or a number."""
    assert isinstance(entry, Mapping)
    for key in ("name", "id", "title"):
        text = entry.get(key)
        if isinstance(text, str) and fit_name(text[:200]):
            return text[:200]
    args = entry.get("args")
    words = [arg for arg in args if isinstance(arg, str)] if isinstance(args, list | tuple) else []
    package = next((word for word in words if word not in ("/c", "/C", "npx", "uvx") and word[:1] != "-"), "")
    address = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if isinstance(entry.get(key), str)), "")
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        host = ""
    # Removes the version of ``@scope/package@1.2``, and keeps the ``@`` of the scope.
    name = host.replace(".", "-") or re.sub(r"(?<=.)@[^/]*$", "", package[:200])
    return name if fit_name(name) and not is_reserved(name) else f"server-{number}"


def _without_name(entry: object) -> Pasted:
    assert isinstance(entry, Mapping)
    return {key: value for key, value in entry.items() if key not in ("name", "id", "title")}


def _warn_beside(outer: Pasted, root: str, path: str, notes: ReadingNotes) -> None:
    for key in outer:
        if key != root:
            notes.warn_unused(f"{path}.{_printable(key)}", _ADVICE.get(key, ""))


def _rename_keys(pasted: Pasted, path: str, notes: ReadingNotes) -> Pasted:
    """Return an entry with our own keys; unknown keys get a warning and are left out."""
    entry: dict[str, object] = {}
    for key, value in pasted.items():
        name = _ALIASES.get(key, key)
        place = f"{path}.{_printable(key)}"
        if name in _KNOWN or name in _OTHER_FORMS:
            if name in entry and not _is_same(entry[name], value):
                notes.problems.append(InvalidInput(place, f"{name} is given twice, with different values."))
                continue
            if name != key:
                notes.change(place, f"read as {name}.")
            entry[name] = value
        elif not (key in _SHOWN and _is_same(value, _SHOWN[key])):
            notes.warn_unused(place, _ADVICE.get(key, ""))
    command = entry.get("command")
    if isinstance(command, Mapping) and isinstance(command.get("path"), str):  # Zed
        notes.change(f"{path}.command", "its path, args and env became keys of the entry.")
        entry["command"] = command["path"]
        for key in ("args", "env"):
            if command.get(key) is not None:
                entry.setdefault(key, command[key])
    return entry


# One entry


@dataclass(frozen=True, slots=True)
class _EntryReader:
    """Reads one entry, under our own keys. ``path``: the entry's place. ``inputs``: of the document, None: it has none.

    Each part is read separately: its problems go to ``notes.problems``.
    """

    pasted: Pasted
    path: str
    notes: ReadingNotes
    inputs: Sequence[InputField] | None = None

    def read(self, name: str) -> McpEntry | None:
        """Return the entry, None if it has no target. It counts only if ``notes`` has no problems."""
        target = self._target()
        enabled, identity, timeout, stateful = True, Identity.DOMAIN, None, None
        include: tuple[str, ...] = ()
        exclude: tuple[str, ...] = ()
        with self.notes.attempt():
            enabled = self._read_enabled()
        with self.notes.attempt():
            identity = self._identity()
        with self.notes.attempt():
            timeout = self._timeout()
        with self.notes.attempt():
            include, exclude = self._tools()
        with self.notes.attempt():
            stateful = self._stateful(target)
        if target is None:
            return None
        return McpEntry(name, target, enabled, identity, timeout, include, exclude, stateful)

    def _target(self) -> Target | None:
        kind, command, address, oauth = "", "", "", None
        args: list[str] = []
        with self.notes.attempt():
            kind = self._kind()
        # After an unusable type the other keys are still read, so that all problems are reported together.
        kind = kind or ("stdio" if self.pasted.get("command") else "")
        if kind == "stdio":
            with self.notes.attempt():
                command, args = self._command_line()
            env = self._values("env")
            with self.notes.attempt():
                self._warn_other_type("url", "headers", "oauth")
            return StdioTarget(command, tuple(args), env)
        if not kind and not self.pasted.get("url"):
            return None
        with self.notes.attempt():
            address = self._url()
        headers = self._values("headers")
        with self.notes.attempt():
            self._warn_other_type("command", "args", "env")
        with self.notes.attempt():
            oauth = self._oauth()
        return HttpTarget(address, headers, HttpKind(kind or HttpKind.HTTP), oauth)

    def _text(self, value: object, path: str, *, secret: bool = False) -> str:
        """Return a text as `_read_text` does, with the placeholders of VS Code and Cursor written as ours."""
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            renamed, names = rename_foreign(value)
            if names:
                quotable = not secret or stands_alone(value)  # the text around a placeholder may be a secret
                for name in dict.fromkeys(names):
                    kind, _, ident = name.partition(":")
                    placeholder = f"${{{secret_name(ident)}}}"
                    self.notes.change(
                        path, f"${{{name}}} became {placeholder}." if quotable else "a placeholder became ours."
                    )
                    if kind == "input" and self.inputs is not None and quotable:
                        self._check_input(ident, path)
                value = renamed
        return _read_text(value, path, self.notes, secret=secret)

    def _check_input(self, ident: str, path: str) -> None:
        if not any(input_field.id == ident for input_field in self.inputs or ()):
            known_ids = ", ".join(input_field.id for input_field in self.inputs or ())[:200] or "none"
            self.notes.warn(path, f"there is no input {ident!r} in inputs (there are: {known_ids}).")

    def _texts(self, value: object, path: str) -> list[str]:
        """Return a list of texts; each problem is recorded separately."""
        texts: list[str] = []
        for index, item in enumerate(_check_list(value, path)):
            with self.notes.attempt():
                texts.append(self._text(item, f"{path}.{index}"))
        return texts

    def _kind(self) -> str:
        """Return the type of a server, as given or inferred."""
        name = self.pasted.get("type")
        if name is None:
            return self._infer_kind()
        kind = _KINDS.get(re.sub(r"[-_\s]", "", name.lower()), "") if isinstance(name, str) and len(name) < 40 else ""
        if not kind:
            raise InvalidInput(f"{self.path}.type", "one of stdio, http and sse is expected.")
        if kind != name:
            self.notes.change(f"{self.path}.type", f"read as {kind!r}.")
        return kind

    def _infer_kind(self) -> str:
        has_command, has_url = bool(self.pasted.get("command")), bool(self.pasted.get("url"))
        if has_command and has_url:
            raise InvalidInput(f"{self.path}.url", "an entry has either a command or a url, not both.")
        if has_command:
            self.notes.change(f"{self.path}.type", "'stdio', since there is a command.")
            return "stdio"
        if not has_url:
            raise InvalidInput(self.path, "a server needs a command or a url.")
        address = self.pasted["url"]
        if isinstance(address, str) and address.partition("?")[0].rstrip("/ ").lower().endswith("/sse"):
            warning = "'sse' was assumed, since the url ends in /sse; most servers speak 'http' now."
            self.notes.warn(f"{self.path}.type", warning)
            return "sse"
        self.notes.change(f"{self.path}.type", "'http', since there is a url.")
        return "http"

    def _warn_other_type(self, *keys: str) -> None:
        """Warn of keys that only servers of the other type have; a command and a url together are refused."""
        for key in keys:
            if self.pasted.get(key) in (None, "", [], {}):
                continue
            if key in ("url", "command"):
                raise InvalidInput(f"{self.path}.{key}", "an entry has either a command or a url, not both.")
            self.notes.warn_unused(f"{self.path}.{key}", "this type of server has none")

    def _command_line(self) -> tuple[str, list[str]]:
        """Return the program and its arguments."""
        program = self.pasted.get("command")
        args: list[str] = []
        with self.notes.attempt():
            args = self._texts(self.pasted.get("args"), f"{self.path}.args")
        place = f"{self.path}.command"
        if isinstance(program, list | tuple):
            words = self._texts(program, place)
            program, args = words[0] if words else "", [*words[1:], *args]
            self.notes.change(place, "a list became a command and its args.")
        command = self._text(program, place)
        # Repeated, since one step uncovers the next: ``cmd /c npx.cmd`` becomes ``npx.cmd``, and that ``npx``.
        while (simpler := _simplify(command, args)) is not None:
            command, args, change = simpler
            self.notes.change(place, change)
        if not command:
            raise InvalidInput(place, "a program is expected.")
        _refuse_secrets([command], place)
        with self.notes.attempt():
            _refuse_secrets(args, f"{self.path}.args")
        if any(re.match(r"mcp-remote(@|$)", arg) for arg in args):
            self.notes.warn(f"{self.path}.args", "mcp-remote is not needed: an entry with a url connects by itself.")
        return command, args

    def _url(self) -> str:
        """Return an http or https address; a secret in its path or query is a placeholder."""
        value, path = self.pasted.get("url"), f"{self.path}.url"
        address = self._text(value, path) if value is not None else ""
        if address != address.strip():
            self.notes.change(path, "spaces around it were removed.")
            address = address.strip()
        try:
            parts = urlsplit(_fill_in(address))
            host, user = parts.hostname, parts.username
        except ValueError:
            host, user = None, None
        if not host or parts.scheme not in ("http", "https") or re.search(r"\s", address):
            raise InvalidInput(path, "an http:// or https:// address is expected.")
        if user is not None:
            raise InvalidInput(path, f"{LOOKS_SECRET}; a name or password before the host is not taken. {_IN_URL}")
        parsed = urlsplit(_without_defaults(address))  # the text of a default may be a key, a placeholder may not
        if any(_is_plain_secret(name, text) for name, text in parse_qsl(parsed.query)):
            raise InvalidInput(path, f"{LOOKS_SECRET} in the query. {_IN_URL}")
        if any(_SECRET_PATH.fullmatch(part) for part in parsed.path.split("/")):
            raise InvalidInput(path, f"{LOOKS_SECRET} in the path. {_IN_URL}")
        return address

    def _values(self, key: str) -> dict[str, Value]:
        """Return the values of ``env`` or ``headers``; each problem is recorded separately."""
        values: dict[str, Value] = {}
        with self.notes.attempt():
            self._read_values(key, values)
        return values

    def _read_values(self, key: str, values: dict[str, Value]) -> None:
        """Add the valid members of ``env`` or ``headers`` to ``values``, and note the problems of the others."""
        path, header = f"{self.path}.{key}", key == "headers"
        pasted = self.pasted.get(key)
        if isinstance(pasted, list | tuple):
            pasted = _from_lines(pasted, path, self.notes)
        items = _mapping({} if pasted is None else pasted, path)
        if len(items) > MAX_ITEMS:
            raise InvalidInput(path, f"{len(items)} items; at most {MAX_ITEMS} are possible.")
        folded_names: set[str] = set()
        for name, item in items.items():
            place = f"{path}.{_printable(name)}"
            if not (_HEADER_NAME if header else _ENV_NAME).fullmatch(name):
                noun = "header" if header else "variable"
                self.notes.problems.append(InvalidInput(place, f"this is not a {noun}'s name."))
                continue
            folded = name.lower() if header else name
            if folded in folded_names:
                self.notes.problems.append(InvalidInput(place, "the same header is given twice."))
            elif name in _repeated_keys(items):
                self.notes.problems.append(InvalidInput(place, "this name is given twice; keep one of them."))
            elif item is None:
                self.notes.change(place, "left out: it has no value.")
            else:
                with self.notes.attempt():
                    values[name] = self._value(item, place, header=header)
            folded_names.add(folded)

    def _value(self, item: object, path: str, *, header: bool) -> Value:
        """Return one value of ``env``, ``headers`` or ``oauth``."""
        secret: object = True
        if isinstance(item, Mapping):
            last4 = item.get("last4")
            if (
                _is_same(item.get("set"), True)
                and set(item) <= {"set", "last4"}
                and isinstance(item.get("last4", ""), str)
            ):
                return SealedValue(last4 if isinstance(last4, str) else None)
            if "value" not in item or not set(item) <= {"value", "secret"}:
                raise InvalidInput(path, 'a text, {"value": text, "secret": false}, or the mask of a GET is expected.')
            secret = item.get("secret", True)
            if not isinstance(secret, bool):
                raise InvalidInput(f"{path}.secret", "true or false is expected.")
            item = item["value"]
        content = self._text(item, path, secret=True)
        # A line break would begin another header of the request.
        if header and re.search(r"[\r\n]", content):
            raise InvalidInput(path, "a header has one line.")
        if header and not content.isascii():
            raise InvalidInput(path, "a header has ASCII characters only.")
        if not secret:
            return PlainValue(content)
        if refers_only(content):
            return Template(content)
        if _SAMPLE.fullmatch(content):
            self.notes.warn(path, "this looks like a sample, not like a value.")
        return SecretValue(content)

    def _oauth(self) -> EntryOAuthClient[Value] | None:
        """Return the client that was registered for us; a sign-in finds or registers the missing parts."""
        place, pasted = f"{self.path}.oauth", self.pasted.get("oauth")
        if pasted in (None, {}):
            return None
        fields = _mapping(pasted, place)
        for key in fields:
            if key not in _OAUTH:
                self.notes.warn_unused(f"{place}.{_printable(key)}", f"{', '.join(_OAUTH)} are")
        client_id = _read_text(fields.get("clientId", ""), f"{place}.clientId", self.notes).strip()
        if not client_id:
            raise InvalidInput(f"{place}.clientId", "expected the OAuth client id that was registered for this server.")
        secrets = {
            key: self._value(fields[key], f"{place}.{key}", header=False)
            for key in OAUTH_SECRETS
            if fields.get(key) is not None
        }
        scopes = fields.get("scopes")
        words = scopes.split() if isinstance(scopes, str) else _read_texts(scopes, f"{place}.scopes", self.notes)
        if not all(_SCOPE.fullmatch(word) for word in words):
            raise InvalidInput(
                f"{place}.scopes", "a list of scopes is expected: visible ASCII characters without quotes."
            )
        issuer = _read_text(fields.get("issuer", ""), f"{place}.issuer", self.notes).strip()
        if issuer and not issuer.startswith(("https://", "http://")):
            raise InvalidInput(f"{place}.issuer", "the https:// address of the authorization server is expected.")
        grant = fields.get("grant", OAuthGrant.CODE)
        if grant not in tuple(OAuthGrant):
            raise InvalidInput(f"{place}.grant", f"one of {' and '.join(OAuthGrant)} is expected.")
        if grant == OAuthGrant.CLIENT and (not secrets or self._identity() is Identity.USER):
            problem = "needs clientSecret or privateKey, and identity domain, because no person signs in"
            raise InvalidInput(f"{place}.grant", f"{OAuthGrant.CLIENT} {problem}.")
        return EntryOAuthClient(client_id, secrets, tuple(dict.fromkeys(words)), issuer, OAuthGrant(str(grant)))

    def _read_enabled(self) -> bool:
        """Return whether a server is on, from ``enabled`` or its opposite."""
        place = f"{self.path}.disabled"
        on = _read_truth(self.pasted.get("enabled"), f"{self.path}.enabled", self.notes)
        off = _read_truth(self.pasted.get("disabled"), place, self.notes)
        if off is None:
            return on is not False
        if on is not None and on is off:
            raise InvalidInput(place, "enabled and disabled contradict each other.")
        self.notes.change(place, f"read as enabled: {str(not off).lower()}.")
        return not off

    def _stateful(self, target: Target | None) -> bool | None:
        """Return whether a server keeps its own state, or None if the entry does not say."""
        place = f"{self.path}.stateful"
        stateful = _read_truth(self.pasted.get("stateful"), place, self.notes)
        if stateful and isinstance(target, HttpTarget):
            raise InvalidInput(place, "only a server with a command runs here; one with a url keeps its own state.")
        return stateful if isinstance(target, StdioTarget) else None

    def _identity(self) -> Identity:
        value = self.pasted.get("identity")
        if value is None:
            return Identity.DOMAIN
        if value not in ("domain", "user"):
            raise InvalidInput(f"{self.path}.identity", "one of domain and user is expected.")
        return Identity(value)

    def _timeout(self) -> int | None:
        """Return milliseconds; if there are several timeouts, the most exact key counts."""
        chosen: int | None = None
        # The later keys are more exact, so they replace what an earlier one says.
        for key, unit in (("timeout", 0), ("timeoutSeconds", 1000), ("timeoutMs", 1)):
            value = self.pasted.get(key)
            if value is None:
                continue
            place = f"{self.path}.{key}"
            number = _read_number(value, place)
            factor = unit or (1000 if number < SECONDS_BELOW else 1)
            if not 1 <= number * factor <= MAX_TIMEOUT_MS:
                raise InvalidInput(place, f"between 1 and {MAX_TIMEOUT_MS} ms is expected.")
            chosen = round(number * factor)
            if unit == 0:
                assumed = "seconds" if factor == 1000 else "ms"
                self.notes.change(place, f"kept as timeoutMs {chosen}; {assumed} were assumed.")
            elif unit == 1000:
                self.notes.change(place, f"kept as timeoutMs {chosen}.")
            elif not _is_same(value, chosen):
                self.notes.change(place, f"read as {chosen}.")
        return chosen

    def _tools(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return which tools are offered and which are not, by the names the server gives them."""
        value, place = self.pasted.get("tools"), f"{self.path}.tools"
        if isinstance(value, list | tuple):
            self.notes.change(place, "a list became tools.include.")
            value = {"include": value}
        lists = _mapping({} if value is None else value, place)
        include = self._tool_names(lists, "include", ("includeTools", "allowedTools"))
        exclude = self._tool_names(lists, "exclude", ("excludeTools", "disabledTools"))
        for key in lists:
            if key not in ("include", "exclude"):
                self.notes.warn_unused(f"{place}.{_printable(key)}", "include and exclude are")
        if include == ("*",):
            self.notes.change(f"{place}.include", "'*' is the same as none.")
            include = ()
        return include, exclude

    def _tool_names(self, lists: Pasted, key: str, other_names: Sequence[str]) -> tuple[str, ...]:
        names = _read_texts(lists.get(key), f"{self.path}.tools.{key}", self.notes)
        for other in other_names:
            more = _read_texts(self.pasted.get(other), f"{self.path}.{other}", self.notes)
            if more:
                self.notes.change(f"{self.path}.{other}", f"read as tools.{key}.")
            names += more
        return tuple(dict.fromkeys(names))


# Single values


def _printable(key: str, limit: int = 80) -> str:
    """Return a key in a form for a path: short, and without control characters for a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in key[:limit])


def _is_same(one: object, other: object) -> bool:
    """Return whether two JSON values are equal; ``1`` and ``true`` are not."""
    try:
        return type(one) is type(other) and one == other
    except RecursionError:  # nested deeper than any meaningful value
        return False


def _mapping(value: object, path: str) -> Pasted:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(path, "a JSON object is expected.")
    return value


def _read_text(value: object, path: str, notes: ReadingNotes, *, secret: bool = False) -> str:
    """Return a text; numbers and truth values become one, as in a shell. ``secret``: no message quotes any of it."""
    if isinstance(value, bool):
        notes.change(path, "a truth value became text.")
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 1 << 63:
        notes.change(path, "a number became text.")
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        notes.change(path, "a number became text.")
        return json.dumps(value)
    if not isinstance(value, str):
        raise InvalidInput(path, "a text is expected.")
    if len(value) > MAX_TEXT:
        raise InvalidInput(path, f"{len(value)} characters; at most {MAX_TEXT} are possible.")
    if any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in value):
        raise InvalidInput(path, "NUL characters and lone surrogates are not possible.")
    problem = find_problem(value, secret=secret)
    if problem:
        raise InvalidInput(path, problem)
    return value


def _read_texts(value: object, path: str, notes: ReadingNotes) -> list[str]:
    return [_read_text(item, f"{path}.{index}", notes) for index, item in enumerate(_check_list(value, path))]


def _check_list(value: object, path: str) -> Sequence[object]:
    """Return a list that is short enough; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidInput(path, "a list of texts is expected.")
    if len(value) > MAX_ITEMS:
        raise InvalidInput(path, f"{len(value)} items; at most {MAX_ITEMS} are possible.")
    return value


def _read_truth(value: object, path: str, notes: ReadingNotes) -> bool | None:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        notes.change(path, "a text became a truth value.")
        return value.strip().lower() == "true"
    if value is None or isinstance(value, bool):
        return value
    raise InvalidInput(path, "true or false is expected.")


def _read_number(value: object, path: str) -> float:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", value.strip()):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12 or value != value:
        raise InvalidInput(path, "a number is expected.")
    return float(value)


def _from_lines(lines: Sequence[object], path: str, notes: ReadingNotes) -> Pasted:
    items: dict[str, object] = {}
    for index, line in enumerate(lines):
        name, mark, value = line.partition("=") if isinstance(line, str) else ("", "", "")
        if not mark or name in items:
            raise InvalidInput(f"{path}.{index}", "an object of names and values is expected.")
        items[name] = value
    notes.change(path, "a list of NAME=value became an object.")
    return items


def _simplify(command: str, args: list[str]) -> tuple[str, list[str], str] | None:
    """Return an equivalent, simpler command line and the change, or None if there is no simpler one."""
    if command != command.strip():
        return command.strip(), args, "spaces around it were removed."
    if not args and _LINE.fullmatch(command):
        return command.split()[0], command.split()[1:], "a line became a command and its args."
    if command.lower() in ("cmd", "cmd.exe") and len(args) > 1 and args[0].lower() == "/c":
        return args[1], args[2:], "started without cmd /c, which only Windows has."
    if len(command) <= MAX_TEXT and (match := _WINDOWS_PROGRAM.fullmatch(command)) and _RUNNER.fullmatch(match[1]):
        return match[1], args, f"read as {match[1]!r}; this server has no Windows folders."
    runner = _RUNNER.fullmatch(command)
    if runner is not None and runner[1].lower() != command:
        name = {"py": "python3"}.get(runner[1].lower(), runner[1].lower())
        return name, args, f"read as {name!r}, its name outside of Windows."
    return None


def _refuse_secrets(args: list[str], path: str) -> None:
    """Refuse a likely secret in a command line, which every process of the machine can read."""
    for index, arg in enumerate(args):
        flag = _SECRET_FLAG.fullmatch(arg)
        follows = flag is not None and flag[1] is None and index + 1 < len(args) and args[index + 1][:1] != "-"
        if (flag and flag[1]) or follows or _SECRET_TEXT.fullmatch(arg) or _PASSWORD_IN_URL.search(arg):
            place = path if path.endswith(".command") else f"{path}.{index + follows}"
            raise InvalidInput(place, f"{LOOKS_SECRET}; secrets stand in env (or headers), never in args.")


def _is_plain_secret(name: str, text: str) -> bool:
    """Return whether a value in a query is a key in plain text."""
    return bool(text) and bool(_SECRET_QUERY.fullmatch(name) or _SECRET_TEXT.fullmatch(text))


def _without_defaults(address: str) -> str:
    """Return an address with empty text in place of placeholders without a default."""
    names = {placeholder.name: "" for placeholder in find_placeholders(address) if placeholder.default is None}
    return expand(address, names.get)


def _fill_in(address: str) -> str:
    """Return an address with its defaults in place, and with a stand-in for each variable."""
    text = expand(
        address,
        {placeholder.name: "x" for placeholder in find_placeholders(address) if placeholder.default is None}.get,
    )
    return f"https://{text}" if address.startswith("${") and "://" not in text else text
