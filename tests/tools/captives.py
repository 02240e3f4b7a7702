"""Shared parts of the attack tests: the captive server, allowed as by an operator, with its calls and its heartbeat."""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.tools.launch.allowed import ExtraRights, LaunchCatalogue
from agentic_rag.tools.launch.environment import MARKER
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.sandbox import find_sandbox
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.toolset import ServerToolset, open_toolset
from tests.tools.support import QUICK, START, Hub, call, stdio_spec, text_of

PYTHON = os.path.realpath(sys.executable)
CAPTIVE = Path(__file__).parent / "servers" / "captive.py"
SANDBOX = find_sandbox()
needs_bubblewrap = pytest.mark.skipif(isinstance(SANDBOX, str), reason=f"bubblewrap: {SANDBOX}")


def policy_in(folder: Path, **fields: Any) -> LaunchPolicy:
    """Return a policy of a multi-user server."""
    catalogue = LaunchCatalogue(folder / "mcp")
    return LaunchPolicy(
        folder / "mcp" / "homes", catalogue=catalogue, packages=Packages(folder / "mcp", dict(os.environ)), **fields
    )


async def allow_captive(policy: LaunchPolicy, *args: str, **rights: Any) -> LaunchSpec:
    """Allow the captive's command line and return an entry that uses it."""
    line = [PYTHON, "-I", "-S", str(CAPTIVE), *args]
    assert policy.packages is not None
    await policy.catalogue.allow(
        line, ExtraRights(folders=(sys.base_prefix,), **rights), policy.packages, [policy.homes]
    )
    return stdio_spec(*line, name="captive", domain="law")


@asynccontextmanager
async def captive(
    folder: Path, *args: str, limits: Mapping[str, int] | None = None, disk_reserve: int = 0, **rights: Any
) -> AsyncIterator["Captive"]:
    """Run the captive in its sandbox. At the end none of its processes is left and its heartbeat has stopped."""
    policy = policy_in(folder, disk_reserve=disk_reserve)
    spec = await allow_captive(policy, *args, **rights)
    if limits is not None:
        set_limits(folder, limits)
    async with Hub(policy=policy, patience=QUICK) as hub:
        toolset = await open_toolset(hub, [spec], wait=START)
        yield Captive(policy, hub, toolset)
    assert policy.sweep() == 0
    await assert_no_heartbeat(policy.homes)


def set_limits(folder: Path, limits: Mapping[str, int]) -> None:
    """Change the limits of the one allowed entry, as an operator can in the file."""
    file = folder / "mcp" / "allowed.json"
    tables = json.loads(file.read_text())
    tables["entry"][0]["limits"] = dict(limits)
    file.write_text(json.dumps(tables))


class Captive:
    """A running captive."""

    def __init__(self, policy: LaunchPolicy, hub: Hub, toolset: ServerToolset) -> None:
        self.policy, self.hub, self.toolset = policy, hub, toolset

    @property
    def home(self) -> Path:
        return next(self.policy.homes.iterdir())

    async def try_to(self, attempt: str, path: object = "") -> tuple[bool, Any]:
        """Return whether an attempt succeeded, and its result."""
        outcome = await call(self.toolset, f"captive__{attempt}", 20, path=str(path))
        text = text_of(outcome)
        value = json.loads(text) if text.startswith(("[", "{")) else text
        return outcome.status == "ok", value


async def assert_no_heartbeat(homes: Path) -> None:
    """Assert that no heartbeat is written any more: two samples, ten beats apart, are equal."""
    before = beats(homes)
    await anyio.sleep(0.2)
    assert beats(homes) == before


def beats(homes: Path) -> int:
    """Return the number of the captives' heartbeats so far."""
    return sum(file.stat().st_size for file in homes.glob("*/heartbeat"))


def find_processes(marker: str) -> list[int]:
    """Return the sorted process ids of a policy."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARKER}={marker}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                pids.append(int(pid))
        except OSError:  # ended meanwhile
            continue
    return sorted(pids)


def parent_of(pid: int) -> int:
    """Return the parent of a process. Ids do not tell a process's age, because they wrap around."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
