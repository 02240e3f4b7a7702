"""Read messages as clients see them, archives and tool calls.

Stored references are resolved from the payloads of the same session; an unreadable reference affects only its own item.
Knows no user and no permission.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentic_rag.base.errors import NotFound
from agentic_rag.base.events import ToolStatus
from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.conversations.shown_messages import ShownMessage, refs_in, shown_messages, unavailable
from agentic_rag.conversations.titles import title_of
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.store import branches, compactions, sessions, tool_calls, turns
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import MessageRecord, SessionRecord
from agentic_rag.store.tool_calls import CallSummary, ToolCallRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus

MAX_RESOLVED = 4 * 1024 * 1024
"""Maximum bytes of a stored object in a page of messages; a larger one is shown as unavailable."""


@dataclass(frozen=True, slots=True)
class ShownPage:
    """Messages in order. ``has_more`` says that there are earlier ones."""

    messages: list[ShownMessage]
    has_more: bool


@dataclass(frozen=True, slots=True)
class DelegateRecords:
    """A delegate's records: its path, the tool call that started it, its turn, messages and tool calls."""

    agent: str
    parent_tool_call_id: str
    turn: TurnRecord
    messages: tuple[ShownMessage, ...]
    tool_calls: tuple[ToolCallRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationBranch:
    """One path through a conversation. ``leaf`` is its last answer, the id to read or activate the branch.

    ``parent_message_id`` is the last answer shared with another branch (None: it shares nothing). ``first_message_id``
    and ``content`` are the user's next message. ``turn_count`` counts the turns of the whole path, ``status`` is that
    of the last turn.
    """

    leaf: MessageId
    parent_message_id: MessageId | None
    first_message_id: MessageId
    content: str
    turn_count: int
    active: bool
    status: TurnStatus
    started_at: str


Calls = dict[TurnId, list[CallSummary]]


class Transcripts:
    """Reads the contents of conversations."""

    def __init__(self, database: Database, runtime: Runtime) -> None:
        self._db = database
        self._runtime = runtime

    async def page(
        self,
        conversation: ConversationRecord,
        limit: int,
        before: MessageId | None = None,
        archive_id: str | None = None,
        leaf: MessageId | None = None,
    ) -> ShownPage:
        """Return the last messages in order, two per turn, or the last of those that one archive's summary replaces.

        ``leaf`` selects the newest branch with this message instead of the active branch.

        Raises:
            NotFound: there is no message ``before`` or ``leaf``, or no such archive.
        """
        session_id = conversation.session_id

        def read(conn: Connection) -> tuple[list[MessageRecord], dict[TurnId, TurnRecord], int, Calls]:
            session = sessions.get(conn, session_id)
            places, end = None, None if leaf is None else _leaf(conn, session_id, leaf)
            compacted_to = 0 if session is None else session.compacted_to
            if archive_id is not None:
                archive = compactions.get(conn, session_id, archive_id)
                if archive is None:
                    raise NotFound("archive", archive_id)
                places, end, compacted_to = (archive.from_seq, archive.to_seq), archive.leaf_message_id, archive.to_seq
            elif end is not None:
                # On another branch, another part of the messages may have been summarised.
                path = branches.read_tree(conn, session_id).path(end)
                compacted_to = branches.context_after(conn, session_id, path).compacted_to
            # One more than asked for shows whether there are earlier ones.
            rows = sessions.page(conn, session_id, limit + 1, before, places, end)
            turn_ids = sorted({row.turn_id for row in rows})
            return rows, turns.by_ids(conn, turn_ids), compacted_to, tool_calls.summaries(conn, turn_ids)

        rows, of, compacted_to, calls = await self._db.read(read)
        # Outside the transaction: each object is a file, and reading files must not hold a connection.
        objects = {ref: await self._object(session_id, ref) for ref in sorted(refs_in(rows))}
        messages = shown_messages(conversation.id, rows, of, objects, compacted_to, calls)
        if messages and messages[-1].id == before:  # an answer without rows comes with its question
            del messages[-1]
        return ShownPage(messages[-limit:], has_more=len(messages) > limit)

    async def message(self, conversation: ConversationRecord, message_id: MessageId) -> ShownMessage:
        """Return one message of any branch. A question that was asked again belongs to its newest turn.

        Raises:
            NotFound: there is no such message.
        """
        session_id = conversation.session_id

        def read(conn: Connection) -> tuple[list[MessageRecord], dict[TurnId, TurnRecord], int, Calls]:
            turn = branches.question_of(conn, session_id, message_id)
            rows, of = sessions.of_turn(conn, turn), {turn.id: turn}
            calls = tool_calls.summaries(conn, [turn.id])
            session, tree = sessions.get(conn, session_id), branches.read_tree(conn, session_id)
            if session is None or turn.message_id in {node.message_id for node in tree.path(session.leaf_message_id)}:
                return rows, of, 0 if session is None else session.compacted_to, calls
            path = tree.path(tree.leaf_after(turn.message_id))
            return rows, of, branches.context_after(conn, session_id, path).compacted_to, calls

        rows, of, compacted_to, calls = await self._db.read(read)
        objects = {ref: await self._object(session_id, ref) for ref in sorted(refs_in(rows))}
        for message in shown_messages(conversation.id, rows, of, objects, compacted_to, calls):
            if message.id == message_id:
                return message
        raise NotFound("message", message_id)

    async def branches(self, conversation: ConversationRecord) -> list[ConversationBranch]:
        """Return the branches, oldest first."""

        def read(conn: Connection) -> list[ConversationBranch]:
            session = sessions.get(conn, conversation.session_id)
            tree = branches.read_tree(conn, conversation.session_id)
            active = None if session is None else session.leaf_message_id
            listed = []
            for leaf in tree.leaves():
                path = tree.path(leaf.message_id)
                own = tree.own_part(path)
                # Only the first and the last turn of the branch's own part are shown, so the others are not read.
                of = turns.by_ids(conn, [own[0].turn_id, leaf.turn_id])
                first, last = of[own[0].turn_id], of[leaf.turn_id]
                listed.append(
                    ConversationBranch(
                        leaf=leaf.message_id,
                        parent_message_id=own[0].parent_message_id,
                        first_message_id=own[0].user_message_id,
                        content=title_of(first.content),
                        turn_count=len(path),
                        active=leaf.message_id == active,
                        status=last.status,
                        started_at=first.started_at,
                    )
                )
            return listed

        return await self._db.read(read)

    async def archives(self, conversation: ConversationRecord) -> list[CompactionRecord]:
        """Return the compactions, newest first."""
        return await self._db.read(lambda conn: compactions.of_session(conn, conversation.session_id))

    async def tool_calls(
        self,
        conversation: ConversationRecord,
        limit: int,
        *,
        tool_names: Sequence[str] = (),
        status: ToolStatus | None = None,
        agent: str | None = None,
        turn_id: TurnId | None = None,
        app_of: str = "",
    ) -> list[ToolCallRecord]:
        """Return the last calls in order, filtered by tools, status, agent and turn; see `tool_calls.of_sessions`."""

        def read(conn: Connection) -> list[ToolCallRecord]:
            family = sessions.family(conn, conversation.session_id)
            return tool_calls.of_sessions(
                conn,
                family,
                tool_names=tool_names,
                status=status,
                agent=agent,
                turn_id=turn_id,
                app_of=app_of,
                limit=limit,
            )

        return await self._db.read(read)

    async def children(self, turn: TurnRecord) -> list[DelegateRecords]:
        """Return the delegates of a turn, in the order in which they began."""

        def read(conn: Connection) -> list[tuple[SessionRecord, TurnRecord, list[MessageRecord], list[ToolCallRecord]]]:
            return [
                (session, own, sessions.transcript(conn, session.id), tool_calls.of_turn(conn, own.id))
                for session in sessions.list_delegated(conn, turn.id)
                for own in turns.of_session(conn, session.id)
            ]

        children = []
        for session, own, rows, calls in await self._db.read(read):
            objects = {ref: await self._object(session.id, ref) for ref in sorted(refs_in(rows))}
            messages = shown_messages(turn.conversation_id, rows, {own.id: own}, objects)
            children.append(
                DelegateRecords(session.labels.agent, session.tool_call_id or "", own, tuple(messages), tuple(calls))
            )
        return children

    async def _object(self, session_id: SessionId, ref: str) -> Any:
        """Return the object behind a ref, or a placeholder with the reason."""
        payload = await self._runtime.payload(session_id, ref)
        if payload is None:
            return unavailable("it is not kept")
        media_type, data = payload
        if len(data) > MAX_RESOLVED:
            return unavailable(f"it is larger than {MAX_RESOLVED // (1024 * 1024)} MiB")
        if media_type != "application/json":
            return data.decode(errors="replace")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return unavailable("it cannot be read")


def _leaf(conn: Connection, session_id: SessionId, message_id: MessageId) -> MessageId:
    """Return the leaf of the newest branch with a message.

    Raises:
        NotFound: no branch has the message.
    """
    leaf = branches.read_tree(conn, session_id).leaf_after(message_id)
    if leaf is None:
        raise NotFound("message", message_id)
    return leaf
