"""`agentic-rag doctor`: the consistency check of a data folder that no server uses.

Owns opening and closing the folder around the check. Knows no finding.
"""

from functools import partial

import anyio.to_thread

from agentic_rag.app import open_application
from agentic_rag.operations.data_folder import lent_files
from agentic_rag.operations.doctor import Finding
from agentic_rag.settings import Settings

NAMED = 3
"""So many files are named; the rest is counted."""


async def examine(settings: Settings, repair: bool) -> list[Finding]:
    """Return what does not fit; with ``repair``, remedied.

    Raises:
        DataFolderOwned: a server runs on the folder.
    """
    # First: opening closes the folder itself.
    lent = await anyio.to_thread.run_sync(partial(lent_files, settings.data, repair=repair))
    findings = (
        [Finding("FILES_OPEN_TO_OTHERS", str(settings.data), _describe(lent), "are closed to them")] if lent else []
    )
    async with open_application(settings, serving=False) as application:
        return [*findings, *await application.doctor.examine(repair=repair)]


def _describe(lent: list[str]) -> str:
    first = ", ".join(name or "the folder itself" for name in lent[:NAMED])
    more = f" and {len(lent) - NAMED} more" if len(lent) > NAMED else ""
    return f"other users of this machine can get at {first}{more}"
