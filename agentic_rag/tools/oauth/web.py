"""Requests to authorization servers: addresses that strangers name, under the rules of users' servers.

Owns what is connected to (https, public addresses, no redirect, nothing from the environment), how long an answer may
take and how long it may be. Knows no OAuth. No answer's words are repeated: they may hold a token.
"""

from collections.abc import Mapping
from typing import Protocol

import anyio
import httpx2

from agentic_rag.tools.launch.addresses import AddressPolicy
from agentic_rag.tools.oauth.errors import SignInProblem, SignInSilent
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport

ANSWER_BYTES = 256 * 1024
"""No document of an authorization server is longer."""

ANSWER_SECONDS = 10.0
"""For one answer, from the connection to its last byte."""


class Web(Protocol):
    """Sends requests of a sign-in."""

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Return the whole answer, whatever its status.

        Raises:
            SignInProblem: the address is refused, or the answer is.
            SignInSilent: there is none.
        """
        ...


class CheckedWeb:
    """Implements `Web` under the network rules of users' servers. ``seconds``: for one answer."""

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
        request.headers["accept-encoding"] = "identity"  # a compressed answer may be of any length
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
