"""Launch specs: one MCP entry with its domain, workspace, user, and every value in place. Pure.

Owns the rule on the sources of values: the domain's own variables and secrets, never this server's environment. A spec
is created when a server may be needed, and exists in memory only.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from agentic_rag.base.errors import InvalidInput, PlaceholderUnset
from agentic_rag.tools.entries.entry import (
    EntryOAuthClient,
    HttpTarget,
    Identity,
    McpEntry,
    PlainValue,
    ResolvedTarget,
    SealedValue,
    SecretValue,
    StdioTarget,
    Target,
    Template,
    Value,
    digest,
    sealed_name,
)
from agentic_rag.tools.entries.placeholders import Placeholder, expand, is_behind_host, split_placeholders

Secrets = Mapping[str, str | None]
"""A domain's secrets by name; None: stored, but unreadable."""

FILES = "files"
"""The folder of a workspace that a server may be given. The rest is ours: documents, prompt, roles, memories."""

UNSET = "unset"
"""Placeholder in a draft for a value that is not set yet."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One MCP entry with everything needed to start it; created by `spec_of`.

    If a value is missing, ``target`` is None and ``problem`` names the value. ``path``: place of the entry, for
    messages.
    """

    entry: McpEntry
    domain: str
    workspace: str
    user: str
    path: str
    target: ResolvedTarget | None = field(repr=False)
    problem: InvalidInput | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def owner(self) -> str:
        """The user a connection belongs to; empty when the whole domain shares it."""
        return self.user if self.entry.identity is Identity.USER else ""

    @property
    def resolved(self) -> ResolvedTarget:
        """The command line or address with all values in place.

        Raises:
            InvalidInput: Names the key and the path of a value that is not set, unreadable, or not allowed there.
        """
        if self.target is None:
            raise self.problem or InvalidInput(self.path, "its values are not set.")
        return self.target

    def key(self) -> str:
        """Return the pool key: equal keys may share one connection. A one-way hash, since it covers secrets."""
        values: object = str(self.problem)  # the start will fail with the same problem
        if isinstance(self.target, StdioTarget):
            values = [self.target.command, self.target.args, self.target.env]
        elif self.target is not None:
            values = [self.target.url, self.target.headers, self.target.oauth and self.target.oauth.secrets]
        document = replace(self.entry, variables={}).to_json()
        return digest([self.domain, self.name, self.workspace, self.owner, document, values])


def spec_of(
    entry: McpEntry,
    *,
    domain: str = "",
    workspace: str = "",
    user: str = "",
    secrets: Secrets | None = None,
    path: str = "mcpServers",
    draft: bool = False,
) -> LaunchSpec:
    """Return the spec of an entry. Never fails: a missing value is reported when the spec is used.

    Args:
        entry: with the variables that may replace its placeholders.
        secrets: the domain's, by name.
        path: of the map that contains the entry, for messages.
        draft: the entry is only reviewed; a missing value is replaced by `UNSET`.
    """
    secrets = secrets or {}
    place = f"{path}.{entry.name}"
    if draft:
        missing = dict.fromkeys(entry.placeholder_names - secrets.keys(), UNSET)
        filled_in = replace(entry, variables={**missing, **entry.variables})
    else:
        filled_in = entry
    try:
        return LaunchSpec(entry, domain, workspace, user, place, resolve_variables(filled_in, secrets))
    except InvalidInput as exc:
        target = _as_written(entry) if draft else None  # a sealed value's own placeholder: the start will name it
        return LaunchSpec(entry, domain, workspace, user, place, target, exc)


def resolve_variables(entry: McpEntry, secrets: Secrets) -> ResolvedTarget:
    """Return an entry's command line or address with every value in place.

    Raises:
        InvalidInput: Names the key and the path of a value that is not set, cannot be read, or is not allowed there.
    """
    path = f"mcpServers.{entry.name}"
    url_secrets: dict[str, str] = {}
    if isinstance(entry.target, HttpTarget):
        texts = [_resolve_address(entry, entry.target.url, f"{path}.url", secrets, url_secrets)]
    else:
        texts = [_resolve_open_text(entry, text, f"{path}.{place}", secrets) for place, text in entry.open_texts]
    resolved = {
        (place, name): _resolve_value(entry, value, (place, name), f"{path}.{place}.{name}", secrets)
        for place, name, value in entry.values
    }
    return _with_texts(entry.target, texts, resolved, url_secrets)


def _with_texts(
    target: Target,
    texts: Sequence[str],
    resolved: Mapping[tuple[str, str], str],
    url_secrets: Mapping[str, str] | None = None,
) -> ResolvedTarget:
    """Return a target with texts in place of its values."""
    values = {name: text for (place, name), text in resolved.items() if place != "oauth"}
    if isinstance(target, StdioTarget):
        return StdioTarget(texts[0], tuple(texts[1:]), values)
    oauth = None
    if (client := target.oauth) is not None:
        secrets = {name: text for (place, name), text in resolved.items() if place == "oauth"}
        oauth = EntryOAuthClient(client.client_id, secrets, client.scopes, client.issuer, client.grant)
    return HttpTarget(texts[0], values, target.kind, oauth, url_secrets or {})


def _resolve_address(entry: McpEntry, address: str, path: str, secrets: Secrets, used: dict[str, str]) -> str:
    """Return an address to connect to. Secrets behind the host are percent-encoded, and put into ``used`` by name."""
    built = ""
    for part in split_placeholders(address):
        if not isinstance(part, Placeholder):
            built += part
            continue
        if part.name not in secrets:
            value = entry.variables.get(part.name, part.default)
            if value is None:
                raise _unset(part.name, path)
            built += value
            continue
        secret = secrets[part.name]
        if not is_behind_host(built):
            raise InvalidInput(path, secret_in_host(part.name))
        if secret is None:
            raise InvalidInput(path, f"the secret {part.name} cannot be read; set it again.")
        used[part.name] = secret
        built += quote(secret.encode("utf-8", "surrogatepass"), safe="")
    return built


def secret_in_host(name: str) -> str:
    """Return the problem of a secret in an address's host, where it would decide which server is reached."""
    return f"${{{name}}} is a secret; in a url it can stand in the path or the query only, not in the host."


def _resolve_open_text(entry: McpEntry, text: str, path: str, secrets: Secrets) -> str:
    """Resolve a text that every process may read."""

    def value_of(name: str) -> str | None:
        if name in secrets:
            raise InvalidInput(path, f"${{{name}}} is a secret; secrets stand in env and headers only.")
        return entry.variables.get(name)

    return _expand(text, path, value_of)


def _resolve_value(entry: McpEntry, value: Value, place: tuple[str, str], path: str, secrets: Secrets) -> str:
    """Resolve a value of ``env`` or ``headers``."""
    if isinstance(value, SealedValue):
        text = secrets.get(sealed_name(entry.name, *place))
        if text is None:
            raise InvalidInput(path, "its stored value is missing or cannot be read; set it again.")
    else:
        text = value.text

    def value_of(name: str) -> str | None:
        if name not in secrets:
            return entry.variables.get(name)
        secret = secrets[name]
        if secret is None:
            raise InvalidInput(path, f"the secret {name} cannot be read; set it again.")
        return secret

    result = _expand(text, path, value_of)
    if re.search(r"\x00" if place[0] in ("env", "oauth") else r"[\x00\r\n]", result):
        raise InvalidInput(path, "its value has a line end or NUL where none may be.")
    return result


def _expand(text: str, path: str, value_of: Callable[[str], str | None]) -> str:
    try:
        return expand(text, value_of)
    except PlaceholderUnset as exc:
        raise _unset(exc.name, path) from exc


def _unset(name: str, path: str) -> InvalidInput:
    return InvalidInput(path, f"${{{name}}} has no value; set the variable or the secret {name} of this domain.")


def _as_written(entry: McpEntry) -> ResolvedTarget:
    values = {
        (place, name): value.text if isinstance(value, Template | PlainValue | SecretValue) else UNSET
        for place, name, value in entry.values
    }
    return _with_texts(entry.target, [text for _, text in entry.open_texts], values)
