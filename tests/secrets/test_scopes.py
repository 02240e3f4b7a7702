"""A domain's secrets are redacted in that domain only: no tenant can censor another one, or probe for its values."""

import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from agentic_rag.base.redaction import Redactor, redacted_logs
from agentic_rag.testing.scripted import Scripted, ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, say, use
from tests.access.tenants import bearer, make_key, socket
from tests.runtime.harness import bench, definition
from tests.secrets.test_leaks import capture_logs, leaky_entry, start
from tests.server.rig import Json, Rig, events_of
from tests.ws.serving import serving

pytestmark = pytest.mark.attack(kind="secrets")

SECRET = "sk-planted-0123456789-wxyz"
WORDS = "paid leave"
"""The text of all messages in a domain about leave."""


@dataclass
class Admin:
    """The admin of one domain, with his key."""

    rig: Rig
    key: str
    domain: str

    @property
    def path(self) -> str:
        return f"/api/domains/{self.domain}"

    async def ask(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        options: dict[str, Any] = {} if body is None else {"json": body}
        return await self.rig.http.request(method, path, headers=bearer(self.key), **options)

    async def keep(self, name: str, value: str) -> None:
        assert (await self.ask("PUT", f"{self.path}/secrets/{name}", {"value": value})).is_success

    async def begin(self) -> str:
        return str((await self.ask("POST", "/api/conversations", {"domainId": self.domain})).json()["id"])

    async def say(self, conversation: str, content: str) -> list[Json]:
        response = await self.ask("POST", f"/api/conversations/{conversation}/messages", {"content": content})
        assert response.is_success, response.text
        return events_of(response.text)


@asynccontextmanager
async def open_admins(folder: Path, *steps: Scripted, **settings: Any) -> AsyncIterator[tuple[Admin, Admin]]:
    """Ann and mallory, each admin of a domain."""
    async with Rig(folder, *steps, requests_per_second=10_000, **settings) as rig:
        domains = [str((await rig.ok("POST", "/api/domains", {"name": name}))["id"]) for name in ("Ann's", "Other")]
        ann = Admin(rig, await make_key(rig, "ann", "admin", domains[0]), domains[0])
        yield ann, Admin(rig, await make_key(rig, "mallory", "admin", domains[1]), domains[1])


async def store_secret(mallory: Admin) -> None:
    await mallory.keep("GAG", WORDS)


async def store_entry(mallory: Admin) -> None:
    entry = {"url": "https://mcp.example.com/mcp", "headers": {"X-Gag": WORDS}, "enabled": False}
    change = {"settings": {"mcpServers": {"gag": entry}}}
    assert (await mallory.ask("PATCH", mallory.path, change)).is_success


async def try_entry(mallory: Admin) -> None:
    entry = {"url": "https://mcp.invalid/mcp", "headers": {"X-Gag": WORDS}}
    response = await mallory.ask("POST", f"{mallory.path}/mcp-servers/test", {"mcpServers": {"gag": entry}})
    assert response.is_success, response.text


Gag = Callable[[Admin], Awaitable[None]]


@pytest.mark.parametrize("gag", [store_secret, store_entry, try_entry])
async def test_a_domains_secret_is_not_redacted_in_other_domains(tmp_path: Path, gag: Gag) -> None:
    steps = (
        use("promptx_recall", query=f"rules of {WORDS}"),
        use("search_documents", query=WORDS),
        say(f"You have 25 days of {WORDS}."),
    )
    async with open_admins(tmp_path, *steps) as (ann, mallory):
        await gag(mallory)
        await ann.rig.upload(ann.domain, "rules.md", f"# Rules of {WORDS}\n\nTwenty-five days of {WORDS}.".encode())
        conversation = await ann.begin()
        events = await ann.say(conversation, f"How much {WORDS} is there?")
        results = [event["status"] for event in events if event["type"] == "tool_result"]
        assert results == ["ok", "ok"]
        conversation_path = f"/api/conversations/{conversation}"
        paths = (
            conversation_path,
            f"{conversation_path}/messages",
            f"{conversation_path}/tool-calls",
            f"/api/turns/{events[0]['turnId']}",
        )
        responses = [(await ann.ask("GET", response_path)).json() for response_path in (*paths, "/api/conversations")]
        hits = await ann.ask("POST", f"{ann.path}/documents/search", {"query": WORDS})
        responses += [events, hits.json(), (await ann.ask("GET", f"/api/conversations/{WORDS}")).json()]
        assert "[secret" not in json.dumps(responses)
        assert all(WORDS in json.dumps(response) for response in responses if response is not responses[3])


async def test_a_guessed_secret_in_another_domain_is_not_confirmed(tmp_path: Path) -> None:
    steps = (use("promptx_recall", query=f"find {SECRET}"), say(f"It is {SECRET}."))
    async with open_admins(tmp_path, *steps) as (ann, mallory), serving(ann.rig.application.app) as address:
        await ann.keep("ANNA_CRM_TOKEN", SECRET)
        conversation = await mallory.begin()
        events = await mallory.say(conversation, f"Is it {SECRET}?")
        assert [event["status"] for event in events if event["type"] == "tool_result"] == ["ok"]
        conversation_path = f"/api/conversations/{conversation}"
        responses: list[Any] = [events]
        for method, path, body in (
            ("PATCH", conversation_path, {"title": SECRET}),
            ("GET", f"{conversation_path}/messages", None),
            ("GET", f"{conversation_path}/tool-calls", None),
            ("GET", f"/api/conversations/{SECRET}", None),
            ("GET", f"/api/turns/{SECRET}", None),
            ("GET", f"/api/domains/{SECRET}", None),
            ("GET", f"/api/nothing/{SECRET}", None),
            ("GET", f"{ann.path}/nothing/{SECRET}", None),
            ("DELETE", f"{ann.path}/secrets/{SECRET}/x", None),
            ("PUT", f"{ann.path}/documents/{SECRET}", None),
            ("POST", "/api/conversations", {"domainId": SECRET}),
            ("POST", f"{mallory.path}/documents/search", {"query": SECRET}),
            ("PATCH", mallory.path, {SECRET: 1}),
            ("DELETE", f"{mallory.path}/secrets/{SECRET}", None),
        ):
            responses.append((await mallory.ask(method, path, body)).text)
        async with socket(address, key=mallory.key) as client:
            responses.append(await client.ask("message", conversationId=conversation, content="x", onBusy=SECRET))
            responses.append(await client.ask(SECRET))
            responses.append(await client.ask("subscribe", conversationId=conversation, turnId=SECRET, after=0))
        assert "[secret" not in json.dumps(responses)
        assert SECRET in json.dumps(responses[1:2])


async def test_outside_domains_a_keys_secrets_are_redacted_without_their_names(tmp_path: Path) -> None:
    async with open_admins(tmp_path) as (ann, _), serving(ann.rig.application.app) as address:
        await ann.keep("KEY", SECRET)
        errors = [(await ann.ask("GET", f"/api/{place}/{SECRET}")).text for place in ("nothing", "conversations")]
        async with socket(address, key=ann.key) as client:
            errors.append(json.dumps(await client.ask(SECRET)))
        operator = await ann.rig.http.get(f"/api/nothing/{SECRET}")
        for text in (*errors, operator.text):
            assert "[secret]" in text
            assert "KEY" not in text
        below = await ann.ask("DELETE", f"{ann.path}/documents/{SECRET}")
        assert "[secret KEY]" in below.text


async def test_a_dry_runs_secret_is_redacted_in_its_answer_and_then_forgotten(tmp_path: Path) -> None:
    steps = (use("promptx_recall", query=SECRET), say("Done."))
    with capture_logs() as log:
        async with Rig(tmp_path, *steps, any_command=True) as rig:
            domain = await rig.domain()
            report = await rig.ok(
                "POST", f"/api/domains/{domain}/mcp-servers/test", {"mcpServers": {"x": leaky_entry()}}
            )
            assert "started with [secret x.env.TOKEN]" in json.dumps(report)
            assert SECRET not in json.dumps(report) + log.getvalue()
            events = await rig.say(await rig.conversation(domain), f"Find {SECRET}")
            assert [event["status"] for event in events if event["type"] == "tool_result"] == ["ok"]
            assert "[secret" not in json.dumps(events)


async def test_replaced_and_deleted_secrets_are_still_redacted_in_their_servers_output(tmp_path: Path) -> None:
    steps = (use("leaky__leak"), say(f"It was {SECRET}."))
    async with Rig(tmp_path, *steps, any_command=True) as rig:
        domain = await rig.domain(
            mcpServers={"leaky": leaky_entry({"TOKEN": "${KEY}"})}, toolPolicy={"leaky__*": "allow"}
        )
        path = f"/api/domains/{domain}"
        await rig.ok("PUT", f"{path}/secrets/KEY", {"value": SECRET})
        await start(rig, domain, "leaky")
        await rig.ok("PUT", f"{path}/secrets/KEY", {"value": "another-secret-value"})
        log = json.dumps(await rig.ok("GET", f"{path}/mcp-servers"))
        await rig.ok("DELETE", f"{path}/secrets/KEY")
        events = json.dumps(await rig.say(await rig.conversation(domain), f"Is {SECRET} old?"))
        assert SECRET not in log + events
        assert "[secret KEY]" in events


async def test_secrets_are_redacted_after_a_restart_before_their_first_use(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/KEY", {"value": SECRET})
    async with Rig(tmp_path, say(f"It is {SECRET}.")) as rig:
        events = await rig.say(await rig.conversation(domain), f"Is it {SECRET}?")
        assert "It is [secret KEY]." in "".join(event["text"] for event in events if event["type"] == "text")
        assert SECRET not in json.dumps(events)


async def test_a_servers_output_reaches_no_other_domain_with_the_same_entry(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        first_domain = await rig.domain(mcpServers={"leaky": leaky_entry({"TOKEN": SECRET})})
        second_domain = await rig.domain(mcpServers={"leaky": leaky_entry({"TOKEN": SECRET})})
        await start(rig, first_domain, "leaky")
        servers = (await rig.ok("GET", f"/api/domains/{second_domain}/mcp-servers"))["items"]
        (entry,) = [server for server in servers if server["name"] == "leaky"]
        assert (entry["state"], entry["log"], entry["tools"]) == ("stopped", [], [])


async def test_the_log_of_refusals_holds_no_secret_of_any_domain_and_no_name(tmp_path: Path) -> None:
    async with open_admins(tmp_path) as (ann, mallory):
        await ann.keep("KEY", SECRET)
        await mallory.keep("GAG", "GET /api/domains")
        assert (await mallory.ask("GET", f"{ann.path}/secrets/{SECRET}")).status_code == 404
        rows = await ann.rig.ok("GET", "/api/audit", params={"outcome": "refused"})
        assert f"{ann.path}/secrets/[secret]" in [row["target"] for row in rows["items"]]
        assert {row["action"] for row in rows["items"]} == {"GET /api/domains/{domain}/secrets/{name}"}
        assert SECRET not in json.dumps(rows)


def test_logs_hold_no_secret_of_any_domain_or_running_trial_and_no_name() -> None:
    redactor = Redactor()
    redactor.add("dom_1", "ONE", "value-of-one")
    redactor.add("dom_2", "TWO", "value-of-two")
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with redacted_logs(redactor):
            with redactor.trying("dom_1", {"X": "tried-value"}):
                logging.getLogger("a.b").warning("%s %s %s", "value-of-one", "value-of-two", "tried-value")
            logging.getLogger("a.b").warning("%s %s", "value-of-one", "tried-value")
    finally:
        root.removeHandler(handler)
    assert log.getvalue().splitlines() == ["[secret] [secret] [secret]", "[secret] tried-value"]


def test_a_trial_uses_its_domain_and_leaves_nothing() -> None:
    redactor = Redactor()
    redactor.add("dom_1", "ONE", "value-of-one")
    text = "value-of-one tried-value learnt-value"
    with redactor.trying("dom_1", {"X": "tried-value"}) as trial:
        redactor.add("dom_1", "LEARNT", "learnt-value")
        assert trial("value-of-one tried-value") == "[secret ONE] [secret X]"
        assert redactor.of("dom_1")(text) == "[secret ONE] tried-value [secret LEARNT]"
        assert redactor(text) == "[secret] [secret] [secret]"
    assert redactor.of("dom_1")(text) == "[secret ONE] tried-value [secret LEARNT]"
    assert redactor(text) == "[secret] tried-value [secret]"
    with pytest.raises(RuntimeError), redactor.trying("dom_1", {"X": "tried-value"}):
        raise RuntimeError
    assert redactor("tried-value") == "tried-value"


def test_nothing_is_cached_for_a_domain_without_secrets() -> None:
    redactor = Redactor()
    for number in range(1_000):
        assert redactor.of(f"dom_{number}")("text") == "text"
    assert len(redactor._domains) == 0
    redaction = redactor.of("dom_1")
    redactor.add("dom_1", "ONE", "value-of-one")
    assert redaction("value-of-one") == "[secret ONE]"


def test_several_domains_together_reveal_no_name() -> None:
    redactor = Redactor()
    for number in (1, 2, 3):
        redactor.add(f"dom_{number}", f"NAME_{number}", f"value-of-{number}")
    together = redactor.among(["dom_1", "dom_2", "dom_none"])
    assert together.json(["value-of-1 value-of-2", "value-of-3"]) == ["[secret] [secret]", "value-of-3"]


async def test_resumed_turns_are_redacted_with_their_domains_secrets(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add("dom_test", "KEY", SECRET)
    redactor.add("dom_other", "OTHER", "another-value")
    slow = Stalled(say("One two three."), 1)
    async with ScriptedModel(slow) as model, bench(tmp_path, model, redactor=redactor) as b:
        running = await b.send("A", definition())
        await slow.reached.wait()
        waiting = await b.send(f"B {SECRET} another-value", definition(), on_busy="queue")
    text = f"It is {SECRET}."
    async with (
        ScriptedModel(Step((Say(text, pieces=(text,)),)), say("Done.")) as model,
        bench(tmp_path, model, redactor=redactor) as b,
    ):
        await b.runtime.recover()
        with anyio.fail_after(240):
            running_events = [event.data.decode() async for event in b.runtime.follow(running.turn_id)]
            waiting_events = [event.data.decode() async for event in b.runtime.follow(waiting.turn_id)]
    assert "It is [secret KEY]." in "".join(running_events)
    assert "B [secret KEY] another-value" in "".join(waiting_events)
    assert SECRET not in "".join([*running_events, *waiting_events])


async def test_health_states_are_readable_although_a_secret_has_their_text(tmp_path: Path) -> None:
    async with open_admins(tmp_path) as (ann, mallory):
        before = await ann.rig.ok("GET", "/api/health")  # as the operator, because members see no reason
        words = sorted({word for part in before.values() if isinstance(part, dict) for word in map(str, part.values())})
        assert "no embedder is configured" in words
        for number, word in enumerate(words):
            await mallory.keep(f"GAG{number}", word)
        after = await ann.rig.ok("GET", "/api/health")
        changing = {name: before[name] for name in ("servers", "store", "disk")}
        assert {**after, **changing} == {**before, "embedder": {**before["embedder"], "reason": "[secret]"}}
