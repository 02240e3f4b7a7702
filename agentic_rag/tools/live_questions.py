"""Questions that a server of the older protocol era asks people on the open connection, while one of its calls runs.

Owns the assignment of questions to calls, asking the person in the call's own task, stopping the call's clock
meanwhile, and the withdrawal of questions by the server. One connection serves the calls of many turns: a question that
cannot be assigned to one of them is declined. Knows no wait and no transport.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import ClientRequestContext

from agentic_rag.base.events import WaitAction
from agentic_rag.tools.base import Ask, InputGiven, InputNeeded, Withdrawal
from agentic_rag.tools.elicitation import Unfit, question_of, result_of
from agentic_rag.tools.exchange import Relay

QUESTIONS = 20
"""Maximum number of questions per call; further ones are declined."""

REMEMBERED = 256
"""Maximum number of questions per connection that are remembered, so that their server can end them."""

_NOTES = 5

UNASSIGNED = (
    "{server} asked the user a question while several of its calls ran, so the question was declined unseen. "
    "Repeat the call while no other call of {server} runs."
)


class _Holder:
    """One question that a person is being asked."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.given = InputGiven(WaitAction.CANCEL)

    def take(self, answer: InputGiven) -> None:
        self.given = answer


class CallInFlight:
    """One call and its way to ask a person. ``tasks`` ends with the call, so that no question outlives it."""

    def __init__(self, ask: Ask | None, relay: Relay, tasks: TaskGroup) -> None:
        self._ask = ask
        self._relay = relay
        self._tasks = tasks
        self._question_count = 0
        self._open: set[Withdrawal] = set()
        self.notes: list[str] = []
        """Texts for the model about questions that no person was shown."""

    async def ask(self, server: str, params: types.ElicitRequestParams, withdrawal: Withdrawal) -> types.ElicitResult:
        """Ask the call's person, and return the answer as the server takes it."""
        question = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
        needed = question_of(server, question)
        self._question_count += 1
        if self._question_count > QUESTIONS:
            needed = Unfit(f"one call may ask {QUESTIONS} times")
        if isinstance(needed, Unfit):
            self.note(needed.text)
            return types.ElicitResult(action="decline")
        if self._ask is None:
            return types.ElicitResult(action="decline")
        answer = await self._answer(self._ask, replace(needed, withdrawal=withdrawal), withdrawal)
        return types.ElicitResult.model_validate(result_of(answer, question))

    async def _answer(self, ask: Ask, needed: InputNeeded, withdrawal: Withdrawal) -> InputGiven:
        holder = _Holder()

        async def run() -> None:
            self._relay.pause()
            try:
                holder.take(await ask(needed))
            finally:
                self._relay.go_on()
                holder.over.set()

        self._open.add(withdrawal)
        self._tasks.start_soon(run)
        try:
            await holder.over.wait()
        finally:  # also when the server cancels its request
            withdrawal.end(WaitAction.CANCEL)
            self._open.discard(withdrawal)
        return holder.given

    def note(self, text: str) -> None:
        """Add a text for the model in front of the call's result."""
        if text not in self.notes and len(self.notes) < _NOTES:
            self.notes.append(text)

    def close(self) -> None:
        """Withdraw the open questions: the call has ended."""
        for withdrawal in self._open:
            withdrawal.end(WaitAction.CANCEL)


_current: ContextVar[CallInFlight | None] = ContextVar("call_in_flight", default=None)
"""The call in whose context a message is sent. Over streamable HTTP, the server's requests carry that context."""


class LiveQuestions:
    """The questions that one server asks while it runs calls. ``server`` is its name for people."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls: set[CallInFlight] = set()
        self._withdrawals: dict[str, Withdrawal] = {}

    @contextmanager
    def during(self, call: CallInFlight) -> Iterator[None]:
        """Register a call: while this context is open, questions of the server may belong to it."""
        self._calls.add(call)
        token = _current.set(call)
        try:
            yield
        finally:
            _current.reset(token)
            self._calls.discard(call)
            call.close()

    async def elicit(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer ``elicitation/create``, as the callback of a session."""
        call = self._call()
        if call is None:
            for candidate in self._calls:
                candidate.note(UNASSIGNED.format(server=self._server))
            return types.ElicitResult(action="decline")
        ident = params.elicitation_id if isinstance(params, types.ElicitRequestURLParams) else None
        return await call.ask(self._server, params, self.withdrawal(ident or ""))

    def _call(self) -> CallInFlight | None:
        """Return the call that a question belongs to, or None if that is ambiguous."""
        current = _current.get()
        if current in self._calls:
            return current
        return next(iter(self._calls)) if len(self._calls) == 1 else None

    def withdrawal(self, ident: str) -> Withdrawal:
        """Return the `Withdrawal` of a question with this id. An empty id means no way to withdraw it."""
        withdrawal = Withdrawal()
        if ident:
            while len(self._withdrawals) >= REMEMBERED:
                self._withdrawals.pop(next(iter(self._withdrawals)))
            self._withdrawals[ident] = withdrawal
        return withdrawal

    def complete(self, ident: str) -> None:
        """End the question whose person finished the task at an address."""
        withdrawal = self._withdrawals.pop(ident, None)
        if withdrawal is not None:
            withdrawal.end(WaitAction.ACCEPT)
