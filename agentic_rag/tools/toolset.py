"""The tools one agent has during one turn, over the connections of the pool.

Owns the merging of servers into one list and the form of a call's outcome. Knows no policy, no store and no model: the
runtime checks arguments and rights before a call.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from mcp_types import CallToolResult

from agentic_rag.base.errors import ServerSilent, ServerUnavailable
from agentic_rag.base.events import Answerer, ToolStatus, WaitKind
from agentic_rag.base.messages import Block, clean_text, text_block
from agentic_rag.base.telemetry import WorkKind, running_span
from agentic_rag.tools.base import (
    SIGN_IN,
    Ask,
    CallOutcome,
    CallRequest,
    InputNeeded,
    ProgressSink,
    SystemServer,
    ToolInfo,
)
from agentic_rag.tools.connection import Connection
from agentic_rag.tools.content import clean_json, is_large, to_blocks, without_noise
from agentic_rag.tools.elicitation import InputRound, Unfit, answered_round
from agentic_rag.tools.errors import ServerElsewhere
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.listing import Catalog, fold_name
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.oauth.errors import SignInNeeded
from agentic_rag.tools.pool import McpPool
from agentic_rag.tools.status import State, describe_missing

logger = logging.getLogger(__name__)


class ServerToolset:
    """Implements `base.Toolset`; created by `open_toolset`."""

    def __init__(
        self,
        tools: tuple[ToolInfo, ...],
        notices: tuple[tuple[str, str], ...],
        connections: Mapping[str, Connection],
        missing: Mapping[str, bool],
        sign_ins: tuple[SignInNeeded, ...] = (),
    ) -> None:
        """Store the tools. ``sign_ins``: the sign-ins that servers of this toolset wait for."""
        self.sign_ins = sign_ins
        self._tools = tools
        self._notices = notices
        self._connections = connections
        # By identity: a connection replaces the tuple when it lists its tools again.
        self._listed = tuple((connection, connection.known_tools) for connection in connections.values())
        self._missing = missing

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        return self._tools

    @property
    def notices(self) -> tuple[tuple[str, str], ...]:
        return self._notices

    @property
    def missing(self) -> Mapping[str, bool]:
        return self._missing

    @property
    def fresh(self) -> bool:
        if self._missing:
            return False
        for connection, listed in self._listed:
            if connection.known_tools is not listed or not connection.fresh:
                return False
        return True

    async def cancel_task(self, server: str, task: str) -> None:
        """Ask a server to stop a task; see `base.Toolset.cancel_task`."""
        connection = self._connections.get(server)
        if connection is not None:
            await connection.cancel_task(task, wait=True)

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        """Run one call; see `base.Toolset.call`."""
        started = time.perf_counter()
        tool = request.tool
        connection = self._connections.get(tool.server)
        if connection is None:
            return _failure(f"There is no server {tool.server!r}.", started)
        arguments, meta = dict(request.arguments), None
        if connection.in_process:
            meta = request.binding.to_meta(request.turn_id, request.id)
            # For our own servers, null and a missing argument mean the same.
            arguments = {name: value for name, value in arguments.items() if value is not None}
        answered = answered_round(request.given)
        # Other questions of the round are still open. The server gets all answers together.
        if answered is not None and answered.open:
            return _next_question(answered, connection)
        span = running_span().begin(WorkKind.MCP, tool.remote_name, server=tool.server, origin=tool.origin)
        if span.traceparent:  # W3C Trace Context, under the names that MCP defines for it
            meta = {**(meta or {}), "traceparent": span.traceparent}
        failed = "cancelled"
        try:
            result = await connection.call(
                tool.remote_name,
                clean_json(arguments),
                timeout=timeout,
                meta=meta,
                progress=progress,
                ask=ask,
                answered=answered,
                task=request.task,
                note_task=request.note_task,
            )
            failed = "tool_error" if isinstance(result, CallToolResult) and result.is_error else ""
        except (ServerSilent, ServerElsewhere) as exc:
            failed = exc.code
            return _failure(str(exc), started)
        except SignInNeeded as exc:  # its address is for that person only, not for a model
            failed = exc.code
            if ask is not None:
                return sign_in_question(exc)
            return _failure(f"{exc}. {describe_sign_in(exc)}", started)
        except ServerUnavailable as exc:  # the reason is for admins, who see it in the server's state
            failed = exc.code
            logger.info("a call of %s failed: %s", tool.server, exc.reason)
            starting = connection.state is State.STARTING
            admin = request.binding.admin and not starting
            return _failure(str(exc) if admin else describe_missing(tool.server, starting=starting), started)
        finally:
            span.note(protocol=connection.protocol)
            span.end(failed)
        if isinstance(result, InputRound):
            return _next_question(result, connection)
        read = partial(_read_content, result, tool.remote_name)
        large = is_large(result.content, result.structured_content)
        content, structured = await anyio.to_thread.run_sync(read) if large else read()
        status = ToolStatus.ERROR if result.is_error else ToolStatus.OK
        return CallOutcome(status, content, structured, _elapsed_ms(started), large)


async def open_toolset(
    pool: McpPool,
    servers: Iterable[SystemServer | LaunchSpec],
    wait: float = 5.0,
    *,
    lists: ToolLists | None = None,
) -> ServerToolset:
    """Start our own servers and the users' in parallel and return their tools as one list.

    ``lists`` stores the lists of users' servers and their accepted versions. Without it, each server's current list
    counts.

    Waits at most about ``wait`` seconds. A server that is not up by then keeps the tools it last listed and is named in
    ``notices``; calls wait for it. If the names of two entries look alike, the lower one is left out: system servers
    rank above built-in ones, and those above a user's.
    """
    servers = list(servers)
    catalog = Catalog()
    chosen: dict[str, SystemServer | LaunchSpec] = {}
    for server in sorted(servers, key=_rank):  # stable: equal ranks keep their order
        if fold_name(server.name) in chosen:
            catalog.notices.append((server.name, "left out: the name belongs to another server"))
        else:
            chosen[fold_name(server.name)] = server
    deadline = anyio.current_time() + wait
    connections = await pool.acquire(chosen.values(), wait)
    problems: dict[str, str] = {}
    needed: list[SignInNeeded] = []

    async def refresh(connection: Connection) -> None:
        try:
            # The start of the servers has used part of the time.
            await connection.tools(max(0.0, deadline - anyio.current_time()))
        except SignInNeeded as exc:
            needed.append(exc)
            problems[connection.name] = f"{exc}. {describe_sign_in(exc)}"
        except ServerUnavailable as exc:
            problems[connection.name] = exc.reason

    stale = [connection for connection in connections.values() if not connection.fresh]
    if stale:
        async with anyio.create_task_group() as refreshing:
            for connection in stale:
                refreshing.start_soon(refresh, connection)
    for server in chosen.values():
        if server.name in problems:
            catalog.notices.append((server.name, problems[server.name]))
        connection = connections[server.name]
        if isinstance(server, SystemServer):
            catalog.add(server.name, server.origin, connection.known_tools, server.tools)
        else:
            await _add_user_tools(catalog, pool, server, connection, lists)
    missing = {name: connections[name].state is State.STARTING for name in problems}
    return ServerToolset(catalog.tools, tuple(catalog.notices), connections, missing, tuple(needed))


async def list_known_tools(
    pool: McpPool, own: Iterable[SystemServer], specs: Iterable[LaunchSpec], lists: ToolLists
) -> tuple[ToolInfo, ...]:
    """Return the tools a turn would have, without starting users' servers: those of their last lists or tests."""
    own_toolset, catalog = await open_toolset(pool, own), Catalog()
    for spec in specs:
        tools, changed = await lists.list_expected(spec)
        catalog.add(spec.name, "user", tools, spec.entry.include or None, changed=changed)
    return (*own_toolset.tools, *catalog.tools)


def _rank(server: SystemServer | LaunchSpec) -> int:
    return ("system", "builtin").index(server.origin) if isinstance(server, SystemServer) else 2


async def _add_user_tools(
    catalog: Catalog, pool: McpPool, spec: LaunchSpec, connection: Connection, lists: ToolLists | None
) -> None:
    tools, changed = connection.known_tools, frozenset[str]()
    if lists is not None:
        listed = tools
        tools, changed = await lists.current(spec, listed if connection.fresh else None)
        if not tools and listed:  # a server that announces a change after each list is never fresh
            tools, changed = await lists.current(spec, listed)
    trust = pool.trust(spec, connection)
    catalog.add(
        spec.name,
        "user",
        tools,
        spec.entry.include or None,
        read_only=trust.read_only,
        idempotent=trust.idempotent,
        changed=changed,
    )


def describe_sign_in(needed: SignInNeeded) -> str:
    """Return a text about a required sign-in that any reader may see."""
    actor = "You sign in" if needed.who == "owner" else "An admin of the domain signs in"
    return f"{actor} at {needed.begin}, and the call can be made again."


def sign_in_question(needed: SignInNeeded) -> InputNeeded:
    """Return the question that asks a person to sign in. The call resumes automatically after the sign-in."""
    account_text = "your account" if needed.who == "owner" else "an account of the domain"
    return InputNeeded(
        WaitKind.URL,
        f"Sign in at {needed.server}",
        f"{needed.reason.capitalize()}. {needed.server!r} asks for {account_text} at {needed.host}: open the address.",
        url=needed.begin,
        held={SIGN_IN: needed.sign_in},
        answerer=Answerer.OWNER if needed.who == "owner" else Answerer.ADMIN,
    )


def _read_content(result: CallToolResult, tool: str) -> tuple[tuple[Block, ...], Any]:
    """Return the blocks and the structured content of a result, cleaned."""
    structured = clean_json(result.structured_content)
    content = to_blocks(result.content, structured)
    return tuple(_plain(block, tool) for block in content) if result.is_error else content, structured


def _plain(block: Block, tool: str) -> Block:
    """Return a block of an error without texts that the libraries add."""
    if block["type"] != "text":
        return block
    failed = f"Error executing tool {tool}"
    text = "The tool failed; it does not say why." if block["text"] == failed else block["text"]
    return {**block, "text": without_noise(text.removeprefix(f"{failed}: "))}


def _next_question(input_round: InputRound, connection: Connection) -> CallOutcome | InputNeeded:
    """Return the next question for a person, or an error. If one question of a round is unfit, none is asked."""
    question = (
        input_round.unfit(connection.name) or input_round.question(connection.name) or Unfit("it asks for nothing")
    )
    if isinstance(question, Unfit):
        return CallOutcome(ToolStatus.ERROR, (text_block(question.text),))
    return replace(question, withdrawal=connection.withdrawal(input_round.elicitation))


def _failure(text: str, started: float) -> CallOutcome:
    return CallOutcome(ToolStatus.ERROR, (text_block(clean_text(text)),), None, _elapsed_ms(started))


def _elapsed_ms(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)
