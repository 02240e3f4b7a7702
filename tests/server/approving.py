"""A program for `test_launch_requests` that requests a script and approves it, until a failpoint kills it.

It prints the operator's key for the test.
"""

import os
import sys
from pathlib import Path

import anyio

from agentic_rag.testing.failpoints import VARIABLE, failpoint_of
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig


async def run(folder: Path) -> None:
    async with Rig(folder, failpoint=failpoint_of(os.environ[VARIABLE])) as rig:
        domain = await rig.domain()
        key = await make_key(rig, "root", "operator")
        sys.stdout.write(f"{key}\n")
        sys.stdout.flush()
        path = f"/api/domains/{domain}/mcp-servers/notes/request"
        request = await rig.ok("POST", path, {"command": "node", "args": ["./notes.js"]}, headers=bearer(key))
        approval = {"fingerprint": request["fingerprint"]}
        await rig.ok("POST", f"/api/launch-requests/{request['id']}/approve", approval, headers=bearer(key))
        await anyio.sleep_forever()


def main() -> None:
    anyio.run(run, Path(sys.argv[1]))
