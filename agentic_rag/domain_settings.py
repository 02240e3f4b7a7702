"""What an admin sets for a domain: keys, types, defaults, and the rules by which a change is merged.

Owns `DomainSettings`, the strict stored form of MCP entries, and the reserved server names. Pure: knows no
record, no file and no process. What is stored is only what was set, so that a default may follow the operator.
"""

import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from agentic_rag.errors import CommandNotAllowed, InvalidInput, ServerReserved
from agentic_rag.forms import Form, read_form

RESERVED_SERVERS = frozenset({"promptx", "delegate", "retriever"})
MAP_KEYS = frozenset({"mcpServers", "variables", "toolPolicy"})
"""Settings that are maps: PUT replaces them, PATCH merges them by name."""
MAX_ENTRIES = 100
"""Of each map."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
ToolGlob = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_*?\[\]-]{1,64}$")]
RoleId = Annotated[str, StringConstraints(pattern=r"^\w[\w.-]{0,63}$")]
Text = Annotated[str, StringConstraints(max_length=8_000)]


class ToolFilter(Form):
    """Which tools of a server are offered, by the names the server gives them."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class ServerSettings(Form):
    """One MCP server of a user, in the stored form."""

    type: Literal["stdio", "http", "sse"]
    command: Text | None = None
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    url: Text | None = None
    headers: dict[str, Text] = Field(default_factory=dict)
    enabled: bool = True
    identity: Literal["domain", "user"] = "domain"
    timeout_ms: int | None = Field(None, ge=1, le=3_600_000)
    tools: ToolFilter | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.type == "stdio":
            if not self.command:
                raise ValueError("a stdio server needs a command")
            if self.url is not None or self.headers:
                raise ValueError("a stdio server has no url and no headers")
        else:
            if not self.url:
                raise ValueError(f"a server of type {self.type} needs a url")
            if self.command is not None or self.args or self.env:
                raise ValueError(f"a server of type {self.type} has no command, args or env")
        return self


class DomainSettings(Form):
    """All settings of a domain with their defaults. None: the operator's default."""

    response_style: Literal["detailed", "concise"] = "detailed"
    tone: Literal["formal", "friendly"] = "friendly"
    language: Annotated[str, StringConstraints(pattern=r"^(auto|[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,4})$")] = "auto"
    expertise: Annotated[str, StringConstraints(max_length=2_000)] = ""
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    max_tokens: int = Field(4096, ge=1, le=128_000)
    temperature: float | None = Field(None, ge=0, le=2)
    retrieval_top_k: int = Field(5, ge=1, le=50)
    retrieval_threshold: float = Field(0, ge=0, le=1)
    primary_role_id: RoleId = "assistant"
    sub_role_ids: tuple[RoleId, ...] = Field((), max_length=20)
    mcp_servers: dict[Name, ServerSettings] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    variables: dict[VariableName, Text] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    tool_policy: dict[ToolGlob, Literal["allow", "deny"]] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    max_steps: int = Field(12, ge=1, le=100)
    turn_timeout_seconds: float = Field(600, ge=1, le=86_400)
    tool_timeout_seconds: float = Field(60, ge=1, le=3_600)
    context_tokens: int = Field(100_000, ge=4_000, le=2_000_000)
    context_messages: int | None = Field(None, ge=2, le=10_000)
    memory_scope: Literal["user", "domain"] | None = None

    @field_validator("tool_policy", mode="before")
    @classmethod
    def _no_ask_yet(cls, value: object) -> object:
        if isinstance(value, Mapping) and "ask" in value.values():
            raise ValueError('"ask" needs approvals, which this version does not have; use "allow" or "deny"')
        return value

    def stored(self) -> dict[str, Any]:
        """Return what was set, and only that, in the stored form."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


_WIRE_NAMES = {
    key: str(field.alias) for name, field in DomainSettings.model_fields.items() for key in (name, str(field.alias))
}
"""Wire name by either name, so that messages show one form."""


def merged(
    stored: Mapping[str, Any],
    change: Mapping[str, Any],
    shown: Mapping[str, Any],
    *,
    replace_maps: bool,
    any_command: bool,
) -> DomainSettings:
    """Return the settings after a change: an absent key stays, ``null`` resets.

    Args:
        stored: as `DomainSettings.stored` gave it.
        change: from a client, camelCase or snake_case.
        shown: our own server entries as a client saw them; one sent back unchanged is ignored.
        replace_maps: PUT replaces each map it names; PATCH merges it by name, ``null`` deletes an entry.
        any_command: stdio entries may run whatever they say (single user, operator's word).

    Raises:
        InvalidInput: names the path of what does not fit.
        ServerReserved: an entry uses the name of a system or built-in server.
        CommandNotAllowed: a stdio entry, and the operator did not allow them.
    """
    before = DomainSettings.model_validate(stored)
    values = dict(stored)
    for key, value in change.items():
        name = _WIRE_NAMES.get(key)
        if name is None:
            raise InvalidInput(f"settings.{key}", "this key is not known.")
        if name == "mcpServers" and isinstance(value, Mapping):
            value = _without_shown(value, shown)
        if value is None:
            values.pop(name, None)
        elif name in MAP_KEYS and not replace_maps and isinstance(value, Mapping):
            entries = {**values.get(name, {}), **value}
            values[name] = {entry: item for entry, item in entries.items() if item is not None}
        else:
            values[name] = value
    settings = read_form(DomainSettings, values, "settings")
    for server, entry in settings.mcp_servers.items():
        if entry != before.mcp_servers.get(server):  # a stored entry was checked when it came
            _check_entry(f"settings.mcpServers.{server}", entry, any_command)
    return settings


def is_reserved(name: str) -> bool:
    """Whether a server name is, or only looks like, one of ours."""
    return unicodedata.normalize("NFKC", name).casefold().strip() in RESERVED_SERVERS


def _without_shown(servers: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """Drop our own entries that come back as GET showed them, so that GET, edit, PUT works."""
    kept: dict[str, Any] = {}
    for name, entry in servers.items():
        if is_reserved(name):
            if name in shown and entry == shown[name]:
                continue
            raise ServerReserved(f"settings.mcpServers.{name}")
        if isinstance(entry, Mapping):
            entry = {key: value for key, value in entry.items() if not _shown_only(key, value)}
        kept[name] = entry
    return kept


def _shown_only(key: str, value: object) -> bool:
    """Whether a key of an edited user entry is one that GET adds; any other value of it is refused as unknown."""
    return (key == "origin" and value == "user") or (key == "readOnly" and value is False)


def _check_entry(path: str, entry: ServerSettings, any_command: bool) -> None:
    for place, text in _texts(entry):
        if "${" in text or "{{" in text:
            raise InvalidInput(
                f"{path}.{place}",
                "placeholders need secrets, which this version does not have; write the value itself.",
            )
    for place in ("env", "headers"):
        if getattr(entry, place):
            raise InvalidInput(f"{path}.{place}", "its values are secrets, which this version cannot keep.")
    if entry.tools and entry.tools.exclude:
        raise InvalidInput(f"{path}.tools.exclude", "not supported by this version; name the tools to include.")
    if entry.type != "stdio":
        raise InvalidInput(
            f"{path}.type", f"servers of type {entry.type} are not supported by this version; use stdio."
        )
    if not any_command:
        raise CommandNotAllowed(
            f"{path}.command",
            f"{entry.command!r} is not in the launch catalogue.",
            "A single user may start the server with --allow-any-command.",
        )


def _texts(entry: ServerSettings) -> list[tuple[str, str]]:
    found = [("command", entry.command or ""), ("url", entry.url or "")]
    found += [(f"args.{index}", text) for index, text in enumerate(entry.args)]
    found += [(f"env.{name}", text) for name, text in entry.env.items()]
    found += [(f"headers.{name}", text) for name, text in entry.headers.items()]
    return found
