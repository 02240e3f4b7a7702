"""Branches: the tree of a session's turns, and the context stored for each branch.

A turn follows the answer of another turn (``parent_message_id``). A branch is the path from the first turn to a leaf, a
turn that no other turn follows. This module reads that tree and stores the context sent to the model after each turn
(`ContextRecord`), from which a new branch starts. Message content is opaque to this module.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection, select

from agentic_rag.base.errors import NotFound
from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record
from agentic_rag.store.turns import TURNS, TurnRecord, TurnStatus


class ContextRecord(Record, table=True):
    """The context of a session after a turn, stored if that turn or a later compaction changed the context.

    The fields are those of `sessions.SessionRecord`. ``message_id`` is the turn's answer.
    """

    __tablename__ = "contexts"
    part_of = "session"

    message_id: Key[MessageId]
    session_id: Indexed[SessionId]
    window_start: int = 0
    window_set_at: int = 0
    head: list[Block] | None = None
    compaction_id: str | None = None
    compacted_to: int = 0
    gap_from: int = 0
    gap_to: int = 0
    prompt_id: str | None = None
    told_id: str | None = None
    late_tools: list[Json] | None = None


CONTEXTS = ContextRecord.__table__
CONTEXT_FIELDS = tuple(name for name in ContextRecord.names if name not in ("message_id", "session_id"))
_contexts, _turns = CONTEXTS.c, TURNS.c


@dataclass(frozen=True, slots=True)
class Node:
    """One turn of the tree."""

    turn_id: TurnId
    user_message_id: MessageId
    message_id: MessageId
    parent_message_id: MessageId | None


class Tree:
    """The begun turns of a session, in the order in which they began."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.message_id: node for node in nodes}

    def path(self, leaf: MessageId | None) -> list[Node]:
        """Return the branch that ends with the answer ``leaf``, oldest turn first."""
        branch: list[Node] = []
        while leaf is not None:
            branch.append(self.nodes[leaf])
            leaf = branch[-1].parent_message_id
        return branch[::-1]

    def leaves(self) -> list[Node]:
        """Return the last turn of each branch, the newest branch last."""
        followed = {node.parent_message_id for node in self.nodes.values()}
        return [node for node in self.nodes.values() if node.message_id not in followed]

    def own_part(self, path: Sequence[Node]) -> Sequence[Node]:
        """Return the end of a branch that no other branch shares; the whole path if there is no other branch."""
        followers = Counter(node.parent_message_id for node in self.nodes.values())
        forks = [place for place, node in enumerate(path) if followers[node.parent_message_id] > 1]
        return path[forks[-1] :] if forks else path

    def leaf_after(self, message_id: MessageId) -> MessageId | None:
        """Return the leaf of the newest branch that contains this message, or None."""
        containing = {node.message_id for node in self.nodes.values() if message_id in _messages_of(node)}
        for leaf in reversed(self.leaves()):
            if not containing.isdisjoint(node.message_id for node in self.path(leaf.message_id)):
                return leaf.message_id
        return None


def _messages_of(node: Node) -> tuple[str, str]:
    return node.user_message_id, node.message_id


def read_tree(conn: Connection, session_id: SessionId) -> Tree:
    """Return the tree of a session's turns, without turns that never began (`TurnRecord.began`)."""
    columns = (_turns.id, _turns.user_message_id, _turns.message_id, _turns.parent_message_id)
    query = select(*columns).where(_turns.session_id == session_id, _turns.began)
    return Tree(Node(*row) for row in conn.execute(query.order_by(_turns.id)))


def question_of(conn: Connection, session_id: SessionId, message_id: MessageId) -> TurnRecord:
    """Return the newest turn that a message belongs to; its question can be answered again.

    Raises:
        NotFound: the session has no such message.
    """
    belongs = sa.or_(_turns.user_message_id == message_id, _turns.message_id == message_id)
    query = select(TURNS).where(_turns.session_id == session_id, _turns.began, belongs)
    turn = TurnRecord.first(conn, query.order_by(_turns.id.desc()))
    if turn is None or turn.status is TurnStatus.QUEUED:
        raise NotFound("message", message_id)
    return turn


def keep_context(conn: Connection, context: ContextRecord) -> None:
    """Store the context after a turn, replacing an earlier one of the same turn."""
    conn.execute(sa.delete(CONTEXTS).where(_contexts.message_id == context.message_id))
    context.insert(conn)


def context_after(conn: Connection, session_id: SessionId, path: Sequence[Node]) -> ContextRecord:
    """Return the context after the last turn of a branch; an empty branch has an empty context."""
    stored_ids = set(conn.execute(select(_contexts.message_id).where(_contexts.session_id == session_id)).scalars())
    newest = next((node.message_id for node in reversed(path) if node.message_id in stored_ids), None)
    context = (
        None if newest is None else ContextRecord.first(conn, select(CONTEXTS).where(_contexts.message_id == newest))
    )
    return context or ContextRecord(message_id=MessageId(""), session_id=session_id)
