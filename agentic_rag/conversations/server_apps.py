"""Apps of MCP servers, for the people whose tool calls they show: their pages, and their requests to their own server.

Decides whether a domain shows apps of a server (its setting ``mcpApps``), reads the page from the server, and passes
``tools/call`` and ``resources/read`` of the page on to the server. The page belongs to a call: only a person who may
see the call gets it. `agentic_rag.tools.apps` has the rules for the content.

An app is a stranger's program that was fed with a tool's result, so its calls are treated like calls of a model that
has read texts of others. The domain's policy decides on them. A call that needs an approval is not run: the answer to
the request describes the question, and the page sends the call again with the person's answer. Nothing waits on the
server, so nothing can resume after a restart. A running call ends with its request, and when its turn or its
conversation is deleted or the domain stops to show the app.
"""

import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import orjson
from sqlalchemy import Connection

from agentic_rag.access.auditing import denied_call
from agentic_rag.access.keys import Access
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    AgenticRagError,
    ConversationArchived,
    InvalidInput,
    NotFound,
    RateLimited,
    ServerUnavailable,
    StorageError,
)
from agentic_rag.base.events import Answerer, ToolStatus, WaitAction, WaitKind
from agentic_rag.base.ids import TurnId, WaitId
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.base.messages import plain_text
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.token_bucket import TokenBucket
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.waits import Waits
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.definitions import Definitions
from agentic_rag.domains.vault import Vault
from agentic_rag.runtime.core.calls import SECRET_IN_ARGUMENTS, DenialReason, PlannedCall, Policy, plan_call
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.spending import Spending
from agentic_rag.runtime.tool_calls import describe_declined
from agentic_rag.store import conversations, tool_calls
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.conversations import ConversationRecord, ConversationStatus
from agentic_rag.store.database import Database
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.waits import WaitRecord
from agentic_rag.tools.apps import app_meta_of, read_app_page
from agentic_rag.tools.base import InputGiven, RemoteTask, ToolInfo
from agentic_rag.tools.errors import AppNotAllowed, AppToolUnavailable
from agentic_rag.tools.launch.spec import LaunchSpec, spec_of
from agentic_rag.tools.listing import Catalog, exposed_name, title_of
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.oauth.errors import SignInNeeded
from agentic_rag.tools.pool import START_SECONDS, McpPool
from agentic_rag.tools.status import describe_missing

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 60.0
"""Time limit of one request, unless the server's entry has its own."""
REQUESTS_A_SECOND: Final = 2.0
"""Requests of one app to its server, on average."""
REQUESTS_AT_ONCE: Final = 20
"""Requests of one app that may come in a burst."""
DENIED_COST: Final = 5.0
"""A denied call counts as this many requests, because each one is a row of the audit log."""
MOST_RUNNING: Final = 4
"""Requests of one app that run at the same time."""
MOST_ANSWER: Final = 4_000_000
"""Longest answer of a server to an app, in bytes of JSON."""
MOST_ARGUMENTS: Final = 64 * 1024
"""Longest arguments of a call, in bytes of JSON."""
LARGE: Final = 64 * 1024
"""Longer answers are redacted in a thread."""
LOOK_SECONDS: Final = 2.0
"""Between two checks whether a running request's app may still be shown."""
MOST_APPS: Final = 4_096
"""Apps whose rate limits are remembered."""
READ_RESOURCE: Final = "resources/read"
"""The name under which the reading of a resource is stored, in place of a tool's."""


@dataclass(frozen=True, slots=True)
class AppCallApproval:
    """A person's answer to the question of whether an app's call may run, in the form of an answer to a wait."""

    action: WaitAction
    content: Json


@dataclass(frozen=True, slots=True)
class AppAnswer:
    """The answer to an app's call: the server's result, or the question that a person must answer first."""

    result: Json | None = None
    question: WaitRecord | None = None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A call whose app may be shown: its turn, its conversation, and its server as a launch specification."""

    turn: TurnRecord
    call: ToolCallRecord
    conversation: ConversationRecord
    spec: LaunchSpec

    @property
    def key(self) -> tuple[str, str]:
        return self.turn.id, self.call.tool_call_id

    @property
    def seconds(self) -> float:
        timeout = self.spec.entry.timeout_ms
        return REQUEST_SECONDS if timeout is None else timeout / 1000


class ServerApps:
    """Reads pages of apps, and passes their requests to their servers.

    ``definitions`` gives the policy of a conversation, ``access`` says whether a single user has the server to
    themselves, ``waits`` stores approvals, and ``spending`` checks the budgets.
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        conversations: Conversations,
        vault: Vault,
        pool: McpPool,
        lists: ToolLists,
        definitions: Definitions,
        access: Access,
        waits: Waits,
        spending: Spending,
    ) -> None:
        self._db = database
        self._directory = directory
        self._conversations = conversations
        self._vault = vault
        self._pool = pool
        self._lists = lists
        self._definitions = definitions
        self._access = access
        self._waits = waits
        self._spending = spending
        self._rates: OrderedDict[tuple[str, str], TokenBucket] = OrderedDict()
        self._running: Counter[tuple[str, str]] = Counter()

    async def page_of_call(self, user: User, turn_id: TurnId, call_id: str) -> str:
        """Return the HTML of the app that shows the result of a tool call, without the domain's secrets.

        Raises:
            NotFound: the user may not see the turn, there is no such call, or its tool has no app.
            AppNotAllowed: the domain does not show apps of the call's server.
            AppUnreadable, AgenticRagError: the server gave no page.
        """
        opened = await self._open(user, turn_id, call_id)
        uri = await self._uri_of(opened)
        connection = (await self._pool.acquire([opened.spec], START_SECONDS))[opened.spec.name]
        page = read_app_page(uri, await connection.read_resource(uri, opened.seconds))
        return self._redact(opened)(page)

    async def call_tool(
        self,
        user: User,
        turn_id: TurnId,
        call_id: str,
        name: str,
        arguments: Json,
        approval: AppCallApproval | None = None,
    ) -> AppAnswer:
        """Call a tool of an app's own server for the app. ``name``: as the server lists the tool.

        A refusal by the policy or by a person, and a failure of the server, are results with ``isError``.

        Raises:
            NotFound, AppNotAllowed: as `page_of_call`.
            AppToolUnavailable: the server offers no such tool to its apps.
            ConversationArchived, BudgetExceeded: the conversation could not run a model's call either.
            RateLimited: the app asks too often, or too much at once.
            Forbidden, InvalidInput: the approval is not valid, or not this user's to give.
        """
        opened = await self._begin(user, turn_id, call_id)
        tool = await self._tool_of(opened, name)
        if len(orjson.dumps(arguments)) > MOST_ARGUMENTS:
            raise InvalidInput("arguments", f"the JSON is longer than {MOST_ARGUMENTS} bytes.")
        definition, _ = await self._definitions.definition(user, opened.conversation)
        block = {"type": "tool_use", "id": new_id("call"), "name": tool.name, "input": arguments}
        call = plan_call(block, {tool.name: tool}, self._policy(definition), others=True)
        if call.because is not None or self._redact(opened).found_in(arguments):
            return await self._deny(opened, call)
        if call.refusal is not None:
            return AppAnswer(_failure(plain_text(call.refusal.content)))
        if call.approval is not None:
            question = self._question(user, opened, call, tool)
            if approval is not None:
                given = await self._waits.answer_unasked(user, question, approval.action, approval.content)
                if approval.action is not WaitAction.ACCEPT:
                    said = describe_declined(WaitKind.APPROVAL, InputGiven(approval.action, given))
                    return AppAnswer(_failure(plain_text(said.content)))
                arguments = given["arguments"]
            elif call.approval.ask_again or not await self._waits.is_remembered(
                opened.conversation.id, question.subject
            ):
                return AppAnswer(question=question)
            else:
                arguments = call.arguments
        else:
            arguments = call.arguments
        # Checked again: the person may have edited the arguments.
        if self._redact(opened).found_in(arguments):
            return await self._deny(opened, call)
        record = self._record(opened, call.id, tool.name, arguments)
        run = partial(self._run_tool, opened, tool, arguments)
        return AppAnswer(await self._run_watched(user, opened, record, run))

    async def read_resource(self, user: User, turn_id: TurnId, call_id: str, uri: str) -> Json:
        """Return the content of a resource of an app's own server, as the server sent it, without secrets.

        Raises:
            NotFound, AppNotAllowed, ConversationArchived, BudgetExceeded, RateLimited: as `call_tool`.
            RequestFailed, ServerUnavailable, SignInNeeded: the server gave no resource.
            InvalidInput: the resource is too large.
        """
        opened = await self._begin(user, turn_id, call_id)
        await self._uri_of(opened)
        record = self._record(opened, new_id("call"), READ_RESOURCE, {"uri": uri})
        return await self._run_watched(user, opened, record, partial(self._run_read, opened, uri))

    # The rules

    async def _open(self, user: User, turn_id: TurnId, call_id: str) -> _Opened:
        turn = await self._conversations.turn(user, turn_id)
        call = await self._db.read(lambda conn: tool_calls.get(conn, turn_id, call_id))
        conversation = await self._db.read(lambda conn: conversations.get(conn, turn.conversation_id))
        # A call that an app asked for has no app of its own: apps cannot open apps.
        if call is None or call.app_of or conversation is None:
            raise NotFound("tool_call", call_id)
        domain = await self._directory.get(conversation.domain_id)
        settings = await self._directory.settings(domain.id)
        entry = settings.mcp_servers.get(call.server)
        if entry is None or not entry.enabled:
            raise NotFound("mcp_server", call.server)
        if call.server not in settings.mcp_apps:
            raise AppNotAllowed(call.server)
        spec = spec_of(
            entry.with_variables(settings.variables),
            domain=domain.id,
            workspace=domain.workspace,
            user=user.id,
            secrets=await self._vault.values(domain.id),
        )
        return _Opened(turn, call, conversation, spec)

    async def _begin(self, user: User, turn_id: TurnId, call_id: str) -> _Opened:
        """Check a request of an app against the rate limit, the conversation and the budgets."""
        opened = await self._open(user, turn_id, call_id)
        self._take(opened)
        if opened.conversation.status is ConversationStatus.ARCHIVED:
            raise ConversationArchived
        payer = Payer(opened.conversation.domain_id, user.id, user.key_id)
        await self._db.read(lambda conn: self._spending.check_in(conn, payer))
        return opened

    def _take(self, opened: _Opened, amount: float = 1.0) -> None:
        bucket = self._rates.setdefault(opened.key, TokenBucket(REQUESTS_A_SECOND, REQUESTS_AT_ONCE))
        self._rates.move_to_end(opened.key)
        if len(self._rates) > MOST_APPS:
            self._rates.popitem(last=False)
        if amount > 1:
            bucket.spend(time.monotonic(), amount)
        elif seconds := bucket.take(time.monotonic()):
            raise RateLimited(seconds)
        if self._running[opened.key] >= MOST_RUNNING:
            raise RateLimited(1)

    def _policy(self, definition: Definition) -> Policy:
        return Policy(
            definition.tool_policy,
            definition.effects_allowed_by_default,
            alone=lambda: self._access.alone,
            has_person=definition.has_person,
            denies_effects=bool(definition.denies_effects),
        )

    async def _uri_of(self, opened: _Opened) -> str:
        """Return the address of the page of a call's app. A tool that changed since its acceptance has no app.

        Raises:
            NotFound: the server has no such tool, or the tool has no app.
            AgenticRagError: the server cannot be asked now.
        """
        spec, tool = opened.spec, opened.call.tool_name
        connection = (await self._pool.acquire([spec], START_SECONDS))[spec.name]
        accepted, changed = await self._lists.current(spec, await connection.tools(opened.seconds))
        for listed in accepted:
            if listed.name not in changed and exposed_name(spec.name, listed.name, title_of(listed)) == tool:
                uri = app_meta_of(listed).get("resourceUri")
                if isinstance(uri, str):
                    return uri
        raise NotFound("mcp_app", tool)

    async def _tool_of(self, opened: _Opened, name: str) -> ToolInfo:
        """Return a tool that the app may ask for, by its name on the server.

        Raises:
            AppToolUnavailable: there is none.
            NotFound: the call's tool has no app.
        """
        await self._uri_of(opened)  # the app must still be accepted to ask for anything
        spec = opened.spec
        connection = (await self._pool.acquire([spec], START_SECONDS))[spec.name]
        tools, changed = await self._lists.current(spec, await connection.tools(opened.seconds))
        trust, catalog = self._pool.trust(spec, connection), Catalog()
        offered = [listed for listed in tools if listed.name not in spec.entry.exclude]
        catalog.add(
            spec.name,
            "user",
            offered,
            spec.entry.include or None,
            read_only=trust.read_only,
            idempotent=trust.idempotent,
            changed=changed,
            audience="app",
        )
        redact = self._redact(opened)
        for tool in catalog.tools:
            if tool.remote_name == name and not redact.found_in(tool.name):
                return tool
        raise AppToolUnavailable(spec.name, name)

    async def _deny(self, opened: _Opened, call: PlannedCall) -> AppAnswer:
        """Audit a denied call, and return the reason."""
        # Denied calls cost more, so that an app cannot search for a way through the policy.
        self._take(opened, DENIED_COST)
        text = SECRET_IN_ARGUMENTS
        if call.refusal is not None and call.because is not DenialReason.SECRET:
            text = plain_text(call.refusal.content)
        await self._db.write(lambda conn: denied_call(conn, opened.turn, call, opened.call.tool_call_id), durable=True)
        return AppAnswer(_failure(text))

    def _question(self, user: User, opened: _Opened, call: PlannedCall, tool: ToolInfo) -> WaitRecord:
        """Return the question whether an app's call may run, as a wait that is not stored."""
        assert call.approval is not None
        redact, server = self._redact(opened), opened.spec.name
        # An approval for the rest of the conversation must end when the server changes its entry or the tool's text.
        described = [tool.remote_name, tool.description, dict(tool.input_schema)]
        key = to_text(["app", call.approval.answerer, server, opened.spec.entry.hash(), *described])
        named = f"{tool.title!r} ({tool.remote_name})" if tool.title else repr(tool.remote_name)
        request = {
            "title": f"Run {tool.name}?",
            "message": f"The app of {opened.call.tool_name!r} wants to call {named} of the server {server!r}.",
            "server": server,
            "toolName": tool.name,
            "arguments": call.arguments,
            "schema": dict(tool.input_schema),
            "warning": call.approval.warning,
            "sources": [{"kind": "tool", "name": opened.call.tool_name}],
        }
        at = now()
        return WaitRecord(
            id=WaitId(new_id("wait")),
            turn_id=opened.turn.id,
            root_turn_id=opened.turn.id,
            session_id=opened.turn.session_id,
            conversation_id=opened.conversation.id,
            domain_id=opened.conversation.domain_id,
            user_id=user.id,
            tool_call_id=call.id,
            kind=WaitKind.APPROVAL,
            answerer=Answerer(call.approval.answerer),
            request=redact.members({name: value for name, value in request.items() if value is not None}),
            held={"appOf": opened.call.tool_call_id},
            subject=hashlib.sha256(key.encode()).hexdigest(),
            opened_at=at,
            expires_at=at,
        )

    def _redact(self, opened: _Opened) -> Redaction:
        return self._vault.redact.of(opened.conversation.domain_id)

    # The request

    def _record(self, opened: _Opened, ident: str, tool: str, arguments: Json) -> ToolCallRecord:
        return ToolCallRecord(
            turn_id=opened.turn.id,
            tool_call_id=ident,
            session_id=opened.turn.session_id,
            server=opened.spec.name,
            tool_name=tool,
            arguments=self._redact(opened).members(arguments),
            started_at=now(),
            app_of=opened.call.tool_call_id,
        )

    async def _run_watched(
        self, user: User, opened: _Opened, record: ToolCallRecord, run: Callable[[], Awaitable[Json]]
    ) -> Json:
        """Run a request between its stored start and end, as long as its app may be shown."""

        def begin(conn: Connection) -> None:
            if conversations.get(conn, opened.conversation.id) is None:
                raise NotFound("conversation", opened.conversation.id)
            tool_calls.start_of_app(conn, record)

        refused: AgenticRagError | None = None
        result: Json = {}
        status, size, began = ToolStatus.INTERRUPTED, None, time.monotonic()

        async def watch(scope: anyio.CancelScope) -> None:
            nonlocal refused
            while refused is None:
                await anyio.sleep(LOOK_SECONDS)
                try:
                    await self._open(user, opened.turn.id, opened.call.tool_call_id)
                except (NotFound, AppNotAllowed) as exc:
                    refused = exc
                    scope.cancel()
                except AgenticRagError:  # the store does not answer now
                    continue

        self._running[opened.key] += 1
        try:
            await self._db.write(begin, durable=True)
            async with anyio.create_task_group() as group:
                group.start_soon(watch, group.cancel_scope)
                try:
                    result = await self._within_bounds(opened, await run())
                    status = ToolStatus.ERROR if result.get("isError") else ToolStatus.OK
                    size = len(orjson.dumps(result))
                except AgenticRagError as exc:
                    status, refused = ToolStatus.ERROR, exc
                group.cancel_scope.cancel()  # ends `watch`
        finally:
            self._running[opened.key] -= 1
            if not self._running[opened.key]:
                del self._running[opened.key]
            took = round((time.monotonic() - began) * 1000)
            # The end is stored even if the client has gone, which cancels this request.
            with anyio.CancelScope(shield=True):
                try:
                    await self._db.write(lambda conn: tool_calls.end_of_app(conn, record, status, took, size))
                except StorageError as exc:
                    log.warning("the end of the call %s will be stored later: %s", record.tool_call_id, exc)
        if refused is not None:
            raise refused
        return result

    async def _within_bounds(self, opened: _Opened, result: Json) -> Json:
        """Return an answer without secrets. A too long one is replaced by an error."""
        length = len(orjson.dumps(result))
        if length > MOST_ANSWER:
            raise InvalidInput("result", f"the server's answer has {length} bytes; an app can get {MOST_ANSWER}.")
        redact = self._redact(opened)
        if redact.idle:
            return result
        work = partial(redact.members, result)
        cleaned: Json = await anyio.to_thread.run_sync(work) if length > LARGE else work()
        return cleaned

    async def _run_tool(self, opened: _Opened, tool: ToolInfo, arguments: Json) -> Json:
        from mcp_types import CallToolResult  # the pool has loaded the library

        from agentic_rag.tools.content import clean_json
        from agentic_rag.tools.toolset import describe_sign_in

        tasks: list[RemoteTask] = []

        async def note_task(task: RemoteTask) -> None:
            tasks[:] = [task]

        connection = (await self._pool.acquire([opened.spec], START_SECONDS))[opened.spec.name]
        try:
            result = await connection.call(
                tool.remote_name, clean_json(arguments), timeout=opened.seconds, note_task=note_task
            )
        except SignInNeeded as exc:
            return _failure(f"{exc}. {describe_sign_in(exc)}")
        except ServerUnavailable:
            return _failure(describe_missing(opened.spec.name, starting=False))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                for task in tasks:
                    await task.cancel()
            raise
        if not isinstance(result, CallToolResult):
            return _failure("The tool asks a person for input, which a call of an app cannot give. Ask the assistant.")
        shown: Json = clean_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return shown

    async def _run_read(self, opened: _Opened, uri: str) -> Json:
        from agentic_rag.tools.content import clean_json

        connection = (await self._pool.acquire([opened.spec], START_SECONDS))[opened.spec.name]
        read: Any = clean_json(await connection.read_resource(uri, opened.seconds))
        return {"contents": read.get("contents") if isinstance(read.get("contents"), list) else []}


def _failure(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "isError": True}
