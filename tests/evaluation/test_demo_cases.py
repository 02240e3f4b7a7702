"""The 40 cases of the demo match its documents, and are part of its template."""

import json
from pathlib import Path

from agentic_rag.directory.cases import read_cases
from agentic_rag.documents.text_positions import find_text
from mcp_servers.retriever.parsing import parse
from tests.demo.harness import DEMO
from tests.server.rig import Rig


def test_each_case_expects_words_of_its_document() -> None:
    imported = read_cases(json.loads((DEMO / "cases.json").read_text("utf-8")), "cases.json")
    assert (len(imported.cases), imported.problems) == (40, ())
    texts = {path.name: parse(path, path.name).text for path in (DEMO / "documents").iterdir()}
    expected = [(cite.document, cite.text or "") for case in imported.cases for cite in case.expect.cites]
    assert [(name, text) for name, text in expected if find_text(texts[name], text) is None] == []


async def test_the_templates_cases_are_active(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.application.services.domains.load_template(DEMO)
        path = f"/api/domains/{domain.record.id}/evaluation"
        assert (await rig.ok("GET", path))["cases"] == {"draft": 0, "active": 40, "off": 0}
        assert not (Path(domain.record.workspace) / "cases.json").exists()
