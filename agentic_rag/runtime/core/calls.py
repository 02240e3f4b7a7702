"""The calls of an assistant message: which may run, and why others may not. Pure.

Owns the refusals: unknown tool, broken or unfit arguments, arguments that held a secret, what the domain's policy
denies, and tools that changed since the admin accepted them. A text the model read can ask for anything; only the
policy grants. Knows no turn and no MCP.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from agentic_rag.events import ToolStatus
from agentic_rag.json_form import Json
from agentic_rag.messages import (
    BROKEN_INPUT,
    CALLED,
    SECRET,
    Block,
    text_block,
)
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.system import BY_NAME, DELEGATE

IGNORED_KEYWORDS = frozenset({"pattern", "patternProperties", "$ref", "$dynamicRef", "$recursiveRef", "$id", "$schema"})
"""Not checked on our side for a user's tool: a regular expression can take for ever, references can multiply."""

VALUES = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})
"""Keywords whose values are data, not schemas."""

SECRET_IN_ARGUMENTS = "Denied: the arguments hold a secret of this domain. Servers get them from its settings only."

_WILD = re.compile(r"\[\]?[^\]]*\]|[*?]")
"""What of a glob stands for other characters."""

PROBLEM_CHARS = 500
"""How much of a validation error the model reads."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which calls may run. ``rules``: glob of tool names as the model sees them → verdict.

    The most specific pattern that matches decides: the tool's own name, else the one with the most literal
    characters; among equals ``deny`` wins. The order of the rules means nothing: a JSON object has none.
    ``effects_allowed``: what no rule names may have effects (a single user on loopback).
    """

    rules: Mapping[str, Literal["allow", "deny"]] = field(default_factory=dict)
    effects_allowed: bool = True

    def denial(self, tool: ToolInfo) -> str:
        """Return why a tool may not be called, naming the setting; empty if it may."""
        if tool.changed:
            return (
                f"Denied: the tool {tool.name!r} has changed since its server was accepted. An admin can look at the "
                f"change (GET /api/domains/{{id}}/mcp-servers/{tool.server}/pending) and accept it (POST "
                f"/api/domains/{{id}}/mcp-servers/{tool.server}/accept). Go on without."
            )
        matching = [
            (glob == tool.name, len(_WILD.sub("", glob)), verdict == "deny")
            for glob, verdict in self.rules.items()
            if fnmatchcase(tool.name, glob)
        ]
        if matching:
            *_, denied = max(matching)
            return f"Denied by this domain's setting toolPolicy for {tool.name!r}. Go on without." if denied else ""
        has_effects = (tool.name in BY_NAME and BY_NAME[tool.name].effects) or (
            tool.origin == "user" and not tool.read_only
        )
        if has_effects and not self.effects_allowed:
            return (
                f"Denied: {tool.name!r} may have effects, and this domain's setting toolPolicy does not allow it. "
                f'An admin can add {{"{tool.name}": "allow"}} there. Go on without.'
            )
        return ""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of the model. ``refusal`` is set when it must not run: it is its outcome."""

    id: str
    name: str
    arguments: dict[str, Any]
    tool: ToolInfo | None
    refusal: CallOutcome | None = None
    holds_secret: bool = False
    """Whether the arguments held one; they are redacted, and the call is denied."""

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


def plan_call(block: Block, tools: Mapping[str, ToolInfo], policy: Policy) -> PlannedCall:
    """Return what becomes of a ``tool_use`` block.

    ``tools``: by the name the model sees.
    """
    tool = None if CALLED in block else tools.get(block["name"])
    refusal = _refusal(block, tool, tools, policy)
    return PlannedCall(block["id"], block["name"], block["input"], tool, refusal, SECRET in block)


def _refusal(block: Block, tool: ToolInfo | None, tools: Mapping[str, ToolInfo], policy: Policy) -> CallOutcome | None:
    if tool is None:
        name = block.get(CALLED, block["name"])
        return error_outcome(f"There is no tool {name!r}. The tools are: {', '.join(tools) or 'none'}.")
    if SECRET in block:
        return CallOutcome(ToolStatus.DENIED, (text_block(SECRET_IN_ARGUMENTS),))
    if BROKEN_INPUT in block:
        return error_outcome(f"The arguments are not a JSON object: {block[BROKEN_INPUT][:200]!r}")
    denial = policy.denial(tool)
    if denial:
        return CallOutcome(ToolStatus.DENIED, (text_block(denial),))
    problem = _schema_problem(tool.input_schema, block["input"], user=tool.origin == "user")
    return error_outcome(f"The arguments do not fit the tool: {problem}") if problem else None


def error_outcome(text: str) -> CallOutcome:
    """Return an error outcome in words for the model."""
    return CallOutcome(ToolStatus.ERROR, (text_block(text),))


def stop_outcome(by_user: bool) -> CallOutcome:
    """Return the outcome of a call that the end of its turn cut off."""
    if by_user:
        return CallOutcome(ToolStatus.INTERRUPTED, (text_block("interrupted by the user; the outcome is unknown"),))
    return error_outcome("not finished: the turn ended while this ran; the outcome is unknown")


def _schema_problem(schema: Any, arguments: Json, *, user: bool) -> str | None:
    """Return what is wrong with the arguments, or None. A schema that is itself broken refuses nothing.

    ``user``: the schema is a stranger's. Nothing in it may cost more than its length, and no reference of any
    schema is fetched.
    """
    # Imported here: at the top it would cost every start a tenth of a second before the server listens.
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    checked = _harmless(schema) if user else schema
    try:
        if user:
            Draft202012Validator.check_schema(checked)
        validator = Draft202012Validator(checked, registry=Registry())
        error = next(iter(validator.iter_errors(dict(arguments))), None)
    except (SchemaError, Unresolvable, RecursionError, ArithmeticError):
        return None
    return None if error is None else f"{error.json_path}: {error.message[:PROBLEM_CHARS]}"


def _harmless(schema: Any, *, names: bool = False) -> Any:
    """Return a schema without `IGNORED_KEYWORDS`. ``names``: the keys here are names of arguments, not keywords."""
    if isinstance(schema, Mapping):
        return {
            key: _harmless(value, names=not names and key == "properties") if key not in VALUES or names else value
            for key, value in schema.items()
            if names or key not in IGNORED_KEYWORDS
        }
    if isinstance(schema, list | tuple):
        return [_harmless(item) for item in schema]
    return schema
