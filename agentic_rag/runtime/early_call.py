"""The first model call of a turn, begun while its message is being stored.

Owns what is known of it when the turn before has ended, and which of that must still hold for it to be sent: then it is
what the turn will ask, but for the store's word on the message. Nothing of its answer is shown before that; the turn
makes its request as always, and takes the answer only if it is the same request.
"""

from dataclasses import dataclass, replace
from typing import Self

from agentic_rag.errors import AgenticRagError
from agentic_rag.events import EventBody, IterationStart
from agentic_rag.messages import Activation, user_message
from agentic_rag.models.base import ModelRequest, PreparedRequest, PreparingModel, SentRequest
from agentic_rag.runtime.accepting import NewMessage
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.window import message_tokens
from agentic_rag.runtime.services import AgentServices, Resources
from agentic_rag.store.budgets import Payer
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import Toolset

MOST_BYTES = 256 * 1024
"""Of a prepared request: a longer one is read by the model for much longer than it takes to store a message."""
KNOWN_IDS = 64
"""Client message ids of a session that are remembered: what is sent again is asked once."""
MESSAGE_BYTES = 16
"""What a message of a request has in memory beside what is the transcript's: its place, and the prepared one's."""


@dataclass(frozen=True, slots=True)
class EarlyCall:
    """A call that was sent: ``request`` is all of it. ``events``: what its turn begins with, to be stored with it.

    ``toolset``: whose tools it names, and whose servers were there when it was sent.
    """

    request: ModelRequest
    toolset: Toolset
    sent: SentRequest
    events: tuple[EventBody, ...]

    def abandon(self) -> None:
        """End it: it is not what is asked, or nothing is."""
        self.sent.abandon()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a turn's last request was made of, as it was when that was made.

    ``documents``: see `AgentServices.documents_mark`. ``spare``: tokens that the next message may have.
    """

    today: str
    documents: object
    spare: int


@dataclass(frozen=True, slots=True)
class NextCall:
    """The first call of a session's next turn, but for the message; for as long as nothing changes that it depends on.

    ``cites``: whether the session cites documents. ``size``: bytes in memory beside the transcript's.
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
        """Return what follows a turn: its last request (``asked``), the answer, and then the next message.

        None: it has to be made when it is asked for.
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
        # a step that went on with an answer that was cut off had more room than the first one gets
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
        """Send it with a message, if that is what a turn on this definition asks now; else None."""
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
        """Whether the role that was activated is still the same."""
        if self.activation is None:
            return True
        try:
            current = await services.role_hash(self.definition.domain_id, self.activation.role)
        except AgenticRagError:  # the turn tries it again, and says so
            return False
        return current == self.activation.hash


class CallAhead:
    """The first call of one session's next turn: what is known of it, and the way to it."""

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
        """Take what follows the turn that has ended; None: nothing is known, or not any more."""
        self._next = following

    def note_begun(self, row: TurnRecord) -> None:
        """Take notice that a turn begins, whichever way: what would have followed the one before it does not."""
        self._next = None
        self._knows(row.client_message_id)

    async def begin(
        self, message: NewMessage, definition: Definition, user_id: str, *, waits: bool
    ) -> EarlyCall | None:
        """Send the call of a turn that nothing known here keeps from beginning; None: the turn asks by itself.

        Once after each turn: a message that the store refuses is asked once at most. ``waits``: others come first.
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
        """Whether a message came with this id before; from now on one did."""
        known = client_message_id in self._client_ids
        if client_message_id is not None and not known:
            self._client_ids = [*self._client_ids, client_message_id][-KNOWN_IDS:]
        return known
