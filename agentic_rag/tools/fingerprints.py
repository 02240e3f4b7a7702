"""The tools of a server that an admin accepted, and the changes since. Pure.

Owns the fingerprint of a tool and the comparison. The model trusts a description as if we had written it, and a server
that is harmless on the day it is tested may become malicious the day after. So a model is shown the accepted text, even
if the server lists another one.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mcp_types as types

Tool = Mapping[str, Any]
"""A tool as JSON, in the form of MCP."""


@dataclass(frozen=True, slots=True)
class ToolList:
    """The last list of a server under one entry, and the accepted tools as they were at that time."""

    entry: str
    """`McpEntry.hash` of the entry that the list belongs to."""
    tools: tuple[Tool, ...]
    """The tools as JSON, unchanged from the server."""
    accepted: tuple[Tool, ...]

    @classmethod
    def first(cls, entry: str, tools: tuple[Tool, ...]) -> "ToolList":
        """Return the first list under an entry. Accepting the entry accepts this list."""
        return cls(entry, tools, ()).accept()

    def accept(self) -> "ToolList":
        """Return the list with all of its current tools accepted."""
        return replace(self, accepted=self.single)

    @property
    def doubled(self) -> tuple[str, ...]:
        """Names that occur more than once in the list, sorted. A call by such a name would be ambiguous."""
        return tuple(sorted(name for name, count in self._counts().items() if count > 1))

    @property
    def single(self) -> tuple[Tool, ...]:
        """The tools that occur once, in the order of the list."""
        counts = self._counts()
        return tuple(tool for tool in self.tools if counts[str(tool["name"])] == 1)

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools a model is shown: accepted ones that the server still lists once, with the accepted text."""
        listed = {tool["name"] for tool in self.single}
        return tuple(tool for tool in self.accepted if tool["name"] in listed)

    @property
    def waiting(self) -> tuple[tuple[Tool | None, Tool], ...]:
        """The tools that await acceptance, by name: each as accepted (None if new) and as listed now."""
        before = {tool["name"]: tool for tool in self.accepted}
        pairs = ((before.get(tool["name"]), tool) for tool in self.single)
        differing = [(old, new) for old, new in pairs if old is None or not _is_same(old, new)]
        return tuple(sorted(differing, key=lambda pair: str(pair[1]["name"])))

    def _counts(self) -> Counter[str]:
        return Counter(str(tool["name"]) for tool in self.tools)


def to_json(tools: "Iterable[types.Tool]") -> tuple[dict[str, Any], ...]:
    """Return a list as it is stored: without lone surrogates and NUL characters."""
    from agentic_rag.tools.content import clean_json  # imports the MCP library, as does every server's list

    return tuple(clean_json(tool.model_dump(mode="json", by_alias=True, exclude_none=True)) for tool in tools)


def from_json(tools: Iterable[Tool]) -> "tuple[types.Tool, ...]":
    """Return the tools of a stored list."""
    import mcp_types as types

    return tuple(types.Tool.model_validate(tool) for tool in tools)


def fingerprint(tool: Tool) -> str:
    """Return the hash over name, title, description and schema of a tool, which is all the model sees, and its app."""
    title = tool.get("title") or (tool.get("annotations") or {}).get("title")
    fields = [tool["name"], tool.get("description") or "", tool.get("inputSchema"), *([title] if title else [])]
    app = (tool.get("_meta") or {}).get("ui")
    if app:
        fields.append({"ui": app})
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fingerprint_of_waiting(lists: Mapping[str, ToolList]) -> str:
    """Return the hash of all waiting tools of a server, by user: an admin accepts exactly the reviewed state."""
    waiting = [(user, fingerprint(new)) for user, tool_list in sorted(lists.items()) for _, new in tool_list.waiting]
    return hashlib.sha256(json.dumps(waiting).encode()).hexdigest()


def _is_same(one: Tool, other: Tool) -> bool:
    return one == other or fingerprint(one) == fingerprint(other)
