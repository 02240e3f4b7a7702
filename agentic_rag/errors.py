"""Every error the product raises on purpose, in one tree.

Owns codes, HTTP statuses and the plain words a user reads. Knows no transport: the edge renders
these as ``{"error": {"code", "message", "details"}}``, the CLI as one line and an exit code.

::

    AgenticRagError
    ├── NotFound                  404  {NOUN}_NOT_FOUND
    ├── InvalidInput              422  VALIDATION_ERROR
    ├── MessageContentRequired    400  MESSAGE_CONTENT_REQUIRED
    ├── MessageTooLong            400  MESSAGE_TOO_LONG
    ├── Conflict                  409
    │   ├── ConversationFull           CONVERSATION_FULL
    │   ├── ConversationArchived       CONVERSATION_ARCHIVED
    │   ├── TurnInProgress             TURN_IN_PROGRESS
    │   ├── VersionConflict            VERSION_CONFLICT
    │   ├── IdempotencyMismatch        IDEMPOTENCY_MISMATCH
    │   ├── CompactionNotNeeded        COMPACTION_NOT_NEEDED
    │   └── ServerReserved             MCP_SERVER_RESERVED
    ├── CommandNotAllowed         422  MCP_COMMAND_NOT_ALLOWED
    ├── PackageProblem            502  MCP_PACKAGE_PROBLEM
    │   └── PackageChanged        409  MCP_PACKAGE_CHANGED
    ├── DocumentUnsupported       415  DOCUMENT_UNSUPPORTED
    ├── DocumentTooLarge          413  DOCUMENT_TOO_LARGE
    ├── Unauthenticated           401  UNAUTHENTICATED
    ├── Forbidden                 403  FORBIDDEN
    ├── RateLimited               429  RATE_LIMITED
    ├── StorageError                   nothing of a write was kept
    │   ├── StorageFull           507  STORAGE_FULL
    │   └── StorageUnavailable    503  STORAGE_UNAVAILABLE
    ├── TurnError                      ends a turn with an ``error`` event
    │   ├── ModelError            502  LLM_SERVICE_ERROR
    │   ├── GenerationTimeout     504  GENERATION_TIMEOUT
    │   ├── GenerationAborted     499  GENERATION_ABORTED
    │   ├── ResumeLimit           500  RESUME_LIMIT
    │   └── InternalError         500  INTERNAL_ERROR
    ├── ServerUnavailable         503  MCP_SERVER_UNAVAILABLE   (a tool call answers with it)
    └── StartupError                   the process does not start
        ├── DataFolderOwned            DATA_FOLDER_OWNED
        ├── PortInUse                  PORT_IN_USE
        └── BadConfiguration           BAD_CONFIGURATION
"""

from math import ceil
from typing import ClassVar


class AgenticRagError(Exception):
    """Base. ``str(error)`` is the message a user reads; ``details`` are its JSON-ready facts."""

    code: str = "INTERNAL_ERROR"
    status: ClassVar[int] = 500
    retryable: bool = False

    facts: ClassVar[tuple[str, ...]] = ()
    """Attributes that `details` shows."""

    @property
    def details(self) -> dict[str, object]:
        """Facts for a program, by camelCase name, without secrets."""
        return {_camel(name): getattr(self, name) for name in self.facts}


class NotFound(AgenticRagError):
    """Something named by an id does not exist, or not for this user (the two look alike on purpose).

    ``hidden``: it exists; for the audit log, never for the answer.
    """

    status = 404

    def __init__(self, noun: str, ident: str, *, hidden: bool = False) -> None:
        super().__init__(noun, ident)
        self.noun = noun
        self.ident = ident
        self.hidden = hidden
        self.code = f"{noun.upper()}_NOT_FOUND"

    def __str__(self) -> str:
        return f"There is no {self.noun.replace('mcp_server', 'MCP server')} {self.ident!r}."


class InvalidInput(AgenticRagError):
    """A value does not fit. ``path`` names the field, ``problem`` says what would be right."""

    code = "VALIDATION_ERROR"
    status = 422
    facts = ("path", "problem")

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class MessageContentRequired(AgenticRagError):
    """The message is empty or blank."""

    code = "MESSAGE_CONTENT_REQUIRED"
    status = 400

    def __str__(self) -> str:
        return "content: a message needs at least one visible character."


class MessageTooLong(AgenticRagError):
    """The message is longer than ``limit`` characters."""

    code = "MESSAGE_TOO_LONG"
    status = 400
    facts = ("length", "limit")

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(length, limit)
        self.length = length
        self.limit = limit

    def __str__(self) -> str:
        return f"content: {self.length} characters; a message may have at most {self.limit}."


class Conflict(AgenticRagError):
    """The request does not fit the present state."""

    status = 409


class ConversationFull(Conflict):
    """The conversation holds as many messages as it may."""

    code = "CONVERSATION_FULL"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"The conversation holds {self.limit} messages, which is the limit. Compact it or start a new one."


class ConversationArchived(Conflict):
    """The conversation is archived and takes no messages."""

    code = "CONVERSATION_ARCHIVED"

    def __str__(self) -> str:
        return "The conversation is archived. Set its status to active to go on."


class TurnInProgress(Conflict):
    """One turn at a time per session."""

    code = "TURN_IN_PROGRESS"
    retryable = True
    facts = ("turn_id",)

    def __init__(self, turn_id: str, problem: str = "") -> None:
        super().__init__(turn_id, problem)
        self.turn_id = turn_id
        self.problem = problem

    def __str__(self) -> str:
        return self.problem or 'A turn is running. Interrupt it, wait for its end, or send with onBusy "queue".'


class VersionConflict(Conflict):
    """Somebody else saved a newer version."""

    code = "VERSION_CONFLICT"
    facts = ("given", "current")

    def __init__(self, given: int, current: int) -> None:
        super().__init__(given, current)
        self.given = given
        self.current = current

    def __str__(self) -> str:
        return f"version: {self.given} was given, {self.current} is current. Read it again and repeat the change."


class IdempotencyMismatch(Conflict):
    """The same client message id came with other content."""

    code = "IDEMPOTENCY_MISMATCH"

    def __init__(self, client_message_id: str) -> None:
        super().__init__(client_message_id)
        self.client_message_id = client_message_id

    def __str__(self) -> str:
        return f"clientMessageId: {self.client_message_id!r} was used for a message with other content."


class CompactionNotNeeded(Conflict):
    """The conversation has fewer messages than a compaction is worth."""

    code = "COMPACTION_NOT_NEEDED"

    def __init__(self, count: int, minimum: int) -> None:
        super().__init__(count, minimum)
        self.count = count
        self.minimum = minimum

    def __str__(self) -> str:
        return f"The conversation has {self.count} messages; below {self.minimum} there is nothing to compact."


class ServerReserved(Conflict):
    """A system or built-in server is not an admin's: its name cannot be taken, and it cannot be acted on."""

    code = "MCP_SERVER_RESERVED"
    facts = ("path", "problem")

    def __init__(self, path: str, problem: str = "this name belongs to a built-in server. Choose another one.") -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class CommandNotAllowed(AgenticRagError):
    """An entry matches nothing the operator allowed. ``allow``: the command that would allow it."""

    code = "MCP_COMMAND_NOT_ALLOWED"
    status = 422
    facts = ("path", "reason", "command", "allow")

    def __init__(self, path: str, reason: str, remedy: str = "", *, command: str = "", allow: str = "") -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy
        self.command, self.allow = command, allow

    @property
    def details(self) -> dict[str, object]:
        return {name: value for name, value in super().details.items() if value}

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" + (f" {self.remedy}" if self.remedy else "")


class PackageProblem(AgenticRagError):
    """A server's package is not installed, cannot be, or is not what was installed."""

    code = "MCP_PACKAGE_PROBLEM"
    status = 502

    def __init__(self, package: str, reason: str) -> None:
        super().__init__(package, reason)
        self.package = package
        self.reason = reason

    def __str__(self) -> str:
        return f"The package {self.package} cannot be used: {self.reason}"


class PackageChanged(PackageProblem):
    """A server's package is not what was installed: a refusal, not a failure."""

    code = "MCP_PACKAGE_CHANGED"
    status = 409


class DocumentUnsupported(AgenticRagError):
    """No parser takes this kind of file."""

    code = "DOCUMENT_UNSUPPORTED"
    status = 415

    def __init__(self, name: str, supported: tuple[str, ...]) -> None:
        super().__init__(name, supported)
        self.name = name
        self.supported = supported

    def __str__(self) -> str:
        return f"{self.name}: this kind of file cannot be read. Supported: {', '.join(self.supported)}."


class DocumentTooLarge(AgenticRagError):
    """The file is over the size limit (bytes)."""

    code = "DOCUMENT_TOO_LARGE"
    status = 413

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name, limit)
        self.name = name
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.name}: the file is larger than {self.limit // (1024 * 1024)} MiB."


class Unauthenticated(AgenticRagError):
    """No key, or one that is not known."""

    code = "UNAUTHENTICATED"
    status = 401

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "A valid API key is needed: send it as 'Authorization: Bearer <key>'."


class Forbidden(AgenticRagError):
    """The caller may not do this."""

    code = "FORBIDDEN"
    status = 403

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class RateLimited(AgenticRagError):
    """Too many requests; try again after ``retry_after`` seconds."""

    code = "RATE_LIMITED"
    status = 429
    retryable = True
    facts = ("retry_after",)

    def __init__(self, retry_after: float) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"Too many requests. Try again in {max(1, ceil(self.retry_after))} s."


class StorageError(AgenticRagError):
    """The disk or the database failed. Nothing of a write was kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StorageFull(StorageError):
    """A write failed because the disk is full or read-only."""

    code = "STORAGE_FULL"
    status = 507

    def __str__(self) -> str:
        return f"The data folder cannot be written: {self.reason}."


class StorageUnavailable(StorageError):
    """The database does not answer: another process holds its lock, or it cannot be reached. Try again."""

    code = "STORAGE_UNAVAILABLE"
    status = 503
    retryable = True

    def __str__(self) -> str:
        return f"The database does not answer now: {self.reason}. Try again."


class TurnError(AgenticRagError):
    """Ends a turn with an ``error`` event of the same code."""


class ModelError(TurnError):
    """The model's service refused, failed or broke off.

    ``http_status`` is None when no answer came. ``retry_after`` (seconds) is what the service asked for.
    ``started`` says that events of the answer were already delivered: the step must be reset before a retry.
    """

    code = "LLM_SERVICE_ERROR"
    status = 502

    def __init__(
        self,
        reason: str,
        *,
        http_status: int | None = None,
        kind: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
        started: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.http_status = http_status
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.started = started

    def __str__(self) -> str:
        return self.reason


class GenerationTimeout(TurnError):
    """The model was silent, or the turn took too long (seconds)."""

    code = "GENERATION_TIMEOUT"
    status = 504
    retryable = True

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(what, seconds)
        self.what = what
        self.seconds = seconds

    def __str__(self) -> str:
        return f"{self.what} took longer than {self.seconds:g} s."


class GenerationAborted(TurnError):
    """The turn was interrupted; for dialects without an event of their own for that."""

    code = "GENERATION_ABORTED"
    status = 499

    def __str__(self) -> str:
        return "The turn was interrupted."


class ResumeLimit(TurnError):
    """A turn was cut off by a stopping server too often."""

    code = "RESUME_LIMIT"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"The turn was resumed {self.limit} times and did not end."


class InternalError(TurnError):
    """Something in the product itself went wrong; the log has the traceback under ``reference``."""

    code = "INTERNAL_ERROR"

    def __init__(self, reference: str) -> None:
        super().__init__(reference)
        self.reference = reference

    def __str__(self) -> str:
        return f"Something went wrong on the server (reference {self.reference})."


class ServerUnavailable(AgenticRagError):
    """An MCP server cannot take a call now: not started, crashed, too slow, or broken protocol."""

    code = "MCP_SERVER_UNAVAILABLE"
    status = 503
    retryable = True

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)
        self.server = server
        self.reason = reason

    def __str__(self) -> str:
        return f"The MCP server {self.server!r} is not available: {self.reason}"


class StartupError(AgenticRagError):
    """The process cannot start; the CLI prints the message and exits with ``exit_code``."""

    exit_code: ClassVar[int] = 1


class DataFolderOwned(StartupError):
    """Another process owns the data folder."""

    code = "DATA_FOLDER_OWNED"
    exit_code = 3

    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(folder, owner)
        self.folder = folder
        self.owner = owner

    def __str__(self) -> str:
        return f"The data folder {self.folder} is in use by {self.owner}. Stop it or choose another with --data."


class PortInUse(StartupError):
    """The address cannot be bound."""

    code = "PORT_IN_USE"
    exit_code = 4

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.host = host
        self.port = port

    def __str__(self) -> str:
        return f"Port {self.port} on {self.host} is in use. Stop that program or choose another with --port."


class BadConfiguration(StartupError):
    """A setting of the process is wrong."""

    code = "BAD_CONFIGURATION"
    exit_code = 2

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(setting, problem)
        self.setting = setting
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}"


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def first_cause(exc: BaseException) -> AgenticRagError | None:
    """Return the product's own error in an exception or in a group of a task group's."""
    if isinstance(exc, AgenticRagError):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        return next((found for inner in exc.exceptions if (found := first_cause(inner))), None)
    return None
