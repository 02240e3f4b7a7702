"""Notifications to webhooks: content, signatures, order, retries, and addresses that must not be reached."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agentic_rag.access.users import LOCAL
from agentic_rag.base.json_form import to_json, to_text
from agentic_rag.reach.endpoints import EndpointChange, EndpointTarget
from agentic_rag.store import deliveries, secrets
from agentic_rag.store.deliveries import DeliveryState, Event
from agentic_rag.store.endpoints import SERVER, EventKind
from agentic_rag.testing.steps import say
from tests.access.tenants import audited, make_key, tenants
from tests.reach.receiver import Receiver, outbox, run_sender
from tests.server.rig import Rig
from tests.server.test_waits import REMEMBER, ended, open_wait, send
from tests.waiting import pause


async def test_events_of_a_turn_arrive_signed_in_order_and_without_texts(tmp_path: Path) -> None:
    async with (
        Receiver().open() as plain,
        Receiver().open() as with_texts,
        Rig(tmp_path, REMEMBER, say("Done."), mcp_hosts=f"{plain.address},{with_texts.address}") as rig,
    ):
        domain = await rig.domain(toolPolicy={"promptx_remember": "ask"})
        path = f"/api/domains/{domain}/endpoints"
        events = ["wait.created", "wait.answered", "feedback.created"]
        created = await rig.ok("POST", path, {"name": "Plain", "url": plain.url, "events": events})
        assert created["address"] == "127.0.0.1"
        assert created["secret"].startswith("whsec_")
        form = {"name": "Whole", "url": with_texts.url, "events": events, "withTexts": True, "recipient": "local"}
        await rig.ok("POST", "/api/endpoints", form)
        endpoints = (await rig.ok("GET", path))["items"]
        assert [endpoint["id"] for endpoint in endpoints] == [created["id"]]
        assert "secret" not in endpoints[0]
        conversation = await rig.conversation(domain)
        turn = await send(rig, conversation)
        wait = await open_wait(rig)
        await rig.ok("POST", f"/api/waits/{wait['id']}", {"action": "accept"})
        assert (await ended(rig, turn))["status"] == "done"
        (answer,) = [
            message
            for message in (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
            if message["role"] == "assistant"
        ]
        rating = {"rating": "down", "reason": "Not what I asked"}
        await rig.ok("PUT", f"/api/conversations/{conversation}/messages/{answer['id']}/feedback", rating)
        plain_events = await plain.wait_for(3)
        assert [event["type"] for event in plain_events] == events
        wait_event, answer_event, feedback_event = (event["data"] for event in plain_events)
        assert (wait_event["waitId"], wait_event["toolName"], wait_event["domainId"]) == (
            wait["id"],
            "promptx_remember",
            domain,
        )
        assert (answer_event["state"], answer_event["answeredBy"]) == ("accepted", "local")
        assert feedback_event["rating"] == "down"
        for word in ("Ann likes tea", "Not what I asked"):
            assert word not in str(plain_events)
            assert word in str(await with_texts.wait_for(3))
        plain.verify(created["secret"])
        with pytest.raises(WebhookVerificationError):
            with_texts.verify(created["secret"])
        assert await audited(rig, action="endpoint.create", target=created["id"])
        with anyio.fail_after(240):  # the receiver has the last one before its state is stored
            while True:
                delivery_records = (await rig.ok("GET", f"{path}/{created['id']}/deliveries"))["items"]
                if not any(delivery["state"] == "pending" for delivery in delivery_records):
                    break
                await pause()
        assert [delivery["state"] for delivery in delivery_records] == ["delivered"] * 3


async def test_failures_of_turns_and_documents_and_a_crossed_budget_are_reported(tmp_path: Path) -> None:
    from agentic_rag.base.errors import ModelError

    async with (
        Receiver().open() as receiver,
        Rig(tmp_path, ModelError("it is broken", retryable=False), say("Yes."), mcp_hosts=receiver.address) as rig,
    ):
        events = ["turn.failed", "document.failed", "budget.crossed"]
        domain = await rig.domain()
        await rig.ok("POST", f"/api/domains/{domain}/endpoints", {"name": "x", "url": receiver.url, "events": events})
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hello?")
        (failure,) = await receiver.wait_for(1)
        assert failure["type"] == "turn.failed"
        assert failure["data"]["code"] == "LLM_SERVICE_ERROR"
        assert (await rig.upload(domain, "broken.pdf", b"%PDF-1.4 nothing"))["status"] == "failed"
        assert (await receiver.wait_for(2))[1]["data"]["name"] == "broken.pdf"
        budget = {"scope": "domain", "subject": domain, "unit": "tokens", "period": "month", "soft": "1"}
        await rig.ok("PUT", "/api/budgets", budget)
        await rig.say(conversation, "Hello again?")
        crossing = (await receiver.wait_for(3))[2]
        assert (crossing["type"], crossing["data"]["limit"]) == ("budget.crossed", "soft")


async def test_a_refused_change_leaves_no_notification(tmp_path: Path) -> None:
    async with outbox(tmp_path) as box:
        endpoint, _ = await box.add("https://example.org/hook")

        def fail(conn: Any) -> None:
            deliveries.announce(conn, Event(EventKind.FEEDBACK_CREATED, "law", {"number": 1}))
            raise ValueError

        with pytest.raises(ValueError):
            await box.database.write(fail)
        assert await box.list_deliveries(endpoint) == []


async def test_an_event_that_is_sent_once_is_not_repeated(tmp_path: Path) -> None:
    async with outbox(tmp_path) as box:
        endpoint, _ = await box.add("https://example.org/hook")
        event = Event(EventKind.FEEDBACK_CREATED, "law", {"number": 1}, once="budget 1")
        for _ in range(2):
            await box.database.write(lambda conn: deliveries.announce(conn, event))
        assert len(await box.list_deliveries(endpoint)) == 1


async def test_an_unreliable_receiver_gets_all_events_in_order(
    tmp_path: Path,
) -> None:
    receiver = Receiver(lambda number: Response(status_code=503 if number % 3 == 0 else 200))
    async with (
        receiver.open(),
        outbox(tmp_path, receiver.address) as box,
        anyio.create_task_group() as tasks,
    ):
        endpoint, secret = await box.add(receiver.url)
        await box.announce(*range(60))
        with run_sender(tasks, box.sender(*[0.0] * 9)):
            await receiver.wait_for(60)
            await box.wait_until(endpoint, lambda _, rows: all(row.state is DeliveryState.DELIVERED for row in rows))
        assert [event["data"]["number"] for event in receiver.received] == list(range(60))
        receiver.verify(secret)
        assert max(receiver.ids().values()) == 2
        assert "secret words" not in str(receiver.requests)


async def test_a_delivery_is_parked_after_all_attempts_and_replayed_by_hand(tmp_path: Path) -> None:
    receiver = Receiver(lambda number: Response(status_code=500 if number <= 3 else 200))
    async with receiver.open(), outbox(tmp_path, receiver.address) as box, anyio.create_task_group() as tasks:
        endpoint, _ = await box.add(receiver.url)
        await box.announce(1, 2)
        with run_sender(tasks, box.sender(0.0, 0.0)):
            await receiver.wait_for(1)
            await box.wait_until(endpoint, lambda _, rows: rows[1].state is DeliveryState.DELIVERED)
            parked, _ = await box.list_deliveries(endpoint)
            assert (parked.state, parked.attempts, parked.status) == (DeliveryState.PARKED, 3, 500)
            assert "answered 500" in parked.problem
            assert await box.endpoints.replay("@server", endpoint, parked.id) == 1
            assert [event["data"]["number"] for event in await receiver.wait_for(2)] == [2, 1]
        assert receiver.ids()[parked.id] == 4


async def test_an_endpoint_with_status_410_is_disabled_and_its_deliveries_parked(tmp_path: Path) -> None:
    receiver = Receiver(lambda number: Response(status_code=410 if number == 1 else 200))
    async with receiver.open(), outbox(tmp_path, receiver.address) as box, anyio.create_task_group() as tasks:
        endpoint, _ = await box.add(receiver.url)
        await box.announce(1, 2)
        with run_sender(tasks, box.sender(0.0)):
            await box.wait_until(endpoint, lambda record, _: not record.enabled)
            assert [row.state for row in await box.list_deliveries(endpoint)] == [DeliveryState.PARKED] * 2
            await box.announce(3)
            assert len(await box.list_deliveries(endpoint)) == 2
            await box.endpoints.change(LOCAL, "@server", endpoint, EndpointChange(enabled=True))
            assert await box.endpoints.replay("@server", endpoint, None) == 2
            assert [event["data"]["number"] for event in await receiver.wait_for(2)] == [1, 2]


@pytest.mark.parametrize("status", [410, 500])
async def test_an_answer_of_an_address_that_was_replaced_meanwhile_does_not_count(tmp_path: Path, status: int) -> None:
    class Replacing(Response):
        """The answer of the old address, which an admin replaces before the answer arrives."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await box.endpoints.change(LOCAL, SERVER, endpoint, EndpointChange(url=new_receiver.url))
            await super().__call__(scope, receive, send)

    old_receiver, new_receiver = Receiver(lambda _: Replacing(status_code=status)), Receiver()
    async with (
        old_receiver.open(),
        new_receiver.open(),
        outbox(tmp_path, old_receiver.address, new_receiver.address) as box,
        anyio.create_task_group() as tasks,
    ):
        endpoint, _ = await box.add(old_receiver.url)
        await box.announce(1)
        with run_sender(tasks, box.sender(3600.0)):
            await new_receiver.wait_for(1)
            await box.wait_until(endpoint, lambda record, _: record.sent_at is not None)
        record = await box.endpoint(endpoint)
        assert (record.enabled, record.failures, record.problem) == (True, 0, "")


def _redirect(number: int) -> Response:
    return RedirectResponse("/elsewhere", 307)


def _endless(number: int) -> Response:
    async def body() -> Any:
        while True:
            yield b"x" * 65_536
            await anyio.lowlevel.checkpoint()

    return StreamingResponse(body())


def _silent(number: int) -> Response:
    async def body() -> Any:
        await anyio.sleep_forever()
        yield b""

    return StreamingResponse(body())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (_redirect, "redirects (307), which is not followed"),
        (_silent, "did not answer within 0.3 s"),
        (lambda number: Response(status_code=404), "answered 404"),
    ],
)
async def test_an_unsuccessful_status_is_a_failed_attempt(
    tmp_path: Path, answer: Callable[[int], Response], problem: str
) -> None:
    receiver = Receiver(answer)
    async with receiver.open(), outbox(tmp_path, receiver.address) as box, anyio.create_task_group() as tasks:
        endpoint, _ = await box.add(receiver.url)
        await box.announce(1)
        with run_sender(tasks, box.sender(3600.0, seconds=0.3)):
            await box.wait_until(endpoint, lambda record, _: record.failures == 1)
        (row,) = await box.list_deliveries(endpoint)
        assert row.state is DeliveryState.PENDING
        assert problem in row.problem


async def test_an_endless_answer_is_read_up_to_its_limit(tmp_path: Path) -> None:
    receiver = Receiver(_endless)
    async with receiver.open(), outbox(tmp_path, receiver.address) as box, anyio.create_task_group() as tasks:
        endpoint, _ = await box.add(receiver.url)
        await box.announce(1)
        with run_sender(tasks, box.sender(3600.0)):
            await box.wait_until(endpoint, lambda _, rows: rows[0].state is DeliveryState.DELIVERED)


@pytest.mark.attack(kind="web")
async def test_an_address_without_https_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/endpoints"
        for url in (
            "http://example.org/hook",
            "https://user@example.org/hook",
            "ftp://example.org",
            "file:///etc/passwd",
            "https://",
            "//example.org",
            "https://999.1.1.1/hook",
            "https://☃.example/hook",
            "",
        ):
            body = {"name": "x", "url": url, "events": ["turn.failed"]}
            status, code, message = await rig.refused("POST", path, body)
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert message.startswith("url:"), url


async def test_a_stored_address_that_no_client_can_read_is_a_failed_attempt(tmp_path: Path) -> None:
    async with outbox(tmp_path) as box, anyio.create_task_group() as tasks:
        endpoint, _ = await box.add("https://example.org/hook")
        target = to_text(to_json(EndpointTarget("https://999.1.1.1/hook")))
        row = box.vault.seal_text(SERVER, secrets.endpoint_secret(endpoint), target)
        await box.database.write(lambda conn: secrets.put(conn, row))
        await box.announce(1)
        with run_sender(tasks, box.sender(3600.0)):
            await box.wait_until(endpoint, lambda record, _: record.failures == 1)
        assert "cannot be used" in (await box.list_deliveries(endpoint))[0].problem


@pytest.mark.attack(kind="web")
async def test_texts_of_a_conversation_are_sent_only_to_its_owner(tmp_path: Path) -> None:
    async with (
        Receiver().open() as admins,
        Receiver().open() as own,
        outbox(tmp_path, admins.address, own.address) as box,
        anyio.create_task_group() as tasks,
    ):
        await box.add(admins.url, with_texts=True)
        await box.add(own.url, with_texts=True, recipient="local")
        kind, texts = EventKind.FEEDBACK_CREATED, {"question": "Annsquestion"}
        event = Event(kind, "law", {"number": 1}, texts, user_id="local", private=True)
        await box.database.write(lambda conn: deliveries.announce(conn, event))
        with run_sender(tasks, box.sender(0.0)):
            assert "Annsquestion" not in str(await admins.wait_for(1))
            assert "Annsquestion" in str(await own.wait_for(1))


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize("url", ["https://127.0.0.1:1/", "https://169.254.169.254/", "https://[::ffff:10.0.0.1]/"])
async def test_a_private_address_is_never_connected_to(tmp_path: Path, url: str) -> None:
    async with outbox(tmp_path) as box, anyio.create_task_group() as tasks:
        endpoint, _ = await box.add(url)
        await box.announce(1)
        with run_sender(tasks, box.sender(3600.0)):
            await box.wait_until(endpoint, lambda record, _: record.failures == 1)
        assert "address that is refused" in (await box.list_deliveries(endpoint))[0].problem


async def test_after_a_rotation_both_secrets_sign(tmp_path: Path) -> None:
    async with Receiver().open() as receiver, outbox(tmp_path, receiver.address) as box:
        async with anyio.create_task_group() as tasks:
            endpoint, old = await box.add(receiver.url)
            new = await box.endpoints.rotate("@server", endpoint)
            await box.announce(1)
            with run_sender(tasks, box.sender(0.0)):
                await receiver.wait_for(1)
        receiver.verify(old)
        receiver.verify(new)
        (headers, body) = receiver.requests[0]
        with pytest.raises(WebhookVerificationError):
            Webhook(new).verify(body + b" ", headers)
        stale = {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) - timedelta(hours=1).seconds)}
        with pytest.raises(WebhookVerificationError):
            Webhook(new).verify(body, stale)


async def test_a_rotation_and_a_new_address_at_the_same_time_both_count(tmp_path: Path) -> None:
    async with outbox(tmp_path) as box:
        endpoint, secret = await box.add("https://old.example/")
        for number in range(5):
            url, secrets = f"https://new.example/{number}", [secret]

            async def rotate(secrets: list[str] = secrets) -> None:
                secrets.append(await box.endpoints.rotate(SERVER, endpoint))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rotate)
                tasks.start_soon(box.endpoints.change, LOCAL, SERVER, endpoint, EndpointChange(url=url))
            target = await box.endpoints.target(await box.endpoint(endpoint))
            old, secret = secrets
            assert (target.url, target.secret, target.old_secret) == (url, secret, old)


@pytest.mark.attack(kind="web")
async def test_members_and_other_domains_admins_cannot_reach_endpoints(tmp_path: Path) -> None:
    async with tenants(tmp_path) as t:
        domain = t.ids["domain"]
        bob = await make_key(t.rig, "bob", "member", domain)
        body = {"name": "x", "url": "https://example.org/", "events": ["turn.failed"], "recipient": "ann"}
        created = await t.ask(t.ann, "POST", f"/api/domains/{domain}/endpoints", body)
        assert created.status_code == 201, created.text
        ident = created.json()["id"]
        for_mallory = {**body, "recipient": "mallory"}
        assert (await t.ask(t.ann, "POST", f"/api/domains/{domain}/endpoints", for_mallory)).status_code == 403
        for key, status in ((bob, 403), (t.mallory, 404)):
            for method, path in (
                ("GET", ""),
                ("POST", ""),
                ("PATCH", f"/{ident}"),
                ("DELETE", f"/{ident}"),
                ("POST", f"/{ident}/secret"),
                ("POST", f"/{ident}/test"),
                ("GET", f"/{ident}/deliveries"),
                ("POST", f"/{ident}/replay"),
            ):
                response = await t.ask(
                    key, method, f"/api/domains/{domain}/endpoints{path}", body if method != "GET" else None
                )
                assert response.status_code == status, (method, path, response.text)
            assert (await t.ask(key, "GET", "/api/endpoints")).status_code == 403
        domains_of_mallory = await t.ask(t.mallory, "GET", "/api/domains")
        mallorys_domain = domains_of_mallory.json()["items"][0]["id"] if domains_of_mallory.json()["items"] else None
        if mallorys_domain is not None:
            deletion = await t.ask(t.mallory, "DELETE", f"/api/domains/{mallorys_domain}/endpoints/{ident}")
            assert deletion.status_code in (403, 404)
