"""A new domain that was only described: nuwa writes its role, and the role becomes primary once it is written.

Owns the settings such a domain begins with, the words nuwa is asked with, and when the role is taken. Knows no
conversation.
"""

from agentic_rag.access.users import SYSTEM, acting_for
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import AUTHOR_ROLE
from agentic_rag.domains.domains import Domains, Saved
from agentic_rag.errors import InvalidInput
from agentic_rag.json_form import Json
from agentic_rag.roles.roles import Roles
from agentic_rag.tools.system import ROLE_WRITE

MAX_CHARACTERS = 8_000
"""Of a description."""


def born_role(domain_id: str) -> str:
    """Return the id of the role that is written for a domain at its birth."""
    return f"{domain_id}-domain"


def first_message(domain_id: str, description: str) -> str:
    """Return what nuwa is asked: the description, and the id of the role."""
    return f"Write the role of this domain with the id `{born_role(domain_id)}`.\n\n{description}"


class Births:
    """Begins described domains, and takes their roles."""

    def __init__(self, directory: Directory, domains: Domains, roles: Roles) -> None:
        self._directory = directory
        self._domains = domains
        self._roles = roles

    async def begin(self, name: str, description: str, settings: Json, describe: str) -> Saved:
        """Make a domain in which nuwa may write roles until the domain has its own.

        Raises:
            InvalidInput: the settings name a primary role already, or ``describe`` is blank or too long.
        """
        if not describe.strip() or len(describe) > MAX_CHARACTERS:
            raise InvalidInput("describe", f"between 1 and {MAX_CHARACTERS} characters are expected.")
        if {"primaryRoleId", "primary_role_id"} & settings.keys():
            raise InvalidInput("settings.primaryRoleId", "leave it out: the role that is written becomes primary.")
        key = "tool_policy" if "tool_policy" in settings else "toolPolicy"
        policy = {ROLE_WRITE.name: "allow", **(settings.get(key) or {})}
        given = {**settings, key: policy, "primaryRoleId": AUTHOR_ROLE, "adoptRole": True}
        return await self._domains.create(name, description, given)

    async def adopt(self, domain_id: str) -> None:
        """Make the role that was written at a domain's birth its primary one, if it is there by now.

        Asked whenever the domain is looked at or used; nuwa may then write no more.

        Raises:
            NotFound: there is no such domain.
        """
        settings = await self._directory.settings(domain_id)
        role = born_role(domain_id)
        if not settings.adopt_role or await self._roles.hash(domain_id, role) is None:
            return
        change = {"primaryRoleId": role, "adoptRole": None, "toolPolicy": {ROLE_WRITE.name: None}}
        with acting_for(SYSTEM):  # nobody who merely looks at it
            await self._domains.update(domain_id, settings=change, replace_maps=False)
