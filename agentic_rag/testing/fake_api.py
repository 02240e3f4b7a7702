"""`FakeMessagesAPI`: the Messages API over real HTTP, from a script.

Owns the endpoints, their authentication, faults and their effect on a connection, and the server's life cycle.
`admission` decides about refusals, `steps` describes the answers, and `frames` encodes them.

    async with FakeMessagesAPI(use("search_documents", query="…"), say("Found.", Cite(0))) as api:
        model = AnthropicModel(api.key, api.url)

or as a process (prints ``{"url": …}`` on a line when it accepts connections; ends on SIGTERM or SIGINT)::

    python -m agentic_rag.testing.fake_api --port 8081 --script FILE.json [--speed DELTAS_PER_SECOND]
    python -m agentic_rag.testing.fake_api --demo DELTAS [--speed DELTAS_PER_SECOND]

The JSON form of a script file::

    {"steps": [REPLY, …],            answered in this order
     "then": REPLY?,                 answers every call after them; without it such a call is a 500
     "api_key": "…"?}                the only key accepted; without it any key is

``REPLY`` is a step (see `steps`) with two more keys: ``"fault": {…}?`` (the fields of `Fault`) and ``"rate": deltas per
second?``; or ``{"demo": {"deltas": N, "text": "…"?}, …}``, an answer of N text deltas.
"""

import argparse
import asyncio
import json
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentic_rag.base.json_form import Json
from agentic_rag.models.anthropic.request import search_results
from agentic_rag.models.base import MessageCompleted, ModelEvent, TextDelta, ThinkingDelta
from agentic_rag.testing.admission import Admission, Admitted, Inadmissible
from agentic_rag.testing.batches import FakeBatch, batch_problems
from agentic_rag.testing.bindings import Signer
from agentic_rag.testing.frames import PING, AnswerFacts, error_json, frame, frames, message_json
from agentic_rag.testing.model_rules import rules_of
from agentic_rag.testing.prompt_cache import CacheDiagnoses, Clock, PromptCache
from agentic_rag.testing.steps import Say, Step, Think, step_events, step_from_json

MAX_BODY = 32 * 1024 * 1024
KEEPALIVE_SECONDS = 75
"""The service's time limit for idle connections; uvicorn's own 5 s would race with steps."""
CLOSE_SECONDS = 5.0
"""Time limit for running answers to notice that the server closes."""

DEMO_TEXT = "The quick brown fox jumps over the lazy dog. "
_DELTA = b"event: content_block_delta"

_STATUS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Events are counted as SSE frames of the answer from its start, bytes in its body.

    ========================  ====================================================================================
    ``status``                an HTTP error instead of an answer; ``retry_after`` is its header, ``error_type`` and
                              ``message`` its body's
    ``refuse``                the connection is closed without an answer
    ``drop_at``               after so many bytes the connection is closed
    ``end_at``                after so many bytes the body ends, as if it were complete
    ``error_after``           after so many events an ``error`` event of ``error_type`` ends the body
    ``garbage_after``         after so many events comes one whose data is ``garbage``, then the rest
    ``silent_after``          after so many events nothing more is sent, the connection stays open;
                              with ``ping_seconds`` pings continue
    ``chunk``                 the body is written in pieces of so many bytes
    ``newline``               ends every line: LF, CRLF or CR
    ``content_type``          the declared type of the body
    ========================  ====================================================================================
    """

    status: int | None = None
    retry_after: str | None = None
    refuse: bool = False
    drop_at: int | None = None
    end_at: int | None = None
    error_after: int | None = None
    error_type: str = ""
    message: str = ""
    garbage_after: int | None = None
    garbage: str = '{"type": "content_block_del'
    silent_after: int | None = None
    ping_seconds: float | None = None
    chunk: int | None = None
    newline: str = "\n"
    content_type: str = "text/event-stream; charset=utf-8"


NO_FAULT = Fault()


@dataclass(frozen=True, slots=True)
class Reply:
    """A step with its fault and its pace (``rate`` deltas per second; None: the server's, 0: all at once)."""

    step: Step
    fault: Fault = NO_FAULT
    rate: float | None = None


Answer = Step | Reply | Fault

Scripted = Answer | Callable[[Json], Answer]
"""A callable gets the request's JSON."""


def as_reply(answer: Answer) -> Reply:
    """Return the answer as a `Reply`; a bare `Fault` gets a short text as its step."""
    if isinstance(answer, Reply):
        return answer
    return Reply(answer) if isinstance(answer, Step) else Reply(demo(8), answer)


def demo(deltas: int, text: str = DEMO_TEXT) -> Step:
    """Return a step of one text block in ``deltas`` pieces, which repeat the words of ``text``."""
    words = [word + " " for word in text.split()]
    pieces = tuple(words[number % len(words)] for number in range(deltas))
    return Step((Say("".join(pieces), pieces=pieces),))


def reply_from_json(value: Json) -> Reply:
    """Return the reply for its JSON form (see the module).

    Raises:
        KeyError, TypeError, ValueError: The value does not have that form.
    """
    unknown = value.keys() - {"blocks", "stop_reason", "usage", "fault", "rate", "demo"}
    if unknown:
        raise ValueError(f"unknown keys in a step: {sorted(unknown)}")
    step = demo(**value["demo"]) if "demo" in value else step_from_json(value)
    return Reply(step, Fault(**value.get("fault", {})), value.get("rate"))


@dataclass(slots=True)
class ReceivedCall:
    """One call: the request's JSON, its headers, and the end of its answer.

    Names of headers are in lower case. ``x-peer`` is added: the client's address and port, which distinguish
    connections. ``left`` is set if the client closed the connection before the answer was complete; ``done`` in any
    case.
    """

    request: Json
    headers: Mapping[str, str]
    left: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)


class RefusedCall(Exception):
    def __init__(self, status: int, message: str, kind: str = "", retry_after: str | None = None) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.kind = kind or _STATUS_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        self.retry_after = retry_after


class FakeService:
    """A service over real HTTP that answers calls from its script, in order of arrival.

    ``then`` answers all calls after the script. ``key``: the only accepted key (None: any). ``rate``: deltas per second
    (0: as fast as they are read). ``calls`` holds all requests that were JSON, ``requests`` their bodies, and
    ``refused`` the problems of refused requests. Leaving the context fails if a step was not asked for, if there were
    calls beyond the script, or if a scripted callable failed. `assert_consumed` does the same on demand.
    """

    def __init__(self, script: Sequence[Scripted], then: Scripted | None, key: str | None, rate: float) -> None:
        self._script = list(script)
        self._then = then
        self._key = key
        self._rate = rate
        self._answered = 0
        self._failures: list[str] = []
        self._server: uvicorn.Server | None = None
        self.calls: list[ReceivedCall] = []
        self.refused: list[str] = []
        self.url = ""
        self.app = Starlette(routes=self._routes())

    def _routes(self) -> list[Route]:
        raise NotImplementedError

    @property
    def key(self) -> str:
        """A key that is accepted."""
        return self._key or "any-key"

    @property
    def requests(self) -> list[Json]:
        return [call.request for call in self.calls]

    def assert_consumed(self) -> None:
        """Fail unless every step was asked for and none beyond them."""
        assert not self._failures, f"the script failed: {self._failures}"
        left = len(self._script) - self._answered
        assert left <= 0, f"{left} of {len(self._script)} scripted steps were not asked for"

    def _reply(self, body: Json) -> Reply:
        scripted = self._script[self._answered] if self._answered < len(self._script) else self._then
        self._answered += 1
        if scripted is None:
            self._failures.append(f"call {self._answered} of {len(self._script)} scripted steps")
            raise RefusedCall(500, "the script has no more steps")
        try:
            return as_reply(scripted(body) if callable(scripted) else scripted)
        except AssertionError as exc:
            self._failures.append(str(exc))
            raise RefusedCall(500, f"the script failed: {exc}") from exc

    # --- the server -----------------------------------------------------------------------------------------

    async def start(self, port: int = 0) -> None:
        """Listen on loopback; ``url`` is set when this returns.

        Raises:
            OSError: The port is in use.
        """
        # Without the protocol number asyncio leaves Nagle's algorithm on, which delays small writes by 40 ms.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(1024)
        config = uvicorn.Config(
            self.app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEPALIVE_SECONDS,
        )
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        self._server = server
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port and every connection. uvicorn's own shutdown would wait for slow answers."""
        server, self._server = self._server, None
        if server is None:
            return
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        if server.server_state.tasks:
            await asyncio.wait(set(server.server_state.tasks), timeout=CLOSE_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if error is None:  # a test that failed already has its reason
            self.assert_consumed()


class FakeMessagesAPI(FakeService):
    """The Messages API; see `FakeService`.

    ``also_allowed``: further top-level keys, for an older endpoint.
    ``unknown``: parameters that the endpoint does not know, for a gateway: ``diagnostics``, ``output_config.format``.
    ``cache_minimum``: tokens from which a prefix is cached, in place of the model's.
    ``clock``: the cache's.
    ``enforced``: whether thinking with a changed prefix is an error, as it is for new accounts.
    ``models_api``: whether ``GET /v1/models/{id}`` exists.
    ``batches_api``: whether the endpoints of batches exist. A batch runs until `end_batches`.
    ``context_window``: tokens, in place of the model's.

    ``dropped`` is the thinking that was removed from requests. A message that was answered with ``stop_reason:
    refusal`` is refused again, without a step, as long as a request contains it.
    """

    def __init__(
        self,
        *script: Scripted,
        then: Scripted | None = None,
        key: str | None = "test-key",
        rate: float = 0,
        also_allowed: Collection[str] = (),
        unknown: Collection[str] = (),
        cache_minimum: int | None = None,
        clock: Clock | None = None,
        enforced: bool = True,
        models_api: bool = True,
        batches_api: bool = True,
        context_window: int | None = None,
    ) -> None:
        self._models_api = models_api
        self._batches_api = batches_api
        self.batches: dict[str, FakeBatch] = {}
        super().__init__(script, then, key, rate)
        self._admission = Admission(enforced, also_allowed, context_window, unknown)
        self._cache = PromptCache(1024, clock)
        self._cache_minimum = cache_minimum
        self._diagnoses = CacheDiagnoses()
        self.dropped: list[Json] = []
        self.sticky = 0
        """Calls that were refused because they contained an earlier refusal."""
        self.app.add_exception_handler(404, self._not_found)

    def _routes(self) -> list[Route]:
        routes = [Route("/v1/messages", self._messages, methods=["POST"])]
        if self._batches_api:
            path = "/v1/messages/batches"
            routes += [
                Route(path, self._create_batch, methods=["POST"]),
                Route(f"{path}/{{batch}}", self._batch, methods=["GET"]),
                Route(f"{path}/{{batch}}/cancel", self._batch, methods=["POST"]),
                Route(f"{path}/{{batch}}/results", self._batch, methods=["GET"]),
            ]
        if self._models_api:
            routes.append(Route("/v1/models/{model}", self._model, methods=["GET"]))
        return routes

    # --- batches --------------------------------------------------------------------------------------------

    def end_batches(self, *, expired: int = 0) -> None:
        """End every batch. The script answers its requests, except the last ``expired`` ones and canceled batches."""
        for batch in self.batches.values():
            if batch.results is None:
                batch.end(self._batch_result, expired)

    def _batch_result(self, params: Json) -> Json:
        """Return the result of one request of a batch, after the checks of any other request."""
        try:
            admitted = self._admit(params, [])
            reply = self._reply(params) if not admitted.refuses else Reply(Step(stop_reason="refusal"))
            if reply.fault.status is not None:
                fault = reply.fault
                raise RefusedCall(reply.fault.status, fault.message or "scripted", fault.error_type)
            events, long_writes = self._events(admitted, reply)
        except RefusedCall as refused:
            return {"type": "errored", "error": error_json(refused.kind, refused.message, "req_0")}
        facts = AnswerFacts(tuple(admitted.transformations), long_writes, reply.step.category)
        message = message_json(events, f"msg_{uuid.uuid4().hex[:24]}", facts)
        return {"type": "succeeded", "message": message}

    async def _create_batch(self, request: Request) -> Response:
        try:
            body = await self._accept(request)
            reasons = batch_problems(body)
            if reasons:
                self.refused += reasons
                raise RefusedCall(400, reasons[0])
        except RefusedCall as refused:
            return JSONResponse(error_json(refused.kind, refused.message, "req_0"), status_code=refused.status)
        batch = FakeBatch(f"msgbatch_{uuid.uuid4().hex[:24]}", body["requests"])
        self.batches[batch.id] = batch
        return JSONResponse(batch.to_json(self.url))

    async def _batch(self, request: Request) -> Response:
        """Show or cancel a batch, or answer its results."""
        batch = self.batches.get(request.path_params["batch"])
        try:
            self._authenticate(request)
            if batch is None:
                raise RefusedCall(404, "Message batch not found")
            if request.url.path.endswith("/results"):
                if batch.results is None:
                    raise RefusedCall(404, "The batch has not ended; its results are not available yet")
                return Response(batch.result_lines(), media_type="application/x-jsonl")
            if request.url.path.endswith("/cancel"):
                if batch.results is not None:
                    raise RefusedCall(400, "The batch has ended already")
                batch.cancel()
        except RefusedCall as refused:
            return JSONResponse(error_json(refused.kind, refused.message, "req_0"), status_code=refused.status)
        return JSONResponse(batch.to_json(self.url))

    # --- one call -------------------------------------------------------------------------------------------

    async def _messages(self, request: Request) -> Response:
        request_id = f"req_{uuid.uuid4().hex[:24]}"
        try:
            body = await self._accept(request)
            peer = f"{request.client.host}:{request.client.port}" if request.client else ""
            # Recorded before the checks: a test can look at a request that the service refused.
            call = ReceivedCall(body, {**request.headers, "x-peer": peer})
            self.calls.append(call)
            betas = [beta.strip() for beta in request.headers.get("anthropic-beta", "").split(",")]
            admitted = self._admit(body, betas)
            reply = self._reply(body) if not admitted.refuses else Reply(Step(stop_reason="refusal"))
            if reply.fault.status is not None:
                fault = reply.fault
                raise RefusedCall(reply.fault.status, fault.message or "scripted", fault.error_type, fault.retry_after)
            return self._answer(call, admitted, reply, request_id)
        except RefusedCall as refused:
            headers = {"request-id": request_id}
            if refused.retry_after is not None:
                headers["retry-after"] = refused.retry_after
            error = error_json(refused.kind, refused.message, request_id)
            return JSONResponse(error, status_code=refused.status, headers=headers)

    def _admit(self, body: Json, betas: list[str]) -> Admitted:
        try:
            admitted = self._admission.admit(body, betas)
        except Inadmissible as exc:
            self.refused += exc.reasons
            raise RefusedCall(exc.status, exc.reasons[0]) from exc
        self.dropped += admitted.transformations
        self.sticky += admitted.refuses  # a bool counts as 0 or 1
        return admitted

    async def _model(self, request: Request) -> Response:
        """Answer ``GET /v1/models/{id}``."""
        name = request.path_params["model"]
        rules = rules_of(name)
        try:
            self._authenticate(request)
        except RefusedCall as refused:
            return JSONResponse(error_json(refused.kind, refused.message, "req_0"), status_code=refused.status)
        if rules is None:
            return JSONResponse(error_json("not_found_error", f"model: {name}", "req_0"), status_code=404)
        return JSONResponse(rules.to_json())

    def _authenticate(self, request: Request) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not key or (self._key is not None and key != self._key):
            raise RefusedCall(401, "invalid x-api-key")
        if not request.headers.get("anthropic-version"):
            raise RefusedCall(400, "anthropic-version: header is required")

    async def _accept(self, request: Request) -> Json:
        """Return the request's JSON object, if key, version and form are right."""
        self._authenticate(request)
        body = await request.body()
        if len(body) > MAX_BODY:
            raise RefusedCall(413, "Request exceeds the maximum size")
        try:
            parsed = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError) as exc:
            raise RefusedCall(400, f"The request body is not valid JSON: {exc}") from exc
        if not isinstance(parsed, dict):
            raise RefusedCall(400, "request: Input should be a valid dictionary")
        return parsed

    def _answer(self, call: ReceivedCall, admitted: Admitted, reply: Reply, request_id: str) -> Response:
        events, long_writes = self._events(admitted, reply)
        message_id = f"msg_{uuid.uuid4().hex[:24]}"
        diagnosis = self._diagnoses.diagnose(call.request, message_id)
        wants_diagnosis = call.request.get("diagnostics") is not None
        facts = AnswerFacts(
            tuple(admitted.transformations), long_writes, reply.step.category, diagnosis, wants_diagnosis
        )
        # An answer that repeats an earlier refusal adds nothing: its message is known to be refused.
        if reply.step.stop_reason == "refusal" and not admitted.refuses:
            self._admission.refuse(call.request)
        if reply.fault.refuse:
            return HungUp()
        if not call.request.get("stream", False):
            call.done.set()
            return JSONResponse(message_json(events, message_id, facts), headers={"request-id": request_id})
        rate = self._rate if reply.rate is None else reply.rate
        return FaultyStream(
            frames(events, message_id, facts), reply.fault, rate, request_id=request_id, left=call.left, done=call.done
        )

    def _events(self, admitted: Admitted, reply: Reply) -> tuple[list[ModelEvent], int]:
        """Return the events of an answer, and how many tokens the cache keeps for an hour."""
        body = admitted.request
        lists = [message for message in body["messages"] if isinstance(message["content"], list)]
        step = reply.step
        if not admitted.thinks:  # a script may contain thinking that its model would not send
            step = replace(step, blocks=tuple(block for block in step.blocks if not isinstance(block, Think)))
        try:
            events = step_events(
                step,
                model=body["model"],
                results=search_results(lists),
                signer=Signer(body) if admitted.rules else None,
                display="summarized" if admitted.shows_thinking else "omitted",
            )
        except AssertionError as exc:
            self._failures.append(str(exc))
            raise RefusedCall(500, f"the script failed: {exc}") from exc
        completed = events[-1]
        if step.usage is not None or not isinstance(completed, MessageCompleted):
            return events, 0
        # One token for each delta, as `step_events` counts them too.
        output = sum(isinstance(event, TextDelta | ThinkingDelta) for event in events)
        least = self._cache_minimum or (admitted.rules.cache_minimum if admitted.rules else None)
        counted = self._cache.count(body, max(1, output), least)
        return [*events[:-1], MessageCompleted(completed.stop_reason, counted.usage)], counted.long_writes

    async def _not_found(self, request: Request, exc: Exception) -> Response:
        return JSONResponse(error_json("not_found_error", f"Not found: {request.url.path}", "req_0"), status_code=404)


class _Protocol(HttpToolsProtocol):
    """Lets an answer close its connection: no ASGI message does that."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"hang_up": {"close": self.transport.close}}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


# --- faults on a connection ----------------------------------------------------------------------------------


def hang_up(scope: Scope) -> None:
    """Close the connection after the written bytes, even if the response is incomplete."""
    scope["extensions"]["hang_up"]["close"]()


class HungUp(Response):
    """Closes the connection instead of answering."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hang_up(scope)


class FaultyStream(Response):
    """An SSE answer. ``left`` is set if the client leaves before the end, ``done`` when nothing follows."""

    def __init__(
        self,
        frames: Sequence[bytes],
        fault: Fault,
        rate: float,
        *,
        request_id: str,
        left: anyio.Event,
        done: anyio.Event,
    ) -> None:
        headers = {"request-id": request_id, "cache-control": "no-cache", "content-type": fault.content_type}
        super().__init__(headers=headers)
        # Starlette has counted an empty body. Without a length uvicorn sends chunks, and a body can be cut off.
        del self.headers["content-length"]
        self._frames = _with_faults(frames, fault, request_id)
        self._fault = fault
        self._rate = rate
        self._left = left
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                await self._send(scope, send)
                group.cancel_scope.cancel()
        finally:
            self._done.set()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left.set()
        scope.cancel()

    async def _send(self, scope: Scope, send: Send) -> None:
        fault = self._fault
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        cut = fault.drop_at if fault.drop_at is not None else fault.end_at
        if cut is not None or fault.chunk is not None:
            # Cuts and pieces count bytes of the whole body, so they do not follow frames and ignore the rate.
            body = b"".join(self._frames)[:cut]
            size = fault.chunk or max(1, len(body))
            for at in range(0, len(body), size):
                await self._write(send, body[at : at + size])
            await anyio.lowlevel.checkpoint()
        else:
            await self._send_paced(send)
        if fault.silent_after is not None:
            await self._silence(send)
        if fault.drop_at is not None:
            hang_up(scope)
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_paced(self, send: Send) -> None:
        """Send the frames, deltas at the rate; late ones follow at once, so that the mean rate holds."""
        start, deltas = anyio.current_time(), 0
        for data in self._frames:
            if self._rate and data.startswith(_DELTA):
                deltas += 1
                await anyio.sleep_until(start + deltas / self._rate)
            await self._write(send, data)

    async def _silence(self, send: Send) -> None:
        while self._fault.ping_seconds is not None:
            await self._write(send, PING)
            await anyio.sleep(self._fault.ping_seconds)
        await anyio.sleep_forever()  # ends when the client leaves (`_watch`) or the server stops

    @staticmethod
    async def _write(send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _with_faults(frames: Sequence[bytes], fault: Fault, request_id: str) -> list[bytes]:
    """Return the frames with the fault applied, apart from pieces and cuts."""
    result = list(frames)
    # In this order: places count the frames of the intact answer, up to the one that a fault cuts off.
    if fault.error_after is not None:
        kind = fault.error_type or "overloaded_error"
        result[fault.error_after :] = [frame(error_json(kind, fault.message or "Overloaded", request_id))]
    if fault.garbage_after is not None:
        result.insert(fault.garbage_after, b"event: content_block_delta\ndata: %s\n\n" % fault.garbage.encode())
    if fault.silent_after is not None:
        del result[fault.silent_after :]
    if fault.newline != "\n":
        result = [data.replace(b"\n", fault.newline.encode()) for data in result]
    return result


# --- as a process -------------------------------------------------------------------------------------------


def from_script(script: Json, rate: float = 0) -> FakeMessagesAPI:
    """Return the API for a script file's JSON (its form: see the module).

    Raises:
        KeyError, TypeError, ValueError: The script does not have that form.
    """
    then = script.get("then")
    return FakeMessagesAPI(
        *(reply_from_json(value) for value in script.get("steps", ())),
        then=None if then is None else reply_from_json(then),
        key=script.get("api_key"),
        rate=rate,
    )


async def _serve(api: FakeMessagesAPI, port: int) -> None:
    await api.start(port)
    sys.stdout.write(json.dumps({"url": api.url}) + "\n")
    sys.stdout.flush()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            break
    await api.stop()


def main(arguments: list[str] | None = None) -> None:
    """Run the fake as a process (see the module)."""
    parser = argparse.ArgumentParser(prog="python -m agentic_rag.testing.fake_api")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--demo", type=int, default=200, help="without a script: text deltas of every answer")
    parser.add_argument("--speed", type=float, default=0, help="deltas per second; 0: as fast as they are read")
    options = parser.parse_args(arguments)
    if options.script is None:
        api = FakeMessagesAPI(then=demo(options.demo), key=None, rate=options.speed)
    else:
        api = from_script(json.loads(options.script.read_text("utf-8")), options.speed)
    anyio.run(_serve, api, options.port)


if __name__ == "__main__":
    main()
