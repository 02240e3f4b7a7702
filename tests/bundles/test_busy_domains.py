"""An import over a domain that cannot be completed immediately: its remaining changes, and their limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.rig import Rig

from .making import ZIP, bring_over, export, fill, members_of, pack, plain, remember

ENGRAM: dict[str, Any] = {
    "id": "engram-1",
    "content": "The valve was new in 2021.",
    "type": "ATOMIC",
    "strength": 0.5,
    "createdAt": 1_700_000_000_000,
    "cues": ["valve", "2021"],
}


def memory(*engrams: dict[str, Any]) -> bytes:
    return json.dumps({"engrams": engrams, "frequencies": {}}).encode()


class Full:
    """A disk that accepts no file of a bundle while it is ``full``."""

    def __init__(self) -> None:
        self.full = True

    def __call__(self, place: str) -> None:
        if self.full and place == "bundle.file":
            raise OSError(28, "No space left on device")


async def rows_of(rig: Rig) -> int:
    """Return the number of running imports."""
    database = rig.application.database
    return int(await database.read(lambda conn: conn.exec_driver_sql("SELECT count(*) FROM imports").scalar_one()))


@pytest.mark.parametrize("dry_run", ["true", "false"])
@pytest.mark.parametrize(
    ("engrams", "code"),
    [
        ([{**ENGRAM, "cues": ["valve"]}], "BUNDLE_DAMAGED"),
        ([ENGRAM, {**ENGRAM, "id": "engram-2"}], "QUOTA_EXCEEDED"),
    ],
)
async def test_a_memory_that_does_not_fit_is_reported_before_any_change(
    tmp_path: Path, engrams: list[dict[str, Any]], code: str, dry_run: str
) -> None:
    async with Rig(tmp_path, quota_memories=1) as rig:
        domain = await rig.domain(language="de")
        data = pack({**plain(language="fr"), "prompt/a.md": b"A.\n", "memories/law.json": memory(*engrams)})
        place, params = f"/api/domains/{domain}/bundle", {"dryRun": dry_run}
        assert (await rig.refused("POST", place, content=data, headers=ZIP, params=params))[1] == code
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["language"] == "de"
        assert not (rig.settings.workspaces / domain / "prompt" / "a.md").exists()
        assert not (rig.settings.workspaces / domain / ".promptx" / "cognition").exists()
        assert await rows_of(rig) == 0
        assert not any((rig.settings.data / "imports").iterdir())


async def test_a_memory_that_is_full_during_the_import_is_left_out_and_reported(tmp_path: Path) -> None:
    places: list[Path] = []

    def heard(place: str) -> None:
        if place == "bundle.stored":  # meanwhile a turn saves a memory
            remember(places[0], "law")

    async with Rig(tmp_path, failpoint=heard, quota_memories=1) as rig:
        domain = await rig.domain()
        places.append(rig.settings.workspaces / domain)
        data = pack({**plain(language="fr"), "memories/law.json": memory(ENGRAM)})
        report = await bring_over(rig, domain, data)
        assert [(note["path"], "1 memories" in note["text"]) for note in report["findings"]] == [
            ("memories/law.json", True)
        ]
        assert await rows_of(rig) == 0
        memories = (await rig.ok("GET", f"/api/domains/{domain}/memories"))["items"]
        assert [memory["content"] for memory in memories] == ["The pump was new in 2020."]


async def test_a_document_is_not_removed_twice(tmp_path: Path) -> None:
    disk = Full()
    async with Rig(tmp_path, failpoint=disk) as rig:
        rig.application.begin()
        domain = await fill(rig)
        await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/02-own.md", {"content": "Mine.\n"})
        members = members_of(await export(rig, domain))
        del members["documents/pump.md"], members["prompt/02-own.md"]
        members["prompt/01-tone.md"] = b"Be brief.\n"
        answer = await rig.refused(
            "POST",
            f"/api/domains/{domain}/bundle",
            content=pack(members),
            headers=ZIP,
            params={"removeOthers": "true"},
        )
        assert answer[:2] == (507, "STORAGE_FULL")
        await rig.upload(domain, "pump.md", b"# Pump\n\nThe new one holds 9 litres.\n")
        await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/02-own.md", {"content": "Mine again.\n"})
        for full in (True, False):
            disk.full = full
            await rig.application.services.imports.resume()
            items = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
            assert "pump.md" in {item["name"] for item in items}
        texts = (await rig.ok("GET", f"/api/domains/{domain}/prompt-components"))["items"]
        assert {text["name"]: text["content"] for text in texts} == {
            "01-tone.md": "Be brief.\n",
            "02-own.md": "Mine again.\n",
        }
        assert await rows_of(rig) == 0


async def stick(rig: Rig, domain: str, members: dict[str, bytes], **params: str) -> None:
    """Begin an import over a domain that has no room for its files."""
    place = f"/api/domains/{domain}/bundle"
    answer = await rig.refused("POST", place, content=pack(members), headers=ZIP, params=params)
    assert answer[:2] == (507, "STORAGE_FULL")


async def texts_of(rig: Rig, domain: str) -> dict[str, str]:
    items = (await rig.ok("GET", f"/api/domains/{domain}/prompt-components"))["items"]
    return {item["name"]: item["content"] for item in items}


async def test_changes_made_while_an_import_waited_stay(tmp_path: Path) -> None:
    disk = Full()
    async with Rig(tmp_path, failpoint=disk) as rig:
        rig.application.begin()
        domain = await rig.domain()
        path = f"/api/domains/{domain}/prompt-components"
        for name in ("01-edited.md", "02-gone.md", "03-left.md"):
            await rig.ok("PUT", f"{path}/{name}", {"content": "Old.\n"})
        await rig.upload(domain, "pump.md", b"# Pump\n\nThe old one holds 3 litres.\n")
        new = ("01-edited.md", "02-gone.md", "03-left.md", "04-new.md", "05-new.md")
        members = {**plain(), **{f"prompt/{name}": b"The bundle's.\n" for name in new}}
        members["documents/pump.md"] = b"# Pump\n\nThe bundle's holds 5 litres.\n"
        await stick(rig, domain, members)
        await rig.ok("PUT", f"{path}/01-edited.md", {"content": "Edited.\n"})
        await rig.ok("DELETE", f"{path}/02-gone.md")
        await rig.ok("PUT", f"{path}/04-new.md", {"content": "Somebody else's.\n"})
        edited_text = b"# Pump\n\nThe edited one holds 9 litres.\n"
        (rig.settings.workspaces / domain / "documents" / "pump.md").write_bytes(edited_text)
        disk.full = False
        await rig.application.services.imports.resume()
        assert await texts_of(rig, domain) == {
            "01-edited.md": "Edited.\n",
            "03-left.md": "The bundle's.\n",
            "04-new.md": "Somebody else's.\n",
            "05-new.md": "The bundle's.\n",
        }
        assert (rig.settings.workspaces / domain / "documents" / "pump.md").read_bytes() == edited_text
        assert await rows_of(rig) == 0
        assert not any((rig.settings.data / "imports").iterdir())


async def test_documents_added_during_an_import_are_not_removed_by_it(tmp_path: Path) -> None:
    places: list[Path] = []
    added_text = "# Pump\n\nAnother one.\n"

    def heard(place: str) -> None:
        if place == "bundle.stored":  # meanwhile an operator does the same
            (places[0] / "prompt" / "02-own.md").write_text("Newer.\n")

    async with Rig(tmp_path, failpoint=heard) as rig:
        rig.application.begin()
        domain = await rig.domain()
        places.append(rig.settings.workspaces / domain)
        await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/02-own.md", {"content": "Mine.\n"})
        report = await bring_over(
            rig, domain, pack({**plain(), "documents/a.md": added_text.encode()}), removeOthers="true"
        )
        assert [note["path"] for note in report["findings"]] == ["prompt/02-own.md"]
        assert await texts_of(rig, domain) == {"02-own.md": "Newer.\n"}


async def test_an_import_cancels_a_waiting_one(tmp_path: Path) -> None:
    disk = Full()
    async with Rig(tmp_path, failpoint=disk) as rig:
        domain = await rig.domain(language="de")
        first = {**plain(), "prompt/a.md": b"First.\n", "prompt/b.md": b"First.\n"}
        second = {**plain(language="fr"), "prompt/a.md": b"Second.\n"}
        await stick(rig, domain, first)
        await stick(rig, domain, second)  # the first one still has no room
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["language"] == "de"
        assert await rows_of(rig) == 1
        preview = await bring_over(rig, domain, pack(second), dryRun="true")
        assert preview["dryRun"]
        disk.full = False
        await bring_over(rig, domain, pack(second))
        assert await texts_of(rig, domain) == {"a.md": "Second.\n", "b.md": "First.\n"}
        await rig.application.services.imports.resume()
        assert await texts_of(rig, domain) == {"a.md": "Second.\n", "b.md": "First.\n"}
        assert await rows_of(rig) == 0
