"""One MCP server of a domain as its admin wrote it: one type from the pasted document to the launcher. Pure.

Owns the entry, its JSON form (stored, shown, read back), the names under which its own secrets are sealed, and its
hash. Knows no vault and no process: an entry contains a secret only between its reading and its sealing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from agentic_rag.base.json_form import Json
from agentic_rag.tools.entries.placeholders import find_placeholders

V = TypeVar("V")


class Identity(StrEnum):
    """The sharing of a server's connection: one for the domain, or one for each user."""

    DOMAIN = "domain"
    USER = "user"


class HttpKind(StrEnum):
    """The transport of a server with an address."""

    HTTP = "http"
    SSE = "sse"


@dataclass(frozen=True, slots=True)
class Template:
    """A text that consists only of placeholders, so that it may be shown."""

    text: str


@dataclass(frozen=True, slots=True)
class PlainValue:
    """A text that the admin declared not to be a secret."""

    text: str


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A secret that has yet to be sealed; no stored entry holds one."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SealedValue:
    """A value that is in the vault under `sealed_name`. ``last4``: as in a mask that a client sent back."""

    last4: str | None = None


Value = Template | PlainValue | SecretValue | SealedValue
"""One value of ``env`` or ``headers``."""


@dataclass(frozen=True, slots=True)
class StdioTarget(Generic[V]):
    """A command line. ``V``: `Value` as written, ``str`` once all values are in place."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, V] = field(default_factory=dict, repr=False)


class OAuthGrant(StrEnum):
    """The way to a token: a person signs in, or the client's own credentials suffice."""

    CODE = "authorization_code"
    CLIENT = "client_credentials"


@dataclass(frozen=True, slots=True)
class EntryOAuthClient(Generic[V]):
    """The client that is registered at a server's authorization server. ``V`` as in `HttpTarget`.

    ``secrets``: ``clientSecret`` or ``privateKey`` (PEM), if there are any. ``issuer``: the only authorization server
    that may see them; empty: the one that the server names first.
    """

    client_id: str
    secrets: Mapping[str, V] = field(default_factory=dict, repr=False)
    scopes: tuple[str, ...] = ()
    issuer: str = ""
    grant: OAuthGrant = OAuthGrant.CODE


@dataclass(frozen=True, slots=True)
class HttpTarget(Generic[V]):
    """An address. ``V``: `Value` as written, ``str`` once all values are in place. ``oauth``: our client there.

    ``url_secrets``: the secrets in the resolved ``url``, by name; none in an entry as written.
    """

    url: str = field(repr=False)
    headers: Mapping[str, V] = field(default_factory=dict, repr=False)
    kind: HttpKind = HttpKind.HTTP
    oauth: EntryOAuthClient[V] | None = None
    url_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


Target = StdioTarget[Value] | HttpTarget[Value]
ResolvedTarget = StdioTarget[str] | HttpTarget[str]


@dataclass(frozen=True, slots=True)
class McpEntry:
    """One MCP server of a user. ``timeout_ms``: of a call; None: the domain's.

    ``include`` and ``exclude``: tools by the names the server gives them; an empty ``include`` offers all.
    ``stateful``: whether the server keeps state in its home that must exist in one place only; None: as in the launch
    catalogue. ``variables``: the domain's variables that may replace its placeholders; only the image of a turn has
    them.
    """

    name: str
    target: Target
    enabled: bool = True
    identity: Identity = Identity.DOMAIN
    timeout_ms: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    stateful: bool | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> tuple[tuple[str, str, Value], ...]:
        """``(place, name, value)`` of all its values; the place is ``env``, ``headers`` or ``oauth``."""
        if isinstance(self.target, StdioTarget):
            return tuple(("env", name, value) for name, value in self.target.env.items())
        headers = tuple(("headers", name, value) for name, value in self.target.headers.items())
        oauth = self.target.oauth
        return (
            headers if oauth is None else (*headers, *(("oauth", name, oauth.secrets[name]) for name in oauth.secrets))
        )

    @property
    def open_texts(self) -> tuple[tuple[str, str], ...]:
        """``(place, text)`` of the parts of its command line or address, which every process may read."""
        if isinstance(self.target, HttpTarget):
            return (("url", self.target.url),)
        args = ((f"args.{index}", text) for index, text in enumerate(self.target.args))
        return (("command", self.target.command), *args)

    @property
    def sealed_names(self) -> frozenset[str]:
        """The vault's names of its own values."""
        return frozenset(
            sealed_name(self.name, place, name) for place, name, value in self.values if isinstance(value, SealedValue)
        )

    @property
    def placeholder_names(self) -> frozenset[str]:
        """The names of all placeholders in the entry, except those inside sealed values."""
        texts = [text for _, text in self.open_texts]
        texts += [value.text for _, _, value in self.values if isinstance(value, Template | PlainValue)]
        return frozenset(placeholder.name for text in texts for placeholder in find_placeholders(text))

    def with_values(self, values: Mapping[tuple[str, str], Value]) -> "McpEntry":
        """Return the entry with other values, by their places and names."""

        def among(wanted_place: str) -> dict[str, Value]:
            return {name: value for (place, name), value in values.items() if place == wanted_place}

        target = self.target
        if isinstance(target, StdioTarget):
            return replace(self, target=replace(target, env=among("env")))
        oauth = None if target.oauth is None else replace(target.oauth, secrets=among("oauth"))
        return replace(self, target=replace(target, headers=among("headers"), oauth=oauth))

    def with_variables(self, variables: Mapping[str, str]) -> "McpEntry":
        """Return the entry with the domain's variables that may replace its placeholders."""
        every = bool(self.sealed_names)  # the placeholders in sealed values are unknown here
        names = self.placeholder_names
        return replace(self, variables={name: text for name, text in variables.items() if every or name in names})

    def to_json(self, masks: Mapping[str, Json] | None = None) -> Json:
        """Return the document under the entry's name, in the stored form.

        ``masks``: the visible parts of sealed values, by `sealed_name`; with them the result is the form for a GET.
        """
        shown_values = [
            (place, name, _value_to_json(self.name, place, name, value, masks)) for place, name, value in self.values
        ]
        values = {name: value for place, name, value in shown_values if place != "oauth"}
        target = self.target
        document: Json
        if isinstance(target, StdioTarget):
            document = {"type": "stdio", "command": target.command, "args": list(target.args), "env": values}
        else:
            document = {"type": str(target.kind), "url": target.url, "headers": values}
            if target.oauth is not None:
                secrets = {name: value for place, name, value in shown_values if place == "oauth"}
                document["oauth"] = _oauth_to_json(target.oauth, secrets)
        document |= {"enabled": self.enabled, "identity": str(self.identity)}
        if self.timeout_ms is not None:
            document["timeoutMs"] = self.timeout_ms
        if self.include or self.exclude:
            document["tools"] = {"include": list(self.include), "exclude": list(self.exclude)}
        if self.stateful is not None:
            document["stateful"] = self.stateful
        if self.variables:
            document["variables"] = dict(self.variables)
        return document

    @classmethod
    def from_json(cls, name: str, document: Json) -> "McpEntry":
        """Return the entry of a stored document; see `to_json`. `read_entries` reads documents that people paste."""
        target: Target
        if document["type"] == "stdio":
            env = _values_from_json(document.get("env", {}))
            target = StdioTarget(document["command"], tuple(document.get("args", ())), env)
        else:
            headers = _values_from_json(document.get("headers", {}))
            oauth = _oauth_from_json(document["oauth"]) if document.get("oauth") else None
            target = HttpTarget(document["url"], headers, HttpKind(document["type"]), oauth)
        tools = document.get("tools") or {}
        return cls(
            name,
            target,
            enabled=document.get("enabled", True),
            identity=Identity(document.get("identity", Identity.DOMAIN)),
            timeout_ms=document.get("timeoutMs"),
            include=tuple(tools.get("include", ())),
            exclude=tuple(tools.get("exclude", ())),
            stateful=document.get("stateful"),
            variables=document.get("variables", {}),
        )

    def hash(self) -> str:
        """Return a hash over the command or address: a different hash means a different server. It covers no secret."""
        document = self.to_json()
        oauth = [document["oauth"]] if "oauth" in document else []
        return digest([document["type"], {key: document.get(key) for key in _TARGET_KEYS}, *oauth])


_TARGET_KEYS = ("command", "args", "env", "url", "headers")


OAUTH_SECRETS = ("clientSecret", "privateKey")


def _oauth_to_json(oauth: EntryOAuthClient[Value], secrets: Json) -> Json:
    document: Json = {"clientId": oauth.client_id, **secrets}
    if oauth.scopes:
        document["scopes"] = list(oauth.scopes)
    if oauth.issuer:
        document["issuer"] = oauth.issuer
    return document if oauth.grant is OAuthGrant.CODE else {**document, "grant": str(oauth.grant)}


def _oauth_from_json(document: Json) -> EntryOAuthClient[Value]:
    return EntryOAuthClient(
        document["clientId"],
        _values_from_json({name: document[name] for name in OAUTH_SECRETS if name in document}),
        tuple(document.get("scopes", ())),
        document.get("issuer", ""),
        OAuthGrant(document.get("grant", OAuthGrant.CODE)),
    )


def sealed_name(server: str, place: str, name: str) -> str:
    """Return the vault's name of an entry's own value; it has dots, which names chosen by an admin cannot have."""
    return f"{server}.{place}.{name}"


def digest(value: object) -> str:
    """Return a hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=dict).encode()).hexdigest()


def _value_to_json(server: str, place: str, name: str, value: Value, masks: Mapping[str, Json] | None) -> str | Json:
    match value:
        case Template(text):
            return text
        case PlainValue(text):
            return {"value": text, "secret": False}
        case SecretValue(text):
            return {"value": text, "secret": True}
        case SealedValue() if masks is not None:
            return dict(masks.get(sealed_name(server, place, name), {"set": False}))
        case SealedValue(last4):
            return {"set": True} if last4 is None else {"set": True, "last4": last4}


def _values_from_json(document: Json) -> dict[str, Value]:
    return {name: _value_from_json(value) for name, value in document.items()}


def _value_from_json(value: Any) -> Value:
    if isinstance(value, str):
        return Template(value)
    if "set" in value:
        return SealedValue(value.get("last4"))
    return SecretValue(value["value"]) if value["secret"] else PlainValue(value["value"])
