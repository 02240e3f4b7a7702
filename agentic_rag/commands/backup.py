"""``agentic-rag backup`` and ``restore``: write all data of a server to one file, and restore it.

A backup is written by this process while a server may run. A restore needs exclusive access to the data folder.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from agentic_rag.backup.backups_folder import keep_newest, name_by_time
from agentic_rag.base.errors import BackupRefused
from agentic_rag.commands.line import Data, advising, printable, say, settings_of

if TYPE_CHECKING:
    from agentic_rag.backup.archive import Header, Progress
    from agentic_rag.backup.restoring import Restored
    from agentic_rag.base.settings import Settings
    from agentic_rag.operations.contents import Inconsistency

VERIFY = "verify"
TELL_SECONDS = 0.2


def backup(
    file: Annotated[str, typer.Argument(help="File to write, or a folder, where the name is chosen; or: verify FILE.")],
    of: Annotated[Path | None, typer.Argument(help="After verify: the backup.", show_default=False)] = None,
    with_key: Annotated[
        bool,
        typer.Option(
            "--with-key", help="Include the key of the secrets. Anyone with the file can then read all secrets."
        ),
    ] = False,
    with_index: Annotated[
        bool, typer.Option("--with-index", help="Include the index, which is otherwise rebuilt. Stop the server first.")
    ] = False,
    keep: Annotated[
        int | None, typer.Option("--keep", help="In a folder: keep this many backups and remove older ones.", min=1)
    ] = None,
    tell: Annotated[bool, typer.Option("--tell", help="Report progress as lines of JSON.", hidden=True)] = False,
    data: Data = None,
) -> None:
    """Back up all data of the server into one file, while it runs. `backup verify FILE` reads a backup to its end.

    Secrets stay sealed: keep secret.key, or AGENTIC_RAG_SECRET_KEY, somewhere else. After a restore, the server
    rebuilds the index and reinstalls packages.
    """
    if file == VERIFY:
        if of is None:
            raise typer.BadParameter("verify needs the backup's file.")
        with advising("The backup was not read to its end."), _lines() if tell else _bar("Reading") as progress:
            _tell_verified(of, progress)
        return
    if of is not None:
        raise typer.BadParameter(f"one file is written; what is {str(of)!r}?")
    settings = settings_of(data)
    path = Path(file)
    if keep is not None and not path.is_dir():
        raise typer.BadParameter(f"--keep counts the backups in a folder, and {file} is none.")
    advice = advising("No backup was written. Run the command again.")
    with advice, _lines() if tell else _bar("Writing") as progress:
        backup_result = anyio.run(partial(_make, settings, path, with_key, with_index, keep, progress))
    target, header, removed = backup_result
    say(f"{target} holds the data folder {settings.data} as of {header.made_at} ({_amount(target.stat().st_size)}).")
    if with_key:
        say("WARNING: it holds the key of the secrets. Who can read this file can read every secret in it.", err=True)
    for deleted in removed:
        say(f"Removed {deleted}.")


async def _make(
    settings: "Settings", path: Path, with_key: bool, with_index: bool, keep: int | None, progress: "Progress"
) -> "tuple[Path, Header, list[Path]]":
    from agentic_rag.access.acts import Acts, act
    from agentic_rag.backup.contents import BackupOptions
    from agentic_rag.backup.making import make_backup
    from agentic_rag.operations.data_folder import find_owner

    target = await anyio.to_thread.run_sync(lambda: name_by_time(path) if path.is_dir() else path)
    if with_index and (owner := find_owner(settings.own)):
        raise BackupRefused(
            f"The index cannot be copied while {owner} uses it: stop the server, or leave --with-index away, and it is "
            "made anew from the documents after a restore."
        )
    choice = BackupOptions(with_key=with_key, with_index=with_index)
    header = await make_backup(settings.database, settings.data, target, choice, progress)
    Acts(settings.data).leave(act("backup.write", header.id, withKey=with_key))
    removed = await anyio.to_thread.run_sync(keep_newest, path, keep) if keep is not None else []
    return target, header, removed


def _tell_verified(path: Path, progress: "Progress") -> None:
    from agentic_rag.backup.archive import verify

    header = verify(path, progress)
    parts = (("with the key", header.with_key), ("with the index", header.with_index))
    kinds = [name for name, there in parts if there]
    contents = "records only" if header.records_only else ", ".join(kinds) or "secrets sealed, without their key"
    say(f"{path} is whole: made {header.made_at} of {header.folder} by version {header.version} ({contents}).")


def restore(
    file: Annotated[Path, typer.Argument(help="The backup.")],
    end_turns: Annotated[
        bool | None,
        typer.Option(
            "--end-turns/--resume-turns",
            help="Interrupt or resume the turns that ran when the backup was made (default: resume).",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
) -> None:
    """Restore a backup into an empty data folder (--data), and check it.

    With AGENTIC_RAG_DATABASE_URL the records go into that database. The backup may come from the other kind of
    database. If a restore is interrupted, run it again: it starts from the beginning.
    """
    settings = settings_of(data)
    advice = advising("The data folder is not complete. Run the command again: it starts from the beginning.")
    with advice, _bar("Restoring") as progress:
        done, findings = anyio.run(_restore, settings, file, end_turns, progress)
    _tell_restored(settings, done)
    remaining = [finding for finding in findings if finding.by_hand]
    if rebuilt := len(findings) - len(remaining):
        say(f"{rebuilt} derived files were rebuilt.")
    for finding in remaining:
        say(printable(str(finding)))
    if remaining:
        say(f"{len(remaining)} found that no repair can bring back. The backup itself was restored completely.")
        raise typer.Exit(1)
    say("Everything fits together.")


async def _restore(
    settings: "Settings", file: Path, end_turns: bool | None, progress: "Progress"
) -> "tuple[Restored, list[Inconsistency]]":
    from agentic_rag.backup.restoring import Plan, restore
    from agentic_rag.commands.doctor import examine

    done = await restore(Plan(file, settings.data, settings.database, end_turns), progress)
    return done, await examine(settings, True)  # rebuild derived files, which a backup does not hold


def _tell_restored(settings: "Settings", done: "Restored") -> None:
    header, settled = done.header, done.settled
    say(f"{settings.data} is as it was at {header.made_at}: its records, and {done.files} files.")
    if settled.documents:
        say(f"{settled.documents} documents are indexed again by the next start; they can be searched as they come.")
    if settled.documents_gone or settled.payloads_gone:
        say(
            f"Deleted while the backup was made: the files of {settled.documents_gone} documents, which say so, and of "
            f"{settled.payloads_gone} kept results."
        )
    if settled.turns:
        on = (
            "go on when a server starts here, as after a crash. If the original still runs, they run twice: then "
            "empty the folder and restore with --end-turns"
        )
        outcome = "were interrupted" if settled.ended else on
        say(f"{settled.turns} turns ran or waited when the backup was made; they {outcome}.")
    if settled.secrets and not header.with_key:
        say(
            f"{settled.secrets} secrets are sealed, and their key is not in the backup: put it back as "
            f"{settings.data / 'secret.key'}, or set AGENTIC_RAG_SECRET_KEY, before a server starts."
        )


@contextmanager
def _lines() -> "Iterator[Progress]":
    """Report progress to the calling process as lines of JSON, a few times a second."""
    done, next_line = 0, 0.0

    def advance(name: str, count: int) -> None:
        nonlocal done, next_line
        done += count
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + TELL_SECONDS
            say(json.dumps({"name": name, "bytes": done}))

    yield advance


@contextmanager
def _bar(words: str) -> "Iterator[Progress]":
    """Show a progress bar, if standard error is a terminal."""
    from agentic_rag.backup.archive import no_progress

    if not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(words + " {task.fields[name]}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None, name="")
        yield lambda name, count: bar.update(task, advance=count, name=printable(name)[-50:])


def _amount(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 1024:.1f} KiB"
