"""Known bugs, planted one at a time in a copy of the repository. The tests must find every one.

A bug is a replacement of text that must exist exactly once, so that a change of the product cannot disable a mutant
unnoticed.
"""

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
"""What must find a bug: the second is asked only when the first did not."""
SUITE_SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """One bug: a text in a file of ``agentic_rag/``, and its replacement."""

    name: str
    file: str
    text: str
    instead: str


MUTANTS = (
    Mutant(
        "deliver before durable",
        "runtime/log/runlog.py",
        "min(journalled + MAX_UNJOURNALLED, solid[0] - 1 if solid else self.last, self.last)",
        "min(journalled + MAX_UNJOURNALLED, self.last)",
    ),
    Mutant(
        "use void numbers again after a resume",
        "runtime/log/runlog.py",
        "self.last = start\n",
        "self.last = max(0, start - MAX_UNJOURNALLED)\n",
    ),
    Mutant(
        "number on after a resume in the epoch of the owner before",
        "runtime/log/runlog.py",
        "return max(0, fence - 1) * EPOCH",
        "return max(0, fence - 2) * EPOCH",
    ),
    Mutant(
        "tell the end before it survives a loss of power",
        "runtime/agent.py",
        "durable=effects or final is not None",
        "durable=effects",
    ),
    Mutant(
        "drop tool results on interrupt",
        "runtime/core/turn.py",
        "            messages = (self._results(),)\n",
        "            messages = ()\n",
    ),
    Mutant(
        "run an unsafe call again on resume",
        "runtime/tool_calls.py",
        "            if call.refusal is None and not call.repeatable and",
        "            if call.refusal is not None and not call.repeatable and",
    ),
    Mutant(
        "a second turn for a duplicate id",
        "runtime/acceptance.py",
        "        client_message_id=message.client_message_id,\n",
        "        client_message_id=None,\n",
    ),
    Mutant(
        "the terminal event twice",
        "runtime/agent.py",
        "(*left, *commit.bodies, final)",
        "(*left, *commit.bodies, final, final)",
    ),
    Mutant(
        "no repair of unanswered calls on resume",
        "runtime/core/turn.py",
        'if not messages or not tool_uses(messages[-1]["content"]):',
        "if messages or not messages:",
    ),
    Mutant(
        "lose queued turns at a restart",
        "runtime/turn_persistence.py",
        "for row in queued),",
        "for row in queued[:0]),",
    ),
    Mutant(
        "keep partial thinking without its signature",
        "base/messages.py",
        '    return whole_content(\n        block\n        for block in blocks\n        if block["type"] in (',
        '    return list(\n        block for block in blocks if block["type"] == "thinking" or block["type"] in (',
    ),
    Mutant(
        "replay the event that was asked to be passed",
        "store/run_events.py",
        "in enumerate(found, first) if seq > after]",
        "in enumerate(found, first) if seq >= after]",
    ),
    Mutant(
        "end a turn that was given up without naming the gap",
        "runtime/unstarted_turns.py",
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
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    return folder


def planted(copy: Path, mutant: Mutant) -> str:
    """Plant a bug and return the original text of the file."""
    path = copy / "agentic_rag" / mutant.file
    before = path.read_text("utf-8")
    found = before.count(mutant.text)
    assert found == 1, f"{mutant.name}: the text stands {found} times in {mutant.file}"
    path.write_text(before.replace(mutant.text, mutant.instead), "utf-8")
    return before


def first_failure(copy: Path, suite: tuple[str, ...], without: Sequence[str] = ()) -> str:
    """Run tests in the copy up to the first failure and return its name; empty if all pass."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))}
    command = [sys.executable, "-m", "pytest", *suite, "-x", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    command += [f"--deselect={name}" for name in without]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=kept | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{suite[0]} did not end"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"{suite[0]}: exit code {done.returncode}"


def verdicts(folder: Path, only: str = "") -> Iterator[Verdict]:
    """Plant each bug in a copy and yield the test that found it.

    Raises:
        AssertionError: a bug's text does not exist.
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
        before = planted(copy, mutant)
        try:
            found = first_failure(copy, suite, unsteady)
            steady = bool(found) and ("::" not in found or first_failure(copy, (found,)) != "")
        finally:
            (copy / "agentic_rag" / mutant.file).write_text(before, "utf-8")
        if not found or (steady and ("::" not in found or first_failure(copy, (found,)) == "")):
            return found
        unsteady.append(found)
