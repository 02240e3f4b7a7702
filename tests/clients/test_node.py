"""The packages of stock clients are installed in the versions of the lock file."""

import json

from tests.node import CLIENTS, run_client


async def test_the_stock_clients_have_their_locked_versions() -> None:
    locked = json.loads((CLIENTS / "package.json").read_text())["dependencies"]
    (installed,) = await run_client("versions.mjs")
    assert installed == locked
