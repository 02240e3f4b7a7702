"""Reading on in a result that is kept whole: the agent's own tool.

Owns `READ_TOOL` and what it answers, the bytes of kept images, and `FIND_TOOL`, with which a model loads tools that
came after its session had begun. A ref is bound to its session; another's looks like none.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from agentic_rag.events import ToolStatus
from agentic_rag.json_form import Json
from agentic_rag.messages import ToolSpec, kept_image, text_block
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.calls import error_outcome
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.results import part_of, passages_with
from agentic_rag.runtime.services import Resources
from agentic_rag.store import payloads
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.pictures import read_picture
from agentic_rag.tools.system import FIND_TOOLS, READ_RESULT

MAX_SOUGHT = 200
"""Characters of a text that is looked for in a result."""

READ_TOOL = ToolInfo(
    name=READ_RESULT.name,
    remote_name=READ_RESULT.name,
    server=READ_RESULT.server,
    origin=READ_RESULT.origin,
    description="Read a result that is kept under a ref, from a character on or around a text; it says how to go on.",
    input_schema={
        "type": "object",
        "properties": {
            "ref": {"type": "string"},
            "from": {"type": "integer", "minimum": 0, "description": "First character, 0 without it."},
            "find": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_SOUGHT,
                "description": "Only what stands around this text, in any case.",
            },
        },
        "required": ["ref"],
        "additionalProperties": False,
    },
    read_only=True,
)


FIND_TOOL = ToolInfo(
    name=FIND_TOOLS.name,
    remote_name=FIND_TOOLS.name,
    server=FIND_TOOLS.server,
    origin=FIND_TOOLS.origin,
    description="Load tools that a note has told of since the conversation began, by their names or by what they do.",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Names, or words of the descriptions."}},
        "required": ["query"],
        "additionalProperties": False,
    },
    read_only=True,
)
MAX_FOUND = 10
_WORD = re.compile(r"\w+")


def with_own_tools(definition: Definition, tools: tuple[ToolInfo, ...]) -> tuple[ToolInfo, ...]:
    """Return a turn's tools with the agent's own, which no server's tool can replace.

    They are always there, since the list must not change from turn to turn; `FIND_TOOL` where the model can be given
    tools later at all.
    """
    own = (READ_TOOL, FIND_TOOL) if profile_of(definition.model).deferred_tools else (READ_TOOL,)
    names = {tool.name for tool in own}
    return (*own, *(tool for tool in tools if tool.name not in names))


def find_tools(late: Sequence[ToolSpec], arguments: Json) -> CallOutcome:
    """Answer a call of `FIND_TOOL` with references to the tools that fit best."""
    words = {word.casefold() for word in _WORD.findall(str(arguments["query"]))}

    def fit(tool: ToolSpec) -> int:
        named = tool["name"].casefold()
        text = f"{named} {tool['description']}".casefold()
        return sum((word in text) + 3 * (word in named) for word in words)

    found = [tool for tool in sorted(late, key=fit, reverse=True) if fit(tool)][:MAX_FOUND]
    if not found:
        names = ", ".join(tool["name"] for tool in late[:100])
        return error_outcome(f"No tool fits. These came later: {names}." if late else "No tools came later.")
    references = tuple({"type": "tool_reference", "tool_name": tool["name"]} for tool in found)
    return CallOutcome(ToolStatus.OK, references)


class Pictures:
    """The bytes of images, as base64 by ref, of those that a turn sends."""

    def __init__(self, files: PayloadFiles) -> None:
        self._files = files
        self._known: dict[str, str] = {}

    async def of(self, refs: AbstractSet[str]) -> Mapping[str, str]:
        """Return those of some refs; one that is gone is not among them."""
        for ref in refs - self._known.keys():
            data = await self._files.read(ref)
            if data is not None:
                self._known[ref] = base64.b64encode(data).decode()
        self._known = {ref: data for ref, data in self._known.items() if ref in refs}
        return self._known


async def read_on(resources: Resources, session_id: str, arguments: Json) -> CallOutcome:
    """Answer a call of `READ_TOOL`; ``arguments`` fit its schema."""
    ref, start, sought = arguments["ref"], arguments.get("from", 0), arguments.get("find")
    payload = await resources.database.read(lambda conn: payloads.get(conn, session_id, ref))
    if payload is None:
        return error_outcome(f"There is no result kept as {ref!r} in this conversation.")
    data = await resources.payloads.read(ref)
    if data is None:
        return error_outcome(f"The result kept as {ref!r} is gone. Call the tool again.")
    if payload.media_type.startswith("image/"):
        picture = read_picture(data)
        size = (picture.width, picture.height) if picture else (0, 0)
        return CallOutcome(ToolStatus.OK, (kept_image(payload.media_type, ref, size),))
    text = data.decode(errors="replace")
    if start >= len(text) > 0:
        return error_outcome(f"from: the result has {len(text)} characters; a number below that is right.")
    shown = part_of(text, start) if sought is None else passages_with(text, sought, start)
    return CallOutcome(ToolStatus.OK, (text_block(shown),))
