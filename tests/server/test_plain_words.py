"""Error messages for members contain no address, no path and no library; operators see the reason."""

from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentic_rag.access.keys import Entrant
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    AgenticRagError,
    ModelError,
    SearchUnavailable,
    StorageDamaged,
    StorageFull,
    StorageUnavailable,
    WorkspaceUnavailable,
)
from agentic_rag.base.json_form import to_text
from agentic_rag.base.messages import plain_text
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.sign_in_source import SignInSource
from agentic_rag.domains.sign_ins import SignIns
from agentic_rag.models.base import ModelRequest
from agentic_rag.runtime.log.runlog import Stall
from agentic_rag.server import replies
from agentic_rag.server.auth import Caller
from agentic_rag.server.doors import ag_ui_socket
from agentic_rag.server.routes.oauth import OAuthRoutes
from agentic_rag.server.ws import frames
from agentic_rag.testing.steps import Step, say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig, events_of

ADDRESS = "connection to server at 10.0.0.7, port 5432 failed: FATAL: /srv/data/pg (asyncpg)"
TELLING = ("10.0.0.7", "5432", "/srv", "asyncpg", "FATAL", "qdrant", "127.0.0.1:9", "httpx")
FAILURES = [StorageUnavailable, StorageFull, StorageDamaged, WorkspaceUnavailable, SearchUnavailable]


def list_internal_words(text: str) -> list[str]:
    return [word for word in TELLING if word in text]


@pytest.mark.parametrize("kind", FAILURES)
def test_a_refusal_gives_its_reason_to_operators_only(kind: type[AgenticRagError]) -> None:
    error = kind(ADDRESS)
    member, operator = replies.refusal(error, "r"), replies.refusal(error, "r", whole=True)
    assert list_internal_words(bytes(member.body).decode()) == []
    assert list_internal_words(bytes(operator.body).decode())
    frame = frames.refuse(error, {}, lambda body: body, whole=False)
    assert (frame.code, list_internal_words(frame.message)) == (error.code, [])
    event = ag_ui_socket.refusal_event(error, "r", lambda body: body, whole=False)
    assert (event["code"], list_internal_words(to_text(event))) == (error.code, [])
    assert list_internal_words(to_text(ag_ui_socket.refusal_event(error, "r", lambda body: body, whole=True)))
    assert error.plain.endswith(".")


class NoStore(SignInSource):
    """Sign-ins at MCP servers while the database does not answer."""

    def __init__(self) -> None:
        pass

    async def sign_ins(self) -> SignIns:
        raise StorageUnavailable(ADDRESS)


@pytest.mark.parametrize("operator", [False, True])
async def test_the_page_of_a_failed_sign_in_gives_its_reason_to_operators_only(operator: bool) -> None:
    request = Request({"type": "http", "query_string": b"state=x", "headers": []})
    caller = Caller(Entrant(User("mia", operator=operator), "key_1"))
    routes = OAuthRoutes(NoStore(), Directory.__new__(Directory))
    page = await OAuthRoutes.callback.handler(routes, request=request, caller=caller)
    assert isinstance(page, HTMLResponse)
    assert bool(list_internal_words(bytes(page.body).decode())) is operator


@pytest.mark.parametrize("kind", [StorageUnavailable, StorageFull, StorageDamaged])
def test_followers_of_a_turn_see_that_it_waits_without_the_stores_address(kind: type[StorageFull]) -> None:
    notice = Stall(kind(ADDRESS)).notice
    assert (notice.code, list_internal_words(notice.message)) == ("STORAGE_STALLED", [])
    assert "Nothing is lost" in notice.message


async def test_a_member_sees_plain_notices_of_retries_and_an_unavailable_index(tmp_path: Path) -> None:
    texts: list[str] = []

    def answer(request: ModelRequest) -> Step:
        texts.extend(plain_text(block["content"]) for block in request.messages[-1]["content"] if "content" in block)
        return say("It is away.")

    slow = ModelError(
        f"overloaded at https://10.0.0.7:443 {ADDRESS}", http_status=529, retryable=True, retry_after=0.01
    )
    steps = (slow, use("search_documents", query="leave"), answer)
    async with Rig(tmp_path, *steps, qdrant_url="http://127.0.0.1:9") as rig:
        domain = await rig.domain()
        key = bearer(await make_key(rig, "mia", "member", domain))
        conversation = await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=key)
        path = f"/api/conversations/{conversation['id']}/messages"
        text = (await rig.http.post(path, json={"content": "Leave?"}, headers=key)).text
        events = events_of(text)
        (retrying,) = [event for event in events if event["type"] == "retrying"]
        assert retrying["reason"]
        assert events[-1]["type"] == "done"
        assert list_internal_words(text) == []
        assert texts
        assert list_internal_words(" ".join(texts)) == []
        chunk = f"/api/domains/{domain}/chunks/00000000-0000-0000-0000-000000000000"
        status, code, message = await rig.refused("GET", chunk, headers=key)
        assert (status, code, list_internal_words(message)) == (503, "INDEX_UNAVAILABLE", [])
