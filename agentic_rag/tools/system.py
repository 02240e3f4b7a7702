"""The tools of the product's own servers: the one place in which their names stand.

Owns, of each, its server, its line in the bootstrap prompt, how its result is read, who is offered it and whether it
has effects. The servers (`mcp_servers`) know their own tools themselves: they run without this package. Pure.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from agentic_rag.tools.base import Origin


class ResultReader(Enum):
    """What is read out of a tool's structured result."""

    NOTHING = "nothing"
    HITS = "hits"
    """Passages of documents, which become citable."""
    ENGRAMS = "engrams"
    """Memories, which a client is shown as found."""
    ACTIVATION = "activation"
    """The role that the conversation now has, and the hash of its text."""


@dataclass(frozen=True, slots=True)
class SystemTool:
    """One tool of ours.

    ``english`` and ``chinese``: its line in the bootstrap prompt, empty for none; ``{role}`` and ``{roles}`` stand for
    the domain's role and for those that may be delegated to. ``prompt_order``: place of the line among the others.
    ``authors_only``: offered to a domain's admins, in a domain with the role that uses it. ``effects``: it changes
    what others see; ``shared_effects``: it does so where the domain's memory is shared.
    """

    name: str
    server: str
    origin: Origin
    english: str = ""
    chinese: str = ""
    prompt_order: int = 0
    reader: ResultReader = ResultReader.NOTHING
    authors_only: bool = False
    effects: bool = False
    shared_effects: bool = False


PROMPTX: Final = "promptx"
DELEGATION: Final = "delegate"
RETRIEVER: Final = "retriever"
AGENT: Final = "agent"
"""Not a server: the agent answers itself."""

ACTION: Final = SystemTool(
    "promptx_action",
    PROMPTX,
    "system",
    'At the start of a conversation activate your role: promptx_action with role "{role}". Then act as it says.',
    '对话开始时先激活角色：调用 promptx_action，role 为 "{role}"，然后按其要求行事。',
    prompt_order=1,
    reader=ResultReader.ACTIVATION,
)
RECALL: Final = SystemTool(
    "promptx_recall",
    PROMPTX,
    "system",
    "promptx_recall: look into your memory before you answer.",
    "promptx_recall：回答之前先查看记忆。",
    prompt_order=3,
    reader=ResultReader.ENGRAMS,
)
REMEMBER: Final = SystemTool(
    "promptx_remember",
    PROMPTX,
    "system",
    "promptx_remember: save what will matter in later conversations, and whatever you are told to.",
    "promptx_remember：保存以后对话用得到的内容，以及用户要求记住的内容。",
    prompt_order=4,
    shared_effects=True,
)
DISCOVER: Final = SystemTool("promptx_discover", PROMPTX, "system")
SEARCH: Final = SystemTool(
    "search_documents",
    RETRIEVER,
    "builtin",
    "search_documents: look up facts in the documents; cite what you use, and say so if nothing fits.",
    "search_documents：在文档中查找事实；引用所用的内容，找不到就直说。",
    prompt_order=5,
    reader=ResultReader.HITS,
)
DELEGATE: Final = SystemTool(
    "delegate",
    DELEGATION,
    "system",
    "delegate: hand a self-contained task to one of the roles {roles}.",
    "delegate：把独立的任务交给以下角色之一：{roles}。",
    prompt_order=2,
)
READ_RESULT: Final = SystemTool(
    "read_tool_result",
    AGENT,
    "system",
    "read_tool_result: read on in a long result by its ref.",
    "read_tool_result：按 ref 继续阅读较长的结果。",
    prompt_order=6,
)
FIND_TOOLS: Final = SystemTool("find_tools", AGENT, "system")
ROLE_WRITE: Final = SystemTool("role_write", PROMPTX, "system", authors_only=True, effects=True)
ROLE_CHECK: Final = SystemTool("role_check", PROMPTX, "system", authors_only=True)

SYSTEM_TOOLS: Final = (
    ACTION,
    RECALL,
    REMEMBER,
    DISCOVER,
    SEARCH,
    DELEGATE,
    READ_RESULT,
    FIND_TOOLS,
    ROLE_WRITE,
    ROLE_CHECK,
)
"""In the order in which a model is shown them."""
BY_NAME: Final = {tool.name: tool for tool in SYSTEM_TOOLS}
SERVERS: Final = frozenset({PROMPTX, DELEGATION, RETRIEVER})
"""Names that no server of a user can have."""


def promptx_tools(*, author: bool) -> tuple[str, ...]:
    """Return the names of the PromptX server's tools that a user is offered. ``author``: the user may write roles."""
    return tuple(tool.name for tool in SYSTEM_TOOLS if tool.server == PROMPTX and (author or not tool.authors_only))
