"""Usage: the cost of model calls and their owner, kept after its conversation is deleted."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from agentic_rag.base.events import Usage
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.store.usage import USAGE
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.steps import Say, Step, Use, say
from tests.access.tenants import as_operator, bearer, make_key
from tests.server.rig import Rig

SPENT = Step((Say("Hello."),), usage=Usage(10, 20, 30, 4))
CHECKED = {"droppedCitations": 0, "unverifiedCitations": 0}
TOTAL = {"calls": 1, "input": 10, "cacheRead": 20, "cacheWrite": 30, "output": 4, **CHECKED}


async def test_usage_outlives_its_conversation_and_its_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path, SPENT) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hi")
        usage_path = "/api/usage?groupBy=domain,user,model"
        (row,) = (await rig.ok("GET", usage_path))["items"]
        assert row.pop("model")
        assert row == {"domainId": domain, "userId": "local", **TOTAL}
        usage_path = "/api/usage?groupBy=domain,user"
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        assert (await rig.ok("GET", usage_path))["items"] == [row]
        await rig.ok("DELETE", f"/api/domains/{domain}")
        assert (await rig.ok("GET", usage_path))["items"] == [row]
        assert (await rig.ok("GET", "/api/usage"))["items"] == [TOTAL]


async def test_usage_is_grouped_by_day_and_agent_and_bounded_by_time(tmp_path: Path) -> None:
    async with Rig(tmp_path, SPENT) as rig:
        await rig.say(await rig.conversation(), "Hi")
        (row,) = (await rig.ok("GET", "/api/usage?groupBy=day,agent"))["items"]
        assert row["agent"] == ""
        day = row["day"]
        assert len(day) == len("2026-01-31")
        assert len((await rig.ok("GET", f"/api/usage?from={day}"))["items"]) == 1
        assert (await rig.ok("GET", f"/api/usage?to={day}"))["items"] == []
        assert (await rig.refused("GET", "/api/usage?groupBy=colour"))[:2] == (422, "VALIDATION_ERROR")
        assert (await rig.refused("GET", "/api/usage?from=yesterday"))[:2] == (422, "VALIDATION_ERROR")


async def test_an_impossible_or_reversed_time_range_is_refused_and_named(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for path in ("/api/usage", f"/api/domains/{domain}/tool-calls"):
            for query, shown in (
                ("from=2026-02-30", "2026-02-30"),
                ("to=2026-13-01T00:00:00Z", "2026-13-01T00:00:00Z"),
                ("from=2026-01-01T25:00Z", "2026-01-01T25:00Z"),
                ("from=2026-02-01&to=2026-01-31", "2026-01-31"),
                ("from=2026-02-01T10:00:00.5Z&to=2026-02-01T10:00:00Z", "2026-02-01T10:00:00.000Z"),
            ):
                status, code, message = await rig.refused("GET", f"{path}?{query}")
                assert (status, code) == (422, "VALIDATION_ERROR"), (path, query)
                assert shown in message, (path, query)
            assert (await rig.ok("GET", f"{path}?from=2026-01-31&to=2026-01-31"))["items"] == []


async def test_a_time_without_milliseconds_includes_the_calls_of_its_second(tmp_path: Path) -> None:
    async with Rig(tmp_path, SPENT) as rig:
        await rig.say(await rig.conversation(), "Hi")
        at = await rig.application.database.read(lambda conn: conn.execute(select(USAGE.c.created_at)).scalar_one())
        for time in (at[: len("2026-01-31T10")], at[: len("2026-01-31T10:00:00")]):
            assert len((await rig.ok("GET", f"/api/usage?from={time}Z"))["items"]) == 1, time
            assert (await rig.ok("GET", f"/api/usage?to={time}Z"))["items"] == [], time


async def test_members_see_their_own_usage_admins_their_domains_and_operators_all(tmp_path: Path) -> None:
    async with Rig(tmp_path, SPENT, SPENT, SPENT, requests_per_second=10_000) as rig:
        first_domain, second_domain = await rig.domain(), await rig.domain()
        keys = {
            "mia": await make_key(rig, "mia", "member", first_domain),
            "max": await make_key(rig, "max", "member", first_domain, second_domain),
            "ann": await make_key(rig, "ann", "admin", first_domain),
        }
        for name, domain in (("mia", first_domain), ("max", first_domain), ("max", second_domain)):
            rig.http.headers.update(bearer(keys[name]))
            await rig.say(await rig.conversation(domain), "Hi")
        pairs_by_user = {}
        for name, key in keys.items():
            rig.http.headers.update(bearer(key))
            rows = (await rig.ok("GET", "/api/usage?groupBy=domain,user"))["items"]
            pairs_by_user[name] = {(row["domainId"], row["userId"]) for row in rows}
        as_operator(rig)
        rows = (await rig.ok("GET", "/api/usage?groupBy=domain,user"))["items"]
        everything = {(first_domain, "mia"), (first_domain, "max"), (second_domain, "max")}
        assert {(row["domainId"], row["userId"]) for row in rows} == everything
        assert pairs_by_user == {
            "mia": {(first_domain, "mia")},
            "max": {(first_domain, "max"), (second_domain, "max")},
            "ann": {(first_domain, "mia"), (first_domain, "max")},
        }


async def test_usage_is_grouped_by_a_messages_key(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[SPENT] * 4, requests_per_second=10_000) as rig:
        domain = await rig.domain()
        await rig.say(await rig.conversation(domain), "Hi")
        keys = [await make_key(rig, "mia", "member", domain) for _ in range(2)]
        idents = [item["id"] for item in (await rig.ok("GET", "/api/keys"))["items"]]
        rig.http.headers.update(bearer(keys[0]))
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hi")
        rig.http.headers.update(bearer(keys[1]))
        message = (await rig.say(conversation, "Again"))[0]["userMessageId"]
        await rig.http.post(f"/api/conversations/{conversation}/messages/{message}/retry")
        as_operator(rig)
        rows = (await rig.ok("GET", "/api/usage?groupBy=user,key"))["items"]
        calls_by_key = {(row["userId"], row["keyId"]): row["calls"] for row in rows}
        assert calls_by_key == {("local", ""): 1, ("mia", idents[0]): 1, ("mia", idents[1]): 2}
        rig.http.headers.update(bearer(keys[0]))
        own = (await rig.ok("GET", "/api/usage?groupBy=key"))["items"]
        assert {(row["keyId"], row["calls"]) for row in own} == {(idents[0], 1), (idents[1], 2)}


def write_prices(folder: Path, *models: str) -> Path:
    """Name prices for models: 1 for a million tokens of input, 2 for output; return the file."""
    path = folder / "prices.json"
    price = {"input": "1", "cacheRead": "1", "cacheWrite": "1", "output": "2"}
    path.write_text(json.dumps({"currency": "EUR", "models": dict.fromkeys(models, price)}))
    return path


@pytest.mark.parametrize(
    ("models", "cost"),
    [
        (["*"], {"amount": "0.000204", "currency": "EUR"}),
        (["other"], {"amount": "0", "currency": "EUR", "unpricedCalls": 3}),
        ([], None),
    ],
)
async def test_an_answer_has_the_cost_of_its_turn_and_delegates(
    tmp_path: Path, models: list[str], cost: dict[str, object] | None
) -> None:
    delegation = Step((Use("delegate", {"role": "researcher", "task": "Dig"}),), usage=SPENT.usage)
    settings: dict[str, Any] = {"prices": write_prices(tmp_path, *models)} if models else {}
    async with Rig(tmp_path, delegation, SPENT, SPENT, SPENT, **settings) as rig:
        conversation = await rig.conversation(await rig.domain(subRoleIds=["researcher"]))
        await rig.say(conversation, "Ask him")
        path = f"/api/conversations/{conversation}/messages"
        question, answer = (await rig.ok("GET", path))["items"]
        assert "cost" not in question["metadata"]
        assert answer["metadata"].get("cost") == cost
        assert answer["metadata"]["usage"]["outputTokens"] == 12, "what is paid is what is counted"
        single_message = await rig.ok("GET", f"{path}/{answer['id']}?format=html")
        assert single_message["metadata"].get("cost") == cost
        await rig.say(conversation, "And now without him")
        latest = (await rig.ok("GET", path))["items"][-1]
        if cost is not None and "unpricedCalls" not in cost:
            assert latest["metadata"]["cost"] == {"amount": "0.000068", "currency": "EUR"}


async def ask_twice(rig: Rig, change: Any = None) -> list[dict[str, Any]]:
    """Ask two questions of one conversation and return the usage by cache miss. ``change``: settings between them."""
    domain = await rig.domain(model="claude-haiku-5-5")
    conversation = await rig.conversation(domain)
    assert (await rig.say(conversation, "Hi"))[-1]["type"] == "done"
    if change is not None:
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": change})
    assert (await rig.say(conversation, "And now?"))[-1]["type"] == "done"
    rows: list[dict[str, Any]] = (await rig.ok("GET", "/api/usage?groupBy=cacheMiss"))["items"]
    return rows


async def test_the_services_reason_for_a_cache_miss_is_in_the_usage(tmp_path: Path) -> None:
    async with (
        FakeMessagesAPI(say("Hello."), say("Still here.")) as api,
        Rig(tmp_path, instead=AnthropicModel(api.key, api.url)) as rig,
    ):
        rows = {row["cacheMiss"]: row for row in await ask_twice(rig, {"model": "claude-opus-5-5"})}
        assert rows[""]["calls"] == rows["model_changed"]["calls"] == 1
        assert rows["model_changed"]["cacheMissed"] > 0
        assert "cacheMissed" not in rows[""]
        first, second_id = (request["diagnostics"]["previous_message_id"] for request in api.requests)
        assert (first, second_id[:4]) == (None, "msg_")
        csv = (await rig.http.get("/api/usage?groupBy=cacheMiss&format=csv")).text
        assert csv.startswith("cacheMiss,calls,")
    assert api.refused == []


async def test_an_unchanged_prompt_has_no_cache_miss(tmp_path: Path) -> None:
    async with (
        FakeMessagesAPI(say("Hello."), say("Still here.")) as api,
        Rig(tmp_path, instead=AnthropicModel(api.key, api.url)) as rig,
    ):
        (row,) = await ask_twice(rig)
        assert (row["cacheMiss"], row["calls"]) == ("", 2)
    assert all("diagnostics" in request for request in api.requests)


@pytest.mark.parametrize("reports", [True, False], ids=["reports its models", "does not"])
async def test_a_gateway_without_diagnostics_still_answers(tmp_path: Path, reports: bool) -> None:
    async with (
        FakeMessagesAPI(say("Hello."), say("Still here."), unknown=("diagnostics",), models_api=reports) as api,
        Rig(tmp_path, instead=AnthropicModel(api.key, api.url)) as rig,
    ):
        (row,) = await ask_twice(rig)
        assert (row["cacheMiss"], row["calls"]) == ("", 2)
    assert len(api.refused) == reports  # one refusal, then no request has the parameter
