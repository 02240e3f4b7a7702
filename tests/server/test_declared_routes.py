"""A declared route matches the same requests as Starlette's own route, which compiles its pattern at once."""

from typing import Any

import pytest
from starlette.routing import Match, Route

from agentic_rag.access.users import User
from agentic_rag.server.routing import DeclaredRoute, RouteEndpoint, declarations_of, route


class Places:
    """Routes of every form: without parameters, with some in the middle and at the end, and with a path."""

    @route("GET", "/", allow="user")
    async def root(self, user: User) -> None:
        """Answer at the root."""

    @route("POST", "/api/domains", allow="user")
    async def create(self, user: User) -> None:
        """Answer without a parameter."""

    @route("GET", "/api/conversations/{conversation}", allow="user")
    async def show(self, user: User, conversation: str) -> None:
        """Answer with a parameter at the end."""

    @route("GET", "/api/conversations/{conversation}/messages/{message}/text", allow="user")
    async def text(self, user: User, conversation: str, message: str) -> None:
        """Answer with parameters in the middle."""

    @route("GET", "/web/{version}/{path:path}", allow="user")
    async def file(self, user: User, version: str, path: str) -> None:
        """Answer with a path of any length."""


PATHS = [
    "",
    "/",
    "/api/domains",
    "/api/domains/",
    "/api/domainsx",
    "/api/conversations/a",
    "/api/conversations/a/",
    "/api/conversations/a/messages/b/text",
    "/api/conversations/a/messages//text",
    "/web/1/",
    "/web/1/chat/page.js",
]


@pytest.mark.parametrize("root", ["", "/below"])
def test_a_declared_route_matches_what_a_route_of_starlette_matches(root: str) -> None:
    edge: Any = None
    matches = 0
    for declaration in declarations_of(Places):
        endpoint = RouteEndpoint(declaration, Places(), edge)
        own_route, starlette_route = (
            DeclaredRoute(declaration, endpoint),
            Route(declaration.path, endpoint, methods=[declaration.method]),
        )
        assert own_route.methods == starlette_route.methods
        for path in PATHS:
            for method in ("GET", "HEAD", "POST"):
                scope = {"type": "http", "method": method, "path": root + path, "root_path": root}
                assert own_route.matches(scope) == starlette_route.matches(scope)
                matches += own_route.matches(scope)[0] is not Match.NONE
    assert matches
