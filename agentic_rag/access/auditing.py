"""Auditing: turning changes and refusals into rows of the audit log.

There are two ways in. A change is audited inside its own transaction: call `change` in the acting task, which knows the
user, and pass the result with the transaction's connection to `audit`::

    told = change("secret.set", f"{domain_id}/{name}")

    def save(conn: Connection) -> None:
        secrets.put(conn, ...)
        audit(conn, told)

    await database.write(save, durable=True)

A refusal has no transaction: `AuditLog.record_refusal` writes it, within the limits of ``refusals``. A row never holds
values: only ids, names of settings, and codes. The callers of `change` are ``domains``, ``documents``, ``access`` and
the modules that keep secrets (``domain_secrets``, ``vault``), roles or server entries. If a route changes something
without an audit entry, the edge (``server.routes``) writes one.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
from sqlalchemy import Connection

from agentic_rag.access.acts import Acts
from agentic_rag.access.refusals import Refusal, Refusals
from agentic_rag.access.users import SYSTEM, acting
from agentic_rag.base.errors import AgenticRagError, InvalidInput, NotFound, RateLimited, StorageError
from agentic_rag.base.events import ToolStatus
from agentic_rag.base.redaction import Redactor
from agentic_rag.runtime.core.calls import DenialReason, PlannedCall
from agentic_rag.store import audit as rows
from agentic_rag.store import conversations, images
from agentic_rag.store.audit import AuditOutcome, AuditRecord, Entry, Verdict, append
from agentic_rag.store.database import Database
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.system import BY_NAME, FORGET, ROLE_WRITE

log = logging.getLogger(__name__)

_ID = re.compile(r"[a-z]{2,12}_[0-9a-z]{26}")
"""The format of ids from `new_id`."""
FLUSH_SECONDS = 10.0
"""Seconds between two writes of the expired counts of refusals."""


def change(action: str, target: str, **details: Any) -> Entry:
    """Return the audit entry of a change by the current task's user. Call it outside transactions, in the acting task.

    A transaction runs in another thread, which does not know the task. ``action`` is ``noun.verb``. ``target``
    identifies the changed thing by ids. ``details`` are JSON values without secrets.
    """
    present = acting()
    present.note()
    return Entry(present.user_id, action, target, details=details)


def audit(conn: Connection, entry: Entry) -> None:
    """Append an entry inside the transaction of the audited change."""
    append(conn, entry)


def denied_call(conn: Connection, turn: TurnRecord, call: PlannedCall, app_of: str = "") -> None:
    """Audit a denied tool call, inside the transaction of its result. ``app_of``: the call whose app asked for it."""
    conversation = conversations.get(conn, turn.conversation_id)
    owner = conversation.owner_id if conversation is not None else SYSTEM
    details = {"turnId": turn.id, "toolCallId": call.id, "because": _why_denied(call)}
    if app_of:
        details["appOf"] = app_of
    if conversation is not None:
        details |= {"conversationId": conversation.id, "domainId": conversation.domain_id}
    append(conn, Entry(owner, "tool.call", call.name, AuditOutcome.DENIED, details))


def made_call(conn: Connection, turn: TurnRecord, call: PlannedCall, status: ToolStatus) -> None:
    """Audit a call of a built-in tool with effects, inside the transaction of its result.

    Failed calls and calls with an unknown result are audited too; the row holds the status.
    """
    tool = BY_NAME.get(call.name)
    if tool is None or not (tool.effects or tool.shared_effects):
        return
    conversation = conversations.get(conn, turn.conversation_id)
    owner, domain = (SYSTEM, "") if conversation is None else (conversation.owner_id, conversation.domain_id)
    details = {"turnId": turn.id, "toolCallId": call.id, "conversationId": turn.conversation_id, "status": status.value}
    if tool is ROLE_WRITE:
        action, role = "role.write", call.arguments.get("role", "")
    else:
        action, role = "memory.delete" if tool is FORGET else "memory.add", str(call.arguments.get("role") or "")[:64]
        if not role:  # the memory of the role that is bound to the turn
            role = (images.get(conn, turn.image_id) or {}).get("binding", {}).get("role", "")
    append(conn, Entry(owner, action, f"{domain}/{role}", details=details))


def _why_denied(call: PlannedCall) -> str:
    """Return the rule that denied a call; a call without one was stopped by the vault."""
    return call.because or DenialReason.SECRET


def tells(error: AgenticRagError) -> bool:
    """Return whether a refusal belongs in the log: refused rights, rate limits, and invalid MCP entries.

    A `NotFound` is logged if the thing exists for another user: the response hides that, the log records it.
    """
    if isinstance(error, NotFound):
        return error.hidden
    return error.status in (401, 403) or isinstance(error, RateLimited) or _of_an_entry(error)


def _of_an_entry(error: AgenticRagError) -> bool:
    if isinstance(error, InvalidInput):
        return place_of(error).removeprefix("settings.").startswith("mcpServers.")
    return error.code.startswith("MCP_") and error.status < 500


def place_of(error: AgenticRagError) -> str:
    """Return the path of an error inside the request body, or an empty text."""
    return str(getattr(error, "path", ""))


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


class AuditLog:
    """The audit log of one database.

    ``redactor`` removes secrets from the names in a refused request. ``acts`` are the operators' command-line changes.
    """

    def __init__(self, database: Database, redactor: Redactor, acts: Acts) -> None:
        self._db = database
        self._redactor = redactor
        self._acts = acts
        self._refusals = Refusals()
        database.set_option(rows.REDACTION, self._redact)

    async def record_refusal(self, refusal: Refusal, request_id: str = "") -> None:
        """Record a refusal. Never fails: the refusal is final even if its row cannot be stored."""
        await self._write(self._refusals.note(time.monotonic(), refusal), request_id)

    async def server_refused(self, spec: LaunchSpec, error: AgenticRagError) -> None:
        """Record that an MCP entry was not permitted to start or to connect; the actor is the current task's user."""
        if tells(error):
            target = f"{spec.domain}/{spec.name}"
            await self.record_refusal(Refusal(acting().user_id, "mcp.start", target, error.code, "", place_of(error)))

    async def note(self, entry: Entry) -> None:
        """Record a change that happens outside our transactions (in files or in another process).

        Raises:
            StorageFull: the row could not be written.
        """
        await self._db.write(lambda conn: append(conn, entry), durable=True)

    async def page(
        self, limit: int, *, before: int | None = None, actor: str | None = None, outcome: AuditOutcome | None = None
    ) -> list[AuditRecord]:
        """Return the newest rows first, after writing pending counts."""
        await self.flush()
        return await self._db.read(lambda conn: rows.page(conn, limit, before=before, actor=actor, outcome=outcome))

    async def verify(self, known_head: str | None = None) -> Verdict:
        """Check the whole chain and report its broken places. ``known_head``: a head noted earlier."""
        return await self._db.read(lambda conn: rows.check(conn, known_head))

    async def flush(self) -> None:
        """Write all pending counts and the operators' command-line acts."""
        await self._write(self._refusals.rest())
        await self._take_in()

    async def write_due(self) -> None:
        """Write the expired counts and the operators' command-line acts; called every `FLUSH_SECONDS`."""
        await self._write(self._refusals.due(time.monotonic()))
        await self._take_in()

    async def _take_in(self) -> None:
        try:
            await self._acts.take_in(self._db)
        except (StorageError, OSError) as exc:  # the notes stay in place
            log.error("acts by command line are not in the audit log yet: %s", exc)

    async def _write(self, refusals: Sequence[tuple[Refusal, int]], request_id: str = "") -> None:
        if not refusals:
            return
        entries = [self._entry(refusal, count, request_id) for refusal, count in refusals]

        def store(conn: Connection) -> None:
            for entry in entries:
                append(conn, entry)

        try:
            with anyio.CancelScope(shield=True):  # a client that disconnects at once must not cancel its row
                await self._db.write(store)
        except AgenticRagError as exc:
            log.error("%d refusals are missing in the audit log: %s", len(entries), exc)

    def _redact(self, entry: Entry) -> Entry:
        """Remove secrets from an entry: those of the domain in the entry, or else those of all domains.

        Our own ids are kept. Otherwise an admin could hide their acts by storing a secret that equals an id.
        """
        domain_id = str(entry.details.get("domainId") or entry.target.partition("/")[0])
        redact = self._redactor.of(domain_id) if _is_id(domain_id) else self._redactor

        def clean(value: Any) -> Any:
            if isinstance(value, str):
                return "/".join(part if _is_id(part) else redact(part) for part in value.split("/"))
            if isinstance(value, Mapping):
                return {name: clean(item) for name, item in value.items()}
            return [clean(item) for item in value] if isinstance(value, list) else value

        return replace(entry, target=clean(entry.target), details=clean(entry.details))

    def _entry(self, refusal: Refusal, count: int, request_id: str) -> Entry:
        target, place = self._redactor.json([refusal.target, refusal.place])
        details = {"code": refusal.code, "from": refusal.source, "requestId": request_id, "path": place}
        present = {name: value for name, value in details.items() if value}
        return Entry(refusal.actor, refusal.action, target, AuditOutcome.REFUSED, present, count)
