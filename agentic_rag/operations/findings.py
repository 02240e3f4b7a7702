"""A finding of the consistency check: the problem and its remedy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency. ``subject`` is its id or path. ``remedy`` says how a repair fixes it or has fixed it.

    ``by_hand`` means that no repair can restore the data; ``remedy`` then tells the owner how.
    """

    code: str
    subject: str
    problem: str
    remedy: str
    by_hand: bool = False

    def __str__(self) -> str:
        remedy = f"to do: {self.remedy}" if self.by_hand else f"({self.remedy})"
        return f"{self.code} {self.subject}: {self.problem} {remedy}"
