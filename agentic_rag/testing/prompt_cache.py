"""The Messages API's prompt cache, simulated to count tokens.

Owns which prefix of a request is cached, for how long, and the resulting usage. Knows no HTTP and no answer. Tokens are
UTF-8 bytes of the JSON over three.

As in the API the order is tools (except deferred ones), system, messages. An entry is written at each breakpoint (of at
least the minimum length) and read by searching back from each breakpoint over at most 20 blocks. An entry lives for
five minutes or an hour from its last use.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json

LOOK_BACK: Final = 20
BYTES_PER_TOKEN: Final = 3
SECONDS: Final = {"5m": 300.0, "1h": 3600.0}


@dataclass(slots=True)
class Clock:
    """The cache's time; ``ahead`` seconds before the machine's, which a test may change."""

    ahead: float = 0.0

    def read(self) -> float:
        return time.monotonic() + self.ahead


@dataclass(frozen=True, slots=True)
class CacheCount:
    """The usage of one call; ``long_writes`` of the written tokens live for an hour."""

    usage: Usage
    long_writes: int = 0


@dataclass(slots=True)
class _Entry:
    seconds: float
    until: float


class PromptCache:
    """Returns the usage of each accepted request's input, and remembers the entries it wrote."""

    def __init__(self, minimum: int = 1024, clock: Clock | None = None) -> None:
        self._minimum = minimum
        self._clock = clock or Clock()
        self._known: dict[bytes, _Entry] = {}

    def count(self, request: Json, output: int, minimum: int | None = None) -> CacheCount:
        """Return the usage of this call. Prefixes of at least ``minimum`` tokens (else the cache's own) are cached."""
        present = self._clock.read()
        least = self._minimum if minimum is None else minimum
        digest = hashlib.sha256(str(request.get("model")).encode())
        prefixes: list[tuple[bytes, int]] = []  # digest and tokens up to and with each block
        breakpoints: list[tuple[int, str]] = []
        size = 0
        for block, ttl in _blocks(request):
            data = json.dumps(block, ensure_ascii=False).encode()
            digest.update(data)
            size += len(data)
            if ttl is not None:
                breakpoints.append((len(prefixes), ttl))
            prefixes.append((digest.digest(), -(-size // BYTES_PER_TOKEN)))
        total = prefixes[-1][1]
        hits = [at for at in self._readable(breakpoints) if self._lives(prefixes[at][0], present)]
        # The entries are read before the writes. Otherwise this call's own writes would count as cache hits.
        for at in hits:
            entry = self._known[prefixes[at][0]]
            entry.until = present + entry.seconds
        read = max((prefixes[at][1] for at in hits), default=0)
        written = [(at, ttl) for at, ttl in breakpoints if prefixes[at][1] >= least]
        for at, ttl in written:
            earlier = self._known.get(prefixes[at][0])
            # A breakpoint of five minutes does not shorten an entry that was written for an hour and still lives.
            seconds = max(SECONDS[ttl], earlier.seconds if earlier and earlier.until > present else 0.0)
            self._known[prefixes[at][0]] = _Entry(seconds, present + seconds)
        end = max((prefixes[at][1] for at, _ in written), default=0)
        end = max(end, read)
        long = max((prefixes[at][1] for at, ttl in written if ttl == "1h"), default=0)
        usage = Usage(input=total - end, cache_read=read, cache_write=end - read, output=output)
        return CacheCount(usage, max(0, long - read))

    def _lives(self, key: bytes, present: float) -> bool:
        entry = self._known.get(key)
        return entry is not None and entry.until > present

    @staticmethod
    def _readable(breakpoints: list[tuple[int, str]]) -> Iterator[int]:
        for at, _ in breakpoints:
            yield from range(max(0, at - LOOK_BACK), at + 1)


class CacheDiagnoses:
    """Answers ``diagnostics.previous_message_id``: compares a request with an earlier one of the same client.

    Only requests that contain ``diagnostics`` are remembered, by the id of their answer.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Json] = {}

    def diagnose(self, request: Json, message_id: str) -> Json | None:
        """Return the ``diagnostics`` of an answer, None if nothing changed or nothing was asked."""
        diagnostics = request.get("diagnostics")
        if diagnostics is None:
            return None
        self._requests[message_id] = request
        previous_id = diagnostics.get("previous_message_id")
        if previous_id is None:
            return None
        before = self._requests.get(previous_id)
        if before is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        changed = _first_change(before, request)
        if changed is None:
            return None
        if changed == "unavailable":
            return {"cache_miss_reason": {"type": changed}}
        return {"cache_miss_reason": {"type": changed, "cache_missed_input_tokens": tokens_of_prompt(before)}}


def _first_change(before: Json, request: Json) -> str | None:
    """Return the type of the first difference between two requests; appended messages are none."""
    for name in ("model", "system", "tools"):
        if not _same(before.get(name) or None, request.get(name) or None):
            return f"{name}_changed"
    earlier = before["messages"]
    if not _same(earlier, request["messages"][: len(earlier)]):
        return "messages_changed"
    others = ("thinking", "tool_choice", "output_config")
    return "unavailable" if any(before.get(name) != request.get(name) for name in others) else None


def _same(before: Any, after: Any) -> bool:
    """Return whether two parts of prompts differ only in their cache breakpoints.

    Copies only items that differ: a copy of whole requests would be part of the service's time in measurements.
    """
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return all(old == new or _bare(old) == _bare(new) for old, new in zip(before, after, strict=True))
    return bool(_bare(before) == _bare(after))


def _bare(value: Any) -> Any:
    """Return a part of a prompt without its cache breakpoints."""
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if key != "cache_control"}
    return value


def tokens_of_prompt(request: Json) -> int:
    """Return how many tokens a request's prompt has, as the cache counts them."""
    parts = (json.dumps(block, ensure_ascii=False) for block, _ in _blocks(request))
    size = sum(len(part.encode("utf-8", "replace")) for part in parts)
    return -(-size // BYTES_PER_TOKEN)


def _blocks(request: Json) -> Iterator[tuple[Any, str | None]]:
    """Yield every part of the prompt in cache order, without its breakpoint, and the breakpoint's ttl."""
    for tool in request.get("tools") or []:
        if not tool.get("defer_loading"):
            yield _without_breakpoint(tool)
    system = request.get("system") or []
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        yield _without_breakpoint(block)
    # Changing any of these leaves tools and system cached, but no message.
    thinking = {key: value for key, value in (request.get("thinking") or {}).items() if key == "type"}
    yield [request.get("tool_choice"), thinking, (request.get("output_config") or {}).get("format")], None
    for message in request["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            bare, ttl = _without_breakpoint(block)
            yield [message["role"], bare], ttl
    if request.get("cache_control") is not None:
        yield None, request["cache_control"].get("ttl", "5m")


def _without_breakpoint(block: Json) -> tuple[Json, str | None]:
    control = block.get("cache_control")
    if control is None:
        return block, None
    return {key: value for key, value in block.items() if key != "cache_control"}, control.get("ttl", "5m")
