"""The demo's template is consistent."""

import json
import subprocess
import sys
from pathlib import Path

from mcp_servers.promptx.roles import RoleLibrary
from mcp_servers.retriever.parsing import parse
from tests.demo.harness import DEMO, REPOSITORY

PDF = "brisa-900-installation-manual.pdf"


def test_the_committed_pdf_equals_the_scripts_output(tmp_path: Path) -> None:
    output = tmp_path / PDF
    subprocess.run([sys.executable, REPOSITORY / "scripts/make_demo_pdf", output], check=True, timeout=60)
    assert output.read_bytes() == (DEMO / "documents" / PDF).read_bytes()


def test_the_pdf_has_four_pages_with_headings() -> None:
    parsed = parse(DEMO / "documents" / PDF, PDF)
    assert parsed.pages == 4
    assert {block.page for block in parsed.blocks if block.kind == "heading"} == {1, 2, 3, 4}


def test_the_role_is_complete_with_its_thought_and_execution() -> None:
    active = RoleLibrary(DEMO).activate("guide", "all")
    assert list(active.notes) == []
    assert "Who is asking" in active.text
    assert "Cite every fact" in active.text


def test_the_domain_names_a_role_that_exists() -> None:
    domain = json.loads((DEMO / "domain.json").read_text("utf-8"))
    assert set(domain) == {"name", "description", "settings"}
    assert domain["settings"]["primaryRoleId"] in RoleLibrary(DEMO).ids()
