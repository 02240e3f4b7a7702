"""A process with a fake model hub that downloads the default embedder and reports the result as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from agentic_rag.documents.embedding_state import EmbeddingState
from tests.server.rig import Rig

CARS = b"# Fleet\n\nThe automobile is new.\n"


async def main(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = {}
    states: list[list[str | None]] = []
    async with anyio.create_task_group() as tasks:
        embedding = EmbeddingState("", folder / "first", may_fetch=True, retry_seconds=0.01)

        async def watch() -> None:
            while True:
                if (current := [embedding.state, embedding.reason]) not in states:
                    states.append(current)
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(watch)
        report["came"] = await embedding.fetch_default()
        tasks.cancel_scope.cancel()
    report["states"] = states
    report["vector"] = len(await embedding.embed_query("a car"))
    async with Rig(folder, embedding="", model_cache=folder / "second") as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", CARS)
        report["before"] = [document["status"], document["denseState"]]
        rig.application.begin()
        await rig.dense(domain, document["id"])
        answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "vehicle"})
        report["mode"], report["hits"] = answer["mode"], len(answer["hits"])
        report["embedder"] = (await rig.ok("GET", "/api/health"))["embedder"]
    forbidden = EmbeddingState("", folder / "third")
    report["forbidden"] = [await forbidden.fetch_default(), forbidden.state]
    return report


if __name__ == "__main__":
    sys.stdout.write(json.dumps(anyio.run(main, Path(sys.argv[1]))))
