"""REST routes for a domain's history: list changes, compare them, and restore an earlier state.

This module defines the forms and answers. `operations.history` decides who sees which changes.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentic_rag.access.users import User
from agentic_rag.base.comparison import JsonChange
from agentic_rag.base.errors import CommandNotAllowed, NotFound, SecretLimit, ServerReserved, VersionConflict
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Absent
from agentic_rag.operations.history import History, HistoryChange
from agentic_rag.server.replies import Part, Redacted, answer, answer_from
from agentic_rag.server.routing import route
from agentic_rag.store.history import HistoryKind

HISTORY = "/api/domains/{domain}/history"
CHANGE = f"{HISTORY}/{{change}}"
LARGEST = 2**31 - 1


class HistoryQuery(Form):
    """Filters for changes: by kind, by server or file. Only changes with a number less than ``below`` are listed."""

    kind: HistoryKind | None = None
    subject: str | None = Field(None, max_length=2_000)
    below: int | None = Field(None, ge=1, le=LARGEST)
    limit: int = Field(50, ge=1, le=200)


class ChangeComparisonQuery(Form):
    """``against`` is the number of another change of the same item; by default the previous one."""

    against: int | None = Field(None, ge=1, le=LARGEST)


@answer()
class Change:
    """A change of ``settings``, a ``server``, a ``prompt`` component or a file of a ``role``.

    ``author`` is a user, `disk` for a file changed outside this server, `system`, or empty if unknown. ``gone``: the
    change removed the item. ``redacted``: the text contained a secret, which is not stored.
    """

    n: int
    kind: HistoryKind
    subject: str
    author: str
    at: str
    gone: bool
    size: int
    redacted: bool


@answer(kw_only=True)
class ComparedChange(Change):
    """A change with the content after it, compared with the change number ``before``.

    ``changes`` are the differences of settings and servers; ``lines`` is a unified diff of texts.
    """

    content: Any
    before: int | None
    changes: Sequence[JsonChange]
    lines: Absent[str] = None


class HistoryRoutes:
    """The history of a domain. Admins see everything, authors see prompt components and roles."""

    def __init__(self, history: History) -> None:
        self._history = history

    @route("GET", HISTORY, allow="author")
    async def list_changes(self, user: User, domain: str, query: HistoryQuery) -> Redacted[Part[Change]]:
        """List changes, newest first."""
        changes = await self._history.page(
            user, domain, query.limit + 1, kind=query.kind, subject=query.subject, below=query.below
        )
        lines = [answer_from(Change, change) for change in changes[: query.limit]]
        return Redacted(domain, Part(lines, len(changes) > query.limit))

    @route("GET", CHANGE, allow="author")
    async def get(self, user: User, domain: str, change: str, query: ChangeComparisonQuery) -> Redacted[ComparedChange]:
        """Show a change compared with the previous one, or with another change of the same item."""
        return Redacted(domain, _show(await self._history.get(user, domain, _number(change), query.against)))

    @route(
        "POST",
        f"{CHANGE}/restore",
        allow="author",
        errors=[VersionConflict, ServerReserved, CommandNotAllowed, SecretLimit],
    )
    async def restore(self, user: User, domain: str, change: str) -> None:
        """Restore an item to its state after a change. This is checked and recorded like any other change."""
        await self._history.restore(user, domain, _number(change))


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise NotFound("change", text)
    return int(text)


def _show(change: HistoryChange) -> ComparedChange:
    return answer_from(
        ComparedChange,
        change.record,
        gone=change.record.content is None,
        content=change.content,
        before=change.before,
        changes=change.changes,
        lines=change.lines or None,
    )
