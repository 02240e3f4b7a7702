"""Frames: the messages between our processes, each a JSON object with raw bytes behind it. Standard library and orjson.

The index process, the embedder's process and the processes that read documents speak this protocol over their pipes.
A frame consists of two lengths (four bytes each, little-endian), the JSON object, and the bytes, which may be empty.
The index and the embedder send dense vectors as 32-bit floats there.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_FRAME = 64 * 2**20
"""Maximum number of bytes of a frame; 64 chunks with their vectors have about 400 KB, a page's image up to 2 MB."""

_LENGTHS = struct.Struct("<II")


class BadFrame(Exception):
    """A frame is larger than `MAX_FRAME`, or the received bytes are no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A JSON object and the bytes that belong to it."""

    data: Mapping[str, Any]
    floats: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes that are sent.

        Raises:
            BadFrame: they are more than `MAX_FRAME`.
        """
        data = orjson.dumps(self.data)
        if len(data) + len(self.floats) > MAX_FRAME:
            raise BadFrame(f"{len(data) + len(self.floats)} bytes")
        return _LENGTHS.pack(len(data), len(self.floats)) + data + self.floats


class FrameReader:
    """Assembles frames from pieces of any size."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes and yield the frames that are complete.

        Raises:
            BadFrame: the bytes are no frame; no later ones can be read.
        """
        self._pending += data
        while len(self._pending) >= _LENGTHS.size:
            first, second = _LENGTHS.unpack_from(self._pending)
            # Checked before the rest arrives: a broken length would make this side wait for bytes that never come.
            if first + second > MAX_FRAME:
                raise BadFrame(f"{first + second} bytes")
            middle = _LENGTHS.size + first
            end = middle + second
            if len(self._pending) < end:
                return
            view = bytes(self._pending[:end])  # a copy, because the frame outlives the buffer
            del self._pending[:end]
            try:
                value = orjson.loads(view[_LENGTHS.size : middle])
            except orjson.JSONDecodeError as exc:
                raise BadFrame(str(exc)) from exc
            if not isinstance(value, dict):
                raise BadFrame("its JSON is no object")
            yield Frame(value, view[middle:])


def send_frame(sink: int, frame: Frame) -> None:
    """Write a complete frame to a descriptor.

    Raises:
        BrokenPipeError: the other process has closed the pipe.
    """
    view = memoryview(frame.encode())
    while view:  # a pipe takes a large frame in several parts
        view = view[os.write(sink, view) :]


def take_stdout() -> int:
    """Return a descriptor for frames, and let standard output lead to standard error from now on.

    Text that a library prints then cannot corrupt the frames.
    """
    sink = os.dup(1)
    os.dup2(2, 1)
    return sink
