"""Deleting a document while turns run: no turn is interrupted, and none cites it afterwards."""

from pathlib import Path

import anyio

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import Cite, Say, Step, use
from tests.server.rig import Rig


async def test_deleting_a_document_interrupts_no_turn_and_no_later_step_cites_it(tmp_path: Path) -> None:
    search_step = use("search_documents", query="pump")
    stalled_step = Stalled(use("search_documents", query="bar"), 1)
    cite_step = Step((Say("Twelve.", (Cite(0, cited_text="The pump holds twelve bar."),)),))
    async with Rig(tmp_path, search_step, stalled_step, cite_step) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "pump.md", b"The pump holds twelve bar.")
        conversation = await rig.conversation(domain)
        path = f"/api/conversations/{conversation}/messages"
        headers = {"Accept": "application/json"}
        accepted = await rig.ok("POST", path, {"content": "How much?"}, headers=headers)
        with anyio.fail_after(240):
            await stalled_step.reached.wait()
            await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
            stalled_step.until.set()
            turn = accepted["id"]
            events = [event async for event in rig.application.services.runtime.follow(turn)]
        assert events[-1].type == "done", "the deletion ended the turn"
        assert not [event for event in events if event.type == "source_reference"]
        assert events[-1].fields()["references"] == []
