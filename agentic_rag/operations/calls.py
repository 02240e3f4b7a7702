"""Answer self-contained questions of clients whose protocol has no conversations.

A call runs on the same engine as any message, in an unlisted conversation. The conversation is deleted after the client
has read the answer, unless the client asks to keep it. This module knows no protocol.

The answer of a transient call cannot be requested again, so the call stops when its client disconnects. After a crash,
the next start removes what is left of such calls (`Deletion.end_left_calls`).
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from agentic_rag.access.users import User
from agentic_rag.base.errors import InvalidInput, NotFound, OtherResponses
from agentic_rag.base.events import AgentEvent, WaitAction, WaitKind
from agentic_rag.base.ids import ConversationId, TurnId, WaitId
from agentic_rag.conversations.conversations import Conversations, TurnTerms
from agentic_rag.conversations.exchanges import BROUGHT, Exchange
from agentic_rag.conversations.sent_images import GivenImage
from agentic_rag.conversations.waits import Waits
from agentic_rag.operations.deletion import Deletion
from agentic_rag.runtime.acceptance import Accepted
from agentic_rag.runtime.core.client_functions import NO_FUNCTIONS, ClientFunctions, FunctionPauses, form_answer
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.waits import WaitRecord


@dataclass(frozen=True, slots=True)
class FullQuestion:
    """A question with everything that is needed to answer it.

    ``before`` holds earlier messages from elsewhere. ``wishes`` holds instructions of the client's program.
    ``attended`` says whether a person reads along, so that a kept turn can ask that person something.
    ``functions`` are those of the client's program. ``denied_tools`` may not be called in its turn.
    """

    text: str
    before: Sequence[Exchange] = ()
    wishes: str = ""
    images: Sequence[GivenImage] = ()
    attended: bool = True
    functions: ClientFunctions = NO_FUNCTIONS
    denied_tools: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """The result of a function that the client's program ran. ``path`` is its place in the request."""

    path: str
    call_id: str
    output: str


@dataclass(frozen=True, slots=True)
class AcceptedCall:
    """An accepted question: its turn and its conversation.

    ``answered``: the waits that the request answered, if it brought results of functions. ``functions`` are those that
    the turn may call.
    """

    conversation: ConversationRecord
    turn_id: TurnId
    answered: frozenset[WaitId] = frozenset()
    functions: ClientFunctions = NO_FUNCTIONS

    @property
    def in_conversation(self) -> bool:
        """Whether the conversation outlives the call; a transient one is deleted with its answer."""
        return not self.conversation.transient


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A stored turn. ``follows`` is the turn whose answer this question follows, if any.

    ``functions`` are those of the client's program.
    """

    conversation: ConversationRecord
    turn: TurnRecord
    follows: TurnId | None
    functions: ClientFunctions = NO_FUNCTIONS


class Calls:
    """The calls of all users."""

    def __init__(self, conversations: Conversations, deletion: Deletion, waits: Waits) -> None:
        self._conversations = conversations
        self._deletion = deletion
        self._waits = waits

    async def ask(self, user: User, domain_id: str, question: FullQuestion, *, keep: bool = False) -> AcceptedCall:
        """Ask in a new conversation.

        Without ``keep``, the conversation is deleted when the iteration over `events` ends.

        Raises:
            NotFound: there is no such domain.
            QuotaExceeded: the domain has reached its limit of conversations.
            MessageContentRequired, MessageTooLong: the question is empty or too long.
            ImageUnsupported, ImageTooLarge, InvalidInput: an image cannot be accepted.
            ConversationFull: ``before`` is too long.
        """
        conversation = await self._conversations.create(user, domain_id, exchanges=question.before, transient=not keep)
        try:
            accepted = await self._send(user, conversation, question)
        except BaseException:  # also a cancellation: no one would ever find the unlisted conversation
            await self._deletion.end_call(conversation)
            raise
        return AcceptedCall(conversation, accepted.turn_id)

    async def go_on(
        self, user: User, domain_id: str, conversation_id: ConversationId, question: FullQuestion
    ) -> AcceptedCall:
        """Ask in an existing conversation, which supplies the earlier messages.

        Raises:
            NotFound: this user has no such conversation.
            InvalidInput: the conversation belongs to another domain.
            TurnInProgress, ConversationArchived, ConversationFull: the conversation takes no message now.
            MessageContentRequired, MessageTooLong: the question is empty or too long.
        """
        conversation = await self._find(user, domain_id, conversation_id)
        return AcceptedCall(conversation, (await self._send(user, conversation, question)).turn_id)

    async def go_on_after(self, user: User, domain_id: str, turn_id: TurnId, question: FullQuestion) -> AcceptedCall:
        """Ask after the answer of a turn. If later messages follow that answer, start a new branch.

        Raises:
            NotFound: this user has no such turn in a kept conversation.
            InvalidInput, TurnInProgress, ConversationArchived, ConversationFull, MessageContentRequired,
                MessageTooLong: as `go_on`.
        """
        turn = await self._conversations.turn(user, turn_id)
        conversation = await self._find(user, domain_id, turn.conversation_id)
        accepted: Accepted = await self._conversations.send_after(
            user,
            conversation,
            turn.message_id,
            question.text,
            images=question.images,
            terms=TurnTerms(wishes=question.wishes, functions=question.functions),
        )
        return AcceptedCall(conversation, accepted.turn_id)

    async def resume(self, user: User, domain_id: str, results: Sequence[FunctionResult]) -> AcceptedCall:
        """Resume a paused turn with the results of all functions that it waits for.

        Results that were sent before are accepted again, so that a client can repeat a request whose answer was lost.

        Raises:
            InvalidInput: no function of this user's calls waits for a result, results are missing, or one is too long.
        """
        waits: dict[WaitId, WaitRecord] = {}
        for result in results:
            waits[WaitId(result.call_id)] = await self._find_wait(user, domain_id, result)
        (turn_id, *other_ids) = {wait.root_turn_id for wait in waits.values()}
        if other_ids:
            raise InvalidInput(results[-1].path, "the results belong to different answers; send those of one.")
        missing = await self._waits.list_open_functions(turn_id)
        names = [str(wait.request.get("toolName")) for wait in missing if wait.id not in waits]
        if names:
            raise InvalidInput(results[-1].path, f"the results of these functions are missing: {', '.join(names)}.")
        for result in results:
            wait = waits[WaitId(result.call_id)]
            await self._waits.settle(user, wait, WaitAction.ACCEPT, {"output": result.output})
        conversation = await self._conversations.get(user, wait.conversation_id)
        functions = await self._conversations.functions_of(await self._conversations.turn(user, turn_id))
        return AcceptedCall(conversation, turn_id, frozenset(waits), functions)

    async def _find_wait(self, user: User, domain_id: str, result: FunctionResult) -> WaitRecord:
        try:
            wait = await self._waits.get(user, WaitId(result.call_id))
        except NotFound:
            wait = None
        if wait is None or wait.kind is not WaitKind.FUNCTION or wait.domain_id != domain_id or wait.user_id != user.id:
            raise InvalidInput(
                result.path,
                f"{result.call_id[:80]!r}: no function call waits for this result. The tools of this server report "
                "their results themselves, and a call that was not answered in time has ended; ask again.",
            )
        return wait

    async def find_stored(self, user: User, turn_id: TurnId) -> StoredTurn:
        """Return a kept turn.

        Raises:
            NotFound: this user has no such turn in a kept conversation.
        """
        turn = await self._conversations.turn(user, turn_id)
        conversation = await self._conversations.get(user, turn.conversation_id)
        if conversation.transient or turn.session_id != conversation.session_id:  # a delegate's
            raise NotFound("turn", turn_id)
        turns = await self._conversations.turns(conversation)
        before = next((candidate for candidate in turns if candidate.message_id == turn.parent_message_id), None)
        follows = None if before is None or before.end_reason == BROUGHT else before.id
        return StoredTurn(conversation, turn, follows, await self._conversations.functions_of(turn))

    async def forget(self, user: User, turn_id: TurnId) -> None:
        """Delete a turn together with its conversation. It must be the only turn in the conversation.

        Raises:
            NotFound: as `find_stored`.
            OtherResponses: the conversation holds other turns.
        """
        kept_turn = await self.find_stored(user, turn_id)
        turns = await self._conversations.turns(kept_turn.conversation)
        other_turns = [candidate for candidate in turns if candidate.id != turn_id and candidate.end_reason != BROUGHT]
        if other_turns:
            raise OtherResponses(kept_turn.conversation.id, len(other_turns))
        await self._deletion.conversation(user, kept_turn.conversation.id)

    async def _send(self, user: User, conversation: ConversationRecord, question: FullQuestion) -> Accepted:
        terms = TurnTerms(
            wishes=question.wishes,
            functions=question.functions,
            attended=question.attended,
            denied_tools=question.denied_tools,
        )
        return await self._conversations.send(user, conversation.id, question.text, images=question.images, terms=terms)

    async def _find(self, user: User, domain_id: str, conversation_id: ConversationId) -> ConversationRecord:
        conversation = await self._conversations.get(user, conversation_id)
        if conversation.transient:
            raise NotFound("conversation", conversation_id)
        if conversation.domain_id != domain_id:
            raise InvalidInput("model", f"the conversation is of {conversation.domain_id!r}, not of {domain_id!r}.")
        return conversation

    async def events(self, call: AcceptedCall) -> AsyncGenerator[AgentEvent]:
        """Yield the events of a call until it ends or pauses. Closing the iterator earlier ends a transient call.

        A call pauses when it only waits for results of the client's functions (`resume`).
        """
        pauses, paused = FunctionPauses(call.answered), False
        try:
            async with aclosing(self._conversations.events(call.turn_id)) as events:
                async for event in events:
                    new_pauses = pauses.take(event)
                    paused = bool(new_pauses) and form_answer(new_pauses) is None
                    yield event
                    if new_pauses:
                        return
        # Also if the client disconnects: closing the iterator runs this. A paused call must stay for `resume`.
        finally:
            if not call.in_conversation and not paused:
                await self._deletion.end_call(call.conversation)

    async def interrupt(self, user: User, call: AcceptedCall) -> None:
        """Stop the turn of a call. A turn that has ended is unchanged."""
        await self._conversations.interrupt(user, call.conversation.id, turn_id=call.turn_id)
