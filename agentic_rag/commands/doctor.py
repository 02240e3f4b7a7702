"""`agentic-rag doctor`: the consistency check of a data folder that no server uses.

Owns opening and closing the folder around the check. Knows no finding.
"""

from agentic_rag.app import open_application
from agentic_rag.operations.doctor import Finding
from agentic_rag.settings import Settings


async def examine(settings: Settings, repair: bool) -> list[Finding]:
    """Return what does not fit; with ``repair``, remedied.

    Raises:
        DataFolderOwned: a server runs on the folder.
    """
    async with open_application(settings, serving=False) as application:
        return await application.doctor.examine(repair=repair)
