"""Waits of turns as people use them: over REST and `/ws`, with the rights of owners, admins and other users."""

import sys
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import Form, read_form
from agentic_rag.server.routes.waits import WaitAnswerForm
from agentic_rag.server.ws.frames import AnswerFrame
from agentic_rag.testing.steps import say, use
from tests.access.tenants import as_operator, audited, bearer, make_key, socket, tenants
from tests.server.rig import Json, Rig
from tests.tools.support import SERVERS
from tests.waiting import pause
from tests.ws.serving import client, serving

ENGRAM = {"content": "Ann likes tea.", "schema": "ann\n  tea", "strength": 0.5, "type": "ATOMIC"}
REMEMBER = use("promptx_remember", engrams=[ENGRAM])


async def open_wait(rig: Rig) -> Json:
    """Return the first open wait, once there is one."""
    with anyio.fail_after(240):
        while True:
            page = await rig.ok("GET", "/api/waits?state=open")
            if page["items"]:
                assert page["total"] == len(page["items"])
                return dict(page["items"][0])
            await pause()


async def send(rig: Rig, conversation: str) -> str:
    """Send a message, and return its turn without waiting for the answer."""
    path, headers = f"/api/conversations/{conversation}/messages", {"accept": "application/json"}
    return str((await rig.ok("POST", path, {"content": "Remember."}, headers=headers))["id"])


async def ended(rig: Rig, turn: str) -> Json:
    with anyio.fail_after(240):
        while (turn_record := await rig.ok("GET", f"/api/turns/{turn}"))["status"] in ("running", "waiting"):
            await pause()
    return dict(turn_record)


async def test_a_waiting_turn_is_listed_refuses_invalid_answers_and_continues_with_the_first_valid_one(
    tmp_path: Path,
) -> None:
    rules = {"promptx_remember": "ask"}
    async with Rig(tmp_path, REMEMBER, say("Done.")) as rig:
        domain = await rig.domain(toolPolicy=rules)
        conversation = await rig.conversation(domain)
        turn = await send(rig, conversation)
        wait = await open_wait(rig)
        assert (wait["kind"], wait["state"], wait["answerer"]) == ("approval", "open", "owner")
        assert (wait["turnId"], wait["conversationId"], wait["domainId"]) == (turn, conversation, domain)
        assert wait["arguments"]["engrams"][0]["content"] == "Ann likes tea."
        assert (await rig.ok("GET", f"/api/turns/{turn}"))["status"] == "waiting"
        assert (await rig.ok("GET", f"/api/conversations/{conversation}"))["turn"]["status"] == "waiting"
        path = f"/api/waits/{wait['id']}"
        for body, field in (
            ({"action": "accept", "content": {"arguments": {"engrams": 5}}}, "content.arguments"),
            ({"action": "accept", "content": {"arguments": []}}, "content.arguments"),
            ({"action": "accept", "content": {"scope": "always"}}, "content.scope"),
            ({"action": "accept", "content": {"scop": "once"}}, "content.scop"),
            ({"action": "decline", "content": {"reason": 5}}, "content.reason"),
            ({"action": "expire"}, "action"),
            ({}, "action"),
        ):
            status, code, message = await rig.refused("POST", path, body)
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert message.startswith(f"{field}:"), message
        assert (await rig.ok("GET", path))["state"] == "open"
        changed_arguments = {"engrams": [{**ENGRAM, "content": "Ann likes coffee."}]}
        answered_wait = await rig.ok("POST", path, {"action": "accept", "content": {"arguments": changed_arguments}})
        assert (answered_wait["state"], answered_wait["answeredBy"]) == ("accepted", "local")
        status, code, message = await rig.refused("POST", path, {"action": "decline"})
        assert (status, code) == (409, "WAIT_ANSWERED")
        assert "accepted" in message
        assert (await ended(rig, turn))["status"] == "done"
        (call,) = (await rig.ok("GET", f"/api/conversations/{conversation}/tool-calls"))["items"]
        assert "coffee" in str(call["result"])
        assert await audited(rig, action="wait.accept", target=wait["id"])
        assert (await rig.ok("GET", "/api/waits?state=open"))["items"] == []
        assert (await rig.ok("GET", f"/api/waits?conversationId={conversation}"))["total"] == 1


async def test_a_wait_is_answered_by_a_frame_and_the_socket_gets_both_events(tmp_path: Path) -> None:
    async with Rig(tmp_path, REMEMBER, say("Done.")) as rig, serving(rig.application.app) as address:
        conversation = await rig.conversation(await rig.domain(toolPolicy={"promptx_remember": "ask"}))
        async with client(address) as c:
            await c.ask("message", conversationId=conversation, content="Remember.")
            frames = [await c.hear()]
            while frames[-1]["type"] != "input_required":
                frames.append(await c.hear())
            wait = frames[-1]["waitId"]
            refusal = await c.ask("answer", waitId=wait, action="accept", content={"scope": "x"}, requestId="r1")
            assert (refusal["type"], refusal["code"], refusal["waitId"]) == ("error", "VALIDATION_ERROR", wait)
            await c.say("answer", waitId=wait, action="decline", content={"reason": "no"}, requestId="r2")
            later_frames = await c.hear_turn()
            assert {"type": "answered", "waitId": wait, "state": "declined", "requestId": "r2"} in later_frames
            assert "input_answered" in [event["type"] for event in later_frames]
            assert later_frames[-1]["type"] == "done"
        (row,) = await audited(rig, action="tool.call")
        assert row["details"]["because"] == "declined"


@pytest.mark.attack(kind="web")
async def test_a_wait_is_visible_to_its_owner_and_admins_of_its_domain(tmp_path: Path) -> None:
    async with tenants(tmp_path, steps=(REMEMBER, REMEMBER, say("Done."))) as t:
        rig = t.rig
        bob = await make_key(rig, "bob", "member", t.ids["domain"])
        path = f"/api/domains/{t.ids['domain']}"
        await rig.ok("PATCH", path, {"settings": {"toolPolicy": {"promptx_remember": "ask-admin"}}})
        conversation = (await t.ask(bob, "POST", "/api/conversations", {"domainId": t.ids["domain"]})).json()
        rig.http.headers.update(bearer(bob))
        turn = await send(rig, conversation["id"])
        wait = await open_wait(rig)
        assert wait["answerer"] == "admin"
        answer = {"action": "accept"}
        path_of_wait = f"/api/waits/{wait['id']}"
        assert (await t.ask(t.mallory, "GET", path_of_wait)).status_code == 404
        assert (await t.ask(t.mallory, "POST", path_of_wait, answer)).status_code == 404
        assert (await t.ask(t.mallory, "GET", "/api/waits")).json()["items"] == []
        refusal = await t.ask(bob, "POST", path_of_wait, answer)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (403, "FORBIDDEN")
        assert wait["id"] in [item["id"] for item in (await t.ask(t.ann, "GET", "/api/waits")).json()["items"]]
        assert (await t.ask(t.ann, "POST", path_of_wait, answer)).status_code == 200
        rig.http.headers.update(bearer(bob))
        second_wait = await open_wait(rig)
        async with serving(rig.application.app) as address, socket(address, key=t.mallory) as c:
            reply = await c.ask("answer", waitId=second_wait["id"], action="accept", requestId="r")
            assert reply["code"] == "WAIT_NOT_FOUND"
        assert (await t.ask(t.ann, "POST", f"/api/waits/{second_wait['id']}", {"action": "decline"})).status_code == 200
        assert (await ended(rig, turn))["status"] == "done"


@pytest.mark.parametrize(("form", "fields"), [(WaitAnswerForm, {}), (AnswerFrame, {"waitId": "wait_1"})])
def test_frames_and_rest_have_the_same_size_limit_for_answers(form: type[Form], fields: Json) -> None:
    deep: Json = {}
    for _ in range(30):
        deep = {"a": deep}
    fields_within_limit = {f"field{index}": "ä" * 2_000 for index in range(20)}
    for content in (None, {"text": "ä" * 10_000}, {"arguments": fields_within_limit}):
        read_form(form, {**fields, "action": "accept", "content": content})
    for content_too_large in (deep, {"a": "b" * 200_000}):
        with pytest.raises(InvalidInput):
            read_form(form, {**fields, "action": "accept", "content": content_too_large})


async def test_a_chat_that_comes_back_while_its_turn_waits_follows_it(tmp_path: Path) -> None:
    async with Rig(tmp_path, REMEMBER, say("Done.")) as rig:
        chat = f"/api/ui-message/{await rig.domain(toolPolicy={'promptx_remember': 'ask'})}"
        message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Remember."}]}
        body = {"id": "c1", "messages": [message], "trigger": "submit-message"}
        await rig.http.post(chat, json=body)  # the stream ends at the question to a person
        wait = await open_wait(rig)
        waiting = await rig.http.get(f"{chat}/c1/stream")
        assert waiting.status_code == 200
        assert wait["id"] in waiting.text
        await rig.ok("POST", f"/api/waits/{wait['id']}", {"action": "accept"})
        assert (await ended(rig, wait["turnId"]))["status"] == "done"


async def test_a_stateless_call_does_not_wait(tmp_path: Path) -> None:
    async with Rig(tmp_path, REMEMBER, say("Done.")) as rig:
        domain = await rig.domain(toolPolicy={"promptx_remember": "ask"})
        body = {"model": domain, "messages": [{"role": "user", "content": "Remember."}]}
        answer = await rig.ok("POST", "/v1/chat/completions", body)
        assert answer["choices"][0]["message"]["content"] == "Done."
        messages = str(rig.model.requests[-1].messages)
        assert "no person can be asked here" in messages
        assert (await rig.ok("GET", "/api/waits"))["items"] == []


async def test_the_model_asks_its_user_if_the_domain_allows_it(tmp_path: Path) -> None:
    ask_user = use("ask_user", question="Tea or coffee?", options=["tea", "coffee"])
    async with Rig(tmp_path, ask_user, say("Tea it is."), say("No tool.")) as rig:
        conversation = await rig.conversation(await rig.domain(askUser=True))
        turn = await send(rig, conversation)
        wait = await open_wait(rig)
        assert (wait["kind"], wait["message"]) == ("question", "Tea or coffee?")
        path = f"/api/waits/{wait['id']}"
        for content in ({}, {"choices": ["milk"]}, {"choices": ["tea", "coffee"]}, {"text": 5}):
            assert (await rig.refused("POST", path, {"action": "accept", "content": content}))[0] == 422
        await rig.ok("POST", path, {"action": "accept", "content": {"choices": ["tea"]}})
        assert (await ended(rig, turn))["status"] == "done"
        await rig.say(await rig.conversation(await rig.domain()), "Hi")
        tool_names = [{tool["name"] for tool in request.tools} for request in rig.model.requests]
        assert "ask_user" in tool_names[0]
        assert "ask_user" not in tool_names[-1]


async def test_a_tool_rule_can_depend_on_the_users_rights(tmp_path: Path) -> None:
    steps = (REMEMBER, say("Saved."), REMEMBER, say("Not saved."))
    async with tenants(tmp_path, steps=steps) as t:
        rig, domain = t.rig, t.ids["domain"]
        rule = {"promptx_remember": {"admin": "allow", "member": "ask-admin"}}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"toolPolicy": rule}})
        rig.http.headers.update(bearer(t.ann))
        events = await rig.say(await rig.conversation(domain), "Remember.")
        assert "input_required" not in [event["type"] for event in events]
        bob = await make_key(rig, "bob", "member", domain)
        rig.http.headers.update(bearer(bob))
        turn = await send(rig, await rig.conversation(domain))
        wait = await open_wait(rig)
        assert wait["answerer"] == "admin"
        answer = {"action": "decline", "content": {"reason": "No."}}
        assert (await t.ask(t.ann, "POST", f"/api/waits/{wait['id']}", answer)).status_code == 200
        assert (await ended(rig, turn))["status"] == "done"


async def test_an_approval_of_a_tool_ends_with_a_change_of_its_entry(tmp_path: Path) -> None:
    steps = [step for _ in range(3) for step in (use("s__fine"), say("Done."))]
    entry = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "hostile.py"), "ok"]}
    async with Rig(tmp_path, *steps, any_command=True) as rig:
        domain = await rig.domain(toolPolicy={"s__fine": "ask"}, mcpServers={"s": entry})
        conversation = await rig.conversation(domain)

        async def approve() -> None:
            turn = await send(rig, conversation)
            wait = await open_wait(rig)
            assert (wait["server"], wait["toolName"]) == ("s", "s__fine")
            answer = {"action": "accept", "content": {"scope": "conversation"}}
            await rig.ok("POST", f"/api/waits/{wait['id']}", answer)
            assert (await ended(rig, turn))["status"] == "done"

        await approve()
        assert (await ended(rig, await send(rig, conversation)))["status"] == "done"
        changed_settings = {"mcpServers": {"s": {**entry, "env": {"GREETING": "hello"}}}}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": changed_settings})
        await approve()
        calls = (await rig.ok("GET", f"/api/conversations/{conversation}/tool-calls"))["items"]
        assert [call["status"] for call in calls] == ["ok"] * 3


async def test_a_revoked_grant_removes_its_waits_from_the_list_and_its_total(tmp_path: Path) -> None:
    async with tenants(tmp_path) as t:
        assert (await t.ask(t.ann, "GET", "/api/waits")).json()["total"] == 1
        other_grants = {t.own_domain: "member"}
        as_operator(t.rig)
        await t.rig.ok("PATCH", "/api/users/ann", {"grants": other_grants})
        key = await make_key(t.rig, "ann", "member", t.own_domain)
        page = (await t.ask(key, "GET", "/api/waits")).json()
        assert (page["items"], page["total"]) == ([], 0)


async def test_one_answer_approves_a_call_and_allows_its_tool_in_the_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path, REMEMBER, say("Done."), REMEMBER, say("Done again.")) as rig:
        domain = await rig.domain(toolPolicy={"promptx_remember": "ask", "x__*": "deny"})
        turn = await send(rig, await rig.conversation(domain))
        wait = await open_wait(rig)
        before = (await rig.ok("GET", f"/api/domains/{domain}"))["version"]
        answer = {"action": "accept", "content": {"scope": "domain"}}
        assert (await rig.ok("POST", f"/api/waits/{wait['id']}", answer))["state"] == "accepted"
        assert (await ended(rig, turn))["status"] == "done"
        domain_record = await rig.ok("GET", f"/api/domains/{domain}")
        assert domain_record["settings"]["toolPolicy"] == {"promptx_remember": "allow", "x__*": "deny"}
        assert domain_record["version"] == before + 1
        assert (await rig.ok("GET", f"/api/domains/{domain}/history"))["items"][0]["author"] == "local"
        assert await audited(rig, action="wait.accept", target=wait["id"])
        assert await audited(rig, action="domain.update", target=domain)
        second_turn = await send(rig, await rig.conversation(domain))
        assert (await ended(rig, second_turn))["status"] == "done"  # no question is asked


async def test_an_answer_whose_rule_cannot_be_stored_leaves_the_wait_open(tmp_path: Path) -> None:
    full = {f"tool_{number}": "allow" for number in range(99)} | {"promptx_*": "ask"}
    answer = {"action": "accept", "content": {"scope": "domain"}}
    async with Rig(tmp_path, REMEMBER, say("Done.")) as rig:
        domain = await rig.domain(toolPolicy=full)
        turn = await send(rig, await rig.conversation(domain))
        path = f"/api/waits/{(await open_wait(rig))['id']}"
        status, code, message = await rig.refused("POST", path, answer)
        assert (status, code, "toolPolicy" in message) == (422, "VALIDATION_ERROR", True)
        assert (await rig.ok("GET", path))["state"] == "open"
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["toolPolicy"] == full
        await rig.ok("POST", path, {"action": "decline"})
        assert (await rig.refused("POST", path, answer))[:2] == (409, "WAIT_ANSWERED")
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["toolPolicy"] == full
        assert (await ended(rig, turn))["status"] == "done"


async def test_of_two_simultaneous_answers_only_the_valid_one_stores_its_rule(tmp_path: Path) -> None:
    rules = {"promptx_remember": "ask"}
    answers: list[Json] = [{"action": "decline"}, {"action": "accept", "content": {"scope": "domain"}}] * 3
    async with Rig(tmp_path, *(step for _ in range(3) for step in (REMEMBER, say("Done.")))) as rig:
        for _ in range(3):
            domain = await rig.domain(toolPolicy=rules)
            turn = await send(rig, await rig.conversation(domain))
            path, statuses = f"/api/waits/{(await open_wait(rig))['id']}", list[int]()

            async def post(path: str, body: Json, statuses: list[int]) -> None:
                statuses.append((await rig.http.post(path, json=body)).status_code)

            async with anyio.create_task_group() as tasks:
                for body in answers:
                    tasks.start_soon(post, path, body, statuses)
            assert sorted(statuses) == [200, *[409] * 5]
            policy = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["toolPolicy"]["promptx_remember"]
            assert policy == {"accepted": "allow", "declined": "ask"}[(await rig.ok("GET", path))["state"]]
            assert (await ended(rig, turn))["status"] == "done"


@pytest.mark.attack(kind="web")
async def test_only_an_admin_can_allow_a_tool_in_the_whole_domain(tmp_path: Path) -> None:
    async with tenants(tmp_path, steps=(REMEMBER, say("Done."))) as t:
        rig, domain = t.rig, t.ids["domain"]
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"toolPolicy": {"promptx_remember": "ask"}}})
        bob = await make_key(rig, "bob", "member", domain)
        rig.http.headers.update(bearer(bob))
        turn = await send(rig, await rig.conversation(domain))
        wait = await open_wait(rig)
        path = f"/api/waits/{wait['id']}"
        refusal = await rig.refused("POST", path, {"action": "accept", "content": {"scope": "domain"}})
        assert refusal[:2] == (403, "FORBIDDEN")
        assert (await rig.ok("GET", path))["state"] == "open"
        await rig.ok("POST", path, {"action": "accept"})
        assert (await ended(rig, turn))["status"] == "done"
        as_operator(rig)
        settings = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]
        assert settings["toolPolicy"] == {"promptx_remember": "ask"}
