"""No request that the OpenAPI document allows, or does not, makes the server fail or answer what it does not say."""

from pathlib import Path

from tests.faults.fuzzing import fuzz


def test_no_request_fails_the_server_or_gets_an_answer_that_is_not_documented(tmp_path: Path) -> None:
    found = fuzz(tmp_path, examples=6, number=15, every=4)
    assert not found.problems, "\n".join(found.problems[:20])
    assert found.operations >= 18
    assert {200, 404, 422} <= found.statuses.keys(), found.statuses
