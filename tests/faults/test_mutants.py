"""The planted bugs still fit the code: `scripts/faults mutants` runs for long, and must not fail for a moved line."""

import pytest

from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.server import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_a_planted_bug_stands_once(mutant: Mutant) -> None:
    text = (ROOT / "agentic_rag" / mutant.file).read_text("utf-8")
    assert text.count(mutant.text) == 1
