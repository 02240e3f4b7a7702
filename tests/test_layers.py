"""Source rules: which module may import which, what stays pure, and that every module has a docstring.

Each rule is one test that lists every violation. All source rules share one parse and one walk of each file.
"""

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

Node = TypeVar("Node", bound=ast.AST)

ROOT = Path(__file__).resolve().parent.parent

LAYERS = (
    ("base",),
    ("archive", "tools", "models", "store"),
    ("runtime",),
    ("directory",),
    (
        "access",
        "domains",
        "roles",
        "documents",
        "bundles",
        "conversations",
        "operations",
        "evaluation",
        "reach",
        "sources",
        "backup",
    ),
    ("server",),
    ("app", "commands", "chat", "cli", "testing"),
)
"""The top-level packages of agentic_rag by layer. Inside a layer, a package may import the ones before it."""

PURE = (
    "agentic_rag/base/messages.py",
    "agentic_rag/base/events.py",
    "agentic_rag/base/forms.py",
    "agentic_rag/base/health_signals.py",
    "agentic_rag/base/comparison.py",
    "agentic_rag/directory/cases.py",
    "agentic_rag/evaluation/verdicts.py",
    "agentic_rag/evaluation/decisions.py",
    "agentic_rag/reach/messages.py",
    "agentic_rag/sources/robots.py",
    "agentic_rag/bundles/form.py",
    "agentic_rag/bundles/entries.py",
    "agentic_rag/base/telemetry.py",
    "agentic_rag/base/json_form.py",
    "agentic_rag/runtime/core",
    "agentic_rag/models/sse.py",
    "agentic_rag/models/tool_rules.py",
    "agentic_rag/tools/schema_compat.py",
    "agentic_rag/tools/server_answers.py",
    "agentic_rag/access/refusals.py",
    "agentic_rag/server/error_shapes.py",
    "agentic_rag/server/hosts.py",
    "agentic_rag/conversations/message_html.py",
    "agentic_rag/server/limits.py",
    "agentic_rag/base/token_bucket.py",
    "agentic_rag/server/ws/frames.py",
    "agentic_rag/tools/entries",
    "agentic_rag/tools/launch/addresses.py",
    "agentic_rag/tools/launch/catalogue.py",
    "agentic_rag/tools/launch/catalogue_file.py",
    "agentic_rag/tools/launch/environment.py",
    "agentic_rag/tools/launch/spec.py",
    "agentic_rag/tools/fingerprints.py",
    "agentic_rag/tools/listing.py",
    "agentic_rag/tools/elicitation.py",
    "agentic_rag/tools/elicited_forms.py",
    "agentic_rag/server/dialects",
    "mcp_servers/folding.py",
    "mcp_servers/answer_forms.py",
    "mcp_servers/retriever/chunking.py",
    "mcp_servers/retriever/lexical.py",
    "mcp_servers/retriever/pacing.py",
    "mcp_servers/retriever/questions.py",
    "mcp_servers/retriever/relevance.py",
    "mcp_servers/retriever/sentences.py",
    "mcp_servers/promptx/dpml.py",
    "mcp_servers/promptx/network.py",
)
IMPURE_MODULES = {
    "anyio",
    "asyncio",
    "time",
    "datetime",
    "os",
    "pathlib",
    "socket",
    "subprocess",
    "threading",
    "random",
}

SHARED_WITH_MCP_SERVERS = ("mcp_servers.safe_files.", "mcp_servers.folding.", "mcp_servers.answer_forms.")
"""Modules that need only the standard library. `safe_files` alone may open files that others can write. The search and
the citation check compare text by the same `folding`, and the search and the extractive model know the same
`answer_forms`."""


@cache
def sources() -> tuple[Path, ...]:
    return tuple(sorted([*ROOT.glob("agentic_rag/**/*.py"), *ROOT.glob("mcp_servers/**/*.py")]))


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


def nodes(path: Path, *kinds: type[Node]) -> Iterator[Node]:
    """Yield a module's syntax nodes of some classes, class by class, and each class in the order of `ast.walk`."""
    by_kind = _nodes_by_kind(path)
    for kind in kinds:
        yield from cast(list[Node], by_kind.get(kind, ()))


@cache
def _nodes_by_kind(path: Path) -> Mapping[type[ast.AST], list[ast.AST]]:
    """Walk a module once. The sources have a million nodes, and `ast.walk` looks up each field of each node by name."""
    gc.disable()  # nothing of a syntax tree is garbage, and a collection would walk all trees each time
    try:
        by_kind = defaultdict(list)
        queue: list[ast.AST] = [tree(path)]
        for node in queue:  # grows while it is read
            by_kind[node.__class__].append(node)
            for value in node.__dict__.values():
                if value.__class__ is list:
                    queue += [item for item in value if isinstance(item, ast.AST)]
                elif isinstance(value, ast.AST):
                    queue.append(value)
        return by_kind
    finally:
        gc.freeze()
        gc.enable()


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string that is a statement: docstrings of definitions and of values."""
    for node in nodes(path, ast.Expr):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, in any position."""
    for plain in nodes(path, ast.Import):
        yield from (alias.name for alias in plain.names)
    for node in nodes(path, ast.ImportFrom):
        if node.module:
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(name: str) -> tuple[int, int]:
    top = name.split(".")[1]
    for number, nouns in enumerate(LAYERS):
        if top in nouns:
            return number, nouns.index(top)
    raise AssertionError(f"{name} has no layer: add it to LAYERS and to docs")


def test_a_module_imports_only_from_below() -> None:
    violations = [
        f"{module_name(path)} imports {imported}"
        for path in sources()
        for imported in imports(path)
        if not may_import(module_name(path), imported)
    ]
    assert violations == []


def may_import(name: str, imported: str) -> bool:
    if name.startswith("mcp_servers"):
        return not imported.startswith("agentic_rag")
    if imported.startswith("mcp_servers"):
        return imported.startswith(SHARED_WITH_MCP_SERVERS) or layer_of(name)[0] >= layer_of("agentic_rag.access")[0]
    if name == "agentic_rag" or not imported.startswith("agentic_rag.") or imported == "agentic_rag.__version__":
        return True
    own_layer, imported_layer = layer_of(name), layer_of(imported)
    return imported_layer[0] < own_layer[0] or (imported_layer[0] == own_layer[0] and imported_layer[1] <= own_layer[1])


def test_only_tests_and_scripts_import_the_stand_ins_for_tests() -> None:
    violations = [
        f"{module_name(path)} imports {imported}"
        for path in sources()
        for imported in imports(path)
        if imported.startswith("agentic_rag.testing") and not module_name(path).startswith("agentic_rag.testing")
    ]
    assert violations == []


def test_a_route_file_gets_the_services_of_its_family_only() -> None:
    users = {module_name(path) for path in sources() if "RouteServices" in text(path)}
    assert users == {"agentic_rag.server.services", "agentic_rag.server.http", "agentic_rag.app.application"}


def test_no_import_cycle() -> None:
    names = {module_name(path): path for path in sources()}
    graph = {
        name: {module for imported in imports(path) if (module := _module(imported, names)) and module != name}
        for name, path in names.items()
    }
    visited: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"cycle: {' -> '.join((*trail, name))}"
        if name not in visited:
            for imported in graph[name]:
                visit(imported, (*trail, name))
            visited.add(name)

    for name in graph:
        visit(name, ())


def _module(imported: str, names: dict[str, Path]) -> str | None:
    if imported in names:
        return imported
    parent = imported.rpartition(".")[0]
    return parent if parent in names and names[parent].name != "__init__.py" else None


def test_core_modules_do_no_input_or_output() -> None:
    starts = [ROOT / place for place in PURE]
    paths = [path for start in starts for path in (sorted(start.glob("*.py")) if start.is_dir() else [start])]
    assert [violation for path in paths for violation in impurities(path)] == []


def impurities(path: Path) -> Iterator[str]:
    for imported in imports(path):
        if imported.split(".")[0] in IMPURE_MODULES:
            yield f"{path} imports {imported}"
    for function in nodes(path, ast.AsyncFunctionDef):
        yield f"{path}:{function.lineno} is asynchronous"
    for wait in nodes(path, ast.Await):
        yield f"{path}:{wait.lineno} is asynchronous"
    for call in nodes(path, ast.Call):
        if isinstance(call.func, ast.Name) and call.func.id in ("open", "print", "input"):
            yield f"{path}:{call.lineno} calls {call.func.id}"


def test_every_module_has_a_docstring() -> None:
    assert [path for path in sources() if "/versions/" not in str(path) and not ast.get_docstring(tree(path))] == []
