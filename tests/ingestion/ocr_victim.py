"""A program for `test_scans` that uploads a scan and reads its pages until a failpoint kills the process."""

import os
import sys
from pathlib import Path

import anyio

from agentic_rag.testing.failpoints import VARIABLE, failpoint_of
from tests.ingestion.test_scans import upload_file
from tests.server.rig import Rig


async def run(folder: Path, content: bytes) -> None:
    async with Rig(folder, failpoint=failpoint_of(os.environ[VARIABLE])) as rig:
        rig.application.begin()
        await upload_file(rig, await rig.domain(), "notice.pdf", content)


def main() -> None:
    anyio.run(run, Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())
