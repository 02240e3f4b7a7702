"""SIGTERM with clients in the middle of a turn, and killed deletions: what clients receive, and what is left."""

import json
import os
import signal
import urllib.request
from contextlib import suppress
from threading import Thread

import pytest

from tests.faults.client import Chat
from tests.faults.ledger import Ledger
from tests.faults.outside import PATIENCE
from tests.faults.server import Dead, Refused
from tests.faults.sweep import Rig
from tests.waiting import pause_thread


class Listener(Thread):
    """Reads a turn over SSE to the end of the stream, complete or not."""

    def __init__(self, rig: Rig, turn: str) -> None:
        super().__init__()
        self._url = f"{rig.server.url}/api/turns/{turn}/events"
        self.lines: list[str] = []
        self.whole = False

    def run(self) -> None:
        with urllib.request.urlopen(self._url, timeout=PATIENCE) as answer:
            for line in answer:
                self.lines.append(line.decode().rstrip("\n"))
            self.whole = True  # the last piece of a chunked body arrived, so the stream was closed and not cut


@pytest.mark.parametrize("signals", [1, 2])
def test_clients_are_notified_of_a_stop_without_an_exception(rig: Rig, signals: int) -> None:
    conversation = rig.conversation()
    before = len(rig.server.log_path.read_text())
    with Chat(rig.server, conversation, Ledger()) as chat, Chat(rig.server, rig.conversation(), Ledger()) as idle:
        turn = chat.send(f"Go {conversation} lasting", conversation)["turnId"]
        chat.until(lambda event: event["type"] == "text")
        listener = Listener(rig, turn)
        listener.start()
        while len(listener.lines) < 10:
            chat.hear()
        if signals == 2:
            os.kill(rig.server.pid, signal.SIGINT)
        code = rig.server.terminate()
        listener.join(PATIENCE)
        with suppress(Dead):
            while True:
                chat.hear()
        with pytest.raises(Dead):
            idle.hear()
    rig.server.start()
    assert code == 0
    assert "Traceback" not in rig.server.log_path.read_text()[before:]
    if signals == 1:
        assert chat.asides == ["SERVER_STOPPING"]
        assert (chat.closed, idle.closed) == (1012, 1012)
        assert listener.whole
        data = [line for line in listener.lines if line]
        assert data[-2:][0] == "event: notice"
        assert json.loads(data[-1].removeprefix("data: "))["code"] == "SERVER_STOPPING"
        assert not data[-3].startswith("id: "), "the client's last id must stay the one of the last event"
    rig.server.call("POST", f"/api/conversations/{conversation}/interrupt", {})
    assert json.loads(rig.server.log(turn)[-1])["type"] == "interrupted"


PLACES = ("commit.begin:1", "delete.marked:1", "delete.unlinked:1")


@pytest.mark.parametrize(
    "place",
    [
        *PLACES[2:],
        *(pytest.param(place, marks=pytest.mark.nightly("a later kill runs every time")) for place in PLACES[:2]),
    ],
)
def test_a_deletion_killed_at_any_point_is_finished_by_the_next_start(rig: Rig, place: str) -> None:
    documents = f"/api/domains/{rig.domain}/documents"
    name = place.replace(":", "-").replace(".", "-") + ".md"
    text = f"# Holidays\n\nEveryone has {name} days of paid leave.\n".encode()
    border = b'--x\r\nContent-Disposition: form-data; name="f"; filename="%b"\r\n\r\n' % name.encode()
    body = border + text + b"\r\n--x--\r\n"
    uploaded = rig.server.send("POST", documents, body, {"Content-Type": "multipart/form-data; boundary=x"})
    document = uploaded["items"][0]["id"]
    while rig.server.call("GET", f"{documents}/{document}")["status"] != "indexed":
        pause_thread()
    rig.server.arm(place)
    with pytest.raises(Dead):
        rig.server.call("DELETE", f"{documents}/{document}")
    rig.server.wait_until_dead()
    rig.server.start()
    document_ids = [document_row["id"] for document_row in rig.server.call("GET", documents)["items"]]
    if place == "commit.begin:1":  # nothing was acknowledged or begun
        assert document_ids == [document]
        rig.server.call("DELETE", f"{documents}/{document}")
    else:
        assert document_ids == []
        with pytest.raises(Refused):
            rig.server.call("DELETE", f"{documents}/{document}")
    assert rig.server.call("POST", f"{documents}/search", {"query": "paid leave"})["hits"] == []
    folder = rig.server.data / "workspaces" / rig.domain / "documents"
    assert [path.name for path in folder.iterdir()] == []
    assert rig.server.call("POST", f"{documents}/rescan") == {"added": 0}
