"""Faults of a whole server: a deaf child, a suspension, a stepping clock, a disk without space or inodes.

Each sweep here is a generator of output lines for `scripts/faults`. A broken invariant raises `AssertionError`.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import anyio

from agentic_rag.tools.toolset import open_toolset
from tests.faults.client import Chat
from tests.faults.clocks import random_steps, run
from tests.faults.ledger import Ledger
from tests.faults.outside import make_outside
from tests.faults.server import Refused, Server
from tests.faults.sweep import make_rig
from tests.tools.support import QUICK, START, call, hostile, open_hub, text_of, until
from tests.waiting import pause_thread

DISK = "size=96m,nr_inodes=4000"
DEAF = ("deafen", "stop_itself", "orphan_output", "close_output")
PATIENCE = 240.0


def step_clocks(folder: Path, rounds: int, seed: int) -> Iterator[str]:
    """Queue messages while the clock steps, and restart with another clock."""
    random = Random(seed)
    with make_rig(folder) as rig:
        for number in range(rounds):
            steps, restart_at = random_steps(random)
            run(rig, steps, restart_at)
            yield f"round {number + 1}: clock {steps} s wrong, after the restart {restart_at} s: all in order"


def suspend(folder: Path, rounds: int, seed: int, idle: float) -> Iterator[str]:
    """Suspend the server in the middle of an answer for longer than the model's idle limit."""
    random = Random(seed)
    with make_rig(folder, AGENTIC_RAG_MODEL_IDLE_SECONDS=str(idle)) as rig:
        for number in range(rounds):
            conversation, seconds = rig.conversation(), idle * random.uniform(1.1, 2.0)
            with Chat(rig.server, conversation, Ledger()) as chat:
                turn = chat.send(f"Go {conversation} slow", conversation)["turnId"]
                chat.until(lambda event: event["type"] == "text")
                rig.server.suspend(seconds)
                assert chat.finish(turn)["type"] == "done"
            assert rig.outside.asked[conversation] == 1, "the answer was asked for again"
            yield f"round {number + 1}: suspended for {seconds:.1f} s, a model may be silent for {idle:g} s: answered"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small disk as the data folder of a server in ``folder``; needs root."""
    data = folder / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", data], check=True)
    try:
        yield data
    finally:
        subprocess.run(["umount", "-l", data], check=True)


def fill(disk: Path, *, inodes: bool) -> list[Path]:
    """Use up all inodes or all space of a disk. Return the files that do so."""
    ballast: list[Path] = []
    try:
        while True:
            ballast.append(disk / f"ballast-{len(ballast)}")
            with ballast[-1].open("wb", buffering=0) as file:
                while not inodes and file.write(b"x" * 4096) == 4096:
                    pass
    except OSError:
        return [path for path in ballast if path.exists()]


def start_full(folder: Path, *, inodes: bool) -> Iterator[str]:
    """Start a server on a full disk, after a kill and after a clean stop. Read, expect refusals, free space, write."""
    lack = "inodes" if inodes else "room"
    with (
        make_outside(folder) as outside,
        small_disk(folder) as disk,
        Server(folder, outside, AGENTIC_RAG_DISK_RESERVE="0") as server,
    ):
        domain = server.domain(outside)
        conversation = server.conversation(domain)
        for stop in (server.kill, server.terminate):
            stop()
            ballast = fill(disk, inodes=inodes)
            start = time.monotonic()
            server.start()
            startup = time.monotonic() - start
            assert server.call("GET", f"/api/conversations/{conversation}")["id"] == conversation
            writes = _write_until_refused(server)
            assert _ready(server) == 503
            for path in ballast:
                path.unlink()
            start = time.monotonic()
            while _ready(server) != 200:
                assert time.monotonic() - start < PATIENCE, "it does not recover"
                pause_thread()
            recovered = time.monotonic() - start
            server.call("POST", "/api/domains", {"name": "there is room"})
            name = "a kill" if stop == server.kill else "a clean stop"
            yield (
                f"without {lack} after {name}: started in {startup:.1f} s, read, {writes} writes fitted, then 507 and "
                f"not ready; ready {recovered:.1f} s after there was room"
            )


def _write_until_refused(server: Server) -> int:
    """Create domains until the disk is full. Return the number of created domains."""
    count = 0
    while (refusal := _make_domain(server)) is None:
        count += 1
    assert (refusal.status, refusal.code) == (507, "STORAGE_FULL"), refusal
    return count


def _make_domain(server: Server) -> Refused | None:
    try:
        server.call("POST", "/api/domains", {"name": "x"})
    except Refused as refused:
        return refused
    return None


def _ready(server: Server) -> int:
    try:
        server.call("GET", "/api/ready")
    except Refused as refused:
        return refused.status
    return 200


def deafen(folder: Path, rounds: int) -> Iterator[str]:
    """Let a stdio server stop responding in every way.

    It must be detected and restarted, and its next call answered.
    """
    for number in range(rounds):
        for way in DEAF:
            seconds = anyio.run(_deafen, folder / f"{number}-{way}", way)
            yield f"round {number + 1}: {way}: answers again {seconds:.1f} s after its call"


async def _deafen(folder: Path, way: str) -> float:
    async with open_hub(folder, patience=replace(QUICK, ping=1.0)) as hub:
        toolset = await open_toolset(hub, [hostile("pongs")], wait=START)
        before = text_of(await call(toolset, "pid"))
        start = time.monotonic()
        await call(toolset, way, timeout=1.0)

        async def answers() -> bool:
            after = text_of(await call(toolset, "pid"))
            return after.isdigit() and after != before

        await until(answers)
        assert hub.status()[0].state == "ready"
        return time.monotonic() - start
