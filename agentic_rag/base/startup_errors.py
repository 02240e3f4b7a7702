"""Errors of a server that does not start or is not ready yet, with the exit codes of the command line.

Owns the declarations; part of the tree in ``errors``.
"""

from agentic_rag.base.errors import AgenticRagError


class ServerStarting(AgenticRagError, code="SERVER_STARTING", status=503, retryable=True):
    """The server is still loading the data that turns need; a turn that begins now waits for it."""

    text = "The server is loading what turns need. Try again in a moment."


class StartupError(AgenticRagError):
    """The process cannot start; the CLI prints the message and exits with ``exit_code``."""

    exit_code = 1


class DataFolderOwned(StartupError, code="DATA_FOLDER_OWNED"):
    """Another process owns the data folder."""

    exit_code = 3
    folder: str
    owner: str
    text = "The data folder {self.folder} is in use by {self.owner}. Stop it or choose another with --data."


class PortInUse(StartupError, code="PORT_IN_USE"):
    """The address cannot be bound."""

    exit_code = 4
    host: str
    port: int
    text = "Port {self.port} on {self.host} is in use. Stop that program or choose another with --port."


class BadConfiguration(StartupError, code="BAD_CONFIGURATION"):
    """A setting of the process is wrong."""

    exit_code = 2
    setting: str
    problem: str
    text = "{self.setting}: {self.problem}"


class DatabaseMissing(StartupError, code="DATABASE_MISSING"):
    """The database of a data folder is missing, but the files that it recorded are still there."""

    exit_code = 2
    path: str
    kept: str
    text = (
        "{self.path} is missing or empty, but {self.kept} beside it holds what it recorded. Put the database back from "
        "a backup. To begin anew without the conversations and documents it knew, move {self.kept} away."
    )


class RestoreUnfinished(StartupError, code="RESTORE_UNFINISHED"):
    """A restore into the data folder was cut off: the folder holds part of a backup."""

    exit_code = 2
    folder: str
    backup: str
    text = (
        "{self.folder} holds an incomplete restore of {self.backup}. Run the restore again, which starts over, or "
        "empty the folder."
    )
