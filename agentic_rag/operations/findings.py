"""A finding of the consistency check: what does not fit, what that means, and what becomes of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not fit. ``subject`` is its id or place; ``remedy`` says what a repair does, or has done.

    ``by_hand``: no repair can bring it back; ``remedy`` says what its owner does.
    """

    code: str
    subject: str
    problem: str
    remedy: str
    by_hand: bool = False

    def __str__(self) -> str:
        remedy = f"to do: {self.remedy}" if self.by_hand else f"({self.remedy})"
        return f"{self.code} {self.subject}: {self.problem} {remedy}"
