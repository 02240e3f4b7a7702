"""Images that users send: shown to the model, stored by reference, readable by their owner only, and bounded."""

import base64
from pathlib import Path
from typing import Any

from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.steps import Say, Step, say
from tests.access.tenants import bearer, make_key
from tests.runtime.strict_model import NAME, StrictModel, images_in
from tests.runtime.test_pictures import image, png
from tests.server.rig import Json, Rig, events_of
from tests.ws.serving import client, serving

GIF = b"GIF89a" + (40).to_bytes(2, "little") + (30).to_bytes(2, "little") + b"\0" * 20
JPEG = b"\xff\xd8\xff\xc0\x00\x11\x08" + (30).to_bytes(2, "big") + (40).to_bytes(2, "big") + b"\0" * 20
WEBP = b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0" + (39).to_bytes(3, "little") + (29).to_bytes(3, "little") + b"\0" * 9


def encode_image(data: bytes, media_type: str = "image/png") -> Json:
    return {"mediaType": media_type, "data": base64.b64encode(data).decode()}


def answer_text(body: dict[str, Any]) -> Step:
    return Step((Say("A curve."),))


def open_rig(tmp_path: Path, model: StrictModel) -> Rig:
    return Rig(tmp_path, instead=model, model=NAME)


def refs(rig: Rig) -> set[str]:
    return PayloadFiles(rig.settings.data / "payloads").list_refs()


async def test_a_model_sees_the_users_image_and_the_message_names_it_by_ref(tmp_path: Path) -> None:
    model = StrictModel(answer_text)
    async with open_rig(tmp_path, model) as rig:
        conversation = await rig.conversation()
        events = await rig.say(
            conversation, "What is it?", images=[encode_image(png()), encode_image(GIF, "image/gif")]
        )
        (first_image, second_image) = events[0]["images"]
        assert (first_image["mediaType"], first_image["width"], first_image["height"]) == ("image/png", 600, 500)
        assert images_in(model.requests[0]) == [image(png()), image(GIF, "image/gif")]
        question = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"][0]
        assert question["content"] == "What is it?"
        kinds = [block["type"] for block in question["blocks"]]
        assert kinds == ["image", "image", "text"]
        source = question["blocks"][0]["source"]
        assert source == {"type": "kept", "media_type": "image/png", "ref": first_image["ref"]}
        response = await rig.http.get(f"/api/payloads/{first_image['ref']}")
        assert (response.status_code, response.content, response.headers["content-type"]) == (200, png(), "image/png")
        assert response.headers["content-disposition"] == f'attachment; filename="{first_image["ref"]}.png"'
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in response.headers["content-security-policy"]
        await rig.say(conversation, "And the other?")
        assert refs(rig) == {first_image["ref"], second_image["ref"]}
    async with open_rig(tmp_path, model) as rig:
        await rig.say(conversation, "Still there?")
        assert images_in(model.requests[-1]) == [image(png()), image(GIF, "image/gif")]
        assert model.refused == []
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        assert refs(rig) == set()


async def test_an_image_needs_no_text_and_its_message_can_be_edited(tmp_path: Path) -> None:
    model = StrictModel(answer_text)
    async with open_rig(tmp_path, model) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        first = await rig.say(conversation, "", images=[encode_image(JPEG, "image/jpeg")])
        assert first[-1]["type"] == "done"
        assert (await rig.ok("GET", path))["title"] == ""
        path_of_message = f"{path}/messages/{first[0]['userMessageId']}"
        assert events_of((await rig.http.post(f"{path_of_message}/retry")).text)[-1]["type"] == "done"
        edited_events = events_of((await rig.http.post(f"{path_of_message}/edit", json={"content": "In words?"})).text)
        assert edited_events[0]["images"] == first[0]["images"]
        sources_sent = [[block["source"] for block in images_in(body)] for body in model.requests]
        assert sources_sent == [[image(JPEG, "image/jpeg")["source"]]] * 3
        assert model.refused == []
        assert (await rig.ok("GET", path))["title"] == "In words?"


async def test_a_repeated_message_is_the_same_with_the_same_images_only(tmp_path: Path) -> None:
    model = StrictModel(answer_text)
    async with open_rig(tmp_path, model) as rig:
        conversation = await rig.conversation()
        body: Json = {"content": "This?", "clientMessageId": "c1", "images": [encode_image(png())]}
        path = f"/api/conversations/{conversation}/messages"
        once = await rig.ok("POST", path, body, headers={"accept": "application/json"})
        repeated = await rig.ok("POST", path, body, headers={"accept": "application/json"})
        assert (once["id"], len(refs(rig))) == (repeated["id"], 1)
        for images in ([], [encode_image(png(20, 20))], [encode_image(png()), encode_image(png())]):
            refusal = await rig.refused("POST", path, {**body, "images": images})
            assert refusal[:2] == (409, "IDEMPOTENCY_MISMATCH")
        assert len(refs(rig)) == 1, "what is refused leaves nothing"


def list_unsupported_images() -> list[tuple[Any, int, str, str]]:
    """Return images with their refusal. A function, because every worker imports this module, and they take 90 MB."""
    return [
        ([encode_image(b"BM" + b"\0" * 90, "image/bmp")], 415, "IMAGE_UNSUPPORTED", "images.0"),
        ([encode_image(png()), encode_image(b"<svg/>")], 415, "IMAGE_UNSUPPORTED", "images.1"),
        ([encode_image(b"")], 415, "IMAGE_UNSUPPORTED", "images.0"),
        ([encode_image(JPEG, "image/png")], 422, "VALIDATION_ERROR", "images.0.mediaType"),
        ([{"data": "no base64!"}], 422, "VALIDATION_ERROR", "images.0.data"),
        ([{"mediaType": "image/png"}], 422, "VALIDATION_ERROR", "images.0.data"),
        ([encode_image(png())] * 9, 422, "VALIDATION_ERROR", "images"),
        ([encode_image(png(9_000, 10))], 413, "IMAGE_TOO_LARGE", "images.0"),
        ([encode_image(png() + b"\0" * (4 * 1024 * 1024))], 413, "IMAGE_TOO_LARGE", "images.0"),
        ([encode_image(png() + b"\0" * (2 * 1024 * 1024))] * 2, 413, "IMAGE_TOO_LARGE", "images.1"),
        ([encode_image(png() + b"\0" * (30 * 1024 * 1024))], 413, "BODY_TOO_LARGE", "body"),
        ("all", 422, "VALIDATION_ERROR", "images"),
    ]


async def test_an_unsupported_image_is_refused_with_its_place(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation()
        for images, status, code, place in list_unsupported_images():
            body = {"content": "This?", "images": images}
            refusal = await rig.refused("POST", f"/api/conversations/{conversation}/messages", body)
            assert (place, *refusal[:2]) == (place, status, code)
            assert refusal[2].startswith(f"{place}: ")
            assert refs(rig) == set()
            assert (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"] == []


async def test_a_socket_sends_images_too_and_others_do_not_get_them(tmp_path: Path) -> None:
    model = StrictModel(answer_text)
    async with open_rig(tmp_path, model) as rig, serving(rig.application.app) as address, client(address) as socket:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        await socket.say(
            "message", conversationId=conversation, content="This?", images=[encode_image(WEBP, "image/webp")]
        )
        events = await socket.hear_turn()
        assert events[-1]["type"] == "done"
        assert images_in(model.requests[0]) == [image(WEBP, "image/webp")]
        await socket.say(
            "message", conversationId=conversation, content="This?", images=[encode_image(b"BM", "image/bmp")]
        )
        refusal = await socket.hear()
        assert (refusal["type"], refusal["code"]) == ("error", "IMAGE_UNSUPPORTED")
        (ref,) = refs(rig)
        key = bearer(await make_key(rig, "eve", "member", domain))
        assert (await rig.http.get(f"/api/payloads/{ref}", headers=key)).status_code == 404


async def test_a_model_without_image_input_reads_a_note_instead(tmp_path: Path) -> None:
    async with Rig(tmp_path, scripted=False) as rig:
        conversation = await rig.conversation()
        events = await rig.say(conversation, "What is on it?", images=[encode_image(png())])
        assert (events[0]["model"], events[-1]["type"]) == ("extractive", "done")
    async with FakeMessagesAPI(say("I cannot see it.")) as api:
        model = AnthropicModel(api.key or "", api.url, citations="marks")
        profiles = tmp_path / "profiles.toml"
        profiles.write_text('[models."blind-1"]\nimages = false\n')
        async with Rig(tmp_path / "b", instead=model, model="blind-1", model_profiles=profiles) as rig:
            await rig.say(await rig.conversation(), "What is on it?", images=[encode_image(png())])
        (block, words) = api.requests[0]["messages"][0]["content"][:2]
        assert block["type"] == "text"
        assert "600×500 pixels" in block["text"]
        assert "this model cannot be shown images" in block["text"]
        assert words["text"] == "What is on it?"
        await model.aclose()


async def test_users_images_count_by_their_pixels_and_become_text_in_a_compaction(tmp_path: Path) -> None:
    summary = '{"facts": [], "decisions": [], "open_questions": [], "wishes": ["charts"]}'
    model = StrictModel(lambda body: Step((Say(summary if "summar" in str(body["messages"][-1]) else "Seen."),)))
    async with open_rig(tmp_path, model) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        await rig.say(conversation, "Chart 0?", images=[encode_image(png())])
        for number in range(1, 11):
            await rig.say(conversation, f"Chart {number}?")
        await rig.ok("POST", f"{path}/compact")
        await rig.say(conversation, "And now?")
        assert images_in(model.requests[-1]) == []
        assert "600×500 pixels, kept as ref ref_" in str(model.requests[-1]["messages"])
        message = (await rig.ok("GET", f"{path}/messages?limit=200"))["items"][0]
        assert (message["metadata"]["compacted"], message["blocks"][0]["type"]) == (True, "image")
    assert model.refused == []
