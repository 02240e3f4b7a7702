"""REST routes for budgets.

This module defines the forms and answers. ``operations.budgets`` decides who sees a budget, and which ones are allowed.
"""

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from agentic_rag.access.users import User
from agentic_rag.base.errors import NotFound
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Absent
from agentic_rag.operations.budgets import Budgets, BudgetState, BudgetWish, plain
from agentic_rag.server.replies import Items, answer
from agentic_rag.server.routing import route
from agentic_rag.store.budgets import EVERY, Period, Unit
from agentic_rag.store.usage import Scope

Amount = Annotated[Decimal, Field(ge=0, le=10**15, allow_inf_nan=False, max_digits=30)]


class WantedBudget(Form):
    """A budget to set. ``subject`` is an id, or ``*`` for each one in the scope. Amounts given as text are exact."""

    scope: Scope
    subject: str = Field(max_length=200)
    unit: Unit
    period: Period
    soft: Amount | None = None
    hard: Amount | None = None


@answer()
class Budget:
    """A budget. Amounts are exact decimal text, of tokens or of money (``currency``). Periods are in UTC.

    ``spent`` and ``reserved`` (by running calls) are absent if the budget applies to each one in its scope separately.
    ``unpricedModels`` are models without a price, whose calls are not counted.
    """

    id: str
    scope: Scope
    subject: str
    unit: Unit
    period: Period
    each: bool
    soft: Absent[str] = None
    hard: Absent[str] = None
    currency: Absent[str] = None
    spent: Absent[str] = None
    reserved: Absent[str] = None
    since: Absent[str] = None
    renews_at: Absent[str] = None
    unpriced_models: Absent[list[str]] = None


class BudgetRoutes:
    """Limits on spending for model calls."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    @route("GET", "/api/budgets", allow="user")
    async def list_budgets(self, user: User) -> Items[Budget]:
        """List budgets and how much of them is used: own, of administered domains, or all."""
        return Items([self._answer(state) for state in await self._budgets.list_for(user)])

    @route("PUT", "/api/budgets")
    async def put(self, body: WantedBudget) -> Budget:
        """Set a budget, replacing the one for the same scope, subject, unit and period."""
        wish = BudgetWish(body.scope, body.subject, body.unit, body.period, body.soft, body.hard)
        return self._answer(await self._budgets.put(wish))

    @route("DELETE", "/api/budgets/{budget}", errors=[NotFound])
    async def remove(self, budget: str) -> None:
        """Remove a budget."""
        await self._budgets.remove(budget)

    def _answer(self, state: BudgetState) -> Budget:
        budget, standing = state.budget, state.standing
        return Budget(
            budget.id,
            budget.scope,
            state.subject,
            budget.unit,
            budget.period,
            each=budget.subject == EVERY,
            soft=budget.soft,
            hard=budget.hard,
            currency=self._budgets.currency if budget.unit is Unit.MONEY else None,
            spent=plain(standing.spent) if standing else None,
            reserved=plain(standing.reserved) if standing else None,
            since=standing.since if standing else None,
            renews_at=standing.renews_at if standing else None,
            unpriced_models=(list(standing.unpriced) or None) if standing else None,
        )
