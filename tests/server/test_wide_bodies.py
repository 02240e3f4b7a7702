"""The cost of refusing a client's JSON with the longest keys and widest lists of a megabyte."""

import tracemalloc
from pathlib import Path

import pytest
from pydantic import ValidationError

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import MAX_VALUES, Form, read_form
from agentic_rag.base.json_form import Json
from agentic_rag.server.doors.openai_requests import ChatCall
from agentic_rag.server.routes.roles import NewMemories
from agentic_rag.server.ws.frames import MessageFrame
from tests.server.rig import Rig

TOO_MANY = f"more than {MAX_VALUES} items of lists and members of objects."


class _Anything(Form):
    """A body with a field for any JSON."""

    settings: Json | None = None


def _peak(size: int) -> int:
    """Return the maximum memory in bytes for reading a body that is one long key above one wide list."""
    body = {"settings": {"k" * size: [[0]] * size}}
    tracemalloc.start()
    try:
        read_form(_Anything, body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_long_key_above_a_wide_list_costs_the_sum_of_their_lengths() -> None:
    read_form(_Anything, {})  # the model is built once
    assert _peak(8_000) < 3 * _peak(4_000)


def test_a_nul_below_any_keys_is_refused_at_its_own_place() -> None:
    with pytest.raises(InvalidInput) as exc_info:
        read_form(_Anything, {"settings": {"a": [{"b": 1}, {"c": ["x", "y\0"]}], "d": "\0"}}, "body")
    assert exc_info.value.path == "body.settings.a.1.c.1"
    with pytest.raises(InvalidInput) as exc_info:
        read_form(_Anything, {"settings": {"a": {"b\0": 1}}})
    assert exc_info.value.path == "settings.a.b\ufffd"


@pytest.mark.anyio
async def test_a_body_with_too_many_values_is_refused_before_they_are_read(tmp_path: Path) -> None:
    wide: list[Json] = [{}] * (MAX_VALUES + 1)
    async with Rig(tmp_path) as rig:
        bodies: list[Json] = [{"title": wide}, {"title": {str(index): [[]] for index in range(MAX_VALUES)}}]
        for body in bodies:
            refusal = await rig.refused("POST", "/api/conversations", body)
            assert refusal == (422, "VALIDATION_ERROR", f"body: {TOO_MANY}")


@pytest.mark.parametrize(
    ("model", "field"), [(NewMemories, "engrams"), (ChatCall, "messages"), (MessageFrame, "images")]
)
def test_a_list_is_checked_up_to_its_first_invalid_item(model: type[Form], field: str) -> None:
    with pytest.raises(ValidationError) as exc_info:
        model.model_validate({field: [{}] * 900})
    assert exc_info.value.error_count() < 10


def test_the_first_of_many_unknown_keys_is_named() -> None:
    with pytest.raises(InvalidInput) as exc_info:
        read_form(_Anything, {f"key{index}": 0 for index in range(9)}, "body")
    assert exc_info.value.path == "body.key0"
