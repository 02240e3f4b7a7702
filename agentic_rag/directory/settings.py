"""What an admin sets for a domain: keys, types, defaults, and the rules by which a change is merged.

Owns `DomainSettings`; MCP entries are ``server_settings``'s. Pure: knows no record, no file and no process. What is
stored is only what was set, so that a default may follow the operator.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from agentic_rag.directory.server_launch import Values, resolved
from agentic_rag.directory.server_settings import Name, ServerChange, ServerSettings, Text, changed_servers
from agentic_rag.errors import InvalidInput
from agentic_rag.forms import Form, read_form, shaped, wire
from agentic_rag.tools.entries.placeholders import NAME, placeholders
from agentic_rag.tools.entries.reading import Note

MAP_KEYS = frozenset({"mcpServers", "variables", "toolPolicy"})
"""Settings that are maps: PUT replaces them, PATCH merges them by name."""
MAX_ENTRIES = 100
"""Of each map."""

VariableName = Annotated[
    str, shaped(NAME, "a name has letters, digits and _, at most 64, and does not begin with a digit")
]
"""Of a variable or a secret: what a placeholder can name."""


ToolGlob = Annotated[
    str,
    shaped(r"[A-Za-z0-9_*?\[\]-]{1,64}", "a tool's name, or a pattern of one with *, ? and [], at most 64 characters"),
]
RoleId = Annotated[
    str, shaped(r"\w[\w.-]{0,63}", "a role's id has letters, digits, _, - and ., and begins with a letter or digit")
]
Language = Annotated[
    str,
    shaped(
        r"auto|[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,4}",
        'a language code such as "en", "zh" or "pt-BR" is expected, or "auto"',
    ),
]
Reranker = Annotated[
    str,
    shaped(r"[A-Za-z0-9][\w./-]{0,199}", "the name of a model is expected, such as jinaai/jina-reranker-v1-tiny-en"),
]


class DomainSettings(Form):
    """All settings of a domain with their defaults. None: the operator's default."""

    response_style: Literal["detailed", "concise"] = "detailed"
    tone: Literal["formal", "friendly"] = "friendly"
    language: Language = "auto"
    expertise: Annotated[str, StringConstraints(max_length=2_000)] = ""
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    max_tokens: int = Field(4096, ge=1, le=128_000)
    temperature: float | None = Field(None, ge=0, le=2)
    retrieval_top_k: int = Field(5, ge=1, le=50)
    retrieval_threshold: float = Field(0, ge=0, le=1)
    retrieval_fusion: Literal["dbsf", "rrf"] = "dbsf"
    reranker: Reranker | None = None
    """A fastembed cross-encoder by name; it must be on the server's machine."""
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


@dataclass(frozen=True, slots=True)
class Merged:
    """Settings after a change, and what goes with them: secrets to seal and to remove, notes for the admin."""

    settings: DomainSettings
    servers: ServerChange
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()


Admit = Callable[[str, ServerSettings, Mapping[str, Any]], tuple[ServerSettings, tuple[str, ...], tuple[str, ...]]]
"""Takes the server's name, its entry, and the same filled in; returns it as it is stored, sentences about what was
changed, and what the admin should know. Raises `CommandNotAllowed` for what nothing allows, `InvalidInput` for what
cannot run."""


def merged(
    stored: Mapping[str, Any],
    change: Mapping[str, Any],
    shown: Mapping[str, Any],
    admit: Admit,
    *,
    replace_maps: bool,
    secrets: Values,
) -> Merged:
    """Return the settings after a change: an absent key stays, ``null`` resets.

    Args:
        stored: as `DomainSettings.stored` gave it.
        change: from a client, camelCase or snake_case.
        shown: our own server entries as a client saw them; one sent back unchanged is ignored.
        admit: decides whether an entry may be stored.
        replace_maps: PUT replaces each map it names; PATCH merges it by name, ``null`` deletes an entry.
        secrets: the domain's, by name.

    Raises:
        InvalidInput: names the path of what does not fit.
        ServerReserved: an entry uses the name of a system or built-in server.
        CommandNotAllowed: an entry that nothing allows.
    """
    before = DomainSettings.model_validate(stored)
    values = dict(stored)
    servers = ServerChange(before.mcp_servers)
    for key, value in change.items():
        name = _WIRE_NAMES.get(key)
        if name is None:
            raise InvalidInput(f"settings.{key}", "this key is not known.")
        if name == "mcpServers":
            replace = replace_maps or value is None
            servers = changed_servers(before.mcp_servers, value, shown, replace=replace)
            values[name] = {server: wire(entry) for server, entry in servers.servers.items()}
        elif value is None:
            values.pop(name, None)
        elif name in MAP_KEYS and not replace_maps and isinstance(value, Mapping):
            entries = {**values.get(name, {}), **value}
            values[name] = {entry: item for entry, item in entries.items() if item is not None}
        else:
            values[name] = value
    settings = read_form(DomainSettings, values, "settings")
    changes, warnings = list(servers.changes), list(servers.warnings)
    admitted: dict[str, ServerSettings] = {}
    known = {**secrets, **servers.secrets}
    for server, entry in settings.mcp_servers.items():
        path = f"settings.mcpServers.{server}"
        if entry != before.mcp_servers.get(server):  # a stored entry was checked when it came
            warnings += _check_placeholders(path, entry, settings.variables, secrets)
            entry, sentences, advice = admit(server, entry, _draft(entry, settings.variables, server, known))
            changes += [Note(path, sentence) for sentence in sentences]
            warnings += [Note(path, sentence) for sentence in advice]
        admitted[server] = entry
    if admitted != settings.mcp_servers:
        settings = settings.model_copy(update={"mcp_servers": admitted})
    return Merged(settings, servers, tuple(changes), tuple(warnings))


def _draft(entry: ServerSettings, variables: Mapping[str, str], server: str, secrets: Values) -> Mapping[str, Any]:
    """Return an entry filled in as it would start now; what has no value yet stands as ``unset``."""
    unset = dict.fromkeys(entry.wanted - secrets.keys(), "unset")
    try:
        return resolved(server, {**entry.config, "variables": {**unset, **variables}}, secrets)
    except InvalidInput:  # inside a sealed value: the start will name it
        return entry.config


def _check_placeholders(
    path: str, entry: ServerSettings, variables: Collection[str], secrets: Collection[str]
) -> list[Note]:
    """Refuse a secret where every process could read it; tell which placeholders have no value yet."""
    for place, text in entry.texts:
        for each in placeholders(text):
            if each.name in secrets:
                raise InvalidInput(
                    f"{path}.{place}", f"${{{each.name}}} is a secret; secrets stand in env and headers only."
                )
    unset = sorted(entry.wanted - set(variables) - set(secrets))
    return [
        Note(path, f"${{{name}}} has no value yet: set the variable or the secret {name} of this domain.")
        for name in unset
    ]
