"""The address of a user's server as it is written: scheme, host and headers.

Owns what an entry may say. Pure: where a name leads is looked at when it is connected to (`network`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agentic_rag.errors import CommandNotAllowed, InvalidInput

_OWN_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "cookie", "expect")
)
"""Headers of a connection itself; an entry must not set them."""


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """An address exactly as it is connected to.

    ``exempt``: host and port pairs whose address is not checked. ``unchecked``: none is.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    exempt: frozenset[tuple[str, int]] = frozenset()
    unchecked: bool = False


def endpoint_of(
    config: Mapping[str, Any], path: str, hosts: frozenset[tuple[str, int]], *, unchecked: bool
) -> HttpEndpoint:
    """Return the address of an entry; ``path`` is the entry's.

    Raises:
        CommandNotAllowed: not https, and the operator did not list the host.
        InvalidInput: no web address, or a header that an entry must not set.
    """
    url = str(config.get("url") or "")
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as exc:
        raise InvalidInput(f"{path}.url", f"this is no address: {exc}.") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"{path}.url", "an http:// or https:// address is needed.")
    if parts.username or parts.password:
        raise InvalidInput(f"{path}.url", "a name or password does not belong in an address; use headers.")
    if parts.scheme != "https" and not unchecked and (parts.hostname.lower(), port) not in hosts:
        remedy = f"The operator can list {parts.hostname}:{port} in AGENTIC_RAG_MCP_HOSTS."
        raise CommandNotAllowed(f"{path}.url", "https is needed.", remedy)
    headers = {str(name): str(value) for name, value in (config.get("headers") or {}).items()}
    for name, text in headers.items():
        lower = name.lower()
        plain = name.isascii() and text.isascii() and text.isprintable() and name.replace("-", "").isalnum()
        if not plain or lower in _OWN_HEADERS or lower.startswith(("mcp-", "proxy-")):
            raise InvalidInput(f"{path}.headers.{name}", "this header cannot be set here.")
    return HttpEndpoint(url, headers, hosts, unchecked)
