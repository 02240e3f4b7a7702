"""A bundle imported over a domain with differently named files: no bytes are lost, and each file has its place."""

from pathlib import Path

import pytest

from tests.server.rig import Rig

from .making import bring_over, export, members_of, pack, plain

X, Y, Z = (f"# Sheet\n\nThe value is {word}.\n".encode() for word in ("one", "two", "three"))


async def files_of(rig: Rig, domain: str) -> dict[str, bytes]:
    """Return the originals of a domain's documents by name."""
    files = {}
    for document in (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]:
        answer = await rig.http.get(f"/api/domains/{domain}/documents/{document['id']}/file")
        assert answer.status_code == 200, answer.text
        files[document["name"]] = answer.content
    return files


def bundle(**documents: bytes) -> bytes:
    return pack({**plain(), **{f"documents/{name}.md": content for name, content in documents.items()}})


@pytest.mark.parametrize("remove_others", ["true", "false"])
async def test_a_document_with_the_bytes_of_a_bundles_other_name_stays(tmp_path: Path, remove_others: str) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        await rig.upload(domain, "old.md", X)
        report = await bring_over(rig, domain, bundle(new=X), removeOthers=remove_others)
        assert not [
            difference
            for difference in report["differences"]
            if difference["kind"] == "document" and difference["action"] == "remove"
        ]
        await rig.taken_up(domain)
        assert await files_of(rig, domain) == {"old.md": X}


async def test_documents_with_swapped_names_are_swapped(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        await rig.upload(domain, "a.md", X)
        await rig.upload(domain, "b.md", Y)
        report = await bring_over(rig, domain, bundle(a=Y, b=X), removeOthers="true")
        changes = [
            (difference["subject"], difference["action"])
            for difference in report["differences"]
            if difference["kind"] == "document"
        ]
        assert changes == [("a.md", "change"), ("b.md", "change")]
        await rig.taken_up(domain)
        assert await files_of(rig, domain) == {"a.md": Y, "b.md": X}
        assert (await bring_over(rig, domain, bundle(a=Y, b=X)))["differences"] == []


async def test_bytes_moved_to_an_existing_name_are_one_document(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        await rig.upload(domain, "old.md", X)
        await rig.upload(domain, "new.md", Z)
        await bring_over(rig, domain, bundle(new=X), removeOthers="true")
        await rig.taken_up(domain)
        files = await files_of(rig, domain)
        assert set(files.values()) == {X}
        assert (rig.settings.workspaces / domain / "documents" / "new.md").read_bytes() == X


async def test_a_bundle_restores_a_document_whose_file_was_deleted(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        await rig.upload(domain, "a.md", X)
        (rig.settings.workspaces / domain / "documents" / "a.md").unlink()
        await rig.ok("POST", f"/api/domains/{domain}/documents/rescan")
        await bring_over(rig, domain, bundle(a=X))
        await rig.taken_up(domain)
        assert await files_of(rig, domain) == {"a.md": X}


async def test_a_file_renamed_by_the_export_is_updated_at_its_original_name(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        workspace = rig.settings.workspaces / domain
        for number, name in enumerate(("a:b.md", "c.md", "C.md")):
            (workspace / "documents" / name).write_text(f"# {number}\n\nSome text of {name}.\n")
        (workspace / "prompt" / "01:tone.md").write_text("Be calm.\n")
        await rig.ok("POST", f"/api/domains/{domain}/documents/rescan")
        await rig.taken_up(domain)
        members = members_of(await export(rig, domain))
        assert {"documents/a_b.md", "documents/c (2).md", "prompt/01_tone.md"} <= members.keys()
        members |= {"documents/a_b.md": X, "documents/c (2).md": Y, "prompt/01_tone.md": b"Be brief.\n"}
        report = await bring_over(rig, domain, pack(members), removeOthers="true")
        assert [(difference["subject"], difference["action"]) for difference in report["differences"]] == [
            ("a:b.md", "change"),
            ("c.md", "change"),
            ("01:tone.md", "change"),
        ]
        await rig.taken_up(domain)
        files = await files_of(rig, domain)
        assert (sorted(files), files["a:b.md"], files["c.md"]) == (["C.md", "a:b.md", "c.md"], X, Y)
        assert [path.name for path in (workspace / "prompt").iterdir()] == ["01:tone.md"]
        assert (workspace / "prompt" / "01:tone.md").read_text() == "Be brief.\n"


async def test_a_name_that_both_have_is_not_used_as_another_tools_portable_name(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        await rig.upload(domain, "c.md", X)
        await rig.upload(domain, "C.md", Y)  # whose portable names are C.md and c (2).md
        data = pack({**plain(), "documents/c.md": Z, "documents/c (2).md": Y})
        report = await bring_over(rig, domain, data)
        changes = [
            (difference["subject"], difference["action"])
            for difference in report["differences"]
            if difference["kind"] == "document"
        ]
        assert changes == [("c.md", "change"), ("C.md", "keep")]
        await rig.taken_up(domain)
        assert await files_of(rig, domain) == {"c.md": Z, "C.md": Y}
        assert sorted(path.name for path in (rig.settings.workspaces / domain / "documents").iterdir()) == [
            "C.md",
            "c.md",
        ]


async def test_cases_that_no_bundle_contains_stay_when_others_are_removed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        path = f"/api/domains/{domain}/evaluation/cases"
        for state in ("draft", "active", "off"):
            await rig.ok("POST", path, {"questions": [f"Is it {state}?"], "expect": {"declines": True}, "state": state})
        report = await bring_over(rig, domain, pack(plain()), removeOthers="true")
        removed = [
            (difference["subject"], difference["action"])
            for difference in report["differences"]
            if difference["kind"] == "case"
        ]
        assert removed == [("Is it active?", "remove")]
        assert sorted(case["state"] for case in (await rig.ok("GET", path))["items"]) == ["draft", "off"]
