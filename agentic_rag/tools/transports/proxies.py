"""The operator's web proxy: which requests use it, and to which targets it may be asked to connect.

Owns the reading of ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` (also in lower case), and the
address rules for targets that a proxy resolves. Loopback targets never use a proxy, since its loopback is another
machine's. Every message names the proxy without the credentials in its address.
"""

import ipaddress
import re
import socket
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from agentic_rag.tools.launch.addresses import address_problem

MAX_EXCEPTIONS = 500
"""Maximum number of parts of ``NO_PROXY``."""

_PRIVATE_NAMES = ("localhost", "local", "internal", "intranet", "private", "corp", "home", "lan", "home.arpa")
"""Ends of names that no public name server knows."""
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Proxies:
    """Proxies by the scheme of the target (``http``, ``https``), and the targets that are connected to directly."""

    by_scheme: Mapping[str, str] = field(default_factory=dict, repr=False)
    exceptions: tuple[str, ...] = ()

    def proxy_for(self, url: httpx2.URL) -> httpx2.Proxy | None:
        """Return the proxy for a request, None to connect directly.

        Raises:
            httpx2.ProxyError: The environment names an unusable proxy.
        """
        address = self.by_scheme.get(url.scheme)
        host = url.host.lower().rstrip(".")
        if not address or _is_loopback(host) or self._is_exception(host, url.port or _default_port(url.scheme)):
            return None
        try:
            proxy = httpx2.Proxy(address if "://" in address else f"http://{address}")
        except (httpx2.InvalidURL, ValueError) as exc:
            raise httpx2.ProxyError(f"{url.scheme.upper()}_PROXY is no address of a proxy") from exc
        if proxy.url.scheme not in ("http", "https") or not proxy.url.host:
            kinds = "a proxy of http:// or https:// is needed"
            raise httpx2.ProxyError(f"{url.scheme.upper()}_PROXY is {proxy.url.scheme}://{proxy.url.host}; {kinds}")
        return proxy

    def _is_exception(self, host: str, port: int) -> bool:
        for text in self.exceptions:
            name, _, port_text = text.rpartition(":")
            numbered = bool(name) and port_text.isdecimal() and (":" not in name or name.startswith("["))
            if numbered and int(port_text) != port:
                continue
            name = (name if numbered else text).strip("[]")
            if name == "*" or host == name.lstrip("*.") or host.endswith(f".{name.lstrip('*.')}"):
                return True
            if "/" in name and _is_inside(host, name):
                return True
        return False


def environment_proxies() -> Proxies:
    """Return the proxies that the environment names."""
    proxies = urllib.request.getproxies()
    by_scheme = {scheme: proxies.get(scheme) or proxies.get("all", "") for scheme in ("http", "https")}
    exceptions = [part.strip().lower() for part in proxies.get("no", "").split(",")]
    return Proxies(
        {scheme: text for scheme, text in by_scheme.items() if text}, tuple(filter(None, exceptions))[:MAX_EXCEPTIONS]
    )


def proxied_problem(host: str) -> str:
    """Return why a proxy must not be asked for a host, judged by its name; empty if it may be asked."""
    name = host.lower().rstrip(".")
    try:
        return address_problem(ipaddress.ip_address(name.strip("[]").partition("%")[0]))
    except ValueError:
        pass
    if _NUMBER.fullmatch(name):  # other spellings of an IPv4 address: 2130706433, 0x7f.1
        try:
            return address_problem(ipaddress.IPv4Address(socket.inet_aton(name)))
        except (OSError, ValueError):
            return "not a public name"
    if "." not in name or any(name == end or name.endswith(f".{end}") for end in _PRIVATE_NAMES):
        return "not a public name"
    return ""


def proxy_name(proxy: httpx2.Proxy) -> str:
    """Return a proxy's name for messages: host and port."""
    return f"{proxy.url.host}:{proxy.url.port or _default_port(proxy.url.scheme)}"


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _is_inside(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except (ValueError, TypeError):
        return False
