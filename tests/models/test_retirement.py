"""The retirement of models: our table against the SDK's, and the warnings before and after the date."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from anthropic.resources.messages.messages import DEPRECATED_MODELS

from agentic_rag.models.profiles import profile_of, use_operator_profiles, with_capabilities
from agentic_rag.models.retirement import WARNING_DAYS, retirement_of, retirements_of
from agentic_rag.models.service_errors import Endpoint, status_error
from tests.server.rig import Rig

SONNET = "claude-sonnet-4-5"
LAST_DAY = date(2026, 11, 30)


def day_of(text: str) -> date:
    for ending in ("st", "nd", "rd", "th"):
        text = text.replace(f"{ending},", ",")
    return datetime.strptime(text, "%B %d, %Y").replace(tzinfo=UTC).date()


def test_every_retirement_in_the_sdk_since_2026_is_listed() -> None:
    sdk_days = {name: day_of(text) for name, text in DEPRECATED_MODELS.items()}
    retirements = {name: retirement_of(name, date(2099, 1, 1)) for name in sdk_days}
    recent = {name for name, day in sdk_days.items() if day.year >= 2026}
    assert recent
    assert {name: sdk_days[name].isoformat() for name in recent} == {
        name: retirement.on for name, retirement in retirements.items() if name in recent and retirement is not None
    }


def test_a_retiring_model_is_named_with_its_successor_60_days_before() -> None:
    assert retirement_of(SONNET, LAST_DAY - timedelta(days=WARNING_DAYS + 1)) is None
    texts = [retirement.text(LAST_DAY + timedelta(days=days)) for days in (-60, -1, 0, 1)
             if (retirement := retirement_of(f"{SONNET}-20250929", LAST_DAY + timedelta(days=days)))]  # fmt: skip
    assert ["in 60 days" in texts[0], "in 1 day)" in texts[1], "today" in texts[2], "was retired" in texts[3]] == [
        True
    ] * 4
    assert all("claude-sonnet-5-5" in text for text in texts)
    assert retirement_of("claude-sonnet-5-5", LAST_DAY) is None
    assert [retirement.model for retirement in retirements_of([SONNET, SONNET, "", "claude-opus-4-0"], LAST_DAY)] == [
        "claude-opus-4-0",
        SONNET,
    ]


def test_service_and_operator_override_the_table() -> None:
    profile = with_capabilities(profile_of(SONNET), {"retires_at": "2027-02-01T00:00:00Z"})
    assert profile.retires == "2027-02-01"
    use_operator_profiles({SONNET: {"retires": "2027-03-01", "successor": "qwen3"}})
    try:
        assert retirement_of(SONNET, LAST_DAY) is None
        retirement = retirement_of(SONNET, date(2027, 2, 20))
        assert retirement is not None
        assert retirement.text(date(2027, 2, 20)).endswith("set another model, such as qwen3.")
    finally:
        use_operator_profiles({})


def test_the_error_for_a_retired_model_names_the_successor() -> None:
    endpoint = Endpoint("https://models.example", "KEY", "MODEL", "BASE_URL")
    retired_error = status_error(
        404, "not_found_error", "model: claude-opus-4-0", {}, model="claude-opus-4-0", endpoint=endpoint
    )
    assert str(retired_error).endswith(
        "claude-opus-4-0 was retired on 2026-06-15: set another model, such as claude-opus-5-5."
    )
    unknown_error = status_error(
        404, "not_found_error", "model: nope", {}, model="claude-sonnet-5-5", endpoint=endpoint
    )
    assert "retired" not in str(unknown_error)


@pytest.mark.parametrize("days", [10, -10])
async def test_settings_and_health_name_a_model_that_retires(days: int, tmp_path: Path) -> None:
    on = (datetime.now(UTC).date() + timedelta(days=days)).isoformat()
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'[models."claude-haiku-5-5"]\nretires = "{on}"\nsuccessor = "claude-haiku-6"\n')
    try:
        async with Rig(tmp_path / "server", model_profiles=profiles) as rig:
            domain = await rig.domain()
            assert "retiring" not in await rig.ok("GET", "/api/health")
            change = {"settings": {"model": "claude-haiku-5-5"}}
            saved = await rig.ok("PATCH", f"/api/domains/{domain}", change)
            (warning,) = saved["warnings"]
            assert (warning["path"], "claude-haiku-6" in warning["text"]) == ("settings.model", True)
            (retiring,) = (await rig.ok("GET", "/api/health"))["retiring"]
            assert retiring == {"model": "claude-haiku-5-5", "on": on, "successor": "claude-haiku-6"}
    finally:
        use_operator_profiles({})
