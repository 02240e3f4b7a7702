"""The direct path for events writes the same bytes as the WebSocket library."""

import pytest
from websockets.frames import Frame, Opcode

from agentic_rag.server.ws.fast_socket import frame_texts


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 100_000])
def test_a_message_is_framed_like_the_websockets_library_does(size: int) -> None:
    text = b"x" * size
    assert frame_texts([text]) == Frame(Opcode.TEXT, text).serialize(mask=False)


def test_messages_written_together_are_separate_frames() -> None:
    texts = ["ä".encode(), b"", b"y" * 300]
    assert frame_texts(texts) == b"".join(frame_texts([text]) for text in texts)
    assert frame_texts([]) == b""
