"""A question right after a domain's first upload finds that document."""

from pathlib import Path

import anyio

from agentic_rag.testing.steps import say, use
from tests.server.rig import WAIT_SECONDS, Rig

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"


async def add(rig: Rig, domain: str, name: str, content: bytes) -> None:
    """Upload a file without waiting for it."""
    await rig.ok("POST", f"/api/domains/{domain}/documents", files={"file": (name, content)})


def tools_of(rig: Rig) -> set[str]:
    return {tool["name"] for tool in rig.model.requests[-1].tools}


async def test_an_immediate_question_can_search_the_first_document(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Twenty-five.")) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        await add(rig, domain, "leave.md", TEXT)
        await rig.say(conversation, "How many days of leave?")
        assert "search_documents" in tools_of(rig)


async def test_a_search_does_not_wait_for_a_first_document_that_failed(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("I have no documents."), first_document_seconds=10 * WAIT_SECONDS) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        await add(rig, domain, "empty.md", b"   ")
        with anyio.fail_after(WAIT_SECONDS):
            await rig.say(conversation, "How many days of leave?")
        assert "The collection holds" not in str(rig.model.requests[0].tools)


async def test_search_without_documents_is_offered_and_says_so(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("search_documents", query="leave"), say("There are none.")) as rig:
        domain = await rig.domain()
        await rig.say(await rig.conversation(domain), "How many days of leave?")
        assert "search_documents" in tools_of(rig)
        assert "There are no documents that can be searched." in str(rig.model.requests[1].messages)
