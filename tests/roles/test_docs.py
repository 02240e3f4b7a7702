"""docs/roles.md is true: its example passes the check, and its table lists exactly the existing codes."""

import re
from pathlib import Path
from typing import get_args

from agentic_rag.commands.roles import check_folder
from mcp_servers.promptx import lint, rolefiles
from mcp_servers.safe_files import Why

DOCS = Path(__file__).parents[2] / "docs" / "roles.md"
EXAMPLE = re.compile(r"^`(role/[^`]+)`:\n\n```markdown\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_passes_the_check(tmp_path: Path) -> None:
    examples = EXAMPLE.findall(DOCS.read_text("utf-8"))
    assert len(examples) == 3
    for name, content in examples:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    assert check_folder(tmp_path) == []


def test_the_table_names_every_code_and_no_other() -> None:
    table = DOCS.read_text("utf-8").partition("| code |")[2].partition("\n\n")[0]
    documented_codes = {
        code for row in table.splitlines()[2:] for code in re.findall(r"`([a-z-]+)`", row.split("|")[1])
    }
    source = "".join(Path(str(module.__file__)).read_text("utf-8") for module in (lint, rolefiles))
    codes = set(re.findall(r'"(?:error|warning|info)", "([a-z-]+)"', source))
    codes |= set(re.findall(r'\bseverity, "([a-z-]+)"', source)) | set(re.findall(r'refuse\("([a-z-]+)"', source))
    codes |= set(get_args(Why)) - {"outside", "not-a-folder"}  # of a name, of a folder
    assert documented_codes == codes - {"warning"}  # where all severities are listed
