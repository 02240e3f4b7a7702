"""Create a domain from a description: the author role nuwa writes its role, which then becomes the primary role.

Defines the initial settings of such a domain, the first message to nuwa, and the adoption of the written role. Knows no
conversation.
"""

from agentic_rag.access.users import SYSTEM, acting_for
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.json_form import Json
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import AUTHOR_ROLE
from agentic_rag.domains.domains import Domains, Saved
from agentic_rag.roles.roles import Roles
from agentic_rag.tools.system import ROLE_WRITE

MAX_CHARACTERS = 8_000
"""Maximum characters of a description."""


def born_role(domain_id: str) -> str:
    """Return the id of the role that is written for a new domain."""
    return f"{domain_id}-domain"


def first_message(domain_id: str, description: str) -> str:
    """Return the first message to nuwa: the description, and the id of the role."""
    return f"Write the role of this domain with the id `{born_role(domain_id)}`.\n\n{description}"


class DomainCreation:
    """Creates domains from descriptions.

    In a new domain, nuwa writes the role in a conversation; `adopt` then makes it the domain's primary role.
    """

    def __init__(self, directory: Directory, domains: Domains, roles: Roles) -> None:
        self._directory = directory
        self._domains = domains
        self._roles = roles

    async def begin(self, name: str, description: str, settings: Json, describe: str) -> Saved:
        """Create a domain in which nuwa may write roles until the domain has its own.

        Raises:
            InvalidInput: the settings already name a primary role, or ``describe`` is blank or too long.
        """
        if not describe.strip() or len(describe) > MAX_CHARACTERS:
            raise InvalidInput("describe", f"between 1 and {MAX_CHARACTERS} characters are expected.")
        if {"primaryRoleId", "primary_role_id"} & settings.keys():
            raise InvalidInput("settings.primaryRoleId", "leave it out: the role that is written becomes primary.")
        # Settings come in both spellings, and one setting must not be there under both.
        key = "tool_policy" if "tool_policy" in settings else "toolPolicy"
        policy = {ROLE_WRITE.name: "allow", **(settings.get(key) or {})}
        full_settings = {**settings, key: policy, "primaryRoleId": AUTHOR_ROLE, "adoptRole": True}
        return await self._domains.create(name, description, full_settings)

    async def adopt(self, domain_id: str) -> None:
        """Make the role written for a new domain its primary role, once the role exists.

        Called whenever the domain is read or used. Afterwards nuwa may not write roles any more.

        Raises:
            NotFound: there is no such domain.
        """
        settings = await self._directory.settings(domain_id)
        role = born_role(domain_id)
        if not settings.adopt_role or await self._roles.hash(domain_id, role) is None:
            return
        # None removes a setting, so the permission to write roles ends with the adoption.
        change = {"primaryRoleId": role, "adoptRole": None, "toolPolicy": {ROLE_WRITE.name: None}}
        with acting_for(SYSTEM):  # attribute the change to the system, not to the reader
            await self._domains.update(domain_id, settings=change, replace_maps=False)
