"""Requests fit each model: parameters, limits of thinking, and refused settings of a domain."""

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from agentic_rag.base.errors import InvalidInput, ModelError
from agentic_rag.base.messages import Message, user_message
from agentic_rag.directory.settings import DomainSettings, merge_settings
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.anthropic.request import request_body, without_thinking
from agentic_rag.models.base import (
    BlockStopped,
    InputDelta,
    MessageCompleted,
    ModelProgress,
    ModelRequest,
    ThinkingDelta,
    ThinkingMode,
)
from agentic_rag.models.profiles import EFFORTS, PROFILES, profile_of, refusal_of, with_capabilities
from agentic_rag.testing.fake_api import FakeMessagesAPI, Reply
from agentic_rag.testing.model_rules import RULES
from agentic_rag.testing.problems import problems
from agentic_rag.testing.steps import Say, Step, Think, Use, say
from agentic_rag.tools.launch.policy import LaunchPolicy

REQUEST = ModelRequest("claude-sonnet-5-5", 4096, (), (user_message("hello"),))


@pytest.mark.parametrize("model", [*RULES, "claude-sonnet-5-5-20260901", "claude-opus-9", "qwen3:8b"])
@pytest.mark.parametrize("thinking", get_args(ThinkingMode))
@pytest.mark.parametrize("effort", [None, *EFFORTS])
@pytest.mark.parametrize("temperature", [None, 0.2])
def test_no_setting_makes_a_request_that_its_model_refuses(
    model: str, thinking: ThinkingMode, effort: str | None, temperature: float | None
) -> None:
    request = dataclasses.replace(
        REQUEST, model=model, thinking=thinking, effort=effort, temperature=temperature, max_tokens=200_000
    )
    assert problems(request_body(request), also_allowed={"temperature"}) == []


def test_thinking_is_shown_and_has_a_separate_token_budget() -> None:
    body = request_body(REQUEST)
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["max_tokens"] > 4096 + 4096
    off = request_body(dataclasses.replace(REQUEST, thinking="off"))
    assert (off["thinking"], off["max_tokens"]) == ({"type": "between_tools"}, 4096)
    always = request_body(dataclasses.replace(REQUEST, model="claude-opus-5-5", thinking="off"))
    assert always["output_config"] == {"effort": "low"}, "it cannot be told not to think"
    older = request_body(dataclasses.replace(REQUEST, model="claude-haiku-4-5"))
    assert older["thinking"]["budget_tokens"] == older["max_tokens"] - 4096
    assert "thinking" not in request_body(dataclasses.replace(REQUEST, model="qwen3:8b"))


def test_a_compatible_endpoint_gets_no_field_that_only_claude_supports() -> None:
    compatible = dataclasses.replace(REQUEST, model="qwen3:8b", effort="high", system=({"type": "text", "text": "a"},))
    assert request_body(compatible)["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert set(request_body(compatible)) == {"model", "max_tokens", "messages", "system"}
    assert request_body(REQUEST)["messages"][-1]["content"][-1]["cache_control"]["ttl"] == "1h"


def test_the_table_matches_the_service() -> None:
    for name, rules in RULES.items():
        profile = PROFILES[name]
        reported_profile = with_capabilities(profile, rules.to_json())
        assert reported_profile == dataclasses.replace(profile, diagnoses=True, structured=True), (
            name
        )  # never assumed for a gateway
        assert (profile.bound, profile.system_messages, profile.sampling) == (
            rules.bound,
            rules.system_messages,
            rules.sampling,
        ), name
        assert profile.cache_minimum == rules.cache_minimum


def test_the_services_model_data_overrides_the_table() -> None:
    info = RULES["claude-haiku-4-5"].to_json()
    profile = with_capabilities(profile_of("claude-sonnet-9"), info)
    assert (profile.thinking, profile.output_limit) == (frozenset({"enabled", "disabled"}), 64_000)
    assert with_capabilities(profile, {}) == profile


def test_an_unsupported_effort_is_refused_on_saving_and_a_temperature_is_not(tmp_path: Path) -> None:
    def merge(
        change: dict[str, Any], stored: dict[str, Any] | None = None, default: str = "claude-sonnet-5-5"
    ) -> DomainSettings:
        merged = merge_settings(
            stored or {},
            change,
            LaunchPolicy(tmp_path),
            domain="dom",
            workspace="/w",
            replace_maps=False,
            default_model=default,
        )
        return merged.settings

    assert merge({"temperature": 0.5}).temperature == 0.5
    with pytest.raises(InvalidInput, match="claude-haiku-4-5 does not take the effort"):
        merge({"model": "claude-haiku-4-5", "effort": "low"})
    settings = merge({"model": "claude-opus-5-5"}, {"model": "claude-sonnet-4-6", "temperature": 0.5})
    assert settings.temperature == 0.5
    with pytest.raises(InvalidInput, match="effort"):
        merge({"effort": "huge"})
    merge({"model": "claude-sonnet-4-6", "temperature": 0.5, "effort": "max", "thinking": "off"})
    merge({"temperature": 0.5}, default="")
    assert refusal_of("claude-sonnet-5-5", effort="max") is None
    assert DomainSettings().thinking is None


async def _collect_events(model: AnthropicModel, request: ModelRequest = REQUEST) -> list[Any]:
    async with model.stream(request) as events:
        return [event async for event in events]


async def test_thinking_arrives_and_a_refusal_names_its_category() -> None:
    refusal = Step((Say("I"),), stop_reason="refusal", category="cyber")
    async with FakeMessagesAPI(Step((Think("hm"), Say("So."))), refusal) as api:
        model = AnthropicModel(api.key, api.url)
        assert "hm" in "".join(event.text for event in await _collect_events(model) if isinstance(event, ThinkingDelta))
        end = (await _collect_events(model))[-1]
        await model.aclose()
    assert isinstance(end, MessageCompleted)
    assert (end.stop_reason, end.category) == ("refusal", "cyber")


async def test_arguments_of_a_call_are_streamed() -> None:
    call = Step((Use("look", {"text": "x" * 400}),))
    async with FakeMessagesAPI(Reply(call, rate=500), Reply(say("a " * 40), rate=500)) as api:
        model = AnthropicModel(api.key, api.url)
        pieces = [event.json for event in await _collect_events(model) if isinstance(event, InputDelta)]
        assert len(pieces) > 5
        assert json.loads("".join(pieces)) == {"text": "x" * 400}
        assert not any(isinstance(event, ModelProgress) for event in await _collect_events(model)), "words are events"
        await model.aclose()


@pytest.mark.parametrize("thinking", get_args(ThinkingMode))
async def test_thinking_that_no_longer_fits_is_left_out_and_the_call_continues(thinking: ThinkingMode) -> None:
    answer = Step((Think("hm"), Say("So.")))
    async with FakeMessagesAPI(answer, say("And on.")) as api:
        model = AnthropicModel(api.key, api.url)
        content = [event.block for event in await _collect_events(model) if isinstance(event, BlockStopped)]
        answer_message: Message = {"role": "assistant", "content": content}
        messages = (user_message("other"), answer_message, user_message("more"))
        changed_request = dataclasses.replace(REQUEST, messages=messages, thinking=thinking)
        assert isinstance((await _collect_events(model, changed_request))[-1], MessageCompleted)
        assert model.mismatches == 1
        await model.aclose()
    assert all("bound to a different conversation" in reason for reason in api.refused)


async def test_a_model_unknown_to_the_service_is_named() -> None:
    async with FakeMessagesAPI() as api:
        model = AnthropicModel(api.key, api.url)
        with pytest.raises(ModelError, match="claude-sonnet-9"):
            await _collect_events(model, dataclasses.replace(REQUEST, model="claude-sonnet-9"))
        await model.aclose()


def test_a_message_that_was_only_thinking_is_removed_with_it() -> None:
    thought = {"type": "thinking", "thinking": "a", "signature": "s"}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    assert without_thinking({"messages": [*body["messages"], {"role": "assistant", "content": [thought]}]}) == body
