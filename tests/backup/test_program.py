"""The program that writes backups, run by a server: every failure of its surroundings is the same kind of error."""

from pathlib import Path

import pytest

from agentic_rag.backup.program import ProgramFailed, run_program
from tests.server.rig import settings_for


async def test_a_failing_output_handler_ends_the_program_with_the_documented_error(tmp_path: Path) -> None:
    def hear(line: str) -> None:
        raise OverflowError("a number that is none")

    with pytest.raises(ProgramFailed, match="a number that is none"):
        await run_program(settings_for(tmp_path), "--help", on_line=hear)
