"""The history of a domain: its changes, their previous values, and how to restore one.

This module decides which kinds of changes a user may see. A restore is validated and audited like any other change, and
appears in the history itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base.comparison import JsonChange, compare_json, compare_lines
from agentic_rag.base.errors import InvalidInput, NotFound
from agentic_rag.base.json_form import Json
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.file_history import FileHistory
from agentic_rag.domains.prompt_files import PromptFiles
from agentic_rag.roles.roles import Roles
from agentic_rag.store import history
from agentic_rag.store.database import Database
from agentic_rag.store.history import HistoryKind, HistoryLine, HistoryRecord

AUTHORS = (HistoryKind.PROMPT, HistoryKind.ROLE)
JSON_KINDS = (HistoryKind.SETTINGS, HistoryKind.SERVER, HistoryKind.CASE)


class RestorableCases(Protocol):
    """The evaluation cases of all domains."""

    async def put_back(self, domain_id: str, case_id: str, document: Json | None) -> None:
        """Store a case as its history has it; None deletes it.

        Raises:
            InvalidInput: the document is no case any more, or another case asks the same.
        """
        ...


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """One change.

    ``content`` is the JSON value or text after the change, None if the subject was deleted. ``before`` is the number of
    the change it is compared with, None if there is none or it was pruned. ``changes`` compares JSON values; ``lines``
    is a unified diff of texts.
    """

    record: HistoryRecord
    content: Any
    before: int | None
    changes: tuple[JsonChange, ...]
    lines: str


class History:
    """The history of all domains. Each method raises `NotFound` for an unknown domain."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        domains: Domains,
        prompts: PromptFiles,
        roles: Roles,
        files: FileHistory,
        cases: RestorableCases,
    ) -> None:
        self._db = database
        self._directory = directory
        self._domains = domains
        self._prompts = prompts
        self._roles = roles
        self._files = files
        self._cases = cases

    async def page(
        self,
        user: User,
        domain_id: str,
        limit: int,
        *,
        kind: HistoryKind | None = None,
        subject: str | None = None,
        below: int | None = None,
    ) -> Sequence[HistoryLine]:
        """Return changes of the kinds that the user may see, newest first, after recording changed files.

        Raises:
            WorkspaceUnavailable: the workspace does not answer.
        """
        await self._files.notice(domain_id)
        visible_kinds = _kinds(user, domain_id)
        kinds = (
            visible_kinds
            if kind is None
            else tuple(visible_kind for visible_kind in visible_kinds if visible_kind is kind)
        )
        return await self._db.read(
            lambda conn: history.page(conn, domain_id, limit, kinds=kinds, subject=subject, below=below)
        )

    async def get(self, user: User, domain_id: str, n: int, against: int | None = None) -> HistoryChange:
        """Return a change compared with the previous one, or with another change of the same subject.

        Raises:
            NotFound: there is no change with this number, or this user may not see it.
            InvalidInput: ``against`` is a change of another subject.
        """
        record = await self._find(user, domain_id, n)
        if against is None:
            before = await self._db.read(lambda conn: history.before(conn, record))
        else:
            before = await self._find(user, domain_id, against)
            if (before.kind, before.subject) != (record.kind, record.subject):
                raise InvalidInput("against", f"the change {against} is of {before.kind} {before.subject!r}.")
        if record.kind in JSON_KINDS:
            old, new = _json(before), _json(record)
            place = None if before is None else before.n
            return HistoryChange(record, new, place, tuple(compare_json(old or {}, new or {})), "")
        lines = compare_lines("" if before is None else before.content or "", record.content or "")
        return HistoryChange(record, record.content, None if before is None else before.n, (), lines)

    async def restore(self, user: User, domain_id: str, n: int) -> None:
        """Restore the state after a change, as a new change by the user.

        Raises:
            NotFound: there is no such change, or the prompt component to delete is already gone.
            InvalidInput, ServerReserved, CommandNotAllowed: the old state is not valid any more. Nothing was changed.
        """
        record = await self._find(user, domain_id, n)
        if record.redacted:
            problem = "a secret stood in it, which is not kept; make the change by hand."
            raise InvalidInput("n", problem)
        audit_entry = change("history.restore", f"{domain_id}/{n}", kind=record.kind.value, subject=record.subject)
        if record.kind is HistoryKind.SETTINGS:
            await self._restore_settings(domain_id, record)
        elif record.kind is HistoryKind.SERVER:
            servers = {"mcpServers": {record.subject: _json(record)}}
            await self._domains.update(domain_id, settings=servers, replace_maps=False)
        elif record.kind is HistoryKind.CASE:
            await self._cases.put_back(domain_id, record.subject, _json(record))
        elif record.kind is HistoryKind.ROLE:
            await self._roles.put_back(domain_id, record.subject, record.content)
        elif record.content is None:
            await self._prompts.delete(domain_id, record.subject)
        else:
            await self._prompts.write(domain_id, record.subject, record.content)
        # Last, because a refused restoration has changed nothing.
        await self._db.write(lambda conn: audit(conn, audit_entry), durable=True)

    async def _restore_settings(self, domain_id: str, record: HistoryRecord) -> None:
        then = _json(record) or {}
        now_set = (await self._directory.get(domain_id)).settings
        # Settings are merged, so those that were unset then have to be removed by name. Servers have their own history.
        unset = dict.fromkeys(now_set.keys() - then["settings"].keys() - {"mcpServers"})
        await self._domains.update(
            domain_id,
            name=then["name"],
            description=then["description"],
            settings={**unset, **then["settings"]},
            replace_maps=True,
        )

    async def _find(self, user: User, domain_id: str, n: int) -> HistoryRecord:
        await self._directory.get(domain_id)

        def read(conn: Connection) -> HistoryRecord | None:
            return history.get(conn, domain_id, n)

        record = await self._db.read(read)
        if record is None or record.kind not in _kinds(user, domain_id):
            raise NotFound("change", str(n), hidden=record is not None)
        return record


def _kinds(user: User, domain_id: str) -> tuple[HistoryKind, ...]:
    return tuple(HistoryKind) if user.administers(domain_id) else AUTHORS


def _json(record: HistoryRecord | None) -> Json | None:
    if record is None or record.content is None:
        return None
    document: Json = json.loads(record.content)
    return document
