"""The users who may use the routes of roles and memories."""

import pytest

from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden
from agentic_rag.server.routes.roles import MemoryRoutes, RoleRoutes
from agentic_rag.server.routing import Rule, declarations_of

BASE = "/api/domains/{domain}"
MEMBER = User("mara", domains=frozenset({"dom_1"}))


def rule_of(method: str, path: str) -> Rule:
    (rule,) = [
        declaration.rule
        for route_class in (RoleRoutes, MemoryRoutes)
        for declaration in declarations_of(route_class)
        if (declaration.method, declaration.path) == (method, path)
    ]
    return rule


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/roles"),
        ("GET", "/roles/{role}"),
        ("GET", "/effective-prompt"),
        ("GET", "/role-findings"),
        ("PUT", "/roles/{role}"),
        ("DELETE", "/roles/{role}"),
    ],
)
def test_roles_are_for_admins_and_their_changes_are_audited(method: str, path: str) -> None:
    rule = rule_of(method, BASE + path)
    assert rule.audited is (method != "GET")
    with pytest.raises(Forbidden):
        rule.check(MEMBER, "dom_1")
    rule.check(User("anna", domains=frozenset({"dom_1"}), administered=frozenset({"dom_1"})), "dom_1")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/export"), ("POST", "/import"), ("DELETE", "/{memory}")]
)
def test_every_member_has_memories(method: str, path: str) -> None:
    rule_of(method, f"{BASE}/memories{path}").check(MEMBER, "dom_1")
