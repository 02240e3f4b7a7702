"""MCP entries as a domain stores them, and what becomes of the secrets in them.

Owns the strict stored form, the names under which an entry's own secrets are sealed, what a client sees in their
place, and the merging of a changed map. Pure: seals nothing, knows no record and no process.

A stored value of ``env`` or ``headers`` is text with placeholders only, ``{"value": text, "secret": false}``, or
``{"set": true}``: the value is in the vault under `sealed_name`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from agentic_rag.errors import InvalidInput
from agentic_rag.forms import Form, read_form, shaped, wire
from agentic_rag.tools.entries.placeholders import placeholders
from agentic_rag.tools.entries.reading import Note, read_servers

Name = Annotated[str, shaped(r"[A-Za-z0-9_-]{1,32}", "a server's name has letters, digits, - and _, at most 32")]
Text = Annotated[str, StringConstraints(max_length=8_000)]


class ToolFilter(Form):
    """Which tools of a server are offered, by the names the server gives them."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class PlainValue(Form):
    """A value that may be shown."""

    value: Text
    secret: Literal[False]


class SealedValue(Form):
    """A value in the vault."""

    set: Literal[True]


Value = Text | PlainValue | SealedValue


class ServerSettings(Form):
    """One MCP server of a user, in the stored form."""

    type: Literal["stdio", "http", "sse"]
    command: Text | None = None
    args: tuple[Text, ...] = ()
    env: dict[str, Value] = Field(default_factory=dict)
    url: Text | None = None
    headers: dict[str, Value] = Field(default_factory=dict)
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

    @property
    def texts(self) -> list[tuple[str, str]]:
        """``(place, text)`` of what a child's command line or an address is made from."""
        found = [("command", self.command or ""), ("url", self.url or "")]
        return found + [(f"args.{index}", text) for index, text in enumerate(self.args)]

    def sealed(self, server: str) -> frozenset[str]:
        """Return the names under which its own values are sealed."""
        return frozenset(
            sealed_name(server, place, name)
            for place, values in (("env", self.env), ("headers", self.headers))
            for name, value in values.items()
            if isinstance(value, SealedValue)
        )

    @property
    def config(self) -> dict[str, Any]:
        """The entry as a turn's definition holds it."""
        return {key: value for key, value in wire(self).items() if value is not None and key != "enabled"}

    @property
    def wanted(self) -> frozenset[str]:
        """The names of all placeholders in it, those of sealed values not counted."""
        texts = [text for _, text in self.texts]
        values = (*self.env.values(), *self.headers.values())
        texts += [value for value in values if isinstance(value, str)]
        texts += [value.value for value in values if isinstance(value, PlainValue)]
        return frozenset(each.name for text in texts for each in placeholders(text))


def sealed_name(server: str, place: str, name: str) -> str:
    """Return the vault's name of an entry's own value; it has dots, which no name an admin chooses has."""
    return f"{server}.{place}.{name}"


@dataclass(frozen=True, slots=True)
class ServerChange:
    """A changed map, ready to be stored. ``secrets``: values to seal, by name. ``dropped``: names to remove."""

    servers: dict[str, ServerSettings]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    dropped: tuple[str, ...] = ()
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()


def changed_servers(
    before: Mapping[str, ServerSettings],
    given: object,
    shown: Mapping[str, Any],
    *,
    replace: bool,
    path: str = "settings.mcpServers",
) -> ServerChange:
    """Return the servers after a change.

    Args:
        before: the stored ones.
        given: what the client sent; None: no servers.
        shown: our own entries as a GET shows them; one sent back unchanged is ignored.
        replace: the map replaces the stored one; else it is merged by name, ``null`` deletes an entry.

    Raises:
        InvalidInput: names the path of what does not fit.
        ServerReserved: an entry uses the name of a system or built-in server.
    """
    reading = read_servers({} if given is None else given, path, ours=shown, deletes=not replace)
    servers = {} if replace else {name: entry for name, entry in before.items() if name not in reading.deleted}
    found = ServerChange(servers, changes=reading.changes, warnings=reading.warnings)
    for name, entry in reading.servers.items():
        place = f"{path}.{name}"
        servers[name] = _sealed(name, entry, before.get(name), place, found.secrets)
    old = frozenset().union(*(entry.sealed(name) for name, entry in before.items()))
    new = frozenset().union(*(entry.sealed(name) for name, entry in servers.items()))
    secrets = {name: value for name, value in found.secrets.items() if name in new}
    return ServerChange(servers, secrets, tuple(sorted(old - new)), reading.changes, reading.warnings)


def _sealed(
    server: str, entry: Mapping[str, Any], before: ServerSettings | None, path: str, secrets: dict[str, str]
) -> ServerSettings:
    """Return the stored form of a normalised entry; its secret values go to ``secrets``."""
    stored = dict(entry)
    known = before.sealed(server) if before is not None else frozenset()
    for place in ("env", "headers"):
        values: dict[str, Any] = {}
        for name, value in stored.get(place, {}).items():
            sealed = sealed_name(server, place, name)
            if isinstance(value, Mapping) and "set" in value and sealed not in known:
                raise InvalidInput(f"{path}.{place}.{name}", "no value is stored to be kept; give the value.")
            if isinstance(value, Mapping) and value.get("secret"):
                secrets[sealed] = value["value"]
            keeps = isinstance(value, Mapping) and ("set" in value or value["secret"])
            values[name] = {"set": True} if keeps else value
        if place in stored:
            stored[place] = values
    return read_form(ServerSettings, stored, path)


def shown_entry(server: str, entry: ServerSettings, masks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an entry as a client sees it. ``masks``: by the names of `sealed_name`."""
    absent = ("url", "headers") if entry.type == "stdio" else ("command", "args", "env")
    shown = {key: value for key, value in wire(entry).items() if value is not None and key not in absent}
    for place in {"env", "headers"} & shown.keys():
        for name, value in shown[place].items():
            if isinstance(value, Mapping) and "set" in value:
                shown[place][name] = dict(masks.get(sealed_name(server, place, name), {"set": False}))
    return shown
