"""Formats and embedders of an installed package work without a change here; a failing one affects only itself."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.retriever.embedding import check_vectors
from mcp_servers.retriever.errors import EmbedderFailed
from tests.e2e.serving import environment
from tests.retriever import files

REPOSITORY = Path(__file__).resolve().parents[2]

ENTRY_POINTS = """
[agentic_rag.document_formats]
pairs = acme_pairs
broken = acme_nowhere:FORMAT
odd = acme_odd

[agentic_rag.embedders]
acme = acme_embedder:make
"""

PAIRS = """
from mcp_servers.retriever.document import Block, ParsedDocument

WANTED = 2
media_types = {".pairs": "application/x-pairs"}


def read(path, limits):
    lines = path.read_text().splitlines()
    if len(lines) != WANTED:
        raise ValueError("two lines are needed")
    return ParsedDocument(tuple(Block("prose", line.replace("=", " is ") + ".") for line in lines))
"""

ODD = 'media_types = {"odd": "no ending"}\n\n\ndef read(path, limits): ...\n'

EMBEDDER = """
class Embedder:
    name = "ignored"

    async def embed_documents(self, texts):
        return [[1.0, float(len(text)), 0.5] for text in texts]

    async def embed_query(self, text):
        return [1.0, float(len(text)), 0.5]

    async def aclose(self):
        pass


def make(setting, cache, api_key):
    if setting != "acme:small":
        raise LookupError("there is only acme:small")
    return Embedder()
"""


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """A folder that looks as if pip had installed a package into it."""
    folder = tmp_path / "site"
    metadata = folder / "acme_things-1.2.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-things\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "acme_pairs.py").write_text(PAIRS)
    (folder / "acme_odd.py").write_text(ODD)
    (folder / "acme_embedder.py").write_text(EMBEDDER)
    return folder


def run_with_extension(packages: Path, folder: Path, embedding: str, *names: str) -> tuple[Any, str]:
    """Return the output of a server with the extension, and its log."""
    command = [sys.executable, "-m", "tests.ingestion.extension_user", str(folder), embedding, *names]
    variables = environment(PYTHONPATH=os.pathsep.join([str(packages), str(REPOSITORY)]))
    process = subprocess.run(command, env=variables, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return json.loads(process.stdout), process.stderr


def test_a_format_and_an_embedder_of_an_installed_package_are_used(site_packages: Path, tmp_path: Path) -> None:
    report, log = run_with_extension(site_packages, tmp_path / "data", "acme:small", "a.pairs", "b.odd", "c.md")
    assert report["documents"]["a.pairs"][:2] == ["indexed", "application/x-pairs"]
    assert report["documents"]["c.md"][:2] == ["indexed", "text/markdown"]
    assert report["documents"]["b.odd"][0] == "refused"
    assert report["documents"]["b.odd"][2]["code"] == "DOCUMENT_UNSUPPORTED"
    assert ["a.pairs", "name is the Octopus."] in report["hits"]
    assert report["mode"] == "hybrid"
    assert report["formats"][".pairs"] == "pairs (acme-things 1.2)", "the page's file picker offers it"
    assert report["formats"][".docx"] is None
    assert (report["health"]["name"], report["health"]["state"]) == ("acme:small", "ready")
    assert "the extension broken (acme-things 1.2) cannot be used: ModuleNotFoundError" in log
    assert "the extension odd (acme-things 1.2) cannot be used: 'odd'" in log


@pytest.mark.nightly("bad vectors are refused, and the extension is used, every time")
def test_a_failing_extension_costs_only_its_document_or_leg(site_packages: Path, tmp_path: Path) -> None:
    reader = site_packages / "acme_pairs.py"
    reader.write_text(PAIRS.replace("WANTED = 2", "WANTED = 3"))
    report, _ = run_with_extension(site_packages, tmp_path / "data", "acme:large", "a.pairs", "c.txt")
    status, _, error = report["documents"]["a.pairs"]
    assert (status, error["code"]) == ("failed", "DOCUMENT_BROKEN")
    assert "the reader pairs (acme-things 1.2) failed (ValueError: two lines are needed)" in error["message"]
    assert report["documents"]["c.txt"][0] == "indexed"
    assert report["hits"]
    assert report["mode"] == "lexical"
    assert report["health"].get("mode") in ("failing", None)


def test_the_package_of_the_docs_reads_binary_workbooks(tmp_path: Path) -> None:
    recipe = (REPOSITORY / "docs" / "adding.md").read_text().partition("## A file format")[2].partition("\n## ")[0]
    project, code = (part.partition("```")[0] for part in re.split(r"```(?:toml|python)\n", recipe)[1:3])
    folder = tmp_path / "site"
    metadata = folder / "acme_xlsb-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-xlsb\nVersion: 1.0\n")
    entry_points = tomllib.loads(project)["project"]["entry-points"]["agentic_rag.document_formats"]
    lines = "".join(f"{name} = {target}\n" for name, target in entry_points.items())
    (metadata / "entry_points.txt").write_text(f"[agentic_rag.document_formats]\n{lines}")
    (folder / "acme_xlsb.py").write_text(code)
    files.workbook(tmp_path / "rates.xlsx", 2).rename(tmp_path / "rates.xlsb")
    program = (
        "import sys, pathlib; from mcp_servers.retriever.parsing import parse; "
        "print([(block.text, block.cells) for block in parse(pathlib.Path(sys.argv[1]), 'rates.xlsb').blocks])"
    )
    variables = environment(PYTHONPATH=os.pathsep.join([str(folder), str(REPOSITORY)]))
    command = [sys.executable, "-c", program, str(tmp_path / "rates.xlsb")]
    process = subprocess.run(command, env=variables, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    text = "city | rate\nCity number 0 | 0.0\nCity number 1 | 1.5"
    assert process.stdout.strip() == str([("Rates", None), (text, "Rates!3:4")])


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (None, "something else than vectors"),
        ([["x"]], "something else than vectors"),
        ([], "0 vectors for 1 texts"),
        ([[]], "1 vectors for 1 texts"),
        ([[float("nan")]], "not a usable number"),
    ],
)
def test_invalid_vectors_are_a_typed_error(vectors: object, reason: str) -> None:
    with pytest.raises(EmbedderFailed, match=reason):
        check_vectors("acme:small", "acme", vectors, 1)
