"""A domain's skills: the skill folders of its workspace, and its roles in the form of skills.

`mcp_servers.promptx.skills` reads and checks skills. Knows no request. Callers have checked the user's rights.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentic_rag.base.errors import NotFound
from agentic_rag.base.json_form import Json
from agentic_rag.base.threads import DomainThreads
from agentic_rag.store import domains
from agentic_rag.store.database import Database
from mcp_servers.promptx.errors import BadRoleId, BrokenRole, SkillUnreadable, UnknownRole, UnknownSkill
from mcp_servers.promptx.roles import RoleLibrary
from mcp_servers.promptx.skills import BODY, Skill, SkillFile, SkillLibrary, read_front_matter, role_as_skill


@dataclass(frozen=True, slots=True)
class OfferedSkill:
    """A skill offered to other programs: its front matter as JSON, and its files with SHA-256 digests.

    ``source`` is a folder of the workspace, or a role in the form of a skill. ``digest`` changes with any file.
    """

    name: str
    description: str
    source: Literal["folder", "role"]
    front_matter: Json
    files: tuple[SkillFile, ...]
    digest: str


class Skills:
    """The skills of all domains. ``builtin`` is the folder of the built-in roles.

    Each method raises `WorkspaceUnavailable` if the workspace does not answer.
    """

    def __init__(self, database: Database, builtin: Path, threads: DomainThreads) -> None:
        self._db = database
        self._builtin = builtin
        self._threads = threads

    async def list_of(self, domain_id: str) -> list[Skill]:
        """Return the skill folders in the domain's workspace, with their findings.

        Raises:
            NotFound: there is no such domain.
        """
        workspace = await self._workspace(domain_id)
        return await self._threads.read(str(workspace), SkillLibrary(workspace).list)

    async def list_offered(self, domain_id: str) -> list[OfferedSkill]:
        """Return the usable skills and the workspace's roles in the form of skills, by name.

        A folder wins over a role of the same name.

        Raises:
            NotFound: there is no such domain.
        """
        workspace = await self._workspace(domain_id)
        return await self._threads.read(str(workspace), self._list_offered, workspace)

    async def read_file(self, domain_id: str, skill: str, path: str = BODY) -> bytes:
        """Return the current content of a file of a skill from `list_offered`.

        Raises:
            NotFound: there is no such domain, skill or file, or it may not be read.
        """
        workspace = await self._workspace(domain_id)
        try:
            return await self._threads.read(str(workspace), self._file, workspace, skill, path)
        except (UnknownSkill, SkillUnreadable) as exc:
            raise NotFound("skill", f"{skill}/{path}") from exc

    async def export(self, domain_id: str, role: str) -> tuple[str, str]:
        """Return a role in the form of a skill: its name, and its ``SKILL.md``.

        Raises:
            NotFound: there is no such domain or role, or the role's file is broken.
        """
        workspace = await self._workspace(domain_id)
        try:
            return await self._threads.read(str(workspace), self._export, workspace, role)
        except (BadRoleId, UnknownRole, BrokenRole) as exc:
            raise NotFound("role", role) from exc

    async def _workspace(self, domain_id: str) -> Path:
        record = await self._db.read(lambda conn: domains.get(conn, domain_id))
        if record is None:
            raise NotFound("domain", domain_id)
        return Path(record.workspace)

    def _list_offered(self, workspace: Path) -> list[OfferedSkill]:
        by_name = {name: skill for name, (skill, _) in self._roles(workspace).items()}
        for folder in SkillLibrary(workspace).list():
            if folder.usable:
                by_name[folder.name] = OfferedSkill(
                    folder.name, folder.description, "folder", folder.front_matter, folder.files, folder.digest
                )
        return [by_name[name] for name in sorted(by_name)]

    def _file(self, workspace: Path, skill: str, path: str) -> bytes:
        library = SkillLibrary(workspace)
        if skill in [name for name, _ in library.summaries()]:
            return library.read(skill, path)
        roles = self._roles(workspace)
        if skill not in roles:
            raise UnknownSkill(skill, tuple(roles))
        # A role in the form of a skill is rendered: it has no other files.
        if path != BODY:
            raise SkillUnreadable(skill, path, f"it has {BODY} alone")
        return roles[skill][1].encode()

    def _export(self, workspace: Path, role: str) -> tuple[str, str]:
        library = RoleLibrary(workspace, self._builtin)
        return role_as_skill(role, library.summaries([role])[role], library.activate(role).text)

    def _roles(self, workspace: Path) -> dict[str, tuple[OfferedSkill, str]]:
        """Return the workspace's usable roles with their texts, by skill name."""
        library = RoleLibrary(workspace, self._builtin)
        # The built-in roles belong to this server, and are nothing that a domain could offer.
        roles = [role.id for role in library.list() if role.source == "workspace"]
        summaries = library.summaries(roles)
        by_name: dict[str, tuple[OfferedSkill, str]] = {}
        for role in roles:
            try:
                name, text = role_as_skill(role, summaries[role], library.activate(role).text)
            except (UnknownRole, BrokenRole):
                continue
            front, _, _ = read_front_matter(text, BODY)
            digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
            files = (SkillFile(BODY, len(text.encode()), digest),)
            by_name[name] = OfferedSkill(name, str(front["description"]), "role", front, files, digest), text
        return by_name
