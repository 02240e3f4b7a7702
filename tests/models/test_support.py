"""``agentic-rag models check`` finds out what a model can do, and handles every answer of its service."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import Model
from agentic_rag.models.model_checks import ModelAbility, check_model
from agentic_rag.models.openai.model import OpenAIModel
from agentic_rag.models.profiles import profile_of
from agentic_rag.testing.chat_frames import Shape
from agentic_rag.testing.chat_problems import ChatRules
from agentic_rag.testing.fake_api import FakeMessagesAPI, FakeService, Fault, Reply
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.steps import Cite, Say, Step, say, use
from tests.programs import run_program

ALL = list(ModelAbility)
SEA, CALL = say("The sea is wide and deep."), use("note_colour", colour="blue")
GREEN, RED = say("The pump in the cellar is painted green.", Cite(0)), say("Red.")
KEY = "sk-planted-0123456789-wxyz"


def model_of(api: FakeService) -> Model:
    return OpenAIModel(api.key, api.base_url) if isinstance(api, FakeChatAPI) else AnthropicModel(api.key, api.url)


async def check_service(api: FakeService, seconds: float = 20) -> Mapping[ModelAbility, str]:
    """Return the error code of each trial on a service, empty for a success."""
    model = model_of(api)
    name = "small-1" if isinstance(api, FakeChatAPI) else "claude-haiku-5-5"
    try:
        profile = profile_of(f"openai:{name}" if isinstance(api, FakeChatAPI) else name)
        return {finding.ability: finding.code or "" for finding in await check_model(model, name, profile, seconds)}
    finally:
        await model.aclose()


@pytest.mark.parametrize("service", [FakeMessagesAPI, FakeChatAPI])
async def test_a_model_that_passes_all_checks_is_reported_as_such(service: Any) -> None:
    async with service(SEA, CALL, GREEN, RED) as api:
        assert await check_service(api) == dict.fromkeys(ALL, "")
    assert api.refused == []


@pytest.mark.parametrize("service", [FakeMessagesAPI, FakeChatAPI])
async def test_unsupported_features_of_a_model_are_named(service: Any) -> None:
    async with service(SEA, say("I would note it."), say("Green."), say("A picture.")) as api:
        codes = await check_service(api)
    assert list(codes.values()) == ["", "", "NO_TOOL_CALL", "NO_CITATION", "IMAGE_NOT_SEEN"]
    async with service(SEA, use("note_colour", color=1), say("Green."), RED) as api:
        assert (await check_service(api))[ModelAbility.TOOLS] == "NO_TOOL_CALL"


async def test_missing_usage_and_refused_images_are_named() -> None:
    shape, rules = Shape(usage=False), ChatRules(images=False)
    async with FakeChatAPI(SEA, CALL, GREEN, shape=shape, rules=rules) as api:
        codes = await check_service(api)
    assert (codes[ModelAbility.USAGE], codes[ModelAbility.IMAGES]) == ("NO_USAGE", "REQUEST_REFUSED")
    async with FakeMessagesAPI(Step((Say(""),), usage=Usage(5, 0, 0, 1))) as api:
        assert await check_service(api) == {ModelAbility.ANSWERS: "NO_ANSWER"}


BROKEN: Mapping[str, tuple[Fault, str]] = {
    "html": (Fault(content_type="text/html"), "NO_STREAM"),
    "json": (Fault(content_type="application/json"), "NO_STREAM"),
    "a key that is refused": (Fault(status=401), "KEY_REFUSED"),
    "no rights": (Fault(status=403), "KEY_REFUSED"),
    "no such model": (Fault(status=404), "MODEL_UNKNOWN"),
    "busy": (Fault(status=429), "BUSY"),
    "down": (Fault(status=503), "SERVICE_FAILED"),
    "bad request": (Fault(status=400), "REQUEST_REFUSED"),
    "hung up": (Fault(refuse=True), "UNREACHABLE"),
    "cut": (Fault(end_at=200), "BROKEN_ANSWER"),
    "garbage": (Fault(garbage_after=2), "BROKEN_ANSWER"),
    "silent": (Fault(silent_after=0), "SILENT"),
    "silent in its middle": (Fault(silent_after=4), "SILENT"),
}


@pytest.mark.parametrize("service", [FakeMessagesAPI, FakeChatAPI])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_service_is_called_once_and_reported(service: Any, name: str) -> None:
    fault, code = BROKEN[name]
    async with service(Reply(SEA, fault)) as api:
        with anyio.fail_after(240):
            assert await check_service(api, 0.3 if code == "SILENT" else 20) == {ModelAbility.ANSWERS: code}


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run the command; return its exit code and whole output."""
    clean_environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "OPENAI"))
    }
    process = run_program(["models", "check", *arguments], cwd=folder, env={**clean_environment, **environment})
    return process.returncode, process.stdout + process.stderr


async def test_the_command_checks_all_models_prints_no_key_and_has_exit_codes(
    tmp_path: Path,
) -> None:
    def answer(body: Json) -> Step | Reply:
        if body["model"] == "bad":
            return Reply(SEA, Fault(status=400, message=f"the key {KEY} may not do that"))
        question = str(body["messages"])
        return CALL if body.get("tools") else GREEN if "cellar" in question else RED if "picture" in question else SEA

    async with FakeChatAPI(then=answer, key=KEY) as chat_api, FakeMessagesAPI(then=SEA, key=KEY) as messages_api:
        file = tmp_path / "providers.toml"
        file.write_text(
            f'default = "local:good"\n[providers.local]\nkind = "openai"\nbase_url = "{chat_api.base_url}"\n'
            f'key_env = "LOCAL_KEY"\nmodels = ["good", "bad"]\n'
            f'[providers.other]\nkind = "anthropic"\nbase_url = "{messages_api.url}"\nkey = "wrong-{KEY}"\n'
        )
        environment = {"AGENTIC_RAG_PROVIDERS": str(file), "LOCAL_KEY": KEY, "AGENTIC_RAG_DATA": str(tmp_path / "data")}
        code, output = await anyio.to_thread.run_sync(lambda: run(tmp_path, "local:good", **environment))
        assert (code, output.count("works"), KEY in output) == (0, 5, False), output
        code, output = await anyio.to_thread.run_sync(
            lambda: run(tmp_path, "local:bad", "other:x", "local:good", **environment)
        )
        assert (code, KEY in output) == (1, False), output
        lines = [line.split("\t") for line in output.splitlines()]
        assert ["local:bad", "answers", "FAILS", "REQUEST_REFUSED"] in [line[:4] for line in lines]
        assert ["other:x", "answers", "FAILS", "KEY_REFUSED"] in [line[:4] for line in lines]
        assert len(lines) == 7
    assert not (tmp_path / "data").exists()
    assert [request["model"] for request in chat_api.requests[:4]] == ["good"] * 4


def test_without_a_language_model_the_command_says_so(tmp_path: Path) -> None:
    code, output = run(tmp_path, AGENTIC_RAG_DATA=str(tmp_path / "data"))
    assert code == 1
    assert "no language model is set up" in output
    assert "Traceback" not in output
