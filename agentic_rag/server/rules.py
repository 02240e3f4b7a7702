"""Which routes are for whom. Pure.

Owns the table. What it does not name is for operators, and below a domain for its admins: a route somebody adds is
closed until it is named here. Whose conversation a path names is the business layer's to check.
"""

from dataclasses import dataclass
from typing import Literal

from agentic_rag.access.users import User
from agentic_rag.errors import Forbidden, NotFound

Who = Literal["user", "member", "admin", "operator"]

OPEN_PATHS = frozenset({"/api/ready", "/api/version"})
"""Answered without a key: what a load balancer asks. They tell nothing of anybody."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use a route, and what it takes.

    ``user``: everybody with a key; ``member``, ``admin``: of the domain the path names. ``sends`` a message;
    ``streams`` events, so that it holds a connection; ``changes`` something that belongs into the audit log.
    """

    who: Who
    sends: bool = False
    streams: bool = False
    changes: bool = False


_DOMAIN = "/api/domains/{domain}"
_CONVERSATION = "/api/conversations/{conversation}"
_OWN = ("/api/conversations", "/api/turns")
"""What lies below belongs to an owner, whom the business layer checks."""

_RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/api/ready"): Rule("user"),
    ("GET", "/api/version"): Rule("user"),
    ("GET", "/api/health"): Rule("user"),
    ("GET", "/api/domains"): Rule("user"),
    ("POST", "/api/ws-tickets"): Rule("user"),
    ("POST", f"{_CONVERSATION}/messages"): Rule("user", sends=True, streams=True),
    ("POST", f"{_CONVERSATION}/compact"): Rule("user", sends=True),
    ("GET", "/api/turns/{turn}/events"): Rule("user", streams=True),
    ("GET", _DOMAIN): Rule("member"),
    ("DELETE", _DOMAIN): Rule("operator", changes=True),
    ("GET", f"{_DOMAIN}/documents"): Rule("member"),
    ("GET", f"{_DOMAIN}/documents/{{document}}"): Rule("member"),
    ("GET", f"{_DOMAIN}/documents/{{document}}/chunks"): Rule("member"),
    ("POST", f"{_DOMAIN}/documents/search"): Rule("admin"),
    ("GET", f"{_DOMAIN}/memories"): Rule("member"),
    ("DELETE", f"{_DOMAIN}/memories/{{memory}}"): Rule("member", changes=True),
    ("GET", f"{_DOMAIN}/memories/export"): Rule("member"),
    ("POST", f"{_DOMAIN}/memories/import"): Rule("member", changes=True),
}


def rule_of(method: str, path: str) -> Rule:
    """Return the rule of a route by its method and the path it was declared with."""
    method = "GET" if method == "HEAD" else method
    known = _RULES.get((method, path))
    if known is not None:
        return known
    if any(path == own or path.startswith(f"{own}/") for own in _OWN):
        return Rule("user")
    changes = method != "GET"
    return Rule("admin" if path.startswith(f"{_DOMAIN}/") or path == _DOMAIN else "operator", changes=changes)


def check(user: User, rule: Rule, domain_id: str | None) -> None:
    """Refuse what a rule does not permit. ``domain_id``: the domain the path names.

    Raises:
        NotFound: the domain does not exist for this user.
        Forbidden: it does, but this is for somebody else.
    """
    if domain_id is not None and not user.sees(domain_id):
        raise NotFound("domain", domain_id, hidden=True)
    if rule.who == "operator" and not user.operator:
        raise Forbidden("Only an operator may do this.")
    if rule.who == "admin" and not (domain_id is not None and user.administers(domain_id)):
        raise Forbidden("Only an admin of the domain may do this.")
