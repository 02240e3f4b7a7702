"""A program for `test_kills` that imports and exports, is killed at each place, and reports the problems afterwards.

Its arguments are FOLDER and EVERY: it kills imports at every EVERY-th place. The program imports everything once and
forks for each run, before any thread starts.
"""

import json
import os
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import alembic.command  # noqa: F401 - once, before the forks
import anyio

from agentic_rag.archive.files import write_whole
from agentic_rag.commands.doctor import examine
from agentic_rag.testing.failpoints import EXIT_CODE
from tests.backup.victim import count, places, run
from tests.server.rig import Rig

from .making import bring, bring_over, export, fill, members_of, pack

BUNDLE, AFTER = "bundle.zip", "after.zip"


def make(folder: Path) -> None:
    """Create a server with a domain, its bundle, and a bundle that changes something of every kind."""

    async def work() -> None:
        async with Rig(folder / "base") as rig:
            rig.application.begin()
            domain = await fill(rig)
            data = await export(rig, domain, memories="true")
            members = members_of(data)
            members["prompt/01-tone.md"] = b"Be brief.\n"
            members["documents/pump.md"] = b"# Pump\n\nIt holds 5 litres.\n"
            members["documents/new/gauge.md"] = b"# Gauge\n\nIt shows bars.\n"
            members["roles/role/judge/judge.role.md"] = b"<role><personality>Fair.</personality></role>\n"
            del members["documents/\u8bf7\u5047 \u00e9.md"], members["skills/sums/SKILL.md"]
            manifest = json.loads(members["domain.json"])
            manifest["settings"]["language"] = "fr"
            members["domain.json"] = json.dumps(manifest).encode()
            (folder / BUNDLE).write_bytes(data)
            (folder / AFTER).write_bytes(pack(members))

    anyio.run(work)


def work_on_copy(folder: Path, name: str, work: Callable[[Rig], Awaitable[object]]) -> Callable[[], object]:
    """Return a function that works on a copy of the data folder. The copy is made before."""

    async def begin() -> None:
        async with Rig(folder / name) as rig:
            await work(rig)

    return lambda: anyio.run(begin)


def copy(folder: Path, name: str) -> None:
    shutil.copytree(folder / "base", folder / name)
    with closing(sqlite3.connect(folder / name / "data" / "agentic-rag.db")) as connection, connection:
        places = f"{folder}/base/", f"{folder}/{name}/"
        connection.execute("UPDATE domains SET workspace = replace(workspace, ?, ?)", places)


async def import_new(rig: Rig, folder: Path) -> None:
    await bring(rig, (folder / BUNDLE).read_bytes())


async def import_over(rig: Rig, folder: Path) -> None:
    domain = (await rig.ok("GET", "/api/domains"))["items"][0]["id"]
    await bring_over(rig, domain, (folder / AFTER).read_bytes(), removeOthers="true")


def look(folder: Path, name: str, report: Path) -> dict[str, object]:
    """Restart after a kill. Return the members of each domain's bundle, and the findings of the doctor."""
    result: dict[str, object] = {}

    def looking() -> None:
        anyio.run(work)
        report.write_text(json.dumps(result))

    async def work() -> None:
        async with Rig(folder / name) as rig:
            exported = []
            for record in (await rig.ok("GET", "/api/domains"))["items"]:
                await rig.ok("POST", f"/api/domains/{record['id']}/documents/rescan")
                members = members_of(await export(rig, record["id"], memories="true"))
                exported.append({name: data.decode("latin-1") for name, data in members.items()})
            leftovers = sorted(path.name for path in (rig.settings.data / "imports").glob("*"))
            folders = len([path for path in rig.settings.workspaces.iterdir() if path.is_dir()])
            settings = rig.settings
        findings = [str(finding) for finding in await examine(settings, False)]
        result.update({"domains": exported, "left": leftovers, "folders": folders, "findings": findings})

    if run(looking) != 0:
        return {}
    state: dict[str, object] = json.loads(report.read_text())
    return state


def kill_all(
    folder: Path,
    kind: str,
    work: Callable[[Rig, Path], Awaitable[None]],
    before: dict[str, object],
    skipped: frozenset[str],
    every: int,
) -> tuple[int, list[str]]:
    """Kill the work at ``every``-th place that it reaches. Return the number of kills, and the problems.

    ``before`` is the state of the folder ``base``, see `look`.
    """
    copy(folder, f"{kind}-whole")
    counts = count(work_on_copy(folder, f"{kind}-whole", lambda rig: work(rig, folder)), folder / "report")
    after = look(folder, f"{kind}-whole", folder / "report")
    problems = [] if before and after and before != after else ["it changed nothing"]
    kill_places = [place for place in places(Counter(counts), "bundle.") if place.partition(":")[0] not in skipped]
    kill_places = kill_places[::every]
    for number, place in enumerate(kill_places):
        name = f"{kind}-{number}"
        copy(folder, name)
        if run(work_on_copy(folder, name, lambda rig: work(rig, folder)), place) != EXIT_CODE:
            problems.append(f"{place}: was not reached")
        state = look(folder, name, folder / "report")
        if state not in (before, after):
            problems.append(f"{place}: is neither as before nor as after: {_outline(state)}")
        final_places = (
            "bundle.stored",
            "bundle.removed",
            "bundle.cleared",
            "bundle.file",
            "bundle.applied",
            "bundle.done",
        )
        is_whole = place.startswith(final_places)
        if is_whole and state != after:
            problems.append(f"{place}: what had happened is gone")
        shutil.rmtree(folder / name)
    return len(kill_places), problems


def _outline(state: dict[str, object]) -> str:
    domains = state.get("domains", [])
    assert isinstance(domains, list)
    return str({**state, "domains": [sorted(members) for members in domains]})


def kill_exports(folder: Path) -> tuple[int, list[str]]:
    target = folder / "out" / "b.zip"
    data = (folder / BUNDLE).read_bytes()

    def work() -> None:
        with write_whole(target) as file:
            file.write(data)

    kill_places = places(count(work, folder / "report"), "backup.")
    problems = []
    for place in kill_places:
        target.unlink(missing_ok=True)
        if run(work, place) != EXIT_CODE:
            problems.append(f"{place}: was not reached")
        if not target.exists() and run(work) != 0:
            problems.append(f"{place}: the next export failed")
        if target.read_bytes() != data or len(list(target.parent.iterdir())) != 1:
            problems.append(f"{place}: something else is left")
    return len(kill_places), problems


def main() -> None:
    folder, every = Path(sys.argv[1]), int(sys.argv[2])
    os.umask(0o077)
    assert run(lambda: make(folder)) == 0
    early = frozenset({"bundle.received", "bundle.member", "bundle.unpacked"})
    before = look(folder, "base", folder / "report")
    results = [
        kill_all(folder, "new", import_new, before, frozenset(), every),
        kill_all(folder, "over", import_over, before, early, every),
        kill_exports(folder),
    ]
    sys.stdout.write(json.dumps(results))
