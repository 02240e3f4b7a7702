"""A program for `test_extensions` in an environment with the installed extension: it ingests files and searches."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import anyio

from tests.server.rig import Rig


async def main(folder: Path, embedding: str, names: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {"documents": {}}
    async with Rig(folder, embedding=embedding) as rig:
        rig.application.begin()
        domain = await rig.domain()
        for name in names:
            path = f"/api/domains/{domain}/documents"
            answer = await rig.http.post(path, files={"f": (name, f"name=the Octopus\nfile={name}\n".encode())})
            if answer.is_success:
                document = await rig.settled(domain, answer.json()["items"][0]["id"])
                report["documents"][name] = [document["status"], document["mediaType"], document.get("error", {})]
            else:
                report["documents"][name] = ["refused", "", answer.json()["error"]]
        if embedding == "acme:small":
            items = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
            for item in items:
                if item["status"] == "indexed":
                    await rig.dense(domain, item["id"])
        search_answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "octopus"})
        report["hits"] = [[hit["documentName"], hit["sentences"][0]["text"]] for hit in search_answer["hits"]]
        report["mode"] = search_answer["mode"]
        formats = (await rig.ok("GET", "/api/document-formats"))["items"]
        report["formats"] = {entry["ending"]: entry.get("package") for entry in formats if "mediaType" in entry}
        report["health"] = (await rig.ok("GET", "/api/health"))["embedder"]
    return report


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sys.stdout.write(json.dumps(anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3:])))
