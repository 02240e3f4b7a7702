"""An MCP server with resources that a test changes, and runs of sources in an application."""

import json
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.testing import fake_resources
from tests.server.rig import WAIT_SECONDS, Json, Rig
from tests.waiting import pause

TIME = "2026-01-01T00:00:00Z"


class Library:
    """The state and the log of a server of `fake_resources`."""

    def __init__(self, folder: Path, count: int = 0) -> None:
        self.folder = folder
        self.state: Json = {"resources": [resource(number) for number in range(count)]}
        self.log = folder / "server.log"
        self.log.touch()
        self.save()

    def save(self, **changes: Any) -> None:
        """Store changed members; None removes one."""
        self.state |= changes
        members = {name: value for name, value in self.state.items() if value is not None}
        draft = self.folder / "state.draft"
        draft.write_text(json.dumps(members), encoding="utf-8")
        draft.rename(self.folder / "state.json")

    def edit(self, number: int, **fields: Any) -> None:
        self.state["resources"][number] |= fields
        self.save()

    @property
    def entry(self) -> Json:
        script, state = Path(fake_resources.__file__), self.folder / "state.json"
        return {"command": sys.executable, "args": ["-I", "-S", str(script), str(state), str(self.log)]}

    def count_reads(self) -> Counter[str]:
        """Return how often each resource was read since the last call."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        self.log.write_text("", encoding="utf-8")
        return Counter(line.partition(" ")[2] for line in lines if line.startswith("resources/read"))


def resource(number: int, **fields: Any) -> Json:
    uri = f"lib://books/{number:04}"
    text = f"# Book {number}\n\nThe title of shelf {number} is zebra{number}q."
    return {
        "uri": uri,
        "name": f"book {number}.md",
        "mimeType": "text/markdown",
        "text": text,
        "lastModified": TIME,
    } | fields


async def make_source(rig: Rig, domain: str, *, seconds: float = WAIT_SECONDS, **fields: Any) -> Json:
    """Create a source and return it after its first run, which may take ``seconds``."""
    form = {"name": "Library", "mcp": {"server": "library"}, "graceHours": 0, **fields}
    source = await rig.ok("POST", f"/api/domains/{domain}/sources", form)
    return await wait_for_end(rig, domain, source["id"], None, seconds)


async def wait_for_end(
    rig: Rig, domain: str, source: str, previous_end: str | None, seconds: float = WAIT_SECONDS
) -> Json:
    """Return a source when a run has ended after the one that ended at ``previous_end``."""
    with anyio.fail_after(seconds):
        for checks in count():
            record: Json = await rig.ok("GET", f"/api/domains/{domain}/sources/{source}")
            is_idle = record["state"] == "idle" and not record["requested"]
            if is_idle and record["endedAt"] is not None and record["endedAt"] != previous_end:
                return record
            await pause(checks)
    raise AssertionError("unreachable")


async def run_again(rig: Rig, domain: str, source: Json) -> Json:
    await rig.ok("POST", f"/api/domains/{domain}/sources/{source['id']}/run")
    return await wait_for_end(rig, domain, source["id"], source["endedAt"])


async def documents_of(rig: Rig, domain: str) -> list[Json]:
    documents: list[Json] = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
    return documents


async def items_of(rig: Rig, domain: str, source: Json, **query: Any) -> list[Json]:
    path = f"/api/domains/{domain}/sources/{source['id']}/items"
    items: list[Json] = (await rig.ok("GET", path, params=query))["items"]
    return items
