"""Discovery of the authorization server of an MCP server: protected-resource metadata, then its own metadata.

Owns the order of the addresses, and the checks of the documents. The protocol library reads the documents. This module
checks what the library does not: PKCE with S256, and addresses that a person can be sent to. Knows no client, no token
and no store.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    create_oauth_metadata_request,
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    issuers_match,
    validate_metadata_issuer,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

from agentic_rag.tools.oauth.errors import SignInProblem
from agentic_rag.tools.oauth.web import Web, check_readable, is_same_origin

REASON = "agentic_rag.reason"
"""The extension of an answer that holds, as text, why the server refused the request."""
CHALLENGE_CHARS = 4_000
"""Maximum number of characters read of a ``WWW-Authenticate`` header."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """A server's refusal of a request. ``token``: the token of the request; None for a request without one.

    ``more``: the token is valid, but its scopes do not suffice. ``reason``: the refusal as a text for an admin, which
    counts if the server offers no sign-in; empty if unknown.
    """

    token: str | None
    more: bool = False
    scope: str | None = None
    metadata_url: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """The authorization server of an MCP server. ``resource``: the name for token requests; None for older servers.

    ``scopes``: all scopes that the server declares; None if it declares none. ``guessed``: no metadata was published.
    """

    metadata: OAuthMetadata
    resource: str | None
    scopes: tuple[str, ...] | None = None
    guessed: bool = False

    @property
    def issuer(self) -> str:
        return str(self.metadata.issuer)


def challenge_of(response: httpx2.Response, token: str | None) -> Challenge | None:
    """Return the challenge in a refusal, or None if the answer is not a refusal."""
    header = response.headers.get("www-authenticate", "")[:CHALLENGE_CHARS]
    # The library reads headers of a response. This one has nothing but the shortened header.
    bare_response = httpx2.Response(response.status_code, headers={"www-authenticate": header})
    more = response.status_code == 403 and extract_field_from_www_auth(bare_response, "error") == "insufficient_scope"
    if response.status_code != 401 and not more:
        return None
    scope, metadata_url = (
        extract_scope_from_www_auth(bare_response),
        extract_resource_metadata_from_www_auth(bare_response),
    )
    reason = response.extensions.get(REASON)
    return Challenge(token, more, scope, metadata_url, reason if isinstance(reason, str) else "")


async def discover(web: Web, url: str, challenge: Challenge, issuer: str = "") -> ProtectedResource:
    """Find the authorization server of the server at ``url``. ``issuer``: the only one allowed; empty: the first.

    Raises:
        SignInProblem: No server is named, documents of another issuer are shown, or an address is refused.
        SignInSilent: An address did not answer.
    """
    resource = await _read_resource(web, url, challenge)
    if resource is None:
        return await _read_older(web, url, issuer)
    candidates = [str(server) for server in resource.authorization_servers]
    chosen = next(
        (candidate for candidate in candidates if issuer and issuers_match(candidate, issuer)),
        "" if issuer else candidates[0],
    )
    if not chosen:
        raise SignInProblem(
            f"the server names {candidates[0][:200]} for its sign-ins, and its entry allows {issuer} only"
        )
    metadata = await _read_metadata(web, chosen, url)
    if metadata is None:
        raise SignInProblem(f"{urlsplit(chosen).hostname} publishes no metadata of an authorization server")
    scopes = None if resource.scopes_supported is None else tuple(resource.scopes_supported)
    return ProtectedResource(metadata, str(resource.resource), scopes)


async def _read_resource(web: Web, url: str, challenge: Challenge) -> ProtectedResourceMetadata | None:
    """Return the server's own metadata, from the address it named, below its path or at its root.

    Raises:
        SignInProblem: The metadata is at another origin, of another server, or could not be read.
    """
    named = challenge.metadata_url
    # The metadata of a server is at its own host (RFC 9728, 3.1). A refusal can name any address, and the request to it
    # would come from this machine.
    elsewhere = named is not None and not is_same_origin(named, url)
    for place in build_protected_resource_metadata_discovery_urls(None if elsewhere else named, url):
        response = await _ask(web, place)
        # A server in trouble must not look like one without metadata: the sign-in would go elsewhere.
        if response.status_code >= 500 or response.status_code == 429:
            raise SignInProblem(f"the server's metadata could not be read (HTTP {response.status_code})")
        metadata = await handle_protected_resource_response(response)
        if metadata is None:
            continue
        # Otherwise a server could ask for a token that is valid at another one (RFC 9728, 3.3).
        if not check_resource_allowed(resource_url_from_server_url(url), str(metadata.resource)):
            raise SignInProblem(f"the server's metadata is of another one: {str(metadata.resource)[:200]}")
        return metadata
    if elsewhere:
        raise SignInProblem(f"the server names its metadata at another origin: {str(named)[:200]}")
    return None


async def _ask(web: Web, place: str) -> httpx2.Response:
    check_readable(place)
    return await web.send(create_oauth_metadata_request(place))


async def _read_metadata(web: Web, issuer: str, url: str) -> OAuthMetadata | None:
    for place in build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
        response = await _ask(web, place)
        goes_on, metadata = await handle_auth_metadata_response(response)
        if metadata is not None:
            _check_endpoints(metadata)
            try:
                validate_metadata_issuer(metadata, issuer)
            except OAuthFlowError as exc:
                raise SignInProblem(f"{urlsplit(place).hostname} shows the metadata of another issuer") from exc
            return metadata
        if not goes_on:
            raise SignInProblem(f"{urlsplit(place).hostname} could not be asked (HTTP {response.status_code})")
    return None


async def _read_older(web: Web, url: str, issuer: str) -> ProtectedResource:
    """Return the authorization server under the first version with sign-ins (2025-03-26): the server's own origin."""
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    if issuer and not issuers_match(issuer, origin):
        raise SignInProblem(f"the server names no authorization server, and its entry allows {issuer} only")
    for place in build_oauth_authorization_server_metadata_discovery_urls(None, url):
        _, metadata = await handle_auth_metadata_response(await _ask(web, place))
        if metadata is not None:
            _check_endpoints(metadata)
            if not issuers_match(str(metadata.issuer), origin):
                raise SignInProblem(f"{parts.hostname} shows the metadata of another issuer")
            return ProtectedResource(metadata, None)
    # The first version of the protocol names these paths for a server without metadata.
    guessed = {"issuer": origin, "registration_endpoint": f"{origin}/register"}
    guessed |= {"authorization_endpoint": f"{origin}/authorize", "token_endpoint": f"{origin}/token"}
    return ProtectedResource(OAuthMetadata.model_validate(guessed), None, guessed=True)


def _check_endpoints(metadata: OAuthMetadata) -> None:
    """Refuse metadata with an address that no request can be sent to."""
    endpoints = (
        metadata.authorization_endpoint,
        metadata.registration_endpoint,
        metadata.revocation_endpoint,
        metadata.token_endpoint,
    )
    for endpoint in endpoints:
        if endpoint is not None:
            check_readable(str(endpoint))


def check_for_people(place: ProtectedResource) -> None:
    """Refuse an authorization server that a person must not be sent to.

    Raises:
        SignInProblem: It does not declare PKCE with S256, without which a stolen code is a token.
    """
    methods = place.metadata.code_challenge_methods_supported or []
    if not place.guessed and "S256" not in methods:
        raise SignInProblem(f"{place.issuer} does not say that it supports PKCE with S256, which is required")
