"""A search drops passages that the context already holds: they are named, can still be cited, and are never lost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.base.messages import (
    ACTIVATION,
    REFUSED,
    SHOWN_BEFORE,
    Block,
    Message,
    Passage,
    text_block,
    tool_result_block,
    user_message,
)
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.core.passage_dedup import Repeats, without_repeats_in
from agentic_rag.runtime.core.request import build_request
from agentic_rag.runtime.core.results import search_result_block
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.window import TranscriptEntry, cited_chunks, last_activation, message_tokens, shed_results
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import Services, bench, definition, kinds, ok, text_of, toolset
from tests.runtime.strict_model import NAME, StrictModel

Run = tuple[int, int, int]
"""For a passage: its document, its first chunk and the number of its chunks."""


def without_repeats(messages: Sequence[Message]) -> list[Message]:
    """Return messages as a request shows them: each passage once, and later only its title."""
    repeats = Repeats()
    return [without_repeats_in(message, repeats) if message["role"] == "user" else message for message in messages]


def sentences_of(document: int, chunk: int) -> list[str]:
    """Return the text of a chunk. One sentence occurs in every chunk of a document."""
    return [f"Document {document} says {chunk}.", f"Also {document}/{chunk}.", "The same everywhere."]


def hit(run: Run) -> dict[str, Any]:
    document, first_chunk, chunk_count = run
    return {
        "document_id": f"doc_{document}",
        "document_name": f"{document}.md",
        "heading_path": [],
        "page": None,
        "cells": None,
        "score": 1.0,
        "relevance_score": 0.5,
        "passage": first_chunk + 1,
        "passages": 12,
        "sentences": [
            {"chunk_id": f"c{document}-{chunk}", "text": text, "start": 0, "end": len(text)}
            for chunk in range(first_chunk, first_chunk + chunk_count)
            for text in sentences_of(document, chunk)
        ],
    }


def transcript_of(searches: Sequence[Sequence[Run]]) -> list[Message]:
    """Return a conversation with the given passages of each search."""
    messages = [user_message("Well?")]
    for number, runs in enumerate(searches):
        use: Block = {"type": "tool_use", "id": f"toolu_{number}", "name": "search_documents", "input": {}}
        content = [text_block("Searched."), *(search_result_block(hit(run)) for run in runs)]
        messages.append({"role": "assistant", "content": [use]})
        messages.append({"role": "user", "content": [tool_result_block(f"toolu_{number}", content)]})
    return messages


def parts_of(messages: Sequence[Message]) -> list[Block]:
    return [
        part
        for message in messages
        for block in message["content"]
        if block["type"] == "tool_result"
        for part in block["content"]
    ]


def chunks_in(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return each chunk in the messages, with each of its sentences."""
    return [
        (chunk, sentence["text"])
        for part in parts_of(messages)
        if (passage := Passage.of(part)) is not None
        for chunk, sentence in zip(passage.chunk_ids, part["content"], strict=True)
    ]


runs = st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(1, 4))
searches = st.lists(st.lists(runs, max_size=4), min_size=1, max_size=5)


def entries_of(messages: Sequence[Message]) -> list[TranscriptEntry]:
    return [
        TranscriptEntry(2 * index + 1, TurnId(f"turn_{index // 2}"), 0, MessageId("msg_1"), {**message})
        for index, message in enumerate(messages)
    ]


def transcript_with(entries: Sequence[TranscriptEntry], start: int) -> Transcript:
    return Transcript(SessionId("sess_1"), SessionLabels(), entries=entries, window_start=start)


@given(searches, st.lists(st.tuples(st.integers(0, 30), st.sampled_from(("ask", "rewrite", "move", "refuse", "play")))))
def test_a_grown_transcript_counts_like_one_that_is_read_again(
    search_hits: list[list[Run]], changes: list[tuple[int, str]]
) -> None:
    entries = entries_of(transcript_of(search_hits))
    transcript = transcript_with([], 0)
    for entry in entries:
        transcript.append(entry.seq, entry.turn_id, entry.step, entry.message_id, entry.message)
        for position, action in changes[: entry.seq]:
            target = transcript.entries[position % len(transcript.entries)]
            if action == "rewrite":
                transcript.rewrite(target, [*target.message["content"], text_block("More.")])
            elif action == "move":
                transcript.set_window(target.seq, [])
            elif action == "play":
                role = {"role": f"role-{position}", "hash": "1"}
                transcript.rewrite(target, [*target.message["content"], text_block("A role.") | {ACTIVATION: role}])
            elif action == "refuse":
                transcript.leave_out(target, [{**block, REFUSED: True} for block in target.message["content"]])
            reread = transcript_with(transcript.entries, transcript.window_start)
            assert (
                transcript.in_window()
                == reread.in_window()
                == [sent_entry for sent_entry in transcript.entries if transcript.is_sent(sent_entry)]
            )
            sent_messages = without_repeats(transcript.window())
            assert transcript.cited == reread.cited == cited_chunks(transcript.window())
            assert transcript.activation == reread.activation == last_activation(transcript.window())
            assert transcript.tokens(5) == reread.tokens(5) == 5 + sum(map(message_tokens, sent_messages))
            start, end = sorted((position, 2 * position))
            assert transcript.sent_tokens(start, end) == reread.sent_tokens(start, end)
            assert transcript.sent_tokens(end=start) + transcript.sent_tokens(start) == sum(
                map(message_tokens, sent_messages)
            )


@given(searches)
def test_each_passage_appears_once_and_none_is_lost(search_hits: list[list[Run]]) -> None:
    messages = transcript_of(search_hits)
    sent_messages = without_repeats(messages)
    chunks = chunks_in(sent_messages)
    assert set(chunks) == set(chunks_in(messages)), "a passage was lost"
    assert len(chunks) == len(set(chunks)), "a passage stands twice"
    titles = {part["title"] for part in parts_of(sent_messages) if part["type"] == "search_result"}
    for part in parts_of(sent_messages):
        if part["type"] == "text" and part["text"].startswith(SHOWN_BEFORE):
            assert set(part["text"].split("\n")[1:]) <= titles, "what is named stands nowhere"


@given(searches, st.lists(runs, min_size=1, max_size=3))
def test_appended_messages_do_not_change_the_prefix(search_hits: list[list[Run]], more: list[Run]) -> None:
    shorter, longer = without_repeats(transcript_of(search_hits)), without_repeats(transcript_of([*search_hits, more]))
    assert longer[: len(shorter)] == shorter


@given(searches, st.integers(0, 4))
def test_a_passage_whose_first_copy_was_omitted_is_repeated_completely(
    search_hits: list[list[Run]], omitted: int
) -> None:
    messages = transcript_of(search_hits)
    omitted = min(omitted, len(search_hits) - 1)
    marks = {f"toolu_{omitted}": {"name": "search_documents", "ref": "ref_1"}}
    stored_messages: list[Message] = [
        {"role": message["role"], "content": shed_results(message["content"], marks)} for message in messages
    ]
    other_searches = [runs for number, runs in enumerate(search_hits) if number != omitted]
    sent_messages = without_repeats(stored_messages)
    sent_messages[omitted * 2 + 2 : omitted * 2 + 3] = []
    assert set(chunks_in(sent_messages)) == set(chunks_in(transcript_of(other_searches)))


@given(searches)
def test_every_passage_of_a_request_is_citable_sentence_by_sentence(search_hits: list[list[Run]]) -> None:
    built_request = build_request(definition(model=NAME), (), transcript_of(search_hits))
    passages = [part for part in parts_of(built_request.request.messages) if part["type"] == "search_result"]
    assert len(built_request.passages) == len(passages)
    for citable, part in zip(built_request.passages, passages, strict=True):
        assert citable is not None
        assert citable.texts == tuple(sentence["text"] for sentence in part["content"])
        assert len(citable.source.chunk_ids) == len(citable.texts)


def test_changed_text_of_a_known_chunk_is_shown() -> None:
    messages = transcript_of([[(0, 0, 1)], [(0, 0, 1)]])
    passage = messages[-1]["content"][0]["content"][-1]
    passage["content"][0] = text_block("It was edited.")
    assert ("c0-0", "It was edited.") in chunks_in(without_repeats(messages))


def test_requests_do_not_refer_to_removed_passages() -> None:
    built_request = build_request(
        definition(model="local"), (), transcript_of([[(0, 0, 1)], [(0, 0, 1)]]), gone_chunks={"c0-0"}
    )
    assert SHOWN_BEFORE not in str(built_request.request.messages)
    assert "Document 0" not in str(built_request.request.messages)


def test_a_known_passage_inside_a_read_range_is_named_in_its_place() -> None:
    sent_messages = without_repeats(transcript_of([[(0, 3, 1)], [(0, 2, 3)]]))
    content = sent_messages[-1]["content"][0]["content"]
    assert [part["type"] for part in content] == ["text", "text", "search_result", "search_result"]
    assert content[1]["text"] == f"{SHOWN_BEFORE}\n0.md (passage 4 of 12)"


async def test_a_second_search_is_short_and_its_answer_cites_earlier_passages(tmp_path: Path) -> None:
    async def search(request: CallRequest) -> CallOutcome:
        return ok("found", {"retrieval_id": "ret", "mode": "lexical", "note": "Found.", "hits": [hit((0, 0, 2))]})

    def brain(body: dict[str, Any]) -> Step:
        if "tool_result" in [block["type"] for block in body["messages"][-1]["content"]]:
            return Step((Think("I see."), Say("It says 0.", (Cite(0),))))
        return Step((Think("Look."), Use("search_documents", {"query": "x"})))

    model = StrictModel(brain)
    async with bench(tmp_path, model, services=Services(model, toolset(search_documents=search))) as b:
        for question in ("What?", "Really?"):
            events = await b.say(question, definition=definition(model=NAME))
            references = [event.fields() for event in events if event.type == "source_reference"]
            assert [reference["chunkId"] for reference in references] == ["c0-0"]
            assert [event.fields()["hits"][0]["id"] for event in events if event.type == "retrieval"] == ["c0-0"]
    assert model.refused == []
    assert str(model.requests[-1]["messages"]).count("Document 0 says 1.") == 1
    assert SHOWN_BEFORE in str(model.requests[-1]["messages"])


async def test_a_search_repeats_passages_that_left_the_context(tmp_path: Path) -> None:
    async def search(request: CallRequest) -> CallOutcome:
        return ok("found", {"retrieval_id": "ret", "mode": "lexical", "note": "Found.", "hits": [hit((0, 0, 2))]})

    async def dump(request: CallRequest) -> CallOutcome:
        return ok(request.id + "word " * 2_000)

    plan = ["search_documents", *["dump"] * 8, "search_documents"]

    def brain(body: dict[str, Any]) -> Step:
        call_count = sum(block["type"] == "tool_use" for message in body["messages"] for block in message["content"])
        if call_count < len(plan):
            return Step((Think("More."), Use(plan[call_count], {"query": "x"})))
        return Step((Think("Enough."), Say("It says 0.", (Cite(0),))))

    model = StrictModel(brain)
    settings = definition(model=NAME, limits=Limits(max_steps=20, context_tokens=20_000))
    async with bench(tmp_path, model, services=Services(model, toolset(search_documents=search, dump=dump))) as b:
        events = await b.say("What?", definition=settings)
    assert kinds(events)[-1] == "done"
    assert text_of(events) == "It says 0."
    assert model.refused == []
    assert "[result of search_documents, kept as ref" in str(model.requests[-1]["messages"])
    assert str(model.requests[-1]["messages"]).count("Document 0 says 1.") == 1
