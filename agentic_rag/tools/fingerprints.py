"""What the admin accepted of a server, and what has changed since. Pure.

Owns the fingerprint of a tool and the comparison. A description is read by the model as if we had written it: a
server that is harmless on the day it is tested may become another one the day after. So what is shown to a model is
the text that was accepted, whatever the server lists now.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as types

from agentic_rag.tools.content import clean_json

Tool = Mapping[str, Any]
"""A tool as JSON, as MCP has it."""


@dataclass(frozen=True, slots=True)
class ToolList:
    """The last list of a server under one entry, and the tools of it that were accepted, as they were then."""

    entry: str
    """`McpEntry.hash` of the entry that gave it."""
    tools: tuple[Tool, ...]
    """As the server gave them, as JSON."""
    accepted: tuple[Tool, ...]

    @classmethod
    def first(cls, entry: str, tools: tuple[Tool, ...]) -> "ToolList":
        """Return the first list under an entry: it is accepted with the entry."""
        return cls(entry, tools, ()).accept()

    def accept(self) -> "ToolList":
        """Return the list with all that it holds now accepted."""
        return replace(self, accepted=self.single)

    @property
    def doubled(self) -> tuple[str, ...]:
        """Names that the list holds more than once, sorted: which of them a call would reach nobody knows."""
        return tuple(sorted(name for name, count in self._counts().items() if count > 1))

    @property
    def single(self) -> tuple[Tool, ...]:
        """The tools that the list holds once, in its order."""
        counts = self._counts()
        return tuple(tool for tool in self.tools if counts[str(tool["name"])] == 1)

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools a model is shown: those accepted that the server still lists once, in the words accepted."""
        listed = {tool["name"] for tool in self.single}
        return tuple(tool for tool in self.accepted if tool["name"] in listed)

    @property
    def waiting(self) -> tuple[tuple[Tool | None, Tool], ...]:
        """What waits to be accepted, by name: each tool as it was accepted (None: it is new) and as it is now."""
        before = {tool["name"]: tool for tool in self.accepted}
        pairs = ((before.get(tool["name"]), tool) for tool in self.single)
        differing = [(old, new) for old, new in pairs if old is None or not _is_same(old, new)]
        return tuple(sorted(differing, key=lambda pair: str(pair[1]["name"])))

    def _counts(self) -> Counter[str]:
        return Counter(str(tool["name"]) for tool in self.tools)


def to_json(tools: Iterable[types.Tool]) -> tuple[dict[str, Any], ...]:
    """Return a list as it is stored: without what no reader sees."""
    return tuple(clean_json(tool.model_dump(mode="json", by_alias=True, exclude_none=True)) for tool in tools)


def from_json(tools: Iterable[Tool]) -> tuple[types.Tool, ...]:
    """Return the tools of a stored list."""
    return tuple(types.Tool.model_validate(tool) for tool in tools)


def fingerprint(tool: Tool) -> str:
    """Return the hash over name, title, description and schema of a tool, which is all the model sees."""
    title = tool.get("title") or (tool.get("annotations") or {}).get("title")
    seen = [tool["name"], tool.get("description") or "", tool.get("inputSchema"), *([title] if title else [])]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fingerprint_of_waiting(lists: Mapping[str, ToolList]) -> str:
    """Return the hash of all that waits in the lists of a server, by user: what an admin saw is what he accepts."""
    seen = [(user, fingerprint(new)) for user, each in sorted(lists.items()) for _, new in each.waiting]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _is_same(one: Tool, other: Tool) -> bool:
    return one == other or fingerprint(one) == fingerprint(other)
