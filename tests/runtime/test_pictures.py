"""Images of tools: shown to the model, counted by pixels, stored beside the transcript, and bounded."""

import base64
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import ToolStatus
from agentic_rag.base.ids import TurnId
from agentic_rag.base.messages import Block, text_block
from agentic_rag.base.redaction import Redactor
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import ModelEvent, ModelRequest
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.store import tool_calls
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.steps import Say, Step, Think, Use
from agentic_rag.tools.base import CallOutcome, CallRequest
from agentic_rag.tools.content import to_blocks
from agentic_rag.tools.image_headers import read_picture
from tests.growth import growth
from tests.runtime.harness import Services, bench, definition, kinds, toolset
from tests.runtime.strict_model import NAME, StrictModel, images_in, results_of


def png(width: int = 600, height: int = 500) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def image(data: bytes, media_type: str = "image/png") -> Block:
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


class NamelessRefusals(StrictModel):
    """A service that does not say which image it cannot read."""

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        try:
            async with super()._stream(request) as events:
                yield events
        except ModelError as exc:
            raise ModelError("(400): Could not process image", http_status=exc.http_status, kind=exc.kind) from exc


class WithoutImageSearch(StrictModel):
    """A service that refuses the schema of the tool ``image_search``."""

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        if any(spec["name"] == "image_search" for spec in request.tools):
            problem = "(400): Invalid schema for function 'image_search': 'x' is no type"
            raise ModelError(problem, http_status=400, kind="invalid_request_error")
        async with super()._stream(request) as events:
            yield events


async def plot(request: CallRequest) -> CallOutcome:
    """Return an image alone, or one in an error."""
    fails = request.arguments["query"] == "fail"
    return CallOutcome(ToolStatus.ERROR if fails else ToolStatus.OK, (image(png()),))


def steps_of(*steps: Step) -> Any:
    remaining = list(steps)
    return lambda body: remaining.pop(0)


async def test_a_tools_images_are_shown_and_stored_beside_the_transcript(tmp_path: Path) -> None:
    files = PayloadFiles(tmp_path / "payloads")

    def look_again(body: dict[str, Any]) -> Step:
        (ref,) = files.list_refs()
        return Step((Think("once more"), Use("read_tool_result", {"ref": ref})))

    last_steps = [Step((Say("A curve."),)), Step((Say("Yes."),))]

    def answer(body: dict[str, Any]) -> Step:
        if not results_of(body):
            return Step((Think("look"), Use("plot", {"query": "x"})))
        return look_again(body) if len(results_of(body)) == 1 else last_steps.pop(0)

    model = StrictModel(answer)
    settings = definition(model=NAME, limits=Limits(context_tokens=20_000))
    async with bench(tmp_path, model, services=Services(model, toolset(plot=plot))) as b:
        events = await b.say("Plot it", definition=settings)
        assert kinds(events)[-1] == "done", events[-1]
        result_texts = [event.fields()["content"] for event in events if event.type == "tool_result"]
        assert all(text.startswith("[image, image/png, 600×500 pixels, kept as ref ref_") for text in result_texts)
        stored_text = str(await b.transcript()) + str(
            await b.database.read(lambda conn: tool_calls.of_turn(conn, TurnId(events[0].turn_id)))
        )
        assert base64.b64encode(png()).decode()[:40] not in stored_text
    async with bench(tmp_path, model, services=Services(model, toolset(plot=plot))) as b:
        assert kinds(await b.say("Sure?", definition=settings))[-1] == "done"
    assert model.refused == []
    assert [len(images_in(body)) for body in model.requests] == [0, 1, 2, 2]
    assert images_in(model.requests[1]) == [image(png())]
    assert len(files.list_refs()) == 1


async def test_images_are_omitted_by_size_and_can_be_loaded_again(tmp_path: Path) -> None:
    plot_steps = [Step((Think("more"), Use("plot", {"query": str(number)}))) for number in range(12)]
    model = StrictModel(steps_of(*plot_steps, Step((Say("Seen."),))))
    settings = definition(model=NAME, limits=Limits(context_tokens=6_000, max_steps=20))
    async with bench(tmp_path, model, services=Services(model, toolset(plot=plot))) as b:
        assert kinds(await b.say("Plot", definition=settings))[-1] == "done"
    assert model.refused == []
    assert all(len(images_in(body)) <= 15 for body in model.requests)
    result_texts = list(results_of(model.requests[-1]).values())
    marks = [text for text in result_texts if text.startswith("[result of plot, kept as ref ")]
    assert marks
    files = PayloadFiles(tmp_path / "payloads").list_refs()
    assert {mark.rsplit(" ", 1)[1].rstrip("]") for mark in marks} <= files


@pytest.mark.parametrize("image_count", [1, 24])
async def test_large_images_are_kept_within_the_services_limit(tmp_path: Path, image_count: int) -> None:
    async def show(request: CallRequest) -> CallOutcome:
        return CallOutcome(ToolStatus.OK, tuple(image(png(2_500, 400)) for _ in range(image_count)))

    show_steps = [Step((Use("show", {"query": str(number)}),)) for number in range(25 // image_count)]
    model = StrictModel(steps_of(*show_steps, Step((Say("Seen."),))))
    settings = definition(model=NAME, limits=Limits(max_steps=30))
    async with bench(tmp_path, model, services=Services(model, toolset(show=show))) as b:
        assert kinds(await b.say("Show", definition=settings))[-1] == "done"
    assert model.refused == []


async def test_images_of_an_error_become_text_because_the_service_accepts_no_other(tmp_path: Path) -> None:
    model = StrictModel(steps_of(Step((Use("plot", {"query": "fail"}),)), Step((Say("It failed."),))))
    async with bench(tmp_path, model, services=Services(model, toolset(plot=plot))) as b:
        assert kinds(await b.say("Plot", definition=definition(model=NAME)))[-1] == "done"
    assert model.refused == []
    assert "600×500 pixels" in next(iter(results_of(model.requests[-1]).values()))


async def test_an_image_that_the_service_cannot_read_is_dropped_alone(tmp_path: Path) -> None:
    async def show(request: CallRequest) -> CallOutcome:
        return CallOutcome(ToolStatus.OK, (image(png(40, 30)), image(png()[:-4])))

    model = StrictModel(
        lambda body: Step((Say("Seen."),)) if results_of(body) else Step((Use("show", {"query": "x"}),))
    )
    settings = definition(model=NAME)
    async with bench(tmp_path, model, services=Services(model, toolset(show=show))) as b:
        events = await b.say("Show", definition=settings)
        codes = [event.fields()["code"] for event in events if event.type == "notice"]
        assert (kinds(events)[-1], codes) == ("done", ["IMAGE_REFUSED"])
        assert images_in(model.requests[-1]) == [image(png(40, 30))]
        assert kinds(await b.say("And now?", definition=settings))[-1] == "done"
        assert len(model.refused) == 1
    async with bench(tmp_path, model, services=Services(model, toolset(show=show))) as b:
        assert kinds(await b.say("After a restart?", definition=settings))[-1] == "done"
        assert images_in(model.requests[-1]) == [image(png(40, 30))]


async def test_without_a_place_in_the_refusal_only_new_images_are_dropped(tmp_path: Path) -> None:
    images = [image(png(40, 30)), image(png()[:-4])]

    async def show(request: CallRequest) -> CallOutcome:
        return CallOutcome(ToolStatus.OK, (images[int(request.arguments["query"])],))

    steps = (Use("show", {"query": "0"}), Use("show", {"query": "1"}), Say("Seen."))
    model = NamelessRefusals(lambda body: Step((steps[len(results_of(body))],)))
    async with bench(tmp_path, model, services=Services(model, toolset(show=show))) as b:
        assert kinds(await b.say("Show", definition=definition(model=NAME)))[-1] == "done"
    assert images_in(model.requests[-1]) == images[:1]


async def test_a_refused_tool_with_image_in_its_name_costs_no_image(tmp_path: Path) -> None:
    tools = toolset(plot=plot, image_search=plot)
    model = StrictModel(steps_of(Step((Use("plot", {"query": "x"}),)), Step((Say("Seen."),))))
    async with bench(tmp_path, model, services=Services(model, tools)) as b:
        assert kinds(await b.say("Plot", definition=definition(model=NAME)))[-1] == "done"
    model = WithoutImageSearch(steps_of(Step((Say("A curve."),))))
    async with bench(tmp_path, model, services=Services(model, tools)) as b:
        events = await b.say("What is it?", definition=definition(model=NAME))
    assert kinds(events)[-1] == "done"
    assert "IMAGE_REFUSED" not in [event.fields()["code"] for event in events if event.type == "notice"]
    assert images_in(model.requests[-1]) == [image(png())]


async def test_images_pass_marks_mode_redaction_and_the_extractive_model(tmp_path: Path) -> None:
    redactor = Redactor()
    steps = (Step((Use("plot", {"query": "x"}),)), Step((Say("Seen."),)))
    async with FakeMessagesAPI(*steps) as api:
        model = AnthropicModel(api.key, api.url, citations="marks")
        await model.warm_up()
        tools = toolset(plot=plot)
        async with bench(tmp_path, model, services=Services(model, tools), redactor=redactor) as b:
            assert kinds(await b.say("Plot", definition=definition(model=NAME)))[-1] == "done"
        assert images_in(api.requests[1]) == [image(png())]
        assert api.refused == []
        await model.aclose()
    offline = ExtractiveModel()
    async with bench(tmp_path, offline, services=Services(offline, tools), redactor=redactor) as b:
        assert kinds(await b.say("And now?", definition=definition(model="extractive")))[-1] == "done"


@pytest.mark.parametrize(
    ("data", "declared_type", "reason"),
    [
        (b"\x89PNG" + b"\0" * (30 * 1024 * 1024), "image/png", "5 MiB of base64 are the most"),
        (png(9_000, 10), "image/png", "9000×10 pixels, 8000 a side are the most"),
        (b"BM" + b"\0" * 90, "image/bmp", "PNG, JPEG, GIF and WebP can be"),
        (b"<svg/>", "image/png", "PNG, JPEG, GIF and WebP can be"),
    ],
)
def test_an_unsupported_image_is_reported_with_the_reason(data: bytes, declared_type: str, reason: str) -> None:
    content = types.ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=declared_type)
    (block,) = to_blocks([content])
    assert block == text_block(f"[image, {declared_type}, {len(content.data) * 3 // 4} bytes: not shown: {reason}]")


@pytest.mark.parametrize(
    "encode", [base64.encodebytes, lambda data: b"data:image/png;base64," + base64.b64encode(data)]
)
def test_base64_with_line_ends_or_the_head_of_a_url_is_read(encode: Callable[[bytes], bytes]) -> None:
    block = types.ImageContent(type="image", data=encode(png()).decode(), mime_type="image/png")
    assert to_blocks([block]) == (image(png()),)


def test_an_images_type_follows_its_content() -> None:
    content = types.ImageContent(type="image", data=base64.b64encode(png()).decode(), mime_type="image/jpeg")
    assert to_blocks([content]) == (image(png()),)


HEADERS = {
    "gif": b"GIF89a" + struct.pack("<HH", 30, 20),
    "jpeg": b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08" + struct.pack(">HH", 20, 30) + b"\0" * 9,
    "webp": b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + (29).to_bytes(3, "little") + (19).to_bytes(3, "little"),
    "png": png(30, 20),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_the_size_of_an_image_is_read_from_its_header(kind: str) -> None:
    picture = read_picture(HEADERS[kind])
    assert picture is not None
    assert (picture.media_type, picture.width, picture.height, picture.tokens) == (f"image/{kind}", 30, 20, 1)


@given(st.sampled_from(sorted(HEADERS)), st.binary(max_size=40), st.integers(0, 40))
def test_image_sizes_are_read_from_any_bytes_without_errors(kind: str, tail: bytes, length: int) -> None:
    picture = read_picture(HEADERS[kind][:length] + tail)
    assert picture is None or min(picture.width, picture.height) > 0


@pytest.mark.parametrize("filling", ["\xff", "\xd0\xff"])
def test_unclosed_markers_are_not_followed(filling: str) -> None:
    def parse(text: str) -> None:
        assert read_picture(text.encode("latin-1")) is None

    short_data, long_data = ("\xff\xd8\xff" + filling * size for size in (250_000, 2_000_000))
    assert growth(parse, short_data, long_data) < 3
