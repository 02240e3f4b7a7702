"""Writing of role files: their layout, a template for a new role, and atomic replacement.

Checks neither the content of a role nor the caller's rights: `roles.RoleLibrary.write` validates the content, and the
server requires an administrator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mcp_servers.promptx.dpml import Kind
from mcp_servers.safe_files import Folder

MAX_FILES: Final = 50
"""Maximum number of files of one role in one call."""


@dataclass(frozen=True, slots=True)
class RoleFile:
    """One file of a role: `{id}.{kind}.md` with `content`."""

    kind: Kind
    id: str
    content: str


def layout(role: str, file: RoleFile) -> str:
    """Return the path of a new file relative to the resource folder, in PromptX's layout."""
    name = f"{file.id}.{file.kind}.md"
    return f"role/{role}/{name}" if file.kind == "role" else f"role/{role}/{file.kind}/{name}"


def put(home: Folder, files: Sequence[tuple[str, str]]) -> None:
    """Write all files below a workspace in their order. All contents are on disk before the first file is replaced.

    Raises:
        OSError: no file was replaced, unless a rename failed between two files of one folder.
    """
    home.write_all([(path, content.encode()) for path, content in files])


def template(role: str) -> tuple[RoleFile, ...]:
    """Return the files of a small, complete role that passes lint, as a template for authors."""
    thought, execution = f"{role}-thought", f"{role}-work"
    return (
        RoleFile("thought", thought, _THOUGHT),
        RoleFile("execution", execution, _EXECUTION),
        RoleFile("role", role, _ROLE.format(role=role, thought=thought, execution=execution)),
    )


_ROLE: Final = """<role>
  <personality>
    # {role}

    Say in two or three sentences who this role is and whom it serves.
    用两三句话说明这个角色是谁、为谁服务。

    @!thought://{thought}
  </personality>

  <principle>
    @!execution://{execution}
  </principle>

  <knowledge>
    Facts that only this organisation knows: names, limits, exceptions.
    只写这里独有的事实：名称、限制、例外。
  </knowledge>
</role>
"""

_THOUGHT: Final = """<thought>
  <exploration>
    What to find out before answering.
  </exploration>

  <reasoning>
    How to get from what was found to an answer.
  </reasoning>
</thought>
"""

_EXECUTION: Final = """<execution>
  <constraint>
    What must never happen.
  </constraint>

  <process>
    1. First step
    2. Second step
  </process>

  <criteria>
    How to tell that the work is done.
  </criteria>
</execution>
"""
