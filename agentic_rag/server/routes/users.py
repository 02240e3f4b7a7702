"""REST routes for users.

This module defines the forms and answers. ``access.people`` decides the rules.
"""

from collections.abc import Mapping, Sequence

from pydantic import Field

from agentic_rag.access.keys import MAX_DOMAINS, Access
from agentic_rag.access.people import MAX_NAME, People, UserChange
from agentic_rag.base.errors import UserErasing
from agentic_rag.base.forms import Form
from agentic_rag.operations.erasure import Erasure
from agentic_rag.server.replies import Items, answer, answer_from
from agentic_rag.server.routes.keys import Key
from agentic_rag.server.routing import route
from agentic_rag.store.users import Grant, RightsSource, UserRecord, UserState

USERS = "/api/users"
ONE = f"{USERS}/{{person}}"

Grants = dict[str, Grant]


class NewUser(Form):
    """A user to create. ``grants`` maps domain ids to rights; an operator needs none."""

    name: str
    display_name: str = Field("", max_length=MAX_NAME)
    operator: bool = False
    grants: Grants = Field(default_factory=dict, max_length=MAX_DOMAINS)


class ChangedUser(Form):
    """Changes to a user. ``grants`` replaces all existing grants."""

    display_name: str | None = Field(None, max_length=MAX_NAME)
    operator: bool | None = None
    grants: Grants | None = Field(None, max_length=MAX_DOMAINS)


@answer()
class Person:
    """A user. ``origin`` tells who decides on the grants: an operator, or the groups of an OpenID provider."""

    name: str
    display_name: str
    operator: bool
    grants: Mapping[str, Grant]
    state: UserState
    origin: RightsSource
    created_at: str
    updated_at: str


@answer()
class PersonWithKeys(Person):
    """A user with their keys, including revoked ones."""

    keys: Sequence[Key]


@answer()
class Erased:
    """Result of erasing a user. ``number`` replaces the name in usage records and reports."""

    number: int


class UserRoutes:
    """Users and their rights."""

    def __init__(self, people: People, access: Access, erasure: Erasure) -> None:
        self._people = people
        self._erasure = erasure
        self._access = access

    @route("GET", USERS)
    async def list_users(self) -> Items[Person]:
        """List users by name."""
        return Items([_person(user) for user in await self._people.list_all()])

    @route("POST", USERS, status=201)
    async def create(self, body: NewUser) -> Person:
        """Create a user. The user can sign in once there is a key."""
        user = await self._people.create(body.name, body.display_name, operator=body.operator, grants=body.grants)
        return _person(user)

    @route("GET", ONE)
    async def get(self, person: str) -> PersonWithKeys:
        """Show a user with their keys."""
        user = await self._people.get(person)
        keys = [answer_from(Key, key) for key in await self._access.list_all() if key.user_id == person]
        return answer_from(PersonWithKeys, user, name=user.id, keys=keys)

    @route("PATCH", ONE)
    async def change(self, person: str, body: ChangedUser) -> Person:
        """Change a user. Withdrawn rights end at once, also on open connections."""
        return _person(await self._people.update(person, UserChange(body.display_name, body.operator, body.grants)))

    @route("DELETE", ONE)
    async def erase(self, person: str) -> Erased:
        """Erase a person's conversations, memories, logins and keys. Usage is kept under a number. Safe to repeat."""
        return Erased(await self._erasure.erase(person))

    @route("POST", f"{ONE}/disable", errors=[UserErasing])
    async def disable(self, person: str) -> Person:
        """Disable a user: keys, sign-ins, tickets, sockets and streams end at once."""
        return _person(await self._people.disable(person))

    @route("POST", f"{ONE}/enable", errors=[UserErasing])
    async def enable(self, person: str) -> Person:
        """Enable a disabled user, with the keys that were not revoked."""
        return _person(await self._people.enable(person))


def _person(user: UserRecord) -> Person:
    return answer_from(Person, user, name=user.id)
