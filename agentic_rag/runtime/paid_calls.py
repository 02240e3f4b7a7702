"""Single model calls outside of turns: titles, context lines, transcriptions of pages.

Owns the order of reservation, call, usage and release. Callers own the prompt, the check of the answer and retries. A
call has no tools, so that the text of a document or of a user cannot have an effect.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import GenerationTimeout
from agentic_rag.base.telemetry import working_for
from agentic_rag.models.base import Model, ModelRequest, PartialAnswer
from agentic_rag.models.calls import ModelCalls
from agentic_rag.runtime.spending import PATIENCE_SECONDS, Spending
from agentic_rag.store import usage
from agentic_rag.store.budgets import Payer
from agentic_rag.store.database import Database
from agentic_rag.store.usage import UsageLabels


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """The text of an answer, and why the model stopped."""

    text: str
    stop_reason: str


class PaidCalls:
    """Calls a model and stores the cost of each call."""

    def __init__(self, database: Database, model: Model, calls: ModelCalls, spending: Spending) -> None:
        self._db = database
        self._model = model
        self._calls = calls
        self._spending = spending

    async def ask(
        self,
        request: ModelRequest,
        labels: UsageLabels,
        action: str,
        seconds: float,
        keep: Callable[[Connection, PaidAnswer], None] | None = None,
    ) -> PaidAnswer:
        """Return a model's answer. The cost is stored in any case.

        ``labels`` name the call in the usage, and the budgets that pay it. ``action``: the action that a timeout error
        names. ``keep`` stores a complete answer in the transaction that stores the cost.

        Raises:
            ModelError, GenerationTimeout: there is no answer.
            BudgetExceeded, BudgetUnpriced: the call may not begin.
            StorageError: cost or answer cannot be stored.
        """
        account = self._spending.account(Payer(labels.domain_id, labels.user_id, labels.key_id))
        received = PartialAnswer(request.model)
        answer: PaidAnswer | None = None
        try:
            await account.reserve(request, seconds + PATIENCE_SECONDS)
        except BaseException:
            await account.aclose()
            raise
        try:
            with self._calls.watch(request.model), working_for(labels.domain_id):
                with anyio.move_on_after(seconds) as waited:
                    async with self._model.stream(request) as events:
                        async for event in events:
                            received.add(event)
                if waited.cancelled_caught:
                    raise GenerationTimeout(action, seconds)
            answer = PaidAnswer(received.text, received.stop_reason)
        finally:
            cost = usage.row_of(labels, received.model, received.usage)

            def store(conn: Connection) -> None:
                if keep is not None and answer is not None:
                    keep(conn, answer)
                usage.put(conn, [cost])
                account.release(conn)

            try:
                with anyio.CancelScope(shield=True):  # a service bills a cancelled call, too
                    await self._db.write(store)
                account.settle()
            finally:
                await account.aclose()
        return answer
