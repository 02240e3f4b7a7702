"""Measure the evaluation gate: the time of the retrieval tier, and planted faults against harmless changes.

``python -m bench.evaluation`` copies the demo's documents and its 40 cases into a temporary data folder, plants 12
faults and makes 10 harmless changes as trials, and times 200 retrieval cases (``--searches``: only that). The server
runs in this process with the embedder that is installed with it and without a language model, so that every figure can
be repeated. Faults that only another model could show are judged by the answers of the extractive model.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from tests.server.rig import Rig

DEMO = Path(__file__).resolve().parent.parent / "workspaces" / "demo"
COPIES = 5
"""Copies of each of the demo's retrieval cases in the timed run. Their questions differ, so each is a separate case."""
WAIT_SECONDS = 600

Json = dict[str, Any]


async def settle(rig: Rig, path: str, waiting: str) -> Json:
    """Wait until a run or draft has ended, and return it."""
    with anyio.fail_after(WAIT_SECONDS):
        while True:
            job: Json = await rig.ok("GET", path)
            if job["state"] not in waiting.split():
                return job
            await anyio.sleep(0.1)


async def fill(rig: Rig) -> str:
    """Create a domain with the demo's documents, settings and cases, and return its id."""
    settings = json.loads((DEMO / "domain.json").read_text("utf-8"))["settings"]
    settings.pop("primaryRoleId")
    domain = await rig.domain(**settings)
    files = [("file", (path.name, path.read_bytes())) for path in sorted((DEMO / "documents").iterdir())]
    await rig.ok("POST", f"/api/domains/{domain}/documents", files=files)
    for case in json.loads((DEMO / "cases.json").read_text("utf-8"))["cases"]:
        await rig.ok("POST", f"/api/domains/{domain}/evaluation/cases", case)
    with anyio.fail_after(WAIT_SECONDS):
        while True:
            listed = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
            if all((document["status"], document["denseState"]) == ("indexed", "ready") for document in listed):
                return domain
            await anyio.sleep(0.2)


async def try_change(rig: Rig, domain: str, change: Json) -> Json:
    """Try a change in both tiers, until a draft is held. Returns the last held or warned draft, else the first one."""
    base = f"/api/domains/{domain}/evaluation"
    worst: Json = {}
    for tier in ("retrieval", "answers"):
        draft = await rig.ok("POST", f"{base}/try", {**change, "tier": tier})
        draft = await settle(rig, f"{base}/drafts/{draft['id']}", "trying")
        if draft["state"] in ("held", "warned") or not worst:
            worst = draft
        if draft["state"] == "held":
            break
    return worst


FAULTS: dict[str, Json] = {
    "threshold 0.9": {"settings": {"retrievalThreshold": 0.9}},
    "top-k 1": {"settings": {"retrievalTopK": 1}},
    "100 tokens of passages": {"settings": {"retrievalTokens": 100}},
    "a cited document removed": {"removes": ["people-handbook.md"]},
    "the English manuals removed": {"removes": ["brisa-300-user-guide.md", "brisa-900-installation-manual.pdf"]},
    "the Chinese handbook removed": {"removes": ["上海办公室员工手册.md"]},
    "the search denied": {"settings": {"toolPolicy": {"search_documents": "deny"}}},
    "all tools denied": {"settings": {"toolPolicy": {"*": "deny"}}},
    "one step a turn": {"settings": {"maxSteps": 1}},
    "threshold 0.8 and rrf": {"settings": {"retrievalThreshold": 0.8, "retrievalFusion": "rrf"}},
    "turns of a second": {"settings": {"turnTimeoutSeconds": 1, "retrievalThreshold": 0.95}},
    "answers cut at 8 tokens": {"settings": {"maxTokens": 8, "retrievalTopK": 1}},
}
HARMLESS: dict[str, Json] = {
    "a style edit": {"settings": {"responseStyle": "detailed"}},
    "a friendly prompt file": {"components": {"10-greeting.md": "Greet the user by the time of day."}},
    "a renamed domain": {"name": "Handbooks of Tarnbrook Air"},
    "another description": {"description": "What our people and customers ask."},
    "another tone": {"settings": {"tone": "formal"}},
    "top-k 6": {"settings": {"retrievalTopK": 6}},
    "top-k 12": {"settings": {"retrievalTopK": 12}},
    "more steps": {"settings": {"maxSteps": 20}},
    "another expertise": {"settings": {"expertise": "Ventilation units and staff policies."}},
    "conversations kept a year": {"settings": {"keepConversationsDays": 365}},
}


async def judge(rig: Rig, domain: str, changes: dict[str, Json], line: Callable[[str], None]) -> dict[str, str]:
    """Try each change, print the decision, and return the states."""
    states: dict[str, str] = {}
    for name, change in changes.items():
        draft = await try_change(rig, domain, change)
        states[name] = draft["state"]
        line(f"  {draft['state']:7} {name}: {draft['decision']['sentence']}")
    return states


async def time_searches(rig: Rig, domain: str) -> tuple[int, float, Json]:
    """Time a retrieval run over at least 200 cases, and return their number, the seconds and the run."""
    base = f"/api/domains/{domain}/evaluation"
    cases = json.loads((DEMO / "cases.json").read_text("utf-8"))["cases"]
    searched = [case for case in cases if case["expect"].get("cites")]
    for copy in range(COPIES):
        for original in searched:
            case = {**original, "questions": [f"{original['questions'][0]} ({copy + 1})"]}
            await rig.ok("POST", f"{base}/cases", case)
    started, worked = time.perf_counter(), time.process_time()
    run = await rig.ok("POST", f"{base}/runs", {"tier": "retrieval"})
    run = await settle(rig, f"{base}/runs/{run['id']}", "queued running")
    print(f"{time.process_time() - worked:.2f} s of processor time in this process", flush=True)
    return run["total"], time.perf_counter() - started, run


async def measure(say: Callable[[str], None], changes: bool) -> bool:
    """Print all figures and return whether they are within their bounds. Without ``changes``, only time searches."""
    with tempfile.TemporaryDirectory() as folder:
        async with Rig(Path(folder), scripted=False, embedding="wheel", scan_seconds=3600) as rig:
            rig.application.begin()
            domain = await fill(rig)
            within_bounds = True
            if changes:
                say("12 planted faults:")
                faults = await judge(rig, domain, FAULTS, say)
                caught = sum(state in ("held", "warned") for state in faults.values())
                say("10 harmless changes:")
                harmless = await judge(rig, domain, HARMLESS, say)
                held_count = sum(state == "held" for state in harmless.values())
                say(f"caught {caught} of {len(faults)} faults; held {held_count} of {len(harmless)} harmless changes")
                within_bounds = caught >= len(faults) - 1 and held_count == 0
            count, seconds, run = await time_searches(rig, domain)
            say(f"{count} retrieval cases in {seconds:.2f} s ({run['passed']} passed, {run['failed']} failed)")
            return within_bounds and seconds <= 10


def main() -> int:
    """Run the bench from the command line."""
    return 0 if anyio.run(measure, partial(print, flush=True), "--searches" not in sys.argv) else 1


if __name__ == "__main__":
    sys.exit(main())
