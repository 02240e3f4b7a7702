"""Our own tools: their names stand in one file."""

import ast
from pathlib import Path

import pytest

from agentic_rag.tools.system import BY_NAME, SERVERS, SYSTEM_TOOLS
from tests.test_layers import ROOT, tree

ONE_PLACE = ROOT / "agentic_rag" / "tools" / "system.py"
SOURCES = sorted(path for path in ROOT.glob("agentic_rag/**/*.py") if path != ONE_PLACE and "testing" not in path.parts)
"""The fakes of ``testing`` play a model, which learns the names from what it is sent; they are not the product's."""
WORDS = frozenset(name for name in BY_NAME if "_" not in name)
"""Names that are words: only a text that is nothing else means the tool."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_source_names_a_tool_of_ours(path: Path) -> None:
    module = tree(path)
    docstrings = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [
        f"{node.lineno} {node.value!r}"
        for node in texts
        if id(node) not in docstrings
        and (node.value in WORDS or any(name in str(node.value) for name in BY_NAME.keys() - WORDS))
    ]
    assert not named, f"{path}: {named}"


def test_every_tool_has_one_name_and_a_server_or_the_agent() -> None:
    assert len(BY_NAME) == len(SYSTEM_TOOLS)
    assert {tool.server for tool in SYSTEM_TOOLS} == SERVERS | {"agent"}
