"""A domain as an MCP server: search, documents, a question to its model, cited passages, and roles as prompts.

One `Server` with tools, resources and prompts for all domains; the guard determines user and domain of each request.
Knows no session. Importing this module loads the protocol's library, so `agentic_rag.server.doors.mcp` does it in a
thread.
"""

import logging
import re
from base64 import b64encode
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import anyio
import mcp_types as types
import orjson
from mcp import Client
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from agentic_rag import __version__
from agentic_rag.access.auditing import change
from agentic_rag.access.authorizations import TOOL_SCOPES
from agentic_rag.access.users import acting_for
from agentic_rag.base.errors import (
    AgenticRagError,
    InsufficientScope,
    InternalError,
    InvalidInput,
    NotFound,
    ServerStopping,
    Unauthenticated,
    refused_write,
)
from agentic_rag.base.forms import Form, invalid_input, read_form
from agentic_rag.base.ids import ConversationId, DocumentId, TurnId
from agentic_rag.base.json_form import Json
from agentic_rag.base.terminal import log_under
from agentic_rag.directory.collection import collection_of
from agentic_rag.operations.calls import AcceptedCall, Calls, FullQuestion, StoredTurn
from agentic_rag.roles.skills import OfferedSkill
from agentic_rag.runtime.core.arguments import find_problem
from agentic_rag.server.auth import Caller, caller_of
from agentic_rag.server.dialects.answer import progress_text
from agentic_rag.server.dialects.openai_answer import OpenAiAnswer
from agentic_rag.server.doors.stored_responses import turn_events
from agentic_rag.server.error_shapes import RPC_REFUSED
from agentic_rag.server.replies import request_id
from agentic_rag.server.services import McpServices
from agentic_rag.store.turns import FINISHED, TurnStatus
from agentic_rag.tools.base import Binding
from agentic_rag.tools.content import without_noise
from agentic_rag.tools.remote_tasks import TASKS
from agentic_rag.tools.system import FORGET, READ_DOCUMENT, SEARCH
from agentic_rag.tools.system import REMEMBER as REMEMBER_TOOL
from mcp_servers.promptx.skills import BODY
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.server import create_server as create_retriever

log = logging.getLogger(__name__)

READING: Final = (SEARCH.name, READ_DOCUMENT.name)
"""The retriever's tools that are offered."""
ASK: Final = "ask"
SCHEME: Final = "agentic-rag"
INTERRUPT_SECONDS: Final = 10.0
"""Time limit to interrupt the turn of a cancelled request: the store may be busy."""
INSTRUCTIONS: Final = (
    f"One knowledge base. {' and '.join(READING)} return passages; ask has the domain's assistant answer, "
    "with citations as links to passages, which can be read as resources. Its prompts are the roles of the domain."
)
ASK_DESCRIPTION: Final = (
    "Ask the assistant of this knowledge base. It searches by itself and answers with checked citations, which may "
    "take a minute. To go on in the same conversation, give the conversation_id of the answer before."
)
ASK_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "description": "Complete, as to a person; at most 10,000 characters."},
        "conversation_id": {"type": "string", "description": "Of an answer before; left out: a new conversation."},
    },
    "required": ["question"],
    "additionalProperties": False,
}

REMEMBER: Final = "remember"
REMEMBER_DESCRIPTION: Final = (
    "Save a memory of this knowledge base's assistant, for its later answers to you. Save facts that last, not the "
    "conversation."
)
REMEMBER_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "description": "One complete sentence that can be understood on its own."},
        "keywords": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 2,
            "maxItems": 20,
            "description": "Words by which it is found again.",
        },
    },
    "required": ["content", "keywords"],
    "additionalProperties": False,
}

SKILLS: Final = "io.modelcontextprotocol/skills"
"""The skills extension (SEP-2640): `skills/list`, `skills/get`, and each file a resource."""
POLL_MS: Final = 1_000
"""Suggested milliseconds between two questions about a task."""
NEVER_CACHED: Final[Json] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_SKILL_FILE = re.compile(r"skill://([^/?#]+)/([^?#]+)")
_URI = re.compile(rf"{SCHEME}://([^/?#]+)/chunks/([^/?#]+)")
_Context = ServerRequestContext[Any, Any]


def make_manager(
    server: Server[Any], sessions: int, idle_seconds: float | None, max_bytes: int
) -> StreamableHTTPSessionManager:
    """Return the session manager of one owner. Enter it with ``run()``, once.

    ``idle_seconds`` is None if sessions are off.
    """
    return StreamableHTTPSessionManager(
        server,
        stateless=idle_seconds is None,
        session_idle_timeout=idle_seconds,
        max_request_body_size=max_bytes,
        max_sessions=sessions,
    )


def make_server(services: McpServices) -> Server[Any]:
    """Return the server of all domains."""
    offer = _Offer(services)
    server: Server[Any] = Server(
        "agentic-rag",
        version=__version__,
        title="Agentic RAG",
        instructions=INSTRUCTIONS,
        on_list_tools=offer.list_tools,
        on_call_tool=cast(Any, offer.call_tool),  # the library's type knows no task, which an extension defines
        on_list_resources=offer.list_resources,
        on_list_resource_templates=offer.list_templates,
        on_read_resource=offer.read_resource,
        on_list_prompts=offer.list_prompts,
        on_get_prompt=offer.get_prompt,
    )
    server.middleware.append(offer.answer)
    server.add_request_handler("skills/list", types.PaginatedRequestParams, offer.list_skills)
    server.add_request_handler("skills/get", types.ReadResourceRequestParams, offer.get_skill)
    for method, handler in (("get", offer.get_task), ("update", offer.update_task), ("cancel", offer.cancel_task)):
        server.add_request_handler(f"tasks/{method}", TaskParams, handler)
    server.extensions.update({SKILLS: {}, TASKS: {}})
    return server


class TaskParams(types.RequestParams):
    """The parameters of the methods on a task. Answers to its questions are ignored, because it asks none."""

    task_id: str


class RememberArguments(Form):
    """The arguments of `remember`."""

    content: str
    keywords: list[str]


class AskArguments(Form):
    """The arguments of `ask`."""

    question: str
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Visit:
    """The user, the domain, and the log reference of a request."""

    caller: Caller
    domain: str
    reference: str
    path: str

    @classmethod
    def of(cls, context: _Context) -> "_Visit":
        request = context.request
        assert isinstance(request, Request)  # over HTTP each message has its request
        scope = request.scope
        return cls(caller_of(scope), request.path_params["domain"], request_id(scope), scope["path"])

    async def note_refusal(self, error: AgenticRagError, method: str) -> None:
        await self.caller.note_refusal(error, f"MCP {method}", self.path, self.reference)

    def may(self, *scopes: str) -> bool:
        """Return whether the credential permits one of these scopes. A key permits all."""
        own = self.caller.entrant.scopes
        return own is None or not own.isdisjoint(scopes)

    def check_may(self, *scopes: str) -> None:
        """Check that the credential permits one of these scopes.

        Raises:
            InsufficientScope: it permits none of them.
        """
        if not self.may(*scopes):
            raise InsufficientScope(scopes[0])

    def say(self, error: AgenticRagError) -> str:
        return str(error) if self.caller.user.operator else error.plain


class _Offer:
    """The handlers of the server."""

    def __init__(self, services: McpServices) -> None:
        self._services = services
        self._calls = Calls(services.conversations, services.deletion, services.waits)
        search = services.documents.knowledge.search
        self._retriever = create_retriever(search, search, bound_by_meta=True, visible=search.visible)

    async def answer(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Handle a message for its sender. Answers contain no secrets of the domain and no internal errors."""
        visit = _Visit.of(ctx)
        _check_writable(dict(ctx.params or {}))
        redact = self._services.vault.redact.of(visit.domain)
        with log_under(visit.reference), acting_for(visit.caller.user.id):
            try:
                result = await call_next(ctx)
            except (AgenticRagError, ValidationError) as caught:
                exc = _refused_params(caught) if isinstance(caught, ValidationError) else caught
                await visit.note_refusal(exc, ctx.method)
                code = types.INVALID_PARAMS if exc.status in (404, 422) else RPC_REFUSED
                details: Json = redact.json({"code": exc.code, "message": visit.say(exc), "requestId": visit.reference})
                raise MCPError(code, details["message"], details) from caught
            except MCPError:
                raise  # the protocol's own error
            except Exception as exc:
                if (refused := refused_write(exc)) is not None:
                    raise MCPError(RPC_REFUSED, visit.say(refused), {"code": refused.code}) from exc
                log.error("request %s failed", visit.reference, exc_info=exc)
                raise MCPError(types.INTERNAL_ERROR, str(InternalError(visit.reference))) from exc
        if result is None or redact.idle:  # without secrets, the result is spared its conversion to JSON
            return result
        if isinstance(result, BaseModel):
            result = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        redacted: Json = redact.json(result)
        return redacted

    # Tools

    async def list_tools(self, context: _Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        async with Client(self._retriever) as client:
            tools = (await client.list_tools()).tools
        # Without output schemas, because clients would validate errors against them, which have another form.
        offered = [tool.model_copy(update={"output_schema": None}) for tool in tools if tool.name in READING]
        offered += [
            types.Tool(name=ASK, title="Ask the assistant", description=ASK_DESCRIPTION, input_schema=ASK_SCHEMA),
            types.Tool(name=REMEMBER, title="Remember", description=REMEMBER_DESCRIPTION, input_schema=REMEMBER_SCHEMA),
        ]
        visit = _Visit.of(context)
        return types.ListToolsResult(tools=[tool for tool in offered if visit.may(TOOL_SCOPES[tool.name])])

    async def call_tool(self, context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult | Json:
        visit, arguments = _Visit.of(context), params.arguments or {}
        try:
            if params.name in TOOL_SCOPES:
                visit.check_may(TOOL_SCOPES[params.name])
            if params.name == REMEMBER:
                _check_arguments(REMEMBER_SCHEMA, arguments)
                return await self._remember(visit, read_form(RememberArguments, arguments))
            if params.name == ASK:
                _check_arguments(ASK_SCHEMA, arguments)
                return await self._ask(context, visit, read_form(AskArguments, arguments))
            if params.name in READING:
                return await self._read(visit, params.name, arguments)
        except AgenticRagError as exc:
            await visit.note_refusal(exc, params.name)
            return _failure(exc.code, visit.say(exc), {})
        raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name[:100]!r}.")

    async def _read(self, visit: _Visit, tool: str, arguments: Json) -> types.CallToolResult:
        """Call the retriever, bound to the domain and its reader as in a turn."""
        settings, user = await self._services.directory.settings(visit.domain), visit.caller.user
        binding = Binding(
            user=user.id,
            key=user.key_id,
            trusted=user.reads_every_document(visit.domain),
            collection=collection_of(visit.domain),
            top_k=settings.retrieval_top_k,
            threshold=settings.retrieval_threshold,
        )
        meta: Any = binding.to_meta("", "")
        async with Client(self._retriever) as client:
            schemas = {listed.name: listed.input_schema for listed in (await client.list_tools()).tools}
        _check_arguments(schemas[tool], arguments)  # outside the client, which would wrap the exception in a group
        async with Client(self._retriever) as client:
            answer = await client.call_tool(tool, arguments, meta=meta)
        if answer.is_error:
            text = "".join(block.text for block in answer.content if block.type == "text")
            return _failure(InvalidInput.code, without_noise(text.removeprefix(f"Error executing tool {tool}: ")), {})
        # Not unchanged: the metadata names the retriever as the answering server.
        return types.CallToolResult(content=answer.content, structured_content=answer.structured_content)

    async def _remember(self, visit: _Visit, arguments: RememberArguments) -> types.CallToolResult:
        """Save a memory for the domain's role, as `promptx_remember` does in a turn."""
        user, memories = visit.caller.user, self._services.memories
        role, saved = await memories.remember(user, visit.domain, arguments.content, arguments.keywords)
        if saved:
            await self._services.audit.note(change("memory.add", f"{visit.domain}/{role}"))
        message = "Saved." if saved else "This is remembered already."
        return types.CallToolResult(content=[types.TextContent(text=message)], structured_content={"saved": saved})

    async def _ask(self, context: _Context, visit: _Visit, arguments: AskArguments) -> types.CallToolResult | Json:
        """Run one turn. A client that accepts tasks gets the turn as a task, which outlives the request.

        For other clients, a cancelled request or a revoked key interrupts the turn. Without the scope `remember`, the
        assistant cannot change memories in this turn either.
        """
        visit.caller.take_message()
        denied = () if visit.may("remember") else (REMEMBER_TOOL.name, FORGET.name)
        user, question = visit.caller.user, FullQuestion(arguments.question, attended=False, denied_tools=denied)
        if arguments.conversation_id is None:
            call = await self._calls.ask(user, visit.domain, question, keep=True)
        else:
            call = await self._calls.go_on(user, visit.domain, ConversationId(arguments.conversation_id), question)
        if _accepts_tasks(context):
            return {**await self._describe(visit, call.turn_id), "resultType": "task"}
        answer, ended = OpenAiAnswer(), False
        try:
            with anyio.CancelScope() as lifetime, visit.caller.connection(lifetime):
                await self._follow(context, call, answer)
                ended = True
        finally:
            if not ended:  # shielded, because the request is cancelled already
                with anyio.move_on_after(INTERRUPT_SECONDS, shield=True):
                    await self._calls.interrupt(user, call)
        if lifetime.cancelled_caught:
            raise Unauthenticated("The key was revoked.")
        return _result(visit.domain, call, answer)

    async def _follow(self, context: _Context, call: AcceptedCall, answer: OpenAiAnswer) -> None:
        """Read a turn to its end, and report progress to the client."""
        steps = 0
        async with aclosing(self._calls.events(call)) as events:
            async for event in events:
                fields = event.fields()
                answer.take(fields)
                message = progress_text(fields)
                if message:
                    steps += 1
                    await context.session.report_progress(steps, message=message)

    # Tasks

    async def get_task(self, context: _Context, params: TaskParams) -> Json:
        """Return a task's state, and its result once it has ended."""
        visit = _visit_task(context, params)
        stored = await self._find_task(visit, params.task_id)
        described = await self._describe(visit, stored.turn.id)
        if described["status"] == "completed":
            answer = OpenAiAnswer()
            for event in await turn_events(self._services.conversations, visit.caller.user, stored):
                answer.take(event.fields())
            result = _result(visit.domain, AcceptedCall(stored.conversation, stored.turn.id), answer)
            described["result"] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**NEVER_CACHED, **described}

    async def update_task(self, context: _Context, params: TaskParams) -> Json:
        """Acknowledge answers to a task's questions. They are ignored: no task of this server asks."""
        await self._find_task(_visit_task(context, params), params.task_id)
        return {"resultType": "complete"}

    async def cancel_task(self, context: _Context, params: TaskParams) -> Json:
        """Interrupt the turn of a task."""
        visit = _visit_task(context, params)
        stored = await self._find_task(visit, params.task_id)
        await self._calls.interrupt(visit.caller.user, AcceptedCall(stored.conversation, stored.turn.id))
        return {"resultType": "complete"}

    async def _find_task(self, visit: _Visit, task_id: str) -> StoredTurn:
        stored = await self._calls.find_stored(visit.caller.user, TurnId(task_id))
        if stored.conversation.domain_id != visit.domain:
            raise NotFound("turn", task_id)
        return stored

    async def _describe(self, visit: _Visit, turn_id: TurnId) -> Json:
        """Return a task without its result. A failed turn is a completed task, whose result is an error."""
        stored = await self._find_task(visit, turn_id)
        turn, message, updated = stored.turn, "", stored.turn.started_at
        status = {TurnStatus.DONE: "completed", TurnStatus.FAILED: "completed", TurnStatus.INTERRUPTED: "cancelled"}
        if turn.status not in FINISHED:
            for event in await turn_events(self._services.conversations, visit.caller.user, stored):
                fields = event.fields()
                message, updated = progress_text(fields) or message, str(fields["ts"])
        described: Json = {
            "taskId": turn.id,
            "status": status.get(turn.status, "working"),
            "createdAt": turn.started_at,
            "lastUpdatedAt": turn.ended_at or updated,
            "ttlMs": None,
            "pollIntervalMs": POLL_MS,
        }
        return {**described, "statusMessage": message} if message else described

    # Resources

    async def list_resources(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List nothing: there are too many passages, and clients find them by searching."""
        return types.ListResourcesResult(resources=[])

    async def list_templates(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="passage",
            title="A passage of a document",
            uri_template=f"{SCHEME}://{_Visit.of(context).domain}/chunks/{{chunk}}",
            description="As a citation links to it, or by the chunk id of a search.",
            mime_type="text/plain",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        visit, uri = _Visit.of(context), str(params.uri)
        visit.check_may("search", "ask")
        file = _SKILL_FILE.fullmatch(uri)
        if file is not None:
            data = await self._services.skills.read_file(visit.domain, unquote(file[1]), unquote(file[2]))
            return types.ReadResourceResult(contents=[_file_contents(uri, data)])
        named = _URI.fullmatch(uri)
        if named is None or named[1] != visit.domain:
            raise NotFound("resource", uri[:200])
        view = await self._services.views.of(visit.caller.user, visit.domain)
        chunk, _ = await self._services.documents.chunk(visit.domain, named[2], view)
        document = await self._services.documents.get(visit.domain, DocumentId(chunk.document_id), view)
        place = _place(chunk)
        if document.public_uri is not None:
            place["source_uri"] = document.public_uri
        contents = types.TextResourceContents(uri=uri, mime_type="text/plain", text=chunk.text, meta=place)
        return types.ReadResourceResult(contents=[contents])

    # Skills

    async def list_skills(self, context: _Context, params: types.PaginatedRequestParams) -> Json:
        visit = _Visit.of(context)
        offered = await self._services.skills.list_offered(visit.domain) if visit.may("search", "ask") else []
        return {**NEVER_CACHED, "skills": [_skill(skill) for skill in offered]}

    async def get_skill(self, context: _Context, params: types.ReadResourceRequestParams) -> Json:
        visit, uri = _Visit.of(context), str(params.uri)
        visit.check_may("search", "ask")
        for skill in await self._services.skills.list_offered(visit.domain):
            if _skill_uri(skill.name, BODY) == uri:
                return {**NEVER_CACHED, "skill": _skill(skill)}
        raise NotFound("skill", uri[:200])

    # Prompts

    async def list_prompts(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        visit = _Visit.of(context)
        roles = await self._services.roles.list_of(visit.domain) if visit.may("search", "ask") else []
        prompts = [
            types.Prompt(name=role.id, title=role.title or None, description=f"The role {role.title or role.id}.")
            for role in roles
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def get_prompt(self, context: _Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        visit = _Visit.of(context)
        visit.check_may("search", "ask")
        role = await self._services.roles.get(visit.domain, params.name)
        if role.text is None:
            raise NotFound("role", params.name)
        message = types.PromptMessage(role="user", content=types.TextContent(text=role.text))
        return types.GetPromptResult(messages=[message])


def _accepts_tasks(context: _Context) -> bool:
    """Return whether the client declared the tasks extension on this request. Only the newer era has it."""
    offered = context.session.client_capabilities
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and offered is not None and TASKS in (offered.extensions or {})


def _visit_task(context: _Context, params: TaskParams) -> _Visit:
    """Return the visit of a request about a task.

    Raises:
        MCPError: the client did not declare the extension, or its header names another task. The library compares this
            header only for the protocol's own methods.
        InsufficientScope: the token does not permit to ask.
    """
    if not _accepts_tasks(context):
        needed: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        problem = f"This method needs the client capability {TASKS}."
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, problem, needed)
    assert isinstance(context.request, Request)
    if decode_header_value(context.request.headers.get(MCP_NAME_HEADER)) != params.task_id:
        problem = f"The header {MCP_NAME_HEADER} must hold the request's 'taskId'."
        raise MCPError(types.HEADER_MISMATCH, problem)
    visit = _Visit.of(context)
    visit.check_may("ask")
    return visit


def _check_arguments(schema: Json, arguments: Json) -> None:
    """Refuse invalid arguments with the error text that the domain's own model gets."""
    problem = find_problem(schema, arguments, user=False)
    if problem is not None:
        raise InvalidInput("arguments", f"{problem}.")


def _refused_params(error: ValidationError) -> InvalidInput:
    """Return the refusal of a message with invalid parameters."""
    place = error.errors(include_url=False, include_context=False)[0]["loc"]
    return invalid_input(error, "" if place[:1] == ("params",) else "params")


def _check_writable(params: Json) -> None:
    """Refuse parameters that cannot be stored: lone surrogates, extreme nesting, huge integers."""
    try:
        orjson.dumps(params)
    except TypeError as exc:
        raise MCPError(types.INVALID_PARAMS, f"The parameters are no plain JSON: {exc}.") from exc


def _result(domain: str, call: AcceptedCall, answer: OpenAiAnswer) -> types.CallToolResult:
    """Return the answer with its citations; each passage is linked once."""
    ids: Json = {"conversation_id": call.conversation.id, "turn_id": call.turn_id}
    if answer.failure is not None:
        return _failure(answer.failure.code, answer.failure.message, ids)
    if not answer.over:
        raise ServerStopping
    citations = [
        {
            "start": citation.start,
            "end": citation.end,
            "uri": _uri(domain, citation.chunk_id),
            **_describe(citation.source),
        }
        for citation in answer.citations
    ]
    text = answer.text or f"There is no answer: the model ended with {answer.stop_reason!r}."
    return types.CallToolResult(
        content=[types.TextContent(text=text), *_links(domain, answer.references)],
        structured_content={
            **ids,
            "answer": answer.text,
            "stop_reason": answer.stop_reason,
            "citations": citations,
        },
    )


def _links(domain: str, references: Sequence[Json]) -> list[types.ResourceLink]:
    by_chunk = {str(reference["chunkId"]): reference for reference in reversed(references)}
    return [
        types.ResourceLink(
            name=str(reference["documentName"]),
            uri=_uri(domain, chunk),
            title=f"[{reference['number']}] {reference['documentName']}",
            description=str(reference["citedText"]),
            mime_type="text/plain",
        )
        for chunk, reference in reversed(by_chunk.items())
    ]


def _describe(source: Any) -> Json:
    names = {
        "number": "number",
        "documentId": "document_id",
        "documentName": "document_name",
        "chunkId": "chunk_id",
        "citedText": "cited_text",
        "page": "page",
        "cells": "cells",
        "table": "table",
        "scanned": "scanned",
        "scannedBy": "scanned_by",
        "documentDate": "document_date",
        "reviewBy": "review_by",
        "sourceUri": "source_uri",
        "verified": "verified",
    }
    return {name: source[key] for key, name in names.items() if source.get(key) is not None}


def _failure(code: str, message: str, more: Json) -> types.CallToolResult:
    """Return the failure of a call as the model sees it."""
    return types.CallToolResult(
        content=[types.TextContent(text=f"{code}: {message}")],
        structured_content={**more, "error": {"code": code, "message": message}},
        is_error=True,
    )


def _uri(domain: str, chunk_id: str) -> str:
    return f"{SCHEME}://{domain}/chunks/{chunk_id}"


def _place(chunk: Chunk) -> Json:
    """Return the location of a passage."""
    place: Json = {"document_id": chunk.document_id, "document_name": chunk.document_name}
    if chunk.heading_path:
        place["heading_path"] = list(chunk.heading_path)
    if chunk.scanned:
        place["scanned"] = True
    if chunk.scanned_by:
        place["scanned_by"] = chunk.scanned_by
    return place | {name: value for name in ("page", "cells") if (value := getattr(chunk, name)) is not None}


def _skill(skill: OfferedSkill) -> Json:
    """Return the extension's entry of a skill: its front matter, and its files with digests."""
    files = [
        {"uri": _skill_uri(skill.name, file.path), "digest": file.digest, "size": file.size} for file in skill.files
    ]
    return {"uri": _skill_uri(skill.name, BODY), "frontmatter": skill.front_matter, "resources": files}


def _skill_uri(name: str, path: str) -> str:
    return f"skill://{quote(name, safe='')}/{quote(path)}"


def _file_contents(uri: str, data: bytes) -> types.TextResourceContents | types.BlobResourceContents:
    """Return a file unchanged, as text if possible."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return types.BlobResourceContents(uri=uri, blob=b64encode(data).decode())
    kind = "text/markdown" if uri.endswith(".md") else "text/plain"
    return types.TextResourceContents(uri=uri, mime_type=kind, text=text)
