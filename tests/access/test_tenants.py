"""Every route and every frame without a key, with a wrong key, and with all ids of another tenant."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route, WebSocketRoute

from agentic_rag.server.routing import RouteEndpoint, Rule
from agentic_rag.server.ws.frames import FRAMES
from tests.access.tenants import SECRET_WORDS, Tenants, audited, count_refused, make_key, socket, tenants
from tests.ws.serving import serving

pytestmark = pytest.mark.attack(kind="web")

BODIES: dict[tuple[str, str], dict[str, object]] = {
    ("POST", "/api/conversations"): {"domainId": "{domain}"},
    ("POST", "/v1/chat/completions"): {"model": "{domain}", "messages": [{"role": "user", "content": "Hi"}]},
    ("POST", "/v1/responses"): {"model": "{domain}", "input": "Hi"},
    ("POST", "/v1/embeddings"): {"model": "{domain}", "input": "Hi"},
    ("POST", "/a2a/{domain}"): {"jsonrpc": "2.0", "id": 1, "method": "ListTasks"},
    ("POST", "/api/conversations/{conversation}/messages"): {"content": "Hi"},
    ("POST", "/api/conversations/{conversation}/messages/{message}/edit"): {"content": "Hi"},
    ("POST", "/api/conversation/{conversation}/message"): {"content": "Hi"},
    ("POST", "/api/v1/chat"): {"message": "Hi", "agent_id": "{domain}"},
    ("POST", "/api/render"): {"texts": []},
    ("PUT", "/api/conversations/{conversation}/messages/{message}/feedback"): {"rating": "up"},
    ("POST", "/api/waits/{wait}"): {"action": "accept"},
    ("POST", "/api/turns/{turn}/tool-calls/{call}/app/tools"): {"name": "refresh"},
    ("POST", "/api/turns/{turn}/tool-calls/{call}/app/resources"): {"uri": "data://points"},
    ("POST", "/api/authorizations/requests/{request_id}"): {"allow": True, "scopes": ["search"]},
}
NAME_A_DOMAIN = {
    ("POST", "/api/conversations"),
    ("POST", "/api/v1/chat"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
}
"""Routes whose body names ann's domain."""
NOUNS = (*("domain", "conversation", "turn", "response", "ref", "image", "wait", "attachment"),)
"""Path parameters with an id of another tenant."""
SOCKETS = {"/ws", "/api/ag-ui/{domain}"}
"""Sockets with separate tests: here, and in ``tests/server/test_modern_doors.py``."""
LISTS = {
    "/",
    "/web/{path:path}",
    "/api/shared/{token}",
    "/api/health",
    "/api/ready",
    "/api/version",
    "/api/document-formats",
    "/api/openapi.json",
    "/api/docs",
    "/api/domains",
    "/api/conversations",
    "/api/conversation-search",
    "/api/conversation-folders",
    "/api/conversation",
    "/api/waits",
    "/api/usage",
    "/api/render",
    "/api/domain-settings",
    "/api/budgets",
    "/api/ws-tickets",
    "/api/authorizations",
    "/api/auth",
    "/api/auth/sign-in",
    "/api/auth/ticket",
    "/api/auth/renew",
    "/api/auth/sign-out",
    "/api/auth/oidc/begin",
    "/api/auth/oidc/callback",
    "/v1/models",
}
"""Routes without ids that everybody may call. They may only show the caller's own data."""
SIGN_IN = {"/api/oauth/begin/{sign_in}": 404, "/api/oauth/callback": 400, "/client-metadata.json": 404}
"""Routes of a sign-in that does not exist, and of a server without an https address.

``tests/sign_in`` tries the others.
"""
ABSENT = {**SIGN_IN, "/v1/responses/compact": 404, "/.well-known/agent-card.json": 404}
"""Routes that refuse everybody in this test. No default domain exists."""

BARE = {
    "/api/answers/{token}": 404,
    "/api/triggers/{schedule}": 401,
    "/.well-known/oauth-protected-resource/mcp/{door}": 200,
    "/.well-known/oauth-authorization-server": 200,
    "/.well-known/openid-configuration": 200,
    "/oauth/authorize": 400,
    "/oauth/token": 400,
    "/oauth/revoke": 400,
    "/oauth/register": 404,
}
"""Routes that ignore keys: those whose address or signature is the credential, and those of the authorization server,
which ``tests/server/test_door_sign_in.py`` attacks. Each with its answer to everybody."""

SIGNING_IN = {
    "/api/auth/sign-in": 422,
    "/api/auth/ticket": 422,
    "/web/{path:path}": 404,
    "/api/shared/{token}": 404,
    "/api/conversation-search": 422,
    "/api/auth/renew": 401,
    "/api/auth/sign-out": 401,
    "/api/auth/oidc/begin": 404,
    "/api/auth/oidc/callback": 404,
}
"""The answers of these routes to a sender with neither a named key nor a cookie; ``test_logins`` tries them all.

Also the answer of the page's folder for a missing file.
"""


def routes(pair: Tenants) -> Iterator[tuple[str, str, str, Rule]]:
    """Yield each route of the application: method, declared path, path with ann's ids, rule."""
    for route in pair.rig.application.app.routes:
        if isinstance(route, WebSocketRoute):
            assert route.path in SOCKETS
            continue
        assert isinstance(route, Route), "a mount needs its own test"
        path = re.sub(r"{(\w+)(:\w+)?}", lambda name: pair.ids.get(name[1], "x"), route.path)
        for method in sorted(route.methods or ()):
            assert isinstance(route.endpoint, RouteEndpoint), "a route is declared with @route"
            yield method, route.path, path, route.endpoint.declared.rule


def body_of(pair: Tenants, method: str, path: str) -> object:
    body = BODIES.get((method, path))
    if body is None:
        return {} if method in ("POST", "PUT", "PATCH") else None
    return {name: pair.ids["domain"] if value == "{domain}" else value for name, value in body.items()}


async def test_no_route_answers_without_a_key_or_with_a_wrong_one(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair:
        before, refused = await pair.state(), 0
        for method, template, path, rule in routes(pair):
            for key in (None, "arag_wrong", pair.ann[:-1], pair.ann.upper()):
                response = await pair.ask(key, method, path, body_of(pair, method, template))
                if template in BARE:
                    assert response.status_code == BARE[template]
                    refused += BARE[template] == 401
                    continue
                if key is None and rule.allow == "anyone":
                    assert response.status_code == {**SIGN_IN, **SIGNING_IN}.get(template, 200)
                    continue
                refused += 1
                assert response.status_code == 401, (method, path)
                assert response.headers["www-authenticate"].startswith("Bearer")
                assert not any(word in response.text for word in SECRET_WORDS)
        assert await pair.state() == before
        assert await count_refused(pair.rig, "anonymous", "UNAUTHENTICATED") == refused


@pytest.mark.parametrize("role", ["admin", "member"])
async def test_no_route_shows_or_changes_another_tenants_data(tmp_path: Path, role: str) -> None:
    async with tenants(tmp_path, role) as pair:
        before, refusals = await pair.state(), 0
        for method, template, path, rule in routes(pair):
            response = await pair.ask(pair.mallory, method, path, body_of(pair, method, template))
            assert not any(word in response.text for word in SECRET_WORDS), (method, path)
            names_an_id = any(f"{{{noun}}}" in template for noun in NOUNS)
            if template in ABSENT | BARE:
                assert response.status_code == (ABSENT | BARE)[template]
                continue
            if "{authorization}" in template or "{request_id}" in template:  # ann has no such object
                assert response.status_code == 404, (method, path)
                continue
            if (method, template) in NAME_A_DOMAIN or names_an_id:
                assert response.status_code == 404, (method, path, response.text)
            elif rule.allow == "operator":
                assert response.status_code == 403, (method, path)
            else:
                assert template in LISTS, f"{template} has no id in its path: add it to LISTS, and say who may use it"
                is_elsewhere = (method, template) == ("POST", "/api/conversation")  # in a domain of another tenant
                answers = (422,) if is_elsewhere else (SIGNING_IN.get(template, 200), 201)
                assert response.status_code in answers, (method, path)
                refusals += response.status_code == 401
                continue
            refusals += 1
        assert await pair.state() == before
        assert await count_refused(pair.rig, "mallory") == refusals


async def test_another_tenants_id_and_an_unknown_one_get_the_same_answer(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair:
        for noun, path in [
            ("domain", "/api/domains/{}"),
            ("domain", "/api/domains/{}/documents"),
            ("conversation", "/api/conversations/{}"),
            ("turn", "/api/turns/{}"),
            ("turn", "/api/turns/{}/events"),
        ]:
            foreign_response = await pair.ask(pair.mallory, "GET", path.format(pair.ids[noun]))
            unknown_response = await pair.ask(pair.mallory, "GET", path.format("nope"))
            answers = [response.json()["error"] for response in (foreign_response, unknown_response)]
            assert answers[0]["code"] == answers[1]["code"] == f"{noun.upper()}_NOT_FOUND"
            assert answers[0]["message"].replace(pair.ids[noun], "nope") == answers[1]["message"]
            assert foreign_response.headers.keys() == unknown_response.headers.keys()


async def test_another_tenants_ids_inside_a_request_are_not_found(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair:
        own_conversation, ids = pair.own_conversation, pair.ids
        for method, path, body, code in [
            ("GET", f"/api/domains/{pair.own_domain}/documents/{ids['document']}", None, "DOCUMENT_NOT_FOUND"),
            ("DELETE", f"/api/domains/{pair.own_domain}/documents/{ids['document']}", None, "DOCUMENT_NOT_FOUND"),
            (
                "POST",
                "/api/conversations",
                {"domainId": pair.own_domain, "contextDocumentIds": [ids["document"]]},
                "DOCUMENT_NOT_FOUND",
            ),
            (
                "GET",
                f"/api/conversations/{own_conversation}/messages?before={pair.message}",
                None,
                "MESSAGE_NOT_FOUND",
            ),
        ]:
            response = await pair.ask(pair.mallory, method, path, body)
            assert (response.status_code, response.json()["error"]["code"]) == (404, code), path
        interrupted = await pair.ask(
            pair.mallory, "POST", f"/api/conversations/{own_conversation}/interrupt", {"turnId": pair.ids["turn"]}
        )
        assert interrupted.json() == {"interrupted": False}
        assert len((await pair.ask(pair.ann, "GET", f"/api/domains/{ids['domain']}/documents")).json()["items"]) == 1
        assert await count_refused(pair.rig, "mallory") == 3


async def test_no_frame_reaches_another_tenants_conversation(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair, serving(pair.rig.application.app) as address:
        before = await pair.state()
        conversation, turn = pair.ids["conversation"], pair.ids["turn"]
        async with socket(address, key=pair.mallory) as mallory:
            frames: list[tuple[str, dict[str, object], str]] = [
                ("message", {"conversationId": conversation, "content": "Hi"}, "CONVERSATION_NOT_FOUND"),
                ("subscribe", {"conversationId": conversation}, "CONVERSATION_NOT_FOUND"),
                ("subscribe", {"conversationId": conversation, "turnId": turn, "after": 0}, "CONVERSATION_NOT_FOUND"),
                ("subscribe", {"conversationId": pair.own_conversation, "turnId": turn}, "TURN_NOT_FOUND"),
                ("retry", {"conversationId": conversation, "messageId": pair.message}, "CONVERSATION_NOT_FOUND"),
                (
                    "edit",
                    {"conversationId": conversation, "messageId": pair.message, "content": "Hi"},
                    "CONVERSATION_NOT_FOUND",
                ),
                ("interrupt", {"conversationId": conversation}, "CONVERSATION_NOT_FOUND"),
                ("interrupt", {"conversationId": conversation, "turnId": turn}, "CONVERSATION_NOT_FOUND"),
                ("answer", {"waitId": pair.ids["wait"], "action": "accept"}, "WAIT_NOT_FOUND"),
            ]
            for kind, fields, code in frames:
                assert (await mallory.ask(kind, **fields))["code"] == code
            await mallory.say("unsubscribe", conversationId=conversation)
            await mallory.say("interrupt", conversationId=pair.own_conversation, turnId=turn)
            assert await mallory.ask("ping") == {"type": "pong"}
        assert {kind for kind, *_ in frames} | {"unsubscribe", "ping"} == set(FRAMES), "a new frame needs its line"
        assert await pair.state() == before
        rows = await audited(pair.rig, actor="mallory", outcome="refused")
        assert sum(row["count"] for row in rows) == len(frames)
        assert {row["action"] for row in rows} == {f"WS {kind}" for kind, *_ in frames}


async def test_a_member_can_chat_and_read_documents_but_not_change_the_domain(tmp_path: Path) -> None:
    async with tenants(tmp_path, "member") as pair:
        own_path = f"/api/domains/{pair.own_domain}"
        for path in (own_path, f"{own_path}/documents", f"/api/conversations/{pair.own_conversation}"):
            assert (await pair.ask(pair.mallory, "GET", path)).status_code == 200
        assert (await pair.ask(pair.mallory, "GET", own_path)).json()["settings"] == {}
        for method, path in [
            ("PATCH", own_path),
            ("DELETE", own_path),
            ("GET", f"{own_path}/roles"),
            ("POST", f"{own_path}/documents"),
            ("GET", f"{own_path}/mcp-servers"),
            ("GET", f"{own_path}/secrets"),
            ("PUT", f"{own_path}/secrets/X"),
            ("POST", "/api/domains"),
            ("GET", "/api/keys"),
            ("GET", "/api/audit"),
        ]:
            response = await pair.ask(pair.mallory, method, path, {})
            assert (response.status_code, response.json()["error"]["code"]) == (403, "FORBIDDEN"), path
        assert await count_refused(pair.rig, "mallory", "FORBIDDEN") == 10


async def test_an_admin_can_change_the_domain_but_not_create_or_delete_one(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair:
        own_path = f"/api/domains/{pair.own_domain}"
        response = await pair.ask(pair.mallory, "PATCH", own_path, {"settings": {"tone": "formal"}})
        assert response.json()["settings"]["tone"] == "formal"
        assert (await pair.ask(pair.mallory, "DELETE", own_path)).status_code == 403
        assert (await pair.ask(pair.mallory, "POST", "/api/domains", {"name": "Mine"})).status_code == 403
        (row,) = await audited(pair.rig, action="domain.update")
        assert (row["actor"], row["target"], row["details"]["settings"]) == ("mallory", pair.own_domain, ["tone"])


async def test_a_conversation_is_gone_for_a_user_whose_new_key_no_longer_names_its_domain(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair:
        other_domain = await pair.rig.domain()
        narrowed = await make_key(pair.rig, "ann", "member", other_domain)
        path = f"/api/conversations/{pair.ids['conversation']}"
        assert (await pair.ask(pair.ann, "GET", path)).status_code == 200
        assert (await pair.ask(narrowed, "GET", path)).status_code == 404
        assert (await pair.ask(narrowed, "GET", f"/api/turns/{pair.ids['turn']}")).status_code == 404
        assert (await pair.ask(narrowed, "GET", "/api/conversations")).json()["total"] == 0


async def test_two_keys_of_a_user_share_the_users_data(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair:
        second = await make_key(pair.rig, "ann", "member", pair.ids["domain"])
        conversations = (await pair.ask(second, "GET", "/api/conversations")).json()["items"]
        assert [(conversation["id"], conversation["ownerId"]) for conversation in conversations] == [
            (pair.ids["conversation"], "ann")
        ]


async def test_operators_cannot_read_conversations_of_others(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair:
        root = await make_key(pair.rig, "root", "operator")
        assert (await pair.ask(root, "GET", f"/api/domains/{pair.ids['domain']}")).status_code == 200
        path = f"/api/conversations/{pair.ids['conversation']}"
        assert (await pair.ask(root, "GET", path)).status_code == 404
