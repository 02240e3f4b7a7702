"""Two external suites of the package ``llm-comply``: Open Responses, and OpenAI's chat completions.

The package contains both specifications, so nothing is downloaded. Its cases run against a live server, whose model
thinks, searches the domain's documents and cites them, so that every answer has more than plain text.
"""

import dataclasses
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use
from tests.server.test_openai import DOCUMENT, Live
from tests.ws.serving import serving

comply: Any = import_module("llm_comply.runner")
FUNCTION = "get_weather"


def answer(request: ModelRequest) -> Step:
    """Call the client's function if there is one, otherwise search and answer with a citation."""
    if any(tool["name"] == FUNCTION for tool in request.tools):
        return Step((Say("I look that up."), Use(FUNCTION, {"location": "San Francisco"})))
    if all(block["type"] != "tool_result" for block in request.messages[-1]["content"]):
        return Step((Think("Look in the documents."), Use("search_documents", {"query": "pump bar"})))
    return Step((Think("Found."), Say("It holds "), Say("twelve bar.", (Cite(0),))))


def run_suite(name: str, address: str, key: str, model: str) -> list[Any]:
    """Run all cases of a suite, including those that the package skips because of the model's name."""
    specifications = {"open-responses": "openresponses.json", "openai-chat": "openai_chat.json"}
    folder = Path(comply.__file__).parent / "specs"
    schema = import_module("llm_comply.schema").SpecLoader(str(folder / specifications[name]))
    config = import_module("llm_comply.config").ComplianceConfig(f"http://{address}/v1", key, model)
    cases = import_module("llm_comply.tests").get_tests(name)
    results: list[Any] = comply.TestRunner(
        config, [dataclasses.replace(case, skip_reason=None) for case in cases], schema
    ).run_all().results  # fmt: skip
    return results


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver")  # which the package uses
@pytest.mark.parametrize(("suite", "count"), [("open-responses", 13), ("openai-chat", 9)])
async def test_every_case_of_the_suite_passes(suite: str, count: int, tmp_path: Path) -> None:
    async with Live(tmp_path, instead=ScriptedModel(then=answer)) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        assert (await rig.upload(domain, "pump.md", DOCUMENT))["status"] == "indexed"
        key = rig.application.access.local_key
        results = await anyio.to_thread.run_sync(run_suite, suite, address, key, domain)
        assert [(result.id, result.errors) for result in results if result.status.value != "passed"] == []
        assert len(results) == count
