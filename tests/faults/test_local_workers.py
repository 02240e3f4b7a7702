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
from tests.faults.outside import PATIENCE, Outside, make_outside
from tests.faults.server import Server
from tests.programs import Program, run_program
from tests.store.conftest import needs_postgresql
from tests.waiting import pause_thread

pytestmark = [needs_postgresql, pytest.mark.xdist_group("local_workers")]

NO_INDEX = "http://127.0.0.1:9"
"""The address of a Qdrant server that does not exist. None of these turns searches."""


class Workers(Server):
    """A data folder and a server of two workers."""

    def __init__(self, folder: Path, outside: Outside, database: str, **settings: str) -> None:
        super().__init__(folder, outside)
        self.outside = outside
        variables = {
            "AGENTIC_RAG_DATA": str(self.data),
            "AGENTIC_RAG_DATABASE_URL": database,
            "AGENTIC_RAG_DRAIN_SECONDS": "1",
            "AGENTIC_RAG_EMBEDDING": "none",
            "AGENTIC_RAG_REPLICA": "here",
            "QDRANT_URL": NO_INDEX,
        }
        self.settings = environment(**outside.environment, **{**variables, **settings})
        arguments = ["serve", "--workers", "2", "--port", "0"]
        with self.log_path.open("a") as log_file:
            output = subprocess.PIPE
            self.program = Program(arguments, cwd=folder, env=self.settings, stdout=output, stderr=log_file.fileno())

    def begin(self) -> None:
        """Wait until it reports that it serves."""
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        assert line.startswith("Agentic RAG serves"), self.log_path.read_text()
        self.url = line.split()[3]

    @property
    def pids(self) -> list[int]:
        """The workers' processes, oldest first."""
        return children_of(self.program.pid)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_program(arguments, cwd=self.data.parent, env=self.settings)

    def reach(self, pid: int, conversation: str, ledger: Ledger) -> Chat:
        """Connect repeatedly until a certain worker accepts the connection."""
        deadline = monotonic() + PATIENCE
        while True:
            chat = Chat(self, conversation, ledger)
            if owns(pid, chat.port, int(self.url.rpartition(":")[2])):
                return chat
            chat.drop()
            assert monotonic() < deadline

    def end(self) -> None:
        """Kill all of its remaining processes."""
        for pid in [*(self.pids if is_alive(self.program.pid) else ()), self.program.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.program.wait()
        if self.program.stdout is not None:
            self.program.stdout.close()


@contextmanager
def run_workers(folder: Path, **settings: str) -> Iterator[Workers]:
    with make_outside(folder) as outside:
        workers = Workers(folder, outside, postgresql_at(folder), **settings)
        try:
            workers.begin()
            yield workers
        finally:
            workers.end()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with run_workers(tmp_path_factory.mktemp("workers")) as workers:
        yield workers


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


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


def wait_until(condition: Callable[[], Any]) -> None:
    end = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < end
        pause_thread()


def replicas(server: Server) -> set[str]:
    """Return the names of the live processes, as the answering one knows them."""
    return {replica["id"] for replica in server.call("GET", "/api/health")["replicas"]}


def meet(server: Server, names: set[str]) -> bool:
    """Return whether new connections have reached all workers; their names are collected."""
    names |= {replica["id"] for replica in server.call("GET", "/api/health")["replicas"] if replica["own"]}
    return len(names) == 2


def test_two_workers_are_one_server(workers: Workers) -> None:
    replicas_met: set[str] = set()
    wait_until(lambda: meet(workers, replicas_met))
    assert replicas_met == replicas(workers) == {"here-1", "here-2"}
    domain = workers.domain(workers.outside, new_id("proof"))
    for _ in range(3):  # any worker accepts it: the command line has one key, and a ticket is valid at each
        listing = workers.command("domains", "list")
        assert (listing.returncode, domain in listing.stdout) == (0, True), listing.stderr
        opening = workers.command("open", "--no-browser")
        ticket = opening.stdout.strip().rpartition("#ticket=")[2]
        headers = {"X-Requested-With": "page"}
        account = workers.call("POST", "/api/auth/ticket", {"ticket": ticket}, **headers)
        assert account["name"] == "local"


def test_a_turn_is_followed_and_interrupted_through_the_other_worker(workers: Workers) -> None:
    conversation, ledger = workers.conversation(workers.domain(workers.outside, new_id("proof"))), Ledger()
    first_pid, second_pid = workers.pids
    with (
        workers.reach(first_pid, conversation, ledger) as sender,
        workers.reach(second_pid, conversation, ledger) as reader,
    ):
        reader.subscribe()
        turn = sender.send("Go there lasting", "there")["turnId"]
        reader.until(lambda event: event["type"] == "text")
        reader.say("interrupt")
        assert reader.finish(turn)["type"] == sender.finish(turn)["type"] == "interrupted"


def test_a_killed_workers_turn_continues_and_the_worker_is_replaced(workers: Workers) -> None:
    conversation, ledger = workers.conversation(workers.domain(workers.outside, new_id("proof"))), Ledger()
    killed_pid, surviving_pid = workers.pids
    with (
        workers.reach(killed_pid, conversation, ledger) as sender,
        workers.reach(surviving_pid, conversation, ledger) as reader,
    ):
        reader.subscribe()
        turn = sender.send("Go killed tools", "killed")["turnId"]
        sender.until(lambda event: event["type"] == "text" or event["type"].startswith("think"))
        os.kill(killed_pid, signal.SIGKILL)
        assert reader.finish(turn)["type"] == "done"
    assert workers.outside.spent["killed"] <= 1
    wait_until(lambda: len(workers.pids) == 2 and replicas(workers) == {"here-1", "here-2"})
    assert killed_pid not in workers.pids
    assert surviving_pid in workers.pids
    replicas_met: set[str] = set()
    wait_until(lambda: meet(workers, replicas_met))
    assert "was ended by signal 9" in workers.log_path.read_text()


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
    with run_workers(tmp_path, AGENTIC_RAG_DRAIN_SECONDS=patience) as workers:
        pids = workers.pids
        with Chat(workers, workers.conversation(workers.domain(workers.outside)), Ledger()) as chat:
            chat.send("Go stop lasting", "stop")
            chat.until(lambda event: event["type"] == "text")
            for number in signals:
                workers.program.send_signal(number)
                wait_until(lambda: refuses(workers))
            assert workers.program.wait(PATIENCE) == 0, workers.log_path.read_text()
        assert not any(is_alive(pid) for pid in pids)


def refuses(server: Server) -> bool:
    """Return whether nothing listens there any more."""
    try:
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), PATIENCE).close()
    except OSError:
        return True
    return False


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with run_workers(tmp_path) as workers:
        pids = workers.pids
        os.kill(workers.program.pid, signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in pids))
        assert refuses(workers)


def test_settings_that_several_workers_cannot_share_are_refused_at_once(tmp_path: Path, workers: Workers) -> None:
    address = "postgresql://rag@127.0.0.1:1/none"
    for variables, named_setting in (
        ({}, "AGENTIC_RAG_DATABASE_URL"),
        ({"AGENTIC_RAG_DATABASE_URL": address}, "QDRANT_URL"),
        ({"AGENTIC_RAG_DATABASE_URL": address, "QDRANT_URL": NO_INDEX, "AGENTIC_RAG_WS_DIALECT": "x"}, "WS_DIALECT"),
    ):
        result = run_program(["serve", "--workers", "2", "--port", "0"], cwd=tmp_path, env=environment(**variables))
        assert result.returncode == 2
        assert named_setting in result.stderr
    assert "--workers: 2 cannot be" in run_program(["serve", "--workers", "2"], cwd=tmp_path, env=environment()).stderr
    port = workers.url.rpartition(":")[2]
    for worker_count in ("1", "2"):
        result = workers.command("serve", "--workers", worker_count, "--port", port, "--data", str(tmp_path / "other"))
        assert result.returncode == 4, result.stderr
    result = workers.command("serve", "--workers", "2", "--port", "0")  # on the same folder
    assert result.returncode == 3, result.stderr


def test_a_machines_limits_are_divided_among_its_workers(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, workers=3, replica="here", max_turns=7, transcript_bytes=300)
    worker_settings = [settings_of(settings, number) for number in (1, 2, 3)]
    assert [worker.max_turns for worker in worker_settings] == [3, 2, 2]
    assert [worker.replica for worker in worker_settings] == ["here-1", "here-2", "here-3"]
    assert {worker.transcript_bytes for worker in worker_settings} == {100}
    assert [settings_of(settings.model_copy(update={"max_turns": turns}), 3).max_turns for turns in (0, 1)] == [0, 1]
