"""The twenty demo questions against the real retriever and the extractive model, in process."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.messages import Block
from agentic_rag.runtime.core.results import search_result_block
from mcp_servers.retriever.chunking import chunk_document
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.parsing import parse
from mcp_servers.retriever.retrieval import Retriever
from tests.demo.harness import DEMO, CitedPassage, ask_all, count_right, demo_questions
from tests.extractive.agent import Conversation, answering_tool, text_of

COLLECTION = "domain_demo"

NOT_IN_THE_HANDBOOKS = (
    "What is the capital of Australia?",
    "How do I bake sourdough bread?",
    "When was the Eiffel Tower built?",
    "How many employees does Microsoft have?",
    "澳大利亚的首都是哪里？",
    "怎么做红烧肉？",
    "太阳系有几颗行星？",
    "谁写了《红楼梦》？",
)


@pytest.fixture
async def retriever(tmp_path: Path) -> AsyncIterator[Retriever]:
    """The demo's documents, indexed lexically."""
    index = EdgeIndex(tmp_path)
    for path in sorted((DEMO / "documents").iterdir()):
        await index.upsert(COLLECTION, chunk_document(parse(path, path.name), path.name, path.name))
    yield Retriever(index)
    await index.aclose()


def new_conversation(retriever: Retriever) -> Conversation:
    """A new conversation whose search is the real one."""

    async def search(arguments: dict[str, Any]) -> list[Block]:
        retrieval = await retriever.search(COLLECTION, arguments["query"], 5)
        return [
            search_result_block(
                {
                    "document_id": hit.document_id,
                    "document_name": hit.document_name,
                    "heading_path": list(hit.heading_path),
                    "page": hit.page,
                    "relevance_score": hit.relevance_score,
                    "sentences": [{"chunk_id": sentence.chunk_id, "text": sentence.text} for sentence in hit.sentences],
                }
            )
            for hit in retrieval.hits
        ]

    return Conversation(
        {"search_documents": search, "promptx_recall": answering_tool("This role has no memories yet.")}
    )


def cited_passages(conversation: Conversation, answer: list[Block]) -> list[CitedPassage]:
    """What an answer cites, looked up in the transcript by ``search_result_index``."""
    results = [
        part
        for message in conversation.messages
        for block in message["content"]
        if block["type"] == "tool_result"
        for part in block["content"]
        if part["type"] == "search_result"
    ]
    passages = []
    for citation in (citation for block in answer for citation in block.get("citations", ())):
        passage = results[citation["search_result_index"]]["_passage"]
        passages.append(CitedPassage(passage["documentName"], citation["cited_text"], passage["page"]))
    return passages


async def test_every_demo_question_is_answered_with_a_citation_of_the_right_passage(retriever: Retriever) -> None:
    async def ask(question: str) -> list[CitedPassage]:
        conversation = new_conversation(retriever)
        return cited_passages(conversation, await conversation.ask(question))

    outcomes = await ask_all(ask)
    wrong = [outcome for outcome in outcomes if not outcome.right]
    assert count_right(outcomes) == len(outcomes), wrong


async def test_unanswerable_questions_are_declined(retriever: Retriever) -> None:
    for question in NOT_IN_THE_HANDBOOKS:
        answer = await new_conversation(retriever).ask(question)
        assert not any("citations" in block for block in answer), (question, text_of(answer))
        assert "nothing in the documents" in text_of(answer) or "没有找到" in text_of(answer)


async def test_a_follow_up_is_understood_with_the_question_before_it(retriever: Retriever) -> None:
    conversation = new_conversation(retriever)
    await conversation.ask("How expensive may a hotel room in London be?")
    answer = await conversation.ask("and in Shanghai?")
    assert any("780 yuan" in reference.cited_text for reference in cited_passages(conversation, answer)), text_of(
        answer
    )


async def test_a_new_topic_in_one_conversation_is_answered_from_its_own_hits(retriever: Retriever) -> None:
    conversation = new_conversation(retriever)
    await conversation.ask("How much does the Brisa 900 weigh?")
    passages = cited_passages(conversation, await conversation.ask("热交换芯体保修几年？"))
    assert {reference.document_name for reference in passages} == {"售后服务手册.md"}


def test_ten_questions_in_each_language_have_passages_in_the_documents() -> None:
    questions = demo_questions()
    assert [question.language for question in questions] == ["en"] * 10 + ["zh"] * 10
    for question in questions:
        path = DEMO / "documents" / question.document
        blocks = parse(path, path.name).blocks
        assert any(question.passage in block.text and block.page == question.page for block in blocks), question


async def test_readmes_first_question_is_answered_with_its_sentence(retriever: Retriever) -> None:
    answer = text_of(await new_conversation(retriever).ask("How many days of annual leave do I get?"))
    assert answer.count("\n> ") == 1
    assert "27 days of paid leave a year" in answer


async def test_a_threshold_of_0_7_keeps_the_right_document_of_most_questions(retriever: Retriever) -> None:
    right_count = 0
    for question in demo_questions():
        retrieval = await retriever.search(COLLECTION, question.question, 5, threshold=0.7)
        right_count += any(hit.document_name == question.document for hit in retrieval.hits)
    assert right_count >= 16


async def test_a_threshold_of_0_7_leaves_few_passages_for_unanswerable_questions(retriever: Retriever) -> None:
    searches = [await retriever.search(COLLECTION, question, 5, threshold=0.7) for question in NOT_IN_THE_HANDBOOKS]
    assert sum(bool(retrieval.hits) for retrieval in searches) <= 2
