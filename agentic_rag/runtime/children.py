"""Delegates: the agents that do what a turn's ``delegate`` calls ask for.

Owns which child may begin, its session and turn, how many work at once, and the text its parent reads. A child's turn
has no life of its own: it ends with its parent, and after a stop it goes on only when the parent's call runs again,
on the session found by that call's id. Knows no MCP.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
from sqlalchemy import Connection

from agentic_rag.errors import AgenticRagError
from agentic_rag.messages import clean_text, plain_text, user_message
from agentic_rag.runtime.accepting import Left, load_session, read_left, store_user_message
from agentic_rag.runtime.agent import CHILDREN_SECONDS, Agent, World
from agentic_rag.runtime.core.calls import DELEGATE_TOOL, PlannedCall
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.image import Image
from agentic_rag.runtime.core.session import Session
from agentic_rag.runtime.core.turn import Turn
from agentic_rag.runtime.log.childlog import ChildLog
from agentic_rag.runtime.running import Running, definition_of
from agentic_rag.runtime.storing import LEASE_SECONDS, hold
from agentic_rag.store import images, sessions, turns
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.turns import TurnRecord

MAX_DEPTH = 2
"""A delegate of a delegate is the last."""
MAX_AT_ONCE = 4
"""Delegates of one depth that work at the same time for one turn of a user; others wait."""
MIN_STEPS = 2
"""A delegate has half of its parent's steps, and at least so many."""


class Children:
    """The delegates of all turns that run. ``stopping``: the process ends, and what runs is to be resumed."""

    def __init__(self, world: World, running: Running) -> None:
        self.stopping = False
        self._world = replace(world, on_end=lambda conn, turn, final: None, opening=())
        self._database = world.database
        self._running = running
        self._agents: WeakValueDictionary[str, Agent] = WeakValueDictionary()
        self._slots: WeakKeyDictionary[Agent, dict[int, anyio.Semaphore]] = WeakKeyDictionary()

    async def run(self, turn_id: str, call_id: str, role: str, task: str) -> tuple[str, bool]:
        """Do a task of a running turn as another role; return the answer, or why there is none, and whether it failed.

        The same call again goes on with the same child, and one that has ended answers at once. Cancelling interrupts
        the child and waits for its end.
        """
        parent = self._agent(turn_id)
        if parent is None or parent.depth >= MAX_DEPTH:
            return "Nothing can be delegated here. Do the task yourself.", True
        if role not in parent.definition.bound.get("sub_roles", ()):
            return f"There is no role {role!r} to delegate to.", True
        try:
            async with self._slot(parent):
                row = await self._work(parent, call_id, role, clean_text(task))
                return await self._database.read(lambda conn: _answer(conn, row))
        except AgenticRagError as exc:
            return f"The role {role!r} could not begin: {exc}", True

    def _agent(self, turn_id: str) -> Agent | None:
        """Return the agent that runs a turn, whether a user's or a delegate's."""
        of_users = (live.agent for live in self._running.sessions if live.turn_id == turn_id)
        return self._agents.get(turn_id) or next(of_users, None)

    def _slot(self, parent: Agent) -> anyio.Semaphore:
        """Return what bounds the delegates at one depth; one for each, or those that wait for theirs would block."""
        root = parent
        while root.parent is not None:
            root = root.parent
        return self._slots.setdefault(root, {}).setdefault(parent.depth, anyio.Semaphore(MAX_AT_ONCE))

    async def _work(self, parent: Agent, call_id: str, role: str, task: str) -> TurnRecord:
        """Begin a child or go on with it, wait for its end and return its turn."""
        with anyio.CancelScope(shield=True):  # once stored, it must also run
            known = await self._database.read(lambda conn: _known(conn, parent.row.id, call_id))
            if known is not None and known.status in turns.FINISHED:
                return known
            if known is None:
                child = await self._begin(parent, call_id, role, task)
            else:
                child = self._agents.get(known.id) or await self._resume(parent, role, known)
        try:
            await child.ended.wait()
        except anyio.get_cancelled_exc_class():
            if not self.stopping:
                child.interrupt()
                with anyio.move_on_after(CHILDREN_SECONDS, shield=True):
                    await child.ended.wait()
            raise
        return child.row

    async def _begin(self, parent: Agent, call_id: str, role: str, task: str) -> Agent:
        """Make the child's session and turn, and start it."""
        log = ChildLog(parent.log, role, self._database)
        definition = child_definition(parent.definition, role, parent.depth + 1)
        image = Image.of(definition)
        session = Session(new_id("sess"), {**parent.session.labels, "agent": log.path})
        row = TurnRecord(
            id=new_id("turn"),
            session_id=session.id,
            conversation_id=parent.row.conversation_id,
            content=task,
            user_message_id=new_id("msg"),
            message_id=new_id("msg"),
            image_id=image.id,
            owner=self._running.owner,
            fence=1,
            lease_until=later(LEASE_SECONDS),
            started_at=now(),
        )
        entries = session.planned(row.id, 0, row.user_message_id, [user_message(task)])

        def store(conn: Connection) -> None:
            hold(conn, parent.row)
            images.put(conn, image.id, definition.domain_id, image.content)
            sessions.create(
                conn,
                session.id,
                session.labels,
                created_at=row.started_at,
                parent_turn_id=parent.row.id,
                tool_call_id=call_id,
            )
            turns.accept(conn, row)
            store_user_message(conn, row, entries)

        await self._database.write(store)
        session.extend(entries)
        return self._start(Agent(self._world, session, row, definition, log, parent))

    async def _resume(self, parent: Agent, role: str, row: TurnRecord) -> Agent:
        """Go on with a child that a stopped server left; its parent counts the resumes."""

        def take(conn: Connection) -> tuple[Session, Left, int]:
            hold(conn, parent.row)
            fence = turns.take_lease(conn, row.id, self._running.owner, later(LEASE_SECONDS))
            return load_session(conn, row.session_id), read_left(conn, row), fence

        session, left, fence = await self._database.write(take)
        row = replace(row, owner=self._running.owner, fence=fence)
        definition = definition_of(left) or child_definition(parent.definition, role, parent.depth + 1)
        log = ChildLog(parent.log, role, self._database)
        own = session.of_turn(row.id)[1:]
        child = Agent(self._world, session, row, definition, log, parent)
        return self._start(child, lambda turn: turn.restore(own, left.finished, left.spent))

    def _start(self, child: Agent, resume: Callable[[Turn], Sequence[PlannedCall]] | None = None) -> Agent:
        self._agents[child.row.id] = child
        self._running.tasks.start_soon(child.run, resume)
        return child


def child_definition(parent: Definition, role: str, depth: int) -> Definition:
    """Return what a delegate runs on: its parent's definition in another role, with half of the steps."""
    servers = tuple(entry for entry in parent.servers if depth < MAX_DEPTH or entry.name != DELEGATE_TOOL)
    limits = replace(parent.limits, max_steps=max(MIN_STEPS, parent.limits.max_steps // 2))
    return replace(parent, persona=replace(parent.persona, role=role), servers=servers, limits=limits)


def _known(conn: Connection, parent_turn_id: str, call_id: str) -> TurnRecord | None:
    """Return the turn that a call has made before, None when it made none."""
    session = sessions.by_tool_call(conn, parent_turn_id, call_id)
    return None if session is None else turns.of_session(conn, session.id)[0]


def _answer(conn: Connection, row: TurnRecord) -> tuple[str, bool]:
    """Return what the parent reads of a child's turn, and whether that is a failure."""
    turn = turns.get(conn, row.id)
    if turn is None or turn.status not in turns.FINISHED:
        return "The delegate's work could not be stored.", True
    messages = sessions.transcript(conn, row.session_id)
    texts = [text for each in messages if each.role == "assistant" if (text := plain_text(each.content).strip())]
    if turn.status == "done" and texts:
        cut = f"\n[stopped: {turn.end_reason}]" if turn.end_reason in ("max_steps", "max_tokens", "refusal") else ""
        return texts[-1] + cut, False
    if turn.status == "done":
        return f"The delegate ended without an answer ({turn.end_reason}).", True
    reason = turn.error["message"] if turn.error else "it was interrupted"
    so_far = f"\nIts last words were: {texts[-1]}" if texts else ""
    return f"The delegate did not finish: {reason}{so_far}", True
