"""Counting tokens, moving the window, omitting results: the pure rules."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.messages import Block, Message, text_block, tool_result_block, user_message
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.core.transcript import carried_role, move_head, move_start
from agentic_rag.runtime.core.window import (
    TurnSize,
    as_sent,
    choose_to_shed,
    message_tokens,
    shed_results,
    sheddable,
    tokens_of,
)

ROLE = {"role": "guide", "hash": "h1"}


def activation(text: str = "Be kind.", role: dict[str, Any] | None = None) -> Message:
    block = tool_result_block("toolu_role", [text_block(text)]) | {"_role": role or ROLE}
    return {"role": "user", "content": [block]}


def call(number: int, text: str) -> list[Message]:
    use: Block = {"type": "tool_use", "id": f"toolu_{number}", "name": "dump", "input": {}}
    return [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [tool_result_block(f"toolu_{number}", [text_block(text)])]},
    ]


sizes = st.lists(st.integers(1, 5_000), min_size=1, max_size=30)


@given(sizes, st.integers(0, 2_000), st.floats(0.2, 3))
def test_a_moved_window_is_at_most_half_or_else_the_last_turns(
    turn_tokens: list[int], fixed_tokens: int, ratio: float
) -> None:
    turns = [TurnSize(seq, tokens) for seq, tokens in enumerate(turn_tokens, 1)]
    limits = Limits(context_tokens=10_000)
    tokens = round((fixed_tokens + sum(turn_tokens)) * ratio)
    start = move_start(turns, tokens, fixed_tokens, limits)
    if start is None:
        assert tokens <= 10_000 or len(turns) == 1
        return
    assert tokens > 10_000
    assert start > turns[0].first_seq
    kept_turns = [turn for turn in turns if turn.first_seq >= start]
    assert kept_turns
    assert fixed_tokens + sum(turn.tokens for turn in kept_turns) <= 5_000 or len(kept_turns) <= 2


@given(st.integers(1, 40), st.integers(2, 30))
def test_too_many_messages_are_reduced_to_half_of_the_limit(count: int, most: int) -> None:
    turns = [TurnSize(seq, 10) for seq in range(1, count + 1)]
    start = move_start(turns, 100, 10, Limits(context_messages=most))
    assert (start is not None) == (count * 2 - 1 > most and count > 1)
    if start is not None:
        assert (count - start + 1) * 2 - 1 <= max(1, most // 2)


def test_the_previous_turn_stays_while_both_fit() -> None:
    turns = [TurnSize(1, 9_000), TurnSize(5, 7_000), TurnSize(9, 100)]
    assert move_start(turns, 16_200, 100, Limits(context_tokens=10_000)) == 5
    turns = [TurnSize(1, 9_000), TurnSize(5, 12_000), TurnSize(9, 100)]
    assert move_start(turns, 21_200, 100, Limits(context_tokens=10_000)) == 9


def test_a_role_that_leaves_the_context_is_repeated_as_text_once() -> None:
    question, next_question = user_message("Hi"), user_message("And?")
    head = move_head([], [question, activation()], [next_question])
    assert [block["type"] for block in head] == ["text"]
    assert head[0]["text"].endswith("Be kind.")
    assert head[0]["_role"] == ROLE
    repeated_head = move_head([text_block("summary"), *head], [question], [next_question])
    assert repeated_head == [text_block("summary"), *head]
    newer_activation = activation("Be quick.", {"role": "guide", "hash": "h2"})
    assert move_head(head, [question, newer_activation], [next_question])[0]["_role"]["hash"] == "h2"
    assert move_head(head, [question], [newer_activation]) == []
    assert carried_role([question]) is None


def test_the_oldest_results_are_omitted_first_and_roles_stay() -> None:
    messages = [*call(1, "a" * 3_000), activation("r" * 9_000), *call(2, "b" * 3_000), *call(3, "ok")]
    results = sheddable(messages)
    assert [result.tool_use_id for result in results] == ["toolu_1", "toolu_2"]
    seen_messages: list[Message] = [*messages, {"role": "assistant", "content": [text_block("Done.")]}]
    assert [result.tool_use_id for result in choose_to_shed(seen_messages, 500)] == ["toolu_1"]
    assert choose_to_shed(seen_messages, 0) == []
    assert len(choose_to_shed(seen_messages, 99_999)) == 2
    assert choose_to_shed(messages[:3], 99_999) == [], "not seen yet"


def test_the_newest_steps_are_omitted_last_and_only_as_needed() -> None:
    messages = [message for number in range(6) for message in call(number, "a" * 3_000)]
    seen_messages: list[Message] = [*messages, {"role": "assistant", "content": [text_block("Done.")]}]

    def choose_numbers(excess: int, spare: int = 0) -> list[int]:
        return [int(result.tool_use_id[-1]) for result in choose_to_shed(seen_messages, excess, spare)]

    assert choose_numbers(10, 99_999) == [0, 1, 2]
    assert choose_numbers(3_000, 99_999) == [0, 1, 2, 3]
    assert choose_numbers(99_999) == [0, 1, 2, 3, 4, 5]


@given(st.text(max_size=4_000))
def test_a_result_left_out_is_replaced_by_a_mark_and_saves_its_tokens(text: str) -> None:
    messages = call(1, text or "x")
    tokens_before = message_tokens(messages[1])
    for result in sheddable(messages):
        shed_content = shed_results(messages[1]["content"], {"toolu_1": {"name": "dump", "ref": "ref_" + "0" * 26}})
        sent_block = as_sent(shed_content[0])
        assert sent_block["content"] == [text_block("[result of dump, kept as ref ref_" + "0" * 26 + "]")]
        assert shed_content[0]["content"] == messages[1]["content"][0]["content"]
        tokens_after = message_tokens({"role": "user", "content": shed_content})
        assert abs((tokens_before - tokens_after) - result.saved) <= 2
        assert sheddable([messages[0], {"role": "user", "content": shed_content}]) == []


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=9))
def test_any_model_text_can_be_counted(value: Any) -> None:
    assert tokens_of({"type": "tool_use", "input": value, "_private": "x" * 999}) < 400 + len(str(value)) * 12
