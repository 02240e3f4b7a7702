"""Results of the tools: short text for a model to act on, and structured content for machines.

Pure. Owns wording and shapes; deliberately knows nothing of MCP, files or the algorithm.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from mcp_servers.promptx.errors import BadEngram, PromptXError, UnknownRole
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.memory import Recollection
from mcp_servers.promptx.roles import Activation, RoleInfo, Written

Json = dict[str, Any]
Result = tuple[str, Json]
"""Text and structured content."""

MAX_SHOWN: Final = 1_500
"""Characters of one engram in the text of a recall; the structured content has all of it."""


def describe_activation(active: Activation) -> Result:
    """Notes first, so that the model knows what it cannot rely on; then the role."""
    notes = [f"> {note}" for note in active.notes]
    text = "\n\n".join(part for part in ("\n".join(notes), active.text) if part)
    return text, {"role": active.role, "hash": active.hash, "notes": list(active.notes)}


def describe_recollection(recollection: Recollection, *, others_text: bool = False) -> Result:
    """The map, then the engrams; what was not asked for is said in one line.

    ``others_text``: others than the user wrote some of it; the structured content says so as `othersText`.
    """
    if len(recollection.mind.depth) == 1:
        return "This role has no memories yet.", _structure(recollection)
    parts: list[str] = []
    if recollection.fallback == "dmn":
        parts.append("No memory is filed under the words of the query. This is the map of what is known:")
    elif recollection.fallback == "contained":
        parts.append("No word of the query is a cue; found by cues contained in it:")
    parts.append("\n".join(recollection.mindmap))
    if recollection.engrams:
        parts.append("\n".join(map(_line, recollection.engrams)))
    elif recollection.overview:
        parts.append("\n".join(["Strongest memories:", *map(_line, recollection.overview)]))
    return "\n\n".join(parts), _structure(recollection) | ({"othersText": True} if others_text else {})


def _line(engram: Engram) -> str:
    content = engram.content
    if len(content) > MAX_SHOWN:
        content = f"{content[:MAX_SHOWN]}… ({len(content)} characters)"
    return f"- [{engram.type} {engram.strength:g}] {content} ({' · '.join(dict.fromkeys(engram.cues))})"


def _structure(recollection: Recollection) -> Json:
    return {
        "activated": recollection.mind.activated,
        "edges": [{"from": edge.source, "to": edge.target, "weight": edge.weight} for edge in recollection.edges],
        "engrams": [engram.to_json() for engram in recollection.engrams],
        "mindmap": list(recollection.mindmap),
        "overview": [engram.to_json() for engram in recollection.overview],
        "center": recollection.center,
        "mode": recollection.mode,
        "fallback": recollection.fallback,
    }


def describe_saved(engrams: Sequence[Engram]) -> Result:
    """How many were saved, and under which cues they are found."""
    cues = dict.fromkeys(cue for engram in engrams for cue in engram.cues)
    text = f"Saved {len(engrams)} {'memory' if len(engrams) == 1 else 'memories'}. Cues: {' · '.join(cues)}"
    return text, {"saved": len(engrams), "engrams": [engram.to_json() for engram in engrams]}


def describe_roles(known: Sequence[RoleInfo]) -> Result:
    """One line per role."""
    lines = [f"- {info.id}: {info.title}" if info.title else f"- {info.id}" for info in known]
    items = [{"id": info.id, "title": info.title, "source": info.source, "findings": info.findings} for info in known]
    return "\n".join(["Roles (activate one with promptx_action):", *lines]), {"roles": items}


def describe_written(role: str, written: Written, workspace: Path) -> Result:
    """The paths written, relative to the workspace, and what lint still says."""
    paths = [path.relative_to(workspace).as_posix() for path in written.paths]
    text = "\n".join([f"Role {role!r} written and live from its next activation:", *paths, *map(str, written.findings)])
    return text, {"role": role, "paths": paths, "findings": [asdict(finding) for finding in written.findings]}


def describe_findings(findings: Sequence[Finding]) -> Result:
    """One line per finding."""
    text = "\n".join(map(str, findings)) or "No findings: every role file is clean."
    return text, {"findings": [asdict(finding) for finding in findings]}


def describe_error(exc: PromptXError) -> Json:
    """An error for machines: its name, its text and what it names."""
    details: Json = {"error": type(exc).__name__, "message": str(exc)}
    if isinstance(exc, UnknownRole):
        details["known"] = list(exc.known)
    if isinstance(exc, BadEngram):
        details["index"] = exc.index
    return details
