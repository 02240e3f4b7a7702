"""Sessions and transcripts on each database."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from agentic_rag.base.errors import NotFound
from agentic_rag.base.events import Usage
from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId
from agentic_rag.base.json_form import from_text, to_text
from agentic_rag.store import compactions, payloads, run_events, sessions, tool_calls, usage
from agentic_rag.store.database import Database
from agentic_rag.store.record import METADATA
from agentic_rag.store.sessions import SessionLabels

from .records import AT, compaction, message, payload, tool_call, turn, usage_record


def _new(conn: Connection, session_id: str = "sess_1", **fields: Any) -> None:
    sessions.create(
        conn, SessionId(session_id), SessionLabels(conversation_id=ConversationId("conv_1")), created_at=AT, **fields
    )


async def test_a_session_is_read_as_it_was_stored(database: Database) -> None:
    def make(conn: Connection) -> sessions.SessionRecord:
        return sessions.create(
            conn,
            SessionId("sess_1"),
            SessionLabels(user_id="local"),
            created_at=AT,
            parent_turn_id=TurnId("turn_0"),
            tool_call_id="toolu_0",
        )

    created = await database.write(make)
    assert await database.read(lambda conn: sessions.get(conn, SessionId("sess_1"))) == created
    assert await database.read(lambda conn: sessions.by_tool_call(conn, TurnId("turn_0"), "toolu_0")) == created
    assert await database.read(lambda conn: sessions.by_tool_call(conn, TurnId("turn_9"), "toolu_0")) is None
    assert await database.read(lambda conn: sessions.get(conn, SessionId("sess_9"))) is None


async def test_appended_messages_are_read_in_order_and_move_the_session(database: Database) -> None:
    first_message = message(1, "你好", parent_message_id="msg_0")
    second_message = message(
        2,
        role="assistant",
        step=1,
        content=[{"type": "tool_use", "id": "toolu_1", "name": "search_documents", "input": {"z": 1, "a": None}}],
        model="claude-sonnet-5-5",
        usage=Usage(3, output=4),
        partial=True,
    )

    def append(conn: Connection) -> None:
        _new(conn)
        sessions.append_message(conn, first_message)
        sessions.append_message(conn, second_message)

    await database.write(append)
    assert await database.read(lambda conn: sessions.transcript(conn, SessionId("sess_1"))) == [
        first_message,
        second_message,
    ]
    assert await database.read(lambda conn: sessions.transcript(conn, SessionId("sess_1"), from_seq=2)) == [
        second_message
    ]
    session = await database.read(lambda conn: sessions.get(conn, SessionId("sess_1")))
    assert session is not None
    assert session.last_seq == 2


async def test_keys_of_a_block_keep_their_order(database: Database) -> None:
    block = {"type": "tool_use", "input": {"zebra": 1, "apple": 2, "mango": {"b": 1, "a": 2}}}

    def append(conn: Connection) -> None:
        _new(conn)
        sessions.append_message(conn, message(1, content=[block]))

    await database.write(append)
    stored_block = (await database.read(lambda conn: sessions.transcript(conn, SessionId("sess_1"))))[0].content[0]
    assert to_text(stored_block) == to_text(block)


@pytest.mark.parametrize("value", [2**70, 1e300, "\ud800", "\x00", "a\u202eb", "𝔘", [[]], {"": None}, True])
async def test_odd_arguments_round_trip_exactly(database: Database, value: object) -> None:
    await database.write(lambda conn: tool_calls.start(conn, [tool_call(arguments={"value": value})]))
    call = await database.read(lambda conn: tool_calls.get(conn, TurnId("turn_1"), "toolu_1"))
    assert call is not None
    assert call.arguments == {"value": value}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(_json)
def test_json_text_round_trips(value: Any) -> None:
    assert from_text(to_text(value)) == value


async def test_a_used_message_position_is_refused(database: Database) -> None:
    await database.write(_new)
    await database.write(lambda conn: sessions.append_message(conn, message(1)))
    with pytest.raises(IntegrityError):
        await database.write(lambda conn: sessions.append_message(conn, message(1, "other")))


async def test_a_message_for_a_deleted_session_is_refused_and_leaves_nothing(database: Database) -> None:
    with pytest.raises(NotFound):
        await database.write(lambda conn: sessions.append_message(conn, message(1, session_id="sess_9")))
    assert await database.read(lambda conn: sessions.transcript(conn, SessionId("sess_9"))) == []


async def test_a_place_before_the_last_message_is_refused(database: Database) -> None:
    await database.write(_new)
    await database.write(lambda conn: sessions.append_message(conn, message(5)))
    with pytest.raises(NotFound):
        await database.write(lambda conn: sessions.append_message(conn, message(4)))


async def test_a_page_counts_messages_as_clients_do(database: Database) -> None:
    def append_turns(conn: Connection) -> None:
        _new(conn)
        seq = 0
        for number in (1, 2, 3):
            for message_id, role in (
                (f"u{number}", "user"),
                *[(f"a{number}", "assistant"), (f"a{number}", "user")] * 2,
            ):
                seq += 1
                sessions.append_message(conn, message(seq, message_id=message_id, role=role))

    await database.write(append_turns)

    async def list_ids(limit: int, before: MessageId | None = None) -> list[str]:
        rows = await database.read(lambda conn: sessions.page(conn, SessionId("sess_1"), limit, before))
        assert [row.seq for row in rows] == sorted(row.seq for row in rows)
        return [row.message_id for row in rows]

    assert await list_ids(2) == ["u3", *["a3"] * 4]
    assert await list_ids(3) == [*["a2"] * 4, "u3", *["a3"] * 4]
    assert await list_ids(2, MessageId("u3")) == ["u2", *["a2"] * 4]
    assert await list_ids(1, MessageId("a2")) == ["u2"]
    assert await list_ids(5, MessageId("u1")) == []
    assert len(await list_ids(100)) == 15
    with pytest.raises(NotFound) as missing:
        await list_ids(2, MessageId("nothing"))
    assert missing.value.code == "MESSAGE_NOT_FOUND"


async def test_the_blocks_of_one_message_are_replaced(database: Database) -> None:
    def append(conn: Connection) -> None:
        _new(conn)
        sessions.append_message(conn, message(1))
        sessions.append_message(conn, message(2))

    blocks = [{"type": "text", "text": "a note"}, {"type": "text", "text": "hello"}]
    await database.write(append)
    await database.write(lambda conn: sessions.set_content(conn, SessionId("sess_1"), 2, blocks))
    messages = await database.read(lambda conn: sessions.transcript(conn, SessionId("sess_1")))
    assert messages == [message(1), message(2, content=blocks, rewritten_at=2)]
    with pytest.raises(NotFound):
        await database.write(lambda conn: sessions.set_content(conn, SessionId("sess_1"), 3, blocks))


async def test_the_window_and_its_prefix_are_kept(database: Database) -> None:
    await database.write(_new)
    await database.write(lambda conn: sessions.append_message(conn, message(9)))
    head = [{"type": "text", "text": "before"}]
    await database.write(lambda conn: sessions.set_window(conn, SessionId("sess_1"), 7, head))
    session = await database.read(lambda conn: sessions.get(conn, SessionId("sess_1")))
    assert session is not None
    assert (session.window_start, session.window_set_at, session.head) == (7, 9, head)


async def test_deleting_a_session_deletes_exactly_its_content_and_delegates(database: Database) -> None:
    def fill(conn: Connection) -> None:
        _new(conn)
        _new(conn, "sess_child", parent_turn_id="turn_1", tool_call_id="toolu_1")
        _new(conn, "sess_grandchild", parent_turn_id="turn_child", tool_call_id="toolu_2")
        _new(conn, "sess_other")
        for name in ("1", "child", "grandchild", "other"):
            turn(f"turn_{name}", f"sess_{name}").insert(conn)
            sessions.append_message(conn, message(1, session_id=f"sess_{name}"))
            run_events.append(conn, [run_events.EventBatch(f"turn_{name}", 1, [b"x"])])
            tool_calls.start(conn, [tool_call(turn_id=f"turn_{name}", session_id=f"sess_{name}")])
            payloads.put(conn, payload(f"ref_{name}", f"sess_{name}"))
            usage.put(conn, [usage_record(f"usage_{name}", f"sess_{name}")])
            compactions.put(conn, compaction(f"comp_{name}", f"sess_{name}"))

    def count_rows(conn: Connection) -> list[int]:
        nouns = ("sessions", "messages", "turns", "run_events", "tool_calls", "payloads", "compactions")
        return [conn.execute(select(func.count()).select_from(METADATA.tables[noun])).scalar_one() for noun in nouns]

    await database.write(fill)
    refs = await database.read(lambda conn: payloads.refs_of(conn, SessionId("sess_1")))
    assert sorted(refs) == ["ref_1", "ref_child", "ref_grandchild"]
    assert await database.write(lambda conn: sessions.delete(conn, SessionId("sess_1"))) is True
    assert await database.read(count_rows) == [1] * 7
    assert await database.read(lambda conn: usage.of_session(conn, SessionId("sess_1"))) != [], (
        "what was spent stays spent"
    )
    assert await database.read(lambda conn: sessions.get(conn, SessionId("sess_other"))) is not None
    assert await database.write(lambda conn: sessions.delete(conn, SessionId("sess_1"))) is False
