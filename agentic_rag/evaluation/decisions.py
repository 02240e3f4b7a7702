"""Comparison of two runs over the same cases, and the decision about the change between them. Pure.

Each case is paired with itself. An exact one-sided sign test says how likely so many cases would become worse by
chance, if a change were as likely to make a case better as worse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import comb

from agentic_rag.evaluation.verdicts import CaseOutcome, ResultSummary


class Decision(StrEnum):
    """Whether a change may count: yes, yes with a warning, or only if a person applies it anyway."""

    PASS = "pass"
    WARN = "warn"
    HOLD = "hold"


HOLD_EXACT = 0.25
"""A search gives the same passages each time: hold from two cases worse and none better."""
HOLD_VARYING = 0.13
"""Answers of a model vary: hold from three cases worse and none better."""
WARN = 0.5
"""Warn if so many worse cases, or more, are at most this likely by chance: from one worse and none better."""
RANK_WARN = 0.05
"""Warn if right passages rank lower in so many cases, although they are still found."""


@dataclass(frozen=True, slots=True)
class CaseChange:
    """A case before and after a change. ``direction`` is below 0 if it became worse, above 0 if better."""

    case_id: str
    before: CaseOutcome
    after: CaseOutcome
    before_rank: int | None
    after_rank: int | None
    direction: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared. ``compared`` counts the cases with a verdict in both, ``unknown`` those without.

    ``p`` is the sign test of worse against better cases, ``rank_p`` that of ranks among cases that passed in both.
    """

    decision: Decision
    compared: int
    unknown: int
    worse: tuple[CaseChange, ...]
    better: tuple[CaseChange, ...]
    p: float
    rank_worse: int
    rank_better: int
    rank_p: float
    reason: str

    @property
    def sentence(self) -> str:
        """The decision in words, such as ``3 of 40 worse, none better (p = 0.12)``."""
        if not self.compared:
            return self.reason
        better = f"{len(self.better) or 'none'} better"
        text = f"{len(self.worse) or 'none'} of {self.compared} worse, {better}"
        text += f" (p = {self.p:.2g})" if self.worse else ""
        return f"{text}; {self.reason}" if self.reason else text


def sign_test(worse: int, better: int) -> float:
    """Return the probability of at least ``worse`` of all changed cases being worse by chance."""
    total = worse + better
    # Exact integers: with 5 000 cases, a sum of floats would underflow to zero.
    ways: int = sum(comb(total, count) for count in range(worse, total + 1))
    return float(ways / 2**total)


_JUDGED = (CaseOutcome.PASSED, CaseOutcome.FAILED)


def compare_runs(
    before: Mapping[str, ResultSummary],
    after: Mapping[str, ResultSummary],
    *,
    varies: bool,
    removes_documents: bool = False,
) -> Comparison:
    """Compare two runs by case id.

    Args:
        varies: whether the same input may give another answer. Then more worse cases are needed for a hold.
        removes_documents: whether the change removes documents. A case that loses its document then counts as worse.
            Otherwise such a case cannot be compared.
    """
    worse: list[CaseChange] = []
    better: list[CaseChange] = []
    compared = unknown = rank_worse = rank_better = impossible = 0
    for case_id in sorted(before.keys() & after.keys()):
        old, new = before[case_id], after[case_id]
        loses_document = removes_documents and new.outcome is CaseOutcome.GONE and old.outcome is CaseOutcome.PASSED
        if loses_document:
            compared += 1
            impossible += 1
            worse.append(_change(case_id, old, new, -1))
            continue
        if old.outcome not in _JUDGED or new.outcome not in _JUDGED:
            # A case that is gone or unchecked in one run says nothing about the change and is not counted at all.
            unknown += CaseOutcome.UNKNOWN in (old.outcome, new.outcome)
            continue
        compared += 1
        if old.outcome is not new.outcome:
            direction = 1 if new.outcome is CaseOutcome.PASSED else -1
            (better if direction > 0 else worse).append(_change(case_id, old, new, direction))
        elif old.rank and new.rank and old.outcome is CaseOutcome.PASSED:
            rank_worse += new.rank > old.rank
            rank_better += new.rank < old.rank
    p, rank_p = sign_test(len(worse), len(better)), sign_test(rank_worse, rank_better)
    decision, reason = Decision.PASS, ""
    if worse and p <= WARN:
        decision = Decision.HOLD if p <= (HOLD_VARYING if varies else HOLD_EXACT) else Decision.WARN
    if rank_worse and rank_p <= RANK_WARN:
        reason = f"right passages rank lower in {rank_worse} and higher in {rank_better} (p = {rank_p:.2g})"
        decision = Decision.WARN if decision is Decision.PASS else decision
    if impossible:
        decision, reason = Decision.HOLD, f"{impossible} would lose the document that answers it"
    if unknown:
        reason = "; ".join(filter(None, [reason, f"{unknown} could not be judged"]))
        if not compared:  # a model that is down proves nothing: neither a pass nor a hold
            decision = Decision.WARN
    return Comparison(
        decision, compared, unknown, tuple(worse), tuple(better), p, rank_worse, rank_better, rank_p, reason
    )


def _change(case_id: str, old: ResultSummary, new: ResultSummary, direction: int) -> CaseChange:
    return CaseChange(case_id, old.outcome, new.outcome, old.rank, new.rank, direction)
