"""Explanations of failures between us and an MCP server over HTTP: what happened, and what to do.

Owns the explanation of answers that are not MCP (401 to 500, web pages, redirects) and of connections that fail (names,
TLS, timeouts, proxies). At most `EXCERPT_CHARS` of a server's own message are quoted. No text contains a header's value
or a secret from the address: both are replaced, also in percent-encoded form.
"""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import httpx2

from agentic_rag.base.forms import one_line
from agentic_rag.tools.launch.addresses import HttpEndpoint

EXCERPT_CHARS = 200
ERROR_BYTES = 64 * 1024
"""Maximum number of bytes read of a failed answer's body."""
ERROR_SECONDS = 5.0
"""Time limit for reading that body."""
SHORTEST_SECRET = 3
"""Shorter values are not replaced in a server's message, because they would match everywhere."""

_PLAIN_HEADERS = frozenset({"accept", "accept-language", "user-agent", "content-type", "referer", "origin"})
"""Headers of an entry that carry no credentials."""
_MESSAGES = ("message", "error_description", "detail", "title", "error", "reason", "msg")
"""Members of a JSON error in which services put their message."""
_TAGS = re.compile(r"<[^<>]{0,500}>")
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{1,500})", re.IGNORECASE)
_TOO_MANY, _MAX_DEPTH = 429, 4


def explain_status(request: httpx2.Request, response: httpx2.Response, body: bytes, endpoint: HttpEndpoint) -> str:
    """Explain an answer with an error status, and name a remedy."""
    status, host = response.status_code, request.url.host
    server_text = excerpt(body, response.headers.get("content-type", ""), endpoint)
    quoted = f"HTTP {status}: {server_text}" if server_text else f"HTTP {status}"
    if status in (401, 403):
        return _explain_refusal(quoted, endpoint)
    if status == 407:
        return f"the proxy wants credentials ({quoted}). Write them into HTTPS_PROXY: http://user:password@host:port."
    if status == 404:
        return f"there is no MCP server at this path of {host} ({quoted}). Check the path of the url."
    if status == 405:
        return f"this path of {host} takes no MCP messages ({quoted}). Check the path, and the type of the entry."
    if status == 406 or status == 415:
        return f"{host} does not speak this transport ({quoted}). Check the type of the entry: http or sse."
    if status == _TOO_MANY:
        wait = one_line(response.headers.get("retry-after", ""))[:60]
        when = (
            f"Try again after {wait} s." if wait.isdecimal() else f"Try again after {wait}." if wait else "Try later."
        )
        return f"{host} takes no more requests now ({quoted}). {when}"
    if status >= 500:
        return f"{host} failed ({quoted}). The fault is the server's; try again, or ask who runs it."
    return f"{host} refused the request ({quoted}). Check the url and the headers of the entry."


def explain_content(request: httpx2.Request, response: httpx2.Response, body: bytes, endpoint: HttpEndpoint) -> str:
    """Explain an answer that is neither JSON nor an event stream."""
    kind = one_line(response.headers.get("content-type", "").partition(";")[0])[:60] or "no content type"
    host = request.url.host
    if "html" in kind:
        server_text = excerpt(body, kind, endpoint)
        page = f"a web page ({server_text})" if server_text else "a web page"
        return (
            f"{host} answered with {page}, not as an MCP server. The url may be a site's or a sign-in page's: check it."
        )
    return f"{host} answered with {kind}, not as an MCP server. Check the path of the url."


def explain_connection(exc: httpx2.TransportError, url: httpx2.URL, proxy: str) -> str:
    """Explain a failed connection. ``proxy``: the proxy that was used, empty for none."""
    host = url.host
    place = f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"
    through = f" through the proxy {proxy}" if proxy else ""
    cause = next((error for error in _causes(exc) if isinstance(error, ssl.SSLError | OSError)), None)
    if isinstance(exc, httpx2.ProxyError):
        return f"the proxy {proxy} did not connect to {place}: {one_line(str(exc))[:EXCERPT_CHARS]}."
    if isinstance(exc, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return f"{place} did not answer in time{through}. Check the address, and whether a firewall is between."
    if isinstance(exc, httpx2.TimeoutException):
        return f"{place} was silent for too long{through}."
    text = one_line(str(exc))[:300]
    target = f"the proxy {proxy}" if proxy else place
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not valid: {one_line(cause.verify_message)[:EXCERPT_CHARS]}."
    if isinstance(cause, ssl.SSLError) or "SSL" in text or "TLS" in text:
        remedy = "Does the server speak https on this port?"
        return f"no TLS connection to {place}{through}: {text or type(exc).__name__}. {remedy}"
    if isinstance(cause, socket.gaierror):
        return f"{host} has no address: {text}. Check the spelling of the host."
    if isinstance(cause, ConnectionRefusedError) or "All connection attempts" in text:
        return f"nothing listens at {target}. Is the server running there, and the port right?"
    if isinstance(exc, httpx2.ConnectError):
        return text or f"no connection to {target}"
    return f"the connection to {place}{through} broke off: {text or type(exc).__name__}."


def excerpt(body: bytes, kind: str, endpoint: HttpEndpoint) -> str:
    """Return the beginning of a server's own message, on one line, without the entry's secrets."""
    text = body[:ERROR_BYTES].decode("utf-8", "replace")
    if "json" in kind.lower() or text.lstrip()[:1] == "{":
        try:
            text = _message_in(json.loads(text))
        except (ValueError, RecursionError):
            text = ""
    elif "html" in kind.lower() or text.lstrip()[:1] == "<":
        match = _TITLE.search(text[:16_000])
        text = _TAGS.sub(" ", match[1]) if match else ""
    for secret in _secrets_of(endpoint):
        text = text.replace(secret, "[secret]")
    return one_line(text)[:EXCERPT_CHARS].rstrip(".")


def _explain_refusal(quoted: str, endpoint: HttpEndpoint) -> str:
    names = [name for name in endpoint.headers if name.lower() not in _PLAIN_HEADERS]
    places = []
    if names:
        places.append(f"the header{'s' if len(names) > 1 else ''} {' and '.join(names)}"[:EXCERPT_CHARS])
    if endpoint.url_secrets:
        places.append(f"the url ({', '.join(f'${{{name}}}' for name in endpoint.url_secrets)})"[:EXCERPT_CHARS])
    if not places:
        remedy = "It offers no sign-in, and the entry has no credentials: add the header that its documentation names."
        return f"the server refused the request ({quoted}). {remedy}"
    return f"the server refused the credentials in {' and '.join(places)} ({quoted}). It offers no sign-in; check them."


def _secrets_of(endpoint: HttpEndpoint) -> list[str]:
    values: set[str] = set()
    for value in (*endpoint.url_secrets.values(), *endpoint.headers.values()):
        data = value.encode("utf-8", "surrogatepass")
        _, _, rest = value.partition(" ")
        values |= {value, quote(data, safe=""), quote(data), quote_plus(data), rest}
    return sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)


def _message_in(value: object, depth: int = 0) -> str:
    """Return the message of a JSON error from the first of the known members."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        for key in _MESSAGES:
            text = _message_in(value.get(key), depth + 1)
            if text:
                return text
    return ""


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if exc is None:
            return
        yield exc
        exc = exc.__cause__ or exc.__context__
