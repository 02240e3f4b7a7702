"""Checks that a model supports the features that turns need, with a few tiny calls.

Owns the questions, the criteria for their answers, and the codes of missing features. Knows no provider and no turn.
The checks call `Model.stream` as every turn does, and use the profile that shapes its requests.
"""

import base64
import binascii
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import anyio

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import BROKEN_INPUT, Block, Message, ToolSpec, text_block
from agentic_rag.models.base import (
    BlockStopped,
    CitationDelta,
    MessageCompleted,
    Model,
    ModelEvent,
    ModelRequest,
    TextDelta,
)
from agentic_rag.models.profiles import ModelProfile

CALL_SECONDS: Final = 30.0
"""Timeout of one call."""
MAX_TOKENS: Final = 300


class ModelAbility(StrEnum):
    """A feature that the checks test."""

    ANSWERS = "answers"
    USAGE = "usage"
    TOOLS = "tools"
    CITATIONS = "citations"
    IMAGES = "images"


class Shortfall(StrEnum):
    """The code of a failed check."""

    KEY_REFUSED = "KEY_REFUSED"
    MODEL_UNKNOWN = "MODEL_UNKNOWN"
    NO_STREAM = "NO_STREAM"
    UNREACHABLE = "UNREACHABLE"
    SILENT = "SILENT"
    BUSY = "BUSY"
    SERVICE_FAILED = "SERVICE_FAILED"
    REQUEST_REFUSED = "REQUEST_REFUSED"
    BROKEN_ANSWER = "BROKEN_ANSWER"
    NO_ANSWER = "NO_ANSWER"
    NO_USAGE = "NO_USAGE"
    NO_TOOL_CALL = "NO_TOOL_CALL"
    NO_CITATION = "NO_CITATION"
    IMAGE_NOT_SEEN = "IMAGE_NOT_SEEN"
    NOT_SET_UP = "NOT_SET_UP"


@dataclass(frozen=True, slots=True)
class AbilityResult:
    """The result of one check.

    ``code``: None if the feature works. ``note``: text for people. ``seconds``: duration of the call.
    """

    ability: ModelAbility
    code: Shortfall | None = None
    note: str = ""
    seconds: float = 0.0

    @property
    def works(self) -> bool:
        return self.code is None


@dataclass(slots=True)
class _TrialAnswer:
    """One answer to a check. ``pieces``: the number of its text deltas."""

    text: str = ""
    pieces: int = 0
    calls: list[Block] = field(default_factory=list)
    cited: int = 0
    ended: MessageCompleted | None = None

    def take(self, event: ModelEvent) -> None:
        if isinstance(event, TextDelta):
            self.text += event.text
            self.pieces += 1
        elif isinstance(event, CitationDelta):
            self.cited += event.citation.start < event.citation.end  # an empty range cites nothing
        elif isinstance(event, BlockStopped) and event.block["type"] == "tool_use":
            self.calls.append(event.block)
        elif isinstance(event, MessageCompleted):
            self.ended = event


TOOL: Final = ToolSpec(
    name="note_colour",
    description="Note the colour that the user names.",
    input_schema={"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
)
_PASSAGE: Final[Block] = {
    "type": "search_result",
    "source": "check",
    "title": "Pumps",
    "content": [text_block("The pump in the cellar is painted green."), text_block("It was built in 1931.")],
    "citations": {"enabled": True},
}


def _red_square(size: int = 64) -> Block:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", binascii.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * size) * size  # each row begins with its filter, 0 for none
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png).decode()}
    return {"type": "image", "source": source}


_Judge = Callable[[_TrialAnswer], Sequence[AbilityResult]]


async def check_model(
    model: Model, name: str, profile: ModelProfile, seconds: float = CALL_SECONDS
) -> Sequence[AbilityResult]:
    """Check the features of a model that turns need and its profile declares.

    If the first call gets no answer, the check ends. Otherwise at most three more calls follow.

    Args:
        model: the adapter or pool to call.
        name: the model's name, with its provider if there are several.
        profile: the declared features of the model.
        seconds: timeout of each call.
    """
    question = [text_block("Say one short sentence about the sea.")]
    results = [*await _ask(model, name, question, seconds, _answers)]
    if not results[0].works:
        return results
    named = [text_block("My favourite colour is blue. Note it with the tool.")]
    results += await _ask(model, name, named, seconds, _calls, (TOOL,))
    sought = [_PASSAGE, text_block("Which colour has the pump in the cellar? Answer in one sentence from the passage.")]
    results += await _ask(model, name, sought, seconds, _cites)
    if profile.images:
        shown = [_red_square(), text_block("Which colour has this picture? Answer with one word.")]
        results += await _ask(model, name, shown, seconds, _sees)
    return results


async def _ask(
    model: Model, name: str, content: list[Block], seconds: float, judge: _Judge, tools: tuple[ToolSpec, ...] = ()
) -> list[AbilityResult]:
    message: Message = {"role": "user", "content": content}
    system = (text_block("You are being tried. Do exactly what the user asks."),)
    request = ModelRequest(name, MAX_TOKENS, system, (message,), tools, thinking="off")
    heard, began = _TrialAnswer(), time.monotonic()
    ability = judge(heard)[0].ability  # the judge of an empty answer names the feature, in case the call fails
    try:
        with anyio.fail_after(seconds):
            async with model.stream(request) as events:
                async for event in events:
                    heard.take(event)
    except TimeoutError:
        note = f"No end came within {seconds:g} s" + (f"; {heard.pieces} parts had." if heard.pieces else ".")
        results = [AbilityResult(ability, Shortfall.SILENT, note)]
    except ModelError as error:
        results = [AbilityResult(ability, _code_of(error), str(error))]
    else:
        results = list(judge(heard))
    took = round(time.monotonic() - began, 3)
    return [AbilityResult(result.ability, result.code, result.note, took) for result in results]


def _code_of(error: ModelError) -> Shortfall:
    status = error.http_status
    if error.kind in ("configuration", "extra"):
        return Shortfall.NOT_SET_UP
    if error.kind == "no_stream":
        return Shortfall.NO_STREAM
    if status is None:
        return Shortfall.SILENT if error.kind == "timeout" else Shortfall.UNREACHABLE
    by_status = {401: Shortfall.KEY_REFUSED, 403: Shortfall.KEY_REFUSED, 404: Shortfall.MODEL_UNKNOWN}
    if status in (402, 429, 529):
        return Shortfall.BUSY
    if status == 200:
        return Shortfall.BROKEN_ANSWER
    return by_status.get(status, Shortfall.SERVICE_FAILED if status >= 500 else Shortfall.REQUEST_REFUSED)


def _answers(heard: _TrialAnswer) -> list[AbilityResult]:
    ended = heard.ended
    if ended is None or not heard.text.strip():
        reason = ended.stop_reason if ended else "no end"
        return [AbilityResult(ModelAbility.ANSWERS, Shortfall.NO_ANSWER, f"It said nothing ({reason}).")]
    answers = AbilityResult(ModelAbility.ANSWERS, note=f"streamed, {heard.pieces} parts")
    if ended.usage.sent and ended.usage.output:
        return [
            answers,
            AbilityResult(ModelAbility.USAGE, note=f"{ended.usage.sent} tokens in, {ended.usage.output} out"),
        ]
    return [
        answers,
        AbilityResult(ModelAbility.USAGE, Shortfall.NO_USAGE, "It does not say what a call costs: nothing is counted."),
    ]


def _calls(heard: _TrialAnswer) -> list[AbilityResult]:
    call = next((tool_call for tool_call in heard.calls if tool_call["name"] == TOOL["name"]), None)
    if call is None:
        note = "It called no tool: it cannot search, remember or take its role."
        return [AbilityResult(ModelAbility.TOOLS, Shortfall.NO_TOOL_CALL, note)]
    if BROKEN_INPUT in call or not isinstance(call["input"].get("colour"), str):
        return [
            AbilityResult(
                ModelAbility.TOOLS, Shortfall.NO_TOOL_CALL, "It called the tool with arguments that do not fit."
            )
        ]
    return [AbilityResult(ModelAbility.TOOLS)]


def _cites(heard: _TrialAnswer) -> list[AbilityResult]:
    if heard.cited:
        return [AbilityResult(ModelAbility.CITATIONS)]
    return [
        AbilityResult(
            ModelAbility.CITATIONS, Shortfall.NO_CITATION, "It cited nothing: its answers would name no sources."
        )
    ]


def _sees(heard: _TrialAnswer) -> list[AbilityResult]:
    if "red" in heard.text.casefold():
        return [AbilityResult(ModelAbility.IMAGES)]
    note = "It did not see what the picture shows; say images = false in its profile."
    return [AbilityResult(ModelAbility.IMAGES, Shortfall.IMAGE_NOT_SEEN, note)]
