"""An OpenID provider over real HTTP that signs anything a test asks for, with any key."""

import base64
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.ws.serving import serving

CLIENT = "rag"
Claims = dict[str, Any]


class Issuer:
    """The provider.

    ``keys`` are those it publishes, ``answer`` is its id token for any code, ``asked`` lists paths in order. The keys
    are published only when ``hang`` is set, with the HTTP status ``status``.
    """

    def __init__(self) -> None:
        self.url = ""
        self.first = RSAKey.generate_key(2048, {"kid": "first"})
        self.second = ECKey.generate_key("P-256", {"kid": "second"})
        self.keys: list[RSAKey | ECKey] = [self.first]
        self.answer = ""
        self.asked: list[str] = []
        self.form: dict[str, str] = {}
        self.described: Claims = {}
        self.hang: anyio.Event | None = None
        self.status = 200
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._describe),
                Route("/keys", self._show_keys),
                Route("/token", self._give, methods=["POST"]),
            ]
        )

    def claims(self, **extra_claims: Any) -> Claims:
        """Return the claims of ann, a member of legal. None removes a claim."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": "a-1", "aud": CLIENT, "iat": now, "exp": now + 300, "groups": ["legal"]}
        claims = {**claims, "preferred_username": "ann", "name": "Ann", **extra_claims}
        return {name: value for name, value in claims.items() if value is not None}

    def sign(self, claims: Claims, key: Any = None, alg: str = "RS256", **header: Any) -> str:
        """Return a token signed with a key, by default with the issuer's first one."""
        key = key or self.first
        return jwt.encode({"alg": alg, "kid": key.as_dict().get("kid"), **header}, claims, key, algorithms=[alg])

    def sign_with_public_key(self, claims: Claims) -> str:
        """Return a token signed with the public key as if it were a shared secret."""
        header = {"alg": "HS256", "kid": "first", "typ": "JWT"}
        text = ".".join(map(_encoded, (orjson.dumps(header), orjson.dumps(claims))))
        signature = hmac.digest(self.first.as_pem(private=False), text.encode(), "sha256")
        return f"{text}.{_encoded(signature)}"

    def make_unsigned(self, claims: Claims, alg: str = "none") -> str:
        """Return an unsigned token."""
        return ".".join(map(_encoded, (orjson.dumps({"alg": alg, "typ": "JWT"}), orjson.dumps(claims)))) + "."

    async def _describe(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        places = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        return JSONResponse({"issuer": self.url, **{n: self.url + p for n, p in places.items()}, **self.described})

    async def _show_keys(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if self.hang is not None:
            await self.hang.wait()
        unknown_type = {"kty": "XX", "kid": "odd"}
        return JSONResponse({"keys": [unknown_type, *(key.as_dict(private=False) for key in self.keys)]}, self.status)

    async def _give(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        self.form = {name: str(value) for name, value in (await request.form()).items()}
        self.form["authorization"] = request.headers.get("authorization", "")
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": self.answer})


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    """Serve an issuer."""
    issuer = Issuer()
    async with serving(issuer.app) as address:
        issuer.url = f"http://{address}"
        yield issuer
