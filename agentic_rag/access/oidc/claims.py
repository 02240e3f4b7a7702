"""Checks of an OpenID provider's tokens. Pure: time is an argument.

This module checks claims and headers (OpenID Connect Core 3.1.3.7, RFC 9068). The ``tokens`` module checks signatures.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentic_rag.base.errors import Unauthenticated
from agentic_rag.base.json_form import is_finite_number

LEEWAY_SECONDS: Final = 30.0
"""Maximum difference in seconds between the provider's clock and ours."""
MAX_TEXT: Final = 255
"""Maximum length of a subject in characters (OpenID Connect Core 2)."""
MAX_GROUPS: Final = 2_000
ALGORITHMS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
}
"""Accepted signature algorithms and their kinds of key. Unsigned tokens and shared secrets are never accepted."""
TYPES: Final = frozenset({"", "jwt", "at+jwt", "application/at+jwt", "application/jwt"})

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """The required content of a token.

    ``nonce`` is that of the sign-in that the token completes; None: an API client presents the token. ``parties`` are
    the clients that the token may have been issued to; None: any client.
    """

    issuer: str
    audience: str
    parties: frozenset[str] | None
    nonce: str | None = None


def check_header(header: Claims) -> tuple[str, str | None]:
    """Return the signature algorithm and the key id of a token.

    Raises:
        Unauthenticated: the token is not signed as required.
    """
    algorithm, ident, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise Unauthenticated("This token is not signed with an algorithm that counts here.")
    if "crit" in header or not isinstance(kind, str) or kind.lower() not in TYPES:
        raise Unauthenticated("This token is of another kind.")
    if ident is not None and not isinstance(ident, str):
        raise Unauthenticated("This token names no key.")
    return algorithm, ident


def check_claims(claims: Claims, expected: Expected, now: float) -> None:
    """Check the claims of a signed token. ``now``: seconds since 1970.

    Raises:
        Unauthenticated: the token has another issuer, is for another audience or client, is not valid now, or belongs
            to another sign-in.
    """
    if claims.get("iss") != expected.issuer:
        raise Unauthenticated("This token is of another issuer.")
    _check_audience(claims, expected)
    _check_times(claims, now)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_TEXT:
        raise Unauthenticated("This token names no user (claim sub).")
    if expected.nonce is not None:
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), expected.nonce.encode()):
            raise Unauthenticated("This token is of another sign-in.")


def _check_audience(claims: Claims, expected: Expected) -> None:
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or expected.audience not in audiences:
        raise Unauthenticated("This token is for another audience.")
    party = claims.get("azp")
    if party is None and not (expected.nonce is not None and len(audiences) > 1):
        return
    if expected.parties is not None and party not in expected.parties:
        raise Unauthenticated("This token was given to another client.")


def _check_times(claims: Claims, now: float) -> None:
    ends = _time(claims, "exp")
    if ends is None or now >= ends + LEEWAY_SECONDS:
        raise Unauthenticated("This token has expired.")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and begins > now + LEEWAY_SECONDS:
            raise Unauthenticated("This token is not valid yet.")


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if not is_finite_number(value):
        raise Unauthenticated(f"This token's {name} is no time.")
    return float(value)


def groups_in(claims: Claims, path: str) -> tuple[str, ...]:
    """Return the groups in a token. ``path``: the claim's name, or a dotted path inside objects.

    A claim with the whole name takes precedence over a path (``https://rag.example/groups`` contains dots, too).
    """
    claim = _at(claims, path)
    listed = [claim] if isinstance(claim, str) else claim
    if not isinstance(listed, list):
        return ()
    return tuple(group for group in listed[:MAX_GROUPS] if isinstance(group, str))


def text_in(claims: Claims, *names: str) -> str:
    """Return the first of these claims that is a non-empty text, or an empty text."""
    values = (_at(claims, name) for name in names)
    return next((value for value in values if isinstance(value, str) and value), "")


def _at(claims: Claims, path: str) -> Any:
    if path in claims:
        return claims[path]
    place: Any = claims
    for part in path.split("."):
        place = place.get(part) if isinstance(place, Mapping) else None
    return place
