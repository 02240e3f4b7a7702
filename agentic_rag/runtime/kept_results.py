"""Reading on in a result that is kept whole: the agent's own tool.

Owns `READ_TOOL`: when it is offered and what it answers. A ref is bound to its session; another's looks
like none.
"""

from agentic_rag.events import ToolStatus
from agentic_rag.json_form import Json
from agentic_rag.messages import text_block
from agentic_rag.runtime.core.calls import error_outcome
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.results import RESULT_BUDGET, part_of
from agentic_rag.runtime.services import Resources
from agentic_rag.store import payloads
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.system import READ_RESULT

READ_TOOL = ToolInfo(
    name=READ_RESULT.name,
    remote_name=READ_RESULT.name,
    server=READ_RESULT.server,
    origin=READ_RESULT.origin,
    description=(
        "Read a tool result that was too long to be shown whole. "
        f"An answer holds up to {RESULT_BUDGET // 1024} KiB; read on with the next range."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "ref": {"type": "string", "description": "The ref that the shortened result names."},
            "range": {
                "type": "array",
                "description": "First character (from 0) and the one after the last; without it from the start.",
                "items": {"type": "integer", "minimum": 0},
                "minItems": 2,
                "maxItems": 2,
            },
        },
        "required": ["ref"],
        "additionalProperties": False,
    },
    read_only=True,
)


def with_own_tools(definition: Definition, tools: tuple[ToolInfo, ...]) -> tuple[ToolInfo, ...]:
    """Return a turn's tools with the agent's own, which no server's tool can replace.

    Only a user server's result is ever cut. Whether one was cut so far does not count: the list must not change
    from turn to turn.
    """
    if not definition.entries:
        return tools
    return (READ_TOOL, *(tool for tool in tools if tool.name != READ_TOOL.name))


async def read_on(resources: Resources, session_id: str, arguments: Json) -> CallOutcome:
    """Answer a call of `READ_TOOL`; ``arguments`` fit its schema."""
    ref = arguments["ref"]
    start, end = arguments.get("range") or (0, None)
    payload = await resources.database.read(lambda conn: payloads.get(conn, session_id, ref))
    if payload is None:
        return error_outcome(f"There is no result kept as {ref!r} in this conversation.")
    data = await resources.payloads.read(ref)
    if data is None:
        return error_outcome(f"The result kept as {ref!r} is gone. Call the tool again.")
    text = data.decode(errors="replace")
    if start >= len(text) or (end is not None and end <= start):
        return error_outcome(f"Nothing lies in that range: the result has {len(text)} characters.")
    return CallOutcome(ToolStatus.OK, (text_block(part_of(text, start, end)),))
