"""Errors that refuse a model call because of its cost.

Owns the declarations; part of the tree in ``errors``.
"""

from dataclasses import KW_ONLY

from agentic_rag.base.errors import TurnError


class BudgetExceeded(
    TurnError, code="BUDGET_EXCEEDED", status=429, facts=("scope", "unit", "period", "renews_at", "retry_after")
):
    """A budget is used up, or running calls have reserved the rest of it (``retryable``).

    ``whose``: the budget's owner in words; ``renews_at``: when the budget's next period begins; ``retry_after``:
    seconds after which a retry may succeed.
    """

    whose: str
    scope: str
    unit: str
    period: str
    renews_at: str
    retry_after: float
    _: KW_ONLY
    retryable: bool = False

    def __str__(self) -> str:
        if self.retryable:
            return f"What is left of this {self.period}'s budget of {self.whose} is reserved by answers under way."
        return f"The budget of {self.whose} for this {self.period} is used up. It renews at {self.renews_at}."


class BudgetUnpriced(TurnError, code="BUDGET_UNPRICED", status=409, facts=("model",)):
    """A budget in money cannot be enforced because the model has no price."""

    model: str
    text = (
        "There is a budget in money, and the model {self.model!r} has no price. Whoever runs this server adds it to "
        "the file of AGENTIC_RAG_PRICES."
    )
