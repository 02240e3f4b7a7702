"""Wrong settings of the process end its start with one line that names the value; empty ones are unset."""

from pathlib import Path

import pytest

from agentic_rag.app.application import open_application
from agentic_rag.base.settings import Settings, load_settings
from agentic_rag.base.startup_errors import BadConfiguration


def variables() -> list[tuple[str, str]]:
    """Return the name of each setting with one variable that sets it."""
    fields = Settings.model_fields.items()
    return [(name, f"AGENTIC_RAG_{name.upper()}") for name, field in fields if field.validation_alias is None]


@pytest.mark.parametrize(("name", "variable"), variables())
def test_an_empty_variable_leaves_the_default(monkeypatch: pytest.MonkeyPatch, name: str, variable: str) -> None:
    default = getattr(load_settings(), name)
    monkeypatch.setenv(variable, "")
    expected = "" if name == "trusted_proxies" else default  # there, empty means no proxy
    assert getattr(load_settings(), name) == expected


def test_an_empty_variable_counts_before_a_line_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("AGENTIC_RAG_PRICES=prices.json\nAGENTIC_RAG_TITLES=message\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTIC_RAG_PRICES", "")
    settings = load_settings()
    assert (settings.prices, settings.titles) == (None, "message")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "99999"),
        ("port", "eight"),
        ("workers", "0"),
        ("sign_in_minutes", "nan"),
        ("sign_in_hours", "inf"),
        ("sign_in_hours", "1e300"),
        ("requests_per_second", "inf"),
        ("log_level", "loud"),
        ("otlp_endpoint", "http://"),
        ("otlp_endpoint", "http://collector:99999"),
        ("max_upload_bytes", "-5"),
        ("max_upload_bytes", "100MB"),
        ("model_idle_seconds", "0"),
        ("retry_budget_seconds", "-1"),
        ("wait_hours", "1e12"),
        ("drain_seconds", "-5"),
        ("run_log_hours", "1e12"),
        ("backup_every", "nan"),
        ("mcp_registration", "maybe"),
        ("root_path", "/rag/../x"),
        ("root_path", "/rag/."),
        ("allowed_hosts", "https://rag.example"),
        ("allowed_hosts", "rag.example:8443"),
        ("source_folders", "shared"),
        ("source_folders", "/srv/../etc"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    variable = f"AGENTIC_RAG_{name.upper()}"
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadConfiguration) as refusal:
        load_settings()
    text = str(refusal.value)
    assert text.startswith(f"{variable}: {value!r}")
    assert "\n" not in text


def test_names_and_addresses_are_possible_hosts() -> None:
    assert load_settings(allowed_hosts="rag.example, my_host, 10.0.0.1, ::1").allowed_hosts


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://127.0.0.1:port", "http://127.0.0.1:99999", "a b"])
async def test_an_address_that_no_index_server_can_have_prevents_the_start(tmp_path: Path, address: str) -> None:
    settings = load_settings(data=tmp_path, qdrant_url=address, embedding="none")
    with pytest.raises(BadConfiguration, match="QDRANT_URL: must be a URL"):
        async with open_application(settings):
            pass
