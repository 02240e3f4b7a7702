"""A complete settings document for a new domain, its warnings, and the remains of a deleted domain."""

from pathlib import Path

from agentic_rag.testing.steps import say, use
from tests.server.rig import Json, Rig

LEAVE = b"# Leave\n\nFull-time staff have 27 days of paid leave a year.\n"
DOCUMENT: Json = {
    "model": "claude-sonnet-5-5",
    "temperature": 0.3,
    "primaryRoleId": "hr-clerk",
    "subRoleIds": ["researcher"],
    "language": "en",
    "responseStyle": "detailed",
    "retrievalTopK": 8,
    "maxSteps": 12,
    "variables": {"TEAM": "hr"},
    "toolPolicy": {"*": "ask"},
}
CLERK = "<role><principle>Answer with the rule.</principle></role>"


def warnings_of(domain: Json) -> dict[str, str]:
    return {note["path"]: note["text"] for note in domain["warnings"]}


async def test_a_whole_settings_document_is_stored_at_once_with_its_warnings(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hello.")) as rig:
        created = await rig.ok("POST", "/api/domains", {"name": "HR", "settings": DOCUMENT})
        warnings = warnings_of(created)
        assert list(warnings) == ["settings.primaryRoleId", "settings.temperature"]
        assert "'hr-clerk'" in warnings["settings.primaryRoleId"]
        assert "claude-sonnet-5-5 takes no temperature" in warnings["settings.temperature"]
        assert {key: created["settings"][key] for key in DOCUMENT} == DOCUMENT
        path = f"/api/domains/{created['id']}"
        assert warnings_of(await rig.ok("PATCH", path, {"settings": {"maxSteps": 9}})) == {}, "said once"
        empty_domain = await rig.domain()
        patched = await rig.ok("PATCH", f"/api/domains/{empty_domain}", {"settings": DOCUMENT})
        assert warnings_of(patched) == warnings
        resource = rig.settings.workspaces / created["id"] / ".promptx" / "resource" / "role"
        resource.mkdir(parents=True, exist_ok=True)
        (resource / "hr-clerk.role.md").write_text(CLERK)
        prompt = await rig.ok("GET", f"{path}/effective-prompt")
        assert "Answer with the rule." in prompt["role"]["text"]
        patched_again = await rig.ok("PATCH", path, {"settings": {"model": "claude-sonnet-4-6"}})
        assert warnings_of(patched_again) == {}
        assert (await rig.say(await rig.conversation(created["id"]), "Hi"))[-1]["type"] == "done"


async def test_a_new_domain_can_name_sub_roles_before_they_exist(tmp_path: Path) -> None:
    delegation = use("delegate", role="hr-clerk", task="Look it up.")
    async with Rig(tmp_path, delegation, say("27 days."), say("It is 27 days.")) as rig:
        roles = {"primaryRoleId": "assistant", "subRoleIds": ["researcher", "hr-clerk"]}
        body = {"name": "HR", "settings": {**DOCUMENT, **roles, "toolPolicy": {}}}
        created = await rig.ok("POST", "/api/domains", body)
        warnings = warnings_of(created)
        assert list(warnings) == ["settings.subRoleIds.1", "settings.temperature"]
        assert "'hr-clerk'" in warnings["settings.subRoleIds.1"]
        assert created["settings"]["subRoleIds"] == ["researcher", "hr-clerk"]
        resource = rig.settings.workspaces / created["id"] / ".promptx" / "resource" / "role"
        resource.mkdir(parents=True, exist_ok=True)
        (resource / "hr-clerk.role.md").write_text(CLERK)
        events = await rig.say(await rig.conversation(created["id"]), "How much leave?")
        assert [event["content"] for event in events if event["type"] == "tool_result" and not event.get("agent")] == [
            "27 days."
        ]


async def test_an_invalid_setting_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for key, value in (("subRoleIds", ["a b"]), ("effort", "huge"), ("primaryRoleId", "a b")):
            settings = {**DOCUMENT, key: value}
            refusal = await rig.refused("POST", "/api/domains", {"name": "HR", "settings": settings})
            assert refusal[2].startswith(f"settings.{key}")
        assert (await rig.ok("GET", "/api/domains"))["items"] == []


async def test_the_answer_to_a_deletion_lists_files_left_on_disk(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for with_workspace in (False, True):
            domain = await rig.domain()
            await rig.upload(domain, "Leave.md", LEAVE)
            folder = rig.settings.workspaces.absolute() / domain
            deletion = await rig.ok(
                "DELETE", f"/api/domains/{domain}", params={"workspace": str(with_workspace).lower()}
            )
            assert deletion["id"] == domain
            assert deletion["workspace"] == (None if with_workspace else str(folder))
            assert folder.exists() is not with_workspace
            assert any("workspace folder" in note for note in deletion["kept"]) is not with_workspace
            assert any("audit log" in note for note in deletion["kept"])


async def test_the_prompt_mentions_search_only_once_there_is_a_document(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hello."), say("Now I can search.")) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hi")
        first = rig.model.requests[0]
        assert "search_documents" not in str(first.system)
        assert "promptx_recall" in str(first.system)
        await rig.upload(domain, "Leave.md", LEAVE)
        await rig.say(conversation, "And now?")
        assert "search_documents: look up facts" in str(rig.model.requests[1].messages[-1])
        fresh = await rig.ok("GET", f"/api/domains/{domain}/effective-prompt")
        assert "search_documents" in fresh["bootstrap"]["text"]


async def test_the_effective_prompt_names_components_that_are_cut(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        folder = rig.settings.workspaces / domain / "prompt"
        folder.mkdir(exist_ok=True)
        for name, size in (("10-long", 8_001), ("20-fits", 8_000), ("30", 8_000), ("40", 7_999), ("50-late", 100)):
            (folder / f"{name}.md").write_text("x" * size)
        prompt = await rig.ok("GET", f"/api/domains/{domain}/effective-prompt")
        problems = {problem["name"]: problem["problem"] for problem in prompt["problems"]}
        assert problems == {
            "10-long.md": "cut: 8,000 of 8,001 characters are used; the limit of one file is 8,000",
            "50-late.md": "cut: 1 of 100 characters are used; the limit of all files together is 32,000",
        }
