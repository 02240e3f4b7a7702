"""A program for `test_kills` that reads a folder, changes it and reads it again, until a failpoint kills it."""

import os
import sys
from pathlib import Path

import anyio

from agentic_rag.testing.failpoints import VARIABLE, failpoint_of
from tests.server.rig import Rig
from tests.sources.support import make_source, run_again


def fill(share: Path) -> None:
    """Write six files."""
    share.mkdir()
    for number in range(6):
        (share / f"{number}.md").write_text(f"# Pump {number}\n\nTwelve bar zebra{number}q.")


def change(share: Path) -> None:
    """Change two files, add one and remove one."""
    for number in (1, 2):
        (share / f"{number}.md").write_text(f"# Pump {number}\n\nFourteen bar lion{number}q.")
    (share / "6.md").write_text("# Pump 6\n\nTwelve bar zebra6q.")
    (share / "5.md").unlink()


async def run(folder: Path) -> None:
    share = folder / "share"
    async with Rig(folder, source_folders=str(share), failpoint=failpoint_of(os.environ[VARIABLE])) as rig:
        rig.application.begin()
        domain = await rig.domain()
        fill(share)
        source = await make_source(rig, domain, mcp=None, folder={"path": str(share)}, labels=["board"])
        change(share)
        await run_again(rig, domain, source)


def main() -> None:
    anyio.run(run, Path(sys.argv[1]))
