"""A program for `test_scans` that uploads a scan and reads its pages until a failpoint kills the process."""

import os
import sys
from pathlib import Path

import anyio

from agentic_rag.testing.failpoints import VARIABLE, failpoint_of
from tests.ingestion.test_scans import uploaded
from tests.server.rig import Rig


async def main(folder: Path, content: bytes) -> None:
    async with Rig(folder, failpoint=failpoint_of(os.environ[VARIABLE])) as rig:
        rig.application.begin()
        await uploaded(rig, await rig.domain(), "notice.pdf", content)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())
