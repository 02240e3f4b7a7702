"""Saving memories on request, and quoting memories, with the real PromptX server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import TextContent

from agentic_rag.base.messages import Block, text_block
from agentic_rag.models.extractive import instruction_to_remember, memories_in
from mcp_servers.promptx.server import PromptXConfig, create_server
from tests.demo.harness import DEMO
from tests.extractive.agent import Conversation, ToolFailure, answering_tool, failing_tool, search_result, text_of


@pytest.fixture
async def promptx(tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """The tools of a PromptX server on a workspace with the demo's role."""
    role = tmp_path / ".promptx" / "resource" / "role" / "guide" / "guide.role.md"
    role.parent.mkdir(parents=True)
    role.write_text((DEMO / ".promptx/resource/role/guide/guide.role.md").read_text("utf-8"), "utf-8")
    async with Client(create_server(PromptXConfig(workspace=tmp_path))) as client:

        def tool(name: str) -> Any:
            async def call(arguments: dict[str, Any]) -> list[Block]:
                result = await client.call_tool(name, arguments, read_timeout_seconds=10)
                texts = [text_block(part.text) for part in result.content if isinstance(part, TextContent)]
                if result.is_error:
                    raise ToolFailure(texts[0]["text"])
                return texts

            return call

        yield {name: tool(name) for name in ("promptx_action", "promptx_recall", "promptx_remember")}


@pytest.mark.parametrize(
    ("statement", "question", "expected"),
    [
        ("Please remember that our unit is in the loft.", "Where is our unit?", "our unit is in the loft."),
        ("Remember: my favourite colour is teal", "What is my favourite colour?", "my favourite colour is teal"),
        ("记住：我最喜欢的颜色是青色", "我最喜欢什么颜色？", "我最喜欢的颜色是青色"),
        ("请帮我记住我们的维保合同每年三月续签。", "维保合同什么时候续签？", "我们的维保合同每年三月续签。"),
    ],
)
async def test_a_users_statement_is_saved_and_quoted_from_memory(
    promptx: dict[str, Any], statement: str, question: str, expected: str
) -> None:
    first = Conversation(promptx)
    confirmation = text_of(await first.ask(statement))
    assert first.called == [["promptx_action"], ["promptx_remember"]]
    assert expected in confirmation
    answer = text_of(await Conversation(promptx).ask(question))
    assert answer.startswith(("From memory: ", "记忆中有："))
    assert expected in answer


async def test_a_memory_that_does_not_fit_is_not_quoted(promptx: dict[str, Any]) -> None:
    await Conversation(promptx).ask("Remember that our unit is in the loft.")
    assert "loft" not in text_of(await Conversation(promptx).ask("How much does a hotel in Paris cost?"))


async def test_a_memory_and_the_documents_are_both_quoted_when_both_fit(promptx: dict[str, Any]) -> None:
    await Conversation(promptx).ask("Remember that our filters were changed in March.")
    hit = search_result("guide.md › Filters", "Filters are changed every six months.")
    answer = await Conversation(promptx | {"search_documents": answering_tool(hit)}).ask(
        "When were our filters changed?"
    )
    assert "From memory: our filters were changed in March." in text_of(answer)
    assert [citation["cited_text"] for block in answer for citation in block.get("citations", ())] == [
        "Filters are changed every six months."
    ]


async def test_one_word_is_saved_under_two_keywords() -> None:
    conversation = Conversation(
        {"promptx_remember": answering_tool("Saved 1 memory."), "promptx_action": answering_tool("ok")}
    )
    await conversation.ask("remember Loxley")
    engram = conversation.steps[1][0]["input"]["engrams"][0]
    assert engram == {"content": "Loxley", "schema": "loxley\nnote", "strength": 0.8, "type": "ATOMIC"}


async def test_a_refused_memory_has_a_plain_error() -> None:
    answer = text_of(
        await Conversation({"promptx_remember": failing_tool("disk full")}).ask("Remember that the loft is cold.")
    )
    assert answer == "That could not be saved: disk full"


async def test_without_a_memory_the_model_says_that_it_cannot_save() -> None:
    assert "no memory here" in text_of(await Conversation({}).ask("Remember that the loft is cold."))


@pytest.mark.parametrize(
    "text",
    [
        "Do you remember our unit?",
        "What should I remember about filters?",
        "Remember me?",
        "Remember when we met?",
        "你记住了吗？",
        "密码记不住怎么办？",
        "remember",
        "",
    ],
)
def test_questions_about_memory_do_not_store_one(text: str) -> None:
    assert instruction_to_remember(text) == ""


def test_memories_are_read_without_their_map_and_cues() -> None:
    text = (
        "No word of the query is a cue; found by cues contained in it:\n\n"
        "mindmap\n  root((mind))\n    loft\n      unit\n\n"
        "- [ATOMIC 0.8] The unit is in the loft (beside the tank) (unit · loft)\n"
        "- [PATTERN 1] Filters:\nbuy two (filters · two)"
    )
    contents = [content for content, _ in memories_in(text)]
    assert contents == ["The unit is in the loft (beside the tank)", "Filters: buy two"]


async def test_a_memory_found_by_its_cues_is_quoted_although_its_text_has_other_words() -> None:
    recalled = "- [ATOMIC 0.8] The user likes teal (colour · favourite)"
    answer = await Conversation({"promptx_recall": answering_tool(recalled)}).ask("What is my favourite colour?")
    assert "From memory: The user likes teal" in text_of(answer)
