"""The calls of an assistant message: which may run, and why others may not. Pure.

Owns the refusals: unknown tool, broken or unfit arguments, and what the domain's policy denies. A text the
model read can ask for anything; only the policy grants. Knows no turn and no MCP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator

from agentic_rag.messages import Block, text_block
from agentic_rag.tools.base import CallOutcome, ToolInfo

Policy = Mapping[str, Literal["allow", "deny"]]


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of the model. ``refusal`` is set when it must not run: it is its outcome."""

    id: str
    name: str
    arguments: dict[str, Any]
    tool: ToolInfo | None
    refusal: CallOutcome | None = None

    @property
    def server(self) -> str:
        return self.tool.server if self.tool else ""

    @property
    def repeatable(self) -> bool:
        """Whether a crash in the middle allows to run it again."""
        return self.tool is not None and (self.tool.read_only or self.tool.idempotent)


def plan_call(block: Block, tools: Mapping[str, ToolInfo], policy: Policy) -> PlannedCall:
    """Return what becomes of a ``tool_use`` block.

    ``tools``: by the name the model sees. ``policy``: glob of such names → verdict; later entries win.
    """
    tool = tools.get(block["name"])
    refusal = _refusal(block, tool, tools, policy)
    return PlannedCall(block["id"], block["name"], block["input"], tool, refusal)


def _refusal(block: Block, tool: ToolInfo | None, tools: Mapping[str, ToolInfo], policy: Policy) -> CallOutcome | None:
    name = block["name"]
    if tool is None:
        return failed(f"There is no tool {name!r}. The tools are: {', '.join(tools) or 'none'}.")
    if "_broken_input" in block:
        return failed(f"The arguments are not a JSON object: {block['_broken_input'][:200]!r}")
    verdicts = [verdict for glob, verdict in policy.items() if fnmatchcase(name, glob)]
    if verdicts and verdicts[-1] == "deny":
        return CallOutcome(
            "denied", (text_block(f"Denied by this domain's setting toolPolicy for {name!r}. Go on without."),)
        )
    problem = _schema_problem(tool.input_schema, block["input"])
    return failed(f"The arguments do not fit the tool: {problem}") if problem else None


def failed(text: str) -> CallOutcome:
    """Return an error outcome in words for the model."""
    return CallOutcome("error", (text_block(text),))


def stopped(by_user: bool) -> CallOutcome:
    """Return the outcome of a call that the end of its turn cut off."""
    if by_user:
        return CallOutcome("interrupted", (text_block("interrupted by the user; the outcome is unknown"),))
    return failed("not finished: the turn ended while this ran; the outcome is unknown")


def _schema_problem(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the arguments, or None. A schema that is itself broken refuses nothing."""
    try:
        error = next(iter(Draft202012Validator(dict(schema)).iter_errors(dict(arguments))), None)
    except SchemaError:
        return None
    return None if error is None else f"{error.json_path}: {error.message}"
