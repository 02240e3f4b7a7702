"""The operator's model file, and the models that a domain can name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_rag.base.messages import Message, text_block, user_message
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.anthropic.request import BINDING_BETA
from agentic_rag.models.base import BlockStopped, ModelEvent, ModelRequest
from agentic_rag.models.openai.model import OpenAIModel
from agentic_rag.models.profile_file import read_profiles
from agentic_rag.models.profiles import profile_of, use_operator_profiles, with_capabilities
from agentic_rag.models.providers import ChosenModel
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.model_rules import RULES
from agentic_rag.testing.steps import Step, Think, say
from tests.server.rig import Rig

FILE = """
[models."qwen3:8b"]
context_window = 32768
output_limit = 8192
cites = false

[models.claude-haiku-4-5]
output_limit = 1000
"""


@pytest.fixture(autouse=True)
def no_file_stays() -> Iterator[None]:
    yield
    use_operator_profiles({})


def write(folder: Path, text: str) -> Path:
    path = folder / "models.toml"
    path.write_text(text)
    return path


def test_the_operators_file_overrides_table_and_service(tmp_path: Path) -> None:
    use_operator_profiles(read_profiles(write(tmp_path, FILE)))
    local = profile_of("qwen3:8b")
    assert (local.context_window, local.output_limit, local.cites, local.images) == (32_768, 8_192, False, True)
    haiku = profile_of("claude-haiku-4-5-20251001")
    assert (haiku.output_limit, haiku.cache_minimum) == (1_000, 4_096)
    assert with_capabilities(haiku, RULES["claude-haiku-4-5"].to_json()).output_limit == 1_000
    assert profile_of("claude-sonnet-5-5").output_limit == 128_000


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ('[models."m"]\noutput = 3', "models.m.output"),
        ('[models."m"]\noutput_limit = -3', "models.m.output_limit"),
        ('[models."m"]\nefforts = ["huge"]', "models.m.efforts.0"),
        ('[models."m"]\nthinking = ["sometimes"]', "models.m.thinking"),
        ('[models."m"]\nprices = { input = 1 }', "models.m.prices"),
        ('[models."m"]\ndisplay = "loud"', "models.m.display"),
        ('[models."m"]\nheaders = { "a b" = "c" }', "models.m.headers: 'a b' is no header"),
        ('[models."m"]\nheaders = { a = "c\\nd" }', "models.m.headers: 'a' is no header"),
        ('[models."m"]\nheaders = { a = " c" }', "models.m.headers: 'a' is no header"),
        ('[models."m"]\nheaders = { a = 1 }', "models.m.headers.a"),
        ('[models."m"]\nheaders = { a = "1", A = "2" }', "models.m.headers: 'A' is listed twice"),
        ('[models."m"]\nheaders = { Content-Type = "x" }', "models.m.headers: 'Content-Type' cannot be given"),
        ('[model."m"]', "model:"),
        ("[models", "is no TOML"),
    ],
)
def test_a_bad_file_is_refused_with_the_key_that_is_wrong(tmp_path: Path, text: str, phrase: str) -> None:
    with pytest.raises(BadConfiguration) as error:
        read_profiles(write(tmp_path, text))
    assert "AGENTIC_RAG_MODEL_PROFILES" in str(error.value)
    assert phrase in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="cannot be read"):
        read_profiles(tmp_path / "none.toml")


FILE_WITH_HEADERS = """
[models.claude-sonnet-5-5]
display = "omitted"
headers = { X-Desk = "7", anthropic-beta = "one-2026-01-01" }

[models.small-1]
headers = { X-Desk = "9" }
"""


async def ask(model: AnthropicModel | OpenAIModel, *messages: Message, name: str) -> list[ModelEvent]:
    async with model.stream(ModelRequest(name, 500, (text_block("Be brief."),), messages, ())) as events:
        return [event async for event in events]


async def test_a_model_is_asked_with_its_own_headers_and_its_thinking_is_shown_as_the_file_says(tmp_path: Path) -> None:
    use_operator_profiles(read_profiles(write(tmp_path, FILE_WITH_HEADERS)), {"openai": "openai"})
    hi = user_message("Hi")
    async with FakeMessagesAPI(then=Step((Think("hm"), say("So.").blocks[0]))) as api:
        model = AnthropicModel(api.key, api.url, headers={"anthropic-beta": "all-2026-01-01", "x-desk": "0"})
        try:
            events = await ask(model, hi, name="claude-sonnet-5-5")
            (answer,) = [event.block for event in events if isinstance(event, BlockStopped) and event.index == 0]
            assert (answer["type"], answer["thinking"]) == ("thinking", "")
            earlier_answer: Message = {"role": "assistant", "content": [answer, text_block("So.")]}
            await ask(model, user_message("Something else"), earlier_answer, hi, name="claude-sonnet-5-5")
            await ask(model, hi, name="claude-opus-5-5")
        finally:
            await model.aclose()
        assert model.mismatches == 1
        displays = [call.request["thinking"]["display"] for call in api.calls]
        assert displays == ["omitted", "omitted", "omitted", "summarized"]
        betas = "all-2026-01-01,one-2026-01-01"
        sent_headers = [(call.headers["anthropic-beta"], call.headers["x-desk"]) for call in api.calls]
        assert sent_headers == [(betas, "7"), (betas, "7"), (f"{betas},{BINDING_BETA}", "7"), ("all-2026-01-01", "0")]
    async with FakeChatAPI(then=say("So.")) as chat:
        chat_model = OpenAIModel(chat.key, chat.base_url, headers={"x-desk": "0"})
        try:
            for name in ("small-1", "small-2"):
                await ask(chat_model, hi, name=name)
        finally:
            await chat_model.aclose()
        assert [call.headers["x-desk"] for call in chat.calls] == ["9", "0"]


async def test_a_model_unknown_to_the_service_is_refused_on_configuration() -> None:
    async with FakeMessagesAPI() as api:
        model = AnthropicModel(api.key, api.url)
        choice = ChosenModel(model, "claude-sonnet-5-5", "anthropic")
        try:
            assert await choice.refusal("claude-sonnet-5-5") is None
            assert await choice.refusal("anthropic:claude-haiku-5-5") is None
            assert "does not know the model 'claude-sonnet-77'" in str(await choice.refusal("claude-sonnet-77"))
            assert "no provider 'extractive'" in str(await choice.refusal("extractive:any"))
            assert await choice.refusal("qwen3:8b") is None, "the endpoint's own names are not Claude's"
        finally:
            await model.aclose()
    async with FakeMessagesAPI(models_api=False) as api:
        model = AnthropicModel(api.key, api.url)
        try:
            assert await model.knows("claude-sonnet-77") is None
        finally:
            await model.aclose()


async def test_a_domain_can_only_name_models_of_the_provider(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hello.")) as rig:
        domain = await rig.domain()
        domain_path = f"/api/domains/{domain}"
        for key in ("model", "fallbackModel"):
            status, _, message = await rig.refused("PATCH", domain_path, {"settings": {key: "extractive:x"}})
            assert status in (400, 422)
            assert f"settings.{key}" in message
        await rig.ok("PATCH", domain_path, {"settings": {"model": "scripted:scripted-2"}})
        await rig.say(await rig.conversation(domain), "Hi")
        assert rig.model.requests[0].model == "scripted-2"
