"""Turns, their run logs and tool calls on each database."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from agentic_rag.base.errors import NotFound
from agentic_rag.base.events import Error, Reference, ToolStatus, Usage
from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.store import branches, run_events, tool_calls, turns
from agentic_rag.store.database import Database
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.turns import TurnStatus
from tests.store.logged import batches

from .records import AT, tool_call, turn

LATER = "2026-11-21T13:00:00.000Z"


async def test_an_accepted_turn_is_read_unchanged(database: Database) -> None:
    accepted = turn(
        client_message_id="cm_1",
        role_hashes={"nuwa": "abc"},
        owner="host:1",
        lease_until=LATER,
        usage=Usage(1),
        references=(replace(CITED, cited_text="通知期为一个月。"),),
        timings={"total": 12},
        error=Error("LLM_SERVICE_ERROR", "gone", True),
    )
    await database.write(lambda conn: accepted.insert(conn), durable=True)
    assert await database.read(lambda conn: turns.get(conn, TurnId("turn_1"))) == accepted
    assert await database.read(lambda conn: turns.by_client_message(conn, SessionId("sess_1"), "cm_1")) == accepted
    assert await database.read(lambda conn: turns.by_client_message(conn, SessionId("sess_2"), "cm_1")) is None
    assert await database.read(lambda conn: turns.by_ids(conn, [TurnId("turn_1"), TurnId("turn_9")])) == {
        "turn_1": accepted
    }
    assert await database.read(lambda conn: turns.get(conn, TurnId("turn_9"))) is None


async def test_one_client_message_creates_one_turn(database: Database) -> None:
    await database.write(lambda conn: turn("turn_1", client_message_id="cm_1").insert(conn))
    with pytest.raises(IntegrityError):
        await database.write(lambda conn: turn("turn_2", client_message_id="cm_1").insert(conn))
    await database.write(lambda conn: turn("turn_3", "sess_2", client_message_id="cm_1").insert(conn))
    await database.write(lambda conn: turn("turn_4").insert(conn))
    await database.write(lambda conn: turn("turn_5").insert(conn))


async def test_turns_are_listed_by_state_and_age(database: Database) -> None:
    def fill(conn: Connection) -> None:
        turn("turn_3", status="queued", started_at=LATER).insert(conn)
        turn("turn_2", status="queued").insert(conn)
        turn("turn_1").insert(conn)
        turn("turn_0", status="done").insert(conn)
        turn("turn_4", "sess_2").insert(conn)
        turn("turn_5", "sess_2", status="queued", started_at=LATER).insert(conn)

    await database.write(fill)

    def list_ids(conn: Connection) -> list[list[str]]:
        lists = (
            turns.list_running(conn),
            turns.list_queued(conn, SessionId("sess_1")),
            turns.list_queued(conn),
            turns.of_session(conn, SessionId("sess_1")),
        )
        return [[record.id for record in records] for records in lists]

    assert await database.read(list_ids) == [
        ["turn_1", "turn_4"],
        ["turn_2", "turn_3"],
        ["turn_2", "turn_3", "turn_5"],
        ["turn_0", "turn_1", "turn_2", "turn_3"],
    ]


async def test_a_queued_turn_starts_once(database: Database) -> None:
    started = turn(image_id="img_2", role_hashes={"nuwa": "b"}, owner="host:1", started_at=LATER, parent_message_id="m")

    def start(conn: Connection) -> bool:
        return turns.start(conn, started)

    await database.write(lambda conn: turn(status="queued", image_id="img_1").insert(conn))
    assert await database.write(start) is False, "it is in nobody's queue"
    await database.write(lambda conn: turns.take_queued(conn, ["turn_1"], "host:1"))
    assert await database.write(start) is True
    assert await database.write(start) is False
    record = await database.read(lambda conn: turns.get(conn, TurnId("turn_1")))
    assert record is not None
    assert record == started.replace(fence=1, lease_until=record.lease_until, began=True)
    assert record.lease_until is not None


CITED = Reference(1, "doc_1", "notice.md", "doc_1-c0", "two months", 0.9, page=3)


async def test_a_turn_ends_once_with_its_totals(database: Database) -> None:
    await database.write(lambda conn: turn(lease_until=LATER).insert(conn))

    def finish(conn: Connection, status: TurnStatus = TurnStatus.DONE) -> bool:
        end = turns.TurnEnd(
            status=status,
            end_reason="end_turn",
            ended_at=LATER,
            steps=2,
            usage=Usage(5),
            references=(CITED,),
            timings={"total": 9},
        )
        return turns.finish(conn, TurnId("turn_1"), end)

    assert await database.write(finish) is True
    assert await database.write(lambda conn: finish(conn, TurnStatus.FAILED)) is False
    assert await database.read(lambda conn: turns.get(conn, TurnId("turn_1"))) == turn(
        status="done",
        end_reason="end_turn",
        ended_at=LATER,
        steps=2,
        usage=Usage(5),
        references=(CITED,),
        timings={"total": 9},
    )


async def test_a_failed_turn_keeps_its_error(database: Database) -> None:
    await database.write(lambda conn: turn().insert(conn))
    error = Error("LLM_SERVICE_ERROR", "gone", True)

    def fail(conn: Connection) -> bool:
        end = turns.TurnEnd(
            status=TurnStatus.FAILED, end_reason="error", ended_at=LATER, steps=0, usage=None, error=error
        )
        return turns.finish(conn, TurnId("turn_1"), end)

    assert await database.write(fail) is True
    record = await database.read(lambda conn: turns.get(conn, TurnId("turn_1")))
    assert record is not None
    assert record.error == error


async def test_each_lease_has_a_greater_fence_and_each_resume_counts(database: Database) -> None:
    await database.write(lambda conn: turn(owner="host:1").insert(conn))
    fences = [await database.write(lambda conn: turns.take_lease(conn, TurnId("turn_1"), "host:2")) for _ in range(3)]
    assert fences == [1, 2, 3]
    assert [await database.write(lambda conn: turns.count_resume(conn, TurnId("turn_1"))) for _ in range(2)] == [1, 2]
    record = await database.read(lambda conn: turns.get(conn, TurnId("turn_1")))
    assert record is not None
    assert (record.owner, record.fence, record.resumes) == ("host:2", 3, 2)
    with pytest.raises(NotFound):
        await database.write(lambda conn: turns.take_lease(conn, TurnId("turn_9"), "host:2"))
    with pytest.raises(NotFound):
        await database.write(lambda conn: turns.count_resume(conn, TurnId("turn_9")))


async def test_an_ended_turn_cannot_be_leased(database: Database) -> None:
    await database.write(lambda conn: turn(status="done").insert(conn))
    with pytest.raises(NotFound):
        await database.write(lambda conn: turns.take_lease(conn, TurnId("turn_1"), "host:2"))


async def test_a_lease_lasts_fifteen_seconds_by_the_databases_clock(database: Database) -> None:
    def begin(conn: Connection) -> list[bool]:
        turns.add(conn, turn(owner="host:1"))
        lease_end = select(turns.TURNS.c.lease_until).scalar_subquery()
        bounds = (DatabaseTime(turns.LEASE_SECONDS - 5) < lease_end, lease_end < DatabaseTime(turns.LEASE_SECONDS + 5))
        return [bool(conn.execute(select(bound)).scalar()) for bound in bounds]

    assert await database.write(begin) == [True, True]


async def test_turns_with_a_living_owner_stay_and_expired_ones_are_taken(database: Database) -> None:
    def fill(conn: Connection) -> None:
        turns.add(conn, turn("turn_1", owner="host:1"))
        turns.add(conn, turn("turn_2", owner="host:1", status="queued"))
        turn("turn_3", owner="host:1", lease_until=AT).insert(conn)
        turn("turn_4", owner="host:1", lease_until=AT, status="queued").insert(conn)
        turn("turn_5").insert(conn)
        turn("turn_6", owner="host:2", lease_until=AT).insert(conn)
        turn("turn_7", owner="host:1", lease_until=AT, status="done").insert(conn)

    await database.write(fill)

    async def lock_abandoned(*, alone: bool) -> list[str]:
        abandoned = await database.write(lambda conn: turns.lock_abandoned(conn, "host:2", alone=alone))
        return sorted(record.id for record in abandoned)  # PostgreSQL sets the time of new ones

    assert await lock_abandoned(alone=False) == ["turn_3", "turn_4", "turn_5"]
    assert await lock_abandoned(alone=True) == ["turn_1", "turn_2", "turn_3", "turn_4", "turn_5"]
    renewed = await database.write(lambda conn: turns.renew(conn, "host:1"))
    assert renewed == {"turn_1", "turn_2", "turn_3", "turn_4"}
    assert await lock_abandoned(alone=False) == ["turn_5"]


async def test_a_log_is_read_strictly_after_a_number_and_in_bounded_pieces(database: Database) -> None:
    def fill(conn: Connection) -> None:
        run_events.append(conn, [])
        run_events.append(conn, batches(*(("turn_1", seq, b"%d" % seq) for seq in (1, 2, 3, 70))))
        run_events.append(conn, batches(("turn_2", 1, b"other"), ("turn_1", 71, bytes(range(256)))))

    await database.write(fill)

    async def read_log(turn_id: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        return await database.read(lambda conn: run_events.read(conn, TurnId(turn_id), after, limit))

    assert await read_log("turn_1", 0, 2) == [(1, b"1"), (2, b"2")]
    assert await read_log("turn_1", 2, 100) == [(3, b"3"), (70, b"70"), (71, bytes(range(256)))]
    assert await read_log("turn_1", 71, 100) == []
    assert await read_log("turn_9", 0, 100) == []
    assert await database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_1"))) == 71
    assert await database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_9"))) == 0
    assert await database.read(lambda conn: run_events.exists(conn, TurnId("turn_2"))) is True
    assert await database.read(lambda conn: run_events.exists(conn, TurnId("turn_9"))) is False


async def test_pruning_deletes_only_logs_of_turns_that_ended_before(database: Database) -> None:
    def fill(conn: Connection) -> None:
        for name, status, ended_at in (
            ("turn_1", "done", AT),
            ("turn_2", "failed", AT),
            ("turn_3", "interrupted", AT),
            ("turn_4", "done", LATER),
            ("turn_5", "running", None),
            ("turn_6", "done", AT),
        ):
            turn(name, status=status, ended_at=ended_at).insert(conn)
            if name != "turn_6":
                run_events.append(conn, [run_events.EventBatch(name, 1, [b"x"] * 3)])

    await database.write(fill)
    assert await database.write(lambda conn: run_events.prune(conn, AT)) == 0
    assert await database.write(lambda conn: run_events.prune(conn, LATER, limit=2)) == 2
    assert await database.write(lambda conn: run_events.prune(conn, LATER, limit=2)) == 1
    assert await database.write(lambda conn: run_events.prune(conn, LATER, limit=2)) == 0

    def list_logged(conn: Connection) -> list[str]:
        return [
            record.id for record in turns.of_session(conn, SessionId("sess_1")) if run_events.exists(conn, record.id)
        ]

    assert await database.read(list_logged) == ["turn_4", "turn_5"]


async def test_a_tool_call_ends_once_and_keeps_its_first_result(database: Database) -> None:
    calls = [tool_call("toolu_1"), tool_call("toolu_2", tool_name="promptx_recall")]
    await database.write(lambda conn: tool_calls.start(conn, calls))
    assert await database.read(lambda conn: tool_calls.of_turn(conn, TurnId("turn_1"))) == calls
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "found"}]}

    def finish(conn: Connection, status: ToolStatus) -> bool:
        return tool_calls.finish(
            conn, TurnId("turn_1"), "toolu_1", status=status, result=block, duration_ms=7, size=5, ref="ref_1"
        )

    assert await database.write(lambda conn: finish(conn, ToolStatus.OK)) is True
    assert await database.write(lambda conn: finish(conn, ToolStatus.ERROR)) is False
    assert await database.read(lambda conn: tool_calls.get(conn, TurnId("turn_1"), "toolu_1")) == tool_call(
        status="ok", result=block, duration_ms=7, size=5, ref="ref_1"
    )
    assert await database.read(lambda conn: tool_calls.get(conn, TurnId("turn_9"), "toolu_1")) is None


async def test_tool_calls_of_sessions_are_filtered(database: Database) -> None:
    def fill(conn: Connection) -> None:
        tool_calls.start(conn, [])
        tool_calls.start(conn, [tool_call("toolu_1"), tool_call("toolu_2", tool_name="delegate")])
        tool_calls.start(conn, [tool_call("toolu_1", "turn_2", started_at=LATER, status="error", agent="digger")])
        tool_calls.start(conn, [tool_call("toolu_1", "turn_3", session_id="sess_2")])

    await database.write(fill)

    async def list_calls(**filters: Any) -> list[tuple[str, str]]:
        calls = await database.read(lambda conn: tool_calls.of_sessions(conn, [SessionId("sess_1")], **filters))
        return [(call.turn_id, call.tool_call_id) for call in calls]

    assert await list_calls() == [("turn_1", "toolu_1"), ("turn_1", "toolu_2"), ("turn_2", "toolu_1")]
    assert await list_calls(tool_names=["delegate"]) == [("turn_1", "toolu_2")]
    assert await list_calls(status="error") == [("turn_2", "toolu_1")]
    assert await list_calls(tool_names=["delegate"], status="error") == []
    assert await list_calls(agent="digger") == [("turn_2", "toolu_1")]
    assert await list_calls(agent="") == [("turn_1", "toolu_1"), ("turn_1", "toolu_2")]
    assert await list_calls(limit=2) == [("turn_1", "toolu_2"), ("turn_2", "toolu_1")]


async def test_turns_are_in_the_order_of_their_ids_when_the_clock_was_set_back(database: Database) -> None:
    order = [TurnId(f"turn_{number}") for number in (1, 2, 3)]
    times = ("2026-11-21T12:00:02.000Z", "2026-11-21T12:00:00.000Z", "2026-11-21T12:00:01.000Z")

    def fill(conn: Connection) -> None:
        for turn_id, started_at in zip(order, times, strict=True):
            turn(turn_id, status="queued", began=True, user_message_id="msg_asked", started_at=started_at).insert(conn)

    await database.write(fill)
    session = SessionId("sess_1")
    queued_turns = await database.read(lambda conn: turns.list_queued(conn, session))
    assert [record.id for record in queued_turns] == order
    current = await database.read(lambda conn: turns.current_of(conn, session))
    assert current is not None
    assert current.id == "turn_1"
    tree = await database.read(lambda conn: branches.read_tree(conn, session))
    assert tree.leaf_after(MessageId("msg_asked")) == "msg_a_turn_3"
    assert await database.read(lambda conn: turns.newest_id(conn, session)) == "turn_3"
