"""Documents of a source have the source's labels from the moment they become visible."""

from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.access.tenants import as_operator, audited, bearer, make_key, tenants
from tests.server.rig import Json, Rig
from tests.sources.support import documents_of, make_source, run_again, wait_for_end
from tests.waiting import pause
from tests.ws.serving import serving


def make_share(folder: Path, count: int) -> Path:
    share = folder / "share"
    share.mkdir()
    for number in range(count):
        (share / f"{number}.md").write_text(f"# Pump\n\nzebra{number}q twelve bar.")
    return share


async def labels_of(rig: Rig, domain: str) -> set[tuple[str, ...]]:
    return {tuple(document["labels"]) for document in await documents_of(rig, domain)}


async def test_a_change_of_labels_reaches_all_documents_and_keeps_those_of_others(tmp_path: Path) -> None:
    share = make_share(tmp_path, 3)
    async with Rig(tmp_path, source_folders=str(share)) as rig:
        domain = await rig.domain()
        form: Json = {"mcp": None, "folder": {"path": str(share)}}
        source = await make_source(rig, domain, **form, labels=["board"])
        second_source = await make_source(
            rig, domain, name="Other", **form, labels=["legal"], exclude=[f"{share}/0.md"]
        )
        assert await labels_of(rig, domain) == {("board",), ("board", "legal")}
        [edited, *_] = await documents_of(rig, domain)
        await rig.ok("PATCH", f"/api/domains/{domain}/documents/{edited['id']}", {"labels": [*edited["labels"], "own"]})
        path = f"/api/domains/{domain}/sources/{source['id']}"
        await rig.ok("PATCH", path, {"labels": ["hr"]})
        labels = {document["name"]: set(document["labels"]) for document in await documents_of(rig, domain)}
        assert labels == {"0.md": {"hr"}, "1.md": {"hr", "legal"}, "2.md": {"hr", "legal"}} | {
            edited["name"]: {"hr", "own"} | ({"legal"} & set(edited["labels"]))
        }
        await wait_for_end(rig, domain, source["id"], source["endedAt"])
        await rig.ok("DELETE", path, params={"documents": "delete"})
        with anyio.fail_after(240):
            while len((await rig.ok("GET", f"/api/domains/{domain}/sources"))["items"]) > 1:
                await pause()
        remaining = {document["name"] for document in await documents_of(rig, domain)}
        assert remaining == {"1.md", "2.md"}  # the other source has them, too
        await rig.ok("DELETE", f"/api/domains/{domain}/sources/{second_source['id']}", params={"documents": "keep"})
        assert {document["name"] for document in await documents_of(rig, domain)} == remaining
        assert (await rig.ok("GET", f"/api/domains/{domain}/sources"))["items"] == []


async def test_labels_changed_during_an_items_read_apply_to_its_document(tmp_path: Path) -> None:
    rigs: list[Rig] = []
    paths: list[str] = []

    async def take(request: Request) -> Response:
        if request.url.path == "/robots.txt":
            return Response(status_code=404)
        if not paths:
            [domain] = [domain["id"] for domain in (await rigs[0].ok("GET", "/api/domains"))["items"]]
            [source] = (await rigs[0].ok("GET", f"/api/domains/{domain}/sources"))["items"]
            paths.append(f"/api/domains/{domain}/sources/{source['id']}")
            await rigs[0].ok("PATCH", paths[0], {"labels": ["board"]})
        return Response(f"<p>zebra of {request.url.path}</p>", media_type="text/html")

    app = Starlette(routes=[Route("/{path:path}", take)])
    async with serving(app) as address, Rig(tmp_path, mcp_hosts=address) as rig:
        rigs.append(rig)
        domain = await rig.domain()
        urls = [f"http://{address}/{name}" for name in "abc"]
        await make_source(rig, domain, mcp=None, website={"urls": urls})
        assert await labels_of(rig, domain) == {("board",)}
        assert len(await documents_of(rig, domain)) == 3


async def test_sources_are_for_admins_and_are_audited(tmp_path: Path) -> None:
    share = make_share(tmp_path, 1)
    async with tenants(tmp_path, source_folders=str(share)) as accounts:
        rig, domain = accounts.rig, accounts.ids["domain"]
        as_operator(rig)
        form: Json = {"name": "Share", "folder": {"path": str(share)}, "labels": ["board"]}
        created = await rig.ok("POST", f"/api/domains/{domain}/sources", form)
        source = await wait_for_end(rig, domain, created["id"], None)
        source = await run_again(rig, domain, source)
        assert source["items"] == 1
        actions = [row["action"] for row in await audited(rig)]
        assert {"source.create", "source.run"} <= set(actions)
        key = await make_key(rig, "mia", "member", domain)
        for path in ("", f"/{source['id']}", f"/{source['id']}/items"):
            response = await rig.http.get(f"/api/domains/{domain}/sources{path}", headers=bearer(key))
            assert response.status_code == 403
        listing = await rig.http.get(f"/api/domains/{domain}/documents", headers=bearer(key))
        assert "0.md" not in listing.text
