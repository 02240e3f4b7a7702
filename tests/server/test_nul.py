"""NUL characters: not every store accepts them, so they are refused at the edge, with every database."""

from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.errors import InvalidInput
from agentic_rag.server.ws.frames import MessageFrame, read_frame
from agentic_rag.testing.steps import say
from tests.server.rig import Rig, types_of
from tests.store.conftest import needs_postgresql, postgresql_server

REQUESTS: list[tuple[str, str, Any, str]] = [
    ("POST", "/api/domains", {"name": "a\0b"}, "name"),
    ("PATCH", "/api/domains/{domain}", {"description": "a\0b"}, "description"),
    ("PATCH", "/api/domains/{domain}", {"settings": {"expertise": "\0"}}, "settings.expertise"),
    ("PATCH", "/api/domains/{domain}", {"settings": {"variables": {"A": "\0"}}}, "settings.variables.A"),
    ("PATCH", "/api/domains/{domain}", {"settings": {"subRoleIds": ["a", "\0"]}}, "settings.subRoleIds.1"),
    ("POST", "/api/domains/{domain}/documents/search", {"query": "a\0b"}, "query"),
    ("POST", "/api/domains/{domain}/documents/search", {"query": "a", "filters": {"document": "\0"}}, "filters."),
    ("POST", "/api/conversations", {"domainId": "\0"}, "domainId"),
    ("POST", "/api/conversations", {"domainId": "{domain}", "contextDocumentIds": ["\0"]}, "contextDocumentIds.0"),
    ("POST", "/api/conversations", {"domainId": "{domain}", "title": "\0"}, "title"),
    ("PATCH", "/api/conversations/{conversation}", {"metadata": {"a": [{"b": "\0"}]}}, "metadata.a.0.b"),
    ("PATCH", "/api/conversations/{conversation}", {"metadata": {"a\0": 1}}, "metadata.a\ufffd"),
    (
        "POST",
        "/api/conversations/{conversation}/messages",
        {"content": "a", "clientMessageId": "\0"},
        "clientMessageId",
    ),
    ("POST", "/api/conversations/{conversation}/interrupt", {"turnId": "\0"}, "turnId"),
    ("PUT", "/api/domains/{domain}/secrets/A", {"value": "a\0b-secret"}, "value"),
    ("POST", "/api/keys", {"user": "a\0b", "role": "operator"}, "user"),
    ("GET", "/api/conversations?q=%00", None, "q"),
    ("GET", "/api/conversations?domainId=%00", None, "domainId"),
    ("GET", "/api/conversations/{conversation}/messages?before=%00", None, "before"),
    ("GET", "/api/conversations/{conversation}/tool-calls?toolName=%00", None, "toolName"),
    ("GET", "/api/domains/{domain}/memories?q=%00", None, "q"),
    ("GET", "/api/audit?actor=%00", None, "actor"),
]


async def test_a_nul_in_a_body_or_a_query_is_refused_with_its_place(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        for method, template, fields, place in REQUESTS:
            path = template.format(domain=domain, conversation=conversation)
            own = isinstance(fields, dict) and fields.get("domainId") == "{domain}"
            body = {**fields, "domainId": domain} if own else fields
            status, code, message = await rig.refused(method, path, body)
            assert (place, status, code) == (place, 422, "VALIDATION_ERROR")
            assert message.startswith(place)
            assert "\0" not in message


IDS = (
    ("/api/domains/%00", "DOMAIN_NOT_FOUND"),
    ("/api/domains/a%00b/documents", "DOMAIN_NOT_FOUND"),
    ("/api/domains/{domain}/documents/%00", "DOCUMENT_NOT_FOUND"),
    ("/api/domains/{domain}/retrievals/%00", "RETRIEVAL_NOT_FOUND"),
    ("/api/domains/{domain}/roles/%00", "ROLE_NOT_FOUND"),
    ("/api/domains/{domain}/secrets/%00", "VALIDATION_ERROR"),
    ("/api/conversations/%00", "CONVERSATION_NOT_FOUND"),
    ("/api/conversations/%00/archives", "CONVERSATION_NOT_FOUND"),
    ("/api/conversations/{conversation}/archives/%00/messages", "ARCHIVE_NOT_FOUND"),
    ("/api/turns/%00", "TURN_NOT_FOUND"),
    ("/api/turns/a%00b/events", "TURN_NOT_FOUND"),
)


async def ask_for_ids(rig: Rig) -> None:
    domain = await rig.domain()
    conversation = await rig.conversation(domain)
    for path, code in IDS:
        status, found_code, message = await rig.refused("GET", path.format(domain=domain, conversation=conversation))
        assert (status, found_code) == (422 if code == "VALIDATION_ERROR" else 404, code), path
        assert message.isprintable()


async def test_an_id_with_a_nul_is_not_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await ask_for_ids(rig)


@needs_postgresql
async def test_an_id_with_a_nul_is_not_found_on_postgresql_either(tmp_path: Path) -> None:
    with postgresql_server() as server:
        async with Rig(tmp_path, database_url=server.url) as rig:
            await ask_for_ids(rig)


async def test_a_message_loses_its_nuls_and_is_answered(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Fine.")) as rig:
        conversation = await rig.conversation()
        assert types_of(await rig.say(conversation, "a\0b"))[-1] == "done"
        items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert "ab" in str(items[0])


def test_a_frame_with_a_nul_outside_the_message_text_is_refused() -> None:
    for frame in (
        {"type": "message", "conversationId": "a\0", "content": "x"},
        {"type": "subscribe", "conversationId": "a\0"},
    ):
        with pytest.raises(InvalidInput, match="conversationId: a NUL"):
            read_frame(frame)
    assert isinstance(read_frame({"type": "message", "conversationId": "a", "content": "x\0"}), MessageFrame)
