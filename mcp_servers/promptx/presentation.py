"""Results of the tools: short text for the model, and structured content for programs.

Pure. Owns wording and shapes. Knows nothing of MCP, files or the recall algorithm.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mcp_servers.promptx.errors import BadEngram, PromptXError, RoleNotReachable, SkillUnreadable, UnknownRole
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.memory import Recollection, Remembered
from mcp_servers.promptx.roles import RoleActivation, RoleInfo, WrittenRole
from mcp_servers.promptx.skills import BODY, SHOWN_CHARS, Skill

Json = dict[str, Any]
Result = tuple[str, Json]
"""Text and structured content."""

MAX_SHOWN: Final = 1_500
"""Maximum characters of one engram in the text of a recall. The structured content has the whole engram."""
MAX_NAMED: Final = 200
"""Maximum characters of an engram that is listed because a new one is similar."""
LATEST_MS: Final = 253_402_300_799_000
"""The last moment that `datetime` can represent. A later timestamp of another program is shown as this day."""


def describe_activation(active: RoleActivation) -> Result:
    """Describe an activation: first the notes about unreliable parts, then the role."""
    notes = [f"> {note}" for note in active.notes]
    text = "\n\n".join(part for part in ("\n".join(notes), active.text) if part)
    return text, {"role": active.role, "hash": active.hash, "notes": list(active.notes)}


def describe_recollection(recollection: Recollection, *, others_text: bool = False) -> Result:
    """Describe a recall: the map, then the engrams. One line explains results that are no direct match.

    ``others_text``: whether other people than the user wrote some engrams. In the structured content: `othersText`.
    """
    marks = {"othersText": True} if others_text else {}
    if len(recollection.mind.depth) == 1:
        return "This role has no memories yet.", _structure(recollection)
    lines = "\n".join(map(_line, recollection.answer))
    mindmap = "\n".join(recollection.mindmap)
    if recollection.fallback == "dmn" and recollection.matched:
        parts = ["Found by the words of the query:", lines, "This is the map of your memories:", mindmap]
    elif recollection.fallback == "dmn":
        parts = ["No memory matches the words of the query. This is the map of your memories:", mindmap]
    elif recollection.fallback == "contained":
        parts = ["No word of the query is a cue; found by cues contained in it:", mindmap, lines]
    else:
        parts = [mindmap, lines]
    if recollection.overview and not recollection.answer:
        parts.append("\n".join(["Strongest memories:", *map(_line, recollection.overview)]))
    return "\n\n".join(part for part in parts if part), _structure(recollection) | marks


def _line(engram: Engram, longest: int = MAX_SHOWN) -> str:
    content = engram.content
    if len(content) > longest:
        content = f"{content[:longest]}… ({len(content)} characters)"
    head = f"{engram.type} {engram.strength:g} {_day(engram.created_at)} {engram.id}"
    return f"- [{head}] {content} ({' · '.join(dict.fromkeys(engram.cues))})"


def _day(created_at: int) -> str:
    return datetime.fromtimestamp(min(max(0, created_at), LATEST_MS) / 1000, UTC).date().isoformat()


def _structure(recollection: Recollection) -> Json:
    return {
        "activated": recollection.mind.activated,
        "edges": [{"from": edge.source, "to": edge.target, "weight": edge.weight} for edge in recollection.edges],
        "engrams": [engram.to_json() for engram in recollection.engrams],
        "mindmap": list(recollection.mindmap),
        "overview": [engram.to_json() for engram in recollection.overview],
        "found": [
            {**engram.to_json(), "relevance": recollection.relevance.get(engram.id, 0.0)}
            for engram in recollection.answer
        ],
        "center": recollection.center,
        "mode": recollection.mode,
        "fallback": recollection.fallback,
        "turns": sorted({engram.turn for engram in (*recollection.answer, *recollection.overview) if engram.turn}),
    }


def describe_saved(done: Remembered, role: str, *, others_text: bool = False) -> Result:
    """Describe a save: the number of engrams, their role and cues, and stored engrams that are equal or similar.

    ``others_text``: whether other people than the user wrote some of the listed stored engrams.
    """
    cues = dict.fromkeys(cue for engram in done.saved for cue in engram.cues)
    parts: list[str] = []
    if done.saved or not done.duplicates:
        count = f"{len(done.saved)} {'memory' if len(done.saved) == 1 else 'memories'}"
        parts.append(f"Saved {count} under the role {role}. Cues: {' · '.join(cues)}")
    if done.duplicates:
        parts += ["Known already, not saved again:", *(_line(engram, MAX_NAMED) for engram in done.duplicates)]
    if done.near:
        parts.append("These are about the same; what no longer holds, save anew with replaces, or promptx_forget:")
        near = {old.id: old for pair in done.near for old in pair.similar}
        parts += [_line(engram, MAX_NAMED) for engram in near.values()]
    return "\n".join(parts), ({"othersText": True} if others_text else {}) | {
        "role": role,
        "saved": len(done.saved),
        "engrams": [engram.to_json() for engram in done.saved],
        "known": [engram.to_json() for engram in done.duplicates],
        "near": [{"id": pair.engram.id, "known": [engram.to_json() for engram in pair.similar]} for pair in done.near],
    }


def describe_forgotten(engram: Engram) -> Result:
    """Describe a forgotten engram."""
    return f"Forgotten: {engram.content[:MAX_NAMED]}", {"forgotten": engram.id}


def describe_roles(infos: Sequence[RoleInfo]) -> Result:
    """Describe roles, one line per role."""
    lines = [f"- {info.id}: {info.title}" if info.title else f"- {info.id}" for info in infos]
    items = [{"id": info.id, "title": info.title, "source": info.source, "findings": info.findings} for info in infos]
    return "\n".join(["Roles (activate one with promptx_action):", *lines]), {"roles": items}


def describe_written(role: str, result: WrittenRole, workspace: Path) -> Result:
    """Describe written files: their paths relative to the workspace, and the remaining lint findings."""
    paths = [path.relative_to(workspace).as_posix() for path in result.paths]
    text = "\n".join([f"Role {role!r} written and live from its next activation:", *paths, *map(str, result.findings)])
    return text, {"role": role, "paths": paths, "findings": [asdict(finding) for finding in result.findings]}


def describe_findings(findings: Sequence[Finding]) -> Result:
    """Describe lint findings, one line per finding."""
    text = "\n".join(map(str, findings)) or "No findings: every role file is clean."
    return text, {"findings": [asdict(finding) for finding in findings]}


def describe_skill(skill: Skill) -> Result:
    """Describe a skill: its instructions and the names of its other files, which the model reads one by one."""
    other_files = [file.path for file in skill.files if file.path != BODY]
    listed = f"[files of this skill, to be read and never run: {', '.join(other_files)}]" if other_files else ""
    text, _ = _page(skill.body, 0)
    return "\n\n".join(part for part in (text, listed) if part), {"skill": skill.name, "digest": skill.digest}


def describe_skill_file(name: str, path: str, content: bytes, start: int) -> Result:
    """Describe a page of a skill's file. Raises `SkillUnreadable` if it is no text or ends before ``start``."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise SkillUnreadable(name, path, "it is no text") from exc
    if start and start >= len(text):
        raise SkillUnreadable(name, path, f"it has {len(text)} characters; `start` must be a number below that")
    page, following = _page(text, start)
    return page or "(empty)", {"skill": name, "path": path, "next": following}


def _page(text: str, start: int) -> tuple[str, int | None]:
    stop = start + SHOWN_CHARS
    if len(text) <= stop:
        return text[start:], None
    return f"{text[start:stop]}\n[characters {start} to {stop} of {len(text)}; go on with start {stop}]", stop


def describe_error(exc: PromptXError) -> Json:
    """Return an error as structured content: its class, its text and its values."""
    details: Json = {"error": type(exc).__name__, "message": str(exc)}
    if isinstance(exc, UnknownRole):
        details["known"] = list(exc.roles)
    if isinstance(exc, RoleNotReachable):
        details["possible"] = list(exc.possible)
    if isinstance(exc, BadEngram):
        details["index"] = exc.index
    return details
