"""Clients of our authorization server: metadata documents, registrations, and the rules for redirect addresses.

An MCP host is a public client without a secret; PKCE and the exact redirect address protect its codes. It names itself
by the address of its metadata document (draft-ietf-oauth-client-id-metadata-document), or registers (RFC 7591) where
the operator permits that. Everything in a document or a registration is untrusted.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import httpx2
import orjson
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit
from agentic_rag.access.users import ANONYMOUS
from agentic_rag.base.forms import one_line
from agentic_rag.store import authorizations
from agentic_rag.store.audit import Entry
from agentic_rag.store.authorizations import ClientRecord
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.tools.launch.addresses import AddressPolicy
from agentic_rag.tools.oauth.errors import SignInProblem, SignInSilent
from agentic_rag.tools.oauth.web import CheckedWeb
from agentic_rag.tools.transports.network import url_problem

MAX_CLIENT_ID: Final = 500
MAX_REDIRECTS: Final = 20
MAX_REDIRECT: Final = 1_000
MAX_NAME: Final = 80
DOCUMENT_BYTES: Final = 10_000
"""Maximum length of a metadata document; the draft advises 5 KB."""
CACHE_SECONDS: Final = 300.0
MAX_CACHED: Final = 200
MAX_CLIENTS: Final = 10_000
"""Maximum number of registered clients."""
CLIENT_DAYS: Final = 30
"""A registered client without an authorization is deleted after so many days without a request."""

_LOOPBACK = re.compile(r"(http://(?:127\.0\.0\.1|\[::1\]|localhost))(?::\d{1,5})?((?:[/?].*)?)")
_PLAIN = re.compile(r"[!-~]+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_REFUSED_SCHEMES: Final = frozenset(
    {"about", "blob", "chrome", "data", "file", "filesystem", "ftp", "http", "intent", "javascript", "jar", "mailto"}
    | {"resource", "vbscript", "view-source", "ws", "wss"}
)


class ClientRefused(Exception):
    """A client is unknown, or its metadata cannot be used. ``error`` is the code of RFC 6749 or RFC 7591."""

    def __init__(self, reason: str, error: str = "invalid_client") -> None:
        super().__init__(reason)
        self.error = error


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client as it describes itself. ``documented``: its id is the address of its document, whose host is proven."""

    id: str
    name: str
    redirect_uris: tuple[str, ...]
    documented: bool

    def accepts(self, redirect_uri: str) -> bool:
        """Return whether codes may be sent to an address: one of the client's, character by character.

        The port of a loopback address is free, because a native client listens on any (RFC 8252 7.3).
        """
        if len(redirect_uri) > MAX_REDIRECT or redirect_problem(redirect_uri):
            return False
        return any(_without_port(uri) == _without_port(redirect_uri) for uri in self.redirect_uris)


def redirect_problem(uri: str) -> str:
    """Return why codes may not be sent to an address; empty if they may."""
    if not _PLAIN.fullmatch(uri) or "\\" in uri or "#" in uri:
        return "it has a fragment, a space or another character that does not belong in an address"
    if _LOOPBACK.fullmatch(uri):
        return ""
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        return "it is not an address"
    if parts.scheme == "https":
        return "" if parts.hostname and "@" not in parts.netloc else "it has no host, or a name in front of the host"
    if not _SCHEME.fullmatch(uri.partition(":")[0]) or parts.scheme in _REFUSED_SCHEMES:
        return "https, http on this computer (127.0.0.1, [::1], localhost) or an app's own scheme is expected"
    return ""


def _without_port(uri: str) -> str:
    match = _LOOPBACK.fullmatch(uri)
    return uri if match is None else match[1] + match[2]


class OAuthClients:
    """Finds clients and registers them.

    ``reach`` is the address policy for documents. ``registration``: whether clients may register.
    """

    def __init__(self, database: Database, reach: AddressPolicy, *, registration: bool = False) -> None:
        self._db = database
        self._reach = reach
        self._web = CheckedWeb(reach)
        self.registration = registration
        self._documents: OrderedDict[str, tuple[float, OAuthClient]] = OrderedDict()

    async def find(self, client_id: str) -> OAuthClient:
        """Return a client by its id. A document is fetched at most once in five minutes.

        Raises:
            ClientRefused: there is no such client, or its document cannot be fetched or used.
        """
        if not 0 < len(client_id) <= MAX_CLIENT_ID or not _PLAIN.fullmatch(client_id):
            raise ClientRefused("The client's id is missing or malformed.")
        if "://" not in client_id:
            return await self._find_registered(client_id)
        cached = self._documents.get(client_id)
        if cached is not None and cached[0] > time.monotonic():
            return cached[1]
        client = await self._fetch(client_id)
        self._documents[client_id] = (time.monotonic() + CACHE_SECONDS, client)  # only documents that could be used
        if len(self._documents) > MAX_CACHED:
            self._documents.popitem(last=False)
        return client

    async def register(self, body: bytes) -> ClientRecord:
        """Store a client that registers itself with the metadata in a body, as a public client.

        Raises:
            ClientRefused: the operator permits no registration, or the metadata cannot be used.
        """
        if not self.registration:
            raise ClientRefused("This server registers no clients. Use a client ID metadata document.", "access_denied")
        client = _read_metadata("", body, "invalid_client_metadata")
        at = now()
        record = ClientRecord(
            id=new_id("client"),
            name=client.name,
            redirect_uris=client.redirect_uris,
            created_at=at,
            used_at=at,
        )
        entry = Entry(
            ANONYMOUS, "oauth_client.register", record.id, details={"redirectUris": list(record.redirect_uris)}
        )

        def store(conn: Connection) -> None:
            authorizations.register(conn, record, MAX_CLIENTS)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        return record

    async def _find_registered(self, client_id: str) -> OAuthClient:
        client = await self._db.read(partial(authorizations.client, client_id=client_id))
        if client is None:
            raise ClientRefused(f"There is no client {client_id[:100]!r}. Register it again.")
        return OAuthClient(client.id, client.name, client.redirect_uris, documented=False)

    async def _fetch(self, url: str) -> OAuthClient:
        problem = url_problem(self._reach, url)
        if problem or not _can_be_document(url):
            raise ClientRefused(f"{url[:200]!r} is not the address of a client's metadata document. {problem}".strip())
        try:
            request = httpx2.Request("GET", url, headers={"accept": "application/json"})
            response = await self._web.send(request)
        except (SignInProblem, SignInSilent) as exc:
            raise ClientRefused(f"The metadata document of the client cannot be fetched: {exc}") from exc
        if response.status_code != 200 or len(response.content) > DOCUMENT_BYTES:
            status = f"HTTP {response.status_code}, {len(response.content)} bytes"
            raise ClientRefused(f"The metadata document of the client cannot be used: {status}.")
        return _read_metadata(url, response.content, "invalid_client")


def _can_be_document(url: str) -> bool:
    """Return whether a well-formed address has the form that client ids have: a path without dots, and no fragment."""
    parts = urlsplit(url)
    return parts.path not in ("", "/") and not parts.fragment and "/." not in parts.path


def _read_metadata(url: str, body: bytes, error: str) -> OAuthClient:
    """Return the client of untrusted metadata. ``url``: the address of the document; empty for a registration.

    ``error`` is the OAuth code of a refusal.
    """
    try:
        metadata = orjson.loads(body)
    except orjson.JSONDecodeError:
        metadata = None
    if not isinstance(metadata, dict):
        raise ClientRefused("The client's metadata is not a JSON object.", error)
    # Otherwise one site could publish a document in the name of another.
    if url and metadata.get("client_id") != url:
        raise ClientRefused("The metadata document does not name its own address as `client_id`.")
    if url and "client_secret" in metadata:
        raise ClientRefused("The metadata document contains a `client_secret`, which everyone could read.")
    if url and metadata.get("token_endpoint_auth_method", "none") != "none":
        raise ClientRefused("This server accepts public clients only: `token_endpoint_auth_method` must be `none`.")
    uris, name = metadata.get("redirect_uris"), metadata.get("client_name")
    if not isinstance(uris, list) or not 0 < len(uris) <= MAX_REDIRECTS:
        raise ClientRefused(f"`redirect_uris`: a list of 1 to {MAX_REDIRECTS} addresses is expected.", error)
    for at, uri in enumerate(uris):
        problem = "it is no text" if not isinstance(uri, str) else redirect_problem(uri[: MAX_REDIRECT + 1])
        if problem or len(uri) > MAX_REDIRECT:
            code = error if url else "invalid_redirect_uri"
            raise ClientRefused(
                f"`redirect_uris[{at}]`: {str(uri)[:200]!r} cannot be used: {problem or 'too long'}.", code
            )
    for field, needed in (("grant_types", "authorization_code"), ("response_types", "code")):
        listed = metadata.get(field)
        if listed is not None and not (isinstance(listed, list) and needed in listed):
            raise ClientRefused(f"`{field}` must contain `{needed}`.", error)
    display_name = one_line(name[: 4 * MAX_NAME])[:MAX_NAME] if isinstance(name, str) else ""
    return OAuthClient(url, display_name, _distinct(uris), documented=bool(url))


def _distinct(uris: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(uris))
