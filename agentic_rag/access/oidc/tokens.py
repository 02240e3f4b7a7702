"""An OpenID provider over the network: its metadata, keys and tokens.

This module sends the requests and checks signatures. Each address is checked like those of MCP servers, except the
issuer's own, which the operator configured. Redirects are not followed.
"""

import base64
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

import anyio
import httpx2
import orjson
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

from agentic_rag.access.oidc.claims import ALGORITHMS, Claims, Expected, check_claims, check_header
from agentic_rag.base.errors import ProviderUnavailable, Unauthenticated
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport

log = logging.getLogger(__name__)

T = TypeVar("T")

METADATA_PATH: Final = "/.well-known/openid-configuration"
KEEP_SECONDS: Final = 3600.0
"""Seconds for which the provider's metadata and keys are cached; a withdrawn key is accepted for no longer."""
REFETCH_SECONDS: Final = 10.0
"""Minimum seconds between two fetches, also after a failure, however many tokens name unknown keys."""
TIMEOUT_SECONDS: Final = 10.0
"""Timeout in seconds for a whole response of the provider."""
MAX_BYTES: Final = 1024 * 1024
"""Maximum size of a response in bytes."""


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """This server's registration at a provider, as configured by the operator.

    ``audience`` is the audience of API tokens. ``parties`` are other clients whose tokens are accepted. ``groups`` is
    the claim with a user's groups, ``name`` the claim with the user's name.
    """

    issuer: str
    id: str
    secret: str = ""
    scopes: str = "openid profile email"
    audience: str = ""
    parties: frozenset[str] = frozenset()
    groups: str = "groups"
    name: str = "preferred_username"

    def expectations(self, nonce: str | None = None) -> Expected:
        """Return the required content of a token that completes a sign-in (``nonce``) or is presented to the API."""
        audience = self.audience or self.id
        return Expected(self.issuer, self.id if nonce is not None else audience, self.parties | {self.id}, nonce)


class _FetchedResource(Generic[T]):
    """A resource of the provider, cached for `KEEP_SECONDS`.

    A cached value is returned without waiting, even during a fetch. Callers that need a newer value share one fetch. A
    failure is remembered for `REFETCH_SECONDS`: until then callers get the same error at once.
    """

    def __init__(self, fetch: Callable[[], Awaitable[T]], clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = anyio.Lock()
        self._value: T | None = None
        self._fetched_at = float("-inf")
        self._failure: ProviderUnavailable | None = None
        self._failed_at = float("-inf")

    def read_cached(self, max_age: float = KEEP_SECONDS) -> T | None:
        """Return the value if it was fetched within ``max_age`` seconds."""
        return self._value if self._clock() - self._fetched_at < max_age else None

    async def get(self, max_age: float = KEEP_SECONDS) -> T:
        """Return a value that was fetched within ``max_age`` seconds, from the provider if none is cached.

        Raises:
            ProviderUnavailable: the provider does not answer, or did not within the last `REFETCH_SECONDS`.
        """
        value = self.read_cached(max_age)
        if value is not None:
            return value
        async with self._lock:
            value = self.read_cached(max_age)  # another caller may have fetched it meanwhile
            if value is not None:
                return value
            if self._failure is not None and self._clock() - self._failed_at < REFETCH_SECONDS:
                raise ProviderUnavailable(self._failure.reason)  # a new one: each raise adds to an error's traceback
            try:
                value = await self._fetch()
            except ProviderUnavailable as exc:
                self._failure, self._failed_at = exc, self._clock()
                raise
            self._value, self._fetched_at, self._failure = value, self._clock(), None
            return value


class OidcProvider:
    """One OpenID provider; `aclose` ends its connections. ``clock`` returns monotonic seconds."""

    def __init__(self, client: ProviderClient, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        issuer = urlsplit(client.issuer)
        own = (issuer.hostname or "", issuer.port or (443 if issuer.scheme == "https" else 80))
        self._plain = issuer.scheme == "http"
        transport = CheckedTransport(CheckedBackend(frozenset({own})))
        self._http = httpx2.AsyncClient(transport=transport, timeout=TIMEOUT_SECONDS, trust_env=False)
        self._metadata = _FetchedResource(self._fetch_metadata, clock)
        self._keys = _FetchedResource(self._fetch_keys, clock)

    async def aclose(self) -> None:
        """End the connections."""
        await self._http.aclose()

    async def authorization_url(self, redirect: str, state: str, nonce: str, verifier: str) -> str:
        """Return the URL at which a browser signs in.

        Raises:
            ProviderUnavailable: the provider does not answer, or gives an invalid answer.
        """
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        values = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": redirect,
            "scope": self.client.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(await self._endpoint("authorization_endpoint"), values)

    async def logout_url(self, back: str) -> str | None:
        """Return the URL at which a browser ends its session at the provider, or None if the provider offers none."""
        if not (await self._description()).get("end_session_endpoint"):
            return None
        values = {"client_id": self.client.id, **({"post_logout_redirect_uri": back} if back else {})}
        return _with_query(await self._endpoint("end_session_endpoint"), values)

    async def redeem(self, code: str, verifier: str, redirect: str, nonce: str) -> Claims:
        """Exchange the browser's authorization code for the claims of the signed-in user.

        Raises:
            Unauthenticated: the code or the token is invalid.
            ProviderUnavailable: the provider does not answer, or gives an invalid answer.
        """
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
        description = await self._description()
        # OpenID Connect Discovery: without a list, the provider supports basic authentication.
        methods = description.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        basic = bool(self.client.secret) and "client_secret_basic" in methods
        if not basic:
            form["client_id"] = self.client.id
            if self.client.secret:
                form["client_secret"] = self.client.secret
        auth = httpx2.BasicAuth(_form(self.client.id), _form(self.client.secret)) if basic else None
        answer = await self._ask("POST", await self._endpoint("token_endpoint"), data=form, auth=auth)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Unauthenticated("The provider gave no token for this sign-in.")
        return await self.read(token, self.client.expectations(nonce))

    async def read(self, token: str, expected: Expected) -> Claims:
        """Return the claims of a token that the provider has signed and that is valid now.

        Raises:
            Unauthenticated: the token is not accepted.
            ProviderUnavailable: the provider's keys cannot be fetched.
        """
        algorithm, ident = check_header(_header_of(token))
        keys = await self._keys_for(algorithm, ident)
        for key in keys:
            try:
                claims = jwt.decode(token, key, algorithms=[algorithm]).claims
            except (JoseError, ValueError):
                continue  # several keys may fit, and only one of them has signed
            check_claims(claims, expected, time.time())
            return claims
        raise Unauthenticated("This token's signature is not the provider's.")

    async def _keys_for(self, algorithm: str, ident: str | None) -> list[Key]:
        """Return the keys that may have signed a token; if no cached key fits, ask the provider for newer ones."""
        fitting = _fitting(self._keys.read_cached() or [], algorithm, ident)
        return fitting or _fitting(await self._keys.get(REFETCH_SECONDS), algorithm, ident)

    async def _fetch_keys(self) -> list[Key]:
        listed = (await self._ask("GET", await self._endpoint("jwks_uri"))).get("keys")
        if not isinstance(listed, list):
            raise unavailable("its keys are no set of keys")
        keys = []
        for jwk in listed:
            if not isinstance(jwk, dict) or jwk.get("kty") not in ("RSA", "EC") or jwk.get("use", "sig") != "sig":
                continue
            try:
                keys.append(JWKRegistry.import_key(jwk))
            except (JoseError, ValueError, TypeError, KeyError):
                continue  # one unusable key must not exclude the others
        return keys

    async def _fetch_metadata(self) -> Mapping[str, Any]:
        metadata = await self._ask("GET", self.client.issuer.rstrip("/") + METADATA_PATH)
        if metadata.get("issuer") != self.client.issuer:
            raise unavailable("it says that it is another issuer than AGENTIC_RAG_OIDC_ISSUER")
        return metadata

    async def _description(self) -> Mapping[str, Any]:
        return await self._metadata.get()

    async def _endpoint(self, name: str) -> str:
        url = (await self._description()).get(name)
        if not isinstance(url, str) or urlsplit(url).scheme not in (("https", "http") if self._plain else ("https",)):
            raise unavailable(f"it has no {name} that can be used")
        return url

    async def _ask(self, method: str, url: str, **options: Any) -> Mapping[str, Any]:
        body = bytearray()
        try:
            with anyio.fail_after(TIMEOUT_SECONDS):  # the client's own timeout applies to each chunk of the response
                async with self._http.stream(method, url, follow_redirects=False, **options) as response:
                    async for piece in response.aiter_bytes():
                        body += piece
                        if len(body) > MAX_BYTES:
                            raise unavailable("its answer is too large")
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as exc:
            raise unavailable(f"{urlsplit(url).hostname}: {type(exc).__name__} {exc}".strip()) from exc
        if method == "POST" and 400 <= response.status_code < 500:
            raise Unauthenticated("The provider did not take the code of this sign-in.")
        if not response.is_success:
            raise unavailable(f"{urlsplit(url).hostname}: HTTP {response.status_code}")
        try:
            value = orjson.loads(bytes(body))
        except orjson.JSONDecodeError as exc:
            raise unavailable("its answer is no JSON") from exc
        if not isinstance(value, dict):
            raise unavailable("its answer is no object")
        return value


def _fitting(keys: Sequence[Key], algorithm: str, ident: str | None) -> list[Key]:
    """Return the keys of an algorithm's kind with an id; without an id only a single key of that kind fits."""
    kind = [key for key in keys if key.key_type == ALGORITHMS[algorithm]]
    if ident is None:
        return kind if len(kind) == 1 else []
    return [key for key in kind if key.as_dict().get("kid") == ident]


def unavailable(reason: str) -> ProviderUnavailable:
    """Log the reason for the operator and return the error for an unusable provider."""
    log.warning("the OpenID provider cannot be used: %s", reason)
    return ProviderUnavailable(reason)


def new_secret() -> str:
    """Return a new state, nonce or verifier."""
    return secrets.token_urlsafe(48)


def _header_of(token: str) -> Claims:
    first = token.partition(".")[0]
    try:
        header = orjson.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except ValueError as exc:
        raise Unauthenticated("This is no token.") from exc
    if not isinstance(header, dict):
        raise Unauthenticated("This is no token.")
    return header


def _with_query(url: str, values: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(values)}"


def _form(text: str) -> str:
    """Return a client's name or secret in the encoding of basic authentication (RFC 6749 2.3.1)."""
    return urlencode({"": text})[1:]
