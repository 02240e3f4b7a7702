"""The calls of an assistant message: which may run, and why others may not. Pure.

Owns the refusals: unknown tool, broken or unfit arguments, arguments that held a secret, what the domain's policy
denies, and tools that changed since the admin accepted them. A text the model read can ask for anything; only the
policy grants. Knows no turn and no MCP.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Literal

from agentic_rag.events import ToolStatus
from agentic_rag.messages import (
    BROKEN_INPUT,
    CALLED,
    SECRET,
    Block,
    text_block,
)
from agentic_rag.runtime.core.arguments import find_problem
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.system import BY_NAME, DELEGATE

SECRET_IN_ARGUMENTS = "Denied: the arguments hold a secret of this domain. Servers get them from its settings only."

_WILD = re.compile(r"\[\]?[^\]]*\]|[*?]")
"""What of a glob stands for other characters."""


class Because(StrEnum):
    """Why a call is denied, as the audit log has it and the model reads it."""

    CHANGED = "changed"
    POLICY = "toolPolicy"
    SHARED_MEMORY = "shared-memory"
    OTHERS_TEXT = "others-text"
    SECRET = "secret"


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a call may not run. ``text``: for the model, naming the setting."""

    because: Because
    text: str


@dataclass(frozen=True, slots=True)
class Policy:
    """Which calls may run. ``rules``: glob of tool names as the model sees them → verdict.

    The most specific pattern that matches decides: the tool's own name, else the one with the most literal
    characters; among equals ``deny`` wins. The order of the rules means nothing: a JSON object has none.
    Once a turn has read text of others, a pattern's ``allow`` does not cover effects any more: an order in that text
    would have them, and who wrote the pattern did not think of this tool. A rule for the tool's own name does.
    ``effects_allowed``: what no rule names may have effects (a single user on loopback), as long as ``alone`` says so:
    the first key ends it for turns that were accepted before, too.
    ``shared_memory``: remembering is an effect, since all users of the domain read it.
    """

    rules: Mapping[str, Literal["allow", "deny"]] = field(default_factory=dict)
    effects_allowed: bool = True
    shared_memory: bool = False
    alone: Callable[[], bool] = lambda: True

    def denial(self, tool: ToolInfo, *, others: bool = False) -> Denial | None:
        """Return why a tool may not be called, None if it may.

        ``others``: text of others was read since the user's message.
        """
        if tool.changed:
            return Denial(
                Because.CHANGED,
                f"Denied: the tool {tool.name!r} has changed since its server was accepted. An admin can look at the "
                f"change (GET /api/domains/{{id}}/mcp-servers/{tool.server}/pending) and accept it (POST "
                f"/api/domains/{{id}}/mcp-servers/{tool.server}/accept). Go on without.",
            )
        effects = self._has_effects(tool)
        verdict = self._verdict(tool.name, patterns_allow=not (others and effects))
        if verdict == "allow" or (verdict is None and ((self.effects_allowed and self.alone()) or not effects)):
            return None
        rule = f'An admin can add {{"{tool.name}": "allow"}} to the setting toolPolicy. Go on without.'
        if others and effects and self._verdict(tool.name) == "allow":
            return Denial(
                Because.OTHERS_TEXT,
                f"Denied (others-text): {tool.name!r} may have effects, and this turn has read texts of others, which "
                f"no pattern of this domain's setting toolPolicy covers; a rule for the tool's own name does. {rule}",
            )
        if verdict == "deny":
            return Denial(
                Because.POLICY, f"Denied by this domain's setting toolPolicy for {tool.name!r}. Go on without."
            )
        if tool.name in BY_NAME and BY_NAME[tool.name].shared_effects:
            return Denial(
                Because.SHARED_MEMORY,
                f"Denied (shared-memory): all users of this domain share its memories, and its setting toolPolicy does "
                f"not allow {tool.name!r}. {rule}",
            )
        return Denial(
            Because.POLICY,
            f"Denied: {tool.name!r} may have effects, and this domain's setting toolPolicy does not allow it. {rule}",
        )

    def _has_effects(self, tool: ToolInfo) -> bool:
        if tool.origin == "user":
            return not tool.read_only
        ours = BY_NAME.get(tool.name)
        return ours is not None and (ours.effects or (ours.shared_effects and self.shared_memory))

    def _verdict(self, name: str, *, patterns_allow: bool = True) -> Literal["allow", "deny"] | None:
        """Return what the rules say of a tool, None for nothing. ``patterns_allow``: patterns may allow as well."""
        matching = [
            (glob == name, len(_WILD.sub("", glob)), verdict == "deny")
            for glob, verdict in self.rules.items()
            if fnmatchcase(name, glob) and (patterns_allow or glob == name or verdict == "deny")
        ]
        if not matching:
            return None
        *_, denied = max(matching)
        return "deny" if denied else "allow"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of the model. ``refusal`` is set when it must not run: it is its outcome."""

    id: str
    name: str
    arguments: dict[str, Any]
    tool: ToolInfo | None
    refusal: CallOutcome | None = None
    because: Because | None = None
    """Why it is denied, if that is its refusal."""

    @property
    def server(self) -> str:
        return self.tool.server if self.tool else ""

    @property
    def repeatable(self) -> bool:
        """Whether a crash in the middle allows to run it again."""
        return self.tool is not None and (self.tool.read_only or self.tool.idempotent)

    @property
    def delegates(self) -> bool:
        """Whether a child does the work: it takes as long as a turn, and running it again goes on with that child."""
        return self.tool is not None and self.tool.origin == "system" and self.tool.name == DELEGATE.name


def plan_call(block: Block, tools: Mapping[str, ToolInfo], policy: Policy, *, others: bool = False) -> PlannedCall:
    """Return what becomes of a ``tool_use`` block.

    ``tools``: by the name the model sees. ``others``: text of others was read since the user's message.
    """
    tool = None if CALLED in block else tools.get(block["name"])
    refusal: CallOutcome | None = None
    because: Because | None = None
    if tool is None:
        name = block.get(CALLED, block["name"])
        refusal = error_outcome(f"There is no tool {name!r}. The tools are: {', '.join(tools) or 'none'}.")
    elif SECRET in block:
        refusal, because = CallOutcome(ToolStatus.DENIED, (text_block(SECRET_IN_ARGUMENTS),)), Because.SECRET
    elif BROKEN_INPUT in block:
        refusal = error_outcome(f"The arguments are not a JSON object: {block[BROKEN_INPUT][:200]!r}")
    elif (denial := policy.denial(tool, others=others)) is not None:
        refusal, because = CallOutcome(ToolStatus.DENIED, (text_block(denial.text),)), denial.because
    elif problem := find_problem(tool.input_schema, block["input"], user=tool.origin == "user"):
        refusal = error_outcome(f"The arguments do not fit the tool: {problem}")
    return PlannedCall(block["id"], block["name"], block["input"], tool, refusal, because)


def error_outcome(text: str) -> CallOutcome:
    """Return an error outcome in words for the model."""
    return CallOutcome(ToolStatus.ERROR, (text_block(text),))


def stop_outcome(by_user: bool) -> CallOutcome:
    """Return the outcome of a call that the end of its turn cut off."""
    if by_user:
        return CallOutcome(ToolStatus.INTERRUPTED, (text_block("interrupted by the user; the outcome is unknown"),))
    return error_outcome("not finished: the turn ended while this ran; the outcome is unknown")
