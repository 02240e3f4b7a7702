"""The consistency check finds what was planted, mends it, and then finds nothing."""

import subprocess
import sys
from pathlib import Path

import anyio
from sqlalchemy import Connection, text

from agentic_rag.access.users import LOCAL
from agentic_rag.store import conversations, documents, payloads, sessions, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.payloads import PayloadRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.testing.steps import say
from tests.server.rig import Rig

PAST = "2020-01-01T00:00:00.000Z"


def turn(turn_id: str, session_id: str, **fields: object) -> TurnRecord:
    values = {
        "id": turn_id,
        "session_id": session_id,
        "conversation_id": "conv_x",
        "content": "Hi",
        "user_message_id": "msg_1",
        "message_id": "msg_2",
        "image_id": "img_1",
        "started_at": "2099-01-01T00:00:00.000Z",
    }
    return TurnRecord(**{**values, **fields})  # type: ignore[arg-type]


async def test_a_healthy_folder_has_no_findings(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hello.")) as rig:
        domain = await rig.domain()
        rig.application.begin()
        await rig.upload(domain, "a.md", b"# Pump\n\nThe pump holds 3 litres.\n")
        await rig.say(await rig.conversation(domain), "Hi")
        assert await rig.application.doctor.examine() == []


async def test_what_does_not_fit_is_found_and_mended_and_no_message_is_lost(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One."), say("Two."), say("Three.")) as rig:
        domain = await rig.domain()
        rig.application.begin()
        document = await rig.upload(domain, "a.md", b"# Pump\n\nThe pump holds 3 litres.\n")
        hollow, lost = await rig.conversation(domain), await rig.conversation(domain)
        await rig.say(hollow, "Hi")
        await rig.say(lost, "What was said must stay")
        business = rig.application.business
        hollow_session = (await business.conversations.get(LOCAL, hollow)).session_id
        lost_session = (await business.conversations.get(LOCAL, lost)).session_id
        folder = rig.settings.data / "payloads"
        folder.mkdir()
        orphan, missing = new_id("ref"), new_id("ref")
        (folder / orphan).write_bytes(b"x")

        def break_it(conn: Connection) -> None:
            sessions.delete(conn, hollow_session)
            conversations.delete(conn, lost)
            payloads.put(
                conn,
                PayloadRecord(ref=missing, session_id=lost_session, media_type="text/plain", size=1, created_at=now()),
            )
            turns.TURNS.insert(conn, turn("turn_mute", lost_session, status="running"))
            turns.TURNS.insert(conn, turn("turn_left", lost_session, status="done", lease_until=PAST, fence=3))
            conn.execute(text("UPDATE documents SET chunk_count = 7 WHERE id = :id"), {"id": document["id"]})

        await rig.application.database.write(break_it)
        doctor = rig.application.doctor
        found = await doctor.examine()
        assert [(finding.code, finding.subject) for finding in found] == [
            ("CONVERSATION_WITHOUT_SESSION", hollow),
            ("SESSION_WITHOUT_CONVERSATION", lost_session),
            ("TURN_WITHOUT_MESSAGE", "turn_mute"),
            ("STALE_LEASE", "turn_left"),
            ("PAYLOAD_WITHOUT_RECORD", orphan),
            ("PAYLOAD_WITHOUT_FILE", missing),
            ("DOCUMENT_NOT_AS_INDEXED", document["id"]),
        ]
        assert await doctor.examine() == found
        assert [finding.code for finding in await doctor.examine(repair=True)] == [finding.code for finding in found]
        assert await doctor.examine() == []
        path = f"/api/conversations/{lost}"
        assert (await rig.ok("GET", path))["title"] == "What was said must stay"
        items = (await rig.ok("GET", f"{path}/messages"))["items"]
        assert [item["content"] for item in items] == ["What was said must stay", "Two."]
        assert (await rig.say(hollow, "Again"))[-1]["type"] == "done"
        left = await rig.application.database.read(lambda conn: turns.get(conn, "turn_left"))
        assert left is not None
        assert (left.fence, left.lease_until) == (4, None)
        queued = await rig.application.database.read(lambda conn: documents.get(conn, document["id"]))
        assert queued is not None
        assert queued.status == "queued"


async def test_chunks_of_documents_that_are_gone_are_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        rig.application.begin()
        document = await rig.upload(domain, "a.md", b"# Pump\n\nThe pump holds 3 litres.\n")
        await rig.application.database.write(lambda conn: documents.delete(conn, document["id"]))
        doctor = rig.application.doctor
        found = await doctor.examine(repair=True)
        assert [(finding.code, finding.subject) for finding in found] == [("INDEX_WITHOUT_DOCUMENT", domain)]
        assert await doctor.examine() == []


async def test_the_command_reports_mends_and_leaves_a_folder_in_use_alone(tmp_path: Path) -> None:
    def doctor(*options: str) -> tuple[int, str, str]:
        command = [str(Path(sys.executable).with_name("agentic-rag")), "doctor", "--data", str(tmp_path / "data")]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    async with Rig(tmp_path, say("Hi.")) as rig:
        await rig.say(await rig.conversation(), "Hi")
        status, _, said = await anyio.to_thread.run_sync(doctor)
        assert status == 3
        assert "in use" in said
    folder = tmp_path / "data" / "payloads"
    folder.mkdir()
    (folder / new_id("ref")).write_bytes(b"x")
    status, said, _ = await anyio.to_thread.run_sync(doctor)
    assert status == 1
    assert said.startswith("PAYLOAD_WITHOUT_RECORD")
    assert await anyio.to_thread.run_sync(doctor, "--repair") == (0, said.replace("1 found.", "1 found, repaired."), "")
    assert await anyio.to_thread.run_sync(doctor) == (0, "Everything fits together.\n", "")
