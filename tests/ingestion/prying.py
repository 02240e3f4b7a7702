"""A program for `test_reading` in an environment with the installed extension: it prints why a file is not read."""

import sys
from contextlib import aclosing
from pathlib import Path

import anyio

from agentic_rag.base.ids import DocumentId
from agentic_rag.documents.reading import ReadingProcess
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError


async def read(path: Path) -> None:
    async with aclosing(ReadingProcess(ParseLimits())) as process:
        try:
            with path.open("rb") as file:
                await process.begin(file, path.name, DocumentId("doc"), "version")
        except DocumentError as error:
            sys.stdout.write(error.message)


def main() -> None:
    """Read a file: ``SITE FILE``; ``SITE`` has the extension."""
    _, site, file = sys.argv
    sys.path.insert(0, site)
    anyio.run(read, Path(file))
