"""Rules for objects: complete after construction, changed by their own module only, and passed instead of callables."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_layers import ROOT, nodes, sources

FRIENDS = {
    "agentic_rag/runtime/agent.py": ("agentic_rag/runtime/core/turn.py", "agentic_rag/runtime/log/runlog.py"),
    "agentic_rag/runtime/context.py": ("agentic_rag/runtime/core/transcript.py",),
    "agentic_rag/server/auth.py": ("agentic_rag/server/limits.py",),
    "agentic_rag/tools/connection.py": ("agentic_rag/tools/attempt.py",),
    "mcp_servers/promptx/memory.py": ("mcp_servers/promptx/network.py",),
    "mcp_servers/retriever/edge_collections.py": ("mcp_servers/retriever/edge_shard.py",),
    "mcp_servers/retriever/edge_queries.py": ("mcp_servers/retriever/edge_shard.py",),
    "mcp_servers/retriever/edge_store.py": ("mcp_servers/retriever/edge_shard.py",),
}
"""A stateful class, and the modules whose plain values it keeps.

It may assign the attributes that their classes declare.
"""
MARKDOWN_IT = {"first.content", "box.content", "token.content", "token.block", "state.line"}
LIBRARY = frozenset({"params.meta", "info.size", "info.mode"}) | MARKDOWN_IT
"""Attributes of a library's objects that share the name of one of ours."""
LISTENERS = ("on_", "before_", "after_")
"""Prefixes of attributes that would hold callbacks."""


def assigned_attributes(path: Path) -> Iterator[ast.Attribute]:
    """Yield the attributes of any object that a module assigns."""
    targets = [target for node in nodes(path, ast.Assign) for target in node.targets]
    targets += [node.target for node in nodes(path, ast.AugAssign)]
    targets += [node.target for node in nodes(path, ast.AnnAssign)]
    for target in targets:
        for element in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(element, ast.Attribute):
                yield element


def is_own(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id in ("self", "cls")


def declared_names(path: Path) -> set[str]:
    """Return the attributes of a module's classes: annotated ones, and those its methods assign to themselves."""
    names = {attribute.attr for attribute in assigned_attributes(path) if is_own(attribute)}
    for node in nodes(path, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                names.add(part.target.id)
    return names


@cache
def declared_by_path() -> dict[Path, set[str]]:
    """Return each module's declared attributes. A function, because every worker of the suite imports this module."""
    return {path: declared_names(path) for path in sources()}


@cache
def declared_anywhere() -> frozenset[str]:
    return frozenset().union(*declared_by_path().values())


def test_an_objects_attributes_are_assigned_in_the_module_of_its_class() -> None:
    assert [assignment for path in sources() for assignment in foreign_assignments(path)] == []


def foreign_assignments(path: Path) -> Iterator[str]:
    """Yield assignments to attributes that only classes of other modules declare.

    An attribute that none of our classes declares belongs to a library and is not reported.
    """
    name = str(path.relative_to(ROOT))
    attributes = declared_by_path()
    known_names = attributes[path].union(*(attributes[ROOT / friend] for friend in FRIENDS.get(name, ())))
    foreign = declared_anywhere() - known_names
    for attribute in assigned_attributes(path):
        if not is_own(attribute) and attribute.attr in foreign and ast.unparse(attribute) not in LIBRARY:
            yield f"{name}:{attribute.lineno} {ast.unparse(attribute)}"


def test_no_module_adds_a_listener_to_another_object() -> None:
    listeners = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path in sources()
        for node in nodes(path, ast.Call)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "add", "insert", "extend", "setdefault")
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr.startswith(LISTENERS)
    ]
    assert listeners == []
