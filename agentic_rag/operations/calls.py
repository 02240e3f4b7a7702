"""Questions that come with all they need, from clients of protocols that know no conversation of ours.

Owns the life of such a call: it runs on the same engine as any message, in a conversation that is not listed and is
removed when its answer has been read, or is kept where the client asks for that. Knows no protocol.

Nobody can ask again for the answer of a call that is not kept, so to leave it is to stop it; what a killed process
leaves of it is removed by the next start (`Deletion.end_left_calls`).
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from agentic_rag.access.users import User
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.exchanges import BROUGHT, Exchange
from agentic_rag.conversations.sent_images import GivenImage
from agentic_rag.errors import InvalidInput, NotFound, OtherResponses
from agentic_rag.events import AgentEvent
from agentic_rag.ids import ConversationId, TurnId
from agentic_rag.operations.deletion import Deletion
from agentic_rag.runtime.accepting import Accepted
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.turns import TurnRecord


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. ``before``: what was said elsewhere; ``wishes``: what the client's program asks of the answer.

    ``attended``: whether somebody reads along whom a turn that is kept can ask.
    """

    text: str
    before: Sequence[Exchange] = ()
    wishes: str = ""
    images: Sequence[GivenImage] = ()
    attended: bool = True


@dataclass(frozen=True, slots=True)
class Call:
    """A question that was accepted: its turn, and the conversation it runs in."""

    conversation: ConversationRecord
    turn_id: TurnId

    @property
    def kept(self) -> bool:
        return not self.conversation.transient


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A turn that can be asked for again. ``follows``: the turn whose answer its question follows, if there is one."""

    conversation: ConversationRecord
    turn: TurnRecord
    follows: TurnId | None


class Calls:
    """The calls of all users."""

    def __init__(self, conversations: Conversations, deletion: Deletion) -> None:
        self._conversations = conversations
        self._deletion = deletion

    async def ask(self, user: User, domain_id: str, question: Question, *, keep: bool = False) -> Call:
        """Ask in a conversation of its own; without ``keep`` it lasts as long as `events` are read.

        Raises:
            NotFound: there is no such domain.
            QuotaExceeded: the domain has as many conversations as it may.
            MessageContentRequired, MessageTooLong: the question does not fit.
            ImageUnsupported, ImageTooLarge, InvalidInput: an image cannot be taken.
            ConversationFull: too much was said before.
        """
        conversation = await self._conversations.create(user, domain_id, exchanges=question.before, transient=not keep)
        try:
            accepted = await self._send(user, conversation, question)
        except BaseException:
            await self._deletion.end_call(conversation)
            raise
        return Call(conversation, accepted.turn_id)

    async def go_on(self, user: User, domain_id: str, conversation_id: ConversationId, question: Question) -> Call:
        """Ask in a conversation that there is; what was said before is what was said in it.

        Raises:
            NotFound: there is no such conversation of this user.
            InvalidInput: it is of another domain.
            TurnInProgress, ConversationArchived, ConversationFull: it takes no message now.
            MessageContentRequired, MessageTooLong: the question does not fit.
        """
        conversation = await self._find(user, domain_id, conversation_id)
        return Call(conversation, (await self._send(user, conversation, question)).turn_id)

    async def go_on_after(self, user: User, domain_id: str, turn_id: TurnId, question: Question) -> Call:
        """Ask after the answer of a turn: on a branch of its own where the conversation has gone on from there.

        Raises:
            NotFound: there is no such turn in a conversation that this user keeps.
            InvalidInput, TurnInProgress, ConversationArchived, ConversationFull, MessageContentRequired,
            MessageTooLong: as `go_on`.
        """
        turn = await self._conversations.turn(user, turn_id)
        conversation = await self._find(user, domain_id, turn.conversation_id)
        accepted: Accepted = await self._conversations.send_after(
            user, conversation, turn.message_id, question.text, images=question.images, wishes=question.wishes
        )
        return Call(conversation, accepted.turn_id)

    async def find_kept(self, user: User, turn_id: TurnId) -> KeptTurn:
        """Return a turn that is kept.

        Raises:
            NotFound: there is no such turn in a conversation that this user keeps.
        """
        turn = await self._conversations.turn(user, turn_id)
        conversation = await self._conversations.get(user, turn.conversation_id)
        if conversation.transient or turn.session_id != conversation.session_id:  # a delegate's
            raise NotFound("turn", turn_id)
        others = await self._conversations.turns(conversation)
        before = next((each for each in others if each.message_id == turn.parent_message_id), None)
        return KeptTurn(conversation, turn, None if before is None or before.end_reason == BROUGHT else before.id)

    async def forget(self, user: User, turn_id: TurnId) -> None:
        """Delete a turn with its conversation, in which it has to be the only one.

        Raises:
            NotFound: as `find_kept`.
            OtherResponses: the conversation holds others.
        """
        kept = await self.find_kept(user, turn_id)
        turns = await self._conversations.turns(kept.conversation)
        others = [each for each in turns if each.id != turn_id and each.end_reason != BROUGHT]
        if others:
            raise OtherResponses(kept.conversation.id, len(others))
        await self._deletion.conversation(user, kept.conversation.id)

    async def _send(self, user: User, conversation: ConversationRecord, question: Question) -> Accepted:
        return await self._conversations.send(
            user,
            conversation.id,
            question.text,
            images=question.images,
            wishes=question.wishes,
            attended=question.attended,
        )

    async def _find(self, user: User, domain_id: str, conversation_id: ConversationId) -> ConversationRecord:
        conversation = await self._conversations.get(user, conversation_id)
        if conversation.transient:
            raise NotFound("conversation", conversation_id)
        if conversation.domain_id != domain_id:
            raise InvalidInput("model", f"the conversation is of {conversation.domain_id!r}, not of {domain_id!r}.")
        return conversation

    async def events(self, call: Call) -> AsyncGenerator[AgentEvent]:
        """Yield a call's events to its end; closing this earlier ends a call that is not kept."""
        try:
            async with aclosing(self._conversations.events(call.turn_id)) as events:
                async for event in events:
                    yield event
        finally:
            if not call.kept:
                await self._deletion.end_call(call.conversation)

    async def interrupt(self, user: User, call: Call) -> None:
        """Stop a call's turn; one that has ended stays as it is."""
        await self._conversations.interrupt(user, call.conversation.id, turn_id=call.turn_id)
