"""The agent's own tool that reads stored results.

Owns `READ_TOOL` and its answers, the list of the agent's own tools, and the bytes of stored images. A ref belongs to
its session; a ref of another session is unknown.
"""

import base64
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from agentic_rag.base.events import ToolStatus
from agentic_rag.base.ids import SessionId
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import kept_image, text_block
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.calls import error_outcome
from agentic_rag.runtime.core.client_functions import client_tools
from agentic_rag.runtime.core.deferred_tools import CALL, FIND, many_tokens, with_search
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.prompt_state import PromptState
from agentic_rag.runtime.core.questions import ASK_TOOL
from agentic_rag.runtime.core.results import ResultRoom, part_of, passages_with
from agentic_rag.runtime.services import Resources
from agentic_rag.store import payloads
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.image_headers import read_picture
from agentic_rag.tools.system import READ_RESULT

MAX_SOUGHT = 200
"""Most characters of a text to find in a result."""

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


def with_own_tools(
    definition: Definition, tools: tuple[ToolInfo, ...], state: PromptState | None = None
) -> tuple[ToolInfo, ...]:
    """Return a turn's tools with the agent's own tools and the client's functions.

    No server's tool can have the name of an own tool, and no function that of another tool.

    `READ_TOOL` is always included, because the list must not change from turn to turn. ``state``: the session's prompt
    state.
    """
    names = frozenset(state.names) if state else frozenset[str]()
    by_service, most = profile_of(definition.model).deferred_tools, many_tokens(definition.model)
    asking = (ASK_TOOL,) if definition.ask_user else ()
    own = (READ_TOOL, *asking, *with_search(tools, names, by_service=by_service, most=most))
    reserved = {READ_TOOL.name, ASK_TOOL.name, FIND.name, CALL.name}
    servers = [tool for tool in tools if tool.name not in reserved]
    return (*own, *servers, *client_tools(definition, (*own, *servers)))


class Pictures:
    """The images that a turn sends, as base64 by ref."""

    def __init__(self, database: Database, files: PayloadFiles) -> None:
        self._database = database
        self._files = files
        self._encoded: dict[str, str] = {}

    async def of(self, refs: AbstractSet[str]) -> Mapping[str, str]:
        """Return the images of these refs. Deleted and damaged images are left out."""
        if new := refs - self._encoded.keys():
            for ref, sha256 in (await self._database.read(partial(payloads.hashes_of, refs=new))).items():
                data = await self._files.read(ref, sha256)
                if data is not None:
                    self._encoded[ref] = base64.b64encode(data).decode()
        self._encoded = {ref: data for ref, data in self._encoded.items() if ref in refs}
        return self._encoded


async def read_on(resources: Resources, session_id: SessionId, arguments: Json, room: ResultRoom) -> CallOutcome:
    """Answer a call of `READ_TOOL`. ``arguments`` fit its schema. ``room``: the model's limits for results."""
    ref, start, sought = arguments["ref"], arguments.get("from", 0), arguments.get("find")
    payload = await resources.database.read(lambda conn: payloads.get(conn, session_id, ref))
    if payload is None:
        return error_outcome(f"There is no result kept as {ref!r} in this conversation.")
    data = await resources.payloads.read(ref, payload.sha256)
    if data is None:
        return error_outcome(f"The result kept as {ref!r} is gone or damaged. Call the tool again.")
    if payload.media_type.startswith("image/"):
        picture = read_picture(data)
        size = (picture.width, picture.height) if picture else (0, 0)
        return CallOutcome(ToolStatus.OK, (kept_image(payload.media_type, ref, size),))
    text = data.decode(errors="replace")
    if start >= len(text) > 0:
        return error_outcome(f"from: the result has {len(text)} characters; a number below that is right.")
    part = part_of(text, start, room.text) if sought is None else passages_with(text, sought, start)
    return CallOutcome(ToolStatus.OK, (text_block(part),))
