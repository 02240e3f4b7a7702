"""Links, pipes and swaps among a domain's documents and prompt components: nothing outside is read or changed."""

import os
import shutil
from pathlib import Path

import pytest

from agentic_rag.base.ids import DocumentId
from agentic_rag.documents.files import open_document
from agentic_rag.documents.reading import ReadingProcess
from agentic_rag.domains.components import ComponentFiles
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.safe_files import Folder
from tests.ingestion.test_folder import OTHER, TEXT, find_names, folder_of, list_documents, rescan
from tests.server.rig import Rig

pytestmark = pytest.mark.attack(kind="files")

SECRET = b"# Key\n\nThe key that opens everything is swordfish.\n"


def replace_with_link(folder: Path, target: Path) -> None:
    """Put a link in place of a folder."""
    shutil.rmtree(folder)
    folder.symlink_to(target)


async def test_a_documents_folder_linked_to_all_domains_indexes_no_foreign_files(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        victim, attacker = await rig.domain(), await rig.domain()
        await rig.upload(victim, "leave.md", TEXT)
        replace_with_link(folder_of(rig, attacker), rig.settings.workspaces)
        assert await rescan(rig, attacker) == 0
        assert await list_documents(rig, attacker) == {}
        assert await find_names(rig, attacker, "paid leave") == []


async def test_an_upload_cannot_reach_another_tenants_prompt(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        victim, attacker = await rig.domain(), await rig.domain()
        prompt = rig.settings.workspaces / victim / "prompt"
        replace_with_link(folder_of(rig, attacker), prompt)
        refusal = await rig.refused("POST", f"/api/domains/{attacker}/documents", files={"file": ("a.md", OTHER)})
        assert refusal[:2] == (409, "WORKSPACE_REFUSED")
        assert "it is a link" in refusal[2]
        assert list(prompt.iterdir()) == []


async def test_deleting_my_document_leaves_anothers_original(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        victim, attacker = await rig.domain(), await rig.domain()
        await rig.upload(victim, "leave.md", TEXT)
        document = await rig.upload(attacker, "leave.md", TEXT)
        replace_with_link(folder_of(rig, attacker), folder_of(rig, victim))
        await rig.ok("DELETE", f"/api/domains/{attacker}/documents/{document['id']}")
        assert (folder_of(rig, victim) / "leave.md").read_bytes() == TEXT
        assert await list_documents(rig, attacker) == {}


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "hard link", "folder"])
async def test_a_link_or_pipe_in_place_of_a_document_is_not_read_and_reported_missing(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "key.md").write_bytes(SECRET)
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "leave.md", TEXT)
        file = folder_of(rig, domain) / "leave.md"
        file.unlink()
        plant(file, kind, tmp_path / "key.md")
        path = f"/api/domains/{domain}/documents/{document['id']}"
        await rescan(rig, domain)
        await rig.ok("POST", f"{path}/retry")
        document_after = await rig.settled(domain, document["id"])
        if kind != "hard link":  # a listing cannot see the change until it reads the bytes
            assert (document_after["status"], document_after["error"]["code"]) == ("failed", "DOCUMENT_MISSING")
        await rig.ok("POST", f"/api/domains/{domain}/reindex")
        await rig.reindexed(domain)
        assert all("swordfish" not in str(hit) for hit in await find_names(rig, domain, "key swordfish"))
        await rig.ok("DELETE", path)
        assert (tmp_path / "key.md").read_bytes() == SECRET


def plant(place: Path, kind: str, target: Path) -> None:
    if kind == "link":
        place.symlink_to(target)
    elif kind == "dangling":
        place.symlink_to(target.parent / "nowhere")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "hard link":
        os.link(target, place)
    else:
        place.mkdir()


async def test_a_file_swapped_for_a_link_after_opening_is_read_unchanged(tmp_path: Path) -> None:
    (tmp_path / "key.md").write_bytes(SECRET)
    place = tmp_path / "documents"
    place.mkdir()
    (place / "a.md").write_bytes(TEXT)
    reader = ReadingProcess(ParseLimits())
    try:
        with open_document(Folder(tmp_path).at("documents"), "a.md") as file:
            (place / "a.md").unlink()
            (place / "a.md").symlink_to(tmp_path / "key.md")
            assert (await reader.begin(file, "a.md", DocumentId("doc"), "version")).chunks == 1
        batch = await reader.batch()
        assert batch is not None
        assert "paid leave" in batch.chunks[0].text
    finally:
        await reader.aclose()
    with pytest.raises(DocumentError, match="it is a link"):
        open_document(Folder(tmp_path).at("documents"), "a.md")


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "hard link", "folder"])
def test_a_link_or_pipe_in_place_of_a_component_is_named_and_skipped(tmp_path: Path, kind: str) -> None:
    (tmp_path / "key.md").write_bytes(SECRET)
    prompt = tmp_path / "workspace" / "prompt"
    prompt.mkdir(parents=True)
    (prompt / "20-good.md").write_text("Good")
    plant(prompt / "10-bad.md", kind, tmp_path / "key.md")
    components = ComponentFiles().read(tmp_path / "workspace")
    assert components.texts == ("Good",)
    assert [name for name, _ in components.problems] == ["10-bad.md"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_file_in_place_of_the_prompt_folder_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.md").write_bytes(SECRET)
    (tmp_path / "workspace").mkdir()
    plant(tmp_path / "workspace" / "prompt", kind, tmp_path / "other")
    components = ComponentFiles().read(tmp_path / "workspace")
    assert (components.texts, len(components.problems)) == ((), 1)


async def test_deleting_a_domain_with_its_workspace_keeps_link_targets(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        outside_folder = tmp_path / "outside"
        outside_folder.mkdir()
        (outside_folder / "key.md").write_bytes(SECRET)
        workspace = rig.settings.workspaces / domain
        (workspace / "files" / "link").symlink_to(outside_folder)
        replace_with_link(workspace / "prompt", outside_folder)
        folder = workspace / "files"
        for _ in range(200):
            folder = folder / "d"
        folder.mkdir(parents=True)
        await rig.ok("DELETE", f"/api/domains/{domain}", params={"workspace": "true"})
        assert not workspace.exists()
        assert (outside_folder / "key.md").read_bytes() == SECRET
