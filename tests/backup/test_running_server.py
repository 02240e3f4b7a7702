"""Backups of a working server contain all acknowledged data, and interrupted work resumes after the restore."""

import json
from itertools import count
from pathlib import Path

import anyio
import pytest
from sqlalchemy import select

from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import Plan, Restored, restore
from agentic_rag.base import failpoints
from agentic_rag.commands.doctor import examine
from agentic_rag.store.logins import LOGINS, LoginRecord
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import say, use
from tests.reach.test_schedules import create_schedule, wait_for_firings
from tests.server.rig import Rig, settings_for
from tests.waiting import pause

from .making import read_rows

DATABASE = "agentic-rag.db"


async def back_up(rig: Rig, target: Path) -> None:
    await make_backup(rig.settings.database, rig.settings.data, target, BackupOptions(with_key=True))


async def restore_into(folder: Path, backup: Path, *, end_turns: bool) -> Restored:
    return await restore(Plan(backup, folder, folder / DATABASE, end_turns))


@pytest.mark.sqlite("backs a file up")
async def test_a_turn_that_ran_during_the_backup_is_resumed_or_ended_by_the_operators_choice(tmp_path: Path) -> None:
    stalled = Stalled(say("The pump holds three litres."), 3)
    backup = tmp_path / "b.tar.zst"
    async with Rig(tmp_path / "original", stalled) as rig:
        conversation = await rig.conversation()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.say, conversation, "How much?")
            await stalled.reached.wait()
            with anyio.fail_after(240):
                while not read_rows(rig.settings.data / DATABASE)["run_groups"]:
                    await pause()
            await back_up(rig, backup)
            stalled.until.set()
    resumed_copy = await restore_into(tmp_path / "resumed" / "data", backup, end_turns=False)
    rows = read_rows(tmp_path / "resumed" / "data" / DATABASE)
    assert rows["run_groups"] == []
    assert '"text":"The "' in "".join(map(str, rows["run_events"])), "a running turn's events are not in its rows"
    ended_copy = await restore_into(tmp_path / "ended" / "data", backup, end_turns=True)
    assert (resumed_copy.settled.turns, ended_copy.settled.turns) == (1, 1)
    for name in ("resumed", "ended"):
        assert await examine(settings_for(tmp_path / name), False) == []
    path = f"/api/conversations/{conversation}"
    async with Rig(tmp_path / "resumed", say("Three litres, still.")) as rig:
        with anyio.fail_after(240):
            await rig.application.parts.runtime.drain(30)
        items = (await rig.ok("GET", f"{path}/messages"))["items"]
        assert [item["content"] for item in items] == ["How much?", "Three litres, still."]
    async with Rig(tmp_path / "ended", say("Again: three.")) as rig:
        assert rig.application.parts.runtime.running_count == 0
        turn = read_rows(rig.settings.data / DATABASE)["turns"]
        assert "interrupted" in turn[0]
        assert (await rig.say(conversation, "And now?"))[-1]["type"] == "done"


@pytest.mark.sqlite("backs a file up")
async def test_a_turn_that_waits_for_a_person_is_ended_in_a_copy_beside_the_original(tmp_path: Path) -> None:
    step = use("promptx_remember", engrams=[{"content": "a", "schema": "a", "strength": 0.5, "type": "ATOMIC"}])
    async with Rig(tmp_path / "original", step) as rig:
        conversation = await rig.conversation(await rig.domain(toolPolicy={"promptx_remember": "ask"}))
        path, headers = f"/api/conversations/{conversation}/messages", {"accept": "application/json"}
        turn = (await rig.ok("POST", path, {"content": "Remember."}, headers=headers))["id"]
        with anyio.fail_after(240):
            checks = count()
            while not (await rig.ok("GET", "/api/waits?state=open"))["items"]:
                await pause(next(checks))
            await rig.application.parts.runtime.drain(0.01)  # suspends the turn
            while rig.application.parts.runtime.running_count:
                await pause()
        login = LoginRecord(
            id="l", user_id="ann", key_id="", sha256="s", created_at="2026", expires_at="2999", ends_at="2999"
        )
        await rig.application.database.write(lambda conn: login.insert(conn))
        await back_up(rig, tmp_path / "b.agbackup")
    restored = await restore_into(tmp_path / "copy" / "data", tmp_path / "b.agbackup", end_turns=True)
    assert (restored.settled.turns, restored.settled.ended) == (1, True)
    async with Rig(tmp_path / "copy") as rig:
        assert (await rig.ok("GET", "/api/waits?state=open"))["items"] == []
        assert (await rig.ok("GET", f"/api/turns/{turn}"))["status"] == "interrupted"
        logins = await rig.application.database.read(lambda conn: LoginRecord.all(conn, select(LOGINS)))
        assert logins == [], "one that has ended since would live again"


@pytest.mark.sqlite("backs a file up")
async def test_a_delegate_that_was_ended_in_the_copy_counts_no_message(tmp_path: Path) -> None:
    stalled = Stalled(say("Dug."), 1)
    async with Rig(tmp_path / "original", use("delegate", role="researcher", task="Dig"), stalled) as rig:
        conversation = await rig.conversation(await rig.domain(subRoleIds=["researcher"]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.say, conversation, "Dig?")
            await stalled.reached.wait()
            await back_up(rig, tmp_path / "b.agbackup")
            tasks.cancel_scope.cancel()
    await restore_into(tmp_path / "copy" / "data", tmp_path / "b.agbackup", end_turns=True)
    async with Rig(tmp_path / "copy") as rig:
        path = f"/api/conversations/{conversation}"
        items = (await rig.ok("GET", f"{path}/messages"))["items"]
        assert (await rig.ok("GET", path))["messageCount"] == len(items)


@pytest.mark.sqlite("backs a file up")
async def test_a_schedule_whose_run_was_ended_in_the_copy_runs_again(tmp_path: Path) -> None:
    stalled = Stalled(say("All calm."), 1)
    async with Rig(tmp_path / "original", stalled) as rig:
        domain = await rig.domain()
        schedule = await create_schedule(rig, domain)
        path = f"/api/domains/{domain}/schedules/{schedule['id']}"
        await rig.ok("POST", f"{path}/run")
        await stalled.reached.wait()
        (firing,) = await wait_for_firings(rig, domain, schedule, state="running")
        await back_up(rig, tmp_path / "b.agbackup")
        stalled.until.set()
    await restore_into(tmp_path / "copy" / "data", tmp_path / "b.agbackup", end_turns=True)
    async with Rig(tmp_path / "copy", say("Calm again.")) as rig:
        (ended,) = await wait_for_firings(rig, domain, schedule)
        assert (ended["state"], ended["detail"]) == ("failed", "interrupted")
        conversation = await rig.ok("GET", f"/api/conversations/{firing['conversationId']}")
        assert (conversation["outcome"], conversation["messageCount"]) == ("interrupted", 1)
        await rig.ok("POST", f"{path}/run")
        newest, _ = await wait_for_firings(rig, domain, schedule, count=2)
        assert newest["state"] == "done"


@pytest.mark.sqlite("backs a file up")
async def test_a_backup_under_load_is_consistent_and_has_all_acknowledged_data(
    tmp_path: Path,
) -> None:
    backup = tmp_path / "b.tar.zst"
    acknowledged: list[str] = []
    uploads: list[str] = []
    answers = ScriptedModel(then=say("Yes, indeed."))

    async with Rig(tmp_path / "original", instead=answers) as rig:
        rig.application.begin()
        domain = await rig.domain()
        turn_acknowledged = anyio.Event()

        async def talk(number: int) -> None:
            conversation = await rig.conversation(domain)
            count = 0
            while not stop.is_set():
                words = f"question {number}.{count}"
                await rig.say(conversation, words)
                acknowledged.append(words)
                count += 1
                turn_acknowledged.set()

        async def bring(number: int) -> None:
            count = 0
            while not stop.is_set():
                name = f"{number}-{count}.md"
                files = {"file": (name, f"# Part {number}.{count}\n\nIts own words.\n".encode())}
                response = await rig.ok("POST", f"/api/domains/{domain}/documents", files=files)
                if count % 2:
                    await rig.ok("DELETE", f"/api/domains/{domain}/documents/{response['items'][0]['id']}")
                else:
                    uploads.append(name)
                count += 1

        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(talk, number)
            tasks.start_soon(bring, 0)
            await turn_acknowledged.wait()
            acknowledged_before, uploads_before = list(acknowledged), list(uploads)
            await back_up(rig, backup)
            stop.set()
        assert len(acknowledged) > len(acknowledged_before), "turns went on meanwhile"
    copy = tmp_path / "copy" / "data"
    await restore_into(copy, backup, end_turns=False)
    rows = read_rows(copy / DATABASE)
    texts = {json.loads(str(value))[0]["text"] for row in rows["messages"] for value in row if str(value)[:1] == "["}
    assert set(acknowledged_before) <= texts
    names = {str(value) for row in rows["documents"] for value in row}
    files = {path.name for path in copy.rglob("*.md")}
    assert set(uploads_before) <= names
    assert set(uploads_before) <= files
    assert await examine(settings_for(tmp_path / "copy"), False) == []
    async with Rig(tmp_path / "copy", instead=ScriptedModel(then=say("Yes."))) as rig:
        rig.application.begin()
        await rig.taken_up(domain)
        assert [finding.code for finding in await rig.application.doctor.examine()] == []


async def test_documents_deleted_during_a_backup_are_settled_by_the_restore(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    """The backup reads the records first, so that a file they name may be deleted before it is copied."""
    data = tmp_path / "original" / "data"
    await restore_into(data, data_and_backup[1], end_turns=False)
    backup = tmp_path / "b.tar.zst"

    def delete(place: str) -> None:
        if place == "backup.records":
            for path in [*data.glob("payloads/*"), *data.rglob("pump.md")]:
                path.unlink()

    with failpoints.heard_by(delete):
        await make_backup(data / DATABASE, data, backup, BackupOptions(with_key=True))
    restored = await restore_into(tmp_path / "copy" / "data", backup, end_turns=False)
    assert (restored.settled.documents_gone, restored.settled.payloads_gone) == (1, 1)
    assert await examine(settings_for(tmp_path / "copy"), False) == []
    (row,) = read_rows(tmp_path / "copy" / "data" / DATABASE)["documents"]
    assert "DOCUMENT_MISSING" in row
