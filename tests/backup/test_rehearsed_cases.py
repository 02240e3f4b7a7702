"""The rehearsal of an upgrade judges the evaluation cases of all domains on a copy, and changes nothing else."""

from pathlib import Path

import pytest

from agentic_rag.backup.rehearsed_cases import rehearse_cases
from agentic_rag.evaluation.decisions import Decision
from tests.evaluation.test_runs import QUESTIONS, make_filled_domain, run
from tests.server.rig import Rig

from .later import make_later
from .test_commands import run as run_command

WORSE = """
    op.execute("UPDATE domains SET settings = json_set(settings, '$.retrievalThreshold', 0.999)")
"""


@pytest.mark.slow("indexes two copies, one of them in a program")
@pytest.mark.sqlite("its commands have a file")
async def test_a_version_with_worse_searches_is_reported_before_its_installation(tmp_path: Path) -> None:
    later_revisions = make_later(tmp_path / "migrations")
    step = later_revisions.folder / "versions" / "v9002_later.py"
    step.write_text(step.read_text().rstrip() + WORSE)
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        assert (await run(rig, domain, tier="retrieval"))["passed"] == len(QUESTIONS)
        await rig.domain()  # without cases

        lines: list[str] = []
        (report,) = await rehearse_cases(rig.settings, lines.append, later_revisions)
        assert report.comparison is not None
        assert report.comparison.decision is Decision.HOLD
        assert len(report.worse) == len(QUESTIONS) - report.passed >= 2
        assert set(report.worse) < set(QUESTIONS.values())
        assert (report.domain, report.cases, lines[0]) == (domain, len(QUESTIONS), "copying the data")

        runs = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/runs"))["items"]
        assert len(runs) == 1
        assert list((rig.settings.data / "backups").iterdir()) == []
        code, output, errors = await run_command(tmp_path, "upgrade", "--rehearse", "--cases", "--data", "data")
    assert (code, "6 of 6 cases pass; pass: none of 6 worse, none better." in output) == (0, True), output + errors
    assert "copying the data" in errors
    code, _, errors = await run_command(tmp_path, "upgrade", "--cases", "--data", "data")
    assert (code, "add --rehearse" in errors) == (2, True), errors
