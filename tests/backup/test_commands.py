"""The backup commands as an operator uses them, next to a running server and after it."""

import os
from pathlib import Path

import anyio.to_thread
import pytest

from agentic_rag.backup.backups_folder import list_kept
from agentic_rag.backup.jobs import ScheduledBackups
from agentic_rag.backup.restoring import Plan, restore
from agentic_rag.base.errors import BackupNotWritten
from agentic_rag.testing.steps import say, use
from tests.programs import run_program
from tests.server.rig import Rig

from .making import ANSWER, fill

ENGRAMS = [
    {"content": content, "schema": "pump\nbar", "strength": 0.8, "type": "ATOMIC"}
    for content in ("The pump holds twelve bar.", "The pump is checked in May.")
]


def environment(**variables: str) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))
    }
    return inherited | {"AGENTIC_RAG_ALLOW_ROOT": "1", "AGENTIC_RAG_EMBEDDING": "none"} | variables


async def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    result = await anyio.to_thread.run_sync(lambda: run_program(arguments, cwd=folder, env=environment()))
    return result.returncode, result.stdout, result.stderr


async def test_backup_beside_a_server_verify_and_restore(data_and_backup: tuple[Path, Path], tmp_path: Path) -> None:
    await restore(Plan(data_and_backup[1], tmp_path / "data", tmp_path / "data" / "agentic-rag.db"))
    async with Rig(tmp_path, say(ANSWER)) as rig:
        await rig.say(await rig.conversation((await rig.ok("GET", "/api/domains"))["items"][0]["id"]), "And now?")
        code, output, errors = await run(tmp_path, "backup", "b.tar.zst", "--data", "data", "--with-key")
        assert (code, "as of 20" in output) == (0, True), errors
        assert errors.startswith("WARNING: it holds the key of the secrets.")
        code, _, errors = await run(tmp_path, "backup", "i.tar.zst", "--data", "data", "--with-index")
        assert (code, "stop the server, or leave --with-index away" in errors) == (1, True)
        code, _, errors = await run(tmp_path, "restore", "b.tar.zst", "--data", "copy")
        assert (code, "would run twice" in errors) == (1, True)
    code, output, _ = await run(tmp_path, "backup", "verify", "b.tar.zst")
    assert (code, "is whole" in output, "with the key" in output) == (0, True, True)
    code, output, errors = await run(tmp_path, "restore", "b.tar.zst", "--data", "copy")
    assert code == 0, output + errors
    assert output.endswith("Everything fits together.\n")
    assert "1 documents are indexed again" in output
    code, _, errors = await run(tmp_path, "restore", "b.tar.zst", "--data", "copy")
    assert (code, "not empty" in errors, errors.count("\n")) == (1, True, 1)
    (tmp_path / "b.tar.zst").write_bytes((tmp_path / "b.tar.zst").read_bytes()[:-9])
    code, _, errors = await run(tmp_path, "backup", "verify", "b.tar.zst")
    assert (code, errors.count("\n"), "it was cut" in errors) == (1, 1, True)


async def test_memories_written_before_and_during_a_backup_are_restored(
    tmp_path: Path,
) -> None:
    turns = [step for engram in ENGRAMS for step in (use("promptx_remember", engrams=[engram]), say("Noted."))]
    async with Rig(tmp_path, *turns) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Remember that.")
        code, _, errors = await run(tmp_path, "backup", "one.tar.zst", "--data", "data")
        assert code == 0, errors
        await rig.say(conversation, "And that.")
        assert len((await rig.ok("GET", f"/api/domains/{domain}/memories"))["items"]) == len(ENGRAMS)
        code, _, errors = await run(tmp_path, "backup", "two.tar.zst", "--data", "data")
        assert code == 0, errors
    for count, name in enumerate(("one", "two"), 1):
        code, output, errors = await run(tmp_path, "restore", f"{name}.tar.zst", "--data", f"{name}/data")
        assert code == 0, output + errors
        assert output.endswith("Everything fits together.\n")
        async with Rig(tmp_path / name) as rig:
            memories = (await rig.ok("GET", f"/api/domains/{domain}/memories"))["items"]
            assert {memory["content"] for memory in memories} == {memory["content"] for memory in ENGRAMS[:count]}


async def test_an_upgrade_without_migrations_has_no_downgrade(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    await restore(Plan(data_and_backup[1], tmp_path / "data", tmp_path / "data" / "agentic-rag.db"))
    code, output, errors = await run(tmp_path, "upgrade", "--rehearse", "--data", "data")
    assert (code, "a start changes nothing" in output, "The backup took" in output) == (0, True, True), output + errors
    code, output, errors = await run(tmp_path, "upgrade", "--data", "data")
    assert (code, output.startswith("The records are of this version already.")) == (0, True), output + errors
    code, _, errors = await run(tmp_path, "downgrade", "--yes", "--data", "data")
    assert (code, "nothing to go back to" in errors, errors.count("\n")) == (1, True, 1)
    code, _, errors = await run(tmp_path, "downgrade", str(data_and_backup[1]), "--yes", "--data", "data")
    assert (code, "agentic-rag restore brings it back" in errors, errors.count("\n")) == (1, True, 1)


@pytest.mark.sqlite("its commands have a file")
async def test_a_restore_with_the_index_reindexes_nothing(tmp_path: Path) -> None:
    await fill(tmp_path)
    code, _, errors = await run(tmp_path, "backup", "b.tar.zst", "--data", "data", "--with-index", "--with-key")
    assert code == 0, errors
    code, output, errors = await run(tmp_path, "restore", "b.tar.zst", "--data", "copy")
    assert (code, "indexed again" in output) == (0, False), output + errors


@pytest.mark.sqlite("backs a file up")
async def test_backups_of_a_wrong_clock_delay_no_later_one_and_are_removed_first(tmp_path: Path) -> None:
    async with Rig(tmp_path, backup_every=24, backup_keep=1) as rig:
        backups, folder = ScheduledBackups(rig.settings), rig.settings.data / "backups"
        folder.mkdir(exist_ok=True)
        future = folder / "agentic-rag-20990101T000000Z.tar.zst"
        future.write_bytes(b"written when the clock was wrong")
        os.utime(future, (4_070_908_800, 4_070_908_800))
        assert (await backups.report()).age_seconds is None
        await backups.run_due()
        (backup,) = await anyio.to_thread.run_sync(list_kept, folder)
        assert backup.path != future
        assert (await backups.report()).age_seconds is not None


@pytest.mark.sqlite("backs a file up")
async def test_a_server_writes_scheduled_backups_and_health_shows_the_age_of_the_last(tmp_path: Path) -> None:
    async with Rig(tmp_path, backup_every=24, backup_keep=2) as rig:
        backups = ScheduledBackups(rig.settings)
        before = (await rig.ok("GET", "/api/health"))["backup"]
        assert before == {"state": "ready", "everyHours": 24}
        folder = rig.settings.data / "backups"
        folder.mkdir(exist_ok=True)
        for day in (1, 2):
            old = folder / f"agentic-rag-2020010{day}T000000Z.tar.zst"
            old.write_bytes(b"an old one")
            os.utime(old, (0, 0))
        await backups.run_due()
        await backups.run_due()
        names = [backup.path.name for backup in await anyio.to_thread.run_sync(list_kept, folder)]
        assert len(names) == 2, "the second run found none due, and the first one deleted the oldest"
        assert old.name in names
        assert (await rig.ok("GET", "/api/health"))["backup"]["ageSeconds"] >= 0
        for name in names:
            os.utime(folder / name, (0, 0))
        folder.chmod(0o500)
        (tmp_path / "data" / "agentic-rag.db").rename(tmp_path / "elsewhere.db")
        with pytest.raises(BackupNotWritten):
            await backups.run_due()
        (tmp_path / "elsewhere.db").rename(tmp_path / "data" / "agentic-rag.db")
        folder.chmod(0o700)
        report = await backups.report()
        assert (report.state.value, report.reason is None) == ("degraded", False)
