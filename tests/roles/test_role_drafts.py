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


def files(role: str = DRAFT) -> list[Json]:
    thought = {"kind": "thought", "id": "clerk-thought", "content": THOUGHT}
    return [{"kind": "role", "id": "clerk", "content": role}, thought]


def on_disk(rig: Rig, domain: str) -> list[str]:
    folder = rig.settings.workspaces / domain / ".promptx"
    return sorted(path.name for path in folder.rglob("*.md"))


async def test_a_draft_is_rendered_and_checked_without_a_write(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/roles/clerk"
        template = await rig.ok("POST", f"{path}/check", {})
        assert [file["kind"] for file in template["files"]] == ["role", "thought", "execution"]
        assert template["findings"] == []
        shown = await rig.ok("POST", f"{path}/check", {"files": files()})
        assert "I am the drafted one." in shown["text"]
        assert "Count twice." in shown["text"]
        assert [file["file"] for file in shown["files"]] == [
            ".promptx/resource/role/clerk/clerk.role.md",
            ".promptx/resource/role/clerk/thought/clerk-thought.thought.md",
        ]
        broken = await rig.ok("POST", f"{path}/check", {"files": files("<role>\n<personality>x")})
        assert broken["text"] is None
        assert {(finding["file"], finding["severity"]) for finding in broken["findings"]} >= {
            (".promptx/resource/role/clerk/clerk.role.md", "error")
        }
        assert (await rig.refused("POST", f"{path}/check", {"files": files()[1:]}))[0] == 422
        assert (await rig.refused("POST", f"/api/domains/{domain}/roles/..%2Fx/check", {}))[0] in (404, 422)
        assert on_disk(rig, domain) == []
        assert (await rig.refused("GET", path))[0] == 404
        await rig.ok("PUT", path, {"files": files(LIVE)})
        await rig.ok("POST", f"{path}/check", {"files": files("<role>")})
        live = RoleLibrary(rig.settings.workspaces / domain).activate("clerk")
        assert "the written one" in live.text  # nor does a draft leave a trace in the cache of the last read


async def test_a_message_uses_a_draft_and_the_next_one_the_saved_role(tmp_path: Path) -> None:
    activate = use("promptx_action", role="clerk")
    steps = (activate, say("One."), activate, say("Two."), say("Three."))
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        draft = {"role": "clerk", "files": files()}
        events = await rig.say(conversation, "Try", roleDraft=draft)
        assert types_of(events)[-1] == "done"
        told = str(rig.model.requests[1].messages)
        assert "I am the drafted one." in told
        assert "clerk" in str(rig.model.requests[0].system)
        assert on_disk(rig, domain) == []
        await rig.ok("PUT", f"/api/domains/{domain}/roles/clerk", {"files": files(LIVE)})
        await rig.say(conversation, "Again")  # no draft: the stored role
        assert "I am the written one." in str(rig.model.requests[3].messages)
        await rig.say(
            conversation, "And?", roleDraft={"role": "clerk", "files": files(DRAFT.replace("drafted", "third"))}
        )
        assert "was edited" in str(rig.model.requests[4].messages[-1])  # so that the model activates it again


@pytest.mark.parametrize(
    ("draft", "path"),
    [
        ({"role": "../x", "files": files()}, "roleDraft.role"),
        ({"role": "clerk", "files": []}, "roleDraft.files"),
        ({"role": "clerk", "files": files("<role><personality>")}, "roleDraft.files"),
        ({"role": "other", "files": files()}, "files"),
        (
            {"role": "clerk", "files": files(f"<role><personality>{'x' * 300_000}</personality></role>")},
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
        for role, wanted in (("member", 403), ("author", 200)):
            headers = bearer(keys[role])
            conversation = (await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=headers))["id"]
            path = f"/api/domains/{domain}/roles/clerk/check"
            assert (await rig.http.post(path, json={"files": files()}, headers=headers)).status_code == wanted
            body = {"content": "Try", "roleDraft": {"role": "clerk", "files": files()}}
            path = f"/api/conversations/{conversation}/messages"
            assert (await rig.http.post(path, json=body, headers=headers)).status_code == wanted


async def test_viewing_a_memory_does_not_count_as_recall(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        base = f"/api/domains/{domain}/memories"
        assert (await rig.refused("GET", f"{base}/recall?role=assistant"))[0] == 404
        engram = {"content": "Anna likes sencha.", "cues": ["anna", "tea"], "type": "ATOMIC", "strength": 0.9}
        other = {**engram, "content": "Tea is at four.", "cues": ["tea", "four"]}
        engrams = [
            {**each, "id": f"e{at}", "createdAt": 1_700_000_000_000 + at} for at, each in enumerate((engram, other))
        ]
        await rig.ok("POST", f"{base}/import?role=assistant", {"engrams": engrams})
        before = await rig.ok("GET", f"{base}/export?role=assistant")
        found = await rig.ok("GET", f"{base}/recall?role=assistant&cue=tea&mode=creative")
        assert (found["center"], found["mode"]) == ("tea", "creative")
        assert {"tea", "four"} <= set(found["activated"])
        assert {edge["source"] for edge in found["edges"]} <= set(found["activated"])
        assert {each["content"] for each in found["engrams"]} == {"Anna likes sencha.", "Tea is at four."}
        assert (await rig.ok("GET", f"{base}/recall?role=assistant"))["overview"]
        assert await rig.ok("GET", f"{base}/export?role=assistant") == before
        assert (await rig.refused("GET", f"{base}/recall?role=../x"))[0] == 422
        assert (await rig.refused("GET", f"{base}/recall?role=assistant&mode=wild"))[0] == 422


async def test_the_settings_describe_themselves(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        schema = await rig.ok("GET", "/api/domain-settings")
        domain = await rig.domain()
        shown = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]
        assert set(schema["properties"]) >= set(shown) - {"mcpServers", "adoptRole"}
        top = schema["properties"]["retrievalTopK"]
        assert (top["minimum"], top["maximum"], top["default"]) == (1, 50, 5)
