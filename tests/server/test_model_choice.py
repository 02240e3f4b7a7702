"""The choice of a model for a conversation, on every door that sends a message."""

from pathlib import Path
from typing import Any

import pytest

from agentic_rag.testing.steps import say
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig
from tests.ws.serving import client, serving

pytestmark = pytest.mark.slow("runs whole turns at several doors")

OFFERED = {"model": "claude-sonnet-5-5", "allowedModels": ["claude-haiku-5-5", "claude-opus-5-5"]}


def refusal(answer: Any) -> tuple[int, str, Any]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["details"]


async def test_every_endpoint_checks_the_chosen_model_and_the_conversation_keeps_it(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[say("Yes.")] * 7) as rig, serving(rig.application.app) as address:
        domain = await rig.domain(**OFFERED)
        models = ["claude-sonnet-5-5", "claude-haiku-5-5", "claude-opus-5-5"]
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["models"] == models
        conversation = await rig.conversation(domain)
        path = f"/api/conversations/{conversation}"

        async def answered_by() -> str:
            model = rig.model.requests[-1].model
            stored_model = (await rig.ok("GET", path)).get("model")
            assert stored_model == (None if model == models[0] else model)
            last_message = (await rig.ok("GET", f"{path}/messages"))["items"][-1]
            assert last_message["metadata"]["model"] == model  # shown in the answer's details on the page
            return model

        await rig.say(conversation, "One?")
        assert await answered_by() == models[0]
        await rig.say(conversation, "Two?", model="claude-haiku-5-5")  # SSE
        assert await answered_by() == "claude-haiku-5-5"
        await rig.say(conversation, "Three?")  # a door without the field uses the conversation's model
        assert await answered_by() == "claude-haiku-5-5"
        async with client(address) as c:
            fields = {"conversationId": conversation}
            error = await c.ask("message", content="Four?", model="claude-none-5", **fields)
            assert (error["type"], error["code"]) == ("error", "MODEL_NOT_ALLOWED")
            assert error["details"] == {"model": "claude-none-5", "allowed": models}
            await c.ask("message", content="Four?", model="claude-opus-5-5", **fields)
            await c.hear_turn()
            assert await answered_by() == "claude-opus-5-5"
            question = (await rig.ok("GET", f"{path}/messages"))["items"][-2]["id"]
            refused_frame = await c.ask("retry", messageId=question, model="claude-none-5", **fields)
            assert refused_frame["code"] == "MODEL_NOT_ALLOWED"
            await c.ask("retry", messageId=question, model="claude-sonnet-5-5", **fields)
            await c.hear_turn()
            assert await answered_by() == models[0]
        none = {"content": "Five?", "model": "claude-none-5"}
        for method, place, body in (
            ("POST", f"{path}/messages", none),
            ("POST", f"{path}/messages/{question}/retry", {"model": "claude-none-5"}),
            ("POST", f"{path}/messages/{question}/edit", none),
            ("PATCH", path, {"model": "claude-none-5"}),
            ("POST", "/api/conversations", {"domainId": domain, "model": "claude-none-5"}),
        ):
            expected = (422, "MODEL_NOT_ALLOWED", {"model": "claude-none-5", "allowed": models})
            assert refusal(await rig.http.request(method, place, json=body)) == expected, place
        await rig.ok("PATCH", path, {"model": "claude-opus-5-5"})
        await rig.say(conversation, "Six?")
        assert await answered_by() == "claude-opus-5-5"
        await rig.ok("PATCH", path, {"model": ""})
        await rig.say(conversation, "Seven?")
        assert await answered_by() == models[0]


async def test_a_model_that_is_no_longer_offered_is_replaced_with_a_notice(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes."), say("Yes.")) as rig:
        domain = await rig.domain(**OFFERED)
        conversation = await rig.conversation(domain, model="claude-opus-5-5")
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"allowedModels": ["claude-haiku-5-5"]}})
        events = await rig.say(conversation, "Still there?")
        assert rig.model.requests[-1].model == "claude-sonnet-5-5"
        (notice,) = [event for event in events if event["type"] == "notice"]
        assert notice["message"] == "claude-opus-5-5 can no longer be chosen in this domain; claude-sonnet-5-5 answers."
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"allowedModels": None}})
        await rig.say(conversation, "And now?")
        assert "models" not in await rig.ok("GET", f"/api/domains/{domain}")
        answer = await rig.http.post(f"/api/conversations/{conversation}/messages", json={"content": "A", "model": "x"})
        assert refusal(answer) == (422, "MODEL_NOT_ALLOWED", {"model": "x", "allowed": []})


async def test_an_effort_unsupported_by_the_model_is_left_out(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes."), say("Yes.")) as rig:
        domain = await rig.domain(model="claude-opus-4-7", effort="max", allowedModels=["claude-haiku-4-5"])
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "One?")
        await rig.say(conversation, "Two?", model="claude-haiku-4-5")
        assert [request.effort for request in rig.model.requests] == ["max", None]


async def test_members_see_the_models_without_the_settings(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(**OFFERED)
        key = await make_key(rig, "ann", "member", domain)
        domain_record = await rig.ok("GET", f"/api/domains/{domain}", headers=bearer(key))
        assert domain_record["models"] == ["claude-sonnet-5-5", "claude-haiku-5-5", "claude-opus-5-5"]
        assert domain_record["settings"] == {}
