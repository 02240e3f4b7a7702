"""No request that the OpenAPI document allows, or does not, makes the server fail or answer what it does not say."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("every", "operations"),
    [(24, 3), pytest.param(4, 18, marks=pytest.mark.nightly("a fourth of all operations instead of a 24th"))],
)
def test_no_request_causes_a_server_error_or_an_undocumented_answer(
    tmp_path: Path, every: int, operations: int
) -> None:
    from tests.faults.fuzzing import fuzz  # imports Schemathesis, which each worker would load when it collects

    found = fuzz(tmp_path, examples=6, number=15, every=every)
    assert not found.problems, "\n".join(found.problems[:20])
    assert found.operations >= operations
    assert {200, 404, 422} <= found.statuses.keys(), found.statuses
