"""Source rules: which module may import which, what stays pure, and that every module has a docstring.

Each rule is one test that lists every violation.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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
    "agentic_rag/server/frames.py",
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

SHARED_WITH_MCP_SERVERS = ("mcp_servers.safe_files.", "mcp_servers.folding.")
"""Modules that need only the standard library. `safe_files` alone may open files that others can write. The search and
the citation check compare text by the same `folding`."""


@cache
def sources() -> tuple[Path, ...]:
    return tuple(sorted([*ROOT.glob("agentic_rag/**/*.py"), *ROOT.glob("mcp_servers/**/*.py")]))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, wherever the statement stands."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
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
    wrong = [
        f"{module_name(path)} imports {imported}"
        for path in sources()
        for imported in imports(path)
        if not may_import(module_name(path), imported)
    ]
    assert wrong == []


def may_import(name: str, imported: str) -> bool:
    if name.startswith("mcp_servers"):
        return not imported.startswith("agentic_rag")
    if imported.startswith("mcp_servers"):
        return imported.startswith(SHARED_WITH_MCP_SERVERS) or layer_of(name)[0] >= layer_of("agentic_rag.access")[0]
    if name == "agentic_rag" or not imported.startswith("agentic_rag.") or imported == "agentic_rag.__version__":
        return True
    mine, theirs = layer_of(name), layer_of(imported)
    return theirs[0] < mine[0] or (theirs[0] == mine[0] and theirs[1] <= mine[1])


def test_only_tests_and_scripts_import_the_stand_ins_for_tests() -> None:
    wrong = [
        f"{module_name(path)} imports {imported}"
        for path in sources()
        for imported in imports(path)
        if imported.startswith("agentic_rag.testing") and not module_name(path).startswith("agentic_rag.testing")
    ]
    assert wrong == []


def test_a_route_file_gets_the_services_of_its_family_only() -> None:
    users = {module_name(path) for path in sources() if "RouteServices" in path.read_text(encoding="utf-8")}
    assert users == {"agentic_rag.server.services", "agentic_rag.server.http", "agentic_rag.app.application"}


def test_no_import_cycle() -> None:
    names = {module_name(path): path for path in sources()}
    graph = {
        name: {found for imported in imports(path) if (found := _module(imported, names)) and found != name}
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"cycle: {' -> '.join((*trail, name))}"
        if name not in done:
            for imported in graph[name]:
                visit(imported, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def _module(imported: str, names: dict[str, Path]) -> str | None:
    if imported in names:
        return imported
    parent = imported.rpartition(".")[0]
    return parent if parent in names and names[parent].name != "__init__.py" else None


def test_the_core_is_pure() -> None:
    starts = [ROOT / place for place in PURE]
    paths = [path for start in starts for path in (sorted(start.glob("*.py")) if start.is_dir() else [start])]
    assert [violation for path in paths for violation in impurities(path)] == []


def impurities(path: Path) -> Iterator[str]:
    for imported in imports(path):
        if imported.split(".")[0] in IMPURE_MODULES:
            yield f"{path} imports {imported}"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"{path}:{node.lineno} is asynchronous"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "print", "input"):
            yield f"{path}:{node.lineno} calls {ast.unparse(node.func)}"


def test_every_module_has_a_docstring() -> None:
    assert [path for path in sources() if "/versions/" not in str(path) and not ast.get_docstring(tree(path))] == []
