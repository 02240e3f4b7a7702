"""The untrusted texts that a model has read, from which an instruction in one of its calls may come. Pure.

Owns the list that a person sees before approving a call. The list does not tell which of the texts was obeyed.
"""

from collections.abc import Iterable, Sequence

from agentic_rag.base.events import Source
from agentic_rag.base.messages import OTHERS, Block, Message, Passage, tool_uses
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.system import DELEGATE, RECALL

MAX_SOURCES = 40
"""Most sources in the list; the first ones found are listed."""


def sources_of(messages: Iterable[Sequence[Message]], tools: Iterable[ToolInfo]) -> tuple[Source, ...]:
    """Return the untrusted sources in the messages of some agents, and the servers whose tool descriptions were read.

    Documents are listed by their names, memories and results by their tool, delegates by the tool of their call.
    ``messages``: one sequence per agent.
    """
    sources: dict[Source, None] = {}
    for agent_messages in messages:
        called = {use["id"]: use["name"] for message in agent_messages for use in tool_uses(message["content"])}
        for message in agent_messages:
            for block in message["content"]:
                if block["type"] == "tool_result":
                    sources |= dict.fromkeys(_in_result(block, called.get(block["tool_use_id"], "")))
    described = sorted({tool.server for tool in tools if tool.origin == "user"})
    sources |= dict.fromkeys(Source("description", server) for server in described)
    return tuple(sources)[:MAX_SOURCES]


def _in_result(block: Block, tool: str) -> list[Source]:
    passages = [Passage.of(part) for part in block["content"] if part["type"] == "search_result"]
    documents = [Source("document", passage.document_name) for passage in passages if passage is not None]
    if tool == RECALL.name:
        return [*documents, Source("memory", tool)]
    if tool == DELEGATE.name and OTHERS in block:
        return [*documents, Source(DELEGATE.name, tool)]
    return [*documents, Source("tool", tool)] if OTHERS in block and not documents else documents
