"""The role that a memory call names: used if the conversation can reach it, otherwise refused with alternatives."""

from pathlib import Path
from typing import Any

import pytest

from agentic_rag.testing.steps import Step, say, use
from tests.server.rig import Json, Rig


def remember(content: str, **arguments: Any) -> Step:
    engram = {"content": content, "schema": "tea green", "strength": 0.8, "type": "ATOMIC"}
    return use("promptx_remember", engrams=[engram], **arguments)


def results_of(events: list[Json]) -> list[tuple[str, str]]:
    return [(event["status"], event["content"]) for event in events if event["type"] == "tool_result"]


async def list_contents(rig: Rig, domain: str, role: str) -> list[str]:
    items = (await rig.ok("GET", f"/api/domains/{domain}/memories", params={"role": role}))["items"]
    return [item["content"] for item in items]


async def test_primary_sub_and_activated_roles_are_used(tmp_path: Path) -> None:
    steps = (
        *(remember("Of the primary role."), remember("Said with it.", role="assistant")),
        *(remember("Of the sub-role.", role="researcher"), remember("Too early.", role="nuwa"), say("1")),
        *(use("promptx_action", role="nuwa"), remember("In the same turn.", role="nuwa"), say("2")),
        *(use("promptx_recall", role="nuwa", query="tea"), remember("In a later turn.", role="nuwa"), say("3")),
    )
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain(subRoleIds=["researcher"])
        conversation = await rig.conversation(domain)
        first = results_of(await rig.say(conversation, "Remember"))
        assert [status for status, _ in first] == ["ok", "ok", "ok", "error"]
        assert first[0][1].startswith("Saved 1 memory under the role assistant.")
        assert first[2][1].startswith("Saved 1 memory under the role researcher.")
        assert "'nuwa'" in first[3][1]
        assert "Possible roles: assistant, researcher." in first[3][1]
        assert [status for status, _ in results_of(await rig.say(conversation, "Be nuwa"))] == ["ok", "ok"]
        assert [status for status, _ in results_of(await rig.say(conversation, "And now?"))] == ["ok", "ok"]
        assert await list_contents(rig, domain, "assistant") == ["Said with it.", "Of the primary role."]
        assert await list_contents(rig, domain, "researcher") == ["Of the sub-role."]
        assert await list_contents(rig, domain, "nuwa") == ["In a later turn.", "In the same turn."]


@pytest.mark.parametrize("role", ["nobody", "../../x", "Assistant", "x" * 300, ["assistant"], 5])
async def test_an_impossible_role_name_is_an_error_and_saves_nothing(tmp_path: Path, role: Any) -> None:
    async with Rig(tmp_path, remember("Green.", role=role), say("No.")) as rig:
        domain = await rig.domain()
        ((status, message),) = results_of(await rig.say(await rig.conversation(domain), "Go"))
        assert status == "error"
        assert "role" in message
        folders = {path.parent.name for path in (rig.settings.workspaces / domain).rglob("engrams.db")}
        assert folders <= {"assistant"}
        assert (await rig.ok("GET", f"/api/domains/{domain}/memories"))["items"] == []


async def test_an_activation_in_another_conversation_opens_no_memory(tmp_path: Path) -> None:
    steps = (use("promptx_action", role="nuwa"), say("1"), remember("Green.", role="nuwa"), say("2"))
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        await rig.say(await rig.conversation(domain), "Be nuwa")
        ((status, _),) = results_of(await rig.say(await rig.conversation(domain), "Save"))
        assert status == "error"


async def test_a_recall_is_shown_as_cards_with_relevance_and_strength_even_without_a_query(tmp_path: Path) -> None:
    steps = (
        remember("Anna likes sencha."),
        use("promptx_recall", query="tea"),
        use("promptx_recall"),
        say("Done."),
    )
    async with Rig(tmp_path, *steps) as rig:
        events = await rig.say(await rig.conversation(), "Tea?")
        cards = [event["hits"][0] for event in events if event["type"] == "retrieval"]
        assert [card["snippet"] for card in cards] == ["Anna likes sencha."] * 2
        assert [card["strength"] for card in cards] == [0.8, 0.8]
        assert [card["score"] for card in cards] == [1.0, 0.0]
