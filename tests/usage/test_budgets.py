"""Budgets refuse calls that would exceed them, with any number of concurrent turns, and say when they renew."""

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection, text

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.models.base import ModelRequest
from agentic_rag.runtime.spending import bounds_of
from agentic_rag.store.budgets import Period
from agentic_rag.store.clock import now
from agentic_rag.store.usage import UsageRecord, put
from agentic_rag.testing.scripted import Broken
from agentic_rag.testing.steps import Say, Step, Use, say, use
from tests.access.tenants import as_operator, bearer, make_key
from tests.server.rig import Json, Rig, types_of
from tests.server.test_cli import run, serving

SPENT = Usage(10, 20, 30, 40)
"""A hundred tokens."""
PRICES = (
    '{"currency": "USD", "models": {"claude-sonnet*": {"input": 1, "cacheRead": 0.1, "cacheWrite": 2, "output": 5}}}'
)
COST = Decimal("0.000272")


def make_step(text: str = "Hello.") -> Step:
    return Step((Say(text),), usage=SPENT)


async def set_budget(rig: Rig, scope: str, subject: str, unit: str = "tokens", **bounds: str) -> Json:
    body = {"scope": scope, "subject": subject, "unit": unit, "period": bounds.pop("period", "day"), **bounds}
    budget: Json = await rig.ok("PUT", "/api/budgets", body)
    return budget


def write_price_file(folder: Path) -> Path:
    path = folder / "prices.json"
    path.write_text(PRICES)
    return path


@pytest.mark.parametrize("scope", ["domain", "user", "key"])
async def test_an_exhausted_budget_refuses_messages_until_it_renews(tmp_path: Path, scope: str) -> None:
    async with Rig(tmp_path, make_step(), requests_per_second=10_000) as rig:
        domain = await rig.domain()
        key = await make_key(rig, "mia", "member", domain)
        ident = next(key["id"] for key in (await rig.ok("GET", "/api/keys"))["items"])
        await set_budget(rig, scope, {"domain": domain, "user": "mia", "key": ident}[scope], hard="100")
        rig.http.headers.update(bearer(key))
        conversation = await rig.conversation(domain)
        assert types_of(await rig.say(conversation, "Hi"))[-1] == "done"
        path = f"/api/conversations/{conversation}/messages"
        refusal = await rig.http.post(path, json={"content": "Again"})
        error = refusal.json()["error"]
        assert (refusal.status_code, error["code"]) == (429, "BUDGET_EXCEEDED")
        assert error["details"]["scope"] == scope
        _, renews = bounds_of(Period.DAY, datetime.now(UTC).date())
        assert error["details"]["renewsAt"] == renews
        assert renews in error["message"]
        assert 1 <= int(refusal.headers["retry-after"]) <= 86_400
        assert (await rig.ok("GET", path))["items"][-1]["role"] == "assistant", "nothing was kept of it"


async def test_a_budget_in_money_counts_what_calls_cost(tmp_path: Path) -> None:
    async with Rig(tmp_path, make_step(), make_step(), prices=write_price_file(tmp_path)) as rig:
        domain = await rig.domain()
        budget = await set_budget(rig, "domain", domain, "money", hard=str(COST * 2), soft=str(COST), period="month")
        assert (budget["currency"], budget["spent"], budget["hard"]) == ("USD", "0", str(COST * 2))
        conversation = await rig.conversation(domain)
        first_events, second_events = await rig.say(conversation, "One"), await rig.say(conversation, "Two")
        assert [event["code"] for event in first_events if event["type"] == "notice"] == []
        assert [event["code"] for event in second_events if event["type"] == "notice"] == ["BUDGET_NEAR"]
        (state,) = (await rig.ok("GET", "/api/budgets"))["items"]
        assert (Decimal(state["spent"]), state["reserved"]) == (COST * 2, "0")
        refusal = await rig.refused("POST", f"/api/conversations/{conversation}/messages", {"content": "Three"})
        assert refusal[:2] == (429, "BUDGET_EXCEEDED")


async def test_a_model_without_a_price_is_not_called_under_a_money_budget(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(PRICES.replace("claude-sonnet*", "other"))
    async with Rig(tmp_path, prices=prices) as rig:
        domain = await rig.domain()
        await set_budget(rig, "domain", domain, "money", hard="1")
        events = await rig.say(await rig.conversation(domain), "Hi")
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "BUDGET_UNPRICED")
        assert "AGENTIC_RAG_PRICES" in events[-1]["message"]


async def test_a_turn_refused_in_its_middle_ends_with_a_message_and_the_conversation_continues(tmp_path: Path) -> None:
    step = Step((Say("I look."), *use("promptx_recall", query="leave").blocks), usage=SPENT)
    async with Rig(tmp_path, step, make_step("Done.")) as rig:
        domain = await rig.domain()
        budget = await set_budget(rig, "domain", domain, hard="100")
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "Hi")
        assert "tool_result" in types_of(events), "the step that ran was finished"
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "BUDGET_EXCEEDED")
        assert "renews at" in events[-1]["message"]
        messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert messages[-1]["content"] == "I look."
        assert messages[-1]["metadata"]["error"]["code"] == "BUDGET_EXCEEDED"
        await rig.ok("DELETE", f"/api/budgets/{budget['id']}")
        assert types_of(await rig.say(conversation, "Go on"))[-1] == "done"
        sent_messages = rig.model.requests[-1].messages
        answered_calls = {
            block["tool_use_id"]
            for message in sent_messages
            for block in message["content"]
            if block["type"] == "tool_result"
        }
        calls = {
            block["id"] for message in sent_messages for block in message["content"] if block["type"] == "tool_use"
        }
        assert calls == answered_calls != set()


async def test_fifty_parallel_turns_exceed_a_budget_at_most_by_the_last_call(tmp_path: Path) -> None:
    requests: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Step:
        requests.append(request)
        return make_step()

    async with Rig(tmp_path, *[reply] * 10, quota_conversations=100) as rig:
        domain = await rig.domain()
        await set_budget(rig, "domain", domain, hard="1000")
        outcomes: list[str] = []

        async def send_message(number: int) -> None:
            conversation = await rig.conversation(domain)
            response = await rig.http.post(f"/api/conversations/{conversation}/messages", json={"content": str(number)})
            outcomes.append("done" if "event: done" in response.text else response.text)

        with anyio.fail_after(200):
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(send_message, number)
        assert all("BUDGET_EXCEEDED" in outcome for outcome in outcomes if outcome != "done")
        assert outcomes.count("done") == len(requests) <= 10, "each costs a hundred of a thousand"
        while len(requests) < 10:  # on a slow machine some did not wait that long for the reservations of others
            assert types_of(await rig.say(await rig.conversation(domain), "Now?"))[-1] == "done"
        path = f"/api/conversations/{await rig.conversation(domain)}/messages"
        assert (await rig.refused("POST", path, {"content": "One more?"}))[:2] == (429, "BUDGET_EXCEEDED")
        (state,) = (await rig.ok("GET", "/api/budgets"))["items"]
        assert (state["spent"], state["reserved"]) == ("1000", "0")


async def test_a_turn_does_not_wait_for_its_own_reservation(tmp_path: Path) -> None:
    dropped = ModelError("dropped", retryable=True, started=True, retry_after=0.0)
    busy = ModelError("busy", http_status=529, retryable=True, retry_after=0.0)
    steps = (Broken(make_step("Half of it, and more."), 3, dropped), busy, make_step())
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        await set_budget(rig, "domain", domain, hard="200")
        events = await rig.say(await rig.conversation(domain), "Hi")
        assert [event["type"] for event in events if event["type"] in ("retrying", "done", "error")] == [
            "retrying",
            "retrying",
            "done",
        ]
        (state,) = (await rig.ok("GET", "/api/budgets"))["items"]
        assert state["reserved"] == "0"


async def test_no_title_is_requested_beyond_a_budget(tmp_path: Path) -> None:
    async with Rig(tmp_path, make_step(), titles="model") as rig:
        domain = await rig.domain()
        await set_budget(rig, "domain", domain, hard="100")
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "What is this?")
        await rig.application.parts.naming.run()
        assert len(rig.model.requests) == 1, "no title is asked for"
        assert (await rig.ok("GET", f"/api/conversations/{conversation}"))["title"] == "What is this?"


async def test_no_summary_is_requested_beyond_a_budget(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[make_step()] * 10) as rig:
        conversation = await rig.conversation()
        for _ in range(10):
            await rig.say(conversation, "Hi")
        await set_budget(rig, "user", "local", hard="1000")
        compact = f"/api/conversations/{conversation}/compact"
        assert (await rig.refused("POST", compact))[:2] == (429, "BUDGET_EXCEEDED")


@pytest.mark.parametrize("unit", ["tokens", "money"])
async def test_memories_are_proposed_when_the_budget_renews(tmp_path: Path, unit: str) -> None:
    proposal = say('{"memories": []}')
    prices = tmp_path / "prices.json"
    prices.write_text(PRICES.replace("claude-sonnet*", "other"))
    async with Rig(tmp_path, make_step(), proposal, prices=prices) as rig:
        domain = await rig.domain(memory={"extract": "after-turn"})
        await rig.say(await rig.conversation(domain), "I live in Lyon.")
        budget = await set_budget(rig, "domain", domain, unit, hard="100")  # spent, or without a price
        extraction = rig.application.services.extraction
        for _ in range(4):
            await extraction.run(0)
        assert len(rig.model.requests) == 1
        await rig.ok("DELETE", f"/api/budgets/{budget['id']}")
        await rig.application.database.write(_wake)
        await extraction.run(0)
        assert len(rig.model.requests) == 2, "it was not given up"


def _wake(conn: Connection) -> None:
    """Wait for the end of the pause in proposals."""
    conn.execute(text("UPDATE extractions SET claimed_until = ''"))


async def test_a_delegate_is_refused_and_its_parent_too(tmp_path: Path) -> None:
    delegate = Step((Use("delegate", {"role": "researcher", "task": "Find it."}),), usage=SPENT)
    async with Rig(tmp_path, delegate) as rig:
        domain = await rig.domain(subRoleIds=["researcher"])
        await set_budget(rig, "user", "*", hard="100")
        events = await rig.say(await rig.conversation(domain), "Hi")
        (result,) = [event for event in events if event["type"] == "tool_result"]
        assert result["status"] == "error"
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "BUDGET_EXCEEDED")


async def test_budgets_are_visible_by_rights_and_changes_are_audited(tmp_path: Path) -> None:
    async with Rig(tmp_path, make_step(), requests_per_second=10_000) as rig:
        first_domain, second_domain = await rig.domain(), await rig.domain()
        key_of_mia, key_of_ann = (
            await make_key(rig, "mia", "member", first_domain),
            await make_key(rig, "ann", "admin", first_domain),
        )
        as_operator(rig)
        await set_budget(rig, "domain", first_domain, hard="1000")
        await set_budget(rig, "domain", second_domain, hard="1000")
        await set_budget(rig, "user", "*", hard="500")
        budget_of_mia = await set_budget(rig, "user", "mia", soft="300")
        rig.http.headers.update(bearer(key_of_mia))
        assert types_of(await rig.say(await rig.conversation(first_domain), "Hi"))[-1] == "done"
        (budget_shown,) = (await rig.ok("GET", "/api/budgets"))["items"]
        assert (budget_shown["subject"], budget_shown["soft"], budget_shown["spent"]) == ("mia", "300", "100"), (
            "a named one goes first"
        )
        assert (await rig.refused("DELETE", f"/api/budgets/{budget_of_mia['id']}"))[0] == 403
        rig.http.headers.update(bearer(key_of_ann))
        budgets_seen = {
            (budget["scope"], budget["subject"], budget["each"])
            for budget in (await rig.ok("GET", "/api/budgets"))["items"]
        }
        assert budgets_seen == {("domain", first_domain, False), ("user", "ann", True)}
        as_operator(rig)
        assert len((await rig.ok("GET", "/api/budgets"))["items"]) == 4
        await rig.ok("DELETE", f"/api/domains/{second_domain}")
        assert len((await rig.ok("GET", "/api/budgets"))["items"]) == 3
        await rig.ok("DELETE", f"/api/budgets/{budget_of_mia['id']}")
        assert (await rig.refused("DELETE", f"/api/budgets/{budget_of_mia['id']}"))[:2] == (404, "BUDGET_NOT_FOUND")
        audited_acts = [(entry["action"], entry["target"]) for entry in (await rig.ok("GET", "/api/audit"))["items"]]
        assert audited_acts[0] == ("budget.remove", "user/mia")
        assert audited_acts.count(("budget.set", f"domain/{first_domain}")) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hard": None}, "hard"),
        ({"hard": "1.5"}, "hard"),
        ({"soft": "200"}, "soft"),
        ({"hard": "-1"}, "hard"),
        ({"hard": "NaN"}, "hard"),
        ({"unit": "money"}, "unit"),
        ({"subject": "dom_none"}, "subject"),
        ({"scope": "planet"}, "scope"),
    ],
)
async def test_an_invalid_request_names_its_field(tmp_path: Path, change: Json, field: str) -> None:
    async with Rig(tmp_path) as rig:
        wish = {"scope": "domain", "subject": "*", "unit": "tokens", "period": "day", "hard": "100", **change}
        status, code, message = await rig.refused("PUT", "/api/budgets", wish)
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert message.startswith(f"{field}:")


async def test_usage_has_money_where_models_have_prices_and_a_table_without_formulas(tmp_path: Path) -> None:
    async with Rig(
        tmp_path, make_step(), make_step(), prices=write_price_file(tmp_path), requests_per_second=10_000
    ) as rig:
        domain = await rig.domain()
        for name in ("mia", "+mia"):
            if name == "mia":
                rig.http.headers.update(bearer(await make_key(rig, name, "member", domain)))
            await rig.say(await rig.conversation(domain), "Hi")
            as_operator(rig)
        row = UsageRecord(
            id="usage_x",
            session_id="sess_x",  # type: ignore[arg-type]
            user_id="=cmd|'/c calc'!A0",
            domain_id=domain,
            model="unknown",
            input=1,
            cache_read=0,
            cache_write=0,
            output=0,
            created_at=now(),
        )
        await rig.application.database.write(lambda conn: put(conn, [row]))
        (total,) = (await rig.ok("GET", "/api/usage"))["items"]
        assert (total["cost"], total["currency"], total["unpricedCalls"]) == (str(COST * 2), "USD", 1)
        response = await rig.http.get("/api/usage?groupBy=user,model&format=csv")
        assert response.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(response.text)))
        assert {row["userId"] for row in rows} == {"mia", "local", "'=cmd|'/c calc'!A0"}
        assert sum(Decimal(row["cost"]) for row in rows) == COST * 2


def test_the_command_line_shows_usage_and_sets_budgets(tmp_path: Path) -> None:
    with serving(tmp_path):
        result = run(tmp_path, "budgets", "set", "domain", "*", "tokens", "day", "--hard", "1000", "--soft", "800")
        assert result.returncode == 0, result.stderr
        ident = result.stdout.split("\t")[0]
        assert "domain *\ttokens\tday\t-\t-\t800\t1000" in run(tmp_path, "budgets", "list").stdout
        assert run(tmp_path, "budgets", "remove", ident).returncode == 0
        assert run(tmp_path, "budgets", "list").stdout == ""
        header = run(tmp_path, "usage", "--by", "user,day", "--csv").stdout.splitlines()[0]
        assert header == "userId,day,calls,input,cacheRead,cacheWrite,output,cost,currency,unpricedCalls"
        assert run(tmp_path, "usage").returncode == 0


def test_periods_begin_at_midnight_and_on_the_first() -> None:
    day = datetime(2026, 12, 31, tzinfo=UTC).date()
    assert bounds_of(Period.DAY, day) == ("2026-12-31", "2027-01-01T00:00:00.000Z")
    assert bounds_of(Period.MONTH, day) == ("2026-12-01", "2027-01-01T00:00:00.000Z")
    assert bounds_of(Period.MONTH, day.replace(month=2, day=1))[1] == "2026-03-01T00:00:00.000Z"
