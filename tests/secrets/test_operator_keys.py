"""The operator's keys, from the environment and the file of providers, appear in no event, log or result."""

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr

from agentic_rag.base.redaction import KEPT_VALUES, Redactor
from agentic_rag.base.settings import Settings
from agentic_rag.models.provider_file import Provider, Providers
from agentic_rag.models.providers import ChosenModel, secrets_of
from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import say
from tests.server.rig import Rig

OWN, OTHER, HEADER = "sk-own-0123456789-abcd", "sk-other-9876543210-wxyz", "Bearer tok-5555-6666-7777"
MASK = "[secret of the operator]"


async def test_no_event_message_or_log_holds_a_key_of_the_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer_text = f"Own {OWN}, other {OTHER}, header {HEADER.partition(' ')[2]}."
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(
            FakeChatAPI(say(answer_text), Reply(say("x"), Fault(status=400, message=answer_text)), key=OWN)
        )
        second_api = await stack.enter_async_context(FakeMessagesAPI(key=OTHER))
        file = tmp_path / "providers.toml"
        file.write_text(
            f'default = "one:m"\n[providers.one]\nkind = "openai"\nbase_url = "{api.base_url}"\nkey = "{OWN}"\n'
            f'headers = {{ X-Queue-Token = "{HEADER}", X-Title = "Staff desk" }}\n'
            f'[providers.two]\nkind = "anthropic"\nbase_url = "{second_api.url}"\nkey = "{OTHER}"\n'
        )
        rig = await stack.enter_async_context(Rig(tmp_path, scripted=False, providers=file))
        conversation = await rig.conversation()
        first_events = await rig.say(conversation, "Which keys are there? Staff desk?")
        second_events = await rig.say(conversation, "Again")
        messages = await rig.ok("GET", f"/api/conversations/{conversation}/messages")
        assert "".join(event["text"] for event in first_events if event["type"] == "text") == (
            f"Own {MASK}, other {MASK}, header {MASK}."
        )
        assert second_events[-1]["type"] == "error"
    for text in (str(first_events), str(second_events), str(messages), caplog.text):
        assert not [value for value in (OWN, OTHER, HEADER.partition(" ")[2]) if value in text]


async def test_a_key_in_a_log_line_of_a_models_provider_is_redacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose_model(settings: Settings, providers: Providers) -> ChosenModel:
        logging.getLogger("provider").warning("the key is %s", OWN)
        return ChosenModel(ScriptedModel(), "m", "scripted")

    monkeypatch.setattr("agentic_rag.app.application.choose_model", choose_model)
    file = tmp_path / "providers.toml"
    file.write_text(f'default = "one:m"\n[providers.one]\nkind = "anthropic"\nkey = "{OWN}"\n')
    async with Rig(tmp_path, scripted=False, providers=file):
        pass
    assert "the key is [secret]" in caplog.text
    assert OWN not in caplog.text


def test_keys_and_url_passwords_are_the_operators_secrets() -> None:
    provider = Provider(
        "one", "openai", "https://me:pass-word-1@host/v1", "sk-file-12345678", {"x-title": "Desk 12345678"}
    )
    settings = Settings(openai_api_key=SecretStr("not-needed"), anthropic_api_key=SecretStr(OWN))
    assert set(secrets_of(settings, Providers({"one": provider})).values()) == {
        OWN,
        "sk-file-12345678",
        "pass-word-1",
    }


def test_a_key_of_the_operator_is_not_forgotten_for_the_secrets_of_a_domain() -> None:
    redactor = Redactor({"key": OWN})
    for number in range(KEPT_VALUES + 50):
        redactor.add("d1", f"N{number}", f"value-{number:08}")
    assert redactor.of("d1")(f"{OWN} value-{KEPT_VALUES:08}") == f"{MASK} [secret N{KEPT_VALUES}]"
    assert "value-00000000" in redactor.of("d1")("value-00000000"), "the oldest of the domain's is"
    assert redactor.of("d2")(OWN) == MASK, "a domain without secrets of its own"
    assert redactor(OWN) == "[secret]", "logs"
    assert redactor.among(["d3"])(OWN) == "[secret]"
    with redactor.trying("d4", {"TRIED": "tried-12345678"}) as trial:
        assert trial(f"{OWN} tried-12345678") == f"{MASK} [secret TRIED]"
