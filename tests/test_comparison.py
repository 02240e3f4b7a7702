"""The displayed difference of two versions turns the first into the second."""

import re

from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.comparison import MAX_SHOWN, JsonChange, compare_json, compare_lines

HEAD = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@")
LINES = st.lists(st.sampled_from(["a", "b", "c", "", " x", "-y", "+z", "@@"]), max_size=30)


def apply(before: str, difference: str) -> list[str]:
    """Return the result of applying a unified difference to a text."""
    old_lines, result, index, lines_left = before.splitlines(), list[str](), 0, 0
    for line in difference.splitlines():
        if not lines_left and (head := HEAD.fullmatch(line)):
            start = int(head[1]) - 1
            result += old_lines[index:start]
            index, lines_left = start, int(head[2]) + int(head[4])
            continue
        if line[:1] in (" ", "-"):
            assert old_lines[index] == line[1:]
            index += 1
        if line[:1] in (" ", "+"):
            result.append(line[1:])
        lines_left -= 2 if line[:1] == " " else 1
    return result + old_lines[index:]


@given(LINES, LINES)
def test_a_diff_turns_one_text_into_the_other(before: list[str], after: list[str]) -> None:
    old_text, new_text = "\n".join(before), "\n".join(after)
    difference = compare_lines(old_text, new_text)
    if difference == "(only line ends differ)":
        assert old_text.splitlines() == new_text.splitlines()
        return
    assert apply(old_text, difference) == new_text.splitlines()
    assert (difference == "") == (old_text == new_text)


def test_large_unlike_texts_are_truncated_in_a_diff_and_similar_ones_are_not() -> None:
    old_text = "\n".join(f"line {number}" for number in range(20_000))
    new_text = old_text.replace("line 10000\n", "another\n")
    assert compare_lines(old_text, new_text).splitlines()[4:6] == ["-line 10000", "+another"]
    unlike = compare_lines(old_text, "\n".join(f"row {number}" for number in range(20_000)))
    assert unlike.endswith("[…]")
    assert len(unlike) <= MAX_SHOWN + 10
    assert compare_lines("a\n" * 5000 + "b\n" * 5000, "b\n" * 5000 + "a\n" * 5000).startswith("@@")


def test_json_is_compared_by_path() -> None:
    assert compare_json({"a": {"b": 1, "c": [1]}, "d": 0}, {"a": {"b": 2, "c": [1]}, "e": None, "f": True}) == [
        JsonChange("a.b", 1, 2),
        JsonChange("d", 0, None),
        JsonChange("f", None, True),
    ]
    assert compare_json({"a": 1}, {"a": True}) == [JsonChange("a", 1, True)]


LEAVES = st.none() | st.booleans() | st.integers()
VALUES = st.recursive(LEAVES, lambda values: st.dictionaries(st.text(), values), max_leaves=8)


@given(st.dictionaries(st.text(), VALUES))
def test_equal_json_has_no_differences(value: dict[str, object]) -> None:
    assert compare_json(value, value) == []
