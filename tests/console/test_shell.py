"""Signing in with a key, and how the server sends the console's files."""

import base64
import hashlib
import json
import re
from pathlib import Path

from jsonschema import Draft202012Validator
from playwright.async_api import expect

from agentic_rag.server.web_files import FOLDER, MEDIA_TYPES
from tests.access.tenants import bearer, make_key
from tests.console.rig import console, needs_browser
from tests.server.rig import Rig


@needs_browser
async def test_a_person_signs_in_with_name_and_key_or_by_the_printed_address(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        key = await make_key(desk.rig, "ann", "operator")
        page = desk.page
        await desk.goto()
        await page.get_by_label("Name").fill("ann")
        await page.get_by_label("Key").fill("arag_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("do not match")
        await page.get_by_label("Key").fill(key)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="No domains yet")).to_be_visible()
        await page.get_by_role("button", name="Account: ann").click()
        await page.get_by_role("menuitem", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in to Agentic RAG")).to_be_visible()
        for headers, name in ((bearer(key), "ann"), (bearer(desk.rig.application.access.local_key), "local")):
            ticket = (await desk.rig.ok("POST", "/api/ws-tickets", headers=headers))["ticket"]
            await desk.goto(f"#ticket={ticket}")
            await expect(page.get_by_role("button", name=f"Account: {name}")).to_be_visible()
            assert ticket not in page.url
            await page.get_by_role("button", name=f"Account: {name}").click()
            await page.get_by_role("menuitem", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in to Agentic RAG")).to_be_visible()
            await desk.goto(f"#ticket={ticket}")  # it was valid once
            await expect(page.locator(".toast")).to_contain_text("used before")


async def test_files_are_served_with_their_policy_and_only_from_the_folder(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await make_key(rig, "ann", "operator")  # from here on the API requires a key, and the page does not
        first = await rig.http.get("/")
        assert first.headers["content-type"].startswith("text/html")
        policy = dict(part.split(" ", 1) for part in first.headers["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
        assert policy["require-trusted-types-for"] == "'script'"
        assert first.headers["cache-control"] == "no-cache"
        second = await rig.http.get("/", headers={"If-None-Match": f'W/{first.headers["etag"]}, "other"'})
        assert (second.status_code, second.content) == (304, b"")
        for path in sorted(file for file in FOLDER.rglob("*") if file.is_file()):
            answer = await rig.http.get(f"/web/{path.relative_to(FOLDER)}")
            if path.name not in ("index.html", "diagram.html"):  # completed before they are sent
                assert answer.content == path.read_bytes(), path
            assert answer.headers["content-type"] == MEDIA_TYPES[path.suffix]
            assert answer.headers["x-content-type-options"] == "nosniff"
        for missing_path in (
            "/web/",
            "/web/nothing.js",
            "/web/%2e%2e/http.py",
            "/web/../http.py",
            "/web/chat",
            "/web/.js",
        ):
            assert (await rig.http.get(missing_path)).status_code == 404, missing_path


async def test_the_page_is_sent_in_the_readers_language_and_theme(tmp_path: Path) -> None:
    cases = [
        ("", "", '<html lang="en">'),
        ("fr, zh-TW;q=0.4, en;q=0.3", "", '<html lang="zh-CN">'),
        ("zh;q=0, de", "", '<html lang="en">'),
        ("zh;q=x, *", "agentic-rag.theme=dark", '<html lang="en" data-theme="dark">'),
        ("zh", "agentic-rag.language=en; agentic-rag.theme=light", '<html lang="en" data-theme="light">'),
        ("en", 'agentic-rag.language=zh; agentic-rag.theme="><b>', '<html lang="zh-CN">'),
        ("en", "agentic-rag.language=xx; other=1", '<html lang="en">'),
    ]
    async with Rig(tmp_path) as rig:
        for accept_language, cookies, opening in cases:
            page = await rig.http.get("/", headers={"Accept-Language": accept_language, "Cookie": cookies})
            assert opening in page.text, (accept_language, cookies)
            assert {"cookie", "accept-language"} <= {name.strip() for name in page.headers["vary"].split(",")}
            french = await rig.http.get("/", headers={"If-None-Match": page.headers["etag"], "Accept-Language": "fr"})
            assert french.status_code == (304 if opening == '<html lang="en">' else 200), (accept_language, cookies)


async def test_the_page_names_cacheable_files_and_everything_is_compressed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        page = await rig.http.get("/", headers={"Accept-Encoding": "gzip"})
        assert page.headers["content-encoding"] == "gzip"
        assert "accept-encoding" in page.headers["vary"]
        paths = [f"/{path}" for path in re.findall(r'"(web/[^"]+)"', page.text)]
        assert {path.rpartition("/")[2] for path in paths} >= {"early.js", "style.css", "icon.svg"}
        for path in paths:
            answer = await rig.http.get(path, headers={"Accept-Encoding": "gzip;q=0.5, br"})
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable", path
            assert ("content-encoding" in answer.headers) == (not path.endswith(".woff2")), path
        old = await rig.http.get(re.sub(r"/[0-9a-f]{16}/", f"/{'0' * 16}/", paths[0]))
        assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache")
        for encoding in ("identity", "gzip;q=0", "br"):
            plain = await rig.http.get("/", headers={"Accept-Encoding": encoding})
            assert "content-encoding" not in plain.headers, encoding
        response = await rig.http.get("/api/openapi.json", headers={"Accept-Encoding": "gzip"})
        assert response.headers["content-encoding"] == "gzip"
        assert int(response.headers["content-length"]) < len(response.content) / 3
        small = await rig.http.get("/api/version", headers={"Accept-Encoding": "gzip"})
        assert "content-encoding" not in small.headers


async def test_the_diagram_frame_inlines_its_scripts_and_allows_only_these(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        frame = await rig.http.get("/web/diagram.html")
        policy = dict(part.partition(" ")[::2] for part in frame.headers["content-security-policy"].split("; "))
        assert policy["sandbox"] == "allow-scripts"
        assert policy["default-src"] == "'none'"
        assert frame.headers["x-frame-options"] == "SAMEORIGIN"
        scripts = re.findall(rb"<script>(.*?)</script>", frame.content, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts]
        assert policy["script-src"].split() == [f"'sha256-{hash_}'" for hash_ in hashes]
        assert b"src=" not in frame.content.replace(scripts[0], b"")


async def test_vendored_files_have_their_reviewed_checksums() -> None:
    contents = (FOLDER / "vendor" / "contents.txt").read_text(encoding="utf-8")
    sums = dict(reversed(line.split()) for line in re.findall(r"^  ([0-9a-f]{64}  \S+)$", contents, re.MULTILINE))
    present = {path.name for path in (FOLDER / "vendor").iterdir()} - {"contents.txt"}
    assert sums.keys() == present
    for name, checksum in sums.items():
        assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == checksum, name


@needs_browser
async def test_the_api_reference_shows_each_operation_and_schema_as_text(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        document = await desk.rig.ok("GET", "/api/openapi.json")
        attack = "<script>alert(1)</script>`<b>`"
        document["components"]["schemas"]["Version"]["description"] = attack
        await desk.page.route("**/api/openapi.json", lambda route: route.fulfill(json=document))
        await desk.page.goto(f"{desk.url}/api/docs#schema-Version")
        await expect(desk.page.locator("#schema-Version + p")).to_have_text("<script>alert(1)</script><b>")
        await expect(desk.page.locator("#schema-Version")).to_be_in_viewport()
        assert await desk.page.locator("body script, body b").count() == 0
        ids = await desk.page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
        assert len(ids) == len(set(ids))
        operations = {operation["operationId"] for item in document["paths"].values() for operation in item.values()}
        schemas = document["components"]["schemas"]
        assert operations | {f"schema-{name}" for name in schemas} <= set(ids)
        links = await desk.page.evaluate("[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))")
        assert {link.removeprefix("#") for link in links} - {"/api/openapi.json"} <= set(ids)
        bodies = {"Conversation_send": "MessageForm", "Document_search": "Search", "Key_create": "NewKey"}
        for operation, name in bodies.items():
            example = await desk.page.locator(f"article:has(#{operation}) pre").first.inner_text()
            schema = {**schemas[name], "components": document["components"]}
            Draft202012Validator(schema).validate(json.loads(example))
