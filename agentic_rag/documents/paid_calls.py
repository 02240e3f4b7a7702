"""Single model calls for documents, paid from the budget of the document's domain.

Owns the order of reservation, call, usage and release. Callers own the prompt, the check of the answer and retries. A
call has no tools, so that the text of a document cannot have an effect.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import GenerationTimeout
from agentic_rag.base.events import Usage
from agentic_rag.base.ids import SessionId
from agentic_rag.base.telemetry import working_for
from agentic_rag.models.base import Model, ModelRequest, PartialAnswer
from agentic_rag.models.calls import ModelCalls
from agentic_rag.runtime.spending import PATIENCE_SECONDS, Spending
from agentic_rag.store import usage
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.usage import UsageRecord


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of an answer, and why the model stopped."""

    text: str
    stop_reason: str


class PaidCalls:
    """Calls a model for documents and stores the cost of each call."""

    def __init__(self, database: Database, model: Model, calls: ModelCalls, spending: Spending) -> None:
        self._db = database
        self._model = model
        self._calls = calls
        self._spending = spending

    async def ask(
        self,
        request: ModelRequest,
        domain_id: str,
        agent: str,
        action: str,
        seconds: float,
        keep: Callable[[Connection, Answer], None] | None = None,
    ) -> Answer:
        """Return a model's answer. The cost is stored in any case.

        ``agent``: the name of such calls in the usage. ``action``: the action that a timeout error names. ``keep``
        stores a complete answer in the transaction that stores the cost.

        Raises:
            ModelError, GenerationTimeout: there is no answer.
            BudgetExceeded, BudgetUnpriced: the call may not begin.
            StorageError: cost or answer cannot be stored.
        """
        account = self._spending.account(Payer(domain_id, ""))
        received = PartialAnswer(request.model)
        answer: Answer | None = None
        try:
            await account.reserve(request, seconds + PATIENCE_SECONDS)
        except BaseException:
            await account.aclose()
            raise
        try:
            with self._calls.watch(request.model), working_for(domain_id):
                with anyio.move_on_after(seconds) as waited:
                    async with self._model.stream(request) as events:
                        async for event in events:
                            received.add(event)
                if waited.cancelled_caught:
                    raise GenerationTimeout(action, seconds)
            answer = Answer(received.text, received.stop_reason)
        finally:
            spent = usage_row(domain_id, agent, received.model, received.usage)

            def store(conn: Connection) -> None:
                if keep is not None and answer is not None:
                    keep(conn, answer)
                usage.put(conn, [spent])
                account.release(conn)

            try:
                with anyio.CancelScope(shield=True):
                    await self._db.write(store)
                account.settle()
            finally:
                await account.aclose()
        return answer


def usage_row(domain_id: str, agent: str, model: str, spent: Usage) -> UsageRecord:
    """Return the usage of a call that belongs to no conversation."""
    return UsageRecord(
        id=new_id("usage"),
        session_id=SessionId(""),
        domain_id=domain_id,
        agent=agent,
        model=model,
        input=spent.input,
        cache_read=spent.cache_read,
        cache_write=spent.cache_write,
        output=spent.output,
        created_at=now(),
    )
