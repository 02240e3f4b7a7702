"""Requests to an authorization server: registration, the authorization address, tokens, and revocation.

Owns the form of each request and the checks of its answer. An answer's own text is never repeated. Of an error, only
the code is repeated, if it looks like one. Knows no store; the network is the caller's.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthRegistrationError, OAuthTokenError, PKCEParameters
from mcp.client.auth.extensions.client_credentials import SignedJWTParameters
from mcp.client.auth.oauth2 import OAuthContext, check_registration_usable
from mcp.client.auth.utils import (
    create_client_info_from_metadata_url,
    create_client_registration_request,
    handle_registration_response,
    should_use_client_metadata_url,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken, TokenEndpointAuthMethod

from agentic_rag.tools.entries.entry import EntryOAuthClient
from agentic_rag.tools.launch.addresses import AddressPolicy
from agentic_rag.tools.oauth.discovery import ProtectedResource
from agentic_rag.tools.oauth.errors import GrantRefused, SignInProblem, SignInSilent
from agentic_rag.tools.oauth.web import Web, is_same_origin

CLIENT_NAME = "Agentic RAG"
ACCOUNT_CHARS = 100
ACCOUNT_CLAIMS = ("email", "preferred_username", "name", "sub")
TOKEN_CHARS = 32_000
"""A longer token is refused: every request carries it."""

_CODE = re.compile(r"[a-z][a-z_]{2,60}")


@dataclass(frozen=True, slots=True)
class OAuthRegistration:
    """Our identity at an authorization server. ``registration``: its record of us; ``key``: a PEM to sign with."""

    registration: OAuthClientInformationFull
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Granted tokens. ``seconds``: lifetime of `access`; None if not stated. ``account``: the account's name."""

    access: str = field(repr=False)
    refresh: str | None = field(repr=False)
    seconds: int | None
    scope: str | None
    account: str = ""


# The client


def configured_client(place: ProtectedResource, oauth: EntryOAuthClient[str]) -> OAuthRegistration:
    """Return the client that an admin registered by hand, in a form that the authorization server accepts."""
    offered = place.metadata.token_endpoint_auth_methods_supported
    secret, key = oauth.secrets.get("clientSecret"), oauth.secrets.get("privateKey", "")
    method = "none"
    if key:
        method = "private_key_jwt"
    elif secret:
        # Basic is what every server has to support (RFC 6749, 2.3.1).
        posts = offered is not None and "client_secret_basic" not in offered and "client_secret_post" in offered
        method = "client_secret_post" if posts else "client_secret_basic"
    info = OAuthClientInformationFull(
        client_id=oauth.client_id, client_secret=secret, token_endpoint_auth_method=method, issuer=place.issuer
    )
    return OAuthRegistration(info, key)


def described_client(place: ProtectedResource, document_url: str | None) -> OAuthRegistration | None:
    """Return the client that our own published document describes, or None if the server does not support documents."""
    if not should_use_client_metadata_url(place.metadata, document_url):
        return None
    assert document_url is not None
    return OAuthRegistration(create_client_info_from_metadata_url(document_url))


def client_metadata(redirect: str, method: TokenEndpointAuthMethod = "none") -> OAuthClientMetadata:
    """Return our description for a registration and for our published document."""
    # A web client needs https; servers accept http on loopback from native clients only (RFC 8252, 7.3).
    local = urlsplit(redirect).scheme != "https"
    return OAuthClientMetadata.model_validate(
        {
            "client_name": CLIENT_NAME,
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_method": method,
            "application_type": "native" if local else "web",
        }
    )


async def register_client(web: Web, place: ProtectedResource, redirect: str) -> OAuthRegistration:
    """Register ourselves as a client.

    Raises:
        SignInProblem: The server takes no registrations, refused ours, or returned an unusable one.
        SignInSilent: The server gave no answer.
    """
    if place.metadata.registration_endpoint is None:
        host = urlsplit(place.issuer).hostname
        raise SignInProblem(f"{host} does not register clients: an admin has to set oauth.clientId in the entry")
    offered = place.metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    usable = [method for method in ("client_secret_basic", "client_secret_post", "none") if method in offered]
    method: Any = usable[0] if usable else "none"
    request = create_client_registration_request(place.metadata, client_metadata(redirect, method), place.issuer)
    response = await web.send(request)
    try:
        info = await handle_registration_response(response)
        secret = info.client_secret
        if info.token_endpoint_auth_method is None:  # RFC 7591, 2: with a secret it is basic
            posts = "client_secret_post" if offered == ["client_secret_post"] else "client_secret_basic"
            info = info.model_copy(update={"token_endpoint_auth_method": posts if secret else "none"})
        check_registration_usable(info)
    except OAuthRegistrationError as exc:
        status = f"HTTP {response.status_code}{_tell_code(response)}"
        raise SignInProblem(f"{request.url.host} did not register this server as a client ({status})") from exc
    return OAuthRegistration(info.model_copy(update={"issuer": place.issuer}))


# The person


def authorization_address(
    reach: AddressPolicy,
    place: ProtectedResource,
    client: OAuthRegistration,
    redirect: str,
    scope: str | None,
    state: str,
    pkce: PKCEParameters,
) -> str:
    """Return the complete address at which a person is asked for consent.

    Raises:
        SignInProblem: The address is not one that a person can be sent to.
    """
    endpoint = str(place.metadata.authorization_endpoint)
    problem = reach.problem(endpoint)
    if problem:
        raise SignInProblem(f"{urlsplit(endpoint).hostname} is no place to sign in: {problem}")
    query = {
        "response_type": "code",
        "client_id": client.registration.client_id,
        "redirect_uri": redirect,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
    }
    if place.resource is not None:
        query["resource"] = place.resource
    if scope:
        query["scope"] = scope
        if "offline_access" in scope.split():
            query["prompt"] = "consent"  # OpenID Connect Core, 11
    return str(httpx2.URL(endpoint).copy_merge_params(query))


# Tokens


async def exchange_code(
    web: Web, place: ProtectedResource, client: OAuthRegistration, redirect: str, code: str, verifier: str
) -> Tokens:
    """Return the tokens that a person granted.

    Raises:
        GrantRefused, SignInProblem, SignInSilent.
    """
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
    return await _ask_tokens(web, place, client, form)


async def refresh_tokens(web: Web, place: ProtectedResource, client: OAuthRegistration, refresh: str) -> Tokens:
    """Return newer tokens; see `exchange_code`."""
    return await _ask_tokens(web, place, client, {"grant_type": "refresh_token", "refresh_token": refresh})


async def own_tokens(web: Web, place: ProtectedResource, client: OAuthRegistration, scope: str | None) -> Tokens:
    """Return the tokens of the client itself; see `exchange_code`."""
    form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
    return await _ask_tokens(web, place, client, form)


async def revoke_token(web: Web, place: ProtectedResource, client: OAuthRegistration, token: str, kind: str) -> bool:
    """Revoke a token (RFC 7009); return whether the server supports that and accepted it."""
    endpoint = place.metadata.revocation_endpoint
    if endpoint is None:
        return False
    request = await _form_request(str(endpoint), place, client, {"token": token, "token_type_hint": kind})
    return (await web.send(request)).is_success


async def _ask_tokens(web: Web, place: ProtectedResource, client: OAuthRegistration, form: dict[str, str]) -> Tokens:
    if place.resource is not None:
        form = {**form, "resource": place.resource}
    request = await _form_request(str(place.metadata.token_endpoint), place, client, form)
    response = await web.send(request)
    host = request.url.host
    # Nothing was decided about the grant, so the account stays.
    if response.status_code >= 500 or response.status_code in (408, 429):
        raise SignInSilent(f"{host} gave no tokens now (HTTP {response.status_code})")
    if response.status_code not in (200, 201):
        status = f"HTTP {response.status_code}{_tell_code(response)}"
        raise GrantRefused(f"{host} gave no tokens ({status})", error_of(response))
    return _read_tokens(response, place)


def _read_tokens(response: httpx2.Response, place: ProtectedResource) -> Tokens:
    host = response.request.url.host
    try:
        document = json.loads(response.content)
        token = OAuthToken.model_validate(document)
    except (ValueError, RecursionError) as exc:  # the answer may hold a token, so its text is not repeated
        raise SignInProblem(f"{host} answered with something that is no token") from exc
    fits = all(text.isascii() and text.isprintable() and " " not in text for text in (token.access_token,))
    if not token.access_token or not fits or len(token.access_token) + len(token.refresh_token or "") > TOKEN_CHARS:
        raise SignInProblem(f"{host} answered with a token that cannot be sent")
    _check_audience(document, token.access_token, place, str(host))
    return Tokens(
        token.access_token,
        token.refresh_token,
        # A lifetime of more than ten years would be beyond what a date can hold.
        None if token.expires_in is None else max(0, min(token.expires_in, 10 * 365 * 86_400)),
        token.scope,
        _account(document.get("id_token")),
    )


def _check_audience(document: Mapping[str, Any], token: str, place: ProtectedResource, host: str) -> None:
    """Refuse a token that is evidently for another server than the one it would be sent to.

    Raises:
        SignInProblem: The token's ``aud``, or the answer's ``resource``, only has addresses of other servers.
    """
    if place.resource is None:
        return
    audience = document.get("resource") or claims_of(token).get("aud")
    audiences = [item for item in (audience if isinstance(audience, list) else [audience]) if isinstance(item, str)]
    # An audience may also be an identifier that is no address, and says nothing about the server then.
    addresses = [address for address in audiences if address.startswith(("https://", "http://"))]
    if (
        addresses
        and len(addresses) == len(audiences)
        and not any(is_same_origin(address, place.resource) for address in addresses)
    ):
        raise SignInProblem(f"{host} granted a token for another server: {addresses[0][:200]}")


def _account(token: object) -> str:
    """Return the account name in an ``id_token`` from the answer itself. The name is only displayed."""
    claims = claims_of(token) if isinstance(token, str) else {}
    words = (claims[name] for name in ACCOUNT_CLAIMS if isinstance(claims.get(name), str) and claims[name])
    return "".join(character for character in next(words, "") if character.isprintable())[:ACCOUNT_CHARS]


def claims_of(token: str) -> Mapping[str, Any]:
    """Return the unchecked claims of a signed token; empty if the token cannot be read."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


async def _form_request(
    url: str, place: ProtectedResource, client: OAuthRegistration, form: dict[str, str]
) -> httpx2.Request:
    """Return a request with the client's authentication."""
    info, headers = client.registration, {"accept": "application/json"}
    if info.token_endpoint_auth_method == "private_key_jwt":
        form = {**form, "client_id": info.client_id, **await _assertion(place, client)}
    else:
        if info.token_endpoint_auth_method != "client_secret_basic":
            form = {**form, "client_id": info.client_id}
        # The library needs some metadata for its context, and does not use it for this step.
        metadata = client_metadata("http://localhost/")
        context = OAuthContext(place.issuer, metadata, None, None, None, client_info=info)  # type: ignore[arg-type]
        try:
            form, headers = context.prepare_token_auth(form, headers)
        except OAuthTokenError as exc:
            raise SignInProblem("the registered client has a method of authentication that is not known") from exc
    return httpx2.Request("POST", url, data=form, headers=headers)


async def _assertion(place: ProtectedResource, client: OAuthRegistration) -> dict[str, str]:
    """Return the client's signed assertion (RFC 7523) for this authorization server."""
    info = client.registration
    signing = SignedJWTParameters(
        issuer=info.client_id,
        subject=info.client_id,
        signing_key=client.key,
        signing_algorithm=algorithm_of(client.key),
        lifetime_seconds=120,
    )
    try:
        assertion = await signing.create_assertion_provider()(place.issuer)
    except (ValueError, TypeError) as exc:
        raise SignInProblem("oauth.privateKey cannot be used to sign") from exc
    return {
        "client_assertion": assertion,
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }


def algorithm_of(pem: str) -> Literal["ES256", "RS256", "EdDSA"]:
    """Return the signing algorithm of a private key.

    Raises:
        SignInProblem: The text is not a PEM of a signing key: P-256, RSA or Ed25519.
    """
    # imported on first use: few entries sign with a key
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError) as exc:
        raise SignInProblem("oauth.privateKey is no PEM of a private key without a password") from exc
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        return "ES256"
    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256"
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "EdDSA"
    raise SignInProblem("oauth.privateKey is no key of P-256, RSA or Ed25519")


def error_of(response: httpx2.Response) -> str:
    """Return the error code of a refusal, or empty text if there is none that looks like one."""
    try:
        error = json.loads(response.content).get("error")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return error if isinstance(error, str) and _CODE.fullmatch(error) else ""


def _tell_code(response: httpx2.Response) -> str:
    code = error_of(response)
    return f", {code}" if code else ""
