"""`FakeChatAPI`: a chat-completions service over real HTTP, from the same scripts as `FakeMessagesAPI`.

Owns its endpoints, authentication and errors. `chat_problems` decides about refusals, and `chat_frames` encodes the
answers. Steps, faults and the server's life cycle are those of `fake_api`.

    async with FakeChatAPI(use("search_documents", query="…"), say("Found.", Cite(0))) as api:
        model = OpenAIModel(api.key, api.base_url)
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.testing.chat_frames import ChatAnswer, Shape, error_frame
from agentic_rag.testing.chat_problems import ChatRules, chat_problems, names_of, surrogate_in, tokens_of
from agentic_rag.testing.fake_api import (
    FakeService,
    Fault,
    FaultyStream,
    HungUp,
    ReceivedCall,
    RefusedCall,
    Reply,
    Scripted,
)
from agentic_rag.testing.steps import Say, Think

_KINDS = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class FakeChatAPI(FakeService):
    """A chat-completions service; see `FakeService`. ``base_url`` is the address for clients.

    ``rules``: the rules of its model; ``shape``: the variant of its stream. ``models``: the listed ones; None: there is
    no list, and any name is served. As in real services, the repeated beginning of a prompt counts as cached.
    """

    def __init__(
        self,
        *script: Scripted,
        then: Scripted | None = None,
        key: str | None = "test-key",
        rate: float = 0,
        rules: ChatRules | None = None,
        shape: Shape | None = None,
        models: Collection[str] | None = None,
    ) -> None:
        self.rules = rules or ChatRules()
        self.shape = shape or Shape()
        self._models = models
        self._seen: Sequence[Json] = ()
        super().__init__(script, then, key, rate)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def _routes(self) -> list[Route]:
        routes = [Route("/v1/chat/completions", self._complete, methods=["POST"])]
        if self._models is not None:
            routes.append(Route("/v1/models", self._list, methods=["GET"]))
        return routes

    async def _complete(self, request: Request) -> Response:
        try:
            body = await self._accept(request)
            call = ReceivedCall(body, dict(request.headers))
            self.calls.append(call)
            reasons = chat_problems(body, self.rules)
            if reasons:
                self.refused += reasons
                raise RefusedCall(400, reasons[0])
            if self._models is not None and body["model"] not in self._models:
                raise RefusedCall(404, f"The model {body['model']!r} does not exist or you do not have access to it.")
            reply = self._reply(body)
            if reply.fault.status is not None:
                fault = reply.fault
                raise RefusedCall(reply.fault.status, fault.message or "scripted", fault.error_type, fault.retry_after)
            return self._answer(call, reply)
        except RefusedCall as refused:
            code = refused.kind if "_error" not in refused.kind else _KINDS.get(refused.status)
            error = {"message": refused.message, "type": refused.kind, "param": None, "code": code}
            headers = {"retry-after": refused.retry_after} if refused.retry_after is not None else None
            return JSONResponse({"error": error}, status_code=refused.status, headers=headers)

    def _answer(self, call: ReceivedCall, reply: Reply) -> Response:
        if reply.fault.refuse:
            return HungUp()
        body = call.request
        usage = reply.step.usage or self._usage(body, reply)
        answer = ChatAnswer(reply.step, body["model"], usage, self.shape)
        frames, fault = _break(answer.frames(), reply.fault)
        return FaultyStream(frames, fault, 0, request_id="req_0", left=call.left, done=call.done)

    def _usage(self, body: Json, reply: Reply) -> Usage:
        messages = body["messages"]
        same = next((n for n, (a, b) in enumerate(zip(messages, self._seen, strict=False)) if a != b), None)
        cached = len(self._seen) if same is None else same
        self._seen = messages
        sent = max(1, tokens_of(body))
        read = min(sent - 1, tokens_of({"messages": messages[:cached]}) if cached else 0)
        characters = sum(len(block.text) for block in reply.step.blocks if isinstance(block, Say | Think))
        return Usage(input=sent - read, cache_read=read, output=max(1, characters // 4))

    def _authenticate(self, request: Request) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not bearer or (self._key is not None and bearer != self._key):
            raise RefusedCall(401, "Incorrect API key provided.")

    async def _accept(self, request: Request) -> Json:
        self._authenticate(request)
        try:
            body = json.loads(await request.body())
        except ValueError as exc:
            raise RefusedCall(400, f"We could not parse the JSON body of your request ({exc}).") from exc
        if not isinstance(body, dict) or surrogate_in(body):
            raise RefusedCall(400, "Invalid body: a JSON object of valid Unicode is expected.")
        return body

    async def _list(self, request: Request) -> Response:
        try:
            self._authenticate(request)
        except RefusedCall as refused:
            return JSONResponse({"error": {"message": refused.message}}, status_code=refused.status)
        return JSONResponse(names_of(self._models or ()))


def _break(frames: Sequence[bytes], fault: Fault) -> tuple[Sequence[bytes], Fault]:
    """Return the frames with this API's form of a fault applied, and the rest of the fault."""
    if fault.error_after is not None:
        kind = fault.error_type or "overloaded_error"
        frames = [*frames[: fault.error_after], error_frame(kind, fault.message or "Overloaded")]
    return frames, replace(fault, error_after=None)
