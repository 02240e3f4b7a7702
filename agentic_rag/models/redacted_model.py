"""An answer whose words hold no secret when the runtime gets them.

Owns what becomes of a model's answer that holds a known value: text, and the name and the input of a tool call, are
redacted, and such a call is marked, so that it is denied and not run with a mask in place of the value. Signed thinking
stays as it is, since the service refuses a changed one; what clients see of it is redacted. Knows no turn.

Here and not at each way out: the transcript, the events with their numbers of characters, titles, summaries and
whatever a tool is given are all made of this.
"""

from collections.abc import Sequence

from agentic_rag.base.messages import BROKEN_INPUT, SECRET, Block, bounded_use
from agentic_rag.base.redaction import Pieces, Redaction
from agentic_rag.models.base import BlockStarted, BlockStopped, InputDelta, ModelEvent, TextDelta, ThinkingDelta


class RedactedAnswer:
    """One answer as it comes; its blocks are open one at a time. While no value is known, nothing needs it."""

    def __init__(self, redaction: Redaction) -> None:
        self._redact = redaction
        self._open = Pieces(redaction)
        self.passes = self._open.passes
        """Says of a piece of a block's text that it may leave as it is, and nothing is held before it: of most."""

    def take(self, event: ModelEvent) -> Sequence[ModelEvent]:
        """Take an event of the model and return what of it may be known, in the same order."""
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
        name, given = self._redact.members(chosen[:2])
        return {**block, **broken, "name": name, "input": given, SECRET: True}
