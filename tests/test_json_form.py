"""The only camelCase converter: everything it writes can be read, and it accepts nothing else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.json_form import camel, from_json, to_json, to_text


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "dark blue"


@dataclass(frozen=True, slots=True)
class Inner:
    chunk_ids: tuple[str, ...]
    page_number: int | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    display_name: str
    colour: Colour
    inner: Inner
    others: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    words: frozenset[str] = frozenset()


INNERS = st.builds(Inner, st.lists(st.text(), max_size=3).map(tuple), st.none() | st.integers())
OUTERS = st.builds(
    Outer,
    st.text(),
    st.sampled_from(Colour),
    INNERS,
    st.lists(INNERS, max_size=3).map(tuple),
    st.dictionaries(st.text(), INNERS, max_size=3),
    st.frozensets(st.text(), max_size=3),
)


@given(OUTERS)
def test_a_written_json_form_is_read_back(value: Outer) -> None:
    assert from_json(Outer, to_json(value)) == value


def test_names_are_camel_case_and_the_keys_of_mappings_stay() -> None:
    json_form = to_json(Outer("A", Colour.DARK_BLUE, Inner(("c",), 3), by_name={"my_key": Inner(())}))
    assert json_form["displayName"] == "A"
    assert json_form["colour"] == "dark blue"
    assert json_form["inner"] == {"chunkIds": ["c"], "pageNumber": 3}
    assert list(json_form["byName"]) == ["my_key"]
    assert camel("tool_call_id") == "toolCallId"


def test_absent_members_take_their_defaults_and_unknown_ones_are_ignored() -> None:
    assert from_json(Inner, {"chunkIds": ["a"], "else": 1}) == Inner(("a",))


def test_a_document_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError):
        from_json(Inner, {})
    with pytest.raises(ValueError):
        from_json(Outer, {"displayName": "A", "colour": "green", "inner": {"chunkIds": []}})
    with pytest.raises(TypeError):
        to_json(object())


@pytest.mark.parametrize("other", [1, 10**30, "\ud800"])
def test_numbers_that_json_does_not_have_become_null(other: object) -> None:
    document = {"a": [float("nan"), {"b": float("-inf")}], "c": (1.5, other)}
    text = to_text(document)
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [None, {"b": None}], "c": [1.5, other]}
