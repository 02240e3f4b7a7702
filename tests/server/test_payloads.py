"""Stored results as files."""

from pathlib import Path

from agentic_rag.base.ids import ConversationId, SessionId
from agentic_rag.store import conversations, payloads
from agentic_rag.store.clock import new_id
from agentic_rag.store.payloads import PayloadFiles
from tests.server.rig import Rig


async def test_a_stored_result_is_a_file_that_no_browser_renders(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation(await rig.domain())
        database = rig.application.database
        record = await database.read(lambda conn: conversations.get(conn, ConversationId(conversation)))
        assert record is not None
        text_types, html_types = ("text/plain", "text/plain; charset=utf-8"), ("text/html", "application/octet-stream")
        for media_type, expected in (text_types, html_types):
            ref, data = new_id("ref"), b"<script>alert(1)</script>"
            await PayloadFiles(rig.settings.data / "payloads").write(ref, data)
            payload = payloads.record_of(ref, record.session_id, media_type, data)
            await database.write(lambda conn, payload=payload: payloads.put(conn, payload))  # type: ignore[misc]
            answer = await rig.http.get(f"/api/payloads/{ref}")
            assert (answer.status_code, answer.content) == (200, data)
            assert answer.headers["content-type"] == expected
            assert answer.headers["content-disposition"].startswith("attachment;")
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await rig.http.get(f"/api/payloads/{new_id('ref')}")).status_code == 404
        foreign = payloads.record_of(new_id("ref"), SessionId("sess_of_nobody"), "text/plain", b"x")
        await database.write(lambda conn: payloads.put(conn, foreign))
        refusal = await rig.http.get(f"/api/payloads/{foreign.ref}")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "PAYLOAD_NOT_FOUND")


async def test_a_secret_is_cut_out_of_a_binary_file_and_all_other_bytes_stay(tmp_path: Path) -> None:
    secret, every_byte = "s3cret-of-the-domain", bytes(range(256))
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/TOKEN", {"value": secret})
        conversation = await rig.conversation(domain)
        database = rig.application.database
        record = await database.read(lambda conn: conversations.get(conn, ConversationId(conversation)))
        assert record is not None
        for media_type in ("application/pdf", "application/zip", "image/png", "text/plain"):
            ref, data = new_id("ref"), every_byte + secret.encode() + b"\xff" * 50 + every_byte[::-1]
            await PayloadFiles(rig.settings.data / "payloads").write(ref, data)
            payload = payloads.record_of(ref, record.session_id, media_type, data)
            await database.write(lambda conn, payload=payload: payloads.put(conn, payload))  # type: ignore[misc]
            answer = await rig.http.get(f"/api/payloads/{ref}")
            assert answer.content == data.replace(secret.encode(), b"[secret TOKEN]")
