"""The Messages API's prompt cache, simulated to count tokens.

Owns which prefix of a request is known and what that makes of the usage. Knows no HTTP and no answer. Tokens
are UTF-8 bytes of the JSON over three; entries do not expire.

As in the API the order is tools, system, messages; an entry is written at each breakpoint (of at least the
minimum length) and read by looking back from each breakpoint over at most 20 blocks.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from agentic_rag.events import Usage
from agentic_rag.json_form import Json

LOOK_BACK = 20
BYTES_PER_TOKEN = 3


class PromptCache:
    """Give it each accepted request; it returns the usage of its input and remembers what it wrote."""

    def __init__(self, minimum: int = 1024) -> None:
        self._minimum = minimum
        self._known: set[bytes] = set()

    def count(self, request: Json, output: int) -> Usage:
        """Return the usage of this call. ``minimum`` tokens and more are cached."""
        digest = hashlib.sha256(str(request.get("model")).encode())
        prefixes: list[tuple[bytes, int]] = []  # digest and tokens up to and with each block
        breakpoints: list[int] = []
        size = 0
        for block, marked in _blocks(request):
            data = json.dumps(block, ensure_ascii=False).encode()
            digest.update(data)
            size += len(data)
            if marked:
                breakpoints.append(len(prefixes))
            prefixes.append((digest.digest(), -(-size // BYTES_PER_TOKEN)))
        total = prefixes[-1][1]
        read = max((prefixes[at][1] for at in self._readable(breakpoints) if prefixes[at][0] in self._known), default=0)
        written = [prefixes[at] for at in breakpoints if prefixes[at][1] >= self._minimum]
        self._known.update(key for key, _ in written)
        end = max((tokens for _, tokens in written), default=0)
        end = max(end, read)
        return Usage(input=total - end, cache_read=read, cache_write=end - read, output=output)

    @staticmethod
    def _readable(breakpoints: list[int]) -> Iterator[int]:
        for at in breakpoints:
            yield from range(max(0, at - LOOK_BACK), at + 1)


def _blocks(request: Json) -> Iterator[tuple[Any, bool]]:
    """Yield every part of the prompt in cache order, without its breakpoint, and whether it had one."""
    for tool in request.get("tools") or []:
        yield _without_breakpoint(tool)
    system = request.get("system") or []
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        yield _without_breakpoint(block)
    # Changing either of these leaves tools and system cached, but no message.
    yield [request.get("tool_choice"), request.get("thinking")], False
    for message in request["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            bare, marked = _without_breakpoint(block)
            yield [message["role"], bare], marked
    if request.get("cache_control") is not None:
        yield None, True


def _without_breakpoint(block: Json) -> tuple[Json, bool]:
    if block.get("cache_control") is None:
        return block, False
    return {key: value for key, value in block.items() if key != "cache_control"}, True
