"""A minimal agent that runs the calls of the extractive model until it answers.

This module contains the loop and the transcript. Tools are callables that return the content of a ``tool_result``. A
`ToolFailure` becomes an error result, as in the runtime.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentic_rag.base.messages import Block, Message, ToolSpec, plain_text, text_block, tool_result_block, user_message
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.extractive import decide

Tool = Callable[[dict[str, Any]], Awaitable[list[Block]]]

MAX_STEPS = 6

PROMPT = (
    "You are the assistant of “Demo”.\n"
    'At the start of a conversation activate your role: promptx_action with role "guide". Then act as it says.\n'
    "Answer in the language of the user's message."
)


class ToolFailure(Exception):
    """An error result of a tool. The text is for the model."""


def object_schema(*required: str, **properties: Any) -> dict[str, Any]:
    """Return an object schema. Properties without a schema are strings."""
    names = {name: {"type": "string"} for name in required} | properties
    return {"type": "object", "properties": names, "required": list(required), "additionalProperties": False}


ENGRAMS: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["content", "schema", "strength", "type"],
        "properties": {
            "content": {"type": "string", "minLength": 1},
            "schema": {"type": "string", "minLength": 1},
            "strength": {"type": "number", "minimum": 0, "maximum": 1},
            "type": {"enum": ["ATOMIC", "LINK", "PATTERN"]},
        },
    },
}
TOOLS: dict[str, ToolSpec] = {
    "promptx_action": {"name": "promptx_action", "description": "Activate.", "input_schema": object_schema("role")},
    "promptx_recall": {
        "name": "promptx_recall",
        "description": "Recall.",
        "input_schema": object_schema("role", query={"type": ["string", "null"]}),
    },
    "promptx_remember": {
        "name": "promptx_remember",
        "description": "Remember.",
        "input_schema": object_schema("role", "engrams", engrams=ENGRAMS),
    },
    "read_document": {"name": "read_document", "description": "Read.", "input_schema": object_schema("document")},
    "search_documents": {
        "name": "search_documents",
        "description": "Search.",
        "input_schema": object_schema("query", query={"type": "string", "maxLength": 2_000}, top_k={"type": "integer"}),
    },
}


def make_request(messages: Sequence[Message], tools: Sequence[str] = tuple(TOOLS), **fields: Any) -> ModelRequest:
    """Return a request with the standard prompt and the named tools."""
    values: dict[str, Any] = {
        "model": "extractive",
        "max_tokens": 4096,
        "system": (text_block(PROMPT),),
        "messages": tuple(messages),
        "tools": tuple(TOOLS[name] for name in tools),
    }
    return ModelRequest(**(values | fields))


def search_result(title: str, *sentences: str, source: str = "doc_1", score: float = 0.6, rows: int = 0) -> Block:
    """Return a ``search_result`` block as the runtime makes them; the last ``rows`` sentences are rows of a table.

    The header of the table is the sentence before the rows.
    """
    passage: Block = {"documentId": source, "documentName": title, "chunkIds": ["c"] * len(sentences), "score": score}
    if rows:
        first, last = len(sentences) - rows, len(sentences)
        passage["tables"] = [{"first": first, "last": last, "header": sentences[first - 1].split(" | ")}]
    return {
        "type": "search_result",
        "source": source,
        "title": title,
        "content": [text_block(sentence) for sentence in sentences],
        "citations": {"enabled": True},
        "_passage": passage,
    }


class Conversation:
    """A transcript that grows with each question. `calls` are the tool calls so far, one list for each step."""

    def __init__(self, tools: Mapping[str, Tool], **fields: Any) -> None:
        self.messages: list[Message] = []
        self.steps: list[list[Block]] = []
        self._tools = tools
        self._more = fields

    async def ask(self, *texts: str) -> list[Block]:
        """Send a user message (several texts: notes first) and run the turn; returns the blocks of the answer."""
        content = [block for text in texts for block in user_message(text)["content"]]
        self.messages.append({"role": "user", "content": content})
        for _ in range(MAX_STEPS):
            blocks = decide(make_request(self.messages, tuple(self._tools), **self._more))
            self.messages.append({"role": "assistant", "content": blocks})
            if blocks[0]["type"] != "tool_use":
                return blocks
            self.steps.append(blocks)
            self.messages.append({"role": "user", "content": [await self._run(block) for block in blocks]})
        raise AssertionError(f"no answer after {MAX_STEPS} steps")

    async def _run(self, use: Block) -> Block:
        try:
            return tool_result_block(use["id"], await self._tools[use["name"]](use["input"]))
        except ToolFailure as failure:
            return tool_result_block(use["id"], [text_block(str(failure))], is_error=True)

    @property
    def called(self) -> list[list[str]]:
        """Names of the tools called, one list a step."""
        return [[block["name"] for block in step] for step in self.steps]


def answering_tool(*content: Block | str) -> Tool:
    """Return a tool that always returns this content. A string is a text block."""

    async def tool(arguments: dict[str, Any]) -> list[Block]:
        return [text_block(part) if isinstance(part, str) else part for part in content]

    return tool


def failing_tool(reason: str) -> Tool:
    """Return a tool that always fails."""

    async def tool(arguments: dict[str, Any]) -> list[Block]:
        raise ToolFailure(reason)

    return tool


def text_of(blocks: Sequence[Block]) -> str:
    """Return the text of an answer."""
    return plain_text(blocks)
