"""What a server of the older era asks people for while a call of its runs, on the open connection.

Owns to which call a question belongs, that its person is asked in that call's own task, that the call's clock stands
still meanwhile, and how the server ends a question itself. One connection serves the calls of many turns: a question
that cannot be told to be of one of them is declined. Knows no wait and no transport.
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
"""Of one call; a server that asks more is declined."""

REMEMBERED = 256
"""Of so many questions of a connection it is known how their server may end them."""

_NOTES = 5


class _Holder:
    """One question that is being asked."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.given = InputGiven(WaitAction.CANCEL)

    def take(self, given: InputGiven) -> None:
        self.given = given


class CallInFlight:
    """One call and whom it may ask. ``tasks``: of the call, so that nothing is asked on after its end."""

    def __init__(self, ask: Ask | None, relay: Relay, tasks: TaskGroup) -> None:
        self._ask = ask
        self._relay = relay
        self._tasks = tasks
        self._asked = 0
        self._open: set[Withdrawal] = set()
        self.notes: list[str] = []
        """What the model is told of questions that no person was shown."""

    async def ask(self, server: str, params: types.ElicitRequestParams, withdrawal: Withdrawal) -> types.ElicitResult:
        """Ask the call's person, and return the answer as the server takes it."""
        shown = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
        needed = question_of(server, shown)
        self._asked += 1
        if self._asked > QUESTIONS:
            needed = Unfit(f"one call may ask {QUESTIONS} times")
        if isinstance(needed, Unfit):
            self._note(needed.text)
            return types.ElicitResult(action="decline")
        if self._ask is None:
            return types.ElicitResult(action="decline")
        given = await self._answer(self._ask, replace(needed, withdrawal=withdrawal), withdrawal)
        return types.ElicitResult.model_validate(result_of(given, shown))

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
        finally:  # also when the server takes its request back
            withdrawal.tell(WaitAction.CANCEL)
            self._open.discard(withdrawal)
        return holder.given

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < _NOTES:
            self.notes.append(text)

    def close(self) -> None:
        """Take back what is still asked: the call has ended."""
        for withdrawal in self._open:
            withdrawal.tell(WaitAction.CANCEL)


_current: ContextVar[CallInFlight | None] = ContextVar("call_in_flight", default=None)
"""The call in whose context a message is sent. Over streamable HTTP what comes back to it carries that context."""


class LiveQuestions:
    """The questions of one server to those whose calls it runs. ``server``: as people know it."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls: set[CallInFlight] = set()
        self._withdrawals: dict[str, Withdrawal] = {}

    @contextmanager
    def during(self, call: CallInFlight) -> Iterator[None]:
        """While this is open, what the server asks may be this call's."""
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
            return types.ElicitResult(action="decline")
        ident = params.elicitation_id if isinstance(params, types.ElicitRequestURLParams) else None
        return await call.ask(self._server, params, self.withdrawal(ident or ""))

    def _call(self) -> CallInFlight | None:
        """Return the call that a question belongs to, None where that cannot be told."""
        found = _current.get()
        if found in self._calls:
            return found
        return next(iter(self._calls)) if len(self._calls) == 1 else None

    def withdrawal(self, ident: str) -> Withdrawal:
        """Return by which the server ends the question that it gave this id (empty: none)."""
        made = Withdrawal()
        if ident:
            while len(self._withdrawals) >= REMEMBERED:
                self._withdrawals.pop(next(iter(self._withdrawals)))
            self._withdrawals[ident] = made
        return made

    def complete(self, ident: str) -> None:
        """Take note that what a person was asked to do at an address is done."""
        found = self._withdrawals.pop(ident, None)
        if found is not None:
            found.tell(WaitAction.ACCEPT)
