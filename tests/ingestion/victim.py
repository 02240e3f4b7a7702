"""A program for `test_crash` that ingests a file and reindexes it until a failpoint kills it."""

import os
import sys
from pathlib import Path

import anyio

from agentic_rag.testing.failpoints import VARIABLE, failpoint_of
from tests.server.rig import Rig


async def run(folder: Path, name: str, content: bytes, model: str) -> None:
    async with Rig(folder, embedding=model, failpoint=failpoint_of(os.environ[VARIABLE])) as rig:
        rig.application.begin()
        domain = await rig.domain()
        document = await rig.upload(domain, name, content)
        await rig.dense(domain, document["id"])
        await rig.ok("POST", f"/api/domains/{domain}/reindex")
        await rig.reindexed(domain)


def main() -> None:
    file = Path(sys.argv[2])
    anyio.run(run, Path(sys.argv[1]), file.name, file.read_bytes(), sys.argv[3])
