"""Answers by a link in a notification: who may use it, how often, and the content of its page."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from agentic_rag.server.routes.answer_links import MAX_FIELDS
from agentic_rag.store.clock import later
from agentic_rag.store.waits import WAITS
from agentic_rag.testing.scripted import Scripted
from agentic_rag.testing.steps import say, use
from tests.access.tenants import as_operator, audited, make_key
from tests.reach.receiver import Receiver
from tests.server.rig import Rig
from tests.server.test_waits import ENGRAM, REMEMBER, ended, open_wait, send
from tests.waiting import pause

PUBLIC = "https://rag.example.org"


@dataclass
class Question:
    """A rig with a waiting turn, and the link that its owner received."""

    rig: Rig
    receiver: Receiver
    domain: str
    turn: str
    wait: str
    path: str

    async def get(self, **options: Any) -> httpx2.Response:
        return await self.rig.http.get(self.path, **options)

    async def post(self, **fields: str) -> httpx2.Response:
        return await self.rig.http.post(self.path, data=fields)

    async def state(self) -> str:
        return str((await self.rig.ok("GET", f"/api/waits/{self.wait}"))["state"])


@asynccontextmanager
async def ask_question(folder: Path, *steps: Scripted, **settings: Any) -> AsyncIterator[Question]:
    steps = steps or (REMEMBER, say("Done."))
    async with (
        Receiver().open() as receiver,
        Rig(folder, *steps, mcp_hosts=receiver.address, public_url=PUBLIC) as rig,
    ):
        domain = await rig.domain(toolPolicy={"promptx_remember": "ask"}, **settings)
        body = {"name": "Me", "url": receiver.url, "events": ["wait.created"], "recipient": "local"}
        await rig.ok("POST", f"/api/domains/{domain}/endpoints", body)
        turn = await send(rig, await rig.conversation(domain))
        wait = await open_wait(rig)
        (event,) = await receiver.wait_for(1)
        link = event["data"].get("link", "")
        if link:
            assert link.startswith(f"{PUBLIC}/api/answers/")
        yield Question(rig, receiver, domain, turn, wait["id"], urlsplit(link).path)


async def test_a_link_shows_the_question_and_approves_it_once_in_the_recipients_name(tmp_path: Path) -> None:
    async with ask_question(tmp_path) as question:
        for _ in range(2):  # a messenger's preview
            page = await question.get()
            assert page.status_code == 200
        for text in ("promptx_remember", "Ann likes tea.", "sent to local", "Approve", "Decline"):
            assert text in page.text
        assert "script" not in page.text
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] == "same-origin"
        assert await question.state() == "open"
        response = await question.post(action="accept")
        assert (response.status_code, "stored" in response.text) == (200, True)
        assert (await ended(question.rig, question.turn))["status"] == "done"
        for repeat in (await question.post(action="decline"), await question.get()):
            assert repeat.status_code == 409
            assert "local has answered this" in repeat.text
        assert await question.state() == "accepted"
        (row,) = await audited(question.rig, action="wait.accept", target=question.wait)
        assert row["actor"] == "local"
        assert row["details"]["link"].startswith("end_")


async def test_edited_arguments_are_used_and_invalid_ones_keep_the_wait_open(tmp_path: Path) -> None:
    async with ask_question(tmp_path) as question:
        for arguments_text, problem in (
            ("{", "not valid JSON"),
            ("[]", "a JSON object is needed"),
            ('{"engrams": 5}', "content.arguments"),
        ):
            response = await question.post(action="accept", arguments=arguments_text)
            assert response.status_code == 422
            assert problem in response.text
        assert (await question.post(action="explode")).status_code == 422
        assert (await question.post()).status_code == 422
        fields = dict.fromkeys(map(str, range(MAX_FIELDS + 1)), "1")
        assert (await question.post(action="accept", **fields)).status_code == 422
        assert await question.state() == "open"
        page = (await question.get()).text
        textarea = re.search(r"<textarea name=\"arguments\"[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
        assert textarea is not None
        arguments = textarea[1].replace("&quot;", '"').replace("tea", "coffee")
        assert (await question.post(action="accept", arguments=arguments)).status_code == 200
        assert (await ended(question.rig, question.turn))["status"] == "done"
        wait = await question.rig.ok("GET", f"/api/waits/{question.wait}")
        assert wait["state"] == "accepted"
        calls = await question.rig.ok("GET", f"/api/conversations/{wait['conversationId']}/tool-calls")
        assert "coffee" in str(calls["items"][0]["result"])


async def test_a_decline_with_a_reason_reaches_the_model(tmp_path: Path) -> None:
    async with ask_question(tmp_path) as question:
        response = await question.rig.http.post(
            question.path,
            data={"action": "decline", "reason": "No <b>memories</b>"},
            headers={"accept-language": "zh-CN,zh"},
        )
        assert "答复已保存" in response.text
        assert (await ended(question.rig, question.turn))["status"] == "done"
        assert await question.state() == "declined"


async def test_texts_of_the_model_are_escaped_on_the_page(tmp_path: Path) -> None:
    evil = {**ENGRAM, "content": "</textarea><script>alert(1)</script>"}
    async with ask_question(tmp_path, use("promptx_remember", engrams=[evil]), say("Done.")) as a:
        page = (await a.get()).text
        assert "<script" not in page
        assert "&lt;/textarea&gt;&lt;script&gt;" in page
        await a.post(action="decline")
        await ended(a.rig, a.turn)


@pytest.mark.attack(kind="web")
async def test_a_modified_or_foreign_link_is_invalid(tmp_path: Path) -> None:
    async with ask_question(tmp_path) as question:
        token = question.path.removeprefix("/api/answers/")
        wait, endpoint, mac = token.split(".")
        modified_mac = ("x" if mac[0] != "x" else "y") + mac[1:]
        for modified_token in (
            f"{wait}.{endpoint}.{modified_mac}",
            f"{wait}.{endpoint}.",
            f"{wait}.{endpoint}",
            f"{wait[:-1]}{'1' if wait[-1] == '0' else '0'}.{endpoint}.{mac}",
            f"{wait}.end_00000000000000000000000000.{mac}",
            "x" * 300,
            "%00",
            "é.é.é",
        ):
            for method in ("GET", "POST"):
                response = await question.rig.http.request(
                    method, f"/api/answers/{modified_token}", data={"action": "accept"}
                )
                assert response.status_code == 404, modified_token
        assert await question.state() == "open"
        path = f"/api/domains/{question.domain}/endpoints"
        (endpoint_body,) = (await question.rig.ok("GET", path))["items"]
        await question.rig.ok("PATCH", f"{path}/{endpoint_body['id']}", {"recipient": ""})
        assert (await question.post(action="accept")).status_code == 404
        await question.rig.ok("PATCH", f"{path}/{endpoint_body['id']}", {"recipient": "local"})
        assert (await question.get()).status_code == 200
        await question.rig.ok("DELETE", f"{path}/{endpoint_body['id']}")
        assert (await question.post(action="accept")).status_code == 404
        assert await question.state() == "open"
        await question.rig.ok("POST", f"/api/waits/{question.wait}", {"action": "decline"})
        await ended(question.rig, question.turn)


async def test_an_expired_link_says_so(tmp_path: Path) -> None:
    async with ask_question(tmp_path) as a:
        expire = WAITS.update().where(WAITS.c.id == a.wait).values(expires_at=later(-1))
        await a.rig.application.database.write(lambda conn: conn.execute(expire).rowcount)
        for page in (await a.get(), await a.post(action="accept")):
            assert page.status_code == 409
            assert "expired" in page.text
        assert await a.state() in ("open", "expired")
        await ended(a.rig, a.turn)


async def test_a_domain_can_require_sign_in_or_disable_links(tmp_path: Path) -> None:
    async with ask_question(tmp_path, answerLinks="sign-in") as a:
        page = await a.get()
        assert page.status_code == 200
        assert 'href="/#/waiting"' in page.text
        assert "<form" not in page.text
        assert "<form" not in (await a.post(action="accept")).text
        assert await a.state() == "open"
        await a.rig.ok("PATCH", f"/api/domains/{a.domain}", {"settings": {"answerLinks": "off"}})
        assert (await a.get()).status_code == 404
        await a.rig.ok("POST", f"/api/waits/{a.wait}", {"action": "decline"})
        await ended(a.rig, a.turn)


@pytest.mark.attack(kind="web")
async def test_a_link_needs_no_key_and_ends_with_the_rights_of_its_recipient(tmp_path: Path) -> None:
    async with (
        Receiver().open() as receiver,
        Rig(tmp_path, REMEMBER, say("Done."), mcp_hosts=receiver.address, public_url=PUBLIC) as rig,
    ):
        domain = await rig.domain(toolPolicy={"promptx_remember": "ask-admin"})
        key = await make_key(rig, "ann", "admin", domain)
        as_operator(rig)
        path = f"/api/domains/{domain}/endpoints"
        events = {"events": ["wait.created"], "url": receiver.url}
        await rig.ok("POST", path, {"name": "Ann", "recipient": "ann", **events})
        conversation = await rig.conversation(domain)
        turn = await send(rig, conversation)
        await open_wait(rig)
        (created,) = await receiver.wait_for(1)
        link = urlsplit(created["data"]["link"]).path
        rig.http.headers.pop("authorization")
        assert (await rig.http.get("/api/waits")).status_code == 401
        assert (await rig.http.get(link)).status_code == 200
        as_operator(rig)
        keys = (await rig.ok("GET", "/api/keys"))["items"]
        assert key
        await rig.ok("PATCH", "/api/users/ann", {"grants": {}})
        assert keys
        rig.http.headers.pop("authorization")
        assert (await rig.http.post(link, data={"action": "accept"})).status_code == 404
        as_operator(rig)
        await rig.ok("PATCH", "/api/users/ann", {"grants": {domain: "admin"}})
        rig.http.headers.pop("authorization")
        assert (await rig.http.post(link, data={"action": "accept"})).status_code == 200
        as_operator(rig)
        with anyio.fail_after(240):
            while (await rig.ok("GET", f"/api/turns/{turn}"))["status"] != "done":
                await pause()
        (row,) = await audited(rig, action="wait.accept")
        assert row["actor"] == "ann"
