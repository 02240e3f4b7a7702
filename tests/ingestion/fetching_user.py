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
    told: dict[str, Any] = {}
    states: list[list[str | None]] = []
    async with anyio.create_task_group() as tasks:
        embedding = EmbeddingState("", folder / "first", may_fetch=True, retry_seconds=0.01)

        async def watch() -> None:
            while True:
                if (now := [embedding.state, embedding.reason]) not in states:
                    states.append(now)
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(watch)
        told["came"] = await embedding.fetch_default()
        tasks.cancel_scope.cancel()
    told["states"] = states
    told["vector"] = len(await embedding.embed_query("a car"))
    async with Rig(folder, embedding="", model_cache=folder / "second") as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", CARS)
        told["before"] = [document["status"], document["denseState"]]
        rig.application.begin()
        await rig.dense(domain, document["id"])
        found = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "vehicle"})
        told["mode"], told["hits"] = found["mode"], len(found["hits"])
        told["embedder"] = (await rig.ok("GET", "/api/health"))["embedder"]
    forbidden = EmbeddingState("", folder / "third")
    told["forbidden"] = [await forbidden.fetch_default(), forbidden.state]
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps(anyio.run(main, Path(sys.argv[1]))))
