"""The victim as a process, with a synchronous interface: start it, kill it, send requests, read a turn's log.

This module handles the process and HTTP. `client` handles sockets.
"""

import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from agentic_rag.store.migrations import Revisions
from agentic_rag.testing.failpoints import VARIABLE
from tests.databases import prepare_data, without_demo
from tests.faults.outside import PATIENCE, Outside
from tests.programs import Program

ROOT = Path(__file__).resolve().parent.parent.parent
STARTS = 5
"""Maximum attempts of a start that dies at an armed place."""

Json = dict[str, Any]


class Refused(Exception):
    """An HTTP error answer."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(status, body)
        self.status = status
        self.code = str(body.get("error", {}).get("code", ""))


class Dead(Exception):
    """The server's process has ended."""


class Server:
    """A data folder and the process that serves it. A context manager: on exit it stops the process with SIGTERM."""

    def __init__(self, folder: Path, outside: Outside, **environment: str) -> None:
        self.data = folder / "data"
        self.url = ""
        self.starts = 0
        self.log_path = folder / "server.log"
        """What the processes wrote to stderr."""
        self._child: Program
        inherited = {
            name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))
        }
        # No fault concerns searches by meaning. The embedder's libraries would double the CPU time of a start.
        fixed = {"AGENTIC_RAG_EMBEDDING": "none", "AGENTIC_RAG_DRAIN_SECONDS": "1"}
        self._environment = inherited | outside.environment | fixed | environment
        self._environment["PYTHONPATH"] = str(ROOT)  # a copy of the repository uses its own package
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the program is started many times
        without_demo(self.data)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    # The process

    def start(self, failpoint: str = "") -> None:
        """Start the process and wait until it listens. If it dies at an armed place, start it again without one."""
        if not self.starts and "AGENTIC_RAG_DATABASE_URL" not in self._environment:
            prepare_data(self.data)
        for _ in range(STARTS):
            self.starts += 1
            if self._listens(failpoint):
                return
            failpoint = ""
        raise AssertionError(f"the server does not start: {self.log_path.read_text()[-2000:]}")

    def _listens(self, failpoint: str) -> bool:
        with self.log_path.open("a") as log_file:
            self._child = Program(
                ["--data", str(self.data)],
                module="tests.faults.victim",
                env=self._environment | {VARIABLE: failpoint},
                stdout=subprocess.PIPE,
                stderr=log_file.fileno(),
                cwd=ROOT,
            )
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if line.startswith("Agentic RAG serves"):
            self.url = line.split()[3]
            return True
        self._reap()
        return False

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        """Kill the process as ``kill -9`` does, unless it has ended."""
        self._child.kill()
        self._reap()

    def wait_until_dead(self, seconds: float = PATIENCE) -> None:
        """Wait for the process to kill itself at an armed place."""
        assert self._child.wait(seconds) == -signal.SIGKILL, self.log_path.read_text()[-2000:]
        self._reap()

    def terminate(self) -> int:
        """Stop the process with SIGTERM and return its exit code."""
        if self.alive:
            self._child.terminate()
        try:
            return self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            raise
        finally:
            self._reap()

    def signal(self) -> None:
        """Send SIGTERM without waiting."""
        self._child.terminate()

    def _reap(self) -> None:
        self._child.wait(PATIENCE)
        if self._child.stdout is not None:
            self._child.stdout.close()

    def set_tables(self, revisions: Revisions) -> None:
        """Use the tables of another version from the next start on."""
        self._environment["VICTIM_TABLES"] = f"{revisions.folder}:{revisions.head}"

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident(self) -> int:
        """Resident memory of the process in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise Dead

    # HTTP

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send one JSON request and return the JSON of the answer.

        Raises:
            Refused: the answer is an error.
            Dead: the server did not answer.
        """
        data = None if body is None else json.dumps(body).encode()
        return self.send(method, path, data, {"Content-Type": "application/json", **headers})

    def send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Any:
        """Send one request unchanged and return the JSON of the answer."""
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read()
        except urllib.error.HTTPError as exc:
            with exc:
                raise Refused(exc.code, _json(exc.read())) from exc
        except (OSError, http.client.HTTPException) as exc:
            raise Dead from exc
        return json.loads(text) if text else None

    def arm(self, failpoint: str) -> None:
        """Let the process die at ``name:n`` counted from now. An empty string disarms it."""
        self.call("PUT", "/failpoint", failpoint)

    def set_clock(self, offset: float) -> None:
        """Set the error of the machine's clock in seconds, also for the time after a restart."""
        self._environment["VICTIM_CLOCK"] = str(offset)
        if self.alive:
            self.call("PUT", "/clock", offset)

    def suspend(self, seconds: float) -> None:
        """Suspend the process (SIGSTOP) for some seconds."""
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)

    def read_place_counts(self) -> dict[str, int]:
        """Return how often each place was reached since `arm`."""
        counts: dict[str, int] = self.call("GET", "/failpoint")
        return counts

    def domain(self, outside: Outside, name: str = "proof") -> str:
        """Create a domain with the tool server, and wait until its tools are known."""
        created = self.call("POST", "/api/domains", {"name": name, "settings": outside.settings})
        return str(created["id"])

    def conversation(self, domain: str) -> str:
        return str(self.call("POST", "/api/conversations", {"domainId": domain})["id"])

    def messages(self, conversation: str) -> list[Json]:
        items: list[Json] = self.call("GET", f"/api/conversations/{conversation}/messages?limit=200")["items"]
        return items

    def log(self, turn: str, after: int = 0) -> list[str]:
        """Read a turn's events over SSE to its end. Return the JSON text of each."""
        lines: list[str] = []
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/turns/{turn}/events?after={after}", timeout=PATIENCE
            ) as answer:
                texts = (line[6:].decode().rstrip("\n") for line in answer if line.startswith(b"data: "))
                lines.extend(line for line in texts if "seq" in json.loads(line))  # the others are not part of the log
        except urllib.error.HTTPError as exc:
            with exc:
                raise Refused(exc.code, _json(exc.read())) from exc
        except (OSError, http.client.HTTPException) as exc:
            raise Dead from exc
        return lines


def _json(text: bytes) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return {}
    return value
