"""A role draft is checked and tried, while everybody else gets the stored role."""

from pathlib import Path

import pytest

from agentic_rag.testing.steps import say, use
from mcp_servers.promptx.roles import RoleLibrary
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig, types_of

LIVE = "<role><personality>I am the written one.</personality></role>"
DRAFT = "<role><personality>I am the drafted one. @!thought://clerk-thought</personality></role>"
THOUGHT = "<thought><plan>Count twice.</plan></thought>"


def draft_files(role: str = DRAFT) -> list[Json]:
    thought = {"kind": "thought", "id": "clerk-thought", "content": THOUGHT}
    return [{"kind": "role", "id": "clerk", "content": role}, thought]


def list_files(rig: Rig, domain: str) -> list[str]:
    folder = rig.settings.workspaces / domain / ".promptx"
    return sorted(path.name for path in folder.rglob("*.md"))


async def test_a_draft_is_rendered_and_checked_without_a_write(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/roles/clerk"
        template = await rig.ok("POST", f"{path}/check", {})
        assert [file["kind"] for file in template["files"]] == ["role", "thought", "execution"]
        assert template["findings"] == []
        draft = await rig.ok("POST", f"{path}/check", {"files": draft_files()})
        assert "I am the drafted one." in draft["text"]
        assert "Count twice." in draft["text"]
        assert [file["file"] for file in draft["files"]] == [
            ".promptx/resource/role/clerk/clerk.role.md",
            ".promptx/resource/role/clerk/thought/clerk-thought.thought.md",
        ]
        broken_draft = await rig.ok("POST", f"{path}/check", {"files": draft_files("<role>\n<personality>x")})
        assert broken_draft["text"] is None
        assert {(finding["file"], finding["severity"]) for finding in broken_draft["findings"]} >= {
            (".promptx/resource/role/clerk/clerk.role.md", "error")
        }
        assert (await rig.refused("POST", f"{path}/check", {"files": draft_files()[1:]}))[0] == 422
        assert (await rig.refused("POST", f"/api/domains/{domain}/roles/..%2Fx/check", {}))[0] in (404, 422)
        assert list_files(rig, domain) == []
        assert (await rig.refused("GET", path))[0] == 404
        await rig.ok("PUT", path, {"files": draft_files(LIVE)})
        await rig.ok("POST", f"{path}/check", {"files": draft_files("<role>")})
        activation = RoleLibrary(rig.settings.workspaces / domain).activate("clerk")
        assert "the written one" in activation.text  # nor does a draft leave a trace in the cache of the last read


async def test_a_message_uses_a_draft_and_the_next_one_the_saved_role(tmp_path: Path) -> None:
    activate = use("promptx_action", role="clerk")
    steps = (activate, say("One."), activate, say("Two."), say("Three."))
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        draft = {"role": "clerk", "files": draft_files()}
        events = await rig.say(conversation, "Try", roleDraft=draft)
        assert types_of(events)[-1] == "done"
        messages = str(rig.model.requests[1].messages)
        assert "I am the drafted one." in messages
        assert "clerk" in str(rig.model.requests[0].system)
        assert list_files(rig, domain) == []
        await rig.ok("PUT", f"/api/domains/{domain}/roles/clerk", {"files": draft_files(LIVE)})
        await rig.say(conversation, "Again")  # no draft: the stored role
        assert "I am the written one." in str(rig.model.requests[3].messages)
        await rig.say(
            conversation, "And?", roleDraft={"role": "clerk", "files": draft_files(DRAFT.replace("drafted", "third"))}
        )
        assert "was edited" in str(rig.model.requests[4].messages[-1])  # so that the model activates it again


@pytest.mark.parametrize(
    ("draft", "path"),
    [
        ({"role": "../x", "files": draft_files()}, "roleDraft.role"),
        ({"role": "clerk", "files": []}, "roleDraft.files"),
        ({"role": "clerk", "files": draft_files("<role><personality>")}, "roleDraft.files"),
        ({"role": "other", "files": draft_files()}, "files"),
        (
            {"role": "clerk", "files": draft_files(f"<role><personality>{'x' * 300_000}</personality></role>")},
            "roleDraft.files",
        ),
    ],
    ids=["id", "no files", "broken", "another role's", "too large"],
)
async def test_an_invalid_draft_is_refused_and_no_turn_starts(tmp_path: Path, draft: Json, path: str) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation()
        body = {"content": "Try", "roleDraft": draft}
        answer = await rig.http.post(f"/api/conversations/{conversation}/messages", json=body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["details"]["path"] == path
        assert (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"] == []


async def test_only_authors_can_try_and_check_drafts(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes.")) as rig:
        domain = await rig.domain()
        keys = {role: await make_key(rig, role, role, domain) for role in ("member", "author")}
        for role, expected_status in (("member", 403), ("author", 200)):
            headers = bearer(keys[role])
            conversation = (await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=headers))["id"]
            path = f"/api/domains/{domain}/roles/clerk/check"
            assert (
                await rig.http.post(path, json={"files": draft_files()}, headers=headers)
            ).status_code == expected_status
            body = {"content": "Try", "roleDraft": {"role": "clerk", "files": draft_files()}}
            path = f"/api/conversations/{conversation}/messages"
            assert (await rig.http.post(path, json=body, headers=headers)).status_code == expected_status


async def test_viewing_a_memory_does_not_count_as_recall(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        base = f"/api/domains/{domain}/memories"
        assert (await rig.refused("GET", f"{base}/recall?role=assistant"))[0] == 404
        engram = {"content": "Anna likes sencha.", "cues": ["anna", "tea"], "type": "ATOMIC", "strength": 0.9}
        second_engram = {**engram, "content": "Tea is at four.", "cues": ["tea", "four"]}
        engrams = [
            {**fields, "id": f"e{number}", "createdAt": 1_700_000_000_000 + number}
            for number, fields in enumerate((engram, second_engram))
        ]
        await rig.ok("POST", f"{base}/import?role=assistant", {"engrams": engrams})
        before = await rig.ok("GET", f"{base}/export?role=assistant")
        recall = await rig.ok("GET", f"{base}/recall?role=assistant&cue=tea&mode=creative")
        assert (recall["center"], recall["mode"]) == ("tea", "creative")
        assert {"tea", "four"} <= set(recall["activated"])
        assert {edge["source"] for edge in recall["edges"]} <= set(recall["activated"])
        assert {entry["content"] for entry in recall["engrams"]} == {"Anna likes sencha.", "Tea is at four."}
        assert (await rig.ok("GET", f"{base}/recall?role=assistant"))["overview"]
        assert await rig.ok("GET", f"{base}/export?role=assistant") == before
        assert (await rig.refused("GET", f"{base}/recall?role=../x"))[0] == 422
        assert (await rig.refused("GET", f"{base}/recall?role=assistant&mode=wild"))[0] == 422


async def test_the_settings_describe_themselves(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        schema = await rig.ok("GET", "/api/domain-settings")
        domain = await rig.domain()
        settings = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]
        assert set(schema["properties"]) >= set(settings) - {"mcpServers", "adoptRole"}
        top_k = schema["properties"]["retrievalTopK"]
        assert (top_k["minimum"], top_k["maximum"], top_k["default"]) == (1, 50, 5)
