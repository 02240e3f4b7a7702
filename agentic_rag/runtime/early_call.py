"""The first model call of a turn, started while the turn's message is being stored.

Owns the prediction of that call at the end of the previous turn, and the checks that the prediction still holds. Then
the request equals the one that the turn will build, unless the store refuses the message. No part of the answer is
delivered before the message is stored. The turn builds its request as usual and uses the answer only if the requests
are equal.
"""

from dataclasses import dataclass, replace
from typing import Self

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import EventBody, IterationStart
from agentic_rag.base.messages import Activation, user_message
from agentic_rag.models.base import ModelRequest, PreparedRequest, PreparingModel, SentRequest
from agentic_rag.runtime.acceptance import NewMessage
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.window import message_tokens
from agentic_rag.runtime.services import AgentServices, Resources
from agentic_rag.store.budgets import Payer
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import Toolset

MOST_BYTES = 256 * 1024
"""Most bytes of a prepared request. The model reads a longer one for much longer than the store needs for a message."""
KNOWN_IDS = 64
"""Client message ids remembered per session, so that a message that was sent twice causes one call."""
MESSAGE_BYTES = 16
"""Memory of a message in a request besides the part shared with the transcript."""


@dataclass(frozen=True, slots=True)
class EarlyCall:
    """A call that was sent.

    ``request``: the whole request. ``events``: the turn's first events, stored with the message.

    ``toolset``: the tools in the request, whose servers were available when it was sent.
    """

    request: ModelRequest
    toolset: Toolset
    sent: SentRequest
    events: tuple[EventBody, ...]

    def abandon(self) -> None:
        """Cancel the call, because its request is not needed."""
        self.sent.abandon()


@dataclass(frozen=True, slots=True)
class Seen:
    """The inputs of a turn's last request at the time it was built.

    ``documents``: see `AgentServices.documents_mark`. ``spare``: tokens that the next message may have.
    """

    today: str
    documents: object
    spare: int


@dataclass(frozen=True, slots=True)
class NextCall:
    """The first call of a session's next turn without its message, valid until one of its inputs changes.

    ``cites``: whether the session cites documents. ``size``: bytes in memory besides the transcript's.
    """

    prepared: PreparedRequest
    request: ModelRequest
    definition: Definition
    toolset: Toolset
    seen: Seen
    activation: Activation | None
    cites: bool
    size: int

    @classmethod
    def after(
        cls,
        services: AgentServices,
        definition: Definition,
        toolset: Toolset,
        transcript: Transcript,
        asked: ModelRequest,
        seen: Seen,
    ) -> Self | None:
        """Return the next call: the turn's last request (``asked``) and its answer, to be followed by the next message.

        Returns None if the call cannot be predicted.
        """
        model = services.model(definition.domain_id)
        given = asked.tool_choice is not None or definition.binding.draft.files
        if not isinstance(model, PreparingModel) or given or seen.spare <= 0:
            return None
        window = transcript.window()
        if window[-1]["role"] != "assistant":
            return None
        cites = bool(transcript.cited)
        if cites and seen.documents is None:
            return None
        # a step that continued a cut-off answer had more tokens than the first step of a turn
        request = replace(asked, max_tokens=definition.max_tokens, messages=(*asked.messages, window[-1]))
        prepared = model.prepare(request)
        if prepared is None or prepared.size > MOST_BYTES:
            return None
        return cls(
            prepared,
            request,
            definition,
            toolset,
            seen,
            transcript.activation,
            cites,
            prepared.memory + MESSAGE_BYTES * len(request.messages),
        )

    async def send(self, services: AgentServices, definition: Definition, text: str) -> EarlyCall | None:
        """Send the call with a message, or return None if a turn on this definition would send another request now."""
        message = user_message(text)
        if message_tokens(message) > self.seen.spare or not self._holds(services, definition):
            return None
        if not await self._has_role(services) or (sent := self.prepared.send(text)) is None:
            return None
        whole = self.request.followed_by(message)
        return EarlyCall(whole, self.toolset, sent, (*services.opening_notices, IterationStart(1)))

    def _holds(self, services: AgentServices, definition: Definition) -> bool:
        if self.cites and services.documents_mark(definition.domain_id) is not self.seen.documents:
            return False
        same_day = str(services.today) == self.seen.today
        return same_day and self.toolset.fresh and self.definition == definition

    async def _has_role(self, services: AgentServices) -> bool:
        """Return whether the activated role is unchanged."""
        if self.activation is None:
            return True
        try:
            current = await services.role_hash(self.definition.domain_id, self.activation.role)
        except AgenticRagError:  # the turn retries and reports the error
            return False
        return current == self.activation.hash


class CallAhead:
    """The predicted first call of one session's next turn."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._next: NextCall | None = None
        self._client_ids: list[str] = []
        """The newest last."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return 0 if self._next is None else self._next.size

    def expect(self, following: NextCall | None) -> None:
        """Set the prediction after a turn has ended, or clear it with None."""
        self._next = following

    def note_begun(self, row: TurnRecord) -> None:
        """Note that a turn begins, which invalidates the prediction."""
        self._next = None
        self._knows(row.client_message_id)

    async def begin(
        self, message: NewMessage, definition: Definition, user_id: str, *, waits: bool
    ) -> EarlyCall | None:
        """Send the first call of a turn if nothing known here prevents the turn.

        Returns None if the turn calls the model itself.

        Each prediction is used once, so a message that the store refuses causes at most one call. ``waits``: other
        turns run first.
        """
        following, self._next = self._next, None
        resources, known = self._resources, self._knows(message.client_message_id)
        if following is None or known or waits or message.images or resources.full:
            return None
        payer = Payer(definition.domain_id, user_id, message.key_id)
        if resources.journal.stall is not None or resources.spending.governs(payer):
            return None
        return await following.send(resources.services, definition, message.content)

    def _knows(self, client_message_id: str | None) -> bool:
        """Return whether a message with this id came before, and remember the id."""
        known = client_message_id in self._client_ids
        if client_message_id is not None and not known:
            self._client_ids = [*self._client_ids, client_message_id][-KNOWN_IDS:]
        return known
