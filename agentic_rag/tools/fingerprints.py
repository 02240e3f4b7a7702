"""What the admin accepted of a server, and what has changed since. Pure.

Owns the fingerprint of a tool and the comparison. A description is read by the model as if we had written it: a
server that is harmless on the day it is tested may become another one the day after.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from agentic_rag.tools.content import clean_json


@dataclass(frozen=True, slots=True)
class ToolList:
    """The last list of a server under one entry, and the accepted fingerprints by tool name."""

    entry: str
    """`McpEntry.hash` of the entry that gave it."""
    tools: tuple[Mapping[str, Any], ...]
    """As the server gave them, as JSON."""
    accepted: Mapping[str, str]

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of tools that are new or other than accepted, sorted."""
        return tuple(sorted(name for name, mark in fingerprints(self.tools).items() if self.accepted.get(name) != mark))


def to_json(tools: Iterable[types.Tool]) -> tuple[dict[str, Any], ...]:
    """Return a list as it is stored: without what no reader sees."""
    return tuple(clean_json(tool.model_dump(mode="json", by_alias=True, exclude_none=True)) for tool in tools)


def from_json(tools: Iterable[Mapping[str, Any]]) -> tuple[types.Tool, ...]:
    """Return the tools of a stored list."""
    return tuple(types.Tool.model_validate(tool) for tool in tools)


def fingerprints(tools: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return name → hash over name, description and schema, which is all the model sees."""
    return {str(tool["name"]): fingerprint(tool) for tool in tools}


def fingerprint(tool: Mapping[str, Any]) -> str:
    """Return the hash of one tool."""
    seen = [tool["name"], tool.get("description") or "", tool.get("inputSchema")]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
