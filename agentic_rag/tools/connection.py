"""One MCP server's life: start, serve, lose, restart, stop.

A `Connection` has two sides. Callers in any task use `tools`, `call`, `list_resources` and `read_resource`, which start
the server if necessary. One owner task (`Connection._own`) opens, serves and closes a `mcp.Client` per session, because
an anyio cancel scope must be left in the task that entered it. Both sides share the current `Attempt`.

Everything that a server can do to a caller has a limit here: the start, calls, progress, results and restarts. This
module knows nothing of domains, launch policy, or the tool names that the model sees. The caller passes ``dial``.

::

    stopped ──start──► starting ──► ready ──lost──► degraded ──backoff──► starting
       ▲                  │  │        │                │
       └──── stop, idle ──┘  └────────┴─ 3 in a minute ┴──► failed ──next use after a minute──► starting

A server that requires a sign-in is ``needs_auth``. Each use tries again and raises `SignInNeeded`.
"""

import logging
import math
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import mcp_types as types
from mcp import Client, MCPError
from mcp.client import ClientSession, Transport
from mcp.client.extension import advertise
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.server import MCPServer
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agentic_rag.base.errors import AgenticRagError, ServerSilent, ServerUnavailable
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.silence_timers import SilenceTimer
from agentic_rag.base.token_bucket import TokenBucket
from agentic_rag.tools import remote_tasks
from agentic_rag.tools.apps import APPS, MEDIA_TYPE
from agentic_rag.tools.attempt import Attempt, Dial
from agentic_rag.tools.base import Ask, NoteTask, ProgressSink, RemoteTask, Withdrawal
from agentic_rag.tools.bounds import fit_list
from agentic_rag.tools.elicitation import InputRound
from agentic_rag.tools.errors import RequestFailed, ServerElsewhere
from agentic_rag.tools.exchange import (
    SESSION_ENDED,
    Relay,
    UnreadableAnswer,
    call_tool,
    describe_first_problem,
    describe_unparsed,
    error_result,
    explain,
    is_answering,
    is_session_end,
    list_tools,
    resume_task,
    root_cause,
    with_notes,
)
from agentic_rag.tools.listing import clean, clean_description, exposed_name, title_of
from agentic_rag.tools.live_questions import CallInFlight, LiveQuestions
from agentic_rag.tools.oauth.credentials import Credentials
from agentic_rag.tools.oauth.discovery import Challenge
from agentic_rag.tools.oauth.errors import SignInNeeded
from agentic_rag.tools.remote_tasks import TasksExtension
from agentic_rag.tools.server_answers import ANSWER, NOT_READABLE, DroppedTool
from agentic_rag.tools.status import LISTED_TWICE, AwaitedSignIn, ConnectionState, ConnectionTimeouts, ListedTool, State
from agentic_rag.tools.transports.inbound import BoundedTransport

HARD_CAP = 10
"""A call that keeps reporting progress is abandoned after this many times its timeout."""

TASK_RECONNECTS = 5
"""Number of times that a call whose task runs survives the loss of its server."""
TASK_CANCEL_SECONDS = 2.0
"""Time limit to cancel a server's task."""

TAIL_LINES = 50
"""Number of stderr lines kept, the last ones."""

LISTINGS, LISTINGS_A_SECOND = 6, 0.1
"""Rate limit for listing tools again after change notifications: burst size, and listings per second on average."""

LISTEN_AGAIN = 30.0
"""Seconds before a lost subscription to tool list changes is opened again."""

_CLIENT_INFO = types.Implementation(name="agentic-rag", version="0.1.0")

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Refused(Exception):
    """The server refused a request because of its token, and did not run it."""

    def __init__(self, challenge: Challenge) -> None:
        super().__init__()
        self.challenge = challenge


class _SessionEnded(Exception):
    """The server did not run a request, because it did not know the session any more."""


class Connection:
    """The one client of one server, shared by all its users. A connector creates it; any task may call it.

    The module docstring has the states. Invariants:

    - One task (`_own`) opens and closes sessions. Callers only wait for it, so a cancelled caller breaks no session.
    - Each wait of a caller ends: with the answer, with its timeout, or with the end of the session.
    - A call that may have reached the server is never sent a second time, unless the server refused it or runs it as a
      task.
    - `known_tools` and `dropped` are those of the last complete list, also while the server is down.
    """

    def __init__(
        self,
        name: str,
        dial: Dial,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        *,
        domain: str = "",
        user: str = "",
        entry: str = "",
        in_process: bool = False,
        patience: ConnectionTimeouts | None = None,
        on_state: Callable[["Connection"], None] = lambda connection: None,
        redaction: Redaction | None = None,
        era: str = "auto",
        starts: anyio.Semaphore | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Store the configuration; nothing is started.

        ``spawn`` starts the owner task in the pool's task group. ``on_state`` is called on every state change.
        ``redaction`` removes secrets from the server's texts.

        ``domain`` and ``user`` are labels; empty means shared. ``entry`` is the hash of the server's entry. ``era`` is
        the `mcp.Client` mode that worked before. ``starts`` is acquired while the server starts. ``credentials`` belong
        to a server that people sign in at; the transport that ``dial`` returns sends them.
        """
        self.name = name
        self.domain = domain
        self.user = user
        self.entry = entry
        self.retired = False
        """Whether another connection replaces this one for turns that begin now."""
        self.in_process = in_process
        self.state = State.STOPPED
        self.reason = ""
        self.known_tools: tuple[types.Tool, ...] = ()
        """The tools within bounds of the last list the server gave; kept while the server is down."""
        self.dropped: tuple[DroppedTool, ...] = ()
        """The tools of that list that cannot be read or exceed bounds, each with its reason."""
        self._dial = dial
        self._spawn = spawn
        self._on_state = on_state
        self._redact = redaction or Redaction()
        self._patience = patience or ConnectionTimeouts()
        self.era = era
        self._starts = starts
        self._starting = False
        """Whether this connection holds a slot of ``starts``."""
        self._was_silent = False
        """Whether the last session ended because the server answered neither a call nor a ping."""
        self._credentials = credentials
        self._needed: SignInNeeded | None = None
        """The open sign-in without which the server cannot start or answer."""
        self._elsewhere: ServerElsewhere | None = None
        """Another process has this stateful server. This is no failure, so each use tries again."""
        self._protocol = ""
        """The version that the last session agreed on."""
        self._note = ""
        """The transport's note on how the server is reached."""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._failed_at: deque[float] = deque(maxlen=self._patience.failures)
        """Times of the last failures; see `_circuit_open`."""
        self._changed = anyio.Event()
        """Set, and replaced by a new event, on each change of the state."""
        self._listing = anyio.Lock()
        """Held while the tools are listed, so that concurrent callers cause one listing."""
        self._listings = TokenBucket(LISTINGS_A_SECOND, LISTINGS)
        self._questions = LiveQuestions(name)
        self._attempt: Attempt | None = None
        """The current session; None between two sessions."""
        self._poke = anyio.Event()
        """Set, and replaced, to end the pause before a restart."""
        self._owned = False
        """Whether the owner task runs."""
        self._wanted = False
        """Whether the owner task opens another session after the current one."""
        self._closed = False
        """Whether `stop` was called. No session begins after that."""
        self._used = 0.0
        """Time of the last call, for the idle timeout."""
        self._idle: anyio.CancelScope | None = None
        """The wait for the idle timeout, whose deadline `retire` may shorten."""

    # -- for callers ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring the server up in the background; returns at once. An open circuit stays open."""
        self._used = anyio.current_time()
        self._wanted = True
        if self._owned or self._closed or (self.state is State.FAILED and self._circuit_open()):
            return
        # Set with the spawn and without an await between: two callers must not start two owner tasks.
        self._spawn(self._own)
        self._owned = True
        self._set(State.STARTING)

    async def wait_settled(self) -> None:
        """Wait until the server is ready or has failed. The caller sets the timeout."""
        while self._owned and not (self._attempt and self._attempt.ready):
            await self._changed.wait()

    @property
    def fresh(self) -> bool:
        """Whether the server is ready and `known_tools` equals its current list."""
        return self._attempt is not None and self._attempt.ready and not self._attempt.stale

    async def tools(self, timeout: float) -> tuple[types.Tool, ...]:
        """Return the server's tools, listed again if the server announced a change.

        Raises:
            ServerUnavailable: The server is down, or did not answer within ``timeout`` seconds.
        """
        deadline = anyio.current_time() + timeout
        attempt, session = await self._ready(timeout)
        with anyio.move_on_after(deadline - anyio.current_time()):
            async with self._listing:
                # Over the limit, callers get the last list: a server can announce a change in each answer.
                if attempt.stale and self._listings.take(anyio.current_time()) == 0:
                    await self._list_again(attempt, session)
                return self.known_tools
        attempt.doubt()
        raise ServerUnavailable(self.name, f"its tools were not listed within {timeout:g} s")

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        meta: Mapping[str, Any] | None = None,
        progress: ProgressSink | None = None,
        ask: Ask | None = None,
        answered: InputRound | None = None,
        task: str = "",
        note_task: NoteTask | None = None,
    ) -> types.CallToolResult | InputRound:
        """Call a tool by the name its server knows; a failure of the tool is a result with ``is_error``.

        ``timeout``: seconds without progress, at most `HARD_CAP` times that in total. The clock stops while a person is
        asked (``ask``). On timeout and when the caller is cancelled, the server gets ``notifications/cancelled``. A
        returned `InputRound` holds the server's questions; call again with the answered round as ``answered``.

        A server may run the call as a task, which ``note_task`` stores. ``task`` is the task of an earlier attempt,
        whose result is fetched. If the server is lost while a task runs, the next session asks for the result.

        Raises:
            SignInNeeded: A person has to sign in first, or to grant more; the call was not run.
            ServerUnavailable: The server is down, died, was silent, or answered against the protocol. The call
                may have had its effect.
        """
        task_ids = [task] if task else list[str]()

        async def note(ident: str) -> None:
            task_ids[:] = [ident]
            if note_task is not None:
                await note_task(RemoteTask(ident, partial(self.cancel_task, ident)))

        if task:
            await note(task)
        refused = reconnects = ended = 0
        # A token may have expired or be too narrow; a second refusal of a new token is final. So is a second session
        # that the server does not know.
        while refused < 2:
            try:
                return await self._call(tool, arguments, timeout, meta, progress, ask, answered, task_ids, note)
            except _Refused as exc:  # the server did not run it
                refused += 1
                await self._answer(exc.challenge)
            except _SessionEnded:
                ended += 1
                if ended == 2:
                    raise self._unavailable(SESSION_ENDED) from None
            except ServerSilent:
                if task_ids:
                    await self.cancel_task(task_ids[0])
                raise
            except ServerUnavailable:
                reconnects += 1
                if not task_ids or reconnects > TASK_RECONNECTS:
                    raise
                answered = None  # sent before the server was lost, or asked again by its task
        raise self._unavailable("it refuses the token that was just granted for it")

    async def _call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        timeout: float,
        meta: Mapping[str, Any] | None,
        progress: ProgressSink | None,
        ask: Ask | None,
        answered: InputRound | None,
        task_ids: Sequence[str],
        note: Callable[[str], Awaitable[None]],
    ) -> types.CallToolResult | InputRound:
        """Send a call once. Parameters and errors are those of `call`; ``note`` stores the id of a task."""
        attempt, session = await self._ready(timeout)
        now = anyio.current_time()
        scope = anyio.CancelScope()
        silence = SilenceTimer(scope.cancel, now + timeout)  # the relay postpones it with each progress report
        relay = Relay(silence, timeout, now + HARD_CAP * timeout, progress)
        attempt.calls.add(scope)
        answer: types.CallToolResult | InputRound | ServerUnavailable | _Refused | _SessionEnded | None = None
        try:
            async with anyio.create_task_group() as asking:  # runs the questions to a person during the call
                call = CallInFlight(ask, relay, asking)
                with self._questions.during(call), scope:
                    if task_ids and answered is None:
                        request = resume_task(session, task_ids[0], relay)
                    else:
                        request = call_tool(session, tool, arguments, meta, relay, answered, note)
                    answer = await self._ask_server(attempt, request)
        finally:
            silence.stop()
            attempt.calls.discard(scope)
            # The idle time begins at the end of a call, not at its start: a call may take longer than the limit.
            self._used = anyio.current_time()
            await relay.finish()
        if answer is None:  # the scope was cancelled: by the end of the session, or by the timer
            if attempt.end.is_set():
                raise self._unavailable(attempt.why())
            attempt.doubt()
            raise ServerSilent(self.name, f"no answer to {tool!r} within {timeout:g} s")
        if isinstance(answer, ServerUnavailable | _Refused | _SessionEnded):
            raise answer
        attempt.answered = True
        return answer if isinstance(answer, InputRound) else with_notes(answer, call.notes)

    async def _ask_server(
        self, attempt: Attempt, request: Coroutine[Any, Any, types.CallToolResult | InputRound]
    ) -> "types.CallToolResult | InputRound | ServerUnavailable | _Refused | _SessionEnded":
        """Send a request. Failures are returned, because raising would end the task group with an exception group."""
        try:
            return await request
        except MCPError as exc:
            refusal = self._refusal_in(exc)
            if refusal is not None:
                return refusal
            if is_session_end(exc):
                attempt.lose(SESSION_ENDED)
                return _SessionEnded()
            if attempt.end.is_set():
                return self._unavailable(attempt.why())
            if problem := describe_unparsed(exc):
                return error_result(f"{self.name} {NOT_READABLE} ({problem}).")
            return error_result(exc.error.message or f"The server answered with error {exc.error.code}.")
        except UnreadableAnswer as exc:
            return error_result(f"{self.name} {NOT_READABLE} ({exc}).")
        except ValidationError as exc:
            return error_result(f"{self.name} {NOT_READABLE} ({describe_first_problem(exc)}).")
        except Exception as exc:  # boundary: the protocol library may raise anything for a bad answer
            return self._unavailable(explain(exc))

    async def cancel_task(self, task: str, *, wait: bool = False) -> None:
        """Ask the server to stop a task. Failures are ignored, because a server may finish anyway.

        A server that is not running is left alone. With ``wait``, a starting one gets a moment to become ready.
        """
        session = self._attempt.session if self._attempt is not None else None
        if session is None and not wait:
            return
        with anyio.move_on_after(TASK_CANCEL_SECONDS, shield=True):
            try:
                if session is None:
                    _, session = await self._ready(TASK_CANCEL_SECONDS)
                await remote_tasks.cancel(session, task)
            except Exception as exc:  # boundary: the protocol library may raise anything for a bad answer
                logger.debug("MCP server %s: a task was not cancelled: %s", self.name, explain(exc))

    async def list_resources(self, cursor: str | None, timeout: float) -> tuple[Json, str | None]:
        """Return one page of the server's resources, as the server sent it, and the cursor of the next page.

        ``timeout``: seconds for the whole answer.

        Raises:
            SignInNeeded: A person has to sign in first.
            ServerUnavailable: The server is down, died or was silent.
            RequestFailed: The server answered with an error.
        """

        async def ask(session: ClientSession) -> tuple[Json, str | None]:
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await session.send_request(
                types.ListResourcesRequest(params=params), types.ListResourcesResult, math.inf
            )
            answer = (page.meta or {}).get(ANSWER)
            return answer if isinstance(answer, dict) else {}, page.next_cursor

        return await self._request("resources/list", ask, timeout)

    async def read_resource(self, uri: str, timeout: float) -> Json:
        """Return the content of a resource, as the server sent it. Raises like `list_resources`."""

        async def ask(session: ClientSession) -> Json:
            request = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri))
            result = await session.send_request(request, types.ReadResourceResult, math.inf)
            answer = (result.meta or {}).get(ANSWER)
            return answer if isinstance(answer, dict) else {}

        return await self._request(uri, ask, timeout)

    async def _request(self, request_name: str, ask: Callable[[ClientSession], Awaitable[T]], timeout: float) -> T:
        """Send a request without effects within ``timeout`` seconds.

        It is sent a second time after a sign-in, and if the server ended the session.
        """
        for _ in range(2):
            attempt, session = await self._ready(timeout)
            scope = anyio.CancelScope(deadline=anyio.current_time() + timeout)
            attempt.calls.add(scope)
            try:
                with scope:
                    answer = await ask(session)
                    attempt.answered = True
                    return answer
            except MCPError as exc:
                refusal = self._refusal_in(exc)
                if refusal is not None:
                    await self._answer(refusal.challenge)
                    continue
                if is_session_end(exc):
                    attempt.lose(SESSION_ENDED)
                    continue
                if attempt.end.is_set():
                    raise self._unavailable(attempt.why()) from exc
                raise RequestFailed(self.name, self._redact(explain(exc))) from exc
            except ValidationError as exc:
                reason = f"{NOT_READABLE} ({describe_first_problem(exc)})"
                raise RequestFailed(self.name, self._redact(reason)) from exc
            except AgenticRagError:
                raise
            except Exception as exc:  # boundary: the protocol library may raise anything for a bad answer
                raise self._unavailable(explain(exc)) from exc
            finally:
                attempt.calls.discard(scope)
                self._used = anyio.current_time()
            if attempt.end.is_set():
                raise self._unavailable(attempt.why())
            attempt.doubt()
            raise ServerSilent(self.name, f"no answer to {request_name[:200]!r} within {timeout:g} s")
        raise self._unavailable("it refuses each new token or session")

    @property
    def protocol(self) -> str:
        """The MCP version of the current or last session; empty before the first."""
        return self._protocol

    def withdrawal(self, elicitation: str) -> Withdrawal:
        """Return the `Withdrawal` for an elicitation id. An empty id stands for a question without one."""
        return self._questions.withdrawal(elicitation)

    def _refusal_in(self, exc: MCPError) -> "_Refused | None":
        """Return the refusal of a request that needs a sign-in and was not run; None for any other error."""
        challenge = None if self._credentials is None else self._credentials.challenge_in(exc)
        return None if challenge is None else _Refused(challenge)

    async def _answer(self, challenge: Challenge) -> None:
        """Make a refused request possible again; see `Accounts.answer`."""
        assert self._credentials is not None
        try:
            await self._credentials.answer(challenge)
        except SignInNeeded as exc:
            attempt = self._attempt
            # Nothing works without the sign-in, so the session ends. Other calls in flight may still be answered, and
            # a token that is only too narrow serves the other tools.
            if not challenge.more and attempt is not None and not attempt.calls:
                self._needed = exc
                attempt.finish()
            raise

    def _unavailable(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(self.name, self._redact(reason))

    def restart(self) -> None:
        """Close the current session and start a new one at once, even if the circuit is open."""
        self._failed_at.clear()
        self.start()
        self._interrupt()

    def stop(self) -> None:
        """Close for good; calls in flight end with `ServerUnavailable`."""
        self._closed = True
        self._wanted = False
        self._interrupt()
        self._set(State.STOPPED)  # at once, however long the closing takes

    def retire(self) -> None:
        """Stop soon after the last call: turns that begin now use another connection."""
        self.retired = True
        self._patience = replace(self._patience, idle=self._patience.retired)
        if self._idle is not None:
            self._idle.deadline = min(self._idle.deadline, anyio.current_time() + self._patience.retired)

    async def wait_ended(self) -> None:
        """Wait until the owner task has ended. The caller sets the timeout."""
        while self._owned:
            await self._changed.wait()

    def status(self) -> ConnectionState:
        """Return the present state."""
        tools = tuple(map(self._describe_listed, self.known_tools))
        log = tuple(map(self._redact, self._tail))
        sign_in = open_sign_in(self._needed) if self._needed and self.state is State.NEEDS_AUTH else None
        notes = (self._note,) if self._note and self.state is State.READY else ()
        return ConnectionState(
            self.name,
            self.state,
            self.domain,
            self.user,
            self.reason,
            self._protocol,
            tools,
            log,
            sign_in,
            self._dropped_now(),
            notes,
        )

    def _describe_listed(self, tool: types.Tool) -> ListedTool:
        name, title = clean(tool.name), title_of(tool)
        called_as = name if self.in_process else exposed_name(self.name, tool.name, title)
        hint = tool.annotations is not None and tool.annotations.read_only_hint is True
        return ListedTool(name, clean_description(tool.description or ""), tool.input_schema, title, called_as, hint)

    def _dropped_now(self) -> tuple[DroppedTool, ...]:
        """Return the listed tools that no model sees, each once."""
        counts = Counter(tool.name for tool in self.known_tools)
        doubled = [DroppedTool(name, LISTED_TWICE) for name, count in sorted(counts.items()) if count > 1]
        dropped_tools = [DroppedTool(clean(tool.name), clean(tool.reason)) for tool in self.dropped]
        return tuple(dict.fromkeys((*dropped_tools, *doubled)))

    async def _ready(self, timeout: float) -> tuple[Attempt, ClientSession]:
        self.start()
        if not (self._attempt and self._attempt.ready):
            with anyio.move_on_after(timeout):
                await self.wait_settled()
        attempt = self._attempt
        if attempt is None or attempt.session is None or attempt.end.is_set():
            # While the owner task runs, both may be left from before: it is about to try again.
            if self._needed is not None and not self._owned:
                raise self._needed
            if self._elsewhere is not None and not self._owned:
                raise ServerElsewhere(self.name, self._elsewhere.reason)
            reason = "it was stopped" if self._closed else self.reason
            waited = f"it was not ready after {timeout:g} s" if timeout >= 1 else "it is still starting"
            raise ServerUnavailable(self.name, reason or waited)
        return attempt, attempt.session

    async def _list_again(self, attempt: Attempt, session: ClientSession) -> None:
        attempt.stale = False  # first, so that a change during the listing counts
        listed = False
        try:
            await self._take_list(session)
            listed = True
        except Exception as exc:  # boundary: the protocol library may raise anything for a bad answer
            if isinstance(exc, MCPError):
                if is_session_end(exc):
                    attempt.lose(SESSION_ENDED)
                await self._answer_refused_list(exc)  # raises if a person has to sign in
            raise ServerUnavailable(self.name, f"its tools could not be listed: {explain(exc)}") from exc
        finally:
            attempt.stale = attempt.stale or not listed

    async def _answer_refused_list(self, exc: MCPError) -> None:
        refusal = self._refusal_in(exc)
        if refusal is not None:
            await self._answer(refusal.challenge)

    async def _take_list(self, session: ClientSession) -> None:
        listed, unread = await list_tools(session)
        # A list can hold megabytes of untrusted JSON: a worker thread measures each list once.
        self.known_tools, beyond = await anyio.to_thread.run_sync(fit_list, listed)
        self.dropped = (*unread, *(DroppedTool(name, reason) for name, reason in beyond))

    # -- the owner task ---------------------------------------------------------------------------------------

    async def _own(self) -> None:
        """Run sessions one after the other, until none is wanted, a person must sign in, or a restart is pointless."""
        try:
            while True:
                self._wanted, self._needed, self._elsewhere = False, None, None
                failure, hopeless = ("", False) if self._closed else await self._serve()
                if failure:
                    failure = await self._let_in(failure)
                needed = self._sign_in_needed()
                if needed is not None:
                    self._set(State.NEEDS_AUTH, str(needed))
                    return
                if failure and self._is_elsewhere():
                    self._set(State.FAILED, failure)
                    return
                if failure:
                    self._note_failure()
                    if hopeless or self._circuit_open():
                        self._set(State.FAILED, failure)
                        return
                    self._set(State.DEGRADED, failure)
                    await self._back_off()
                    self._wanted = not self._closed
                if not self._wanted:
                    self._set(State.STOPPED)
                    return
                self._set(State.STARTING, failure)
        except anyio.get_cancelled_exc_class():
            self._set(State.STOPPED, "the process is stopping")
            raise
        finally:
            self._owned = False
            self._wake()

    async def _serve(self) -> tuple[str, bool]:
        """Open, serve and close one session.

        Returns the reason of a loss (empty if this process ended the session) and whether a retry is pointless.
        """
        attempt = self._attempt = Attempt()
        hopeless = False
        try:
            await self._begin_start()
            target = await self._dial(attempt.lose, self._tail)
            await self._run(target, attempt)
        except AgenticRagError as exc:
            self._note_elsewhere(exc)
            attempt.lose(exc.reason if isinstance(exc, ServerUnavailable) else str(exc))
            hopeless = not exc.retryable
        except Exception as exc:  # boundary: servers and transports can provoke any exception
            cause = root_cause(exc)
            self._note_elsewhere(cause)
            logger.info("MCP server %s failed: %s", self.name, self._redact(repr(cause)))
            attempt.lose(cause.reason if isinstance(cause, ServerElsewhere) else explain(exc))
        finally:
            self._end_start()
            self._attempt = None
            attempt.release()
            self._was_silent = attempt.silent and not attempt.answered
            if attempt.session is None:
                self.era = "auto"  # the server may no longer speak its former protocol version
        return "" if attempt.closed_here else attempt.why(), hopeless

    def _note_failure(self) -> None:
        """Count a failure. Silent sessions in a row count together, however long each call waited for its answer."""
        now = anyio.current_time()
        if self._was_silent:
            # A silent server fails once for each call's time limit, which may be longer than the window of the circuit.
            self._failed_at = deque((now for _ in self._failed_at), maxlen=self._failed_at.maxlen)
        self._failed_at.append(now)

    def _note_elsewhere(self, exc: BaseException) -> None:
        if isinstance(exc, ServerElsewhere):
            self._elsewhere = exc

    # The next two are methods because `_own` sets both attributes to None before `_serve`. With attributes, the type
    # checker would believe that they are None afterwards, too, and call the code behind the checks unreachable.

    def _is_elsewhere(self) -> bool:
        return self._elsewhere is not None

    def _sign_in_needed(self) -> SignInNeeded | None:
        return self._needed

    async def _let_in(self, failure: str) -> str:
        """Answer the challenge of a server that refused to start; return the failure, or empty text to start again."""
        challenge = None if self._credentials is None or self._closed else self._credentials.take_last()
        if challenge is None:
            return failure
        try:
            await self._answer(challenge)
        except SignInNeeded as exc:
            self._needed = exc
        except AgenticRagError as exc:
            return exc.reason if isinstance(exc, ServerUnavailable) else str(exc)
        else:
            self._wanted = True
        return ""

    async def _begin_start(self) -> None:
        """Wait for a slot among the servers that start at the same time."""
        if self._starts is not None:
            await self._starts.acquire()
            self._starting = True

    def _end_start(self) -> None:
        if self._starts is not None and self._starting:
            self._starting = False
            self._starts.release()

    async def _run(self, target: Transport | MCPServer, attempt: Attempt) -> None:
        """Initialize a session, list its tools, serve until its end, and close it. Each phase has its own deadline."""

        async def on_message(message: IncomingMessage) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                attempt.stale = True
            elif isinstance(message, types.ElicitCompleteNotification):
                self._questions.complete(message.params.elicitation_id)

        patience = self._patience
        self._note = str(getattr(target, "note", ""))
        if not isinstance(target, MCPServer):
            # A third of the time to initialize: the probe of the newer protocol must leave time for the older one.
            target = BoundedTransport(target, attempt.lose, min(patience.probe, patience.initialize / 3))
        client = Client(
            target,
            mode=self.era,
            read_timeout_seconds=patience.initialize,
            message_handler=on_message,
            elicitation_callback=None if self.in_process else self._questions.elicit,
            client_info=_CLIENT_INFO,
            cache=None,
            extensions=() if self.in_process else (TasksExtension(), advertise(APPS, {"mimeTypes": [MEDIA_TYPE]})),
        )
        attempt.scope.deadline = anyio.current_time() + patience.initialize
        with attempt.scope:
            async with client:
                await self._take_list(client.session)
                attempt.scope.deadline = math.inf
                attempt.session = client.session
                self._protocol = client.protocol_version
                self.era = "auto" if client.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"
                self._end_start()  # the slot is for starting servers only
                async with anyio.create_task_group() as listening:
                    if not self.in_process:
                        listening.start_soon(self._listen, client, attempt)
                        listening.start_soon(self._check_silence, client.session, attempt)
                    await self._until_end(attempt)
                    listening.cancel_scope.cancel()
                attempt.scope.deadline = anyio.current_time() + patience.close
        if attempt.session is None and not attempt.closed_here:
            raise ServerUnavailable(self.name, f"it was not ready after {patience.initialize:g} s")

    async def _until_end(self, attempt: Attempt) -> None:
        """Accept calls until the session is lost, ended, or idle for too long."""
        self._used = anyio.current_time()  # the callers that waited for the start have had no chance to call yet
        self._set(State.READY)
        try:
            while not attempt.end.is_set():
                idle = self._patience.idle
                seconds_left = math.inf if idle is None else self._used + idle - anyio.current_time()
                if seconds_left <= 0 and not attempt.calls:
                    self._wanted = False
                    attempt.finish()
                else:
                    with anyio.move_on_after(seconds_left if seconds_left > 0 else idle) as self._idle:
                        await attempt.end.wait()
        finally:  # also when a failing transport cancels this task: no new call may enter
            attempt.release()
            if not attempt.closed_here:
                # Closing the rest of the server takes seconds, in which the connection is not ready any more.
                self._set(State.DEGRADED, attempt.why())

    async def _check_silence(self, session: ClientSession, attempt: Attempt) -> None:
        """Ping a server that did not answer a request in time; without a pong the session is lost."""
        seconds = self._patience.ping
        while True:
            await attempt.doubted.wait()
            if not await is_answering(session, seconds):
                attempt.silent = True
                attempt.lose(f"it did not answer a call in time, nor a ping within {seconds:g} s")
                return
            attempt.doubted = anyio.Event()

    async def _listen(self, client: Client, attempt: Attempt) -> None:
        """Mark the tool list stale on the server's notification and after a lost subscription, which may miss one."""
        offered = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or offered is None or not offered.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    attempt.stale = True  # the list may have changed between its reading and this subscription
                    async for _ in changes:
                        attempt.stale = True
            except (MCPError, SubscriptionLost, TimeoutError) as exc:
                logger.debug("MCP server %s: subscription lost: %r", self.name, exc)
            await anyio.sleep(LISTEN_AGAIN)

    async def _back_off(self) -> None:
        """Wait before a restart: twice as long after each failure, with jitter. `restart` and `stop` end the wait."""
        delay = self._patience.backoff * 2 ** (len(self._failed_at) - 1) * random.uniform(0.5, 1.5)
        with anyio.move_on_after(delay):
            await self._poke.wait()

    def _circuit_open(self) -> bool:
        """Return whether the server failed so often within the window that it is not restarted automatically."""
        full = len(self._failed_at) == self._patience.failures
        return full and anyio.current_time() - self._failed_at[0] < self._patience.window

    def _interrupt(self) -> None:
        """End the current session, or the pause before the next one."""
        if self._attempt is not None:
            self._attempt.finish()
        # Replaced, so that only a pause that runs now ends, and not the next one.
        self._poke.set()
        self._poke = anyio.Event()

    def _set(self, state: State, reason: str = "") -> None:
        self.state, self.reason = state, self._redact(reason)
        self._wake()
        self._on_state(self)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def open_sign_in(needed: SignInNeeded) -> AwaitedSignIn:
    """Return the details of an open sign-in that a person is shown."""
    return AwaitedSignIn(needed.sign_in, needed.address, needed.begin, needed.who, needed.host, needed.expires_at)
