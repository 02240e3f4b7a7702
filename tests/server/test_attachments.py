"""Files attached to a question: read like documents, stored with the conversation, hidden from other users."""

from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.errors import StorageUnavailable
from agentic_rag.testing.steps import Cite, Say, Step, Use, say
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig
from tests.ws.serving import client, serving

CONTRACT = b"""# Contract

## Notice

The contract ends with a notice of 45 days.

## Price

The pump costs 1200 crowns a year.
"""
QUOTE = "The contract ends with a notice of 45 days."
STEPS = (
    Step((Use("search_documents", {"query": "notice of the contract", "document": "contract.md"}),)),
    Step((Say("45 days", (Cite(0, 0, 1),)),)),
)

pytestmark = pytest.mark.slow("reads files in another process")


async def attach(rig: Rig, conversation: str, *files: tuple[str, bytes], **options: Any) -> list[Json]:
    """Attach files and return one item for each."""
    parts = [("file", (name, content)) for name, content in files]
    path = f"/api/conversations/{conversation}/attachments"
    response = await rig.http.post(path, files=parts, **options)
    assert response.status_code == 201, response.text
    return list(response.json()["items"])


class LostCommit:
    """A database whose connection is lost right after it has stored an attachment."""

    def __init__(self) -> None:
        self._place = ""

    def __call__(self, place: str) -> None:
        if place == "commit.done" and self._place == "attachment.placed":
            self._place = ""
            raise StorageUnavailable("the connection was lost")
        if place == "attachment.placed":
            self._place = place


async def test_an_attachment_whose_commit_is_uncertain_keeps_its_files(tmp_path: Path) -> None:
    async with Rig(tmp_path, failpoint=LostCommit()) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}/attachments"
        (item,) = (await rig.ok("POST", path, files={"file": ("contract.md", CONTRACT)}))["items"]
        assert item["error"]["code"] == "STORAGE_UNAVAILABLE"
        (stored,) = (await rig.ok("GET", path))["items"]
        assert (await rig.http.get(f"/api/attachments/{stored['id']}/file")).content == CONTRACT


async def test_an_attached_file_is_searched_read_and_cited_in_its_conversation_only(tmp_path: Path) -> None:
    reading = (
        Step((Use("read_document", {"document": "contract"}),)),
        Step((Use("list_documents", {}),)),
        Step((Use("find_in_document", {"document": "contract.md", "pattern": "1200 crowns"}),)),
        say("Read."),
    )
    other_turn = (
        Step((Use("list_documents", {}),)),
        Step((Use("search_documents", {"query": "notice of the contract"}),)),
        say("No."),
    )
    async with Rig(tmp_path, *STEPS, *reading, *other_turn) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nThere are 25 days of leave a year.")
        conversation = await rig.conversation(domain)
        (item,) = await attach(rig, conversation, ("contract.md", CONTRACT))
        assert (item["name"], item["status"], item["passages"]) == ("contract.md", "ready", 2)
        events = await rig.say(conversation, "How long is the notice?", attachments=[item["id"]])
        assert events[0]["attachments"] == [
            {
                "id": item["id"],
                "name": "contract.md",
                "mediaType": "text/markdown",
                "size": len(CONTRACT),
                "passages": 2,
            }
        ]
        (reference,) = [event for event in events if event["type"] == "source_reference"]
        assert (reference["documentName"], reference["citedText"].strip()) == ("contract.md", QUOTE)
        content = rig.model.requests[0].messages[0]["content"]
        assert "attached the file 'contract.md'" in content[-2]["text"]
        assert content[-1]["text"] == "How long is the notice?"
        question, answer = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert (question["content"], len(question["blocks"])) == ("How long is the notice?", 1)
        assert [attachment["name"] for attachment in question["attachments"]] == ["contract.md"]
        base = f"/api/attachments/{item['id']}"
        chunk = answer["references"][0]["chunkId"]
        place = await rig.ok("GET", f"{base}/chunks/{chunk}/place", params={"text": QUOTE, "format": "html"})
        assert (place["documentName"], place["headingPath"]) == ("contract.md", ["Contract", "Notice"])
        assert "<mark>" in place["html"]
        original = await rig.http.get(f"{base}/file")
        assert original.content == CONTRACT
        assert original.headers["content-disposition"].startswith("attachment")
        async with client(address) as c:  # a later message of the conversation, by socket
            await c.ask("message", conversationId=conversation, content="And the price?")
            heard_events = await c.hear_turn()
        results = [event["content"] for event in heard_events if event["type"] == "tool_result"]
        assert QUOTE in results[0]
        assert "contract.md" in results[1]
        assert "leave.md" in results[1]
        assert "1200 crowns" in results[2]
        other_conversation = await rig.conversation(domain)
        results = [
            event["content"] for event in await rig.say(other_conversation, "Notice?") if event["type"] == "tool_result"
        ]
        assert "contract.md" not in results[0]
        assert QUOTE not in results[1]
        names = [item["name"] for item in (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]]
        assert names == ["leave.md"]
        assert await rig.refused(
            "POST", f"/api/conversations/{other_conversation}/messages", {"content": "Hi", "attachments": [item["id"]]}
        ) == (404, "ATTACHMENT_NOT_FOUND", f"There is no attachment {item['id']!r}.")


@pytest.mark.parametrize("document", ["", "contract", "Contract.md"])
async def test_an_attached_file_is_searched_by_part_of_its_name_and_without_a_name(
    tmp_path: Path, document: str
) -> None:
    search = Step((Use("search_documents", {"query": "notice of the contract", "document": document}),))
    async with Rig(tmp_path, search, say("45 days")) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nThere are 25 days of leave a year.")
        conversation = await rig.conversation(domain)
        (item,) = await attach(rig, conversation, ("contract.md", CONTRACT))
        events = await rig.say(conversation, "How long is the notice?", attachments=[item["id"]])
        (result,) = [event["content"] for event in events if event["type"] == "tool_result"]
        assert QUOTE in result


async def test_an_unreadable_file_is_refused_alone_and_unread_parts_are_named(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes.")) as rig:
        conversation = await rig.conversation()
        broken_pdf, program, empty, table = await attach(
            rig,
            conversation,
            ("broken.pdf", b"%PDF-1.7 nothing"),
            ("run.exe", b"MZ"),
            ("empty.txt", b"  \n"),
            ("rates.csv", b"Item,Price\nPump,1200\n"),
        )
        assert [item["status"] for item in (broken_pdf, program, empty, table)] == [
            "refused",
            "refused",
            "refused",
            "ready",
        ]
        assert [item["error"]["code"] for item in (broken_pdf, program, empty)] == [
            "DOCUMENT_BROKEN",
            "DOCUMENT_UNSUPPORTED",
            "DOCUMENT_EMPTY",
        ]
        assert "run.exe" in program["error"]["message"]
        path = f"/api/conversations/{conversation}/attachments"
        assert [item["name"] for item in (await rig.ok("GET", path))["items"]] == ["rates.csv"]
        await rig.say(conversation, "Price?", attachments=[table["id"]])
        status, code, message = await rig.refused("DELETE", f"{path}/{table['id']}")
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert "deleted with the conversation" in message
        (unsent,) = await attach(rig, conversation, ("note.txt", b"A note."))
        await rig.ok("DELETE", f"{path}/{unsent['id']}")
        assert [item["name"] for item in (await rig.ok("GET", path))["items"]] == ["rates.csv"]
        payloads = rig.settings.data / "payloads"
        assert len(list(payloads.iterdir())) == 2
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        assert not list(payloads.iterdir())


async def test_attached_files_are_private_and_left_out_of_shared_links(tmp_path: Path) -> None:
    async with Rig(tmp_path, *STEPS, share_links="anyone") as rig:
        domain = await rig.domain()
        ann, bob = [bearer(await make_key(rig, name, "member", domain)) for name in ("ann", "bob")]
        conversation = await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=ann)
        (item,) = await attach(rig, conversation["id"], ("contract.md", CONTRACT), headers=ann)
        path = f"/api/conversations/{conversation['id']}"
        body = {"content": "How long is the notice?", "attachments": [item["id"]]}
        response = await rig.http.post(f"{path}/messages", json=body, headers=ann)
        assert "source_reference" in response.text
        chunk = f"{item['id']}.0"
        for method, place in (
            ("GET", f"{path}/attachments"),
            ("GET", f"/api/attachments/{item['id']}/file"),
            ("GET", f"/api/attachments/{item['id']}/chunks/{chunk}/place"),
            ("DELETE", f"{path}/attachments/{item['id']}"),
            ("GET", f"/api/domains/{domain}/chunks/{chunk}/place"),
            ("GET", f"/api/domains/{domain}/documents/{item['id']}/file"),
        ):
            assert (await rig.http.request(method, place, headers=bob)).status_code == 404, place
        answer = (await rig.ok("GET", f"{path}/messages", headers=ann))["items"][1]
        assert answer["references"][0]["documentName"] == "contract.md"  # ann's own view is complete
        export = await rig.http.get(f"{path}/export", headers=ann)
        assert "Files attached to this question: contract.md" in export.text
        address = (await rig.ok("POST", f"{path}/share", headers=ann))["path"]
        shared_page = await rig.http.get(address, headers=bob)
        assert shared_page.status_code == 200
        assert "How long is the notice?" in shared_page.text
        assert "contract.md" not in shared_page.text
        assert QUOTE not in shared_page.text
