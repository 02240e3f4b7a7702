"""A document's file as it was uploaded: complete or in part, under its own name, and never run by a browser."""

from pathlib import Path
from urllib.parse import quote

from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig

TEXT = b"# Leave\n\nTwenty-five days a year.\n" * 40


def path_of(domain: str, document: str) -> str:
    return f"/api/domains/{domain}/documents/{document}/file"


async def test_a_member_gets_the_original_by_its_name_and_no_browser_runs_it(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        name = '请假 "Leave"; x=é.md'
        document = await rig.upload(domain, name, TEXT)
        member, stranger = (
            await make_key(rig, "ann", "member", domain),
            await make_key(rig, "bob", "member", other_domain),
        )
        answer = await rig.http.get(path_of(domain, document["id"]), headers=bearer(member))
        assert (answer.status_code, answer.content) == (200, TEXT)
        assert answer.headers["content-type"] == document["mediaType"]
        disposition = answer.headers["content-disposition"]
        assert disposition.startswith('attachment; filename="')
        assert disposition.endswith(f"filename*=UTF-8''{quote(document['name'], safe='')}")
        assert disposition.isascii()
        assert disposition.count('"') == 2
        policy = answer.headers["content-security-policy"]
        assert "sandbox" in policy
        assert "default-src 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        for key, domain_named in ((stranger, domain), (stranger, other_domain)):
            refusal = await rig.http.get(path_of(domain_named, document["id"]), headers=bearer(key))
            assert refusal.status_code == 404


RANGES: tuple[tuple[str, int, bytes | None], ...] = (
    ("bytes=0-3", 206, TEXT[:4]),
    ("bytes=4-", 206, TEXT[4:]),
    ("bytes=-5", 206, TEXT[-5:]),
    (f"bytes=10-{len(TEXT) * 9}", 206, TEXT[10:]),
    (f"bytes={len(TEXT)}-", 416, None),
    ("bytes=-0", 416, None),
    ("bytes=0-1,5-6", 200, TEXT),
    ("lines=0-1", 200, TEXT),
    ("bytes=x-y", 200, TEXT),
    ("bytes=5-2", 200, TEXT),
    ("bytes=" + "9" * 5000 + "-", 200, TEXT),
)
"""Range headers with the status and the bytes of the answer."""


async def test_a_range_request_gets_its_range(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        for range_header, status, expected in RANGES:
            answer = await rig.http.get(path_of(domain, document["id"]), headers={"range": range_header})
            assert answer.status_code == status, range_header[:40]
            assert answer.headers["accept-ranges"] == "bytes"
            if expected is None:
                assert answer.headers["content-range"] == f"bytes */{len(TEXT)}"
                assert answer.content == b""
                continue
            assert answer.content == expected, range_header[:40]
            assert answer.headers["content-length"] == str(len(expected))
            if status == 206:
                start = (
                    TEXT.rindex(expected)
                    if range_header.startswith("bytes=-")
                    else int(range_header[6:].partition("-")[0])
                )
                assert answer.headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/{len(TEXT)}"


async def test_a_file_that_was_deleted_or_became_a_link_is_not_shown(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        file = rig.settings.workspaces / domain / "documents" / "a.md"
        file.unlink()
        assert (await rig.refused("GET", path_of(domain, document["id"])))[:2] == (404, "FILE_NOT_FOUND")
        outside = tmp_path / "outside"
        outside.write_bytes(b"of others")
        file.symlink_to(outside)
        assert (await rig.refused("GET", path_of(domain, document["id"])))[:2] == (404, "FILE_NOT_FOUND")
        assert (await rig.refused("GET", path_of(domain, "doc_x")))[:2] == (404, "DOCUMENT_NOT_FOUND")
