"""Redaction of known secret values in a model's answer, before the runtime receives the answer.

Text is redacted, and so are the name and the input of a tool call. A redacted call is marked, so that the runtime
denies the call instead of running the tool with a mask in place of the value. A signed thinking block is not changed,
because the service refuses a changed one; the thinking deltas that clients see are redacted. Knows no turn.

The answer is redacted here, not at each output. The transcript, the events with their character counts, titles,
summaries and the inputs of tools are all built from these events.
"""

from collections.abc import Sequence

from agentic_rag.base.messages import BROKEN_INPUT, SECRET, Block, bounded_use
from agentic_rag.base.redaction import Pieces, Redaction
from agentic_rag.models.base import BlockStarted, BlockStopped, InputDelta, ModelEvent, TextDelta, ThinkingDelta


class RedactedAnswer:
    """Redacts the events of one answer. Needed only while secret values are known.

    Only one block is open at any time.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redact = redaction
        self._open = Pieces(redaction)
        self.passes = self._open.passes
        """Whether a piece of a block's text needs no redaction and no earlier piece is held back. True for most."""

    def take(self, event: ModelEvent) -> Sequence[ModelEvent]:
        """Return the redacted events for one event of the model, in order. Text may be held back until the next."""
        if type(event) is TextDelta or type(event) is ThinkingDelta:
            text = self._open.take(event.text)
            if text == event.text:
                return (event,)
            return (type(event)(event.index, text),) if text else ()
        if type(event) is InputDelta:
            piece = self._open.take(event.json)
            return (InputDelta(event.index, piece),) if piece else ()
        if type(event) is BlockStarted and event.block["type"] == "text":
            return (BlockStarted(event.index, {**event.block, "text": self._open.take(event.block["text"])}),)
        if type(event) is BlockStarted and event.block["type"] == "tool_use":
            return (BlockStarted(event.index, {**event.block, "name": self._redact.json(event.block["name"])}),)
        return self._close_block(event) if type(event) is BlockStopped else (event,)

    def _close_block(self, event: BlockStopped) -> Sequence[ModelEvent]:
        block, rest = event.block, self._open.end()
        stopped = BlockStopped(event.index, self._block(block))
        if not rest:
            return (stopped,)
        if block["type"] == "tool_use":
            return InputDelta(event.index, rest), stopped
        return (ThinkingDelta if block["type"] == "thinking" else TextDelta)(event.index, rest), stopped

    def _block(self, block: Block) -> Block:
        if block["type"] == "text":
            return {**block, "text": self._redact(block["text"])}
        return self._call(bounded_use(block)) if block["type"] == "tool_use" else block

    def _call(self, block: Block) -> Block:
        chosen = [block["name"], block["input"], block.get(BROKEN_INPUT)]
        if not self._redact.found_in(chosen):
            return block
        broken = {name: self._redact(block[name]) for name in (BROKEN_INPUT,) if name in block}
        name, tool_input = self._redact.members(chosen[:2])
        return {**block, **broken, "name": name, "input": tool_input, SECRET: True}
