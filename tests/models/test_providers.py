"""The model of a process: chosen by the setting, from our own providers and from installed distributions."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from agentic_rag.base.errors import ModelError
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.calls import ModelCalls
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.models.names import ModelNames
from agentic_rag.models.providers import ChosenModel, choose_model
from tests.server.rig import Rig, settings_for

KEY = "sk-test"
ACME = """
from agentic_rag.models.extractive import ExtractiveModel

class AcmeModel(ExtractiveModel):
    name = "acme"

    def __init__(self, size):
        self.size = size

class Other:
    def __init__(self, inner):
        self.stream, self.aclose, self.name, self.size = inner.stream, inner.aclose, "acme", inner.size

def make_model(settings, name):
    return Other(AcmeModel(name))

def make_nothing(settings, name):
    return None

def fail(settings, name):
    raise OSError("no licence")
"""


@contextmanager
def install_distribution(folder: Path, name: str, value: str) -> Iterator[None]:
    """Install a distribution with one provider while the block runs."""
    info = folder / "acme_models-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[agentic_rag.model_providers]\n{name} = {value}\n")
    (folder / "acme_models.py").write_text(ACME)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("acme_models", None)


def choose(tmp_path: Path, model: str, key: str | None = None) -> ChosenModel:
    settings = settings_for(tmp_path, model=model)
    return choose_model(settings.model_copy(update={"anthropic_api_key": SecretStr(key) if key else None}))


def test_without_a_provider_the_key_decides(tmp_path: Path) -> None:
    without_key, with_key = choose(tmp_path, "claude-x"), choose(tmp_path, "claude-x", KEY)
    assert type(without_key.model) is ExtractiveModel
    assert (type(with_key.model), with_key.name) == (AnthropicModel, "claude-x")


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "OPENAI_BASE_URL"])
def test_an_openai_service_without_a_model_of_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:11434/v1")
    assert type(choose(tmp_path, "qwen3:8b").model) is ExtractiveModel
    assert f"{variable} is set, but" in caplog.text
    assert "AGENTIC_RAG_MODEL=openai:NAME" in caplog.text
    caplog.clear()
    choose(tmp_path, "openai:qwen3:8b")
    choose(tmp_path, "extractive:")
    choose(tmp_path, "claude-x", KEY)
    assert caplog.text == ""


def test_built_in_providers_are_registered_like_any_other(tmp_path: Path) -> None:
    assert isinstance(choose(tmp_path, "extractive:", KEY).model, ExtractiveModel)
    assert choose(tmp_path, "anthropic:claude-x", KEY).name == "claude-x"
    with pytest.raises(BadConfiguration, match="ANTHROPIC_API_KEY"):
        choose(tmp_path, "anthropic:claude-x")


def test_an_unknown_provider_prefix_belongs_to_the_model_name(tmp_path: Path) -> None:
    assert choose(tmp_path, "qwen3:8b", KEY).name == "qwen3:8b"


async def test_an_installed_distribution_adds_a_provider_that_the_server_uses(tmp_path: Path) -> None:
    with install_distribution(tmp_path / "site", "acme", "acme_models:make_model"):
        choice = choose(tmp_path, "acme:tiny:2")
        assert (choice.model.name, choice.name, getattr(choice.model, "size", "")) == ("acme", "tiny:2", "tiny:2")
        async with Rig(tmp_path, scripted=False, model="acme:tiny:2") as rig:
            assert (await rig.ok("GET", "/api/health"))["model"] == {"name": "acme", "state": "ready"}
            events = await rig.say(await rig.conversation(), "Who are you?")
            assert "no language model is configured" in "".join(
                event["text"] for event in events if event["type"] == "text"
            )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("acme_models:fail", "OSError: no licence"),
        ("acme_models:absent", "AttributeError"),
        ("acme_absent:make_model", "ModuleNotFoundError"),
        ("acme_models:make_nothing", "made 'NoneType', which is no model"),
        ("acme_models:ACME", "AttributeError"),
    ],
)
def test_a_broken_provider_is_named(tmp_path: Path, value: str, problem: str) -> None:
    with install_distribution(tmp_path / "site", "acme", value), pytest.raises(BadConfiguration) as error:
        choose(tmp_path, "acme:tiny")
    assert str(error.value).startswith(f"AGENTIC_RAG_MODEL: the model provider 'acme' ({value})")
    assert problem in str(error.value)


def test_no_distribution_replaces_a_built_in_provider(tmp_path: Path) -> None:
    with install_distribution(tmp_path / "site", "extractive", "acme_models:fail"):
        assert isinstance(choose(tmp_path, "extractive:").model, ExtractiveModel)


def test_a_model_is_down_when_all_its_providers_are() -> None:
    calls = ModelCalls("anthropic", ModelNames("anthropic", ("anthropic", "local")))

    def fail(model: str) -> None:
        with pytest.raises(ModelError), calls.watch(model):
            raise ModelError("away", http_status=529)

    def state() -> str:
        return calls.state(time.time()).value

    fail("local:qwen3:8b")
    assert state() == "down"
    with calls.watch("claude-sonnet-5-5"):
        pass
    assert (state(), sorted(calls.by_provider)) == ("degraded", ["anthropic", "local"])
    assert calls.by_provider["anthropic"].state(time.time()).value == "ready"
    fail("claude-sonnet-5-5")
    assert state() == "degraded", "it answered lately"
