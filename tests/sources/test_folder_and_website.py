"""Folders and websites as sources: what an admin may name, what is read, and hostile sites."""

import gzip
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from agentic_rag.sources.robots import Robots, read_robots
from tests.server.rig import Json, Rig
from tests.sources.support import documents_of, items_of, make_source, run_again, wait_for_end
from tests.ws.serving import serving

pytestmark = pytest.mark.attack(kind="web")

Page = Callable[[Request], Response]
HTML = "text/html; charset=utf-8"


class Site:
    """A website whose pages a test changes. ``requests`` counts the answers by path and status."""

    def __init__(self) -> None:
        self.pages: dict[str, str | Page] = {}
        self.requests: Counter[tuple[str, int]] = Counter()
        self.address = ""

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def answer(self, request: Request) -> Response:
        page = self.pages.get(request.url.path)
        if page is None:
            response = Response(status_code=404)
        elif isinstance(page, str):
            etag = f'"{len(page)}-{page[-9:-4]}"'
            if request.headers.get("if-none-match") == etag:
                response = Response(status_code=304)
            else:
                response = Response(page, headers={"etag": etag, "content-type": HTML})
        else:
            response = page(request)
        self.requests[request.url.path, response.status_code] += 1
        return response

    def take_requests(self) -> Counter[tuple[str, int]]:
        requests, self.requests = self.requests, Counter()
        return requests


@asynccontextmanager
async def serve_website() -> AsyncIterator[Site]:
    site = Site()

    async def take(request: Request) -> Response:
        return site.answer(request)

    async with serving(Starlette(routes=[Route("/{path:path}", take)])) as address:
        site.address = address
        yield site


def page(text: str) -> str:
    return f"<html><body><h1>Pump</h1><p>{text}</p></body></html>"


def sitemap(site: Site, *entries: str, tag: str = "url", around: str = "urlset") -> Page:
    items = "".join(f"<{tag}>{entry}</{tag}>" for entry in entries)
    text = f'<?xml version="1.0"?><{around} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{items}</{around}>'
    return lambda request: Response(text, media_type="application/xml")


def location(site: Site, path: str, modified: str = "") -> str:
    return f"<loc>{site.url}{path}</loc>" + (f"<lastmod>{modified}</lastmod>" if modified else "")


async def test_a_website_is_read_by_its_sitemaps_and_only_changed_pages_are_sent_again(tmp_path: Path) -> None:
    async with serve_website() as site, Rig(tmp_path, mcp_hosts=site.address) as rig:
        site.pages |= {
            "/robots.txt": "User-agent: *\nDisallow: /private\n",
            "/a.html": page("zebraone"),
            "/b": page("zebratwo"),
            "/c.php": page("zebrathree"),
            "/private/d": page("zebrafour"),
            "/latin": lambda _: Response("<p>Größe</p>".encode("latin-1"), media_type="text/html; charset=iso-8859-1"),
        }
        inner_sitemap = sitemap(
            site, location(site, "/c.php", "2026-01-05"), location(site, "/private/d"), location(site, "/b")
        )
        packed_sitemap = gzip.compress(inner_sitemap(None).body)  # type: ignore[arg-type]
        site.pages["/inner.xml.gz"] = lambda _: Response(packed_sitemap, media_type="application/gzip")
        index = sitemap(site, location(site, "/inner.xml.gz"), tag="sitemap", around="sitemapindex")
        site.pages["/sitemap.xml"] = index
        domain = await rig.domain()
        form = {"urls": [f"{site.url}/a.html", f"{site.url}/latin"], "sitemaps": [f"{site.url}/sitemap.xml"]}
        source = await make_source(rig, domain, mcp=None, website=form)
        await rig.taken_up(domain)
        documents = {document["sourceUri"]: document for document in await documents_of(rig, domain)}
        names = {uri.removeprefix(site.url): document["name"] for uri, document in documents.items()}
        assert names == {"/a.html": "a.html", "/latin": "latin.html", "/b": "b.html", "/c.php": "c.php.html"}
        assert documents[f"{site.url}/c.php"]["date"] == "2026-01-05"
        [unreadable] = await items_of(rig, domain, source, failed=True)
        assert "robots.txt" in unreadable["error"]["message"]
        assert site.take_requests()["/private/d", 200] == 0
        hits = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "Größe"})
        assert hits["hits"][0]["documentName"] == "latin.html"
        site.pages["/b"] = page("zebrafive")
        source = await run_again(rig, domain, source)
        requests = site.take_requests()
        assert (requests["/a.html", 304], requests["/b", 200]) == (1, 1)
        assert not any(path == "/c.php" for path, _ in requests)  # its lastmod is unchanged
        assert source["counts"]["changed"] == 1
        del site.pages["/b"]
        source = await run_again(rig, domain, source)
        assert source["counts"]["removed"] == 1
        assert len(await documents_of(rig, domain)) == 3


async def test_a_page_changed_on_an_impossible_day_is_read(tmp_path: Path) -> None:
    async with serve_website() as site, Rig(tmp_path, mcp_hosts=site.address) as rig:
        impossible = {"last-modified": "Mon, 01 Jan 99999999999 00:00:00 GMT", "content-type": HTML}
        site.pages["/a.html"] = lambda _: Response(page("zebraone"), headers=impossible)
        domain = await rig.domain()
        await make_source(rig, domain, mcp=None, website={"urls": [f"{site.url}/a.html"]})
        await rig.taken_up(domain)
        assert [document["name"] for document in await documents_of(rig, domain)] == ["a.html"]


async def test_named_pages_beyond_the_limit_are_left_out_and_named_and_keep_their_documents(tmp_path: Path) -> None:
    async with serve_website() as site, Rig(tmp_path, mcp_hosts=site.address) as rig:
        site.pages |= {"/a": page("zebraone"), "/b": page("zebratwo"), "/c": page("zebrathree")}
        domain = await rig.domain()
        form = {"urls": [f"{site.url}{path}" for path in ("/a", "/b", "/c")]}
        source = await make_source(rig, domain, mcp=None, website=form)
        limited = await rig.ok("PATCH", f"/api/domains/{domain}/sources/{source['id']}", {"maxItems": 2})
        source = await wait_for_end(rig, domain, limited["id"], source["endedAt"])
        assert source["counts"]["listed"] == 2
        assert any("more than 2" in note for note in source["notes"])
        assert len(await documents_of(rig, domain)) == 3


async def test_a_hostile_site_costs_its_pages_and_reaches_nothing_else(tmp_path: Path) -> None:
    async with (
        serve_website() as site,
        serve_website() as outside_site,
        Rig(tmp_path, mcp_hosts=site.address, max_upload_bytes=1024 * 1024) as rig,
    ):
        outside_site.pages["/secret"] = page("zebrasecret")

        async def endless() -> AsyncIterator[bytes]:
            while True:
                await anyio.lowlevel.checkpoint()  # so that the site notices the end of the connection
                yield b"x" * 65_536

        large = {"content-type": HTML, "content-length": str(2 * 1024**3)}
        site.pages |= {
            "/good": page("zebragood"),
            "/out": lambda _: RedirectResponse(f"{outside_site.url}/secret"),
            "/metadata": lambda _: RedirectResponse("http://169.254.169.254/latest"),
            "/loop": lambda request: RedirectResponse("/loop?" + "x" * len(str(request.url))),
            "/inside": lambda _: RedirectResponse("/good2"),
            "/good2": page("zebrainside"),
            "/endless": lambda _: StreamingResponse(endless(), media_type=HTML),
            "/huge": lambda _: Response(b"x", headers=large),
            "/packed": lambda _: Response(b"x", headers={"content-encoding": "gzip", "content-type": HTML}),
            "/film": lambda _: Response(b"x", media_type="video/mp4"),
            "/broken": lambda _: Response(status_code=500),
        }
        domain = await rig.domain()
        urls = [f"{site.url}{path}" for path in site.pages]
        site_map = sitemap(
            site, location(site, "/good"), f"<loc>{outside_site.url}/secret</loc>", "<loc>file:///etc/passwd</loc>"
        )
        site.pages["/sitemap.xml"] = site_map
        form = {"urls": urls, "sitemaps": [f"{site.url}/sitemap.xml"]}
        source = await make_source(rig, domain, mcp=None, website=form)
        documents = {document["name"] for document in await documents_of(rig, domain)}
        assert len(documents) == 2  # two addresses lead to the same page
        assert outside_site.take_requests() == {}
        failed_items = await items_of(rig, domain, source, failed=True)
        errors = {item["uri"].removeprefix(site.url): item["error"] for item in failed_items}
        assert {path: error["code"] for path, error in errors.items()} == {
            "/broken": "SOURCE_ITEM_UNREADABLE",
            "/endless": "DOCUMENT_TOO_LARGE",
            "/film": "DOCUMENT_UNSUPPORTED",
            "/huge": "DOCUMENT_TOO_LARGE",
            "/loop": "SOURCE_ITEM_UNREADABLE",
            "/metadata": "SOURCE_ITEM_UNREADABLE",
            "/out": "SOURCE_ITEM_UNREADABLE",
            "/packed": "SOURCE_ITEM_UNREADABLE",
        }
        assert "redirects outside" in errors["/out"]["message"]
        assert "redirects more than" in errors["/loop"]["message"]
        assert len([note for note in source["notes"] if "outside of the source's sites" in note]) == 2
        bombs = ('<!DOCTYPE x [<!ENTITY a "b">]><urlset>&a;', "<urlset><url>", "<<<")
        for bomb in bombs:
            site.pages["/sitemap.xml"] = lambda _, bomb=bomb: Response(bomb, media_type="application/xml")  # type: ignore[misc]
            source = await run_again(rig, domain, source)
            assert source["problem"]["code"] == "SOURCE_UNREADABLE"
        assert {document["name"] for document in await documents_of(rig, domain)} == documents


async def test_addresses_and_folders_forbidden_for_admins_are_refused(tmp_path: Path) -> None:
    share = tmp_path / "share"
    (share / "inner").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (share / "way").symlink_to(tmp_path / "outside")
    async with Rig(tmp_path, source_folders=f"{share},{tmp_path / 'own'}/{{domain}}") as rig:
        domain = await rig.domain(mcpServers={"library": {"type": "http", "url": "https://mcp.example/"}})
        path = f"/api/domains/{domain}/sources"
        forms: list[tuple[Json, str]] = [
            ({"website": {"urls": ["http://127.0.0.1:9/x"]}}, "not https"),
            ({"website": {"urls": ["file:///etc/passwd"]}}, "no https:// address"),
            ({"website": {"urls": ["https://user@example.org/"]}}, "a name stands before its host"),
            ({"website": {}}, "at least one address"),
            ({"folder": {"path": str(tmp_path / "outside")}}, "AGENTIC_RAG_SOURCE_FOLDERS"),
            ({"folder": {"path": f"{share}/../outside"}}, "without '..'"),
            ({"folder": {"path": "share"}}, "absolute path"),
            ({"folder": {"path": f"{tmp_path}/own/dom_other"}}, "AGENTIC_RAG_SOURCE_FOLDERS"),
            ({"mcp": {"server": "none"}}, "is no MCP server of this domain; it has: library"),
            ({"mcp": {"server": "library", "listTool": {"tool": "x"}}}, "readTool"),
            ({"folder": {"path": str(share)}, "website": {"urls": ["https://x.example"]}}, "exactly one"),
            ({}, "exactly one"),
            ({"folder": {"path": str(share)}, "labels": ["a,b"]}, "a label has"),
        ]
        for form, problem in forms:
            status, code, message = await rig.refused("POST", path, {"name": "X", **form})
            assert (status, code) == (422, "VALIDATION_ERROR"), form
            assert problem in message
        own_folder = tmp_path / "own" / domain
        own_folder.mkdir(parents=True)
        (own_folder / "note.md").write_text("Twelve bar.")
        source = await make_source(rig, domain, mcp=None, folder={"path": str(own_folder)})
        assert source["counts"]["changed"] == 1
        assert (await rig.refused("POST", path, {"name": "Library", "folder": {"path": str(own_folder)}}))[
            1
        ] == "SOURCE_EXISTS"
        linked = await make_source(rig, domain, name="L", mcp=None, folder={"path": str(share / "way")})
        assert "a part of its path is a link" in linked["problem"]["message"]


async def test_a_run_that_fails_unexpectedly_ends_and_is_not_repeated_at_once(tmp_path: Path) -> None:
    run_count = 0

    def fail(place: str) -> None:
        nonlocal run_count
        if place == "source.listed":
            run_count += 1
            raise RuntimeError("nobody thought of this")

    share = tmp_path / "share"
    share.mkdir()
    async with Rig(tmp_path, source_folders=str(share), failpoint=fail) as rig:
        rig.application.begin()
        domain = await rig.domain()
        source = await make_source(rig, domain, name="Share", mcp=None, folder={"path": str(share)})
        assert (source["state"], source["problem"]["code"]) == ("idle", "SOURCE_UNREADABLE")
        assert "internal error" in source["problem"]["message"]
        assert source["nextAt"] > source["endedAt"]
        assert run_count == 1


async def test_files_of_a_folder_are_read_without_following_links(tmp_path: Path) -> None:
    share = tmp_path / "share"
    (share / "hr").mkdir(parents=True)
    (share / "a.md").write_text("Alpha zebra.")
    (share / "hr" / "b.md").write_text("Beta zebra.")
    (share / "hr" / "film.mov").write_bytes(b"x")
    (tmp_path / "secret.md").write_text("A secret.")
    (share / "link.md").symlink_to(tmp_path / "secret.md")
    (share / "linked").symlink_to(tmp_path)
    os.link(tmp_path / "secret.md", share / "hard.md")
    async with Rig(tmp_path, source_folders=str(share)) as rig:
        domain = await rig.domain(folderLabels={"sources/Share/hr": ["hr"]})
        source = await make_source(rig, domain, name="Share", mcp=None, folder={"path": str(share)})
        documents = {document["name"]: document for document in await documents_of(rig, domain)}
        assert set(documents) == {"a.md", "b.md"}
        assert documents["b.md"]["folderLabels"] == ["hr"]
        assert documents["b.md"]["sourceUri"] == f"{share}/hr/b.md"
        [hard_linked] = await items_of(rig, domain, source, failed=True)
        assert hard_linked["name"] == "hard.md"
        assert "link.md: it is a link" in " ".join(source["notes"])
        (share / "a.md").write_text("Alpha lion.")
        (share / "hr" / "b.md").rename(share / "hr" / "c.md")
        source = await run_again(rig, domain, source)
        assert (source["counts"]["changed"], source["counts"]["removed"]) == (2, 1)
        ids_by_name = {document["name"]: document["id"] for document in await documents_of(rig, domain)}
        assert ids_by_name["a.md"] == documents["a.md"]["id"]
        share.rename(tmp_path / "unmounted")
        source = await run_again(rig, domain, source)
        assert "does not exist" in source["problem"]["message"]
        assert len(await documents_of(rig, domain)) == len(ids_by_name)


@pytest.mark.parametrize(
    ("text", "path", "allowed"),
    [
        ("User-agent: *\nDisallow: /a", "/ab", False),
        ("User-agent: *\nDisallow: /a\nAllow: /ab", "/abc", True),
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf", False),
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf?a", True),
        ("User-agent: other\nDisallow: /", "/a", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: Agentic-RAG/1.0\nDisallow: /b", "/a", True),
        ("User-agent: a\nUser-agent: agentic-rag\nDisallow: /b", "/b", False),
        ("User-agent: *\nDisallow:", "/a", True),
        ("User-agent: *\nDisallow: /a%62", "/ab", False),
        ("User-agent: *\nDisallow: /ü", "/%C3%BC", False),
        ("\ufeffUSER-AGENT: * # all\n disallow : /x # no", "/x", False),
        ("nonsense\x00\n\nDisallow: /", "/", True),
    ],
)
def test_robots_rules_follow_the_standard(text: str, path: str, allowed: bool) -> None:
    assert read_robots(text.encode()).allows(path) is allowed


def test_many_robots_rules_take_little_time() -> None:
    hostile = "User-agent: *\n" + "Disallow: /" + "*a" * 200 + "$\n" * 1
    rules = read_robots((hostile * 1_000).encode())
    assert isinstance(rules, Robots)
    assert rules.allows("/" + "a" * 2_000 + "b")
