"""No request, valid or invalid by the OpenAPI document, causes a server error or an undeclared answer."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("every", "operations"),
    [(24, 3), pytest.param(4, 18, marks=pytest.mark.nightly("a fourth of all operations instead of a 24th"))],
)
def test_no_request_causes_a_server_error_or_an_undocumented_answer(
    tmp_path: Path, every: int, operations: int
) -> None:
    from tests.faults.fuzzing import fuzz  # every worker collects this file, and schemathesis is large

    fuzzing = fuzz(tmp_path, examples=6, number=15, every=every)
    assert not fuzzing.problems, "\n".join(fuzzing.problems[:20])
    assert fuzzing.operations >= operations
    assert {200, 404, 422} <= fuzzing.statuses.keys(), fuzzing.statuses
