"""Try a draft of a role in a turn before saving it.

Checks the right to do so, and builds the definition. The draft is frozen in the turn's definition: a resumed turn uses
the same text, and no temporary files are left in the workspace.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, InvalidInput
from agentic_rag.roles.roles import Roles
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.tools.base import DraftFile, RoleDraft
from mcp_servers.promptx.nuwa import RoleFile

MAX_CHARACTERS = 256 * 1024
"""Maximum characters of all files of a draft, because it is stored with each turn that tries it."""


@dataclass(frozen=True, slots=True)
class TriedRole:
    """A role draft that its author tries."""

    role: str
    files: tuple[RoleFile, ...]


class Trials:
    """Builds the definitions of turns that try a draft."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    async def definition(self, user: User, definition: Definition, tried: TriedRole | None) -> Definition:
        """Return the definition with the drafted role as the primary one, or unchanged if ``tried`` is None.

        Raises:
            Forbidden: the user is not an author of the domain.
            InvalidInput: the draft is too large, names no role, or is incomplete.
        """
        if tried is None:
            return definition
        if not user.writes(definition.domain_id):
            raise Forbidden("Only an author or an admin of the domain may try a draft of a role.")
        return await self.apply(definition, tried)

    async def apply(self, definition: Definition, tried: TriedRole) -> Definition:
        """Return the definition with the drafted role as the primary one; the caller has checked the right to try it.

        Raises:
            InvalidInput: the draft is too large, names no role, or is incomplete.
        """
        check_size(tried.files)
        # Rendered now, so that the author sees the mistakes before a turn is paid for.
        view = await self._roles.draft(definition.domain_id, tried.role, tried.files)
        if view.hash is None:
            errors = [str(finding) for finding in view.findings if finding.severity == "error"]
            raise InvalidInput("roleDraft.files", "\n".join(errors) or "the role file is not complete.")
        draft = RoleDraft(tuple(DraftFile(file.kind, file.id, file.content) for file in tried.files), view.hash)
        return replace(
            definition,
            persona=replace(definition.persona, role=tried.role),
            binding=replace(definition.binding, role=tried.role, draft=draft),
        )


def check_size(files: Sequence[RoleFile]) -> None:
    """Refuse a draft that is too large. Raises `InvalidInput`."""
    if sum(len(file.content) for file in files) > MAX_CHARACTERS:
        raise InvalidInput("roleDraft.files", f"at most {MAX_CHARACTERS} characters in all files are possible.")
