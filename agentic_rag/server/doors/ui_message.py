"""Routes for Vercel's AI SDK: the requests of its ``DefaultChatTransport``, and resuming an answer.

This module defines the request forms and maps a client's ids (chat, message) to ours. ``dialects.ui_message`` encodes
the stream. The server stores the conversation, so of the posted messages only the last one is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, Field

from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, ImageTooLarge, ImageUnsupported, InvalidInput, NotFound, WaitAnswered
from agentic_rag.base.events import WaitAction, WaitKind
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import MessageId, WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.client_names import ClientNames, check_name
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.sent_images import MAX_IMAGES_JSON, PlacedImage, image_at
from agentic_rag.conversations.waits import Waits
from agentic_rag.runtime.acceptance import Accepted
from agentic_rag.server.dialects.base import KnownWaits
from agentic_rag.server.dialects.ui_message import UiMessage
from agentic_rag.server.routing import route
from agentic_rag.server.sse import EventStream
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.turns import TurnStatus

CHAT = "/api/ui-message/{domain}"
_OURS = "msg_"


class UiMessageForm(Form):
    """A message in the SDK's form."""

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]]


class ChatRequest(Form):
    """A request of the SDK's transport.

    ``messages`` is the whole chat, of which only the last message is read. It must be the user's message, or an answer
    with the user's decisions on calls that wait for approval (``addToolApprovalResponse``).

    The ``trigger`` ``regenerate-message`` asks for a new answer. ``messageId`` with ``submit-message`` means that this
    message was edited.
    """

    model_config = ConfigDict(extra="ignore")

    id: str
    messages: list[UiMessageForm] = Field(min_length=1)
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class UiQuestion:
    """The message to answer, with its client's id."""

    id: str
    content: str
    images: Sequence[PlacedImage]


@dataclass(frozen=True, slots=True)
class Response:
    """A user's decision on a call that waits for approval.

    ``input`` is the arguments of the call as the client now has them.
    """

    wait_id: WaitId
    approved: bool
    reason: str
    input: object


class UiMessageRoutes:
    """Chats of the AI SDK's clients."""

    def __init__(self, conversations: Conversations, names: ClientNames, waits: Waits) -> None:
        self._conversations = conversations
        self._names = names
        self._waits = waits

    @route(
        "POST",
        CHAT,
        allow="member",
        sends=True,
        streams=True,
        max_bytes=MAX_IMAGES_JSON,
        errors=[ImageUnsupported, ImageTooLarge, WaitAnswered, Forbidden],
    )
    async def chat(self, user: User, domain: str, body: ChatRequest) -> EventStream:
        """Answer the last message of a chat. A chat with an unknown id is created.

        A repeated message returns the same turn. If the last message is an answer with approved or declined calls, the
        turn that waits for these decisions continues.
        """
        responses = _responses_of(body.messages)
        if responses:
            return await self._go_on(user, domain, body.id, responses)
        question = _question_of(body.messages)
        conversation = await self._names.find_or_begin(user, domain, body.id)
        accepted = await self._accept(user, conversation, body, question)
        # A new turn has no waits yet.
        ended = await self._waits.ended_of(accepted.turn_id) if accepted.duplicate else frozenset[str]()
        return EventStream(self._conversations.events(accepted.turn_id), UiMessage(KnownWaits(ended)))

    @route("GET", f"{CHAT}/{{chat}}/stream", allow="member", streams=True, status=204)
    async def resume(self, user: User, domain: str, chat: str) -> EventStream | None:
        """Resume the answer that is being generated in a chat, from its start; 204 if there is none."""
        conversation = await self._names.find(user, domain, chat)
        if conversation is None:
            return None
        turn = (await self._conversations.current_turns([conversation])).get(conversation.session_id)
        if turn is None or turn.status not in (TurnStatus.RUNNING, TurnStatus.WAITING):
            return None
        ended = await self._waits.ended_of(turn.id)
        return EventStream(self._conversations.events(turn.id), UiMessage(KnownWaits(ended)))

    async def _go_on(self, user: User, domain: str, chat: str, responses: Sequence[Response]) -> EventStream:
        """Answer the waits of a turn and return the events that follow.

        Repeating the same answers returns the same events.
        """
        conversation = await self._names.find(user, domain, chat)
        pairs = [(response, await self._waits.get(user, response.wait_id)) for response in responses]
        turn_id = pairs[0][1].root_turn_id
        # All are checked before the first is settled: a request with a wrong one changes nothing.
        for _, wait in pairs:
            elsewhere = conversation is None or wait.conversation_id != conversation.id
            if elsewhere or wait.root_turn_id != turn_id or wait.kind is not WaitKind.APPROVAL:
                raise NotFound("wait", wait.id)
        for response, wait in pairs:
            action, content = _answer_of(response, wait.request["arguments"])
            await self._waits.settle(user, wait, action, content)
        await self._conversations.check_replay(user, await self._conversations.turn(user, turn_id))
        waits = KnownWaits(await self._waits.ended_of(turn_id), frozenset(wait.id for _, wait in pairs))
        return EventStream(self._conversations.events(turn_id), UiMessage(waits))

    async def _accept(
        self, user: User, conversation: ConversationRecord, body: ChatRequest, question: UiQuestion
    ) -> Accepted:
        again = body.trigger == "regenerate-message"
        if again or body.message_id is not None:
            content, images = (None, None) if again else (question.content, question.images)
            for candidate in filter(None, (body.message_id, question.id)):
                message_id = await self._message(conversation, candidate)
                if message_id is not None:
                    return await self._conversations.answer_again(
                        user, conversation.id, message_id, content, images=images
                    )
            # A question that never arrived, for example, is asked now instead of again.
            if not again:
                raise NotFound("message", body.message_id or "")
        return await self._conversations.send(
            user,
            conversation.id,
            question.content,
            client_message_id=question.id or None,
            images=question.images,
        )

    async def _message(self, conversation: ConversationRecord, ident: str) -> MessageId | None:
        """Return our id of a message, or None. ``ident`` may be a client's id of a question that it sent."""
        if ident.startswith(_OURS):
            return MessageId(ident)
        turn = await self._names.turn_in(conversation, ident)
        return None if turn is None else turn.user_message_id


def _responses_of(messages: Sequence[UiMessageForm]) -> list[Response]:
    """Return the user's decisions in the last message. The list is empty if the message is a question.

    Raises:
        InvalidInput: a decision is malformed.
    """
    last, responses = messages[-1], list[Response]()
    for number, part in enumerate(last.parts if last.role == "assistant" else ()):
        if part.get("state") != "approval-responded":
            continue
        approval, place = part.get("approval"), f"messages.{len(messages) - 1}.parts.{number}.approval"
        if not isinstance(approval, dict):
            raise InvalidInput(place, "an object is expected.")
        approved, reason = approval.get("approved"), approval.get("reason")
        if not isinstance(approved, bool):
            raise InvalidInput(f"{place}.approved", "true or false is expected.")
        if reason is not None and not isinstance(reason, str):
            raise InvalidInput(f"{place}.reason", "a string is expected.")
        responses.append(Response(WaitId(_string(approval, "id", place)), approved, reason or "", part.get("input")))
    return responses


def _answer_of(response: Response, arguments: object) -> tuple[WaitAction, Json]:
    """Return the answer for a decision. Its arguments count as edited if they differ from the call's ``arguments``."""
    if not response.approved:
        return WaitAction.DECLINE, {"reason": response.reason} if response.reason else {}
    edited = response.input is not None and response.input != arguments
    return WaitAction.ACCEPT, {"arguments": response.input} if edited else {}


def _question_of(messages: list[UiMessageForm]) -> UiQuestion:
    """Return the last message as a question.

    Raises:
        InvalidInput: the last message is not the user's or has parts other than text and images, or the chat has a
            system message.
    """
    for at, message in enumerate(messages):
        if message.role == "system":
            problem = "only user messages are accepted; the domain defines the system prompt."
            raise InvalidInput(f"messages.{at}.role", problem)
    last, at = messages[-1], len(messages) - 1
    if last.role != "user":
        problem = (
            "the last message must be the user's: tools run on this server, so clients cannot supply their results."
        )
        raise InvalidInput(f"messages.{at}.role", problem)
    if last.id:
        check_name(f"messages.{at}.id", last.id)
    texts: list[str] = []
    images: list[PlacedImage] = []
    for number, part in enumerate(last.parts):
        place = f"messages.{at}.parts.{number}"
        match part.get("type"):
            case "text":
                texts.append(_string(part, "text", place))
            case "file":
                images.append(image_at(f"{place}.url", part.get("url"), _string(part, "mediaType", place)))
            case _:
                problem = "only text and images are taken; other files are uploaded to the domain."
                raise InvalidInput(f"{place}.type", problem)
    return UiQuestion(last.id, "\n".join(texts), images)


def _string(part: Json, name: str, place: str) -> str:
    text = part.get(name)
    if not isinstance(text, str):
        raise InvalidInput(f"{place}.{name}", "a string is expected.")
    return text
