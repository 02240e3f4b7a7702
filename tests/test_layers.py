"""The shape of the code: who may import whom, what stays pure, how large things get."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = (
    (
        "failpoints",
        "json_form",
        "json_lines",
        "ids",
        "errors",
        "bundle_errors",
        "budget_errors",
        "startup_errors",
        "settings",
        "messages",
        "redaction",
        "forms",
        "garbage",
        "huge_pages",
        "workers",
        "threads",
        "token_bucket",
        "terminal",
        "outcomes",
        "comparison",
        "observer",
    ),
    ("events",),
    ("tools", "models", "store"),
    ("runtime",),
    ("directory",),
    ("access", "domains", "roles", "documents", "bundles", "conversations", "operations", "backup", "business"),
    ("server",),
    (
        "tool_servers",
        "mcp_hub",
        "agent_services",
        "awaited_store",
        "shared_store",
        "warming",
        "app",
        "asgi",
        "serving",
        "local_workers",
        "commands",
        "chat",
        "cli",
        "testing",
    ),
)
"""agentic_rag's top-level modules by layer, and inside a layer in the order in which they may import."""

PURE = (
    "agentic_rag/messages.py",
    "agentic_rag/events.py",
    "agentic_rag/forms.py",
    "agentic_rag/outcomes.py",
    "agentic_rag/comparison.py",
    "agentic_rag/bundles/form.py",
    "agentic_rag/bundles/zip_file.py",
    "agentic_rag/bundles/entries.py",
    "agentic_rag/observer.py",
    "agentic_rag/json_form.py",
    "agentic_rag/json_lines.py",
    "agentic_rag/runtime/core",
    "agentic_rag/models/sse.py",
    "agentic_rag/access/refusals.py",
    "agentic_rag/server/error_shapes.py",
    "agentic_rag/server/docs_page.py",
    "agentic_rag/server/hosts.py",
    "agentic_rag/conversations/message_html.py",
    "agentic_rag/server/limits.py",
    "agentic_rag/token_bucket.py",
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
    "mcp_servers/retriever/chunking.py",
    "mcp_servers/retriever/pacing.py",
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

EVERYBODYS = "mcp_servers.beneath."
"""Needs nothing but the standard library, and nobody else may open what others can write."""

MAX_MODULE = 700
"""400 lines ask whether a module is two nouns; a state machine that is read in one sitting may have this many."""
MAX_FUNCTION = 60


def sources() -> list[Path]:
    return sorted([*ROOT.glob("agentic_rag/**/*.py"), *ROOT.glob("mcp_servers/**/*.py")])


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


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_below(path: Path) -> None:
    name = module_name(path)
    for imported in imports(path):
        if name.startswith("mcp_servers"):
            assert not imported.startswith("agentic_rag"), f"{name} imports {imported}"
            continue
        if imported.startswith("mcp_servers") and not imported.startswith(EVERYBODYS):
            assert layer_of(name)[0] >= 4, f"{name} imports {imported}"
        if name == "agentic_rag" or not imported.startswith("agentic_rag.") or imported.count(".") < 1:
            continue
        if imported in ("agentic_rag.__version__",):
            continue
        mine, theirs = layer_of(name), layer_of(imported)
        assert theirs[0] < mine[0] or (theirs[0] == mine[0] and theirs[1] <= mine[1]), f"{name} imports {imported}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_stand_ins_for_tests_are_imported_by_tests_and_scripts_only(path: Path) -> None:
    if not module_name(path).startswith("agentic_rag.testing"):
        assert not [each for each in imports(path) if each.startswith("agentic_rag.testing")]


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


@pytest.mark.parametrize("place", PURE)
def test_the_core_is_pure(place: str) -> None:
    start = ROOT / place
    for path in sorted(start.glob("*.py")) if start.is_dir() else [start]:
        for imported in imports(path):
            assert imported.split(".")[0] not in IMPURE_MODULES, f"{path} imports {imported}"
        for node in ast.walk(tree(path)):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{path}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print", "input"), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_stay_small_and_say_what_they_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_MODULE, f"{path} has {text.count(chr(10))} lines"
    module = tree(path)
    if "/versions/" not in str(path):
        assert ast.get_docstring(module), f"{path} does not say what it owns"
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or 0) - node.lineno + 1
            assert size <= MAX_FUNCTION, f"{path}:{node.lineno} {node.name} has {size} lines"
