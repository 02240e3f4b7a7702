"""Our own tools: only one file contains their names."""

import ast
import re

from agentic_rag.tools.system import BY_NAME, SERVERS, SYSTEM_TOOLS
from tests.test_layers import ROOT, nodes

ONE_PLACE = ROOT / "agentic_rag" / "tools" / "system.py"
SOURCES = sorted(path for path in ROOT.glob("agentic_rag/**/*.py") if path != ONE_PLACE and "testing" not in path.parts)
"""The fakes of ``testing`` play a model, which learns the names from its requests. They are not part of the product."""
WORDS = frozenset(name for name in BY_NAME if "_" not in name)
"""Names that are also words: only a text that equals the name refers to the tool."""


def test_no_other_module_names_our_tools() -> None:
    long_names = re.compile("|".join(map(re.escape, BY_NAME.keys() - WORDS)))
    statements = {id(node.value) for path in SOURCES for node in nodes(path, ast.Expr)}
    mentions = [
        f"{path}:{node.lineno} {node.value!r}"
        for path in SOURCES
        for node in nodes(path, ast.Constant)
        if isinstance(node.value, str) and id(node) not in statements
        if node.value in WORDS or long_names.search(node.value)
    ]
    assert mentions == []


def test_every_tool_has_one_name_and_a_server_or_the_agent() -> None:
    assert len(BY_NAME) == len(SYSTEM_TOOLS)
    assert {tool.server for tool in SYSTEM_TOOLS} == SERVERS | {"agent"}
