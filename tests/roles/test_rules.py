"""Who may use the routes of roles and memories."""

import pytest

from agentic_rag.access.users import User
from agentic_rag.errors import Forbidden
from agentic_rag.server.rules import check, rule_of

BASE = "/api/domains/{domain}"
MEMBER = User("mara", domains=frozenset({"dom_1"}))


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
    assert rule.changes is (method != "GET")
    with pytest.raises(Forbidden):
        check(MEMBER, rule, "dom_1")
    check(User("anna", admin=True, domains=frozenset({"dom_1"})), rule, "dom_1")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/export"), ("POST", "/import"), ("DELETE", "/{memory}")]
)
def test_memories_are_for_every_member(method: str, path: str) -> None:
    check(MEMBER, rule_of(method, f"{BASE}/memories{path}"), "dom_1")
