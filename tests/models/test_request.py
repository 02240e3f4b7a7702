"""The requests sent to the Messages API."""

import copy
import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.messages import (
    Block,
    Message,
    ToolSpec,
    text_block,
    tool_result_block,
    user_message,
    whole_content,
)
from agentic_rag.models.anthropic.request import request_body, search_results
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.problems import problems, sign

MARK = {"type": "ephemeral"}
LOOK: ToolSpec = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
FIND: ToolSpec = {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}}


def result(title: str = "Doc") -> Block:
    return {
        "type": "search_result",
        "source": "doc_1",
        "title": title,
        "content": [{"type": "text", "text": "One."}],
        "citations": {"enabled": True},
        "_passage": {"document_id": "doc_1", "chunk_ids": ["c1"]},
    }


def assistant(*blocks: Block) -> Message:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Block) -> Message:
    return {"role": "user", "content": list(blocks)}


LOCATION = {
    "type": "char_location",
    "cited_text": "One.",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 4,
}
CITED_TEXT: Block = {"type": "text", "text": "So.", "citations": [LOCATION]}
USE: Block = {"type": "tool_use", "id": "t1", "name": "look", "input": {"_id": 7, "cache_control": "mine"}}

HISTORY: tuple[Message, ...] = (
    user_message("first"),
    assistant({"type": "thinking", "thinking": "hm", "signature": sign("hm")}, {**USE, "_broken_input": "{"}),
    user(tool_result_block("t1", [text_block("found"), result()])),
    assistant(CITED_TEXT),
    user_message("second"),
)
REQUEST = ModelRequest("claude", 100, (text_block("be"), text_block("brief")), HISTORY, (LOOK, FIND))


def find_breakpoints(value: Any, path: str = "") -> list[str]:
    """Return the paths of all breakpoints."""
    if isinstance(value, list):
        return [
            mark_path for index, item in enumerate(value) for mark_path in find_breakpoints(item, f"{path}.{index}")
        ]
    if not isinstance(value, dict):
        return []
    own_breakpoints = [path] if value.get("cache_control") == MARK else []
    return own_breakpoints + [
        mark_path for key, item in value.items() for mark_path in find_breakpoints(item, f"{path}.{key}".lstrip("."))
    ]


def test_the_whole_request_is_accepted_by_the_api() -> None:
    assert problems(request_body(REQUEST)) == []


def test_breakpoints_stand_at_tools_system_and_the_last_two_user_messages() -> None:
    assert sorted(find_breakpoints(request_body(REQUEST))) == [
        "messages.2.content.0",
        "messages.4.content.0",
        "system.1",
        "tools.1",
    ]


def test_breakpoints_in_the_request_are_dropped() -> None:
    everywhere = tuple({**block, "cache_control": MARK} for block in REQUEST.system * 4)
    body = request_body(dataclasses.replace(REQUEST, system=everywhere))
    assert len(find_breakpoints(body)) == 4
    assert problems(body) == []


def test_a_blank_block_gets_no_breakpoint() -> None:
    request = ModelRequest("claude", 1, (), (user(text_block("x"), {"type": "text", "text": " "}),))
    assert find_breakpoints(request_body(request)) == ["messages.0.content.0"]


def test_private_keys_of_blocks_are_not_sent_at_any_depth() -> None:
    messages = request_body(REQUEST)["messages"]
    assert "_broken_input" not in messages[1]["content"][1]
    assert "_passage" not in messages[2]["content"][0]["content"][1]


def test_keys_inside_tool_arguments_are_unchanged() -> None:
    assert request_body(REQUEST)["messages"][1]["content"][1]["input"] == {"_id": 7, "cache_control": "mine"}


def test_citations_of_old_answers_are_sent_back_where_the_endpoint_supports_them() -> None:
    assert request_body(REQUEST)["messages"][3]["content"] == [CITED_TEXT]
    assert request_body(REQUEST, cites=False)["messages"][3]["content"] == [{"type": "text", "text": "So."}]


def test_the_stored_transcript_is_not_changed() -> None:
    copy_before = copy.deepcopy(REQUEST)
    request_body(REQUEST)
    assert copy_before == REQUEST


def test_blocks_that_need_no_change_are_not_copied() -> None:
    big = text_block("x")
    request = dataclasses.replace(REQUEST, messages=(user(big), assistant(text_block("a")), *HISTORY))
    assert request_body(request)["messages"][0]["content"][0] is big


def test_optional_parameters_are_sent_only_when_set() -> None:
    assert set(request_body(ModelRequest("m", 1, (), HISTORY[:1]))) == {"model", "max_tokens", "messages"}
    full = dataclasses.replace(REQUEST, tool_choice={"type": "none"}, temperature=0.0, effort="low")
    body = request_body(full)
    assert body["tool_choice"] == {"type": "none"}
    assert body["temperature"] == 0.0
    assert "output_config" not in body, "nothing is known of this model"


def test_search_results_are_numbered_over_the_whole_request() -> None:
    messages = [user(result("a"), text_block("x")), assistant(USE), user(tool_result_block("t1", [result("b")]))]
    assert [block["title"] for block in search_results(messages)] == ["a", "b"]


def test_a_request_is_the_prefix_of_the_next_one_apart_from_breakpoints() -> None:
    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: bare(item) for key, item in value.items() if key != "cache_control"}
        return [bare(item) for item in value] if isinstance(value, list) else value

    earlier, later = (bare(request_body(dataclasses.replace(REQUEST, messages=HISTORY[:n]))) for n in (3, 5))
    assert later["messages"][:3] == earlier["messages"]
    assert (later["system"], later["tools"]) == (earlier["system"], earlier["tools"])


BLOCKS = st.sampled_from([text_block("a"), {**text_block("b"), "_note": 1}, CITED_TEXT, result()])


@given(st.lists(st.tuples(st.booleans(), st.lists(BLOCKS, min_size=1, max_size=4)), max_size=6), st.booleans())
def test_there_are_never_more_than_four_breakpoints_and_no_private_key(
    exchanges: list[tuple[bool, list[Block]]], tools: bool
) -> None:
    messages = [
        user(*blocks) if by_user else assistant(*[block for block in blocks if block["type"] == "text"] or [CITED_TEXT])
        for by_user, blocks in exchanges
    ]
    request = ModelRequest(
        "m", 1, (text_block("s"),), (user_message("x"), *messages, user_message("y")), (LOOK,) if tools else ()
    )
    assert problems(request_body(request)) == []


def test_blank_text_is_joined_to_the_next_text_or_left_out() -> None:
    cited_block: Block = {**text_block("25 days."), "citations": [{"cited_text": "25 days"}]}
    use: Block = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
    blank = text_block(" \n")
    content = whole_content(
        [blank, cited_block, blank, blank, text_block("So."), blank, use, blank, text_block("Yes."), blank]
    )
    assert content == [cited_block, text_block(" \n \nSo."), use, text_block("Yes.")]
