"""Cost and token reports of model calls.

Users see their own usage, admins that of their domains, operators all. This module applies the operator's prices and
writes the CSV table.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from sqlalchemy import Connection

from agentic_rag.access.users import User
from agentic_rag.base.events import Usage
from agentic_rag.base.ids import TurnId
from agentic_rag.base.json_form import Absent
from agentic_rag.models.prices import Prices
from agentic_rag.operations.budgets import plain
from agentic_rag.store import sessions, turns, usage
from agentic_rag.store.database import Database
from agentic_rag.store.usage import UsageGroup, UsageTotal

COLUMNS: Final = ("calls", "input", "cacheRead", "cacheWrite", "output", "cost", "currency", "unpricedCalls")
"""Columns of the CSV table after those of its groups."""

_NAMES: Final = {
    UsageGroup.DOMAIN: "domainId",
    UsageGroup.USER: "userId",
    UsageGroup.KEY: "keyId",
    UsageGroup.MODEL: "model",
    UsageGroup.AGENT: "agent",
    UsageGroup.DAY: "day",
    UsageGroup.CACHE_MISS: "cacheMiss",
}
_FORMULA: Final = tuple("=+-@\t\r\n＝＋－＠")
"""First characters that make a spreadsheet treat a cell as a formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """The cost of a turn with its delegates. ``unpriced_calls`` counts the calls of models without a price."""

    amount: str
    currency: str
    unpriced_calls: Absent[int] = None


class UsageReports:
    """Sums over the usage of a database."""

    def __init__(self, database: Database, prices: Prices) -> None:
        self._db = database
        self._prices = prices

    async def totals(self, user: User, groups: Sequence[UsageGroup], since: str, until: str) -> list[UsageTotal]:
        """Return the sums of each group, largest first.

        ``since`` (inclusive) and ``until`` (exclusive) are times; empty means no limit.
        """
        domains = None if user.operator else sorted(user.administered)
        wanted_groups = list(dict.fromkeys(groups))
        # Prices depend on the model and the day, so costs are summed by both, even if other groups are requested.
        finest = (
            list(dict.fromkeys([*wanted_groups, UsageGroup.MODEL, UsageGroup.DAY]))
            if self._prices.currency
            else wanted_groups
        )
        totals = await self._db.read(
            lambda conn: usage.totals(conn, finest, since, until, user_id=user.id, domain_ids=domains)
        )
        if self._prices.currency:
            totals = _join([_price(total, self._prices) for total in totals], wanted_groups)
        return sorted(totals, key=lambda total: -(total.input + total.cache_read + total.cache_write + total.output))

    async def costs(self, turn_ids: Sequence[TurnId]) -> dict[TurnId, TurnCost]:
        """Return the cost of each turn that called a model; empty if the operator set no prices."""
        if not self._prices.currency or not turn_ids:
            return {}
        totals = await self._db.read(lambda conn: _totals_of(conn, turn_ids))
        return {
            turn_id: TurnCost(
                amount=total.cost or "0", currency=self._prices.currency, unpriced_calls=total.unpriced_calls
            )
            for turn_id, parts in totals.items()
            for total in [_sum([_price(part, self._prices) for part in parts], {})]
        }


def _totals_of(conn: Connection, turn_ids: Sequence[TurnId]) -> dict[TurnId, list[UsageTotal]]:
    """Return the usage of turns and their delegates, by the turn that a person began."""
    root = {turn_id: turn_id for turn_id in turn_ids}
    asking: Sequence[TurnId] = turn_ids
    # Delegates may delegate, too: one query for each level.
    while sessions_of := sessions.delegated_by(conn, asking):
        children = turns.ids_in(conn, list(sessions_of))
        root |= {child: root[sessions_of[session]] for child, session in children.items()}
        asking = list(children)
    by_turn: defaultdict[TurnId, list[UsageTotal]] = defaultdict(list)
    for turn_id, total in usage.totals_of_turns(conn, list(root)):
        by_turn[root[turn_id]].append(total)
    return by_turn


def table_of(groups: Sequence[UsageGroup], totals: Sequence[UsageTotal]) -> str:
    """Return totals as CSV (RFC 4180) with a header row.

    Cells are escaped so that no spreadsheet runs them as formulas.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*(_NAMES[group] for group in groups), *COLUMNS])
    for total in totals:
        own = [getattr(total, _attribute(group)) for group in groups]
        spent = [total.calls, total.input, total.cache_read, total.cache_write, total.output]
        money = [total.cost or "", total.currency or "", total.unpriced_calls or (0 if total.currency else "")]
        writer.writerow([*map(_cell, own), *spent, *money])
    return text.getvalue()


def _cell(text: str | None) -> str:
    value = text or ""
    return f"'{value}" if value.startswith(_FORMULA) else value


def _attribute(group: UsageGroup) -> str:
    if group is UsageGroup.CACHE_MISS:
        return "cache_miss"
    return group.value if group in (UsageGroup.MODEL, UsageGroup.AGENT, UsageGroup.DAY) else f"{group.value}_id"


def _price(total: UsageTotal, prices: Prices) -> UsageTotal:
    price = prices.find(total.model or "", total.day or "")
    if price is None:
        return replace(total, cost="0", currency=prices.currency, unpriced_calls=total.calls)
    spent = Usage(total.input, total.cache_read, total.cache_write, total.output)
    return replace(total, cost=str(price.cost(spent)), currency=prices.currency, unpriced_calls=0)


def _join(parts: Sequence[UsageTotal], groups: Sequence[UsageGroup]) -> list[UsageTotal]:
    """Merge the parts that have the same groups."""
    by_groups: dict[tuple[str, ...], list[UsageTotal]] = {}
    names = [_attribute(group) for group in groups]
    for part in parts:
        by_groups.setdefault(tuple(getattr(part, name) for name in names), []).append(part)
    return [_sum(alike, dict(zip(names, place, strict=True))) for place, alike in by_groups.items()]


def _sum(parts: Sequence[UsageTotal], place: dict[str, str]) -> UsageTotal:
    return UsageTotal(
        **place,
        calls=sum(part.calls for part in parts),
        input=sum(part.input for part in parts),
        cache_read=sum(part.cache_read for part in parts),
        cache_write=sum(part.cache_write for part in parts),
        output=sum(part.output for part in parts),
        dropped_citations=sum(part.dropped_citations for part in parts),
        unverified_citations=sum(part.unverified_citations for part in parts),
        cost=plain(sum((Decimal(part.cost or 0) for part in parts), Decimal(0))),
        currency=parts[0].currency,
        unpriced_calls=sum(part.unpriced_calls or 0 for part in parts) or None,
        cache_missed=sum(part.cache_missed or 0 for part in parts) or None,
    )
