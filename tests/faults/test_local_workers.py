"""``agentic-rag serve --workers 2``: one server of two processes over real sockets, and its failures."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agentic_rag.app.local_workers import settings_of
from agentic_rag.base.settings import Settings
from agentic_rag.store.clock import new_id
from tests.databases import postgresql_at
from tests.e2e.serving import environment
from tests.faults.client import Chat
from tests.faults.ledger import Ledger
from tests.faults.outside import PATIENCE, Outside, outside
from tests.faults.server import Server
from tests.programs import Program, run_program
from tests.store.conftest import needs_postgresql
from tests.waiting import pause_thread

pytestmark = [needs_postgresql, pytest.mark.xdist_group("local_workers")]

NO_INDEX = "http://127.0.0.1:9"
"""The address of a Qdrant server that does not exist. None of these turns searches."""


class Workers(Server):
    """A data folder and a server of two workers."""

    def __init__(self, folder: Path, around: Outside, database: str, **more: str) -> None:
        super().__init__(folder, around)
        self.outside = around
        given = {
            "AGENTIC_RAG_DATA": str(self.data),
            "AGENTIC_RAG_DATABASE_URL": database,
            "AGENTIC_RAG_DRAIN_SECONDS": "1",
            "AGENTIC_RAG_EMBEDDING": "none",
            "AGENTIC_RAG_REPLICA": "here",
            "QDRANT_URL": NO_INDEX,
        }
        self.settings = environment(**around.environment, **{**given, **more})
        arguments = ["serve", "--workers", "2", "--port", "0"]
        with self.said.open("a") as said:
            out = subprocess.PIPE
            self.program = Program(arguments, cwd=folder, env=self.settings, stdout=out, stderr=said.fileno())

    def begin(self) -> None:
        """Wait until it reports that it serves."""
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        assert line.startswith("Agentic RAG serves"), self.said.read_text()
        self.url = line.split()[3]

    @property
    def pids(self) -> list[int]:
        """The workers' processes, oldest first."""
        return children_of(self.program.pid)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_program(arguments, cwd=self.data.parent, env=self.settings)

    def reach(self, pid: int, conversation: str, ledger: Ledger) -> Chat:
        """Connect repeatedly until a certain worker accepts the connection."""
        until = monotonic() + PATIENCE
        while True:
            chat = Chat(self, conversation, ledger)
            if owns(pid, chat.port, int(self.url.rpartition(":")[2])):
                return chat
            chat.drop()
            assert monotonic() < until

    def end(self) -> None:
        """Kill all of its remaining processes."""
        for pid in [*(self.pids if is_alive(self.program.pid) else ()), self.program.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.program.wait()
        if self.program.stdout is not None:
            self.program.stdout.close()


@contextmanager
def served(folder: Path, **more: str) -> Iterator[Workers]:
    with outside(folder) as around:
        made = Workers(folder, around, postgresql_at(folder), **more)
        try:
            made.begin()
            yield made
        finally:
            made.end()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with served(tmp_path_factory.mktemp("workers")) as made:
        yield made


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A process that was not asked about before counts as stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def owns(pid: int, client: int, server: int) -> bool:
    """Return whether a process holds the other end of a client's connection, by its port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [row[9] for row in rows if row[1].endswith(f":{server:04X}") and row[2].endswith(f":{client:04X}")]
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(os.readlink(link) == f"socket:[{inode}]" for link in links if link.is_symlink())


def until(met: Callable[[], Any]) -> None:
    end = monotonic() + PATIENCE
    while not met():
        assert monotonic() < end
        pause_thread()


def replicas(server: Server) -> set[str]:
    """Return the names of the live processes, as the answering one knows them."""
    return {replica["id"] for replica in server.call("GET", "/api/health")["replicas"]}


def meet(server: Server, names: set[str]) -> bool:
    """Return whether new connections have reached all workers; their names are collected."""
    names |= {replica["id"] for replica in server.call("GET", "/api/health")["replicas"] if replica["own"]}
    return len(names) == 2


def test_two_workers_are_one_server(two: Workers) -> None:
    found: set[str] = set()
    until(lambda: meet(two, found))
    assert found == replicas(two) == {"here-1", "here-2"}
    domain = two.domain(two.outside, new_id("proof"))
    for _ in range(3):  # any worker accepts it: the command line has one key, and a ticket is valid at each
        listed = two.command("domains", "list")
        assert (listed.returncode, domain in listed.stdout) == (0, True), listed.stderr
        opened = two.command("open", "--no-browser")
        ticket = opened.stdout.strip().rpartition("#ticket=")[2]
        headers = {"X-Requested-With": "page"}
        signed = two.call("POST", "/api/auth/ticket", {"ticket": ticket}, **headers)
        assert signed["name"] == "local"


def test_a_turn_is_followed_and_interrupted_through_the_other_worker(two: Workers) -> None:
    conversation, ledger = two.conversation(two.domain(two.outside, new_id("proof"))), Ledger()
    one, other = two.pids
    with two.reach(one, conversation, ledger) as sender, two.reach(other, conversation, ledger) as reader:
        reader.subscribe()
        turn = sender.send("Go there lasting", "there")["turnId"]
        reader.until(lambda event: event["type"] == "text")
        reader.say("interrupt")
        assert reader.finish(turn)["type"] == sender.finish(turn)["type"] == "interrupted"


def test_a_killed_workers_turn_continues_and_the_worker_is_replaced(two: Workers) -> None:
    conversation, ledger = two.conversation(two.domain(two.outside, new_id("proof"))), Ledger()
    one, other = two.pids
    with two.reach(one, conversation, ledger) as sender, two.reach(other, conversation, ledger) as reader:
        reader.subscribe()
        turn = sender.send("Go killed tools", "killed")["turnId"]
        sender.until(lambda event: event["type"] == "text" or event["type"].startswith("think"))
        os.kill(one, signal.SIGKILL)
        assert reader.finish(turn)["type"] == "done"
    assert two.outside.spent["killed"] <= 1
    until(lambda: len(two.pids) == 2 and replicas(two) == {"here-1", "here-2"})
    assert one not in two.pids
    assert other in two.pids
    found: set[str] = set()
    until(lambda: meet(two, found))
    assert "was ended by signal 9" in two.said.read_text()


@pytest.mark.parametrize(
    ("patience", "signals"),
    [
        pytest.param("1", (signal.SIGTERM,), id="in order"),
        pytest.param(
            *("600", (signal.SIGINT, signal.SIGTERM)),
            id="at once",
            marks=pytest.mark.nightly("test_stops.py sends one process a second signal every time"),
        ),
    ],
)
def test_a_signal_stops_all_workers_in_order_and_a_second_one_at_once(
    tmp_path: Path, patience: str, signals: tuple[signal.Signals, ...]
) -> None:
    with served(tmp_path, AGENTIC_RAG_DRAIN_SECONDS=patience) as made:
        pids = made.pids
        with Chat(made, made.conversation(made.domain(made.outside)), Ledger()) as chat:
            chat.send("Go stop lasting", "stop")
            chat.until(lambda event: event["type"] == "text")
            for each in signals:
                made.program.send_signal(each)
                until(lambda: refuses(made))
            assert made.program.wait(PATIENCE) == 0, made.said.read_text()
        assert not any(is_alive(pid) for pid in pids)


def refuses(server: Server) -> bool:
    """Return whether nothing listens there any more."""
    try:
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), PATIENCE).close()
    except OSError:
        return True
    return False


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        pids = made.pids
        os.kill(made.program.pid, signal.SIGKILL)
        until(lambda: not any(is_alive(pid) for pid in pids))
        assert refuses(made)


def test_settings_that_several_workers_cannot_share_are_refused_at_once(tmp_path: Path, two: Workers) -> None:
    address = "postgresql://rag@127.0.0.1:1/none"
    for given, missing in (
        ({}, "AGENTIC_RAG_DATABASE_URL"),
        ({"AGENTIC_RAG_DATABASE_URL": address}, "QDRANT_URL"),
        ({"AGENTIC_RAG_DATABASE_URL": address, "QDRANT_URL": NO_INDEX, "AGENTIC_RAG_WS_DIALECT": "x"}, "WS_DIALECT"),
    ):
        ended = run_program(["serve", "--workers", "2", "--port", "0"], cwd=tmp_path, env=environment(**given))
        assert ended.returncode == 2
        assert missing in ended.stderr
    assert "--workers: 2 cannot be" in run_program(["serve", "--workers", "2"], cwd=tmp_path, env=environment()).stderr
    port = two.url.rpartition(":")[2]
    for workers in ("1", "2"):
        ended = two.command("serve", "--workers", workers, "--port", port, "--data", str(tmp_path / "other"))
        assert ended.returncode == 4, ended.stderr
    ended = two.command("serve", "--workers", "2", "--port", "0")  # on the same folder
    assert ended.returncode == 3, ended.stderr


def test_a_machines_limits_are_divided_among_its_workers(tmp_path: Path) -> None:
    given = Settings(data=tmp_path, workers=3, replica="here", max_turns=7, transcript_bytes=300)
    made = [settings_of(given, number) for number in (1, 2, 3)]
    assert [each.max_turns for each in made] == [3, 2, 2]
    assert [each.replica for each in made] == ["here-1", "here-2", "here-3"]
    assert {each.transcript_bytes for each in made} == {100}
    assert [settings_of(given.model_copy(update={"max_turns": turns}), 3).max_turns for turns in (0, 1)] == [0, 1]
