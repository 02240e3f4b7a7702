"""Users: created, changed, disabled and enabled by an operator, or provided by an OpenID provider.

This module makes these changes and their audit rows. Rights that a user loses end with the change. Erasing a person is
in ``operations.erasure``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.keys import Access, check_grants, check_name
from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import InvalidInput, NotFound, UserErasing
from agentic_rag.store import authorizations, logins, users
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.users import Grant, RightsSource, UserFields, UserRecord, UserState

MAX_NAME = 200
"""Maximum length of a display name in characters."""


@dataclass(frozen=True, slots=True)
class UserChange:
    """The changes to a user; None leaves a field unchanged. ``grants`` replaces all grants."""

    display_name: str | None = None
    operator: bool | None = None
    grants: Mapping[str, Grant] | None = None
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Provided:
    """A user as described by an OpenID provider. ``subject`` is unique; ``name`` is the preferred name.

    ``groups`` are sorted.
    """

    subject: str
    name: str
    display_name: str
    operator: bool
    grants: Mapping[str, Grant]
    groups: tuple[str, ...] = ()


class People:
    """The users of a database. ``access``: the accepted credentials."""

    def __init__(self, database: Database, access: Access) -> None:
        self._db = database
        self._access = access

    async def list_all(self) -> list[UserRecord]:
        """Return all users by name, without erased ones."""
        return [user for user in await self._db.read(users.list_all) if user.state is not UserState.ERASED]

    async def get(self, user_id: str) -> UserRecord:
        """Return a user.

        Raises:
            NotFound: there is no user with this name.
        """
        return _there(await self._db.read(lambda conn: users.get(conn, user_id)), user_id)

    async def create(
        self, name: str, display_name: str = "", *, operator: bool = False, grants: Mapping[str, Grant] | None = None
    ) -> UserRecord:
        """Create a user, who can come in once there is a key.

        Raises:
            InvalidInput: the name is invalid or taken, or a domain is unknown.
        """
        check_name(name, "name")
        initial_grants, at = dict(grants or {}), now()
        entry = change("user.create", name, operator=operator, grants=initial_grants)

        def store(conn: Connection) -> UserRecord:
            users.lock(conn)
            if users.get(conn, name) is not None:
                raise InvalidInput("name", f"there is a user {name!r} already.")
            check_grants(conn, initial_grants)
            user = UserRecord(
                id=name,
                number=users.next_number(conn),
                display_name=_plain_name(display_name),
                operator=operator,
                grants=initial_grants,
                created_at=at,
                updated_at=at,
            )
            users.insert(conn, user)
            audit(conn, entry)
            return user

        created = await self._db.write(store, durable=True)
        await self._access.apply_changes()
        return created

    async def update(self, user_id: str, user_change: UserChange) -> UserRecord:
        """Change a user. Withdrawn rights end at once; after any change of rights the user must sign in again.

        Raises:
            NotFound: there is no user with this name.
            InvalidInput: a domain is unknown, or an OpenID provider determines the user's rights.
        """
        details = {
            "operator": user_change.operator,
            "grants": None if user_change.grants is None else dict(user_change.grants),
        }
        entry = change("user.update", user_id, **{name: value for name, value in details.items() if value is not None})

        def store(conn: Connection) -> UserRecord:
            user = _there(users.get(conn, user_id), user_id)
            fields = _changed_fields(user, user_change)
            if fields.keys() & {"operator", "grants"}:
                if user.origin is RightsSource.OIDC:
                    raise InvalidInput("grants", f"what {user_id} may do is said by the groups of the OpenID provider.")
                check_grants(conn, fields.get("grants", {}))
                # A login was made with the old rights.
                logins.end_of_user(conn, user_id)
            if fields:
                users.update(conn, user_id, now(), **fields)
            audit(conn, entry)
            return _there(users.get(conn, user_id), user_id)

        changed = await self._db.write(store, durable=True)
        await self._access.apply_changes()
        return changed

    async def disable(self, user_id: str) -> UserRecord:
        """Disable a user: logins, authorizations, sockets and streams end at once, and keys count as revoked.

        Raises:
            NotFound: there is no user with this name.
        """
        changed = await self._set_state(user_id, UserState.DISABLED, "user.disable")
        # Effective at once, even if the store cannot be read now.
        self._access.drop(user_ids=(user_id,))
        await self._access.apply_changes()
        return changed

    async def enable(self, user_id: str) -> UserRecord:
        """Enable a disabled user, with the keys that were not revoked.

        Raises:
            NotFound: there is no user with this name.
        """
        changed = await self._set_state(user_id, UserState.ACTIVE, "user.enable")
        await self._access.apply_changes()
        return changed

    async def take_in(self, provided: Provided) -> UserRecord | None:
        """Create or update the user described by an OpenID provider, and return the user.

        If the preferred name belongs to another user, a new one gets a generated name that cannot be requested.
        Disabled users are returned as such. Returns None for an unknown user without rights.
        """
        unchanged = self._unchanged_user(provided)
        if unchanged is not None:
            return unchanged
        user_change = _change_of(provided)
        details = {"operator": provided.operator, "grants": dict(provided.grants)}

        def store(conn: Connection) -> UserRecord | None:
            users.lock(conn)  # a page of a new user makes several requests at once
            user = users.by_subject(conn, provided.subject)
            # Anyone can get a token at a public provider; without rights, no row is kept of them.
            if user is None and not provided.operator and not provided.grants:
                return None
            if user is None:
                user = _new_provided(conn, provided)
                users.insert(conn, user)
                audit(conn, Entry(user.id, "user.provided", user.id, details=details))
                return user
            fields = _changed_fields(user, user_change)
            if fields.keys() & {"operator", "grants"}:
                logins.end_of_user(conn, user.id)
                audit(conn, Entry(user.id, "user.provided", user.id, details=details))
            if fields:
                users.update(conn, user.id, now(), **fields)
            return _there(users.get(conn, user.id), user.id)

        user = await self._db.write(store, durable=True)
        await self._access.apply_changes()
        return user

    def _unchanged_user(self, provided: Provided) -> UserRecord | None:
        """Return the user if nothing has changed: a token sent with each request must not cause writes."""
        user = self._access.user_of_subject(provided.subject)
        if user is None:
            return None
        user_change = _change_of(provided)
        return None if _changed_fields(user, user_change) else user

    async def _set_state(self, user_id: str, state: UserState, action: str) -> UserRecord:
        entry = change(action, user_id)

        def store(conn: Connection) -> UserRecord:
            user = _there(users.get(conn, user_id), user_id)
            if user.state is UserState.ERASING:
                raise UserErasing(user_id)
            users.update(conn, user_id, now(), state=state)
            logins.end_of_user(conn, user_id)
            authorizations.end_of_user(conn, user_id)
            audit(conn, entry)
            return _there(users.get(conn, user_id), user_id)

        return await self._db.write(store, durable=True)


def _there(user: UserRecord | None, user_id: str) -> UserRecord:
    if user is None or user.state is UserState.ERASED:
        raise NotFound("user", user_id)
    return user


def _plain_name(name: str) -> str:
    text = " ".join(name.split())
    if len(text) > MAX_NAME or not text.isprintable():
        raise InvalidInput("displayName", f"at most {MAX_NAME} printable characters are possible.")
    return text


def _changed_fields(user: UserRecord, user_change: UserChange) -> UserFields:
    """Return the fields in which a user would differ."""
    fields: UserFields = {}
    if user_change.display_name is not None and _plain_name(user_change.display_name) != user.display_name:
        fields["display_name"] = _plain_name(user_change.display_name)
    if user_change.operator is not None and user_change.operator != user.operator:
        fields["operator"] = user_change.operator
    if user_change.grants is not None and dict(user_change.grants) != user.grants:
        fields["grants"] = dict(user_change.grants)
    if user_change.groups is not None and user_change.groups != user.groups:
        fields["groups"] = user_change.groups
    return fields


def _change_of(provided: Provided) -> UserChange:
    # A token without a name must not remove the stored one.
    return UserChange(provided.display_name or None, provided.operator, provided.grants, provided.groups)


def _new_provided(conn: Connection, provided: Provided) -> UserRecord:
    at, name = now(), provided.name
    try:
        check_name(name, "name")
        is_taken = users.get(conn, name) is not None or name == LOCAL.id
    except InvalidInput:
        is_taken = True
    return UserRecord(
        id=new_id("oidc") if is_taken else name,
        number=users.next_number(conn),
        display_name=provided.display_name,
        operator=provided.operator,
        grants=dict(provided.grants),
        origin=RightsSource.OIDC,
        subject=provided.subject,
        groups=provided.groups,
        created_at=at,
        updated_at=at,
    )
