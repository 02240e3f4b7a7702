"""Known bugs, planted one at a time in a copy of the repository. The tests must find every one.

A bug is an edit of the syntax tree: in the named function, one expression or statement becomes another. The layout
of the code and equal code elsewhere do not matter. A bug that no longer fits its function fails a test, so a change of
the product cannot disable a mutant unnoticed.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.server import ROOT

PARTS = ("agentic_rag", "mcp_servers", "roles", "workspaces", "tests", "pyproject.toml")
SUITES = (
    (
        "tests/runtime/test_delivery.py",
        "tests/runtime/test_resume.py",
        "tests/runtime/test_runtime.py",
        "tests/runtime",
    ),
    ("tests/faults/test_crashes.py",),
)
"""Tests that must find a bug. The second runs only if the first did not find it."""
SUITE_SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """One bug: in a function of a file of ``agentic_rag/``, the one place of ``code`` becomes ``instead``.

    ``function`` is the qualified name (``Turn.restore``, ``outer.inner``). Both texts are one expression or statement.
    """

    name: str
    file: str
    function: str
    code: str
    instead: str

    def plant(self, source: str) -> str:
        """Return the source of the file with the bug.

        Raises:
            AssertionError: the function does not exist, or holds the code not exactly once.
        """
        tree = ast.parse(source)
        replacer = _Replacer(_node(self.code), _node(self.instead))
        functions = [node for name, node in _functions(tree) if name == self.function]
        assert functions, f"{self.name}: there is no {self.function} in {self.file}"
        for node in functions:
            replacer.visit(node)
        assert replacer.places == 1, f"{self.name}: {self.function} has the code {replacer.places} times"
        return ast.unparse(ast.fix_missing_locations(tree))


class _Replacer(ast.NodeTransformer):
    """Replaces every node that equals a given one, and counts them."""

    def __init__(self, code: ast.AST, instead: ast.AST) -> None:
        self._code = ast.dump(code)
        self._instead = instead
        self.places = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node) != self._code:
            return self.generic_visit(node)
        self.places += 1
        return self._instead


def _node(code: str) -> ast.AST:
    """Return the expression, or else the statement, of a text."""
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each function with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


MUTANTS = (
    Mutant(
        "deliver before durable",
        "runtime/log/runlog.py",
        "RunLog._advance",
        "blocking[0] - 1 if blocking else self.last",
        "self.last",
    ),
    Mutant(
        "use void numbers again after a resume",
        "runtime/log/runlog.py",
        "RunLog.__init__",
        "self.last = start",
        "self.last = max(0, start - MAX_UNJOURNALLED)",
    ),
    Mutant(
        "number on after a resume in the epoch of the owner before",
        "runtime/log/runlog.py",
        "epoch_of",
        "fence - 1",
        "fence - 2",
    ),
    Mutant(
        "tell the end before it survives a loss of power",
        "runtime/agent.py",
        "Agent._commit",
        "effects or final is not None",
        "effects",
    ),
    Mutant(
        "drop tool results on interrupt",
        "runtime/core/turn.py",
        "Turn._stop_commit",
        "messages = (self._results(),)",
        "messages = ()",
    ),
    Mutant(
        "run an unsafe call again on resume",
        "runtime/tool_calls.py",
        "ToolCalls.end_unfinished",
        "call.refusal is None",
        "call.refusal is not None",
    ),
    Mutant(
        "a second turn for a duplicate id",
        "runtime/acceptance.py",
        "new_row",
        "message.client_message_id",
        "None",
    ),
    Mutant(
        "the terminal event twice",
        "runtime/agent.py",
        "Agent._commit",
        "(*cancelled, *commit.bodies, final)",
        "(*cancelled, *commit.bodies, final, final)",
    ),
    Mutant(
        "no repair of unanswered calls on resume",
        "runtime/core/turn.py",
        "Turn.restore",
        'not messages or not tool_uses(messages[-1]["content"])',
        "messages or not messages",
    ),
    Mutant(
        "lose queued turns at a restart",
        "runtime/turn_persistence.py",
        "take_abandoned",
        "tuple((row.replace(owner=owner), images.domain_of(conn, row.image_id)) for row in queued)",
        "()",
    ),
    Mutant(
        "keep partial thinking without its signature",
        "base/messages.py",
        "sendable_part",
        'whole_content(block for block in blocks if block["type"] in ("text", "redacted_thinking")'
        ' or (block["type"] == "thinking" and block.get("signature")))',
        '[block for block in blocks if block["type"] in ("text", "thinking", "redacted_thinking")]',
    ),
    Mutant(
        "replay the event that was asked to be passed",
        "store/run_events.py",
        "read",
        "seq > after",
        "seq >= after",
    ),
    Mutant(
        "end a turn that was given up without naming the gap",
        "runtime/session.py",
        "end_unstarted.store",
        "[final] if resumed is None else [resumed, final]",
        "[final]",
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The result for a mutant. ``found_by`` is empty if no test found it."""

    mutant: Mutant
    found_by: str


def copy_to(folder: Path) -> Path:
    """Copy the product and its tests."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(source, folder / part)
    return folder


def plant_mutant(copy: Path, mutant: Mutant) -> str:
    """Plant a bug and return the original text of the file."""
    path = copy / "agentic_rag" / mutant.file
    before = path.read_text("utf-8")
    path.write_text(mutant.plant(before), "utf-8")
    return before


def first_failure(copy: Path, suite: tuple[str, ...], without: Sequence[str] = ()) -> str:
    """Run tests in the copy up to the first failure and return its name; empty if all pass."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))}
    command = [sys.executable, "-m", "pytest", *suite, "-x", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    command += [f"--deselect={name}" for name in without]
    try:
        result = subprocess.run(
            command,
            cwd=copy,
            env=inherited | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{suite[0]} did not end"
    if result.returncode == 0:
        return ""
    failure_lines = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (
        failure_lines[0].split(" - ")[0].split(" ", 1)[1]
        if failure_lines
        else f"{suite[0]}: exit code {result.returncode}"
    )


def verdicts(folder: Path, only: str = "") -> Iterator[Verdict]:
    """Plant each bug in a copy and yield the test that found it.

    Raises:
        AssertionError: a bug does not fit the code.
    """
    copy = copy_to(folder)
    for mutant in MUTANTS:
        if only and only not in mutant.name:
            continue
        yield Verdict(mutant, next((name for suite in SUITES if (name := finder(copy, mutant, suite))), ""))


def finder(copy: Path, mutant: Mutant, suite: tuple[str, ...]) -> str:
    """Return the test that finds a bug: it fails with the bug each time, and passes without it."""
    unsteady: list[str] = []
    while True:
        before = plant_mutant(copy, mutant)
        try:
            test = first_failure(copy, suite, unsteady)
            steady = bool(test) and ("::" not in test or first_failure(copy, (test,)) != "")
        finally:
            (copy / "agentic_rag" / mutant.file).write_text(before, "utf-8")
        if not test or (steady and ("::" not in test or first_failure(copy, (test,)) == "")):
            return test
        unsteady.append(test)
