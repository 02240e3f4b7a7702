"""Turns a server's tool list into the tools that a model sees.

Owns the names, the order, the cleaning of descriptions and schemas, and which tools are left out. Pure: knows no
connection and makes no call.

A list is untrusted text. Names that collide with ours are refused, invisible characters are removed, and lengths are
bounded. Hints count only for our own servers and for tools that the launch catalogue trusts.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from anyascii import anyascii

from agentic_rag.base.json_form import Json
from agentic_rag.tools.apps import Audience, is_visible
from agentic_rag.tools.base import Origin, ToolInfo
from agentic_rag.tools.bounds import AGENT_BYTES, DESCRIPTION_BYTES, describe_left_out, find_schema_problem, size_of
from agentic_rag.tools.system import SYSTEM_TOOLS

OUR_TOOLS = tuple(tool.name for tool in SYSTEM_TOOLS if not tool.authors_only)
"""Our tools in their order; no server of a user can use these names. Our other tools follow in server order."""

NAME_CHARS = 64
READ_NAME = 128
"""Maximum number of characters of a name that are transliterated."""
TITLE_CHARS = 200

SHOWN_TOOLS = 4096
"""Maximum number of tools whose shown form is cached between turns."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LETTER = re.compile(r"[a-zA-Z]")
_UNUSUAL = re.compile(r"[^\t\n -~]")
_KEPT_CONTROLS = frozenset("\n\t")
_REMOVED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Hints(Protocol):
    """The annotations that this module reads."""

    @property
    def read_only_hint(self) -> bool | None: ...
    @property
    def idempotent_hint(self) -> bool | None: ...


class ToolListing(Protocol):
    """A tool as its server lists it (an `mcp_types.Tool`)."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str | None: ...
    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...
    @property
    def annotations(self) -> Hints | None: ...
    @property
    def meta(self) -> Json | None: ...


class Catalog:
    """Collects the tools of one agent, server after server; ``notices`` lists the tools that were left out."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolInfo] = {}
        self._size = 0
        self.notices: list[tuple[str, str]] = []

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        """Our tools in their fixed order, then those of users by name."""
        own_tools = [tool for tool in self._tools.values() if tool.origin != "user"]
        user_tools = [tool for tool in self._tools.values() if tool.origin == "user"]
        place = {name: index for index, name in enumerate(OUR_TOOLS)}
        own_tools.sort(key=lambda tool: place.get(tool.name, len(place)))
        return (*own_tools, *sorted(user_tools, key=lambda tool: tool.name))

    def add(
        self,
        server: str,
        origin: Origin,
        listed: Iterable[ToolListing],
        include: Sequence[str] | None = None,
        *,
        read_only: Collection[str] = (),
        idempotent: Collection[str] = (),
        changed: Collection[str] = (),
        audience: Audience = "model",
    ) -> None:
        """Add the tools of one server; call it for our own servers first.

        ``read_only`` and ``idempotent`` are trusted tools of a user's server. ``changed`` are tools that are not
        accepted. All three hold the server's names. ``audience``: who is to call the tools; a server can offer a tool
        to its own apps alone, or to models alone.
        """
        tools = list(listed)
        counts = Counter(tool.name for tool in tools)
        beyond: list[tuple[str, str]] = []
        for tool in tools:
            if include is not None and tool.name not in include:
                continue
            if not is_visible((tool.meta or {}).get("ui") or {}, audience):
                continue
            trusted = None
            if origin == "user":
                trusted = tool.name in read_only, tool.name in idempotent, tool.name in changed
            name = tool.name if trusted is None else exposed_name(server, tool.name, title_of(tool))
            info, unfit, size = _describe_tool(tool, name, server, origin, trusted)
            # Neither of the two is taken: no one could say which of them a call reaches.
            twice = "it is listed more than once" if counts[tool.name] > 1 else ""
            problem = twice or self._problem(info.name, origin) or unfit
            if problem:
                self.notices.append((server, f"tool {clean(tool.name[:NAME_CHARS])!r} left out: {problem}"))
            elif origin == "user" and self._size + size > AGENT_BYTES:
                beyond.append(
                    (clean(tool.name[:READ_NAME]), f"all tools together would be longer than {AGENT_BYTES} bytes")
                )
            else:
                self._tools[info.name] = info
                self._size += size if origin == "user" else 0
        if beyond:
            self.notices.append((server, describe_left_out(beyond)))

    def _problem(self, name: str, origin: Origin) -> str:
        if not _NAME.fullmatch(name):
            return "its name does not fit ^[a-zA-Z0-9_-]{1,64}$"
        if name in self._tools:
            return f"the name {name!r} is taken by {self._tools[name].server!r}"
        if origin == "user" and name in OUR_TOOLS:
            return f"the name {name!r} is reserved"
        return ""


Trusted = tuple[bool, bool, bool] | None
"""Whether a user's tool is trusted as read-only, trusted as idempotent, and changed. None for our own tools."""

_SHOWN: dict[int, tuple[ToolListing, str, Trusted, tuple[ToolInfo, str, int]]] = {}
"""Cache of `_describe_tool`, by the identity of the tool: lists are the same objects from turn to turn."""


def _describe_tool(
    tool: ToolListing, name: str, server: str, origin: Origin, trusted: Trusted
) -> tuple[ToolInfo, str, int]:
    """Return a tool as the model sees it, the reason why it is left out (or nothing), and its approximate bytes."""
    cached = _SHOWN.get(id(tool))
    same = cached is not None and cached[0] is tool and cached[1] == server and cached[2] == trusted
    if cached is not None and same and cached[3][0].name == name:
        return cached[3]
    problem = find_schema_problem(tool.input_schema)
    # A user's server could call any tool read-only. Only the trusted lists of the launch catalogue count.
    hints = tool.annotations if trusted is None else None
    title = "" if trusted is None else title_of(tool)
    schema = slim_schema(tool.input_schema) if trusted is None else tool.input_schema
    info = ToolInfo(
        name=name,
        remote_name=tool.name,
        server=server,
        origin=origin,
        description=clean_description(_describe(tool, title, server, trusted is not None)),
        title=title,
        input_schema={} if problem else _clean_json(schema),
        read_only=bool(hints and hints.read_only_hint) if trusted is None else trusted[0],
        idempotent=bool(hints and hints.idempotent_hint) if trusted is None else trusted[1],
        changed=trusted is not None and trusted[2],
        claims_read_only=trusted is not None
        and tool.annotations is not None
        and tool.annotations.read_only_hint is True,
    )
    # Emptied as a whole: the lists of a running server are the same objects, and fill it again in one turn.
    if len(_SHOWN) >= SHOWN_TOOLS:
        _SHOWN.clear()
    described = info, problem, 0 if problem else size_of(tool)
    _SHOWN[id(tool)] = tool, server, trusted, described
    return described


def title_of(tool: ToolListing) -> str:
    """Return the cleaned title of a tool, at most `TITLE_CHARS` of it; empty for a tool without one."""
    return clean_title(tool.title or "")


def clean_title(title: str) -> str:
    """Cut a title to `TITLE_CHARS`, then remove invisible characters and the space around it."""
    return clean(title.lstrip()[:TITLE_CHARS]).strip()


def _describe(tool: ToolListing, title: str, server: str, of_user: bool) -> str:
    """Return the description of a tool, never an empty one for a user's tool.

    If the model cannot read the server's own tool name in the exposed name, the description begins with it.
    """
    description = (tool.description or "").strip()
    if not of_user or (description and tool.name.isascii()):
        return description
    own = [name for name in (title, "" if tool.name.isascii() else tool.name) if name and name not in description]
    text = "\n".join(filter(None, (" · ".join(dict.fromkeys(own)), description)))
    return text or f"Calls {tool.name} of the server {server}."


def slim_schema(schema: Any) -> Any:
    """Return one of our schemas without parts that are useless to a model: titles, unions with null, empty defaults.

    Null is still accepted for an optional argument; see `arguments.find_problem`.
    """
    if not isinstance(schema, dict):
        return schema
    slim = {key: value for key, value in schema.items() if key != "title" and not (key == "default" and not value)}
    for name in ("properties", "$defs"):
        if name in slim:
            slim[name] = {key: slim_schema(value) for key, value in slim[name].items()}
    if "items" in slim:
        slim["items"] = slim_schema(slim["items"])
    if "anyOf" in slim:
        kinds = [slim_schema(kind) for kind in slim.pop("anyOf") if kind != {"type": "null"}]
        slim = {**kinds[0], **slim} if len(kinds) == 1 else {"anyOf": kinds, **slim}
    return slim


@lru_cache(SHOWN_TOOLS)
def user_name(server: str, tool: str, title: str = "") -> str:
    """Return ``{server}__{tool}`` in allowed characters: others become ``_``, and a changed name ends in a hash.

    A name without ASCII letters is replaced by its title, if the title has some, else by its transliteration. The hash
    covers the whole original, so the result is stable, and different originals get different names.
    """
    full = f"{server}__{tool}"
    readable = tool
    if not tool.isascii() and not _LETTER.search(tool):
        words = title if _LETTER.search(title) else anyascii(tool[:READ_NAME])
        readable = re.sub(r"[^a-zA-Z0-9]+", "_", words).strip("_") or tool
    fitting = re.sub(r"[^a-zA-Z0-9_-]", "_", f"{server}__{readable}")
    if fitting == full and len(full) <= NAME_CHARS:
        return full
    digest = _digest(full)
    return f"{fitting[: NAME_CHARS - len(digest) - 1]}_{digest}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def owner_of(name: str, servers: Iterable[str]) -> str | None:
    """Return the server that a rule's name or pattern begins with: the longest match, or None.

    With servers ``a`` and ``a__b``, the rule ``a__b__c`` is about the tool ``c`` of ``a__b``: see `exposed_name`.
    """
    return max((server for server in servers if name.startswith(f"{server}__")), key=len, default=None)


def exposed_name(server: str, tool: str, title: str = "") -> str:
    """Return the name under which the model sees a tool: ``{server}__{tool}`` in characters that `user_name` allows.

    ``a__b__c`` could be the tool ``b__c`` of ``a`` or the tool ``c`` of ``a__b``. The name always belongs to the
    longest possible server. So where the tool's part begins with ``_`` or contains ``__``, a hash follows the server's
    name: ``a__1f2e3d4c_b__c``. No rule or pattern for one server then covers another server's tool, even if the rule's
    server was deleted. No code splits a name again: `ToolInfo` holds both parts.
    """
    name = user_name(server, tool, title)
    rest = name[len(server) + 2 :]
    if not rest.startswith("_") and "__" not in rest:
        return name
    return f"{server}__{_digest(f'{server}{chr(0)}{tool}')}_{rest}"[:NAME_CHARS]


@lru_cache(SHOWN_TOOLS)
def fold_name(name: str) -> str:
    """Return the form in which server names are compared: two that look alike are equal."""
    return unicodedata.normalize("NFKC", clean(name)).casefold().strip()


def clean(text: str) -> str:
    """Return text without control, zero-width, bidi, tag and private characters (line ends and tabs stay).

    Takes time proportional to the length: the category is looked up once for each distinct character.
    """
    if _UNUSUAL.search(text) is None:  # most texts, and this runs for each string of each tool in each turn
        return text
    # Line ends first: their characters are among those removed below.
    text = text.replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    hidden = [char for char in set(text) - _KEPT_CONTROLS if unicodedata.category(char) in _REMOVED]
    return text.translate(dict.fromkeys(map(ord, hidden))) if hidden else text


def clean_description(text: str) -> str:
    """Truncate a description to `DESCRIPTION_BYTES`, clean it, and mark it if it was cut."""
    text = text.strip()
    cleaned = clean(text[:DESCRIPTION_BYTES]).strip()
    # A longer text was not cleaned whole, so its size is that of the original.
    size = len(cleaned.encode()) if len(text) <= DESCRIPTION_BYTES else len(text.encode("utf-8", "replace"))
    if size <= DESCRIPTION_BYTES:
        return cleaned
    mark = f" [truncated: {size} bytes]"
    return cleaned.encode()[: DESCRIPTION_BYTES - len(mark)].decode("utf-8", "ignore") + mark


def _clean_json(value: Any) -> Any:
    """Clean every string of a schema, including keys: the model reads all of it."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): _clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean_json(item) for item in value]
    return value
