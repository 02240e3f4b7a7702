"""A used conversation is cached between messages, and refusals stay refusals."""

from pathlib import Path

import pytest

from agentic_rag.access.users import LOCAL, User
from agentic_rag.base.errors import NotFound
from agentic_rag.base.ids import ConversationId
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.testing.steps import say
from tests.server.rig import Rig


async def _refusal(service: Conversations, user: User, conversation_id: str) -> NotFound:
    with pytest.raises(NotFound) as exc_info:
        await service.send(user, ConversationId(conversation_id), "Again.")
    return exc_info.value


async def test_a_deleted_conversation_refuses_messages_at_once(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One."), say("Two.")) as rig:
        domain = await rig.domain()
        deleted, kept = await rig.conversation(domain), await rig.conversation(domain)
        for conversation in (deleted, kept):
            await rig.say(conversation, "Hello.")
        await rig.ok("DELETE", f"/api/conversations/{deleted}")
        await rig.ok("DELETE", f"/api/domains/{domain}")
        for conversation in (deleted, kept):
            refusal = await rig.refused("POST", f"/api/conversations/{conversation}/messages", {"content": "Again."})
            assert refusal[:2] == (404, "CONVERSATION_NOT_FOUND")


async def test_an_archived_conversation_refuses_messages_at_once(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One.")) as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, "Hello.")
        await rig.ok("PATCH", f"/api/conversations/{conversation}", {"status": "archived"})
        refusal = await rig.refused("POST", f"/api/conversations/{conversation}/messages", {"content": "Again."})
        assert refusal[:2] == (409, "CONVERSATION_ARCHIVED")


async def test_a_just_used_conversation_does_not_exist_for_others(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One."), say("Two.")) as rig:
        service, conversation = rig.application.services.conversations, await rig.conversation()
        await rig.say(conversation, "Hello.")
        for stranger in (User("bob", operator=True), User(LOCAL.id, domains=frozenset({"dom_other"}))):
            refused = await _refusal(service, stranger, conversation)
            assert (refused.noun, refused.hidden) == ("conversation", True)
        assert (await rig.say(conversation, "Still mine."))[-1]["type"] == "done"
