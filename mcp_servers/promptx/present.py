"""Results of the tools: short text for a model to act on, and structured content for machines.

Pure. Owns wording and shapes; deliberately knows nothing of MCP, files or the algorithm.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mcp_servers.promptx.errors import BadEngram, PromptXError, UnknownRole
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.memory import Recollection, engram_json
from mcp_servers.promptx.roles import Activation, RoleInfo, Written

Result = tuple[str, dict[str, Any]]
"""Text and structured content."""

MAX_SHOWN: Final = 1_500
"""Characters of one engram in the text of a recall; the structured content has all of it."""


def activation(active: Activation) -> Result:
    """Notes first, so that the model knows what it cannot rely on; then the role."""
    notes = [f"> {note}" for note in active.notes]
    text = "\n\n".join(part for part in ("\n".join(notes), active.text) if part)
    return text, {"role": active.role, "hash": active.hash, "notes": list(active.notes)}


def recollection(found: Recollection) -> Result:
    """The map, then the engrams; what was not asked for is said in one line."""
    if len(found.mind.depth) == 1:
        return "This role has no memories yet.", _structured(found)
    parts: list[str] = []
    if found.fallback == "dmn":
        parts.append("No memory is filed under the words of the query. This is the map of what is known:")
    elif found.fallback == "contained":
        parts.append("No word of the query is a cue; found by cues contained in it:")
    parts.append("\n".join(found.mindmap))
    if found.engrams:
        parts.append("\n".join(map(_line, found.engrams)))
    elif found.overview:
        parts.append("\n".join(["Strongest memories:", *map(_line, found.overview)]))
    return "\n\n".join(parts), _structured(found)


def _line(engram: Engram) -> str:
    content = engram.content
    if len(content) > MAX_SHOWN:
        content = f"{content[:MAX_SHOWN]}… ({len(content)} characters)"
    return f"- [{engram.type} {engram.strength:g}] {content} ({' · '.join(dict.fromkeys(engram.cues))})"


def _structured(found: Recollection) -> dict[str, Any]:
    return {
        "activated": found.mind.activated,
        "edges": [{"from": edge.source, "to": edge.target, "weight": edge.weight} for edge in found.edges],
        "engrams": [engram_json(engram) for engram in found.engrams],
        "mindmap": list(found.mindmap),
        "overview": [engram_json(engram) for engram in found.overview],
        "center": found.center,
        "mode": found.mode,
        "fallback": found.fallback,
    }


def remembered(saved: Sequence[Engram]) -> Result:
    """How many were saved, and under which cues they are found."""
    cues = dict.fromkeys(cue for engram in saved for cue in engram.cues)
    text = f"Saved {len(saved)} {'memory' if len(saved) == 1 else 'memories'}. Cues: {' · '.join(cues)}"
    return text, {"saved": len(saved), "engrams": [engram_json(engram) for engram in saved]}


def roles(known: Sequence[RoleInfo]) -> Result:
    """One line per role."""
    lines = [f"- {info.id}: {info.title}" if info.title else f"- {info.id}" for info in known]
    items = [{"id": info.id, "title": info.title, "source": info.source, "findings": info.findings} for info in known]
    return "\n".join(["Roles (activate one with promptx_action):", *lines]), {"roles": items}


def written(role: str, done: Written, workspace: Path) -> Result:
    """The paths written, relative to the workspace, and what lint still says."""
    paths = [path.relative_to(workspace).as_posix() for path in done.paths]
    text = "\n".join([f"Role {role!r} written and live from its next activation:", *paths, *map(str, done.findings)])
    return text, {"role": role, "paths": paths, "findings": [_finding(finding) for finding in done.findings]}


def findings(found: Sequence[Finding]) -> Result:
    """One line per finding."""
    text = "\n".join(map(str, found)) or "No findings: every role file is clean."
    return text, {"findings": [_finding(finding) for finding in found]}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "severity": finding.severity,
        "code": finding.code,
        "message": finding.message,
        "hint": finding.hint,
    }


def error(exc: PromptXError) -> dict[str, Any]:
    """An error for machines: its name, its text and what it names."""
    details: dict[str, Any] = {"error": type(exc).__name__, "message": str(exc)}
    if isinstance(exc, UnknownRole):
        details["known"] = list(exc.known)
    if isinstance(exc, BadEngram):
        details["index"] = exc.index
    return details
