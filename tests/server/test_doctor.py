"""The consistency check finds planted problems, repairs them, and then finds nothing."""

import hashlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection, text

from agentic_rag.access.acts import Acts, act
from agentic_rag.access.users import LOCAL
from agentic_rag.base.ids import ConversationId, DocumentId, TurnId
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import DatabaseMissing
from agentic_rag.commands.doctor import examine
from agentic_rag.operations.data_folder import lent_files
from agentic_rag.store import conversations, documents, payloads, sessions, turns
from agentic_rag.store.clock import new_id
from agentic_rag.store.turns import TurnRecord
from agentic_rag.testing.steps import say
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from mcp_servers.promptx.memory import Memory, memory_folder
from mcp_servers.promptx.new_engrams import NewEngram
from tests.programs import run_program
from tests.server.rig import Rig, settings_for
from tests.waiting import pause


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    """Planted files have the same permissions as the server's files."""
    before = os.umask(0o077)
    yield
    os.umask(before)


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


async def test_the_doctor_repairs_inconsistent_conversations_without_losing_messages(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One."), say("Two."), say("Three.")) as rig:
        domain = await rig.domain()
        rig.application.begin()
        document = await rig.upload(domain, "a.md", b"# Pump\n\nThe pump holds 3 litres.\n")
        hollow, forgotten = await rig.conversation(domain), await rig.conversation(domain)
        await rig.say(hollow, "Hi")
        await rig.say(forgotten, "What was said must stay")
        services = rig.application.services
        hollow_session = (await services.conversations.get(LOCAL, ConversationId(hollow))).session_id
        lost_session = (await services.conversations.get(LOCAL, ConversationId(forgotten))).session_id
        folder = rig.settings.data / "payloads"
        folder.mkdir()
        orphan, missing = new_id("ref"), new_id("ref")
        (folder / orphan).write_bytes(b"x")

        def break_it(conn: Connection) -> None:
            sessions.delete(conn, hollow_session)
            conversations.delete(conn, ConversationId(forgotten))
            payloads.put(
                conn,
                payloads.record_of(missing, lost_session, "text/plain", b"x"),
            )
            turn("turn_mute", lost_session, status="running").insert(conn)
            turn("turn_left", lost_session, status="done", lease_until=PAST, fence=3).insert(conn)
            conn.execute(text("UPDATE documents SET chunk_count = 7 WHERE id = :id"), {"id": document["id"]})

        await rig.application.database.write(break_it)
        doctor = rig.application.doctor
        findings = await doctor.examine()
        assert [(finding.code, finding.subject) for finding in findings] == [
            ("CONVERSATION_WITHOUT_SESSION", hollow),
            ("SESSION_WITHOUT_CONVERSATION", lost_session),
            ("TURN_WITHOUT_MESSAGE", "turn_mute"),
            ("STALE_LEASE", "turn_left"),
            ("PAYLOAD_WITHOUT_RECORD", orphan),
            ("PAYLOAD_WITHOUT_FILE", missing),
            ("DOCUMENT_NOT_AS_INDEXED", document["id"]),
        ]
        assert await doctor.examine() == await doctor.examine(sums=True) == findings
        assert [finding.code for finding in await doctor.examine(repair=True)] == [finding.code for finding in findings]
        assert await doctor.examine() == []
        path = f"/api/conversations/{forgotten}"
        assert (await rig.ok("GET", path))["title"] == "What was said must stay"
        items = (await rig.ok("GET", f"{path}/messages"))["items"]
        assert [item["content"] for item in items] == ["What was said must stay", "Two."]
        assert (await rig.say(hollow, "Again"))[-1]["type"] == "done"
        turn_after = await rig.application.database.read(lambda conn: turns.get(conn, TurnId("turn_left")))
        assert turn_after is not None
        assert (turn_after.fence, turn_after.lease_until) == (4, None)
        queued = await rig.application.database.read(lambda conn: documents.get(conn, document["id"]))
        assert queued is not None
        assert queued.status == "queued"


async def test_chunks_of_deleted_documents_are_detected(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        rig.application.begin()
        document = await rig.upload(domain, "a.md", b"# Pump\n\nThe pump holds 3 litres.\n")
        await rig.application.database.write(lambda conn: documents.delete(conn, document["id"]))
        doctor = rig.application.doctor
        assert [finding.code for finding in await doctor.examine(sums=True)] == ["INDEX_WITHOUT_DOCUMENT"]
        findings = await doctor.examine(repair=True)
        assert [(finding.code, finding.subject) for finding in findings] == [("INDEX_WITHOUT_DOCUMENT", domain)]
        assert await doctor.examine() == []


async def test_checksums_identify_unchanged_domains_without_reading_their_documents(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain, other_domain = await rig.domain(), await rig.domain()
        shrunk = await rig.upload(domain, "a.md", b"# Pump\n\nIt holds 3 litres.\n")
        grown = await rig.upload(other_domain, "b.md", b"# Valve\n\nIt is red.\n")
        count = text("UPDATE documents SET chunk_count = chunk_count + :more WHERE id = :id")
        doctor, database = rig.application.doctor, rig.application.database
        assert await doctor.examine(sums=True) == []
        await database.write(lambda conn: conn.execute(count, {"more": 1, "id": shrunk["id"]}))
        await database.write(lambda conn: conn.execute(count, {"more": -1, "id": grown["id"]}))
        findings = await doctor.examine(sums=True)
        assert {(finding.code, finding.subject) for finding in findings} == {
            ("DOCUMENT_NOT_AS_INDEXED", shrunk["id"]),
            ("DOCUMENT_NOT_AS_INDEXED", grown["id"]),
        }, "one domain's sum does not make up for another's"


@pytest.mark.sqlite("its commands have a file")
async def test_the_command_reports_and_repairs_except_in_a_folder_in_use(tmp_path: Path) -> None:
    def doctor(*options: str) -> tuple[int, str, str]:
        command = ["doctor", "--data", str(tmp_path / "data"), *options]
        result = run_program(command, cwd=tmp_path, env=os.environ)
        return result.returncode, result.stdout, result.stderr

    async with Rig(tmp_path, say("Hi.")) as rig:
        await rig.say(await rig.conversation(), "Hi")
        status, _, output = await anyio.to_thread.run_sync(doctor)
        assert status == 3
        assert "in use" in output
    folder = tmp_path / "data" / "payloads"
    folder.mkdir()
    (folder / new_id("ref")).write_bytes(b"x")
    status, output, _ = await anyio.to_thread.run_sync(doctor)
    assert status == 1
    embedder, finding, _ = output.splitlines()
    assert embedder.startswith("Searches use the embedder ")
    assert "tokens at once" in embedder
    assert finding.startswith("PAYLOAD_WITHOUT_RECORD")
    assert await anyio.to_thread.run_sync(doctor, "--repair") == (
        0,
        output.replace("1 found; --repair does what stands in brackets.", "1 found, repaired."),
        "",
    )
    assert await anyio.to_thread.run_sync(doctor) == (0, f"{embedder}\nEverything fits together.\n", "")


async def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await anyio.to_thread.run_sync(partial(run_program, arguments, cwd=folder, env=os.environ))


async def test_a_missing_folder_is_named_in_one_line(tmp_path: Path) -> None:
    result = await run_command(tmp_path, "doctor", "--data", str(tmp_path / "none"))
    assert result.returncode == 2
    assert f"there is no folder {tmp_path / 'none'}" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()


async def codes(settings: Settings, *, repair: bool = False) -> list[str]:
    return [finding.code for finding in await examine(settings, repair)]


def scribble(path: Path, start: int = 4096) -> bytes:
    """Overwrite a file from an offset on, as a failing disk does; return its content."""
    data = path.read_bytes()
    assert len(data) > start + 4096
    path.write_bytes(data[:start] + b"\xa5" * (len(data) - start))
    return path.read_bytes()


@pytest.mark.sqlite("damages the file")
@pytest.mark.parametrize("damage", ["pages", "another file", "gone"])
async def test_a_damaged_database_is_reported_and_not_overwritten(tmp_path: Path, damage: str) -> None:
    async with Rig(tmp_path, say("Hi.")) as rig:
        domain = await rig.domain()
        await rig.say(await rig.conversation(domain), "Hi")
    database = rig.settings.data / "agentic-rag.db"
    if damage == "pages":
        damaged = scribble(database)
    else:
        database.write_bytes(b"no database" * 1000)
        damaged = database.read_bytes()
    if damage == "gone":
        database.unlink()
    payload = rig.settings.data / "payloads" / new_id("ref")
    payload.parent.mkdir()
    payload.write_bytes(b"a result")
    memory = rig.settings.workspaces / domain / ".promptx" / "cognition" / "sage"
    memory.mkdir(parents=True)
    (memory / "engrams.db").symlink_to("/etc/hostname")
    findings = await examine(rig.settings, True)
    assert [finding.code for finding in findings] == ["DATABASE_DAMAGED", "MEMORY_DAMAGED"]
    assert "backup" in findings[0].remedy
    assert payload.exists(), "without records nobody knows whose it is"
    if damage == "gone":
        assert not database.exists()
    else:
        assert database.read_bytes() == damaged


async def test_the_command_reports_a_damaged_database_in_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "agentic-rag.db").write_bytes(b"no database" * 1000)
    result = await run_command(tmp_path, "doctor", "--repair", "--data", str(data))
    lines = result.stdout.splitlines()
    assert result.returncode == 1
    (line,) = [line for line in lines if line.startswith("DATABASE_DAMAGED")]
    assert "file is not a database" in line
    assert "backup" in line
    assert result.stderr == ""


def is_read_again(conn: Connection, document_id: str, digest: str) -> bool:
    document = documents.get(conn, DocumentId(document_id))
    return document is not None and document.sha256 == digest and document.status == "indexed"


@pytest.mark.sqlite("another server looked a moment ago")
async def test_a_missing_or_changed_original_is_reported_and_a_changed_one_read_again(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        rig.application.begin()
        changed_id, missing_id = [
            (await rig.upload(domain, f"{name}.md", f"# {name}\n\nThe {name} holds 3 litres.\n".encode()))["id"]
            for name in ("pump", "tank")
        ]
        folder = rig.settings.workspaces / domain / "documents"
    assert await codes(rig.settings) == []
    (folder / "tank.md").unlink()
    before = (folder / "pump.md").stat()
    now_there = b"# pump\n\nThe pump holds 9 litres.\n"
    (folder / "pump.md").write_bytes(now_there)
    digest = hashlib.sha256(now_there).hexdigest()
    os.utime(folder / "pump.md", ns=(before.st_atime_ns, before.st_mtime_ns))  # a decaying disk reports nothing
    findings = await examine(rig.settings, False)
    assert {(finding.code, finding.subject) for finding in findings} == {
        ("DOCUMENT_FILE_CHANGED", changed_id),
        ("DOCUMENT_FILE_MISSING", missing_id),
    }
    assert all(domain in finding.problem for finding in findings)
    assert await examine(rig.settings, True) == findings
    assert await codes(rig.settings) == ["DOCUMENT_FILE_MISSING"], "the other waits for the next start"
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        with anyio.fail_after(240):
            while not await rig.application.database.read(lambda conn: is_read_again(conn, changed_id, digest)):
                await pause()


async def test_a_stored_result_with_a_wrong_checksum_is_reported(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hi.")) as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, "Hi")
        session = (await rig.application.services.conversations.get(LOCAL, ConversationId(conversation))).session_id
        sound, damaged = new_id("ref"), new_id("ref")
        files = rig.application.parts.payloads
        for ref in (sound, damaged):
            await files.write(ref, b"a long result")
            record = payloads.record_of(ref, session, "text/plain", b"a long result")
            await rig.application.database.write(lambda conn, record=record: payloads.put(conn, record))  # type: ignore[misc]
    assert await codes(rig.settings) == []
    place = rig.settings.data / "payloads" / damaged
    place.write_bytes(b"a lone result")
    (finding,) = await examine(rig.settings, True)
    assert (finding.code, finding.subject) == ("PAYLOAD_CHANGED", damaged)
    assert str(place) in finding.remedy
    place.write_bytes(b"a long result")
    assert await codes(rig.settings) == []


def remember(workspace: Path, role: str, user: str | None = None) -> Path:
    memory = Memory(memory_folder(workspace, "user" if user else "domain", user, role))
    memory.remember([NewEngram(f"Pump {n} holds {n} litres.", f"pump{n} litres", 0.8, "ATOMIC") for n in range(60)], 1)
    memory.close()
    return memory.folder.path


async def test_each_memory_is_checked_and_its_derived_data_rebuilt(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    workspace = settings.workspaces / "law"
    torn, foreign, linked, stale, lacking = (
        remember(workspace, role, user)
        for role, user in (("a", None), ("b", None), ("c", None), ("d", "ann@example.org"), ("e", None))
    )
    assert await codes(settings) == []
    scribble(torn / "engrams.db", 8192)
    (foreign / "engrams.db").unlink()
    with closing(sqlite3.connect(foreign / "engrams.db")) as connection:
        connection.execute("CREATE VIEW engrams AS SELECT 1")
        connection.commit()
    outside = (linked / "engrams.db").rename(tmp_path / "outside.db")
    (linked / "engrams.db").symlink_to(outside)
    (stale / "network.json").write_text('{"cues": {"half')
    (stale / "state.json").write_text("[")
    (lacking / "network.json").unlink()
    before = {path.name: path.read_bytes() for path in (torn / "engrams.db", foreign / "engrams.db", outside)}
    findings = await examine(settings, True)
    assert [(finding.code, Path(finding.subject)) for finding in findings] == [
        ("MEMORY_DAMAGED", torn / "engrams.db"),
        ("MEMORY_DAMAGED", foreign / "engrams.db"),
        ("MEMORY_DAMAGED", linked / "engrams.db"),
        ("MEMORY_FILE_STALE", lacking / "network.json"),
        ("MEMORY_FILE_STALE", stale / "network.json"),
        ("MEMORY_FILE_STALE", stale / "state.json"),
    ]
    assert "schema" in findings[1].problem
    assert "link" in findings[2].problem
    assert await codes(settings) == ["MEMORY_DAMAGED"] * 3
    assert before == {path.name: path.read_bytes() for path in (torn / "engrams.db", foreign / "engrams.db", outside)}
    assert sorted(os.listdir(tmp_path)) == ["data", "outside.db"], "nothing was opened beside it"


async def test_an_empty_memory_is_not_reported_as_damaged(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    full_folder = remember(settings.workspaces / "law", "a")
    empty_folder = full_folder.with_name("begun")
    empty_folder.mkdir(mode=0o700)
    (empty_folder / "engrams.db").touch(mode=0o600)
    assert await codes(settings) == []
    (full_folder / "engrams.db").write_bytes(b"")  # here the network file beside it shows that there were engrams
    for name in ("engrams.db-wal", "engrams.db-shm"):
        (full_folder / name).unlink(missing_ok=True)
    assert await codes(settings) == ["MEMORY_DAMAGED"]


def test_folders_created_by_our_commands_are_closed_to_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = os.umask(0o022)  # one for a command line, before anything owns the folder
    try:
        LaunchCatalogue(data / "mcp").revoke("no such entry")
        Acts(data).leave(act("test"))
    finally:
        os.umask(before)
    assert lent_files(data) == []


async def test_undecryptable_secrets_and_a_readable_key_file_are_reported(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for name in ("OLD", "NEW"):
            await rig.ok("PUT", f"/api/domains/{domain}/secrets/{name}", {"value": f"value-of-{name}-1234567"})
        sealed = "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'NEW') WHERE name = 'OLD'"
        await rig.application.database.write(lambda conn: conn.execute(text(sealed)))
    (finding,) = await examine(rig.settings, True)
    assert (finding.code, finding.subject) == ("SECRETS_UNREADABLE", domain)
    assert "1 of its 2 secrets" in finding.problem
    assert "OLD" in finding.problem
    assert "NEW" not in finding.problem
    assert "value-of" not in str(finding)
    key = rig.settings.data / "secret.key"
    key.chmod(0o644)
    assert await codes(rig.settings) == ["FILES_OPEN_TO_OTHERS", "SECRET_KEY_UNUSABLE"]
    assert await codes(rig.settings, repair=True) == ["FILES_OPEN_TO_OTHERS", "SECRETS_UNREADABLE"]
    key.unlink()
    (finding,) = await examine(rig.settings, True)
    assert finding.code == "SECRET_KEY_UNUSABLE"
    assert not key.exists(), "a new one would open nothing"


@pytest.mark.sqlite("loses the file")
@pytest.mark.parametrize("remnant", ["nothing", "an empty file"])
async def test_a_missing_database_is_reported_instead_of_starting_a_new_one(tmp_path: Path, remnant: str) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        await rig.upload(await rig.domain(), "a.md", b"# Pump\n\nThe pump holds 3 litres.\n")
        file = rig.settings.data / "agentic-rag.db"
    for part in file.parent.glob("agentic-rag.db*"):
        part.unlink()
    if remnant == "an empty file":
        file.touch()
    with pytest.raises(DatabaseMissing, match="Put the database back from a backup"):
        async with Rig(tmp_path):
            raise AssertionError("it began anew")
    (file.parent / "index").rename(tmp_path / "old index")
    async with Rig(tmp_path) as rig:
        assert len((await rig.ok("GET", "/api/domains"))["items"]) <= 1
