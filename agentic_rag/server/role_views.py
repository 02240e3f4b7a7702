"""Roles, memories and prompts as clients see them, in camelCase.

Owns field names and what is left out. Pure.
"""

from datetime import UTC, datetime
from typing import Any

from agentic_rag.roles.effective_prompt import EffectivePrompt, PromptPart
from agentic_rag.roles.memories import Export, MemoryPage
from agentic_rag.roles.roles import RoleView
from agentic_rag.server.views import finding
from mcp_servers.promptx.roles import RoleInfo

Json = dict[str, Any]

LATEST_MS = 4_102_444_800_000
"""The year 2100: what another program dated later is shown as this, and refused when it is brought in."""


def role_info(info: RoleInfo) -> Json:
    """Return one line of a role list; its path stays out, since it tells of the host."""
    return {"id": info.id, "source": info.source, "title": info.title, "findings": info.findings}


def role(view: RoleView) -> Json:
    """Return a rendered role with its findings and files; ``text`` is null when its file is broken."""
    return {
        "id": view.id,
        "source": view.files[0].source,
        "text": view.text,
        "hash": view.hash,
        "notes": list(view.notes),
        "findings": [finding(each) for each in view.findings],
        "files": [
            {"kind": each.kind, "id": each.id, "source": each.source, "file": each.file, "content": each.content}
            for each in view.files
        ],
    }


def memory_page(page: MemoryPage) -> Json:
    """Return a page of memories; ``roles`` are those that have any."""
    return {
        "scope": page.scope,
        "roles": list(page.roles),
        "total": page.total,
        "items": [
            {"role": name, **engram.to_json(), "createdAt": _time(engram.created_at)} for name, engram in page.items
        ],
    }


def export(found: Export) -> Json:
    """Return a whole memory; ``createdAt`` in milliseconds, as PromptX keeps it and an import takes it."""
    return {
        "role": found.role,
        "scope": found.scope,
        "engrams": [engram.to_json() for engram in found.engrams],
        "frequencies": found.frequencies,
    }


def prompt(found: EffectivePrompt) -> Json:
    """Return the prompt with the size of each part; ``role`` is null when there is none of that id."""
    parts = [found.bootstrap, *found.components]
    text = found.role.text if found.role else None
    return {
        "bootstrap": _part(found.bootstrap),
        "components": [_part(each) for each in found.components],
        "problems": [{"name": name, "problem": problem} for name, problem in found.problems],
        "role": None
        if found.role is None
        else {**role(found.role), **({} if text is None else _sizes(PromptPart("role", text)))},
        "roleId": found.role_id,
        "tools": list(found.tools),
        "system": {"characters": sum(each.characters for each in parts), "tokens": sum(each.tokens for each in parts)},
    }


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(min(max(0, ms), LATEST_MS) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _part(part: PromptPart) -> Json:
    return {"name": part.name, "text": part.text, **_sizes(part)}


def _sizes(part: PromptPart) -> Json:
    return {"characters": part.characters, "tokens": part.tokens}
