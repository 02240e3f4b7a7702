"""The days on which model services retire models, and the texts that warn of them. Pure.

A request for a retired model fails, so operators and admins are warned `WARNING_DAYS` before. The day comes from the
operator's profile (`ModelProfile.retires`), else from the table here, which holds the dates that Anthropic publishes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Final

from agentic_rag.base.json_form import Absent
from agentic_rag.models.profiles import profile_of

WARNING_DAYS: Final = 60
_DATE: Final = re.compile(r"-\d{8}$")
_RETIREMENTS: Final[dict[str, tuple[str, str]]] = {
    "claude-3-7-sonnet": ("2026-02-19", "claude-sonnet-5-5"),
    "claude-3-7-sonnet-latest": ("2026-02-19", "claude-sonnet-5-5"),
    "claude-3-5-haiku": ("2026-02-19", "claude-haiku-5-5"),
    "claude-3-5-haiku-latest": ("2026-02-19", "claude-haiku-5-5"),
    "claude-3-opus": ("2026-01-05", "claude-opus-5-5"),
    "claude-opus-4": ("2026-06-15", "claude-opus-5-5"),
    "claude-opus-4-0": ("2026-06-15", "claude-opus-5-5"),
    "claude-sonnet-4": ("2026-06-15", "claude-sonnet-5-5"),
    "claude-sonnet-4-0": ("2026-06-15", "claude-sonnet-5-5"),
    "claude-mythos-preview": ("2026-06-30", "claude-mythos-5-2"),
    "claude-sonnet-4-5": ("2026-11-30", "claude-sonnet-5-5"),
    "claude-opus-4-5": ("2027-01-22", "claude-opus-5-5"),
}
"""Name without its date → day of the retirement, and the successor. State of the anthropic SDK 2.14."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """A model that its service retires. ``on``: the day, ISO 8601. ``successor``: a model to use instead, if known."""

    model: str
    on: str
    successor: Absent[str] = None

    def days_left(self, today: date) -> int:
        """Return the days until the retirement, negative after it."""
        return (date.fromisoformat(self.on) - today).days

    def text(self, today: date) -> str:
        """Return the warning for people."""
        instead = f"such as {self.successor}" if self.successor else "from its service's list"
        left = self.days_left(today)
        if left < 0:
            return f"{self.model} was retired on {self.on}: set another model, {instead}."
        when = "today" if left == 0 else f"in {left} day{'s' if left > 1 else ''}"
        return f"{self.model} retires on {self.on} ({when}) and then answers no more: set another model, {instead}."


def retirement_of(model: str, today: date) -> Retirement | None:
    """Return the retirement of a model if it is at most `WARNING_DAYS` away or over, else None.

    ``model`` may begin with its provider.
    """
    profile = profile_of(model)
    on, successor = _RETIREMENTS.get(_DATE.sub("", profile.name), ("", ""))
    if profile.retires is not None:
        on, successor = profile.retires, ""
    if not on:
        return None
    retirement = Retirement(model, on, profile.successor or successor or None)
    return retirement if retirement.days_left(today) <= WARNING_DAYS else None


def retirements_of(models: Iterable[str], today: date) -> list[Retirement]:
    """Return the retirements of several models that are due or near, the earliest first."""
    retirements = [retirement_of(model, today) for model in dict.fromkeys(models) if model]
    return sorted(
        (retirement for retirement in retirements if retirement is not None),
        key=lambda retirement: (retirement.on, retirement.model),
    )
