"""The operator's providers, from a file or only from the environment; domains choose among them."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.events import Usage
from agentic_rag.base.settings import load_settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.anthropic.clouds import BedrockModel, CloudModel
from agentic_rag.models.names import ModelNames
from agentic_rag.models.profiles import profile_of, use_operator_profiles
from agentic_rag.models.provider_file import read_providers
from agentic_rag.models.providers import choose_model
from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.steps import Step, Think, say
from tests.server.rig import Rig, settings_for

FILE = """
default = "local:qwen3:8b"

[providers.local]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
models = ["qwen3:8b", "small"]
fallback = ["cloud:us.anthropic.claude-haiku-5-5-v1:0"]
[providers.local.profiles."qwen3:8b"]
context_window = 8000
thinks = true

[providers.gateway]
kind = "anthropic"
base_url = "http://127.0.0.1:2"
key_env = "GATEWAY_KEY"
headers = { X-Title = "Desk" }

[providers.cloud]
kind = "bedrock"
region = "eu-central-1"

[providers.google]
kind = "vertex"
project = "p"
region = "global"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "providers.toml"
    path.write_text(text)
    return path


def test_a_models_file_names_providers_and_model_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sk-gate")
    providers = read_providers(write(tmp_path, FILE))
    assert providers.providers["gateway"].key == "sk-gate"
    assert "sk-gate" not in repr(providers)
    choice = choose_model(settings_for(tmp_path), providers)
    assert (choice.name, choice.provider) == ("local:qwen3:8b", "local")
    assert choice.fallbacks == {"local": ("cloud:us.anthropic.claude-haiku-5-5-v1:0",)}
    try:
        use_operator_profiles(providers.profiles, providers.kinds)
        local = profile_of("local:qwen3:8b")
        assert (local.context_window, local.thinks, local.cites, local.caching) == (8000, True, False, False)
        assert profile_of("local:small").context_window is None
        cloud = profile_of("cloud:us.anthropic.claude-haiku-5-5-v1:0")
        assert (cloud.name, cloud.bound, cloud.hour_cache) == ("claude-haiku-5-5", True, False)
        assert profile_of("gateway:anthropic/claude-opus-4.5").name == "claude-opus-4-5"
        assert profile_of("google:claude-haiku-4-5@20251001").name == "claude-haiku-4-5"
        assert not profile_of("gateway:qwen3").cites
    finally:
        use_operator_profiles({})


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("providers = {}", "providers"),
        ('[providers.x]\nkind = "open"', "providers.x.kind"),
        ('[providers.X]\nkind = "openai"', "providers.X"),
        ('[providers.extractive]\nkind = "openai"', "providers.extractive"),
        ('[providers.x]\nkind = "openai"\nsecret = "y"', "providers.x.secret"),
        ('[providers.x]\nkind = "openai"\nkey_env = "NOT_SET_ANYWHERE"', "NOT_SET_ANYWHERE is not set"),
        ('[providers.x]\nkind = "openai"\nheaders = { a = "ä" }', "providers.x.headers"),
        ('[providers.x]\nkind = "openai"\nfallback = ["y:z"]', "providers.x.fallback"),
        ('default = "x:big"\n[providers.x]\nkind = "openai"\nmodels = ["small"]', "x has no 'big'; it has small"),
        ('[providers.x]\nkind = "openai"\n[providers.x.profiles.m]\ncontext_window = -1', "context_window"),
        ("[providers", "is no TOML"),
    ],
)
def test_a_bad_file_is_refused_with_the_key_that_is_wrong(tmp_path: Path, text: str, phrase: str) -> None:
    with pytest.raises(BadConfiguration) as error:
        read_providers(write(tmp_path, text))
    assert "AGENTIC_RAG_PROVIDERS" in str(error.value)
    assert phrase in str(error.value)


def test_a_provider_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for text, phrase in (
        ('[providers.x]\nkind = "openai"', "providers.x.key"),
        ('[providers.x]\nkind = "openai"\nbase_url = "nowhere"', "providers.x.base_url"),
        ('[providers.x]\nkind = "openai"\nbase_url = "http://h/v1"', "AGENTIC_RAG_MODEL"),
    ):
        with pytest.raises(BadConfiguration, match=phrase):
            choose_model(settings_for(tmp_path), read_providers(write(tmp_path, text)))


def test_names_are_normalised() -> None:
    names = ModelNames("local", {"local", "anthropic"})
    assert names.keep("qwen3:8b") == names.keep("local:qwen3:8b") == "local:qwen3:8b"
    assert names.keep("anthropic:claude-sonnet-5-5") == "claude-sonnet-5-5"
    assert names.split("local:qwen3:8b") == ("local", "qwen3:8b")


async def test_the_environment_alone_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeChatAPI(say("Hello from afar."), models=("qwen3:8b",)) as api:
        monkeypatch.setenv("OPENAI_BASE_URL", api.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", api.key)
        settings = load_settings(data=tmp_path / "d", model="openai:qwen3:8b")
        assert settings.openai_base_url == api.base_url
        rig_options: dict[str, Any] = {"openai_base_url": api.base_url, "openai_api_key": api.key}
        async with Rig(tmp_path, scripted=False, model="openai:qwen3:8b", **rig_options) as rig:
            events = await rig.say(await rig.conversation(), "Hi")
            assert events[-1]["type"] == "done"
            assert events[-1]["model"] == "openai:qwen3:8b"
            assert (await rig.ok("GET", "/api/health"))["model"]["name"] == "openai"
            domain = await rig.domain()
            domain_path = f"/api/domains/{domain}"
            _, _, message = await rig.refused("PATCH", domain_path, {"settings": {"model": "openai:other"}})
            assert "it has qwen3:8b" in message
            _, _, message = await rig.refused(
                "PATCH", domain_path, {"settings": {"model": "anthropic:claude-sonnet-5-5"}}
            )
            assert "no provider 'anthropic'" in message


async def test_domains_choose_among_providers_and_fall_back_along_a_chain(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        busy_reply = Reply(say("Never."), Fault(status=529, retry_after="999"))
        chat_api = await stack.enter_async_context(FakeChatAPI(busy_reply, say("First."), key=None))
        thought = Step((Think("Hm."), *say("Second.").blocks), usage=Usage(7, 0, 0, 3))
        messages_api = await stack.enter_async_context(FakeMessagesAPI(thought, key=None))
        text = (
            f'default = "one:small"\n[providers.one]\nkind = "openai"\nbase_url = "{chat_api.base_url}"\n'
            'models = ["small"]\nfallback = ["two:other"]\n'
            f'[providers.two]\nkind = "anthropic"\nbase_url = "{messages_api.url}"\n'
        )
        rig = await stack.enter_async_context(Rig(tmp_path, scripted=False, providers=write(tmp_path, text)))
        domain = await rig.domain()
        domain_path, conversation = f"/api/domains/{domain}", await rig.conversation(domain)
        events = await rig.say(conversation, "Hi")
        assert [event["code"] for event in events if event["type"] == "notice"] == ["FALLBACK_MODEL"]
        assert events[-1]["model"] == "two:other"
        assert "cache_control" not in str(messages_api.requests[0])
        usage = await rig.ok("GET", "/api/usage?groupBy=model")
        assert [(row["model"], row["input"]) for row in usage["items"]] == [("two:other", 7)]
        for key, name in (("model", "one:big"), ("fallbackModel", ["two:x", "one:big"]), ("model", "two:")):
            _, _, message = await rig.refused("PATCH", domain_path, {"settings": {key: name}})
            assert f"settings.{key}" in message
            assert "This server has one:small, two:NAME." in message
        await rig.ok("PATCH", domain_path, {"settings": {"model": "two:other", "fallbackModel": ["one:small"]}})
        await rig.ok("PATCH", domain_path, {"settings": {"model": "one:small", "fallbackModel": None}})
        events = await rig.say(conversation, "Again")
        assert events[-1]["model"] == "one:small"
        assert "Hm." not in str(chat_api.requests[-1])


def test_cloud_models_are_created_without_their_sdks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "k")
    providers = read_providers(write(tmp_path, FILE)).providers
    assert "amazonaws" in repr(BedrockModel(providers["cloud"]))
    assert "googleapis" in repr(CloudModel(providers["google"]))
