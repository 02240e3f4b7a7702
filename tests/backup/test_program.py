"""The program that writes backups, run by a server: whatever goes wrong around it is one kind of error."""

from pathlib import Path

import pytest

from agentic_rag.backup.program import ProgramFailed, run_program
from tests.server.rig import settings_for


async def test_what_fails_while_the_program_is_heard_ends_it_with_the_documented_error(tmp_path: Path) -> None:
    def hear(line: str) -> None:
        raise OverflowError("a number that is none")

    with pytest.raises(ProgramFailed, match="a number that is none"):
        await run_program(settings_for(tmp_path), "--help", on_line=hear)
