"""The imports and the content that modules of this package may have."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_servers.promptx

PACKAGE = Path(mcp_servers.promptx.__file__).parent
ORDER = [
    *("builtin", "errors", "ids", "dpml", "lint", "network", "tokenizer", "rolefiles", "nuwa", "roles", "skills"),
    *(
        "ledger",
        "new_engrams",
        "yielding",
        "snapshot",
        "memory_cache",
        "similarity",
        "visible_memory",
        "memory",
        "role_checks",
        "presentation",
        "server",
        "__main__",
    ),
]
PURE = ["errors", "ids", "dpml", "lint", "network", "tokenizer"]
EFFECTS = {"os", "io", "time", "datetime", "random", "sqlite3", "threading", "asyncio", "anyio", "subprocess", "shutil"}


def imports_of(module: str) -> set[str]:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_every_module_is_in_the_order_the_package_states() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*ORDER, "__init__"}


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_modules_listed_before_it(module: str) -> None:
    package_modules = {name.split(".")[2] for name in imports_of(module) if name.startswith("mcp_servers.promptx.")}
    assert package_modules <= set(ORDER[: ORDER.index(module)])
    assert not any(name.split(".")[0] == "agentic_rag" for name in imports_of(module))


def test_only_the_standalone_command_reads_the_environment() -> None:
    sources = {module: (PACKAGE / f"{module}.py").read_text("utf-8") for module in ORDER}
    assert [module for module, source in sources.items() if "environ" in source or "getenv" in source] == ["__main__"]


@pytest.mark.parametrize("module", PURE)
def test_the_core_is_pure(module: str) -> None:
    assert not {name.split(".")[0] for name in imports_of(module)} & EFFECTS
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert "open" not in calls
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))


def test_roles_and_memory_are_used_without_loading_mcp() -> None:
    code = "import sys, mcp_servers.promptx.roles, mcp_servers.promptx.memory; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parents[1], check=False).returncode == 0
