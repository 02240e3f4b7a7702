"""Pages of a website as a source: listed addresses, and those of sitemaps.

Owns the requests under the rules for users' addresses: public addresses only, redirects within the site only, bounded
bodies and times, robots.txt respected. No link of a page is followed.
"""

import codecs
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urljoin, urlsplit

import anyio
import anyio.to_thread
import httpx2

from agentic_rag import __version__
from agentic_rag.base.errors import (
    AgenticRagError,
    DocumentTooLarge,
    InvalidInput,
    SourceItemSilent,
    SourceUnreadable,
)
from agentic_rag.directory.source_forms import ADDRESS_CHARS, WebsiteSource
from agentic_rag.sources.items import (
    ItemContent,
    ItemGone,
    Listing,
    Patterns,
    RunNotes,
    SourceItem,
    last_part,
    refuse_item,
)
from agentic_rag.sources.robots import AGENT, MAX_BYTES, NOTHING, Robots, read_robots
from agentic_rag.store.sources import SourceItemRecord
from agentic_rag.tools.launch.addresses import AddressPolicy
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport

ANSWER_SECONDS: Final = 20.0
"""Seconds until the headers of an answer."""
BODY_SECONDS: Final = 120.0
"""Seconds for the body of a page."""
MAX_REDIRECTS: Final = 5
SITEMAP_BYTES: Final = 16 * 1024 * 1024
"""Maximum length of an unpacked sitemap."""
MAX_SITEMAPS: Final = 200
"""Maximum number of sitemaps that are read, with those that an index of sitemaps lists."""

_RESPONSE = "response:"
"""Beginning of a version that consists of the headers of an answer."""

Site = tuple[str, int]
"""A host and a port. Port 0 stands for the usual ports of http and https."""


def check_website(form: WebsiteSource, reach: AddressPolicy) -> None:
    """Check the addresses of a website.

    Raises:
        InvalidInput: there is none, or one cannot be used.
    """
    if not form.urls and not form.sitemaps:
        raise InvalidInput("website", "at least one address in urls or sitemaps is needed.")
    for field, addresses in (("urls", form.urls), ("sitemaps", form.sitemaps)):
        for number, url in enumerate(addresses):
            problem = reach.problem(url)
            if problem:
                raise InvalidInput(f"website.{field}[{number}]", f"{url[:200]!r} cannot be used: {problem}.")


def _site_of(url: str) -> Site:
    parts = urlsplit(url)
    port = parts.port
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return (parts.hostname or "").lower(), 0 if port is None or port == usual else port


@dataclass(frozen=True, slots=True)
class _Listed:
    """An address of a sitemap. ``modified``: its ``lastmod``."""

    url: str
    modified: str = ""

    @property
    def version(self) -> str:
        """The version of the page; empty if only the page itself tells it."""
        return self.modified and f"sitemap:{self.modified}"


class WebsiteReader:
    """Reads pages of a website. Implements `ItemReader`. `website_reader` makes it."""

    def __init__(self, client: httpx2.AsyncClient, form: WebsiteSource, reach: AddressPolicy, limit: int) -> None:
        """``limit``: maximum bytes of a page."""
        self._client = client
        self._form = form
        self._reach = reach
        self._limit = limit
        self._sites = {_site_of(url) for url in (*form.urls, *form.sitemaps)}
        self._include = Patterns(form.include)
        self._robots: dict[tuple[str, str], Robots] = {}
        self._refused: list[str] = []

    async def note_refusal(self, reason: str) -> None:
        """Record why an address was refused when it was connected to."""
        self._refused.append(reason)

    async def list_items(self, most: int) -> Listing:
        """See `ItemReader.list_items`. Sitemaps name pages of the source's own sites only."""
        notes = RunNotes()
        pages: dict[str, _Listed] = {}
        complete = True

        def add(page: _Listed) -> None:
            nonlocal complete
            if page.url in pages:
                return
            if len(pages) == most:
                complete = False
                notes.add(f"there are more than {most} pages; the others are left out")
                return
            pages[page.url] = page

        for url in self._form.urls:
            add(_Listed(url))
        waiting, read = list(self._form.sitemaps), set[str]()
        while waiting and len(read) < MAX_SITEMAPS:
            url = waiting.pop(0)
            if url in read:
                continue
            read.add(url)
            listed, inner = await self._read_sitemap(url)
            waiting += [sitemap.url for sitemap in inner if self._is_ours(sitemap.url, notes)]
            for page in listed:
                if self._is_ours(page.url, notes) and (not self._form.include or self._include.match(page.url)):
                    add(page)
        if any(url not in read for url in waiting):
            complete = False
            notes.add(f"there are more than {MAX_SITEMAPS} sitemaps; the others are left out")
        items = [
            SourceItem(page.url, last_part(page.url), version=page.version, modified=page.modified)
            for page in pages.values()
        ]
        return Listing(items, complete, notes.texts)

    def _is_ours(self, url: str, notes: RunNotes) -> bool:
        try:
            ours = len(url) <= ADDRESS_CHARS and _site_of(url) in self._sites and not self._reach.problem(url)
        except ValueError:
            ours = False
        if not ours:
            notes.add(f"{url[:150]}: a sitemap lists an address outside of the source's sites; it is left out")
        return ours

    async def _read_sitemap(self, url: str) -> tuple[list[_Listed], list[_Listed]]:
        """Return the pages and the sitemaps that a sitemap lists.

        Raises:
            SourceUnreadable: a sitemap cannot be read. Its pages must not count as missing.
        """
        try:
            async with self._request(url, {}) as response:
                if response.status_code != 200:
                    raise SourceUnreadable(f"the sitemap {url[:200]} was answered with status {response.status_code}")
                data = await self._read_body(response, SITEMAP_BYTES, url)
        except SourceUnreadable:
            raise
        except (AgenticRagError, ItemGone) as exc:
            raise SourceUnreadable(f"the sitemap {url[:200]}: {exc}") from exc
        try:
            return await anyio.to_thread.run_sync(_parse_sitemap, data)
        except ValueError as exc:
            raise SourceUnreadable(f"the sitemap {url[:200]} cannot be read: {exc}") from exc

    @asynccontextmanager
    async def read_item(self, item: SourceItem, stored: SourceItemRecord | None) -> AsyncIterator[ItemContent | None]:
        """See `ItemReader.read_item`. An unchanged page is recognised by its ETag or its Last-Modified."""
        headers = {}
        if stored is not None and stored.version.startswith(_RESPONSE):
            etag, modified = json.loads(stored.version.removeprefix(_RESPONSE))
            headers = {"if-none-match": etag} if etag else {"if-modified-since": modified}
        async with self._request(item.uri, headers) as response:
            if response.status_code == 304 and headers:
                yield None
                return
            if response.status_code in (404, 410):
                raise ItemGone
            if response.status_code in (429, 503):
                host = response.request.url.host
                raise SourceUnreadable(f"{host} asked to be left alone for now (status {response.status_code})")
            if response.status_code != 200:
                raise refuse_item(f"status {response.status_code}")
            length = response.headers.get("content-length", "")
            if length.isascii() and length.isdigit() and int(length) > self._limit:
                raise DocumentTooLarge(item.name, self._limit)
            media_type = response.headers.get("content-type", "")
            etag, modified = response.headers.get("etag", ""), response.headers.get("last-modified", "")
            version = json.dumps([etag, modified]) if etag or modified else ""
            yield ItemContent(
                item.name,
                media_type,
                _as_utf8(self._chunks(response, self._limit, item.name), media_type),
                version=item.version or (f"{_RESPONSE}{version}" if 0 < len(version) <= 1_000 else ""),
                modified=item.modified or _iso_time(modified),
            )

    @asynccontextmanager
    async def _request(
        self, url: str, headers: dict[str, str], *, robots: bool = True
    ) -> AsyncIterator[httpx2.Response]:
        """Send a GET request, following redirects within the source's sites.

        Raises:
            SourceItemUnreadable: the address or a redirect is refused.
            SourceItemSilent: there is no answer.
        """
        # Redirects are followed here and not by the client, because each address is checked before it is requested.
        for _ in range(MAX_REDIRECTS + 1):
            problem = self._reach.problem(url)
            if problem:
                raise refuse_item(f"{url[:200]} is not requested: {problem}")
            if robots and not (await self._rules_for(url)).allows(_path_of(url)):
                raise refuse_item(f"robots.txt of {urlsplit(url).hostname} does not allow {url[:200]}")
            response = await self._send(url, headers)
            try:
                if not response.has_redirect_location:
                    yield response
                    return
                target = urljoin(url, response.headers["location"])
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
            try:
                inside = len(target) <= ADDRESS_CHARS and _site_of(target) in self._sites
            except ValueError:
                inside = False
            if not inside:
                raise refuse_item(f"it redirects outside of the source's sites, to {target[:200]}")
            url = target
        raise refuse_item(f"it redirects more than {MAX_REDIRECTS} times")

    async def _send(self, url: str, headers: dict[str, str]) -> httpx2.Response:
        host = urlsplit(url).hostname
        # A compressed answer could expand to any length.
        sent = {**headers, "user-agent": f"{AGENT}/{__version__}", "accept-encoding": "identity"}
        self._refused.clear()
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                request = self._client.build_request("GET", url, headers=sent)
                response = await self._client.send(request, stream=True, follow_redirects=False)
        except TimeoutError as exc:
            raise SourceItemSilent(f"{host} did not answer within {ANSWER_SECONDS:g} s") from exc
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as exc:
            if self._refused:
                raise refuse_item(f"{host} leads to an address that is refused") from exc
            raise SourceItemSilent(f"{host} could not be reached ({type(exc).__name__})") from exc
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise refuse_item(f"{host} compresses its answers, which it was asked not to do")
        return response

    async def _rules_for(self, url: str) -> Robots:
        parts = urlsplit(url)
        key = parts.scheme, parts.netloc
        if key not in self._robots:
            self._robots[key] = await self._read_robots(f"{parts.scheme}://{parts.netloc}/robots.txt")
        return self._robots[key]

    async def _read_robots(self, url: str) -> Robots:
        try:
            async with self._request(url, {}, robots=False) as response:
                # RFC 9309, 2.3.1: an error of the site forbids everything, and a missing file allows everything.
                if response.status_code >= 500 or response.status_code == 429:
                    return NOTHING
                if response.status_code != 200:
                    return Robots()
                data = bytearray()
                async for chunk in self._chunks(response, 2 * MAX_BYTES, "robots.txt"):
                    data += chunk
                    if len(data) >= MAX_BYTES:
                        break
                return read_robots(bytes(data))
        except SourceItemSilent as exc:
            raise SourceUnreadable(exc.problem) from exc
        except AgenticRagError:  # a redirect that is refused or endless: the file counts as unavailable
            return Robots()

    async def _read_body(self, response: httpx2.Response, limit: int, name: str) -> bytes:
        body = bytearray()
        async for chunk in self._chunks(response, limit, name):
            body += chunk
        return bytes(body)

    async def _chunks(self, response: httpx2.Response, limit: int, name: str) -> AsyncIterator[bytes]:
        """Yield a body of at most ``limit`` bytes, within `BODY_SECONDS`."""
        # One deadline for the whole body: the client's own time limit restarts with each byte.
        deadline, size = anyio.current_time() + BODY_SECONDS, 0
        parts = response.aiter_raw()
        while True:
            try:
                with anyio.fail_after(max(0.0, deadline - anyio.current_time())):
                    chunk = await anext(parts, b"")
            except TimeoutError as exc:
                raise SourceItemSilent(f"its content did not arrive within {BODY_SECONDS:g} s") from exc
            except (httpx2.HTTPError, httpx2.StreamError) as exc:
                raise SourceItemSilent(f"its content broke off ({type(exc).__name__})") from exc
            if not chunk:
                return
            size += len(chunk)
            if size > limit:
                raise DocumentTooLarge(name, limit)
            yield chunk


@asynccontextmanager
async def website_reader(form: WebsiteSource, reach: AddressPolicy, limit: int) -> AsyncIterator[WebsiteReader]:
    """Open a reader of a website. ``limit``: maximum bytes of a page."""
    readers: list[WebsiteReader] = []  # the reader needs the client, whose transport needs the reader

    async def note(reason: str) -> None:
        await readers[0].note_refusal(reason)

    backend = CheckedBackend(reach.exempt, unchecked=reach.unchecked, refused=note)
    async with (
        CheckedTransport(backend) as transport,
        httpx2.AsyncClient(transport=transport, trust_env=False, timeout=ANSWER_SECONDS) as client,
    ):
        readers.append(WebsiteReader(client, form, reach, limit))
        yield readers[0]


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _iso_time(http_date: str) -> str:
    try:
        return parsedate_to_datetime(http_date).isoformat() if http_date else ""
    except (ValueError, TypeError, OverflowError):  # the parser lets numbers of any size through
        return ""


async def _as_utf8(chunks: AsyncIterator[bytes], media_type: str) -> AsyncIterator[bytes]:
    """Yield a text in UTF-8 with a byte order mark, if the header names another encoding; anything else unchanged.

    Readers of text know the encoding from the bytes alone.
    """
    charset = ""
    for part in media_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'").lower()[:40]
    try:
        codec = codecs.lookup(charset) if charset and media_type.lower().startswith("text/") else None
        decoder = None if codec is None or codec.name == "utf-8" else codec.incrementaldecoder("replace")
    except (LookupError, TypeError, ValueError):
        decoder = None
    if decoder is None:
        async for chunk in chunks:
            yield chunk
        return
    yield codecs.BOM_UTF8
    async for chunk in chunks:
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", final=True).encode()


def _parse_sitemap(data: bytes) -> tuple[list[_Listed], list[_Listed]]:
    """Return the pages and the sitemaps that a sitemap lists. It is XML or a text with an address a line, also gzipped.

    Raises:
        ValueError: it is none of these.
    """
    # Imported on first use, because most servers read no sitemap.
    from lxml import etree

    if data.startswith(b"\x1f\x8b"):
        unpacker = zlib.decompressobj(wbits=31)
        try:
            data = unpacker.decompress(data, SITEMAP_BYTES + 1)  # a small file may expand to any length
        except zlib.error as exc:
            raise ValueError("it is damaged") from exc
        if len(data) > SITEMAP_BYTES:
            raise ValueError(f"it is larger than {SITEMAP_BYTES} bytes")
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        lines = (line.strip() for line in data.decode("utf-8", "replace").lstrip("\ufeff").splitlines())
        return [_Listed(line) for line in lines if line.startswith(("http://", "https://"))], []
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as exc:
        raise ValueError(str(exc)[:200]) from exc
    return list(_entries(root, "url")), list(_entries(root, "sitemap"))


def _entries(root: object, tag: str) -> Iterator[_Listed]:
    for entry in root.iterfind(f"{{*}}{tag}"):  # type: ignore[attr-defined]
        url = (entry.findtext("{*}loc") or "").strip()
        if url:
            yield _Listed(url, (entry.findtext("{*}lastmod") or "").strip()[:40])
