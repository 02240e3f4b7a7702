"""What routes take of a role: its files, written or only tried.

Owns these forms. Knows no rule and no route.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from agentic_rag.base.forms import Form
from agentic_rag.directory.settings import RoleId
from agentic_rag.roles.trials import TriedRole
from mcp_servers.promptx.dpml import MAX_CHARS, Kind
from mcp_servers.promptx.nuwa import MAX_FILES, RoleFile


class NewFile(Form):
    """One file of a role: ``{id}.{kind}.md``."""

    kind: Kind
    id: str
    content: Annotated[str, StringConstraints(max_length=MAX_CHARS)]

    def to_file(self) -> RoleFile:
        return RoleFile(self.kind, self.id, self.content)


class DraftedFiles(Form):
    """Files as they would be written; without ``files`` the template of a new role."""

    files: tuple[NewFile, ...] | None = Field(None, min_length=1, max_length=MAX_FILES)

    def to_files(self) -> tuple[RoleFile, ...] | None:
        return None if self.files is None else tuple(each.to_file() for each in self.files)


class NewRole(DraftedFiles):
    """Without ``files`` the template of a new role is written. ``replace`` false: a file that exists is a refusal."""

    replace: bool = True


class TriedFiles(Form):
    """A draft of ``role``: this turn runs on it as if its files had been written. For authors of the domain."""

    role: RoleId
    files: tuple[NewFile, ...] = Field(min_length=1, max_length=MAX_FILES)

    def to_tried(self) -> TriedRole:
        return TriedRole(self.role, tuple(each.to_file() for each in self.files))
