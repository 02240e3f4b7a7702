"""Frames between processes: read from pieces of any size, and refused if malformed. Delays of restarts."""

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.child_processes import PAUSE_LIMIT, RestartDelay, python_environment
from mcp_servers.frames import MAX_FRAME, BadFrame, Frame, FrameReader, send_frame


@given(st.lists(st.tuples(st.dictionaries(st.text(max_size=5), st.integers(0, 9)), st.binary(max_size=20))), st.data())
def test_frames_are_read_from_any_chunking(messages: list[tuple[dict[str, int], bytes]], data: st.DataObject) -> None:
    remaining = b"".join(Frame(value, floats).encode() for value, floats in messages)
    reader = FrameReader()
    received: list[Frame] = []
    while remaining:
        size = data.draw(st.integers(1, len(remaining)))
        received += reader.feed(remaining[:size])
        remaining = remaining[size:]
    assert [(frame.data, frame.floats) for frame in received] == messages


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<II", MAX_FRAME, 1),
        b"Traceback (most recent call last)",
        struct.pack("<II", 4, 0) + b"text",
        struct.pack("<II", 2, 0) + b"[]",
    ],
    ids=["too large", "text", "no JSON", "a list"],
)
def test_invalid_frame_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        list(FrameReader().feed(data))


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    source, sink = os.pipe()
    with pytest.raises(BadFrame):
        send_frame(sink, Frame({}, bytes(MAX_FRAME)))
    os.close(sink)
    assert os.read(source, 1) == b""
    os.close(source)


def test_the_delay_before_a_restart_doubles_until_a_process_lived_long() -> None:
    delay = RestartDelay()
    assert [delay.after(1.0) for _ in range(3)] == [0.2, 0.4, 0.8]
    assert max(delay.after(1.0) for _ in range(20)) == PAUSE_LIMIT
    assert [delay.after(61.0), delay.after(1.0)] == [0.2, 0.4]


def test_a_child_process_inherits_none_of_this_process_s_variables() -> None:
    assert python_environment(ONE="1").keys() == {"PYTHONPATH", "PYTHONUTF8", "ONE"}
