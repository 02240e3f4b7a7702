"""The operator's file of prices: exact prices, and errors that name the field and the line."""

from decimal import Decimal
from pathlib import Path

import pytest

from agentic_rag.base.events import Usage
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.prices import Prices, read_prices
from tests.server.test_cli import assert_one_line, run

GOOD = """{
  "currency": "EUR",
  "models": {
    "claude-sonnet-5-5": {"input": 3, "cacheRead": 0.30, "cacheWrite": "3.75", "output": 15},
    "gpt-5*": [
      {"from": "2027-01-01", "input": 1, "output": 8},
      {"input": "1.25", "cacheRead": "0.125", "output": 10}
    ],
    "gpt-5-mini": {"input": 0.1, "output": 0.2}
  }
}
"""


def parse_prices(folder: Path, text: str) -> Prices:
    path = folder / "prices.json"
    path.write_text(text, encoding="utf-8")
    return read_prices(path)


def test_money_is_exact_and_every_kind_of_token_has_its_price(tmp_path: Path) -> None:
    price = parse_prices(tmp_path, GOOD).find("claude-sonnet-5-5", "2026-11-23")
    assert price is not None
    assert price.cost(Usage(1, 10, 100, 1)) == Decimal("0.000396")
    assert price.cost(Usage(10**12, 1, 0, 0)) == Decimal("3000000.0000003")
    assert price.most(1000, 10) == Decimal("0.0039"), "all of the request may be written to the cache"


def test_a_model_is_found_by_its_name_without_provider_and_date_and_by_patterns(tmp_path: Path) -> None:
    prices = parse_prices(tmp_path, GOOD)

    def input_of(model: str, day: str = "2026-11-23") -> Decimal | None:
        price = prices.find(model, day)
        return None if price is None else price.input

    assert input_of("anthropic:claude-sonnet-5-5") == 3
    assert input_of("claude-sonnet-5-5-20260930") == 3
    assert input_of("openai:gpt-5-mini") == Decimal("0.1"), "a name goes before a pattern"
    assert input_of("gpt-5.2") == Decimal("1.25")
    assert input_of("gpt-5.2", "2027-01-01") == 1, "a price counts from its day on"
    assert input_of("gpt-4") is None
    assert input_of("extractive") == 0


PRICED = """{
  "currency": "EUR",
  "models": {
    "*": {"input": 9, "output": 9},
    "claude-sonnet*": {"input": 8, "output": 8},
    "claude-sonnet-5-5": {"input": 3, "output": 15},
    "anthropic:claude-opus-5-5": {"input": 5, "output": 25},
    "claude-opus-5-5*": {"input": 7, "output": 7},
    "gpt-5*": {"input": 2, "output": 2},
    "gpt-5*-mini": {"input": 1, "output": 1},
    "gpt-5-nano": [{"from": "2027-01-01", "input": 4, "output": 4}]
  }
}
"""


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("claude-sonnet-5-5-20260930", 3),
        ("anthropic:claude-sonnet-5-5", 3),
        ("anthropic:claude-sonnet-5-5-20260930", 3),
        ("anthropic:claude-opus-5-5-20260930", 5),
        ("claude-opus-5-5-20260930", 7),
        ("claude-sonnet-4", 8),
        ("openai:gpt-5.2-mini-2026-09-30", 1),
        ("openai:gpt-5.2", 2),
        ("gpt-5-nano", 2),
        ("openai:other", 9),
    ],
)
def test_names_precede_patterns_and_long_patterns_precede_short_ones(tmp_path: Path, model: str, price: int) -> None:
    model_price = parse_prices(tmp_path, PRICED).find(model, "2026-11-23")
    assert model_price is not None
    assert model_price.input == price


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD.replace("10}", "-10}"), "prices.json: models.gpt-5*.1.output: "),
        (GOOD.replace('"EUR"', '"euro"'), "prices.json: currency: "),
        (GOOD.replace('"cacheRead": 0.30', '"cachedRead": 0.30'), "models.claude-sonnet-5-5.0.cachedRead: "),
        (GOOD.replace('"output": 8', '"outpt": 8'), "models.gpt-5*.0.output: "),
        (GOOD.replace('"2027-01-01"', '"2027-13-01"'), "models.gpt-5*.0.from: a day is expected"),
        (GOOD.replace("0.30", "NaN"), "models.claude-sonnet-5-5.0.cacheRead: a number is expected"),
        (GOOD.replace("0.30", '"much"'), "models.claude-sonnet-5-5.0.cacheRead: "),
        (GOOD.replace("15}", "15,}"), "line 4: this is no JSON"),
        (GOOD.replace("gpt-5-mini", "gpt-5*"), "line 9: gpt-5* is listed twice"),
        ("[" * 100_000, "line 1: it is nested too deep"),
        ("[]", "prices.json: "),
    ],
)
def test_an_error_names_the_field_or_the_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadConfiguration) as refusal:
        parse_prices(tmp_path, text)
    assert problem in str(refusal.value)
    assert str(refusal.value).startswith("AGENTIC_RAG_PRICES: ")


def test_a_command_checks_the_model_file_and_a_start_refuses_a_wrong_one(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(GOOD)
    bad.write_text(GOOD.replace("15}", "fifteen}"))
    result = run(tmp_path, "models", "prices", str(good))
    assert result.returncode == 0, result.stderr
    assert "gpt-5*\t2027-01-01\t1\t1\t1\t8\tEUR" in result.stdout.splitlines()
    assert_one_line(run(tmp_path, "models", "prices", str(bad)), 2, "line 4")
    (tmp_path / ".env").write_text(f"AGENTIC_RAG_PRICES={bad}\n")
    assert_one_line(run(tmp_path, "domains", "list"), 2, "AGENTIC_RAG_PRICES", "line 4")
