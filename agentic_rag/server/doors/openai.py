"""OpenAI's models, chat completions and responses, for unmodified clients of OpenAI's API and of Open Responses.

A domain is a model, and tools run on this server. `openai_requests` parses a call, `operations.calls` executes it, and
the encoders build the answer. `error_shapes` gives errors the form of OpenAI's API.
"""

import base64
import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

import anyio
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    AnswerFailed,
    AnswerNotInForm,
    BodyTooLarge,
    ConversationArchived,
    ConversationFull,
    EmbedderUnavailable,
    GenerationAborted,
    GenerationTimeout,
    ImageTooLarge,
    ImageUnsupported,
    InvalidInput,
    LogGone,
    MessageContentRequired,
    MessageTooLong,
    ModelError,
    NotFound,
    OtherResponses,
    QuotaExceeded,
    ServerStopping,
    TurnInProgress,
)
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import ConversationId, TurnId, WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.sent_images import MAX_IMAGES_JSON
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.operations.calls import AcceptedCall, Calls, FullQuestion
from agentic_rag.runtime.core.client_functions import (
    FunctionPauses,
    JsonSchema,
    check_function_name,
    form_answer,
    form_in_text,
)
from agentic_rag.server.dialects.openai_answer import PAUSED, OpenAiAnswer
from agentic_rag.server.dialects.openai_chat import OpenAiChat, completion
from agentic_rag.server.dialects.openai_responses import (
    OpenAiResponses,
    ResponseForm,
    ResponseFrame,
    part_of,
    turn_of,
)
from agentic_rag.server.doors.openai_requests import (
    ChatCall,
    ConversationName,
    ConvertedCall,
    EmbeddingCall,
    ResponseCall,
    read_chat,
    read_response,
    read_stops,
    read_texts,
)
from agentic_rag.server.doors.stored_responses import check_place, frame_of, stored_events, stored_response
from agentic_rag.server.json_response import CollectedAnswer
from agentic_rag.server.replies import Redacted, json_response
from agentic_rag.server.root_path import root_path_of
from agentic_rag.server.routing import route
from agentic_rag.server.sse import EventStream
from agentic_rag.store.domains import DomainRecord
from mcp_servers.retriever.errors import EmbeddingError

RESPONSE = "/v1/responses/{response}"
FORM_HEADER = "x-agentic-rag-items"
"""Selects the form of responses: ``openai`` or ``standard``."""
OPENAI_LIBRARY_HEADER = "x-stainless-lang"
"""Sent by OpenAI's own libraries, which know OpenAI's items. Other clients get the standard's."""
EMBEDDER_SECONDS = 10.0
"""How long a call for embeddings waits for an embedder that is being loaded."""
ASKING_ERRORS = (
    BodyTooLarge,
    ConversationArchived,
    ConversationFull,
    GenerationAborted,
    GenerationTimeout,
    ImageTooLarge,
    ImageUnsupported,
    MessageContentRequired,
    MessageTooLong,
    ModelError,
    NotFound,
    QuotaExceeded,
    TurnInProgress,
)
"""Reasons why a question is refused or fails. OpenAI's clients expect 400 for invalid input instead of 422."""


class ResponseQuery(Form):
    """Form of a stored response.

    ``stream``: send its events after the number ``starting_after``. Other parameters are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    streamed: bool = Field(False, alias="stream")
    starting_after: int = -1


class OpenAiRoutes:
    """Routes below ``/v1`` for clients of OpenAI's API."""

    def __init__(
        self, directory: Directory, conversations: Conversations, calls: Calls, embedding: EmbeddingState
    ) -> None:
        self._directory = directory
        self._embedding = embedding
        self._conversations = conversations
        self._calls = calls

    @route("GET", "/v1/models", allow="user")
    async def list_models(self, user: User) -> Response:
        """List the caller's domains as OpenAI models."""
        records = [record for record in await self._directory.list_all() if user.sees(record.id)]
        return json_response({"object": "list", "data": [_model(record) for record in records]})

    @route("GET", "/v1/models/{domain}", allow="member")
    async def get_model(self, domain: str) -> Response:
        """Show one domain as an OpenAI model."""
        return json_response(_model(await self._directory.get(domain)))

    @route(
        "POST",
        "/v1/chat/completions",
        allow="user",
        sends=True,
        streams=True,
        max_bytes=MAX_IMAGES_JSON,
        errors=ASKING_ERRORS,
    )
    async def complete(self, request: Request, user: User, body: ChatCall) -> EventStream | Response:
        """Answer the last of some messages, like OpenAI's chat completions.

        Without ``store`` or ``conversation`` nothing is stored.
        """
        converted = read_chat(body)
        call = await self._ask(user, body.model, converted, store=bool(body.store), conversation=body.conversation)
        passages = _passages(request, body.model)
        # A request with results continues a turn, whose form was in its first request.
        form = (call.functions if call.answered else converted.functions).form
        stops = read_stops(body)
        if not body.streamed:
            return CollectedAnswer(
                self._calls.events(call), _Completion(body.model, passages, call.answered, form, stops)
            )
        usage = bool(body.stream_options and body.stream_options.include_usage)
        encoder = OpenAiChat(body.model, passages, include_usage=usage, answered=call.answered, form=form, stops=stops)
        return EventStream(self._calls.events(call), encoder)

    @route(
        "POST",
        "/v1/responses",
        allow="user",
        sends=True,
        streams=True,
        max_bytes=MAX_IMAGES_JSON,
        errors=ASKING_ERRORS,
    )
    async def respond(self, request: Request, user: User, body: ResponseCall) -> EventStream | Response:
        """Answer an input, like OpenAI's responses.

        Without ``store``, ``conversation`` or ``previous_response_id`` nothing is stored.
        """
        converted = read_response(body)
        # Made before the question is asked, because it refuses unknown forms: no turn may begin for those.
        frame = await self._frame(
            request,
            user,
            ResponseFrame(
                body.model,
                body.instructions,
                body.previous_response_id,
                effort=body.reasoning.effort if body.reasoning else None,
                summary=body.reasoning.summary if body.reasoning else None,
                functions=converted.functions,
            ),
        )
        # Results name the calls of a paused turn, which tell its conversation.
        if body.previous_response_id is not None and not converted.results:
            question = FullQuestion(
                converted.question, (), converted.wishes, converted.images, functions=converted.functions
            )
            turn_id = TurnId(turn_of(body.previous_response_id))
            call = await self._calls.go_on_after(user, body.model, turn_id, question)
        else:
            call = await self._ask(user, body.model, converted, store=bool(body.store), conversation=body.conversation)
        conversation_id = call.conversation.id if call.in_conversation else None
        frame = replace(frame, conversation_id=conversation_id, answered=call.answered)
        frame = replace(frame, functions=call.functions) if call.answered else frame
        if not body.streamed:
            return CollectedAnswer(self._calls.events(call), _Response(frame))
        return EventStream(self._calls.events(call), OpenAiResponses(frame))

    @route(
        "POST",
        "/v1/embeddings",
        allow="user",
        sends=True,
        max_bytes=MAX_IMAGES_JSON,
        errors=[BodyTooLarge, EmbedderUnavailable, NotFound],
    )
    async def embed(self, user: User, body: EmbeddingCall) -> Response:
        """Return the vectors of texts, by the embedder that searches the domain's documents.

        ``input_type: "query"`` embeds questions instead of passages, for embedders that distinguish them.
        """
        texts = read_texts(body)
        # The domain stands in the body, so the route's rule does not check it.
        if not user.sees(body.model):
            raise NotFound("domain", body.model, hidden=True)
        await self._directory.get(body.model)
        # If it is not ready by then, the calls below fail and the reason is sent.
        with anyio.move_on_after(EMBEDDER_SECONDS):
            await self._embedding.prepare()
        try:
            if body.input_type == "query":
                vectors = [await self._embedding.embed_query(text) for text in texts]
            else:
                vectors = await self._embedding.embed_documents(texts)
        except EmbeddingError as exc:
            raise EmbedderUnavailable(self._embedding.reason or str(exc)) from exc
        encode = _in_base64 if body.encoding_format == "base64" else list
        data = [{"object": "embedding", "index": at, "embedding": encode(vector)} for at, vector in enumerate(vectors)]
        usage = {"prompt_tokens": 0, "total_tokens": 0}  # the embedder's tokens are not counted
        return json_response({"object": "list", "data": data, "model": body.model, "usage": usage})

    @route("GET", RESPONSE, allow="user", streams=True, errors=[NotFound, LogGone])
    async def get_response(
        self, request: Request, user: User, response: str, query: ResponseQuery
    ) -> EventStream | Redacted[Json]:
        """Show the current state of a stored response, or its events."""
        stored = await self._calls.find_stored(user, TurnId(turn_of(response)))
        frame = await self._frame(request, user, replace(frame_of(stored), part=part_of(response)))
        if query.streamed:
            await check_place(self._conversations, user, stored, frame, query.starting_after)
            encoder = OpenAiResponses(frame, after=query.starting_after)
            return EventStream(stored_events(self._conversations, user, stored), encoder)
        return Redacted(stored.conversation.domain_id, await stored_response(self._conversations, user, stored, frame))

    @route("DELETE", RESPONSE, allow="user", audited=True, status=200, errors=[NotFound, OtherResponses])
    async def delete_response(self, user: User, response: str) -> Json:
        """Delete a stored response with its conversation, which must not contain other responses."""
        await self._calls.forget(user, TurnId(turn_of(response)))
        return {"id": response, "object": "response", "deleted": True}

    @route("POST", "/v1/responses/compact", allow="user", errors=[NotFound])
    async def compact_response(self) -> Json:
        """Refuse: the server compacts conversations itself, and a client cannot request a compaction."""
        raise NotFound("page", "/v1/responses/compact")

    async def _frame(self, request: Request, user: User, frame: ResponseFrame) -> ResponseFrame:
        """Add the domain's settings and the form that this client reads to a response's frame.

        Raises:
            NotFound: this user sees no such domain.
            InvalidInput: the client names an unknown form.
        """
        if not user.sees(frame.model):
            raise NotFound("domain", frame.model, hidden=True)
        settings = await self._directory.settings(frame.model)
        temperature = 1.0 if settings.temperature is None else settings.temperature
        passages = _passages(request, frame.model)
        return replace(frame, form=_form_of(request), passages=passages, temperature=temperature)

    async def _ask(
        self,
        user: User,
        domain: str,
        converted: ConvertedCall,
        *,
        store: bool,
        conversation: str | ConversationName | None,
    ) -> AcceptedCall:
        if not user.sees(domain):
            raise NotFound("domain", domain, hidden=True)
        if converted.results:
            return await self._calls.resume(user, domain, converted.results)
        servers = (await self._directory.settings(domain)).mcp_servers
        # The model would take a past call of such a name for a call of this server's tool.
        for path, name in converted.past_names:
            check_function_name(path, name, servers)
        if conversation is None:
            whole = FullQuestion(
                converted.question,
                converted.before,
                converted.wishes,
                converted.all_images,
                functions=converted.functions,
            )
            return await self._calls.ask(user, domain, whole, keep=store)
        ident = conversation if isinstance(conversation, str) else conversation.id
        # The stored conversation has its own history, so the earlier messages of the request are left out.
        question = FullQuestion(
            converted.question, (), converted.wishes, converted.images, functions=converted.functions
        )
        return await self._calls.go_on(user, domain, ConversationId(ident), question)


class _Completion:
    """Collects a chat completion."""

    def __init__(
        self,
        model: str,
        passages: str,
        answered: Collection[WaitId],
        form: JsonSchema | None,
        stops: Sequence[str],
    ) -> None:
        self._stops = stops
        self._form = form
        self._filled = False
        self._answer = OpenAiAnswer()
        self._pauses = FunctionPauses(answered)
        self._asked: tuple[Json, ...] = ()
        self._model = model
        self._passages = passages

    def collect(self, event: AgentEvent) -> None:
        fields = event.fields()
        muted, self._asked = self._pauses.muted, self._pauses.take(event, fields)
        if self._asked:
            self._answer.pause(str(fields["ts"]), self._pauses.spent)
            filled = form_answer(self._asked)
            if filled is not None:
                self._asked, self._filled = (), True
                self._answer.fill_form(filled)
            return
        self._answer.take(fields)
        if muted and not self._pauses.muted:
            self._answer.begin_part(str(fields["ts"]), self._pauses.spent)

    def result(self) -> Json:
        if self._form is not None and self._answer.stop_reason not in ("", PAUSED) and not self._filled:
            self._answer.fill_form(form_in_text(self._answer.text, self._form))
        _check(self._answer)
        self._answer.cut(self._stops)
        return completion(self._answer, self._model, self._passages, self._asked)


class _Response:
    """Collects a response."""

    def __init__(self, frame: ResponseFrame) -> None:
        self._encoder = OpenAiResponses(frame, retracts=True)

    def collect(self, event: AgentEvent) -> None:
        self._encoder.take(event)

    def result(self) -> Json:
        _check(self._encoder.answer)
        return self._encoder.response()


def _check(answer: OpenAiAnswer) -> None:
    """Check that the answer is complete.

    Raises:
        AnswerFailed: the turn failed.
        AnswerNotInForm: the model did not answer in the form that the client wants.
        ServerStopping: the events ended before the turn.
    """
    failure = answer.failure
    if failure is not None and failure.code == AnswerNotInForm.code:
        raise AnswerNotInForm
    if failure is not None:
        raise AnswerFailed(failure.code, failure.message, failure.retryable)
    if not answer.over:
        raise ServerStopping


def _form_of(request: Request) -> ResponseForm:
    """Return the form of responses for a client.

    Raises:
        InvalidInput: the header names an unknown form.
    """
    named = request.headers.get(FORM_HEADER)
    if named is None:
        return ResponseForm.OPENAI if OPENAI_LIBRARY_HEADER in request.headers else ResponseForm.STANDARD
    try:
        return ResponseForm(named)
    except ValueError:
        names = ", ".join(ResponseForm)
        raise InvalidInput(FORM_HEADER, f"{named[:80]!r} is not known: {names}.") from None


def _in_base64(vector: Sequence[float]) -> str:
    """Return a vector as OpenAI's clients read it: 32-bit floats, little-endian, in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _model(record: DomainRecord) -> Json:
    created = int(datetime.fromisoformat(record.created_at).timestamp())
    return {"id": record.id, "object": "model", "created": created, "owned_by": "agentic-rag", "name": record.name}


def _passages(request: Request, domain: str) -> str:
    """Return the base address of a domain's passages."""
    path = f"{root_path_of(request.scope)}/api/domains/{domain}/chunks"
    return str(request.url.replace(path=path, query="", fragment=""))
