"""A turn's definition is built once, and rebuilt when one of its sources changes."""

from dataclasses import replace
from pathlib import Path

from agentic_rag.access.users import LOCAL, User
from agentic_rag.base.ids import ConversationId
from agentic_rag.runtime.core.definition import Definition
from tests.server.rig import Rig


async def definition(rig: Rig, conversation: str, user: User = LOCAL) -> Definition:
    services = rig.application.services
    record = await services.conversations.get(LOCAL, ConversationId(conversation))
    return (await services.definitions.definition(user, record))[0]


async def test_conversations_share_equal_data(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        first, second = await rig.conversation(domain), await rig.conversation(domain)
        foreign = await rig.conversation()
        assert await definition(rig, first) is await definition(rig, first)
        assert await definition(rig, first) == await definition(rig, second)
        assert await definition(rig, first) != await definition(rig, foreign)


async def test_a_change_of_the_domain_or_of_the_users_rights_applies_at_once(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        first = await definition(rig, conversation)
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"maxTokens": 1234}})
        second = await definition(rig, conversation)
        assert (first.max_tokens != 1234, second.max_tokens) == (True, 1234)
        await rig.ok("PATCH", f"/api/domains/{domain}", {"name": "Tax"})
        assert (await definition(rig, conversation)).persona.name == "Tax"
        member = User("local", domains=frozenset({domain}))
        assert (await definition(rig, conversation)).binding.admin
        assert not (await definition(rig, conversation, member)).binding.admin
        assert (await definition(rig, conversation)).binding.admin


async def test_a_new_prompt_file_and_document_apply_to_the_next_turn(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        first = await definition(rig, conversation)
        prompt = rig.settings.workspaces / domain / "prompt"
        prompt.mkdir(parents=True, exist_ok=True)
        (prompt / "a.md").write_text("Answer in verse.")
        second = await definition(rig, conversation)
        assert (first.persona.components, second.persona.components) == ((), ("Answer in verse.",))
        await rig.upload(domain, "a.md", b"# Law\n\nWhat is written counts.")
        await rig.taken_up(domain)
        third = await definition(rig, conversation)
        assert third.collection_note != second.collection_note


async def test_tools_of_built_in_servers_are_cached_while_unchanged(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        hub, first = rig.application.parts.turn_tools, await definition(rig, conversation)
        opened = await hub.open(first)
        assert await hub.open(first) is opened
        reduced = await hub.open(_without_documents(first))
        assert len(reduced.tools) < len(opened.tools)
        opened = await hub.open(first)
        assert await hub.open(first) is opened
        rig.application.parts.pool.restart("retriever")
        assert not opened.fresh
        reopened = await hub.open(first)
        assert reopened is not opened
        assert reopened.tools == opened.tools
        assert reopened.fresh


async def test_a_new_secret_is_redacted_in_cached_tools(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        hub, first = rig.application.parts.turn_tools, await definition(rig, conversation)
        opened = await hub.open(first)
        word = next(word for tool in opened.tools for word in tool.description.split() if len(word) > 8)
        rig.application.parts.vault.redact.add(domain, "TOKEN", word)
        assert await hub.open(first) is opened
        assert all(word not in tool.description for tool in opened.tools)


def _without_documents(definition: Definition) -> Definition:
    return replace(definition, system=definition.system[:1])
