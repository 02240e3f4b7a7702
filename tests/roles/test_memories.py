"""Memory through turns and over REST: its owner, its durability, and that its owner can see and delete it."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, NotFound
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.store.audit import AuditOutcome
from agentic_rag.testing.steps import Step, say, use
from tests.server.rig import WAIT_SECONDS, Rig
from tests.waiting import pause


def remember(content: str, schema: str = "tea green", **fields: str) -> Step:
    engram = {"content": content, "schema": schema, "strength": 0.8, "type": "ATOMIC", **fields}
    return use("promptx_remember", engrams=[engram])


def recall_tea() -> Step:
    return use("promptx_recall", query="tea")


def make_member(name: str, domain: str) -> User:
    return User(name, domains=frozenset({domain}))


async def run_turn(rig: Rig, user: User, domain: str, content: str = "Hi") -> str:
    """Run a turn of a user and return everything the model received in it."""
    conversations: Conversations = rig.application.services.conversations
    conversation = await conversations.create(user, domain)
    accepted = await conversations.send(user, conversation.id, content)
    with anyio.fail_after(WAIT_SECONDS):
        while (await conversations.turn(user, accepted.turn_id)).status in ("running", "queued"):
            await pause()
    return str(rig.model.requests[-1].messages)


async def browse(rig: Rig, domain: str, **params: str) -> Any:
    return await rig.ok("GET", f"/api/domains/{domain}/memories", params=params)


async def test_in_scope_user_memories_are_private(tmp_path: Path) -> None:
    async with Rig(
        tmp_path, remember("Anna likes sencha."), say("1"), recall_tea(), say("2"), recall_tea(), say("3")
    ) as rig:
        domain = await rig.domain(memoryScope="user")
        anna, ben = make_member("anna", domain), make_member("ben", domain)
        await run_turn(rig, anna, domain)
        assert "sencha" not in await run_turn(rig, ben, domain)
        assert "sencha" in await run_turn(rig, anna, domain)
        memories = rig.application.services.memories
        page = await memories.browse(anna, domain, role=None, q="", offset=0, limit=10)
        assert [(name, engram.content) for name, engram in page.items] == [("assistant", "Anna likes sencha.")]
        assert (await memories.browse(ben, domain, role="assistant", q="", offset=0, limit=10)).total == 0
        with pytest.raises(NotFound):
            await memories.delete(ben, domain, page.items[0][1].id)
        await memories.delete(anna, domain, page.items[0][1].id)
        assert (await memories.browse(anna, domain, role=None, q="", offset=0, limit=10)).total == 0


async def test_remembering_for_all_users_of_a_domain_needs_an_admins_approval(tmp_path: Path) -> None:
    async with Rig(tmp_path, remember("The office drinks sencha."), say("Done.")) as rig:
        domain = await rig.domain(memoryScope="domain")
        await rig.ok("POST", "/api/keys", {"user": "olga", "role": "operator"})  # the local mode has ended
        anna = make_member("anna", domain)
        memories = rig.application.services.memories
        assert "Denied (shared-memory)" in await run_turn(rig, anna, domain)
        assert (await memories.browse(anna, domain, role=None, q="", offset=0, limit=10)).total == 0
        row = (await rig.application.parts.audit.page(1, outcome=AuditOutcome.DENIED))[0]
        assert (row.actor, row.target, row.details["because"]) == ("anna", "promptx_remember", "shared-memory")


async def test_an_engram_names_its_author_who_can_delete_it(tmp_path: Path) -> None:
    async with Rig(tmp_path, remember("The office drinks sencha."), say("1"), recall_tea(), say("2")) as rig:
        domain = await rig.domain(memoryScope="domain")
        anna, ben = make_member("anna", domain), make_member("ben", domain)
        await run_turn(rig, anna, domain)
        (item,) = (await browse(rig, domain))["items"]
        assert item["author"] == "anna"
        assert item["turnId"].startswith("turn_")
        memories = rig.application.services.memories
        with pytest.raises(Forbidden):
            await memories.delete(ben, domain, item["id"])
        await memories.delete(anna, domain, item["id"])
        assert (await browse(rig, domain))["total"] == 0
        await run_turn(rig, anna, domain)


async def test_in_scope_domain_memories_are_shared_and_members_delete_only_their_own(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, remember("The office drinks sencha."), say("1"), recall_tea(), say("2")) as rig:
        domain = await rig.domain(memoryScope="domain")
        anna, ben = make_member("anna", domain), make_member("ben", domain)
        await run_turn(rig, anna, domain)
        assert "sencha" in await run_turn(rig, ben, domain)
        memories = rig.application.services.memories
        page = await memories.browse(ben, domain, role=None, q="", offset=0, limit=10)
        with pytest.raises(Forbidden):
            await memories.delete(ben, domain, page.items[0][1].id)
        with pytest.raises(Forbidden):
            await memories.add(ben, domain, "assistant", [], {})
        await memories.delete(User("olga", operator=True), domain, page.items[0][1].id)
        assert (await memories.browse(ben, domain, role=None, q="", offset=0, limit=10)).total == 0


async def test_memory_survives_a_restart(tmp_path: Path) -> None:
    async with Rig(tmp_path, remember("Sencha on Fridays."), say("1")) as rig:
        domain = await rig.domain()
        await rig.say(await rig.conversation(domain), "Hi")
    async with Rig(tmp_path, recall_tea(), say("2")) as rig:
        await rig.say(await rig.conversation(domain), "What do I drink?")
        assert "Sencha on Fridays." in str(rig.model.requests[-1].messages)
        assert (await browse(rig, domain))["total"] == 1


async def test_memories_are_browsed_by_role_text_and_page_and_deleted(tmp_path: Path) -> None:
    steps = [step for number in range(3) for step in (remember(f"Fact {number}", f"cue{number} tea"), say("1"))]
    async with Rig(tmp_path, *steps, remember("Other"), say("1")) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        for _ in range(3):
            await rig.say(conversation, "Hi")
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"primaryRoleId": "researcher"}})
        await rig.say(conversation, "Hi")  # the memory is bound to the role, which is no argument
        listing = await browse(rig, domain)
        assert (listing["total"], listing["roles"]) == (4, ["assistant", "researcher"])
        assert listing["scope"] == "domain"
        first = listing["items"][0]
        assert (first["role"], first["content"], first["cues"]) == ("researcher", "Other", ["tea", "green"])
        assert first["createdAt"].endswith("Z")
        assert [item["content"] for item in (await browse(rig, domain, q="fact 1"))["items"]] == ["Fact 1"]
        page = await browse(rig, domain, role="assistant", offset="1", limit="1")
        assert ([item["content"] for item in page["items"]], page["total"]) == (["Fact 1"], 3)
        await rig.ok("DELETE", f"/api/domains/{domain}/memories/{page['items'][0]['id']}")
        assert (await browse(rig, domain, q="cue1"))["total"] == 0
        refusal = await rig.refused("DELETE", f"/api/domains/{domain}/memories/{page['items'][0]['id']}")
        assert refusal[:2] == (404, "MEMORY_NOT_FOUND")
        for bad_params in ({"role": "../x"}, {"limit": "0"}, {"offset": "-1"}, {"user": "anna"}):
            assert (await rig.refused("GET", f"/api/domains/{domain}/memories", params=bad_params))[0] == 422


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cues", ["one"]),
        ("strength", 1.5),
        ("type", "GOSSIP"),
        ("content", ""),
        ("content", "x" * 65_537),
        ("content", "a\0b"),
        ("createdAt", 9_999_999_999_999),
        ("id", "a\0b"),
        ("extra", 1),
    ],
)
async def test_a_forged_import_is_refused_whole(tmp_path: Path, field: str, value: Any) -> None:
    engram = {"id": "1_a", "content": "c", "cues": ["a", "b"], "type": "ATOMIC", "strength": 0.5, "createdAt": 1}
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/memories/import?role=clerk"
        refusal = await rig.refused("POST", path, {"engrams": [engram, {**engram, "id": "2_b", field: value}]})
        assert refusal[:2] == (422, "VALIDATION_ERROR")
        assert (await browse(rig, domain, role="clerk"))["total"] == 0
        assert await rig.ok("POST", path, {"engrams": [engram]}) == {"added": 1, "known": 0}
        assert await rig.ok("POST", path, {"engrams": [engram]}) == {"added": 0, "known": 1}


async def test_replaced_memories_are_shown_on_request_and_deleted_with_their_successor(tmp_path: Path) -> None:
    old_engram = {
        "id": "1_a",
        "content": "Sencha",
        "cues": ["tea", "green"],
        "type": "ATOMIC",
        "strength": 1,
        "createdAt": 1,
    }
    async with Rig(tmp_path, remember("Black tea now.", replaces="1_a"), say("1"), recall_tea(), say("2")) as rig:
        domain = await rig.domain()
        await rig.ok("POST", f"/api/domains/{domain}/memories/import?role=assistant", {"engrams": [old_engram]})
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hi")
        [current] = (await browse(rig, domain))["items"]
        [replaced] = (await browse(rig, domain, show="replaced"))["items"]
        assert (current["replaces"], replaced["replacedBy"]) == ("1_a", current["id"])
        assert "replacedBy" not in current
        assert (await browse(rig, domain, show="all"))["total"] == 2
        assert (await browse(rig, domain, show="proposed"))["total"] == 0
        assert (await rig.refused("GET", f"/api/domains/{domain}/memories", params={"show": "x"}))[0] == 422
        await rig.say(conversation, "What tea?")
        assert "Sencha" not in str(rig.model.requests[-1].messages).split("What tea?")[1]
        export = await rig.ok("GET", f"/api/domains/{domain}/memories/export?role=assistant")
        path = f"/api/domains/{domain}/memories/import?role=clerk"
        assert (await rig.ok("POST", path, {"engrams": export["engrams"]}))["added"] == 2
        assert (await browse(rig, domain, role="clerk"))["total"] == 1
        await rig.ok("DELETE", f"/api/domains/{domain}/memories/{current['id']}?role=assistant")
        assert (await browse(rig, domain, role="assistant", show="all"))["total"] == 0


async def test_a_model_forgets_a_memory_of_its_user_and_none_of_another(tmp_path: Path) -> None:
    forgets: list[Step] = []

    def forget(_: Any) -> Step:
        return forgets[0]

    async with Rig(tmp_path, remember("Anna likes sencha."), say("1"), forget, say("2"), forget, say("3")) as rig:
        domain = await rig.domain(memoryScope="user")
        anna, ben = make_member("anna", domain), make_member("ben", domain)
        await run_turn(rig, anna, domain)
        memories = rig.application.services.memories

        async def list_ids() -> list[str]:
            page = await memories.browse(anna, domain, role=None, q="", offset=0, limit=10)
            return [engram.id for _, engram in page.items]

        [engram_id] = await list_ids()
        forgets.append(use("promptx_forget", id=engram_id))
        assert f"There is no memory '{engram_id}' here." in await run_turn(rig, ben, domain)
        assert await list_ids() == [engram_id]
        assert "Forgotten: Anna likes sencha." in await run_turn(rig, anna, domain)
        assert await list_ids() == []


async def test_forgetting_for_all_users_of_a_domain_needs_an_admins_approval(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("promptx_forget", id="1_a"), say("Done.")) as rig:
        domain = await rig.domain(memoryScope="domain")
        await rig.ok("POST", "/api/keys", {"user": "olga", "role": "operator"})  # the local mode has ended
        assert "Denied (shared-memory)" in await run_turn(rig, make_member("anna", domain), domain)


async def test_a_delegate_remembers_as_its_own_role(tmp_path: Path) -> None:
    task = use("delegate", role="researcher", task="Keep it.")
    async with Rig(tmp_path, task, remember("Other"), say("Kept."), say("Done.")) as rig:
        domain = await rig.domain(subRoleIds=["researcher"])
        await rig.say(await rig.conversation(domain), "Hi")
        assert [item["role"] for item in (await browse(rig, domain))["items"]] == ["researcher"]
