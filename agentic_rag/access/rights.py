"""The rights of a caller: the user's grants, narrowed by the key. Pure.

The rule needs no request and no database.
"""

from collections.abc import Mapping
from typing import Final

from agentic_rag.access.users import User
from agentic_rag.store.keys import KeyRecord, KeyRole
from agentic_rag.store.users import Grant, RightsSource, UserRecord

_RANK: Final = {Grant.MEMBER: 1, Grant.AUTHOR: 2, Grant.ADMIN: 3}


def user_of(record: UserRecord, key: KeyRecord | None = None) -> User:
    """Return the caller for a user with or without a key; a key never permits more than its user's rights."""
    key_id = "" if key is None else key.id
    if key is None or key.role is None or (key.role is KeyRole.OPERATOR and not record.operator):
        return _caller(record.id, record.grants, operator=record.operator, key_id=key_id)
    if key.role is KeyRole.OPERATOR:
        return User(record.id, operator=True, key_id=key_id)
    key_grant = Grant(key.role.value)
    # An operator has no grants, and is an admin everywhere.
    own = dict.fromkeys(key.domains, Grant.ADMIN) if record.operator else record.grants
    return _caller(
        record.id, {domain: lower(key_grant, own[domain]) for domain in key.domains if domain in own}, key_id=key_id
    )


def narrow(user: User, domain_id: str) -> User:
    """Return the caller with the rights in one domain only. An operator becomes an admin of the domain."""
    return User(
        user.id,
        domains=frozenset([domain_id]) if user.sees(domain_id) else frozenset(),
        authored=user.authored & {domain_id},
        administered=frozenset([domain_id]) if user.administers(domain_id) else frozenset(),
        key_id=user.key_id,
    )


def groups_of(record: UserRecord, key: KeyRecord | None = None) -> frozenset[str]:
    """Return the groups of a caller with or without a key. They decide which labels of documents the caller holds.

    An operator chooses a key's groups. A key of a provider's user acts at most for the user's own groups. A key with a
    role acts only for the groups that it names.
    """
    own = frozenset(record.groups)
    if key is None:
        return own
    groups = frozenset(key.groups)
    if record.origin is RightsSource.OIDC:
        groups &= own
    return groups if key.role is not None else groups | own


def grants_of(role: KeyRole | None, domains: tuple[str, ...]) -> dict[str, Grant]:
    """Return the grants that a user needs for a key with this role in these domains."""
    return {} if role in (None, KeyRole.OPERATOR) else dict.fromkeys(domains, Grant(role.value))


def join_grants(current: Mapping[str, Grant], added: Mapping[str, Grant]) -> dict[str, Grant]:
    """Return the union of grants; for a domain in both, the higher grant counts."""
    return {**current, **{domain: higher(grant, current.get(domain, grant)) for domain, grant in added.items()}}


def lower(first: Grant, second: Grant) -> Grant:
    """Return the grant that permits less."""
    return min(first, second, key=_RANK.__getitem__)


def higher(first: Grant, second: Grant) -> Grant:
    """Return the grant that permits more."""
    return max(first, second, key=_RANK.__getitem__)


def _caller(user_id: str, grants: Mapping[str, Grant], *, operator: bool = False, key_id: str = "") -> User:
    if operator:
        return User(user_id, operator=True, key_id=key_id)
    return User(
        user_id,
        domains=frozenset(grants),
        authored=frozenset(domain for domain, grant in grants.items() if grant is Grant.AUTHOR),
        administered=frozenset(domain for domain, grant in grants.items() if grant is Grant.ADMIN),
        key_id=key_id,
    )
