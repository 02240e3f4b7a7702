"""The planted bugs still fit the code.

`scripts/faults mutants` takes long and must not fail because of a changed name.
"""

import ast

import pytest

from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.server import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_changes_one_place_of_its_function(mutant: Mutant) -> None:
    before = (ROOT / "agentic_rag" / mutant.file).read_text("utf-8")
    assert ast.dump(ast.parse(mutant.plant(before))) != ast.dump(ast.parse(before))


def test_a_planted_bug_that_no_longer_applies_is_named() -> None:
    mutant = Mutant("lose the sum", "sums.py", "Sums.add", "self.total + number", "self.total")
    source = "class Sums:\n    def add(self, number):\n        return (self.total\n            + number)  # the sum\n"
    assert "return self.total\n" in mutant.plant(source) + "\n"
    for changed_source in (
        source.replace("add", "plus"),
        source.replace("+", "-"),
        source + "        return self.total + number\n",
    ):
        with pytest.raises(AssertionError, match="lose the sum"):
            mutant.plant(changed_source)
