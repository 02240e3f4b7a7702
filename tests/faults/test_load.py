"""Many senders, many sockets, and readers that never read, on the real server over real sockets."""

from concurrent.futures import ThreadPoolExecutor

from tests.faults.client import Chat
from tests.faults.ledger import TERMINAL, Ledger, event_of
from tests.faults.server import Json, Refused
from tests.faults.sweep import Rig

MANY = 50


def post(made: Rig, conversation: str, content: str, key: str) -> Json | str:
    """Post a message; return the turn, or the error code of the refusal."""
    body = {"content": content, "clientMessageId": key}
    try:
        turn: Json = made.server.call(
            "POST", f"/api/conversations/{conversation}/messages", body, Accept="application/json"
        )
    except Refused as exc:
        return exc.code
    return turn


def test_fifty_posts_of_one_message_at_once_make_one_turn(made: Rig) -> None:
    conversation = made.conversation()
    content = f"Hello {conversation} plain"
    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(lambda _: post(made, conversation, content, "the one"), range(MANY)))
    turns = {answer["id"] for answer in answers if isinstance(answer, dict)}
    assert len(turns) == 1, answers
    assert all(isinstance(answer, dict) for answer in answers), answers
    made.server.log(turns.pop())
    assert [message["role"] for message in made.server.messages(conversation)] == ["user", "assistant"]
    assert made.outside.asked[conversation] == 1


def test_one_of_fifty_parallel_posts_creates_a_turn_and_the_others_are_refused(made: Rig) -> None:
    conversation = made.conversation()

    def send(number: int) -> Json | str:
        return post(made, conversation, f"Hello {conversation}-{number} lasting", f"number {number}")

    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(send, range(MANY)))
    turns = [answer["id"] for answer in answers if isinstance(answer, dict)]
    assert len(turns) == 1, answers
    assert [answer for answer in answers if isinstance(answer, str)] == ["TURN_IN_PROGRESS"] * (MANY - 1)
    made.server.call("POST", f"/api/conversations/{conversation}/interrupt", {})
    made.server.log(turns[0])
    assert sum(message["role"] == "user" for message in made.server.messages(conversation)) == 1


def test_a_client_dropped_at_every_event_gets_the_uninterrupted_stream_byte_for_byte(made: Rig) -> None:
    conversation, ledger = made.conversation(), Ledger()
    with Chat(made.server, conversation, ledger) as chat:
        turn = chat.send(f"Hello {conversation} tools", conversation)["turnId"]
        chat.finish(turn)
        whole = list(chat.raw)
    for after in range(len(whole)):  # from every number of the ended turn to its end
        with Chat(made.server, conversation, Ledger()) as chat:
            chat.subscribe(turn, after)
            chat.finish(turn)
            assert chat.raw == whole[after:]
    assert made.server.log(turn) == whole


def test_a_client_dropped_in_a_running_turn_resumes_byte_for_byte(made: Rig) -> None:
    conversation, ledger = made.conversation(), Ledger()
    seen: list[str] = []
    with Chat(made.server, conversation, ledger) as watcher:
        turn = watcher.send(f"Hello {conversation} long", conversation)["turnId"]
        last = 0
        while not seen or event_of(seen[-1])["type"] not in TERMINAL:  # a new socket for every event
            with Chat(made.server, conversation, ledger) as chat:
                chat.subscribe(turn, last)
                last = chat.until(lambda event: True)["seq"]
                seen += chat.raw
        watcher.finish(turn)
    assert seen == watcher.raw == made.server.log(turn)
    assert len(seen) > MANY


def test_a_client_that_never_reads_stops_neither_the_turn_nor_the_other_readers(made: Rig) -> None:
    conversation, ledger = made.conversation(), Ledger()
    deltas = 3_000
    with Chat(made.server, conversation, ledger) as deaf, Chat(made.server, conversation, ledger) as other:
        deaf.subscribe()
        turn = other.send(f"Hello {conversation} pages={deltas}", conversation)["turnId"]
        assert other.finish(turn)["type"] == "done"
        assert sum(event["type"] == "text" for event in other.events) == deltas
        assert deaf.events == []
        assert made.server.call("GET", f"/api/turns/{turn}")["status"] == "done"
        deaf.finish(turn)  # and it continues to read later
        assert deaf.raw == other.raw
