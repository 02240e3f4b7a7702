"""The suggested questions of a new conversation: a domain's own, or drafts from its documents."""

from pathlib import Path

from tests.server.rig import Json, Rig

LEAVE = b"# People handbook\n\n## 1. Contents\n\nPage 2.\n\n## 2.1 Annual leave\n\n27 days.\n\n## Sick days?\n\nCall.\n"
CHINESE = "# 手册\n\n## 第一章 年假\n\n12天。\n\n## 病假\n\n请致电。\n".encode()


async def starters(rig: Rig, domain: str) -> list[Json]:
    items: list[Json] = (await rig.ok("GET", f"/api/domains/{domain}/starters"))["items"]
    return items


async def test_starters_are_drafted_from_headings_and_a_setting_replaces_them(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        assert await starters(rig, domain) == []
        await rig.upload(domain, "people_handbook.md", LEAVE)
        await rig.upload(domain, "员工手册.md", CHINESE)
        await rig.upload(domain, "notes.txt", b"Nothing but text without a heading.")
        drafts = await starters(rig, domain)
        assert [(draft["text"], draft["documentName"]) for draft in drafts] == [
            ("What is “notes” about?", "notes.txt"),
            ("What does “people handbook” say about “Annual leave”?", "people_handbook.md"),
            ("《员工手册》关于“年假”是怎么说的？", "员工手册.md"),
            ("Sick days?", "people_handbook.md"),
        ]
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"starters": [" How long? ", "Why?"]}})
        assert await starters(rig, domain) == [{"text": "How long?"}, {"text": "Why?"}]
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"starters": []}})
        assert await starters(rig, domain) == []
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"starters": None}})
        assert len(await starters(rig, domain)) == 4
        for bad in ([""], ["x" * 301], ["a"] * 7, "text"):
            status, _, message = await rig.refused("PATCH", f"/api/domains/{domain}", {"settings": {"starters": bad}})
            assert (status, "starters" in message) == (422, True), bad
