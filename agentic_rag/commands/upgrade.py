"""``agentic-rag upgrade`` and ``downgrade``: migrate the database to this version, or restore an earlier one.

A server's start upgrades automatically. These commands do it beforehand, or show what it would do.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from agentic_rag.commands.line import Data, advising, printable, say, settings_of

if TYPE_CHECKING:
    from agentic_rag.backup.rehearsed_cases import RehearsedDomain
    from agentic_rag.backup.upgrading import DowngradePlan, Rehearsal
    from agentic_rag.base.settings import Settings
    from agentic_rag.operations.contents import Inconsistency


def upgrade(
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Rehearse the upgrade on a copy, next to a running server, and report the result."
        ),
    ] = False,
    cases: Annotated[
        bool,
        typer.Option(
            "--cases/--no-cases",
            help="With --rehearse: index a copy of all documents with this version and judge each domain's evaluation "
            "cases by search. Takes as long as indexing, and the disk space of the documents and the index.",
        ),
    ] = False,
    data: Data = None,
) -> None:
    """Migrate the database to this version: back up, migrate, check. A server's start does the same.

    Exit code 1: a check found something, or evaluation cases are worse in this version.
    """
    settings = settings_of(data)
    is_held = False
    if cases and not rehearse:
        raise typer.BadParameter("--cases judges the copy of a rehearsal; add --rehearse.")
    if rehearse:
        from agentic_rag.backup.upgrading import rehearse as run

        with advising("Nothing was changed."):
            findings = _tell_rehearsal(anyio.run(run, settings))
        if cases:
            from agentic_rag.backup.rehearsed_cases import rehearse_cases

            with advising("Nothing was changed."):
                is_held = _tell_cases(anyio.run(rehearse_cases, settings, partial(say, err=True)))
    else:
        with advising("Run the command again, or start the server: both finish the upgrade."):
            findings = anyio.run(_upgrade, settings)
    for finding in findings:
        say(printable(str(finding)))
    if findings or is_held:
        raise typer.Exit(1)
    say("Everything fits together.")


async def _upgrade(settings: "Settings") -> "list[Inconsistency]":
    from agentic_rag.backup.upgrading import back_up_before
    from agentic_rag.commands.doctor import examine
    from agentic_rag.operations.data_folder import DataFolder
    from agentic_rag.store.migrations import OWN

    folder = DataFolder.own(settings.data)
    try:
        before = await back_up_before(settings, OWN)
    finally:
        folder.release()  # `examine` locks the folder itself
    findings = await examine(settings, False)  # opens the database, which migrates it
    say(f"As they were, the records are in {before}." if before else "The records are of this version already.")
    return findings


def _tell_rehearsal(done: "Rehearsal") -> "list[Inconsistency]":
    from agentic_rag.store.migrations import HEAD

    if not done.steps:
        say(f"The records are of version {done.revision}, this program's: a start changes nothing.")
    else:
        say(f"From version {done.revision} to {HEAD}, on a copy that is gone again:")
    for revision, words in done.steps:
        say(f"  {revision}  {words}")
    for change in done.changes:
        say(f"  {change}")
    say(f"The backup took {done.backup_seconds:.1f} s, the change {done.migration_seconds:.1f} s.")
    return done.findings


def _tell_cases(judged: "list[RehearsedDomain]") -> bool:
    """Print the results of each domain's cases; return whether the evaluation gate would hold this version."""
    from agentic_rag.evaluation.decisions import Decision

    if not judged:
        say("No domain has evaluation cases.")
    for domain in judged:
        line = f"{printable(domain.name)} ({domain.domain}): {domain.passed} of {domain.cases} cases pass"
        if domain.comparison is None:
            say(f"{line}. There is no search run to compare with: run agentic-rag evaluate before an upgrade.")
            continue
        say(f"{line}; {domain.comparison.decision.value}: {domain.comparison.sentence}.")
        for question in domain.worse:
            say(f"  worse: {printable(question)}")
    return any(domain.comparison and domain.comparison.decision is Decision.HOLD for domain in judged)


def downgrade(
    backup: Annotated[
        Path | None,
        typer.Argument(help="The backup; default: the newest before-… of the data folder.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: Data = None,
) -> None:
    """Restore the database that an upgrade saved, for the version before it. Stop every server first.

    The command prints what will be lost, and backs up the current database first.
    """
    anyio.run(_downgrade, settings_of(data), backup, yes)


async def _downgrade(settings: "Settings", backup: Path | None, yes: bool) -> None:
    from agentic_rag.backup.upgrading import find_before, go_back, look_back
    from agentic_rag.operations.data_folder import DataFolder

    folder = DataFolder.own(settings.data)  # no server may write while the database is replaced
    try:
        path = backup
        if path is None:
            path = await anyio.to_thread.run_sync(find_before, settings.data)
        way = await look_back(settings, path)
        _tell_loss(way)
        if not yes:
            await anyio.to_thread.run_sync(lambda: typer.confirm("Put these records in place of those?", abort=True))
        current_backup = await go_back(settings, way)
    finally:
        folder.release()
    say(f"The records are as of {way.header.made_at}; those that were here are in {current_backup}.")
    say(f"Start version {way.header.version} on them: this one would upgrade them again.")


def _tell_loss(way: "DowngradePlan") -> None:
    header = way.header
    say(f"{way.backup} holds the records as of {header.made_at}, of version {header.version}. All since then is lost:")
    for name, now, then in way.lost:
        say(f"  {name}: {now} now, {then} then")
    if not way.lost:
        say("  no file was added or removed; changes were undone")
    say("Files stay as they are: documents that came since are taken in again, those that went say that they are gone.")
