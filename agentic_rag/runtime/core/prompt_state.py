"""The prompt state of a session: its first prompt, and the notes that announce changes since. Pure.

Owns the prompt as a value with its hash, the tools that are added later, and the notes for every change. The newer
models accept their earlier thinking only while ``system``, ``tools`` and all earlier messages are unchanged, and a
prompt cache is valid only up to the first change. So a session keeps its first prompt, and changes are appended.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import orjson

from agentic_rag.base.messages import Block, ToolSpec, text_block

MAX_SCHEMA = 4_000
"""Most characters of a changed tool's schema in a note."""
MAX_CHANGED = 10
"""Most changed tools that one note describes."""
MAX_NAMED = 100


@dataclass(frozen=True, slots=True)
class Prompt:
    """``system`` and ``tools`` of a request."""

    system: tuple[Block, ...]
    tools: tuple[ToolSpec, ...]

    @property
    def id(self) -> str:
        """The hash of the content."""
        content = orjson.dumps([self.system, self.tools], option=orjson.OPT_SORT_KEYS)
        return f"prm_{hashlib.sha256(content).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class PromptState:
    """The prompt state of a session.

    ``first``: the prompt of its requests. ``latest``: the prompt after all changes.

    ``late``: the tools added after ``first``, in order.
    """

    first: Prompt
    latest: Prompt
    late: tuple[ToolSpec, ...] = ()

    @classmethod
    def begin(cls, current: Prompt, deferred: Collection[str] = ()) -> "PromptState":
        """Return the state of a session that begins now. ``deferred``: names of tools that its model does not see."""
        if not deferred:
            return cls(current, current)
        visible = tuple(tool for tool in current.tools if tool["name"] not in deferred)
        hidden = tuple(tool for tool in current.tools if tool["name"] in deferred)
        return cls(Prompt(current.system, visible), current, hidden)

    @property
    def names(self) -> frozenset[str]:
        """The names of all tools in the first prompt and added since."""
        return frozenset([tool["name"] for tool in (*self.first.tools, *self.late)])

    def with_current(self, current: Prompt) -> "PromptState":
        """Return the state after the session was notified of the current prompt."""
        if current == self.latest:
            return self
        names = self.names
        added = tuple(tool for tool in current.tools if tool["name"] not in names)
        return PromptState(self.first, current, (*self.late, *added))


def changes(state: PromptState, current: Prompt, listed: Collection[str] = ()) -> list[str]:
    """Return the notes on all changes between the session's latest prompt and the current one, possibly none.

    ``listed``: names of tools that a catalogue in the prompt lists.
    """
    before = state.latest
    if before == current:
        return []
    notes = _changed_lines(_lines(before.system), _lines(current.system))
    old = {tool["name"]: tool for tool in before.tools}
    new = {tool["name"]: tool for tool in current.tools}
    added = [name for name in new if name not in old and name not in listed]
    removed = [name for name in old if name not in new]
    changed = [name for name in new if name in old and _is_changed(old[name], new[name])]
    if added:
        notes.append("New tools can be called now: " + "; ".join(_in_a_line(new[name]) for name in added))
    if removed:
        notes.append("These tools are gone, do not call them: " + _in_short(removed))
    for name in changed[:MAX_CHANGED]:
        notes += _changed_tool(old[name], new[name])
    if changed[MAX_CHANGED:]:
        notes.append("These tools take other arguments now, too: " + _in_short(changed[MAX_CHANGED:]))
    return notes


def _in_short(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _is_changed(before: ToolSpec, after: ToolSpec) -> bool:
    return before["description"] != after["description"] or before["input_schema"] != after["input_schema"]


def _lines(system: Iterable[Block]) -> list[str]:
    return [line for block in system for line in block["text"].splitlines()]


def _changed_lines(before: Sequence[str], after: Sequence[str]) -> list[str]:
    dropped: list[str] = []
    added: list[str] = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            dropped += before[a:b]
            added += after[c:d]
    notes = []
    if any(line.strip() for line in dropped):
        notes.append("No longer holds: " + "\n".join(dropped))
    if any(line.strip() for line in added):
        notes.append("Holds from now on: " + "\n".join(added))
    return notes


def _in_a_line(tool: ToolSpec) -> str:
    first = tool["description"].strip().splitlines()
    return f"{tool['name']} — {first[0][:200]}" if first else tool["name"]


def _changed_tool(before: ToolSpec, after: ToolSpec) -> list[str]:
    name, notes = after["name"], []
    if before["description"] != after["description"]:
        old_lines = before["description"].splitlines()
        lines = [line for line in after["description"].splitlines() if line not in old_lines]
        notes.append(f"Of the tool {name} holds now: " + "\n".join(lines or after["description"].splitlines()))
    if before["input_schema"] != after["input_schema"]:
        schema = orjson.dumps(after["input_schema"]).decode()[:MAX_SCHEMA]
        notes.append(f"The tool {name} takes other arguments now: {schema}")
    return notes


def note_block(notes: Sequence[str]) -> Block:
    """Return the notes as one text block."""
    return text_block("\n".join(f"[note: {note}]" for note in notes))
