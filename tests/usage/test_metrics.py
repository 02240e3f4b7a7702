"""The page /metrics shows what happened, with few label values, to operators only."""

import time
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, event

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.telemetry import Observer, WorkKind
from agentic_rag.operations.budgets import Budgets
from agentic_rag.operations.metrics import MOST, OTHER, UNKNOWN, Counter, Counts, Distributions
from agentic_rag.runtime.spending import Spending
from agentic_rag.testing.steps import Say, Step, say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

REFUSED = ModelError("no", http_status=401, kind="authentication_error")


async def scrape(rig: Rig) -> Samples:
    response = await rig.http.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"agentic_rag_{name}", tuple(sorted(labels.items()))]


async def test_turns_steps_tools_tokens_and_errors_are_counted(tmp_path: Path) -> None:
    steps = (use("promptx_recall", query="leave"), Step((Say("No."),), usage=Usage(1, 2, 3, 4)), REFUSED)
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hi")
        await rig.say(conversation, "Hi")
        await rig.ok("PUT", "/api/budgets", budget_of(domain))
        await rig.refused("GET", "/api/conversations/none")
        samples = await scrape(rig)
        assert value(samples, "turns_total", domain=domain, end="end_turn") == 1
        assert value(samples, "turns_total", domain=domain, end="LLM_SERVICE_ERROR") == 1
        assert value(samples, "turn_seconds_count", domain=domain) == 2
        assert value(samples, "time_to_first_token_seconds_count", domain=domain) == 1
        model = next(dict(labels)["model"] for name, labels in samples if name == "agentic_rag_tokens_total")
        kinds = ("input", "cache_read", "cache_write", "output")
        token_counts = [value(samples, "tokens_total", domain=domain, model=model, kind=kind) for kind in kinds]
        assert token_counts[1:3] == [2, 3]
        assert value(samples, "model_call_seconds_count", model=model, outcome="ok") == 2
        assert value(samples, "model_call_seconds_count", model=model, outcome="authentication_error") == 1
        assert value(samples, "model_first_token_seconds_count", model=model) == 2
        assert value(samples, "tool_seconds_count", tool="promptx_recall", outcome="ok") == 1
        assert value(samples, "mcp_request_seconds_count", origin="system", outcome="ok") == 1
        assert value(samples, "retrieval_seconds_count", source="memory") == 1
        assert value(samples, "errors_total", code="LLM_SERVICE_ERROR") == 1
        assert value(samples, "errors_total", code="CONVERSATION_NOT_FOUND") == 1
        assert value(samples, "journal_commit_seconds_count", durable="true") >= 2
        assert value(samples, "journal_batch_events_count") >= 4
        for name in ("turns_running", "turns_queued", "subscribers", "connections", "documents_waiting"):
            assert value(samples, name) == 0, name
        assert value(samples, "part_state", part="store") == 0
        assert value(samples, "part_state", part="model") == 1
        assert value(samples, "mcp_servers", state="ready") >= 1
        assert value(samples, "disk_free_bytes") > 0
        assert value(samples, "budget_used_ratio", domain=domain, unit="tokens", period="day") > 0
        assert conversation not in str(samples)
        assert "local" not in {label for _, labels in samples for _, label in labels}


def budget_of(domain: str) -> dict[str, str]:
    return {"scope": "domain", "subject": domain, "unit": "tokens", "period": "day", "hard": "1000"}


async def test_a_scrape_reads_only_the_budgets_that_it_shows(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", "/api/budgets", budget_of(domain))
        application = rig.application
        statements: list[str] = []

        def note_statement(*call: Any) -> None:
            statements.append(call[2])

        def listen(conn: Connection) -> None:
            event.listen(conn.engine, "before_cursor_execute", note_statement)

        await application.database.read(listen)
        ratios = [sample for sample in await scrape(rig) if sample[0] == "agentic_rag_budget_used_ratio"]
        ratio_count, query_count = len(ratios), sum("budget_reservations" in statement for statement in statements)
        assert (ratio_count, query_count) == (1, 1)
        for period in ("day", "month"):
            await rig.ok("PUT", "/api/budgets", {**budget_of("local"), "scope": "user", "period": period})
        await rig.ok("PUT", "/api/budgets", budget_of("*"))
        statements.clear()
        assert [sample for sample in await scrape(rig) if sample[0] == "agentic_rag_budget_used_ratio"] == ratios
        assert sum("budget_reservations" in statement for statement in statements) == 1
        more_budgets = [{**budget_of(domain), "unit": "tokens", "period": "month"}, budget_of(await rig.domain())]
        for budget in more_budgets:
            await rig.ok("PUT", "/api/budgets", budget)
        statements.clear()
        budgets = Budgets(application.database, Spending(application.database))
        assert len(await budgets.list_of_domains(2)) == 2
        assert sum("budget_reservations" in statement for statement in statements) == 2


async def test_a_name_invented_by_a_model_is_not_used_as_a_metric_label(tmp_path: Path) -> None:
    steps = (use("invented_by_a_model", query="leave"), use("promptx_recall", query="leave"), say("No."))
    async with Rig(tmp_path, *steps) as rig:
        await rig.say(await rig.conversation(), "Hi")
        samples = await scrape(rig)
        assert "invented_by_a_model" not in str(samples)
        assert value(samples, "tool_seconds_count", tool=UNKNOWN, outcome="error") == 1
        assert value(samples, "tool_seconds_count", tool="promptx_recall", outcome="ok") == 1


async def test_metrics_are_for_operators_and_can_be_off(tmp_path: Path) -> None:
    async with Rig(tmp_path / "on") as rig:
        domain = await rig.domain()
        member, admin = await make_key(rig, "mia", "member", domain), await make_key(rig, "ann", "admin", domain)
        for key in (member, admin):
            assert (await rig.http.get("/metrics", headers=bearer(key))).status_code == 403
        operator = await make_key(rig, "olga", "operator")
        assert (await rig.http.get("/metrics", headers=bearer(operator))).status_code == 200
        rig.http.headers.pop("authorization", None)
        assert (await rig.http.get("/metrics")).status_code == 401
    async with Rig(tmp_path / "off", say("Hello."), metrics="off") as rig:
        await rig.say(await rig.conversation(), "Hi")
        assert (await rig.refused("GET", "/metrics"))[:2] == (404, "METRICS_NOT_FOUND")


@given(st.lists(st.tuples(st.text(max_size=3), st.floats(0, 1000)), max_size=50))
def test_a_distribution_counts_every_value_once(notes: list[tuple[str, float]]) -> None:
    series = Distributions("x", "", ("a",))
    for label, number in notes:
        series.note(number, label)
    assert sum(sum(distribution.counts) for distribution in series.values.values()) == len(notes)
    for distribution in series.values.values():
        assert len(distribution.counts) == len(series.bounds) + 1


def test_labels_are_bounded() -> None:
    counter = Counter("x", "", ("a", "b"))
    for number in range(3 * MOST):
        counter.add(1, str(number), "b")
    assert len(counter.values) == MOST + 1
    assert counter.values[OTHER, OTHER] == 2 * MOST
    counts = Counts()
    observer = Observer(time.monotonic, counts)
    for number in range(3 * MOST):
        observer.begin(WorkKind.TURN, "assistant", domain_id=f"dom_{number}").end("end_turn")
    assert len(counts.turns.values) == MOST + 1
