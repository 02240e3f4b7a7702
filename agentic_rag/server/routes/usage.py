"""REST route for usage.

This module defines the form and the answer. ``operations.usage`` decides who sees which calls.
"""

from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator

from agentic_rag.access.users import User
from agentic_rag.base.forms import Form
from agentic_rag.operations.usage import UsageReports, table_of
from agentic_rag.server.replies import CsvTable, Items
from agentic_rag.server.routing import route
from agentic_rag.store.usage import UsageGroup, UsageTotal

MAX_SHOWN = 50
"""Characters of a wrong time that an error shows."""


def _normalise(text: str) -> str:
    """Return a day unchanged, and a time in the format of stored times, with which the database compares it as text."""
    try:
        if len(text) == len("2026-01-31"):
            return date.fromisoformat(text).isoformat()
        return datetime.fromisoformat(text).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    except ValueError:
        shown = text[:MAX_SHOWN]
        problem = f"a day (2026-01-31) or a UTC time (2026-01-31T08:00:00Z) is expected, not {shown!r}"
        raise ValueError(problem) from None


Moment = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d(T[\d:.]{1,12}Z)?$"), AfterValidator(_normalise)]
"""A day, or a time in UTC."""


class TimeRangeQuery(Form):
    """What happened at or after ``from`` and before ``to``, both a day or a time."""

    since: Moment | None = Field(None, alias="from")
    until: Moment | None = Field(None, alias="to")

    @field_validator("until")
    @classmethod
    def _check_order(cls, until: str | None, fields: ValidationInfo) -> str | None:
        since = fields.data.get("since")
        if since and until and until < since:
            raise ValueError(f"{until} is before 'from', which is {since}")
        return until


class UsageQuery(TimeRangeQuery):
    """Calls started at or after ``from`` and before ``to``, both a day or a time.

    ``groupBy`` names the columns to sum by.
    """

    group_by: str = ""
    format: Literal["json", "csv"] = "json"

    @field_validator("group_by")
    @classmethod
    def _check_groups(cls, text: str) -> str:
        unknown = [part for part in filter(None, text.split(",")) if part not in list(UsageGroup)]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(UsageGroup)}")
        return text

    @property
    def groups(self) -> list[UsageGroup]:
        return [UsageGroup(part) for part in dict.fromkeys(filter(None, self.group_by.split(",")))]


class UsageRoutes:
    """Cost of model calls."""

    def __init__(self, usage: UsageReports) -> None:
        self._usage = usage

    @route("GET", "/api/usage", allow="user")
    async def totals(self, user: User, query: UsageQuery) -> Items[UsageTotal] | CsvTable:
        """Show the tokens of model calls: the caller's own, those of administered domains, or all.

        Calls of deleted conversations are included.

        If the operator has set prices, the answer includes costs as exact decimal text. ``format=csv`` is for
        spreadsheets.
        """
        totals = await self._usage.totals(user, query.groups, query.since or "", query.until or "")
        return CsvTable("usage", table_of(query.groups, totals)) if query.format == "csv" else Items(totals)
