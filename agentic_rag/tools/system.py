"""The tools of the product's own servers: the one place that lists their names.

Owns, for each tool, its server, its line in the bootstrap prompt, the reading of its result, its audience and its
effects. The servers (`mcp_servers`) know their own tools themselves: they run without this package. Pure.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from agentic_rag.tools.base import Origin


class ResultReader(Enum):
    """The part of a tool's structured result that is read."""

    NOTHING = "nothing"
    HITS = "hits"
    """Passages of documents, which become citable."""
    ENGRAMS = "engrams"
    """Memories, which a client shows as results."""
    EVIDENCE = "evidence"
    """Passages that a delegate passes on with its answer, which stay citable."""
    ACTIVATION = "activation"
    """The new role of the conversation, and the hash of its text."""


@dataclass(frozen=True, slots=True)
class SystemTool:
    """One of our tools.

    ``english`` and ``chinese`` are its line in the bootstrap prompt, empty for none. ``{roles}`` stands for the roles
    that a task may be delegated to. ``prompt_order`` is the position of the line.

    ``authors_only``: offered to a domain's admins, in a domain with the role that uses it.
    ``needs_skills``: offered in a domain whose workspace has skills.
    ``effects``: the tool changes data that other users see.
    ``shared_effects``: the same, but only where the domain's memory is shared.
    """

    name: str
    server: str
    origin: Origin
    english: str = ""
    chinese: str = ""
    prompt_order: int = 0
    reader: ResultReader = ResultReader.NOTHING
    authors_only: bool = False
    needs_skills: bool = False
    effects: bool = False
    shared_effects: bool = False


PROMPTX: Final = "promptx"
DELEGATION: Final = "delegate"
RETRIEVER: Final = "retriever"
AGENT: Final = "agent"
"""Not a server: the agent runs these tools itself."""
CLIENT: Final = "(client)"
"""Not a server: the client's program runs these functions. No MCP server can have this name."""

ACTION: Final = SystemTool(
    "promptx_action",
    PROMPTX,
    "system",
    reader=ResultReader.ACTIVATION,
)
RECALL: Final = SystemTool(
    "promptx_recall",
    PROMPTX,
    "system",
    reader=ResultReader.ENGRAMS,
)
REMEMBER: Final = SystemTool(
    "promptx_remember",
    PROMPTX,
    "system",
    "promptx_remember: save what later conversations need or you are told to.",
    "promptx_remember：保存以后有用或要求记住的。",
    prompt_order=2,
    shared_effects=True,
)
FORGET: Final = SystemTool("promptx_forget", PROMPTX, "system", shared_effects=True)
DISCOVER: Final = SystemTool("promptx_discover", PROMPTX, "system")
SEARCH: Final = SystemTool(
    "search_documents",
    RETRIEVER,
    "builtin",
    "search_documents: look up facts; cite them, say so if nothing fits.",
    "search_documents：查事实并引用；没有就直说。",
    prompt_order=1,
    reader=ResultReader.HITS,
)
READ_DOCUMENT: Final = SystemTool("read_document", RETRIEVER, "builtin", reader=ResultReader.HITS)
FIND_IN_DOCUMENT: Final = SystemTool("find_in_document", RETRIEVER, "builtin", reader=ResultReader.HITS)
LIST_DOCUMENTS: Final = SystemTool("list_documents", RETRIEVER, "builtin")
DELEGATE: Final = SystemTool(
    "delegate",
    DELEGATION,
    "system",
    "delegate: hand self-contained tasks to {roles}.",
    "delegate：把任务交给 {roles}。",
    prompt_order=3,
    reader=ResultReader.EVIDENCE,
)
READ_RESULT: Final = SystemTool(
    "read_tool_result",
    AGENT,
    "system",
    "read_tool_result: read on by ref.",
    "read_tool_result：按 ref 续读。",
    prompt_order=4,
)
ASK_USER: Final = SystemTool("ask_user", AGENT, "system")
FIND_TOOLS: Final = SystemTool("find_tools", AGENT, "system")
CALL_TOOL: Final = SystemTool("call_tool", AGENT, "system")
"""Calls a tool that `FIND_TOOLS` returned, if the model's service has no deferred tools."""
READ_SKILL: Final = SystemTool("read_skill_file", PROMPTX, "system", needs_skills=True)
ROLE_WRITE: Final = SystemTool("role_write", PROMPTX, "system", authors_only=True, effects=True)
ROLE_CHECK: Final = SystemTool("role_check", PROMPTX, "system", authors_only=True)

SYSTEM_TOOLS: Final = (
    ACTION,
    RECALL,
    REMEMBER,
    FORGET,
    DISCOVER,
    SEARCH,
    READ_DOCUMENT,
    FIND_IN_DOCUMENT,
    LIST_DOCUMENTS,
    DELEGATE,
    READ_RESULT,
    ASK_USER,
    FIND_TOOLS,
    CALL_TOOL,
    READ_SKILL,
    ROLE_WRITE,
    ROLE_CHECK,
)
"""All our tools in the order in which a model sees them."""
BY_NAME: Final = {tool.name: tool for tool in SYSTEM_TOOLS}
SERVERS: Final = frozenset({PROMPTX, DELEGATION, RETRIEVER})
"""Names that no server of a user can use."""


def promptx_tools(*, author: bool, skills: bool = False) -> tuple[str, ...]:
    """Return the names of the PromptX server's tools that a user is offered.

    ``author``: the user may write roles. ``skills``: the workspace has skills to read.
    """
    offered = [tool for tool in SYSTEM_TOOLS if tool.server == PROMPTX]
    return tuple(
        tool.name for tool in offered if (author or not tool.authors_only) and (skills or not tool.needs_skills)
    )
