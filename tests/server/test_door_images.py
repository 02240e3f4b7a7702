"""Images that arrive through other protocols: stored like any other image, and refused in the protocol's form."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import (
    DataSource,
    FileSource,
    ImagePart,
    RunAgentInput,
    RunErrorEvent,
    TextPart,
    UrlSource,
    UserMessage,
)

from agentic_rag.base.messages import plain_text
from tests.runtime.strict_model import NAME, StrictModel, images_in
from tests.runtime.test_pictures import image, png
from tests.server.rig import Json, Rig
from tests.server.test_openai import open_live, openai, user
from tests.server.test_sent_images import GIF, JPEG, answer_text, refs

PNG = base64.b64encode(png()).decode()
URL = f"data:image/png;base64,{PNG}"
ELSEWHERE = "https://example.com/a.png"


def ag_ui(source: Any, **fields: Any) -> Json:
    parts: list[Any] = [TextPart(text="What is it?"), ImagePart(source=source)]
    run_input = RunAgentInput(thread_id="t", run_id="r", messages=[UserMessage(id="q", content=parts)])
    return {**run_input.model_dump(mode="json", by_alias=True, exclude_none=True), **fields}


def ui_message(url: Any, media_type: Any = "image/png", **fields: Any) -> Json:
    file = {"type": "file", "mediaType": media_type, "filename": "a.png", "url": url}
    message = {"id": "q", "role": "user", "parts": [file, {"type": "text", "text": "What is it?"}]}
    return {"id": "c", "trigger": "submit-message", "messages": [message], **fields}


def completion(url: Any, domain: str) -> Json:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": domain, "messages": [user(content)], "store": True}  # type: ignore[arg-type]


def response(url: Any, domain: str) -> Json:
    content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url}]
    return {"model": domain, "input": [{"role": "user", "content": content}], "store": True}


def images_shown(model: StrictModel) -> list[Any]:
    """Return the sources of the images of the last request."""
    return [block["source"] for block in images_in(model.requests[-1])]


PICTURE = image(png())["source"]


@asynccontextmanager
async def open_vision(folder: Path) -> AsyncGenerator[tuple[Rig, str, StrictModel]]:
    model = StrictModel(answer_text)
    async with Rig(folder, instead=model, model=NAME) as rig:
        yield rig, await rig.domain(), model


async def test_an_image_from_every_endpoint_is_shown_to_the_model_and_stored(tmp_path: Path) -> None:
    async with open_vision(tmp_path) as (rig, domain, model):
        bodies = {
            f"/api/ag-ui/{domain}": ag_ui(DataSource(value=PNG, mime_type="image/png")),
            f"/api/ui-message/{domain}": ui_message(URL),
            "/v1/chat/completions": completion(URL, domain),
            "/v1/responses": response(URL, domain),
        }
        for path, body in bodies.items():
            answer = await rig.http.post(path, json=body)
            assert (answer.status_code, "curve." in answer.text) == (200, True), answer.text
            assert images_shown(model) == [PICTURE], path
        conversations = (await rig.ok("GET", "/api/conversations"))["items"]
        assert len(conversations) == 4
        for conversation in conversations:
            question = (await rig.ok("GET", f"/api/conversations/{conversation['id']}/messages"))["items"][0]
            assert question["content"] == "What is it?"
            assert [block["type"] for block in question["blocks"]] == ["image", "text"]
        assert len(refs(rig)) == 4
        assert model.refused == []


SAME: dict[str, tuple[str, str | None, bytes]] = {
    "percent signs": ("data:image/png;base64," + PNG.replace("+", "%2B").replace("=", "%3D"), "image/png", png()),
    "capitals": (f"DATA:Image/PNG;charset=utf-8;BASE64,{PNG}", "image/png", png()),
    "another name": ("data:image/jpg;base64," + base64.b64encode(JPEG).decode(), "image/jpg", JPEG),
    "no kind": ("data:;base64," + base64.b64encode(GIF).decode(), "image/*", GIF),
}


@pytest.mark.parametrize("name", SAME)
async def test_an_image_data_url_is_read_in_browser_notation(tmp_path: Path, name: str) -> None:
    url, kind, data = SAME[name]
    async with open_vision(tmp_path) as (rig, domain, model):
        await rig.http.post(f"/api/ui-message/{domain}", json=ui_message(url, kind))
        (image_shown,) = images_in(model.requests[0])
        assert base64.b64decode(image_shown["source"]["data"]) == data
        await rig.http.post(f"/api/ag-ui/{domain}", json=ag_ui(UrlSource(value=url)))
        assert images_in(model.requests[1]) == [image_shown]


BAD: dict[str, tuple[Any, int, str]] = {
    "an address": (ELSEWHERE, 422, "VALIDATION_ERROR"),
    "an address of this machine": ("http://127.0.0.1:1/a.png", 422, "VALIDATION_ERROR"),
    "a file": ("file:///etc/passwd", 422, "VALIDATION_ERROR"),
    "no address": ("data", 422, "VALIDATION_ERROR"),
    "not base64": ("data:image/png,abc", 422, "VALIDATION_ERROR"),
    "broken base64": ("data:image/png;base64,a!b", 422, "VALIDATION_ERROR"),
    "another kind than it says": (f"data:image/gif;base64,{PNG}", 422, "VALIDATION_ERROR"),
    "a document": ("data:application/pdf;base64,JVBERg==", 415, "IMAGE_UNSUPPORTED"),
    "a drawing": ("data:image/svg+xml;base64,PHN2Zy8+", 415, "IMAGE_UNSUPPORTED"),
    "too wide": ("data:image/png;base64," + base64.b64encode(png(9_000, 10)).decode(), 413, "IMAGE_TOO_LARGE"),
}


async def test_an_invalid_image_is_refused_in_the_protocols_form_without_a_download(tmp_path: Path) -> None:
    async with open_vision(tmp_path) as (rig, domain, model):
        for name, (url, status, code) in BAD.items():
            run = await rig.http.post(f"/api/ag-ui/{domain}", json=ag_ui(UrlSource(value=url)))
            run_error = RunErrorEvent.model_validate(run.json())
            assert (run.status_code, run_error.code) == (status, code), (name, run.text)
            assert run_error.message.startswith("messages.0.content.1.source.value: "), (name, run_error.message)
            chat = await rig.http.post(f"/api/ui-message/{domain}", json=ui_message(url))
            error = chat.json()
            assert (chat.status_code, error["type"], error["error"]["code"]) == (status, "error", code), name
            assert error["errorText"].startswith("messages.0.parts.0.url: "), (name, error)
            status = 400 if status == 422 else status
            for path, body, place in (
                ("/v1/chat/completions", completion(url, domain), "messages.0.content.1.image_url.url"),
                ("/v1/responses", response(url, domain), "input.0.content.1.image_url"),
            ):
                refusal = await rig.http.post(path, json=body)
                refused_error = refusal.json()["error"]
                assert (refusal.status_code, refused_error["code"], refused_error["param"]) == (status, code, place), (
                    name,
                    refused_error,
                )
                assert refused_error["type"] == "invalid_request_error"
        kept_elsewhere = await rig.http.post(
            f"/api/ag-ui/{domain}", json=ag_ui(FileSource(value="file_1", provider="openai"))
        )
        assert (kept_elsewhere.status_code, kept_elsewhere.json()["code"]) == (422, "VALIDATION_ERROR")
        parts = ui_message(URL)["messages"][0]["parts"][:1] * 9
        several = {"id": "c", "messages": [{"id": "q", "role": "user", "parts": parts}]}
        too_many = await rig.http.post(f"/api/ui-message/{domain}", json=several)
        assert (too_many.status_code, "at most 8" in too_many.json()["errorText"]) == (422, True)
        assert model.requests == []
        assert refs(rig) == set()


async def test_an_edited_message_has_its_new_images_and_a_retried_one_its_old(tmp_path: Path) -> None:
    async with open_vision(tmp_path) as (rig, domain, model):
        path = f"/api/ui-message/{domain}"
        await rig.http.post(path, json=ui_message(URL))
        gif_url = f"data:image/gif;base64,{base64.b64encode(GIF).decode()}"
        for body, expected in (
            (ui_message(URL, trigger="regenerate-message"), [PICTURE]),
            (ui_message(gif_url, "image/gif", messageId="q"), [image(GIF, "image/gif")["source"]]),
        ):
            assert "curve." in (await rig.http.post(path, json=body)).text
            assert images_shown(model) == expected
        words = ui_message(URL, messageId="q")
        del words["messages"][0]["parts"][0]
        assert "curve." in (await rig.http.post(path, json=words)).text
        assert images_shown(model) == []
        assert len(refs(rig)) == 2


async def test_openais_client_resends_images_only_for_unstored_conversations(
    tmp_path: Path,
) -> None:
    model = StrictModel(answer_text)
    async with open_live(tmp_path, instead=model, model=NAME) as rig:
        domain = await rig.domain()
        parts: Any = [{"type": "image_url", "image_url": {"url": URL}}]
        messages: Any = [user(parts), {"role": "assistant", "content": "A curve."}, user("Which colour?")]
        answer = await rig.openai.chat.completions.create(model=domain, messages=messages)
        assert answer.choices[0].message.content == "A curve."
        assert images_shown(model) == [PICTURE]
        assert plain_text(model.requests[-1]["messages"][0]["content"]) == "(An image.)"
        part: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": URL, "detail": "auto"}]}]
        first = await rig.openai.responses.create(model=domain, input=part, store=True)
        await rig.openai.responses.create(model=domain, input="And?", previous_response_id=first.id)
        assert images_shown(model) == [PICTURE]
        for content, expected_count in (("Other", 1), (part, 2)):  # on separate branches, each with its own image only
            await rig.openai.responses.create(model=domain, input=content, previous_response_id=first.id)
            assert len(images_shown(model)) == expected_count
        part[0]["content"][0]["image_url"] = ELSEWHERE
        with pytest.raises(openai.BadRequestError) as exc_info:
            await rig.openai.responses.create(model=domain, input=part)
        assert exc_info.value.param == "input.0.content.0.image_url"
        assert model.refused == []
