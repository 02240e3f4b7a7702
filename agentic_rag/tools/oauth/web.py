"""Requests to authorization servers: untrusted addresses, under the rules of users' servers.

Owns the connection rules (https, public addresses, no redirect, nothing from the environment), and the limits on the
time and length of an answer. Knows no OAuth. No answer's text is repeated: it may hold a token.
"""

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

import anyio
import httpx2

from agentic_rag.tools.launch.addresses import AddressPolicy
from agentic_rag.tools.oauth.errors import SignInProblem, SignInSilent
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport

ANSWER_BYTES = 256 * 1024
"""Maximum length of a document of an authorization server."""

ANSWER_SECONDS = 10.0
"""Time limit for one answer, from the connection to its last byte."""


class Web(Protocol):
    """Sends requests of a sign-in."""

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Return the whole answer, with any status.

        Raises:
            SignInProblem: The address or the answer is refused.
            SignInSilent: There is no answer.
        """
        ...


class CheckedWeb:
    """Implements `Web` under the network rules of users' servers. ``seconds``: time limit for one answer."""

    def __init__(self, reach: AddressPolicy, seconds: float = ANSWER_SECONDS) -> None:
        self.reach = reach
        self._seconds = seconds

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """See `Web.send`."""
        host = request.url.host
        problem = self.reach.problem(str(request.url))
        if problem:
            raise SignInProblem(f"{host} is not asked, {problem}")
        refusals: list[str] = []

        async def note(reason: str) -> None:
            refusals.append(reason)

        backend = CheckedBackend(self.reach.exempt, unchecked=self.reach.unchecked, refused=note)
        request.headers["accept-encoding"] = "identity"  # a compressed answer could expand to any length
        try:
            with anyio.fail_after(self._seconds):
                async with (
                    CheckedTransport(backend) as transport,
                    httpx2.AsyncClient(transport=transport, trust_env=False, timeout=self._seconds) as client,
                ):
                    response = await client.send(request, stream=True, follow_redirects=False)
                    body = await _read(response, host)
        except TimeoutError as exc:
            raise SignInSilent(f"{host} did not answer within {self._seconds:g} s") from exc
        except (httpx2.HTTPError, httpx2.StreamError) as exc:
            if refusals:
                raise SignInProblem(f"{host} leads to an address that is refused") from exc
            raise SignInSilent(f"{host} could not be asked ({type(exc).__name__})") from exc
        return httpx2.Response(
            response.status_code, headers=_without_coding(response.headers), content=body, request=request
        )


def check_readable(url: str) -> None:
    """Refuse an address that the HTTP client cannot read, for example one of 70 000 characters.

    Raises:
        SignInProblem: The address is not readable.
    """
    try:
        httpx2.URL(url)
    except httpx2.InvalidURL as exc:
        raise SignInProblem(f"{url[:200]} is not asked, it is no address: {exc}") from exc


def is_same_origin(first: str, second: str) -> bool:
    """Return whether two addresses have the same scheme, host and port. False if one is no address."""
    try:
        return _origin(urlsplit(first)) == _origin(urlsplit(second))
    except ValueError:
        return False


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


async def _read(response: httpx2.Response, host: str) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise SignInProblem(f"{host} compresses its answers, which it was asked not to do")
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > ANSWER_BYTES:
            raise SignInProblem(f"the answer of {host} is longer than {ANSWER_BYTES} bytes")
    await response.aclose()
    return bytes(body)


def _without_coding(headers: Mapping[str, str]) -> dict[str, str]:
    coding = ("content-encoding", "transfer-encoding")
    return {name: text for name, text in headers.items() if name.lower() not in coding}
