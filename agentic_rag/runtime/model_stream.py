"""Transfer of one model answer into a turn and its log.

Owns the steps of each event (secrets are removed, the turn processes the event, the log numbers the visible part) and
the timeout of a silent model. Waiting for the store does not count as silence.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from agentic_rag.base.errors import GenerationTimeout
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.silence_timers import SilenceTimer
from agentic_rag.models.base import ModelEvent, TextDelta, ThinkingDelta
from agentic_rag.models.redacted_model import RedactedAnswer
from agentic_rag.runtime.core.turn import Turn
from agentic_rag.runtime.log.child_log import ChildLog
from agentic_rag.runtime.log.encoder import TextKind
from agentic_rag.runtime.log.runlog import RunLog


class ModelStream:
    """Receives one model call. ``idle``: seconds of silence after which the model has failed."""

    def __init__(self, turn: Turn, log: RunLog | ChildLog, redaction: Redaction, idle: float) -> None:
        self._log = log
        self._redacted = None if redaction.idle else RedactedAnswer(redaction)
        # bound once, because `_take_text` runs for each delta
        self._receive, self._receive_text, self._append_text = turn.receive, turn.receive_text, log.append_text
        self._passes = None if self._redacted is None else self._redacted.passes
        self._idle = idle
        self._idle_step = idle / 20
        self._watch = asyncio.timeout(None)
        self._silence: SilenceTimer | None = None
        self._heard = time.monotonic()
        """The time when the timeout was last reset."""

    async def run(self, answer: AbstractAsyncContextManager[AsyncIterator[ModelEvent]]) -> None:
        """Receive a whole answer.

        Raises:
            GenerationTimeout: the model was silent for too long.
            ModelError: as `Model.stream`.
        """
        loop = asyncio.get_running_loop()
        try:
            async with self._watch:
                self._silence = SilenceTimer(lambda: self._watch.reschedule(loop.time()), loop.time() + self._idle)
                await self._run(answer)
        except TimeoutError:
            if not self._watch.expired():
                raise
            raise GenerationTimeout("The model's next event", self._idle) from None
        finally:
            if self._silence is not None:
                self._silence.stop()

    async def _run(self, answer: AbstractAsyncContextManager[AsyncIterator[ModelEvent]]) -> None:
        async with answer as events:
            async for event in events:
                if not ((type(event) is TextDelta or type(event) is ThinkingDelta) and self._take_text(event)):
                    self._take(event)
                if self._log.is_full:
                    self._set_deadline(math.inf)  # the turn waits for the store, not for the model
                    await self._log.wait_for_room()
                    self._wait_on()

    def _wait_on(self) -> None:
        self._heard = time.monotonic()
        self._set_deadline(asyncio.get_running_loop().time() + self._idle)

    def _set_deadline(self, deadline: float) -> None:
        if self._silence is not None:
            self._silence.deadline = deadline

    def _take_text(self, event: TextDelta | ThinkingDelta) -> bool:
        """Do the same as `_take` in fewer steps, because nearly all events are pieces of text.

        Returns False, without a change, if the text may hold a part of a secret, or the log is full. Without a known
        secret too: one may become known during the answer, and only `_take` then lets the log remove it.
        """
        passes = self._passes
        if passes is None or not passes(event.text) or not self._send_text(event):
            return False
        if time.monotonic() - self._heard > self._idle_step:
            self._wait_on()
        return True

    def _take(self, event: ModelEvent) -> None:
        if time.monotonic() - self._heard > self._idle_step:  # moving a deadline costs more than reading the clock
            self._wait_on()
        if self._redacted is None:
            for body in self._receive(event):
                self._log.append(body)
            return
        for model_event in self._redacted.take(event):
            if (type(model_event) is TextDelta or type(model_event) is ThinkingDelta) and self._send_text(model_event):
                continue
            for body in self._receive(model_event):
                self._log.append(body, redacted=True)

    def _send_text(self, event: TextDelta | ThinkingDelta) -> bool:
        """Add a text without secrets to the log and the turn. Returns False, without a change, if the log is full."""
        kind: TextKind = "text" if type(event) is TextDelta else "thinking"
        if not self._append_text(kind, event.text):
            return False
        self._receive_text(event)
        return True
