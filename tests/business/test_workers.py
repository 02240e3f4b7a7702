"""Background work that fails again and again, as during an outage of the database."""

import pytest

from agentic_rag.base import workers
from agentic_rag.base.errors import StorageUnavailable
from agentic_rag.base.workers import attempt


async def attempt_all(*reasons: str) -> None:
    """Attempt the same work once for each reason to fail; an empty one succeeds."""
    for reason in reasons:

        async def work(reason: str = reason) -> None:
            if reason:
                raise StorageUnavailable(reason)

        await attempt("counting", work)


async def test_a_failure_that_repeats_is_logged_once_until_it_changes_or_ends(caplog: pytest.LogCaptureFixture) -> None:
    await attempt_all("refused", "refused", "refused", "reset", "reset", "", "reset", "")
    assert [record.getMessage() for record in caplog.records] == [
        f"counting: {StorageUnavailable(reason)}" for reason in ("refused", "reset", "reset")
    ]


async def test_a_failure_that_lasts_is_logged_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0.0)
    await attempt_all("refused", "refused", "")
    assert len(caplog.records) == 2
