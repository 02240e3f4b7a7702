"""Delegates: the agents that do the tasks of a turn's ``delegate`` calls.

Owns which delegate may begin, its session and turn, how many work concurrently, and the text for its parent. A
delegate's turn depends on its parent: it ends with the parent. After a stop it resumes only when the parent's call runs
again, on the session with that call's id. Knows no MCP: the ``delegate`` server is given a `Delegations` and calls it.
"""

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import Delegate
from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.base.messages import RETRIEVALS, Block, Message, clean_text, plain_text, reads_others, user_message
from agentic_rag.runtime.agent import CHILDREN_SECONDS, Agent
from agentic_rag.runtime.core.citations import evidence_of
from agentic_rag.runtime.core.definition import Definition, Image
from agentic_rag.runtime.core.results import RESULT_BUDGET
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.log.child_log import ChildLog
from agentic_rag.runtime.turn_persistence import InterruptedTurn, Resume, load_transcript, read_interrupted
from agentic_rag.store import images, sessions, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.turns import TurnRecord, TurnStatus
from agentic_rag.tools.base import RoleDraft
from agentic_rag.tools.system import DELEGATION

MAX_DEPTH = 2
"""A delegate of a delegate cannot delegate."""
MAX_AT_ONCE = 4
"""Delegates of one depth that work concurrently for one turn of a user. Others wait."""
CUT = ("max_steps", "max_tokens", "refusal")
"""End reasons of a delegate that had more to do. Then its parent also gets passages that the delegate did not cite."""
MIN_STEPS = 2
"""Fewest steps of a delegate, which has half of its parent's steps."""


class DelegatedTask(Protocol):
    """One task of a running turn. After a restart, ``call_id`` tells a resumed call from a new one."""

    @property
    def turn_id(self) -> str: ...
    @property
    def call_id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def task(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The answer of a delegate: its text, or the reason why there is none (``failed``).

    ``others_text``: the delegate has read text written by others, which may influence its answer. ``evidence``: the
    passages behind the answer, which the parent may cite. ``retrievals``: ids of the delegate's searches.
    """

    text: str
    failed: bool = False
    others_text: bool = False
    evidence: tuple[Block, ...] = ()
    retrievals: tuple[str, ...] = ()


class Delegations:
    """The running agents by turn id, and the connection from a ``delegate`` call to its agent.

    Built before the servers and the runtime and independent of both, because each agent passes its resources to its
    delegates.
    """

    def __init__(self) -> None:
        # Weak, because an agent that has ended unregisters itself by being dropped.
        self._agents: WeakValueDictionary[str, Agent] = WeakValueDictionary()
        self._slots: WeakKeyDictionary[Agent, dict[int, anyio.Semaphore]] = WeakKeyDictionary()

    def register(self, agent: Agent) -> None:
        """Allow a turn's calls to delegate."""
        self._agents[agent.row.id] = agent

    async def run(self, request: DelegatedTask) -> ChildAnswer:
        """Do a task of a running turn as another role. Return the answer, or the reason why there is none.

        A repeated call resumes the same delegate, or returns the answer at once if that has ended. Cancelling
        interrupts the delegate and waits for its end.
        """
        parent = self._agents.get(TurnId(request.turn_id))
        if parent is None or parent.ended.happened or parent.depth >= MAX_DEPTH:
            return ChildAnswer("Nothing can be delegated here. Do the task yourself.", failed=True)
        if request.role not in parent.definition.binding.sub_roles:
            return ChildAnswer(f"There is no role {request.role!r} to delegate to.", failed=True)
        try:
            # Held until the answer is read, so that the number of concurrent delegates of one depth is limited.
            async with self._slot(parent):
                row = await self._work(parent, request)
                return await parent.resources.database.read(lambda conn: _answer(conn, row))
        except AgenticRagError as exc:
            return ChildAnswer(f"The role {request.role!r} could not begin: {exc}", failed=True)

    def _slot(self, parent: Agent) -> anyio.Semaphore:
        """Return the semaphore for the delegates of one depth.

        One semaphore for all depths could deadlock: delegates would hold all slots while they wait for slots for their
        own delegates.
        """
        root = parent
        while root.parent is not None:
            root = root.parent
        return self._slots.setdefault(root, {}).setdefault(parent.depth, anyio.Semaphore(MAX_AT_ONCE))

    async def _work(self, parent: Agent, request: DelegatedTask) -> TurnRecord:
        """Start or resume a delegate, wait for its end and return its turn."""
        database = parent.resources.database
        with anyio.CancelScope(shield=True):  # a stored delegate must also run
            child_row = await database.read(lambda conn: _turn_of_call(conn, parent.row.id, request.call_id))
            # The call was repeated after a restart: its delegate has ended, and its work must not run twice.
            if child_row is not None and child_row.status in turns.FINISHED:
                return child_row
            if child_row is None:
                child = await self._begin(parent, request)
            else:
                child = self._agents.get(child_row.id) or await self._resume(parent, request, child_row)
        try:
            await child.ended.wait()
        except anyio.get_cancelled_exc_class():
            if not parent.resources.stopping:  # else the delegate stays as it is, and resumes with its parent
                child.interrupt()
                with anyio.move_on_after(CHILDREN_SECONDS, shield=True):
                    await child.ended.wait()
            raise
        return child.row

    async def _begin(self, parent: Agent, request: DelegatedTask) -> Agent:
        """Create and start a delegate with its session and turn."""
        resources = parent.resources
        definition = child_definition(parent.definition, request.role, parent.depth + 1)
        image = Image.of(definition)
        row = TurnRecord(
            id=TurnId(new_id("turn")),
            session_id=SessionId(new_id("sess")),
            conversation_id=parent.row.conversation_id,
            key_id=parent.row.key_id,
            content=clean_text(request.task),
            user_message_id=MessageId(new_id("msg")),
            message_id=MessageId(new_id("msg")),
            image_id=image.id,
            began=True,
            owner=resources.owner,
            fence=1,
            started_at=now(),
        )

        def store(conn: Connection) -> Transcript:
            # Locks the parent's row, so that two delegates that begin at once do not choose the same path.
            turns.hold(conn, parent.row.id, parent.row.fence)
            path = free_path(parent.path, request.role, _paths_of(conn, parent.row.id))
            transcript = Transcript(row.session_id, replace(parent.transcript.labels, agent=path))
            images.put(conn, image.id, definition.domain_id, image.content)
            sessions.create(
                conn,
                row.session_id,
                transcript.labels,
                created_at=row.started_at,
                parent_turn_id=parent.row.id,
                tool_call_id=request.call_id,
            )
            turns.add(conn, row)
            sessions.append_question(conn, row, transcript.last_seq + 1)
            return transcript

        transcript = await resources.database.write(store)
        delegate = Delegate(transcript.labels.agent, request.call_id)
        log = ChildLog(parent.log, delegate, resources.journal, row.id, row.fence)
        transcript.append(transcript.last_seq + 1, row.id, 0, row.user_message_id, user_message(row.content))
        return self._start(Agent(resources, transcript, row, definition, log, parent))

    async def _resume(self, parent: Agent, request: DelegatedTask, row: TurnRecord) -> Agent:
        """Resume a delegate that a stopped server left. The parent counts the resumes."""
        resources = parent.resources

        def take(conn: Connection) -> tuple[Transcript, InterruptedTurn, int]:
            turns.hold(conn, parent.row.id, parent.row.fence)
            fence = turns.take_lease(conn, row.id, resources.owner)
            return load_transcript(conn, row.session_id), read_interrupted(conn, row), fence

        transcript, interrupted, fence = await resources.database.write(take)
        row = row.replace(owner=resources.owner, fence=fence)
        # A version that this program cannot run is replaced by what the parent would start now.
        definition = interrupted.definition or child_definition(parent.definition, request.role, parent.depth + 1)
        delegate = Delegate(transcript.labels.agent, request.call_id)
        log = ChildLog(parent.log, delegate, resources.journal, row.id, row.fence)
        child = Agent(resources, transcript, row, definition, log, parent)
        return self._start(child, interrupted.resume)

    def _start(self, child: Agent, resume: Resume | None = None) -> Agent:
        self.register(child)
        child.resources.tasks.start_soon(child.run, resume)
        return child


def free_path(above: str, role: str, taken_paths: Collection[str]) -> str:
    """Return the path of a new delegate: the caller's path and the role, numbered from the second delegate on.

    ``taken_paths``: the paths of the caller's other delegates.
    """
    first = f"{above}/{role}" if above else role
    numbered = (f"{first}-{number}" for number in itertools.count(2))
    return next(path for path in itertools.chain([first], numbered) if path not in taken_paths)


def child_definition(parent: Definition, role: str, depth: int) -> Definition:
    """Return the definition of a delegate: its parent's in another role, with half of the steps."""
    system = tuple(server for server in parent.system if depth < MAX_DEPTH or server.name != DELEGATION)
    limits = replace(parent.limits, max_steps=max(MIN_STEPS, parent.limits.max_steps // 2))
    persona = replace(parent.persona, role=role, asker=parent.persona.role)
    # the delegate has the memory of its own role; a draft is only tried in the delegating role
    binding = replace(parent.binding, role=role, draft=RoleDraft())
    return replace(
        parent,
        persona=persona,
        system=system,
        limits=limits,
        binding=binding,
        # The functions of a client answer the main agent. A delegate has no client.
        functions=None,
        function_choice=None,
    )


def _paths_of(conn: Connection, turn_id: TurnId) -> set[str]:
    return {session.labels.agent for session in sessions.list_delegated(conn, turn_id)}


def _turn_of_call(conn: Connection, parent_turn_id: TurnId, call_id: str) -> TurnRecord | None:
    """Return the turn that an earlier run of a call started, or None."""
    session = sessions.by_tool_call(conn, parent_turn_id, call_id)
    return None if session is None else turns.of_session(conn, session.id)[0]


def _answer(conn: Connection, row: TurnRecord) -> ChildAnswer:
    """Return the answer from a delegate's turn for its parent."""
    turn = turns.get(conn, row.id)
    if turn is None or turn.status not in turns.FINISHED:
        return ChildAnswer("The delegate's work could not be stored.", failed=True)
    rows = sessions.transcript(conn, row.session_id)
    messages: list[Message] = [{"role": message.role, "content": message.content} for message in rows]
    has_others_text = reads_others(messages)
    retrievals = tuple(
        ident for message in messages for block in message["content"] for ident in block.get(RETRIEVALS, ())
    )
    texts = [plain_text(message["content"]).strip() for message in messages if message["role"] == "assistant"]
    last_words = next((text for text in reversed(texts) if text), "")
    if turn.status is not TurnStatus.DONE:
        reason = turn.error.message if turn.error else "it was interrupted"
        so_far = f"\nIts last words were: {last_words}" if last_words else ""
        text = f"The delegate did not finish: {reason}{so_far}"
        return ChildAnswer(text, failed=True, others_text=has_others_text, retrievals=retrievals)
    # An answer that was cut has not cited all that it rests on, so its passages come uncited.
    was_cut = turn.end_reason in CUT
    session = sessions.get(conn, row.session_id)
    path = session.labels.agent if session else ""
    evidence = evidence_of(messages, turn.references, path, RESULT_BUDGET, uncited=was_cut)
    if not last_words and not evidence.blocks:
        return ChildAnswer(f"The delegate ended without an answer ({turn.end_reason}).", failed=True)
    notes = [f"[stopped: {turn.end_reason}]"] if was_cut else []
    if evidence.left_out:
        notes.append(f"[{evidence.left_out} further passages do not fit; ask for less at once to have them]")
    text = "\n".join([*([last_words] if last_words else []), *notes])
    return ChildAnswer(text, others_text=has_others_text, evidence=evidence.blocks, retrievals=retrievals)
