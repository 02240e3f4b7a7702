"""Many senders, many sockets, and readers that never read, on the real server over real sockets."""

from concurrent.futures import ThreadPoolExecutor

from tests.faults.client import Chat
from tests.faults.ledger import TERMINAL, Ledger, event_of
from tests.faults.server import Json, Refused
from tests.faults.sweep import Rig

MANY = 50


def post(rig: Rig, conversation: str, content: str, key: str) -> Json | str:
    """Post a message; return the turn, or the error code of the refusal."""
    body = {"content": content, "clientMessageId": key}
    try:
        turn: Json = rig.server.call(
            "POST", f"/api/conversations/{conversation}/messages", body, Accept="application/json"
        )
    except Refused as exc:
        return exc.code
    return turn


def test_fifty_posts_of_one_message_at_once_make_one_turn(rig: Rig) -> None:
    conversation = rig.conversation()
    content = f"Hello {conversation} plain"
    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(lambda _: post(rig, conversation, content, "the one"), range(MANY)))
    turns = {answer["id"] for answer in answers if isinstance(answer, dict)}
    assert len(turns) == 1, answers
    assert all(isinstance(answer, dict) for answer in answers), answers
    rig.server.log(turns.pop())
    assert [message["role"] for message in rig.server.messages(conversation)] == ["user", "assistant"]
    assert rig.outside.asked[conversation] == 1


def test_one_of_fifty_parallel_posts_creates_a_turn_and_the_others_are_refused(rig: Rig) -> None:
    conversation = rig.conversation()

    def send(number: int) -> Json | str:
        return post(rig, conversation, f"Hello {conversation}-{number} lasting", f"number {number}")

    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(send, range(MANY)))
    turns = [answer["id"] for answer in answers if isinstance(answer, dict)]
    assert len(turns) == 1, answers
    assert [answer for answer in answers if isinstance(answer, str)] == ["TURN_IN_PROGRESS"] * (MANY - 1)
    rig.server.call("POST", f"/api/conversations/{conversation}/interrupt", {})
    rig.server.log(turns[0])
    assert sum(message["role"] == "user" for message in rig.server.messages(conversation)) == 1


def test_a_client_dropped_at_every_event_gets_the_uninterrupted_stream_byte_for_byte(rig: Rig) -> None:
    conversation, ledger = rig.conversation(), Ledger()
    with Chat(rig.server, conversation, ledger) as chat:
        turn = chat.send(f"Hello {conversation} tools", conversation)["turnId"]
        chat.finish(turn)
        stream = list(chat.raw)
    for offset in range(len(stream)):  # from every number of the ended turn to its end
        with Chat(rig.server, conversation, Ledger()) as chat:
            chat.subscribe(turn, offset)
            chat.finish(turn)
            assert chat.raw == stream[offset:]
    assert rig.server.log(turn) == stream


def test_a_client_dropped_in_a_running_turn_resumes_byte_for_byte(rig: Rig) -> None:
    conversation, ledger = rig.conversation(), Ledger()
    received: list[str] = []
    with Chat(rig.server, conversation, ledger) as watcher:
        turn = watcher.send(f"Hello {conversation} long", conversation)["turnId"]
        last = 0
        while not received or event_of(received[-1])["type"] not in TERMINAL:  # a new socket for every event
            with Chat(rig.server, conversation, ledger) as chat:
                chat.subscribe(turn, last)
                last = chat.until(lambda event: True)["seq"]
                received += chat.raw
        watcher.finish(turn)
    assert received == watcher.raw == rig.server.log(turn)
    assert len(received) > MANY


def test_a_client_that_never_reads_stops_neither_the_turn_nor_the_other_readers(rig: Rig) -> None:
    conversation, ledger = rig.conversation(), Ledger()
    deltas = 3_000
    with Chat(rig.server, conversation, ledger) as deaf, Chat(rig.server, conversation, ledger) as second_chat:
        deaf.subscribe()
        turn = second_chat.send(f"Hello {conversation} pages={deltas}", conversation)["turnId"]
        assert second_chat.finish(turn)["type"] == "done"
        assert sum(event["type"] == "text" for event in second_chat.events) == deltas
        assert deaf.events == []
        assert rig.server.call("GET", f"/api/turns/{turn}")["status"] == "done"
        deaf.finish(turn)  # and it continues to read later
        assert deaf.raw == second_chat.raw
