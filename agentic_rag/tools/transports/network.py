"""Connections to users' addresses: the IP address that was checked is the one that is connected to.

Owns the resolution of a name right before its connection, once, so that a second answer of a name server has no effect.
TLS still uses the name (certificate and SNI), since only the address is replaced. Where the operator's environment
names a proxy, the proxy resolves the name, and `CheckedBackend.check_proxied` decides which targets the proxy may be
asked for. Knows no MCP.
"""

import contextlib
import functools
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import httpcore2
import httpx2
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream

from agentic_rag.tools.launch.addresses import AddressPolicy, address_problem, is_listed
from agentic_rag.tools.transports.proxies import Proxies, environment_proxies, proxied_problem

MAX_CONNECTIONS, KEEPALIVE_SECONDS = 100, 5.0
"""Limits per server, equal to the HTTP client's defaults."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Takes a host and a port; returns IP addresses as text. Raises `OSError` if there is none."""

RefusalListener = Callable[[str], Awaitable[None]]
"""Receives the reason for each address that was refused."""


LOOK_SECONDS = 2.0
"""Time limit for resolving a name that a proxy will resolve itself."""


def url_problem(reach: AddressPolicy, url: str) -> str:
    """Return why no request may or can be sent to an untrusted address, or empty text.

    The HTTP client cannot read some addresses that the pure rules accept, for example ``https://999.1.1.1/``.
    """
    problem = reach.problem(url)
    if problem:
        return problem
    try:
        httpx2.URL(url)
    except httpx2.InvalidURL as exc:
        return f"it is no address: {exc}"
    return ""


async def unheard(reason: str) -> None:
    """Ignore the refusal."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host as the system resolves it; every spelling of a number becomes one form.

    The look-up runs in a thread outside the loop's pool. The pool has a handful of threads for all names, including
    those of the models' services, and a user's name server that does not answer would block each for half a minute.
    """
    resolve = partial(socket.getaddrinfo, host.encode("ascii"), port, type=socket.SOCK_STREAM)
    infos = await anyio.to_thread.run_sync(resolve, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class CheckedBackend(AsyncNetworkBackend):
    """Opens connections to public addresses and to those the operator listed, no others."""

    def __init__(
        self,
        exempt: frozenset[tuple[str, int]],
        *,
        unchecked: bool = False,
        resolve: Resolve = resolve_host,
        refused: RefusalListener = unheard,
    ) -> None:
        """Store the rules. ``exempt``: hosts and ports (see `is_listed`) that may be reached at any IP address.

        ``unchecked``: every host may be reached at any address.
        """
        self._exempt = exempt
        self._unchecked = unchecked
        self._resolve = resolve
        self._refused = refused
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        # The checked addresses are connected to, not the name: a second resolution could lead elsewhere.
        if self._unchecked or is_listed(self._exempt, host, port):
            return await self._plain.connect_tcp(host, port, timeout, local_address, socket_options)
        try:
            with anyio.fail_after(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError as exc:
            raise httpcore2.ConnectTimeout(f"{host} was not resolved in time") from exc
        except (OSError, UnicodeError) as exc:
            raise httpcore2.ConnectError(f"{host} cannot be resolved") from exc
        for text in addresses:
            problem = address_problem(ipaddress.ip_address(text.partition("%")[0]))
            if problem:  # one suffices: a name with both a private and a public address is no accident
                await self._refused(f"{host} leads to {text}, which is refused ({problem})")
                # The admin who entered a name must not learn its address or the kind of its address.
                why = f" ({problem})" if text == host else ""
                raise httpcore2.ConnectError(f"{host} leads to an address that is refused{why}")
        last: httpcore2.ConnectError | None = None
        for text in addresses:
            try:
                return await self._plain.connect_tcp(text, port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as exc:
                last = exc
        raise last or httpcore2.ConnectError(f"{host} has no address")

    async def check_proxied(self, host: str, port: int) -> None:
        """Refuse a target that a proxy must not be asked for: a private address, or a name that is not public.

        A name that resolves here is checked by its address. Any other name is left to the proxy.

        Raises:
            httpcore2.ConnectError: The text tells how the operator can allow the target.
        """
        if self._unchecked or is_listed(self._exempt, host, port):
            return
        problem = proxied_problem(host)
        if not problem:
            with anyio.move_on_after(LOOK_SECONDS), contextlib.suppress(OSError, UnicodeError):
                # An IPv6 address may end with the name of an interface (``fe80::1%eth0``).
                addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in await self._resolve(host, port)]
                problem = next(filter(None, map(address_problem, addresses)), "")
        if problem:
            remedy = f"the operator can list {host}:{port} in AGENTIC_RAG_MCP_HOSTS"
            reason = f"the proxy is not asked for {host} ({problem}); {remedy}"
            await self._refused(reason)
            raise httpcore2.ConnectError(reason)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> AsyncNetworkStream:
        raise httpcore2.ConnectError("a local socket is no address of a server")

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


@functools.cache
def _trusted_authorities() -> ssl.SSLContext:
    """Cache the certificates of all authorities: reading them takes 50 ms of the event loop."""
    return httpx2.create_ssl_context(trust_env=False)


class CheckedTransport(httpx2.AsyncHTTPTransport):
    """HTTP over checked connections, or through the operator's proxy. No certificate store from the environment."""

    def __init__(
        self, backend: CheckedBackend, verify: ssl.SSLContext | None = None, proxies: Proxies | None = None
    ) -> None:
        """Create the connection pool. Without ``proxies``, those of the present environment are used."""
        context = verify or _trusted_authorities()
        super().__init__(verify=context, trust_env=False)
        self._backend = backend
        self._context = context
        self._proxies = environment_proxies() if proxies is None else proxies
        self._proxied: dict[str, httpx2.AsyncHTTPTransport] = {}
        """Transports through the proxy, by the scheme of the target."""
        # The only way to set a network backend: the public constructor has no such parameter.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        proxy = self.proxy_for(request.url)
        if proxy is None:
            return await super().handle_async_request(request)
        url = request.url
        try:
            await self._backend.check_proxied(url.host, url.port or (443 if url.scheme == "https" else 80))
        except httpcore2.ConnectError as exc:
            raise httpx2.ConnectError(str(exc), request=request) from exc
        transport = self._proxied.get(url.scheme)
        if transport is None:
            transport = httpx2.AsyncHTTPTransport(verify=self._context, trust_env=False, proxy=proxy)
            self._proxied[url.scheme] = transport
        return await transport.handle_async_request(request)

    def proxy_for(self, url: httpx2.URL) -> httpx2.Proxy | None:
        """Return the proxy for a request, None to connect directly; see `Proxies.proxy_for`."""
        return self._proxies.proxy_for(url)

    async def aclose(self) -> None:
        for transport in self._proxied.values():
            await transport.aclose()
        await super().aclose()
