"""A program for `test_kills` that backs up and restores, is killed at each place, and reports the problems afterwards.

Its arguments are DATA, FOLDER and EVERY: it kills at every EVERY-th place. The program imports everything once and
forks for each run, before any thread starts.
"""

import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import alembic.command  # noqa: F401 - once, before the forks
import anyio

from agentic_rag.backup.archive import verify
from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import Plan, restore
from agentic_rag.base import failpoints
from agentic_rag.base.errors import AgenticRagError, StorageFull
from agentic_rag.base.startup_errors import RestoreUnfinished
from agentic_rag.operations.data_folder import DataFolder
from agentic_rag.testing.failpoints import EXIT_CODE, failpoint_of

from .making import read_files, read_rows

DATABASE = "agentic-rag.db"
REFUSED = 3
SETTLED = {"origin", "audit", "audit_head", "documents", "turns"}


def run(work: Callable[[], object], place: str = "") -> int:
    """Run work in a separate process that dies at a place. Return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with failpoints.heard_by(failpoint_of(place)):
                work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def count(work: Callable[[], object], report: Path) -> Counter[str]:
    """Return how often successful work reaches each place."""
    counts: Counter[str] = Counter()

    def listen(name: str) -> None:
        counts[name] += 1

    def work_and_report() -> None:
        with failpoints.heard_by(listen):
            work()
        report.write_text(json.dumps(counts))

    assert run(work_and_report) == 0
    return Counter(json.loads(report.read_text()))


def places(counts: Counter[str], prefix: str) -> list[str]:
    """Return each of our places, with the middle number of its occurrences."""
    return [
        f"{name}:{number}"
        for name, times in sorted(counts.items())
        if name.startswith(prefix)
        for number in [(times + 1) // 2]
    ]


def kill_backups(data: Path, folder: Path, every: int) -> tuple[int, list[str]]:
    target = folder / "b.tar.zst"

    def work() -> None:
        anyio.run(lambda: make_backup(data / DATABASE, data, target, BackupOptions(with_key=True)))

    kill_places = places(count(work, folder / "report"), "backup.")[::every]
    problems = []
    for place in kill_places:
        target.unlink(missing_ok=True)
        code = run(work, place)
        if code != EXIT_CODE:
            problems.append(f"{place}: was not reached, {code}")
        if target.exists():
            verify(target)
        elif run(work) != 0:
            problems.append(f"{place}: the next backup failed")
        leftovers = sorted(path.name for path in folder.iterdir())
        verify(target)
        if any(name.startswith(".") for name in leftovers):
            problems.append(f"{place}: left {leftovers}")
    return len(kill_places), problems


def kill_restores(data: Path, folder: Path, every: int) -> tuple[int, list[str]]:
    backup = folder / "b.tar.zst"
    expected = read_files(data)
    rows = {name: content for name, content in read_rows(data / DATABASE).items() if name not in SETTLED | {"domains"}}

    def into(name: str) -> Callable[[], object]:
        return lambda: anyio.run(lambda: restore(Plan(backup, folder / name, folder / name / DATABASE)))

    counts = count(into("whole"), folder / "report")
    kill_places = (places(counts, "restore.") + places(counts, "commit."))[::every]
    problems = []
    for number, place in enumerate(kill_places):
        copy = folder / f"copy{number}"
        if run(into(copy.name), place) != EXIT_CODE:
            problems.append(f"{place}: was not reached")
        is_whole = place.startswith("restore.done")
        try:
            DataFolder.own(copy).release()
            if not is_whole:
                problems.append(f"{place}: a server may begin with half of it")
        except RestoreUnfinished:
            if is_whole:
                problems.append(f"{place}: it is whole, and no server may begin")
        if not is_whole and run(into(copy.name)) != 0:
            problems.append(f"{place}: the next restore failed")
        restored = read_rows(copy / DATABASE)
        if {name: restored[name] for name in rows} != rows or read_files(copy) != expected:
            problems.append(f"{place}: other content was restored")
    return len(kill_places), problems


def starve(data: Path, folder: Path) -> tuple[int, list[str]]:
    """Back up and restore with a limit on the size of files, as on a disk that fills up."""
    target, problems = folder / "starved.tar.zst", []
    backup = folder / "b.tar.zst"

    def limit(size: int, work: Callable[[], object]) -> Callable[[], object]:
        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            try:
                work()
            except StorageFull:
                os._exit(REFUSED)

        return limited

    def back_up() -> None:
        anyio.run(lambda: make_backup(data / DATABASE, data, target, BackupOptions()))

    sizes = (1, 4096, backup.stat().st_size // 2)
    for size in sizes:
        if run(limit(size, back_up)) != REFUSED:
            problems.append(f"a backup with {size} bytes of room did not say so")
        if leftovers := [path.name for path in folder.iterdir() if "starved" in path.name]:
            problems.append(f"a backup with {size} bytes of room left {leftovers}")
    for size in sizes:
        copy = folder / f"starved{size}"

        def put_back(copy: Path = copy) -> None:
            anyio.run(lambda: restore(Plan(backup, copy, copy / DATABASE)))

        if (code := run(limit(size, put_back))) != REFUSED:
            problems.append(f"a restore with {size} bytes of room did not say so: {code}")
        if run(put_back) != 0:
            problems.append(f"after {size} bytes of room a restore failed with enough")
    return 2 * len(sizes), problems


def main() -> None:
    data, folder, every = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    os.umask(0o077)
    try:
        results = [kill_backups(data, folder, every), kill_restores(data, folder, every), starve(data, folder)]
    except AgenticRagError as exc:
        results = [(0, [str(exc)])]
    sys.stdout.write(json.dumps(results))
