"""Forms for the files of a role, to write or only to try.

This module knows no rule and no route.
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
    """Files of a role that are not written yet. Without ``files`` the draft is the template of a new role."""

    files: tuple[NewFile, ...] | None = Field(None, min_length=1, max_length=MAX_FILES)

    def to_files(self) -> tuple[RoleFile, ...] | None:
        return None if self.files is None else tuple(file.to_file() for file in self.files)


class NewRole(DraftedFiles):
    """Files of a role to write. Without ``files`` the template of a new role is written.

    If ``replace`` is false, an existing file is an error.
    """

    replace: bool = True


class TriedFiles(Form):
    """A draft of ``role``. The turn runs as if its files were written. Only authors of the domain may send one."""

    role: RoleId
    files: tuple[NewFile, ...] = Field(min_length=1, max_length=MAX_FILES)

    def to_tried(self) -> TriedRole:
        return TriedRole(self.role, tuple(file.to_file() for file in self.files))
