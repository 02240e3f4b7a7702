"""Every error the product raises on purpose, in one tree of declarations.

Owns codes, HTTP statuses and the plain words a user reads. Knows no transport: the edge renders these as ``{"error":
{"code", "message", "details"}}``, the CLI as one line and an exit code.

An error is declared, not programmed: its annotated attributes are its constructor's parameters, ``text`` is the
template of ``str(error)``, and the class line holds the facts for programs::

    class MessageTooLong(AgenticRagError, code="MESSAGE_TOO_LONG", status=400, facts=("length", "limit")):
        length: int
        limit: int
        text = "content: {self.length} characters; a message may have at most {self.limit}."

A class inherits code, status and the rest from its base unless it sets them. The classes that code catches most often::

    AgenticRagError
      NotFound                one class for all nouns; the code is derived from the noun
      InvalidInput            a value that a form or a setting refuses, with its path
      ModelError              a refusal or failure of a model's service
      StorageError            the database or the disk
      ServerUnavailable       an MCP server that cannot be called now
      InternalError           a bug; the client gets a reference to the log and nothing else

Another package's deliberate errors (``mcp_servers``) have their own tree there. An exception that never leaves its
module is private and not here.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import KW_ONLY
from math import ceil
from typing import ClassVar, Final, Self, dataclass_transform

from agentic_rag.base.json_form import Json, camel

MAX_PROBLEMS = 100
"""Maximum number of problems described per request."""
MAX_VALUE_CHARS = 2_000
"""Maximum length of a text in an error: it may be untrusted, and is redacted, audited, logged and sent to clients."""


def _cut_value(value: object) -> object:
    if not isinstance(value, str) or len(value) <= MAX_VALUE_CHARS:
        return value
    return f"{value[:MAX_VALUE_CHARS]}… ({len(value)} characters)"


@dataclass_transform(eq_default=False)
class AgenticRagError(Exception):
    """Base class. ``str(error)`` is the message a user reads; ``details`` are its JSON-ready facts.

    Class arguments: ``code``; ``status`` of HTTP; ``retryable``: the same request may succeed later; ``facts``: the
    attributes that `details` shows.
    """

    code: str = "INTERNAL_ERROR"
    status: int = 500
    retryable: bool = False
    attributes: ClassVar[tuple[str, ...]] = ()
    """The constructor's parameters in order."""
    facts: ClassVar[tuple[str, ...]] = ()
    text: ClassVar[str] = ""
    problems: "tuple[AgenticRagError, ...]" = ()
    """All problems of the request that this error ends, including itself; empty if they were not collected."""
    outside: ClassVar[str] = ""
    """The text shown instead of ``text`` to people who do not run the server."""

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        status: int | None = None,
        retryable: bool | None = None,
        facts: tuple[str, ...] | None = None,
    ) -> None:
        super().__init_subclass__()
        declared = {"code": code, "status": status, "retryable": retryable, "facts": facts}
        for name, value in declared.items():
            if value is not None:
                setattr(cls, name, value)
        own = (name for name in vars(cls).get("__annotations__", ()) if name != "_")
        cls.attributes = (*cls.attributes, *own)

    def __init__(self, *values: object, **named: object) -> None:
        # One constructor for all: dataclasses would compile 45 of them at each start. The type checker knows every
        # signature.
        values = tuple(_cut_value(value) for value in values)
        super().__init__(*values)
        vars(self).update(zip(self.attributes, values, strict=False))
        vars(self).update((name, _cut_value(value)) for name, value in named.items())

    def __str__(self) -> str:
        # A template may name a property of the error ("{self.named}"). Only our own classes supply templates; a value
        # from a stranger is inserted and never read as a template.
        return self.text.format(self=self)

    @property
    def plain(self) -> str:
        """The message for people who do not run the server: no address, no path and no text from a library."""
        return self.outside or str(self)

    @property
    def details(self) -> Json:
        """Facts for a program, by camelCase name, without secrets."""
        facts: Json = {camel(name): getattr(self, name) for name in self.facts}
        return {**facts, "problems": [_describe(problem) for problem in self.problems]} if self.problems else facts

    def among(self, errors: "Sequence[AgenticRagError]") -> Self:
        """Return this error with all problems of the same request in its details, each with its path and message."""
        error = copy(self)
        vars(error).update(problems=tuple(errors[:MAX_PROBLEMS]))
        return error


def _describe(error: AgenticRagError) -> Json:
    """Return a problem in the form of ``details.problems``."""
    path = str(getattr(error, "path", ""))
    message = str(error)
    return {"path": path, "message": message.removeprefix(f"{path}: "), "code": error.code}


def raise_first(problems: Sequence[AgenticRagError]) -> None:
    """Raise the first problem, if there is one, with all of them in its details."""
    if problems:
        raise problems[0].among(problems)


def problems_of(error: AgenticRagError) -> tuple[AgenticRagError, ...]:
    """Return all problems that an error reports."""
    return error.problems or (error,)


class NotFound(AgenticRagError, status=404):
    """An id names nothing, or nothing that this user may see (the two look alike on purpose).

    The code is ``{NOUN}_NOT_FOUND``. ``hidden``: the object exists; for the audit log, never for the answer.
    """

    noun: str
    ident: str
    _: KW_ONLY
    hidden: bool = False
    text = "There is no {self.named} {self.ident!r}."

    @property
    def code(self) -> str:  # type: ignore[override]
        return f"{self.noun.upper()}_NOT_FOUND"

    @property
    def named(self) -> str:
        return self.noun.replace("mcp_server", "MCP server")


class InvalidInput(AgenticRagError, code="VALIDATION_ERROR", status=422, facts=("path", "problem")):
    """A value is invalid. ``path`` names the field, ``problem`` describes a valid value."""

    path: str
    problem: str
    text = "{self.path}: {self.problem}"


class MessageContentRequired(AgenticRagError, code="MESSAGE_CONTENT_REQUIRED", status=400):
    """The message is empty or blank."""

    text = "content: a message needs at least one visible character."


class ModelNotAllowed(AgenticRagError, code="MODEL_NOT_ALLOWED", status=422, facts=("model", "allowed")):
    """The domain does not offer the model that a user chose. ``allowed``: the models that it offers."""

    model: str
    allowed: tuple[str, ...]

    @property
    def _offer(self) -> str:
        return f"Choose one of: {', '.join(self.allowed)}." if self.allowed else "Leave `model` out."

    text = "model: {self.model!r} cannot be chosen in this domain. {self._offer}"


class UnreadableAttachment(AgenticRagError, status=422):
    """A file that was attached cannot be read. The code is that of the failed document."""

    name: str
    kind: str
    reason: str
    text = "{self.name}: {self.reason}"

    @property
    def code(self) -> str:  # type: ignore[override]  # the other errors have one code for each class
        return self.kind


class MessageTooLong(AgenticRagError, code="MESSAGE_TOO_LONG", status=400, facts=("length", "limit")):
    """The message is longer than ``limit`` characters."""

    length: int
    limit: int
    text = "content: {self.length} characters; a message may have at most {self.limit}."


class ImageUnsupported(AgenticRagError, code="IMAGE_UNSUPPORTED", status=415, facts=("path",)):
    """The content sent as an image is not in a format that a model can read."""

    path: str
    text = "{self.path}: this is no PNG, JPEG, GIF or WebP image, by its content."


class ImageTooLarge(AgenticRagError, code="IMAGE_TOO_LARGE", status=413, facts=("path", "problem")):
    """An image exceeds a limit; ``problem`` names the limit."""

    path: str
    problem: str
    text = "{self.path}: {self.problem}"


class BodyTooLarge(AgenticRagError, code="BODY_TOO_LARGE", status=413, facts=("limit",)):
    """The body of a request is longer than ``limit`` bytes."""

    limit: int
    text = "body: larger than {self.limit} bytes."


class Conflict(AgenticRagError, status=409):
    """The request does not fit the present state."""


class ConversationFull(Conflict, code="CONVERSATION_FULL"):
    """The conversation has reached its maximum number of messages."""

    limit: int
    text = "The conversation holds {self.limit} messages, which is the limit. Compact it or start a new one."


class ConversationArchived(Conflict, code="CONVERSATION_ARCHIVED"):
    """The conversation is archived and takes no messages."""

    text = "The conversation is archived. Set its status to active to go on."


class QuotaExceeded(Conflict, code="QUOTA_EXCEEDED", facts=("noun", "limit")):
    """A domain has reached a quota; ``setting`` is the operator's variable for it."""

    noun: str
    limit: int
    setting: str
    text = "This domain may hold {self.limit} {self.noun}. Delete some, or ask the operator to raise {self.setting}."


class LimitReached(Conflict, code="LIMIT_REACHED", facts=("noun", "limit")):
    """There are as many things as possible; no setting raises the limit."""

    noun: str
    limit: int
    text = "At most {self.limit} {self.noun} are possible here. Delete some."


class SourceExists(Conflict, code="SOURCE_EXISTS", facts=("name",)):
    """The domain has a source of this name."""

    name: str
    text = "This domain has a source named {self.name!r}; choose another name."


class SourceOwnerGone(Conflict, code="SOURCE_OWNER_GONE", facts=("owner",)):
    """The user for whom a source calls its MCP server is no active admin of the domain."""

    owner: str
    text = "{self.owner!r} is no active admin of this domain any more; another admin has to save the source."


class SourceUnreadable(AgenticRagError, code="SOURCE_UNREADABLE", status=502, facts=("problem",)):
    """A source cannot be listed or read now. The run ends, and later runs try again."""

    problem: str
    text = "The source cannot be read: {self.problem}"


class SourceItemUnreadable(AgenticRagError, code="SOURCE_ITEM_UNREADABLE", status=502, facts=("problem",)):
    """One item of a source cannot be read. The run continues with the others."""

    problem: str
    text = "The item cannot be read: {self.problem}"


class SourceItemSilent(AgenticRagError, code="SOURCE_ITEM_SILENT", status=504, retryable=True, facts=("problem",)):
    """One item of a source did not arrive in time."""

    problem: str
    text = "The item cannot be read now: {self.problem}"


class ScheduleExists(Conflict, code="SCHEDULE_EXISTS", facts=("name",)):
    """The domain has a schedule of this name."""

    name: str
    text = "This domain has a schedule named {self.name!r}; choose another name."


class ScheduleDisabled(Conflict, code="SCHEDULE_DISABLED", facts=("name",)):
    """A webhook reached a schedule that is disabled or was paused."""

    name: str
    text = "The schedule {self.name!r} is disabled."


class ScheduleOwnerGone(Conflict, code="SCHEDULE_OWNER_GONE", facts=("owner",)):
    """The owner of a schedule is no active admin of its domain."""

    owner: str
    text = "{self.owner!r} is no active admin of this domain any more; another admin has to save the schedule."


class TurnInProgress(Conflict, code="TURN_IN_PROGRESS", retryable=True, facts=("turn_id",)):
    """One turn at a time per session."""

    turn_id: str
    problem: str = 'A turn is running. Interrupt it, wait for its end, or send with onBusy "queue".'
    text = "{self.problem}"


class WaitAnswered(Conflict, code="WAIT_ANSWERED", facts=("state", "answered_by")):
    """The wait was already answered."""

    state: str
    answered_by: str
    text = "This has been answered already, or its time is over ({self.state})."


class OtherResponses(Conflict, code="RESPONSE_NOT_ALONE", facts=("conversation_id",)):
    """A response cannot be deleted, because its conversation holds others."""

    conversation_id: str
    count: int
    text = (
        "The conversation {self.conversation_id} of this response holds {self.count} more. Delete the conversation: "
        "DELETE /api/conversations/{self.conversation_id}."
    )


class UserErasing(Conflict, code="USER_ERASING"):
    """The user is being erased; repeat the erasure to finish it."""

    name: str
    text = "{self.name} is being erased. Erase the user again to end it."


class VersionConflict(Conflict, code="VERSION_CONFLICT", facts=("given", "current")):
    """Another client saved a newer version."""

    given: int
    current: int
    text = "version: {self.given} was given, {self.current} is current. Read it again and repeat the change."


class ChangeHeld(Conflict, code="CHANGE_HELD", facts=("draft_id", "decision", "worse", "compared", "p")):
    """The domain's evaluation cases became worse by a change, which was kept as a draft."""

    draft_id: str
    decision: str
    worse: int
    compared: int
    p: float
    sentence: str
    text = (
        "Held: {self.sentence}. The change is kept as draft {self.draft_id}; its author or an operator can apply it "
        "anyway."
    )


class ReindexHeld(Conflict, code="REINDEX_HELD"):
    """Evaluation cases do worse in a rebuilt collection, which did not become live."""

    sentence: str
    text = "held by evaluation: {self.sentence}. The collection before it stays live."


class ChangeOnTrial(Conflict, code="CHANGE_ON_TRIAL", facts=("draft_id",)):
    """A change is tried with whole answers first, and applied once its trial has passed."""

    draft_id: str
    text = (
        "The change is tried with this domain's evaluation cases as draft {self.draft_id}. It is applied if they do "
        "not become worse."
    )


class IdempotencyMismatch(Conflict, code="IDEMPOTENCY_MISMATCH"):
    """The same client message id was used for a message with other content."""

    client_message_id: str
    text = "clientMessageId: {self.client_message_id!r} was used for a message with other content."


class CompactionNotNeeded(Conflict, code="COMPACTION_NOT_NEEDED"):
    """The conversation has too few messages for a compaction."""

    count: int
    minimum: int
    text = "The conversation has {self.count} messages; below {self.minimum} there is nothing to compact."


class NothingToRollBack(Conflict, code="NOTHING_TO_ROLL_BACK"):
    """The collection was never replaced, so there is none to roll back to."""

    text = "There is no collection before this one."


class ReindexRunning(Conflict, code="REINDEX_RUNNING", retryable=True):
    """The collection is being rebuilt."""

    text = "The documents are being re-indexed. Try again when this has finished."


class ServerReserved(Conflict, code="MCP_SERVER_RESERVED", facts=("path", "problem")):
    """System and built-in servers belong to the product: admins cannot use their names or act on them."""

    path: str
    problem: str = "this name belongs to a built-in server. Choose another one."
    text = "{self.path}: {self.problem}"


class ToolsChanged(Conflict, code="TOOLS_CHANGED", facts=("server",)):
    """The waiting tools differ from those that the admin accepted: the server changed its list meanwhile."""

    server: str
    text = "fingerprint: the tools of {self.server!r} that wait are not those it stands for. Look at them again."


class LineAllowed(Conflict, code="LAUNCH_LINE_ALLOWED", facts=("entry",)):
    """The line is already allowed, so no request is needed. ``entry``: of the launch catalogue."""

    entry: str
    text = "This line is allowed already ({self.entry}). Test the entry, or save it."


class LaunchRequestClosed(Conflict, code="LAUNCH_REQUEST_CLOSED", facts=("state",)):
    """A request was already decided or withdrawn."""

    state: str
    text = "This request is {self.state}; only an open one can be approved, refused or withdrawn."


class LaunchRequestChanged(Conflict, code="LAUNCH_REQUEST_CHANGED"):
    """The program that would run differs from the one that was reviewed."""

    reason: str
    text = "{self.reason} Review the request again, or ask its admin to send a new one."


class LaunchRequestsFull(Conflict, code="LAUNCH_REQUESTS_FULL", facts=("limit",)):
    """A domain has reached its maximum number of open requests."""

    limit: int
    text = "{self.limit} requests of this domain are open, which is the limit. Withdraw some, or wait for the operator."


class CommandNotAllowed(
    AgenticRagError, code="MCP_COMMAND_NOT_ALLOWED", status=422, facts=("path", "reason", "command", "allow", "request")
):
    """An entry matches nothing the operator allowed.

    ``allow``: the command that would allow the entry; ``request``: the address at which an admin can ask for it (POST).
    """

    path: str
    reason: str
    remedy: str = ""
    _: KW_ONLY
    command: str = ""
    allow: str = ""
    request: str = ""

    @property
    def details(self) -> Json:
        return {name: value for name, value in super().details.items() if value}

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" + (f" {self.remedy}" if self.remedy else "")


class PackageProblem(AgenticRagError, code="MCP_PACKAGE_PROBLEM", status=502):
    """A server's package is not installed, cannot be installed, or was changed since."""

    package: str
    reason: str
    text = "The package {self.package} cannot be used: {self.reason}"


class PackageChanged(PackageProblem, code="MCP_PACKAGE_CHANGED", status=409):
    """A server's package was changed since its installation: a refusal, not a failure."""


class CatalogueProblem(AgenticRagError, code="CATALOGUE_PROBLEM"):
    """A launch catalogue is invalid; ``problem`` gives the place and the reason."""

    problem: str
    text = "{self.problem}"


class PlaceholderUnset(AgenticRagError, code="PLACEHOLDER_UNSET"):
    """A placeholder has neither a value nor a default."""

    name: str
    text = "${{{self.name}}} has no value."


class SecretUnreadable(AgenticRagError, code="SECRET_UNREADABLE", facts=("name", "reason")):
    """A sealed value does not open: it was changed, belongs elsewhere, or its key is not known."""

    name: str
    reason: str
    text = "The secret {self.name!r} cannot be read: {self.reason}. Set it again."


class SecretLimit(AgenticRagError, code="SECRET_LIMIT", status=422, facts=("path", "problem")):
    """A domain would have more secrets than can be searched for in every text. ``path``: the field with the secrets."""

    path: str
    problem: str
    text = "{self.path}: {self.problem}"


class DocumentUnsupported(AgenticRagError, code="DOCUMENT_UNSUPPORTED", status=415):
    """No reader supports this kind of file. ``instead`` names an alternative, if one is known."""

    name: str
    supported: tuple[str, ...]
    instead: str = ""

    def __str__(self) -> str:
        if self.instead:
            return f"{self.name}: this kind of file cannot be read; {self.instead}."
        return f"{self.name}: this kind of file cannot be read. Supported: {', '.join(self.supported)}."


class DocumentTooLarge(AgenticRagError, code="DOCUMENT_TOO_LARGE", status=413):
    """The file is over the size limit (bytes)."""

    name: str
    limit: int

    def __str__(self) -> str:
        return f"{self.name}: the file is larger than {self.limit // (1024 * 1024)} MiB."


class PageUnreadable(AgenticRagError, code="PAGE_UNREADABLE", status=422, facts=("reason",)):
    """A page of a document cannot be drawn. ``reason``: the code of the file's problem."""

    reason: str
    problem: str
    text = "This page cannot be shown: {self.problem}."


class SearchUnavailable(AgenticRagError, code="INDEX_UNAVAILABLE", status=503, retryable=True):
    """The index cannot be searched now."""

    reason: str
    text = "The documents cannot be searched now: {self.reason}."
    outside = "The documents cannot be searched now. Try again."


class Unauthenticated(AgenticRagError, code="UNAUTHENTICATED", status=401):
    """The API key is missing or unknown."""

    reason: str = "A valid API key is needed: send it as 'Authorization: Bearer <key>'."
    text = "{self.reason}"


class ProviderUnavailable(AgenticRagError, code="OIDC_UNAVAILABLE", status=503, retryable=True):
    """The OpenID provider does not answer, or cannot be used. The reason is shown to operators only."""

    reason: str
    text = "The OpenID provider cannot be used: {self.reason}"
    outside = "Signing in is not possible now: the OpenID provider does not answer as it has to."


class Forbidden(AgenticRagError, code="FORBIDDEN", status=403):
    """The caller may not do this."""

    reason: str
    text = "{self.reason}"


class InsufficientScope(AgenticRagError, code="INSUFFICIENT_SCOPE", status=403, facts=("scope",)):
    """The program's token does not permit this tool."""

    scope: str
    text = "The token does not permit this. Authorize the program again, with the scope {self.scope!r}."


class RateLimited(AgenticRagError, code="RATE_LIMITED", status=429, retryable=True, facts=("retry_after",)):
    """Too many requests; try again after ``retry_after`` seconds."""

    retry_after: float

    def __str__(self) -> str:
        return f"Too many requests. Try again in {max(1, ceil(self.retry_after))} s."


class MalformedRequest(AgenticRagError, code="BAD_REQUEST", status=400):
    """The bytes on a connection are not an HTTP request or WebSocket handshake."""

    text = "This cannot be read as an HTTP request."


class HeadersTooLarge(AgenticRagError, code="HEADERS_TOO_LARGE", status=431, facts=("limit",)):
    """A request's target and header fields are longer than the server reads."""

    limit: int
    text = "The request's address and header fields may have {self.limit} bytes together."


class RequestTimeout(AgenticRagError, code="REQUEST_TIMEOUT", status=408):
    """A request was not completely sent in time."""

    part: str
    text = "The request's {self.part} did not arrive in time."


class ServerBusy(AgenticRagError, code="SERVER_BUSY", status=503, retryable=True, facts=("retry_after",)):
    """Too many connections without a valid key are open."""

    retry_after: float
    text = "Too many connections are open. Try again in a few seconds."


class TooManySubscriptions(RateLimited):
    """A socket follows the maximum number of conversations; waiting does not free any."""

    limit: int

    def __str__(self) -> str:
        return f"A socket may follow {self.limit} conversations. Unsubscribe from one first."


class PagesBusy(RateLimited):
    """Too many pages of a domain are waiting to be drawn, or one waited for too long."""

    def __str__(self) -> str:
        return "Other pages of this domain's documents are drawn first. Try again in a few seconds."


class LogGone(AgenticRagError, code="LOG_GONE", status=410):
    """The log of a finished turn is no longer kept; its messages are."""

    turn_id: str
    text = "The events of turn {self.turn_id} are no longer kept. Read the messages instead."


class BeyondLog(LogGone):
    """A client asks for events after a number that the log of a finished turn does not contain.

    The client may have seen another server's events, or a log that a restored backup does not contain.
    """

    after: int
    text = "Turn {self.turn_id} ended before event {self.after}. Read the messages instead."


class LeaseLost(AgenticRagError, code="LEASE_LOST"):
    """Another process runs the turn now: this one must stop without writing."""

    turn_id: str
    text = "Turn {self.turn_id} is run by another process now."


class StorageError(AgenticRagError):
    """The disk or the database failed. No part of the write was stored."""

    reason: str
    text = "{self.reason}"


class StorageFull(StorageError, code="STORAGE_FULL", status=507):
    """A write failed because the disk is full or read-only."""

    text = "The data folder cannot be written: {self.reason}."
    outside = "The server cannot store anything at the moment: its disk is full or cannot be written."


NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Error numbers of a file system that is full, has no inodes left, is over a quota, or is read-only."""


def refused_write(exc: BaseException | None) -> StorageFull | None:
    """Return the error for a write that a full or read-only disk refused, or None for any other exception.

    This is the only rule that recognizes such a refusal. `store.database` maps the errors of SQLite and PostgreSQL.
    """
    if isinstance(exc, StorageFull):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        return next((error for inner in exc.exceptions if (error := refused_write(inner))), None)
    if isinstance(exc, OSError) and exc.errno in NO_ROOM:
        return StorageFull(exc.strerror or "no space left on device")
    return None


class BackupNotWritten(StorageFull, code="BACKUP_NOT_WRITTEN", status=507):
    """A backup cannot be written to its destination; no part of it is left there."""

    place: str
    text = "The backup {self.place} cannot be written: {self.reason}."
    outside = "The server cannot write its backup at the moment."


@contextmanager
def disk_errors(make: Callable[[str], StorageFull] = StorageFull) -> Iterator[None]:
    """Translate an `OSError` that is raised in the block into `StorageFull`, or into the error that ``make`` returns.

    ``make`` gets the reason in words.
    """
    try:
        yield
    except OSError as exc:
        raise make(exc.strerror or "unknown reason") from exc


class BackupDamaged(AgenticRagError, code="BACKUP_DAMAGED", status=422, facts=("problem",)):
    """A file is not a backup, or is incomplete."""

    path: str
    problem: str
    text = "{self.path} cannot be used: {self.problem}"


class BackupTooNew(AgenticRagError, code="BACKUP_TOO_NEW", status=422, facts=("version",)):
    """A backup, or the tables in it, are of a version that this program does not know."""

    path: str
    version: str
    text = (
        "{self.path} was written by version {self.version}, and this program is older. Use that version or a newer one."
    )


class BackupRefused(AgenticRagError, code="BACKUP_REFUSED", status=409, facts=("problem",)):
    """A backup, restore, upgrade or downgrade is not begun; ``problem`` gives the reason and the remedy."""

    problem: str
    text = "{self.problem}"


class WorkspaceRefused(Conflict, code="WORKSPACE_REFUSED", facts=("name", "reason")):
    """A workspace contains something else in place of one of our folders or files: a link, a pipe."""

    name: str
    reason: str

    text = "In the workspace, {self.name!r} cannot be used: {self.reason}."


class EmbedderUnavailable(AgenticRagError, code="EMBEDDER_UNAVAILABLE", status=503, retryable=True):
    """The server has no embedder, it is still loading, or it failed."""

    reason: str
    text = "There are no embeddings now: {self.reason}."


class StorageUnavailable(StorageError, code="STORAGE_UNAVAILABLE", status=503, retryable=True):
    """The database does not answer: another process holds its lock, or it cannot be reached. Try again."""

    text = "The database does not answer now: {self.reason}. Try again."
    outside = "The database does not answer now. Try again."


class WritesRefused(StorageUnavailable):
    """The disk refused the last write: it is full, has no inodes left, or is read-only. Reading works."""

    text = "The server reads but cannot write now: {self.reason}. It writes again as soon as there is room."
    outside = "The server cannot store anything at the moment: its disk is full or cannot be written."


class StorageDamaged(StorageError, code="STORAGE_DAMAGED", status=503):
    """The SQLite file is damaged; a retry does not help."""

    text = (
        "The database is damaged: {self.reason}. Put a backup of the data folder in its place; "
        "agentic-rag doctor then says whether everything fits together."
    )
    outside = "The database is damaged. Ask the operator of this server."


class WorkspaceUnavailable(StorageUnavailable):
    """A domain's folder does not answer: its disk or other operations in it hang. Other domains are not affected."""

    text = "The domain's folder does not answer now: {self.reason}. Try again."
    outside = "The domain's folder does not answer now. Try again."


class ServerStopping(AgenticRagError, code="SERVER_STOPPING", status=503, retryable=True):
    """The server is about to end; the next server process resumes its unfinished work."""

    text = "The server is stopping. Try again in a moment."


class TurnError(AgenticRagError):
    """Ends a turn with an ``error`` event of the same code."""


class ModelError(TurnError, code="LLM_SERVICE_ERROR", status=502):
    """The model's service refused, failed or broke off.

    ``http_status`` is None when no answer came. ``retry_after`` (seconds) is the delay that the service asked for.
    ``started``: events of the answer were already delivered, so the step must be reset before a retry.
    """

    reason: str
    _: KW_ONLY
    http_status: int | None = None
    kind: str = ""
    retryable: bool = False
    retry_after: float | None = None
    started: bool = False
    text = "{self.reason}"


class UnusableSummary(ModelError):
    """A model returned an unusable summary of a conversation; ``reason`` gives the problem."""

    text = "The model gave no summary that can be used: {self.reason}."


class ContextTooLong(TurnError, code="CONTEXT_TOO_LONG", status=413):
    """A conversation is longer than its model accepts, even after everything possible is left out."""

    text = (
        "This is more than the model can read at once, even with a summary of what was said before. "
        "Send less at once, or start a new conversation."
    )


class EventTooLarge(TurnError, code="EVENT_TOO_LARGE"):
    """A line or an event of a model's stream is longer than ``limit`` bytes."""

    limit: int
    text = "an event of the stream is larger than {self.limit} bytes"


class GenerationTimeout(TurnError, code="GENERATION_TIMEOUT", status=504, retryable=True):
    """The model was silent, or the turn took too long (seconds)."""

    what: str
    seconds: float
    text = "{self.what} took longer than {self.seconds:g} s."


class FunctionResultMissing(TurnError, code="FUNCTION_RESULT_MISSING", status=504):
    """The client's program sent no result of a function before its wait expired."""

    name: str
    text = "The client sent no result of its function {self.name!r} in time."


class AnswerNotInForm(TurnError, code="ANSWER_NOT_IN_FORM", status=502, retryable=True):
    """The model answered with a text that does not fit the form that the client wants."""

    text = "The model did not answer in the form of `response_format`."


class TurnBudgetExceeded(TurnError, code="TURN_BUDGET_EXCEEDED", facts=("used", "limit")):
    """A turn has used the tokens that it may use, so it calls the model no more."""

    used: int
    limit: int
    text = "The turn has used {self.used} tokens; {self.limit} are allowed."


class GenerationAborted(TurnError, code="GENERATION_ABORTED", status=499):
    """The turn was interrupted; for dialects without their own event for that."""

    text = "The turn was interrupted."


class StepTakenBack(TurnError, code="STEP_RESET", retryable=True):
    """A step runs again after its text was shown; for dialects that cannot retract text."""

    text = "The model's answer broke off and this part restarts. Reload the messages, or ask again."


class ResumeLimit(TurnError, code="RESUME_LIMIT"):
    """A turn was cut off by a stopping server too often."""

    limit: int
    text = "The turn was resumed {self.limit} times and did not end."


class AnswerFailed(TurnError):
    """A turn ended without the answer that a caller waits for; the fields come from its terminal event."""

    reason: str
    words: str
    hopeful: bool
    text = "{self.words}"

    @property
    def code(self) -> str:  # type: ignore[override]
        return self.reason

    @property
    def status(self) -> int:  # type: ignore[override]
        causes = (ModelError, GenerationTimeout, GenerationAborted, RateLimited, StorageFull, StorageUnavailable)
        return {"BUDGET_EXCEEDED": 429, **{kind.code: kind.status for kind in causes}}.get(
            self.reason, TurnError.status
        )

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        return self.hopeful


class InternalError(TurnError, code="INTERNAL_ERROR"):
    """An unexpected error in the product; the log has the traceback under ``reference``."""

    reference: str
    text = "Something went wrong on the server (reference {self.reference})."


class ServerUnavailable(AgenticRagError, code="MCP_SERVER_UNAVAILABLE", status=503, retryable=True):
    """An MCP server cannot take a call now: not started, crashed, too slow, or broken protocol."""

    server: str
    reason: str
    text = "The MCP server {self.server!r} is not available: {self.reason}"


class ServerSilent(ServerUnavailable, code="MCP_SERVER_SILENT", status=504):
    """An MCP server accepted a call and did not answer in time. ``reason`` contains only facts that users may read."""


class TooManyServers(
    AgenticRagError, code="TOO_MANY_MCP_SERVERS", status=429, retryable=True, facts=("server", "limit")
):
    """A domain runs its maximum number of MCP servers."""

    server: str
    limit: int
    text = "The MCP server {self.server!r} was not started: {self.limit} servers of its domain run already."


class RequestRefused(AgenticRagError):
    """For the command line: the server answered with this error."""

    http_status: int
    code: str
    message: str
    text = "{self.message}"


class ServerUnreachable(AgenticRagError, code="SERVER_UNREACHABLE"):
    """For the command line: no server of ours answers at the address."""

    url: str
    reason: str
    text = "No server answers at {self.url} ({self.reason}). Start one with: agentic-rag serve"


def first_cause(exc: BaseException) -> AgenticRagError | None:
    """Return the product's own error in an exception, or in an exception group of a task group."""
    if isinstance(exc, AgenticRagError):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        return next((cause for inner in exc.exceptions if (cause := first_cause(inner))), None)
    return None
