"""Thinking blocks that are bound to their prefix, as the newer models check it.

Owns signatures: their content, and which blocks of a request fail the check. The prefix of a block is ``system``,
``tools`` (a deferred one from its first reference on) and every earlier block that is not thinking, exactly as sent;
breakpoints of the cache do not count. Each block is also bound to the previous thinking block: thinking may be left out
at the start of a conversation, but not in its middle. Pure; knows no HTTP.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentic_rag.base.json_form import Json
from agentic_rag.testing.model_rules import ModelRules

THINKING = ("thinking", "redacted_thinking")
Reason = Literal["prefix_binding_mismatch", "model_binding_mismatch"]
ELSEWHERE = (
    "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set "
    '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


@dataclass(frozen=True, slots=True)
class BlockFailure:
    """A thinking block that may not be used: its place (message and block), and the reason."""

    message: int
    block: int
    reason: Reason

    @property
    def path(self) -> str:
        return f"messages.{self.message}.content.{self.block}"


class Signer:
    """Signs the thinking of one answer; pass the answer's blocks in their order."""

    def __init__(self, request: Json) -> None:
        self._prefix = _Prefix(request)
        self._last = ""
        self._model = request["model"]
        for _, _, role, block in _blocks_of(request):
            if block["type"] in THINKING:
                self._last = _signature(block)
            else:
                self._prefix.take(role, block)

    def sign(self, thinking: str) -> str:
        """Return the signature of the next thinking block for the text that the client receives."""
        self._last = _sign(thinking, self._prefix.digest, self._last, self._model)
        return self._last

    def take(self, block: Json) -> None:
        """Record the next other block of the answer."""
        self._prefix.take("assistant", block)


def failures(request: Json, rules: ModelRules) -> list[BlockFailure]:
    """Return the thinking blocks of a request that its model may not use, in order.

    If a block fails, so does the other thinking of its message, and all later thinking.
    """
    prefix, unusable = _Prefix(request), []
    last: str | None = None
    broken: int | None = None
    for message, index, role, block in _blocks_of(request):
        if block["type"] not in THINKING:
            prefix.take(role, block)
            continue
        signature = _signature(block)
        _, before, previous, model = _read(signature)
        # Thinking of a model that this one cannot read does not break what follows: ``last`` stays as it was.
        if model and model != request["model"] and model not in rules.reads:
            unusable.append(BlockFailure(message, index, "model_binding_mismatch"))
            continue
        # The first block may follow any other one: thinking may be left out at the start of a conversation.
        fits = before == prefix.digest and (last is None or previous == _short(last)) and message != broken
        if rules.bound and not fits:
            unusable.append(BlockFailure(message, index, "prefix_binding_mismatch"))
            broken = message
            continue
        last = signature
    return unusable


def fits(signature: Any, thinking: str) -> bool:
    """Whether a signature was made for this text, with any prefix."""
    return signature == sign(thinking) or _read(signature)[0] == _short(thinking)


def sign(thinking: str) -> str:
    """Return a signature without a binding, for stand-ins that do not check prefixes."""
    return "sig-" + hashlib.sha256(b"stand-in:" + thinking.encode("utf-8", "surrogatepass")).hexdigest()


def without(request: Json, dropped: Sequence[BlockFailure]) -> Json:
    """Return the request as the model sees it: without these blocks."""
    places = {(failure.message, failure.block) for failure in dropped}
    messages = []
    for number, message in enumerate(request["messages"]):
        content = message["content"]
        if isinstance(content, list):
            content = [block for index, block in enumerate(content) if (number, index) not in places]
        messages.append({**message, "content": content})
    return {**request, "messages": messages}


class _Prefix:
    """The digest of everything but thinking, block by block."""

    def __init__(self, request: Json) -> None:
        tools = request.get("tools") or []
        self._deferred = {tool["name"]: tool for tool in tools if tool.get("defer_loading")}
        self._hash = hashlib.sha256()
        self._add(request.get("system"))
        self._add([tool for tool in tools if not tool.get("defer_loading")])

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def take(self, role: str, block: Json) -> None:
        self._add([role, block])
        inner = block.get("content") if block["type"] == "tool_result" else None
        for part in inner if isinstance(inner, list) else ():
            if part["type"] == "tool_reference":
                # Taken out, because only the first reference to a deferred tool shows it to the model.
                self._add(self._deferred.pop(part["tool_name"], None))

    def _add(self, value: Any) -> None:
        self._hash.update(json.dumps(_bare(value), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


def _bare(value: Any) -> Any:
    """Return a value without breakpoints; a tool's arguments and schemas have none."""
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if isinstance(value, Mapping):
        return {
            key: item if key in ("input", "input_schema") else _bare(item)
            for key, item in value.items()
            if key != "cache_control"
        }
    return value


def _blocks_of(request: Json) -> Iterator[tuple[int, int, str, Json]]:
    for number, message in enumerate(request["messages"]):
        content = message["content"]
        for index, block in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
            yield number, index, message["role"], block


def _signature(block: Json) -> str:
    text = block.get("signature") or str(block.get("data")).rpartition("|")[2]
    return str(text)


def _sign(thinking: str, prefix: str, previous: str, model: str) -> str:
    body = f"{_short(thinking)}.{prefix}.{_short(previous)}.{model}"
    return f"sig-{body}.{_short('stand-in:' + body)}"


def _read(signature: Any) -> tuple[str, str, str, str]:
    """Return the parts of a signature; empty parts, which never match, for a foreign one."""
    body, _, seal = str(signature).removeprefix("sig-").rpartition(".")
    parts = body.split(".", 3)
    if len(parts) != 4 or seal != _short("stand-in:" + body):
        return "", "", "", ""
    return parts[0], parts[1], parts[2], parts[3]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] if text else "none"
