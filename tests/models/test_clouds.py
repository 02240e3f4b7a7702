"""Claude at Bedrock and Vertex through the SDK's own clients, against fakes that check paths and signatures."""

import base64
import binascii
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import plain_text, text_block, user_message
from agentic_rag.models.anthropic.clouds import BedrockModel, CloudModel
from agentic_rag.models.base import BlockStopped, MessageCompleted, MessageStarted, ModelEvent, ModelRequest
from agentic_rag.models.provider_file import Provider
from agentic_rag.testing.fake_api import FakeService
from agentic_rag.testing.frames import frames
from agentic_rag.testing.steps import say, step_events

NAME = "us.anthropic.claude-haiku-5-5-v1:0"
REQUEST = ModelRequest(NAME, 500, (text_block("Be brief."),), (user_message("Hi \ud800"),))


def header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()


def event_frame(kind: str, payload: bytes, message_type: str = "event") -> bytes:
    """Return a message of an AWS event stream."""
    name = ":event-type" if message_type == "event" else ":exception-type"
    headers = header(name, kind) + header(":content-type", "application/json") + header(":message-type", message_type)
    prelude = struct.pack(">II", 12 + len(headers) + len(payload) + 4, len(headers))
    prelude += struct.pack(">I", binascii.crc32(prelude))
    frame = prelude + headers + payload
    return frame + struct.pack(">I", binascii.crc32(frame))


class FakeCloud(FakeService):
    """Both clouds: Bedrock's event stream and Vertex' server-sent events; ``requests`` and ``paths`` are recorded."""

    def __init__(self, *, fails: bool = False) -> None:
        self.paths: list[str] = []
        self.signed: list[str] = []
        self.bodies: list[Any] = []
        self._fails = fails
        super().__init__((), None, None, 0)

    def _routes(self) -> list[Route]:
        return [Route("/{path:path}", self._invoke, methods=["POST"])]

    async def _invoke(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        self.signed.append(request.headers.get("authorization", ""))
        if not self.signed[-1]:
            return JSONResponse({"message": "Missing Authentication Token"}, status_code=403)
        self.bodies.append(orjson.loads(await request.body()))
        sse_frames = frames(step_events(say("Hello."), model=NAME), "msg_1")
        if "streamRawPredict" in request.url.path:
            return Response(b"".join(sse_frames), media_type="text/event-stream")
        chunks = [sse_frame.split(b"data: ", 1)[1].strip() for sse_frame in sse_frames]
        if self._fails:
            chunks = chunks[:3]
        event_frames = [
            event_frame("chunk", orjson.dumps({"bytes": base64.b64encode(chunk).decode()})) for chunk in chunks
        ]
        if self._fails:
            event_frames.append(event_frame("throttlingException", b'{"message": "Too many requests"}', "exception"))
        return Response(b"".join(event_frames), media_type="application/vnd.amazon.eventstream")


@asynccontextmanager
async def open_cloud(kind: Any, key: str = "", **options: bool) -> AsyncIterator[tuple[CloudModel, FakeCloud]]:
    async with FakeCloud(**options) as api:
        model_class = BedrockModel if kind == "bedrock" else CloudModel
        model = model_class(Provider("cloud", kind, api.url, key, region="eu-central-1", project="desk"))
        try:
            yield model, api
        finally:
            await model.aclose()


async def collect_events(model: CloudModel) -> list[ModelEvent]:
    with anyio.fail_after(240):
        async with model.stream(REQUEST) as events:
            return [event async for event in events]


def text_of(events: list[ModelEvent]) -> str:
    return plain_text(event.block for event in events if isinstance(event, BlockStopped))


@pytest.mark.parametrize("key", ["", "bearer-1"])
async def test_bedrock_is_asked_under_the_models_path_with_a_signature(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with open_cloud("bedrock", key) as (model, api):
        events = await collect_events(model)
    assert text_of(events) == "Hello."
    assert events[0] == MessageStarted(f"cloud:{NAME}")
    assert isinstance(events[-1], MessageCompleted)
    assert api.paths == [f"/model/{NAME}/invoke-with-response-stream"]
    assert (
        api.signed[0] == f"Bearer {key}" if key else api.signed[0].startswith("AWS4-HMAC-SHA256 Credential=AKIATEST/")
    )
    assert api.bodies[0]["anthropic_version"]
    assert not {"model", "stream"} & api.bodies[0].keys()
    assert "1h" not in str(api.bodies[0])


async def test_an_error_inside_bedrocks_stream_is_retryable() -> None:
    async with open_cloud("bedrock", "bearer-1", fails=True) as (model, _):
        with pytest.raises(ModelError) as error:
            await collect_events(model)
    assert (error.value.started, error.value.retryable, error.value.kind) == (True, True, "throttlingException")


async def test_vertex_requests_use_its_project() -> None:
    async with open_cloud("vertex", "token-1") as (model, api):
        assert text_of(await collect_events(model)) == "Hello."
    path = f"/projects/desk/locations/eu-central-1/publishers/anthropic/models/{NAME}:streamRawPredict"
    assert api.paths == [path]
    assert api.signed == ["Bearer token-1"]
