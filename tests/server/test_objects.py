"""The documented objects have exactly these fields in the answers of a running server."""

from pathlib import Path

from agentic_rag.base.errors import ModelError
from agentic_rag.testing.steps import Cite, say, use
from tests.access.tenants import as_operator, bearer, make_key
from tests.server.rig import Json, Rig

CONVERSATION = (
    "id domainId ownerId title titleSource status messageCount contextDocumentIds metadata sessionId imageId turn "
    "startedAt updatedAt lastMessageAt assistantId"
)
MESSAGE = "id conversationId turnId parentMessageId role content blocks references metadata createdAt"
OF_QUESTIONS = "compacted"
OF_ANSWERS = (
    "compacted model usage retrievalTimeMs generationTimeMs stopReason interrupted retrievalIds roles "
    "sources tokensUsed"
)
REFERENCE = "number documentId documentName chunkId citedText score"
DOMAIN = "id name description settings documentCount version createdAt updatedAt"
DOCUMENT = (
    "id domainId name mediaType size status denseState progress pageCount chunkCount createdAt date labels folderLabels"
)
TURN = "id conversationId status endReason usage imageId roles startedAt endedAt"
IMAGE = "id domainId definition createdAt"
ROLE = "id hash"


def check(record: Json, fields: str) -> None:
    assert sorted(record) == sorted(fields.split())


async def test_objects_have_exactly_the_documented_fields(tmp_path: Path) -> None:
    steps = (
        use("promptx_action", role="assistant"),
        use("search_documents", query="leave"),
        say("Twenty-five days.", Cite(0)),
        ModelError("no", http_status=400),
    )
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", b"# Leave\n\nTwenty-five days a year.\n")
        check(document, DOCUMENT)
        check((await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"][0], DOCUMENT)
        broken_document = await rig.upload(domain, "b.pdf", b"no pdf")
        check(broken_document, f"{DOCUMENT} error")
        check(await rig.ok("GET", f"/api/domains/{domain}"), DOMAIN)
        check((await rig.ok("GET", "/api/domains"))["items"][0], DOMAIN)
        conversation = await rig.conversation(domain)
        path = f"/api/conversations/{conversation}"
        fresh = await rig.ok("GET", path)
        check(fresh, CONVERSATION)
        assert (fresh["imageId"], fresh["turn"]) == (None, None)
        await rig.say(conversation, "How many?")
        await rig.say(conversation, "Why?")
        conversations = (await rig.ok("GET", "/api/conversations"))["items"]
        assert conversations == [await rig.ok("GET", path)]
        question, answer, _, failed_answer = (await rig.ok("GET", f"{path}/messages"))["items"]
        for message, metadata in (
            (question, OF_QUESTIONS),
            (answer, f"{OF_ANSWERS} toolCalls"),
            (failed_answer, f"{OF_ANSWERS} error"),
        ):
            check(message, MESSAGE)
            check(message["metadata"], metadata)
        check(failed_answer["metadata"]["error"], "code message retryable")
        (reference,) = answer["references"]
        check(reference, REFERENCE)
        for message in (answer, failed_answer):
            turn = await rig.ok("GET", f"/api/turns/{message['turnId']}")
            check(turn, f"{TURN} error" if message is failed_answer else TURN)
            assert turn["imageId"] == conversations[0]["imageId"]
        first = await rig.ok("GET", f"/api/turns/{answer['turnId']}")
        assert answer["metadata"]["roles"] == first["roles"]
        check(first["roles"][0], ROLE)


async def test_a_prompt_image_shows_admins_a_turns_prompt_without_secrets(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes.")) as rig:
        entry = {"url": "https://example.com/mcp", "headers": {"X-Key": "sk-verysecret-0123456789"}}
        domain = await rig.domain(mcpServers={"notes": entry}, tone="formal")
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hello")
        image = (await rig.ok("GET", f"/api/conversations/{conversation}"))["imageId"]
        admin = await make_key(rig, "ann", "admin", domain)
        member = await make_key(rig, "bob", "member", domain)
        stranger = await make_key(rig, "eve", "admin", await rig.domain())
        image_record = await rig.ok("GET", f"/api/images/{image}", headers=bearer(admin))
        check(image_record, IMAGE)
        assert (image_record["id"], image_record["domainId"]) == (image, domain)
        assert image_record["definition"]["persona"]["tone"] == "formal"
        assert "notes" in image_record["definition"]["entries"]
        assert "binding" not in image_record["definition"]
        assert not any(word in str(image_record) for word in ("verysecret", str(tmp_path)))
        as_operator(rig)
        assert await rig.ok("GET", f"/api/images/{image}") == image_record
        for key, ident in ((member, image), (stranger, image), (admin, "img_x")):
            refusal = await rig.refused("GET", f"/api/images/{ident}", headers=bearer(key))
            assert refusal[:2] == (404, "IMAGE_NOT_FOUND")
