"""The sender: delivers the pending notifications of each endpoint in order, and retries with growing delays.

An endpoint's first pending delivery is sent until it is received or parked; later ones wait behind it. A delivery is
parked after `ATTEMPTS` failed attempts in a row, which take about three days. With several servers, a lease per
endpoint leaves one sender. A crash between an answer and its record repeats a message, with the same id.

Addresses are untrusted: the network rules of MCP servers over HTTP apply, no redirect is followed, and an answer is
bounded in time and length.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from functools import partial
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import anyio
import httpx2
import orjson
from anyio.abc import TaskGroup
from pydantic import SecretStr
from sqlalchemy import Connection
from standardwebhooks import Webhook

from agentic_rag import __version__
from agentic_rag.base import failpoints
from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.forms import one_line
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.workers import attempt
from agentic_rag.domains.vault import Vault
from agentic_rag.operations.exclusive_jobs import ExclusiveJobs
from agentic_rag.reach.endpoints import EndpointTarget, open_target
from agentic_rag.reach.messages import (
    NotificationText,
    describe,
    event_document,
    mail_text,
    messenger_body,
    messenger_url,
    refusal_in,
)
from agentic_rag.store import deliveries, endpoints, secrets
from agentic_rag.store.clock import later, now
from agentic_rag.store.database import Database
from agentic_rag.store.deliveries import DeliveryRecord, DeliveryState
from agentic_rag.store.endpoints import Channel, EndpointRecord
from agentic_rag.tools.launch.addresses import AddressRules
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport, url_problem

log = logging.getLogger(__name__)

DELAYS: Final = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds between two attempts, as Standard Webhooks suggests (spec/standard-webhooks.md, "Deliverability")."""
ATTEMPTS: Final = len(DELAYS) + 1
PARK_SECONDS: Final = 3 * 24 * 3600.0
"""When a delivery is parked, those behind it that are as old as this are parked with it."""
LOOK_SECONDS: Final = 1.0
"""Between two checks for due deliveries."""
ANSWER_SECONDS: Final = 15.0
"""Time limit for one attempt, from the connection to the last byte of the answer."""
ANSWER_BYTES: Final = 16 * 1024
"""Maximum length of an answer that is read."""
MAX_AT_ONCE: Final = 16
"""Endpoints that are served at the same time."""
MAX_RETRY_AFTER: Final = 86_400.0
RECEIVED_DAYS, ENDED_DAYS = 7, 40
"""Days for which received deliveries are kept, and all others that ended."""
PRUNE_ROWS: Final = 500
GONE = 410


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt. ``problem`` is empty if the message was received."""

    problem: str = ""
    status: int | None = None
    gone: bool = False
    retry_after: float = 0.0


class Links(Protocol):
    """Makes the links in notifications."""

    async def link_for(self, endpoint: EndpointRecord, delivery: DeliveryRecord) -> str:
        """Return the address at which the endpoint's recipient can answer, or an empty text."""
        ...


@dataclass(frozen=True, slots=True)
class MailRelay:
    """The operator's SMTP relay. ``secure``: TLS from the first byte; otherwise STARTTLS where the relay offers it."""

    host: str
    port: int
    secure: bool
    sender: str
    user: str = ""
    password: str = ""

    @classmethod
    def of(cls, url: SecretStr | None, sender: str) -> "MailRelay | None":
        """Return the relay of the operator's settings, or None if there is none.

        Raises:
            BadConfiguration: the address is malformed, or the sender is missing.
        """
        text = "" if url is None else url.get_secret_value().strip()
        if not text:
            return None
        wanted = "smtp://host:25, smtp://user:password@host:587 or smtps://user:password@host:465 is expected"
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as exc:
            raise BadConfiguration("AGENTIC_RAG_SMTP_URL", wanted) from exc
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise BadConfiguration("AGENTIC_RAG_SMTP_URL", wanted)
        if "@" not in sender:
            raise BadConfiguration("AGENTIC_RAG_MAIL_FROM", "with an SMTP relay, the address of the sender is needed")
        secure = parts.scheme == "smtps"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.hostname, port or (465 if secure else 25), secure, sender, user, password)

    async def send(self, message: EmailMessage) -> Outcome:
        """Hand a message to the relay. With a password, an unencrypted connection is refused."""
        import aiosmtplib  # takes 0.1 s, and most servers have no relay

        try:
            with anyio.fail_after(ANSWER_SECONDS):
                await aiosmtplib.send(
                    message,
                    hostname=self.host,
                    port=self.port,
                    username=self.user or None,
                    password=self.password or None,
                    use_tls=self.secure,
                    start_tls=None if self.secure or not self.password else True,  # None: if the relay offers it
                    timeout=ANSWER_SECONDS,
                )
        except TimeoutError:
            return Outcome(f"the mail relay did not answer within {ANSWER_SECONDS:g} s")
        except (aiosmtplib.SMTPException, OSError, ValueError) as exc:
            return Outcome(f"the mail relay did not take the message: {one_line(str(exc)[:300])}")
        return Outcome()


class Sender:
    """Sends pending deliveries. ``owner`` is this process's name in leases. ``delays``: seconds between attempts."""

    def __init__(
        self,
        database: Database,
        vault: Vault,
        addresses: AddressRules,
        links: Links,
        relay: MailRelay | None,
        owner: str,
        *,
        delays: Sequence[float] = DELAYS,
        seconds: float = ANSWER_SECONDS,
        look: float = LOOK_SECONDS,
    ) -> None:
        self._db = database
        self._vault = vault
        self._addresses = addresses
        self._links = links
        self._relay = relay
        self._jobs = ExclusiveJobs(database, owner)
        self._delays = tuple(delays)
        self._seconds = seconds
        self._look_seconds = look
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Send due deliveries until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await attempt("looking for notifications to send", partial(self._look, tasks))
                await anyio.sleep(self._look_seconds)

    async def prune(self) -> None:
        """Delete old deliveries."""
        received, ended = later(-RECEIVED_DAYS * 86_400), later(-ENDED_DAYS * 86_400)
        while await self._db.write(lambda conn: deliveries.prune(conn, received, ended, PRUNE_ROWS)):
            pass

    async def _look(self, tasks: TaskGroup) -> None:
        for endpoint_id in await self._db.read(deliveries.due_endpoints):
            if endpoint_id not in self._busy and len(self._busy) < MAX_AT_ONCE:
                self._busy.add(endpoint_id)
                tasks.start_soon(self._serve, endpoint_id)

    async def _serve(self, endpoint_id: str) -> None:
        try:
            send = partial(self._jobs.run, f"endpoint:{endpoint_id}", partial(self._send_all, endpoint_id))
            await attempt(f"sending notifications to {endpoint_id}", send)
        finally:
            self._busy.discard(endpoint_id)

    async def _send_all(self, endpoint_id: str) -> None:
        """Send the pending deliveries of an endpoint until one fails or none is left."""
        refusals: list[str] = []
        async with self._client(refusals) as client:
            while True:
                head = await self._db.read(partial(_read_head, endpoint_id=endpoint_id))
                if head is None:
                    return
                endpoint, delivery, row = head
                try:
                    target = EndpointTarget("") if row is None else open_target(self._vault, row)
                    outcome = await self._attempt(client, endpoint, target, delivery, refusals)
                except AgenticRagError as exc:
                    outcome = Outcome(one_line(str(exc)[:300]))
                failpoints.reached("notification.sent")
                await self._db.write(partial(self._note, endpoint=endpoint, delivery=delivery, outcome=outcome))
                if outcome.problem:
                    return  # later deliveries wait behind this one

    @asynccontextmanager
    async def _client(self, refusals: list[str]) -> AsyncIterator[httpx2.AsyncClient]:
        reach = self._addresses.reach

        async def note(reason: str) -> None:
            refusals.append(reason)

        backend = CheckedBackend(reach.exempt, unchecked=reach.unchecked, refused=note)
        async with (
            CheckedTransport(backend) as transport,
            httpx2.AsyncClient(transport=transport, trust_env=False, timeout=self._seconds) as client,
        ):
            yield client

    async def _attempt(
        self,
        client: httpx2.AsyncClient,
        endpoint: EndpointRecord,
        target: EndpointTarget,
        delivery: DeliveryRecord,
        refusals: list[str],
    ) -> Outcome:
        if not target.url:
            return Outcome("the endpoint has no address")
        data = self._vault.redact.of(delivery.domain_id).json(delivery.data)
        link = await self._links.link_for(endpoint, delivery)
        if endpoint.channel is Channel.MAIL:
            return await self._mail(target.url, delivery, describe(delivery.kind, data, link))
        problem = url_problem(self._addresses.reach, target.url)
        if problem:
            return Outcome(f"the address cannot be used: {problem}")
        seconds = int(time.time())
        url, headers = target.url, {"content-type": "application/json"}
        if endpoint.channel is Channel.WEBHOOK:
            body = orjson.dumps(event_document(delivery, data, link))
            headers |= sign(target, delivery.id, seconds, body)
        else:
            notice = describe(delivery.kind, data, link)
            body = orjson.dumps(messenger_body(endpoint.channel, notice, target.secret, seconds))
            url = messenger_url(endpoint.channel, url, target.secret, seconds)
        headers |= {"user-agent": f"agentic-rag/{__version__}", "accept-encoding": "identity"}
        request = client.build_request("POST", url, content=body, headers=headers)
        host = request.url.host
        refusals.clear()
        try:
            with anyio.fail_after(self._seconds):
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    answer = await _read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            return Outcome(f"{host} did not answer within {self._seconds:g} s")
        except (httpx2.HTTPError, httpx2.StreamError) as exc:
            if refusals:
                return Outcome(f"{host} leads to an address that is refused")
            return Outcome(f"{host} could not be reached ({type(exc).__name__})")
        return _judge(endpoint.channel, response, answer)

    async def _mail(self, address: str, delivery: DeliveryRecord, notice: NotificationText) -> Outcome:
        if self._relay is None:
            return Outcome("there is no SMTP relay (AGENTIC_RAG_SMTP_URL)")
        message = EmailMessage()
        message["From"] = self._relay.sender
        message["To"] = address
        message["Subject"] = notice.title
        message["Date"] = datetime.now(UTC)
        message["Message-ID"] = f"<{delivery.id}@{self._relay.sender.rpartition('@')[2].strip('<> ')}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(mail_text(notice))
        return await self._relay.send(message)

    def _note(self, conn: Connection, *, endpoint: EndpointRecord, delivery: DeliveryRecord, outcome: Outcome) -> None:
        """Record an attempt: the delivery's state, and when the endpoint's next attempt is due."""
        if not outcome.problem:
            deliveries.settle(conn, delivery.id, DeliveryState.DELIVERED, status=outcome.status)
            endpoints.note_success(conn, endpoint.id, now())
            return
        current = endpoints.get(conn, endpoint.id)
        if current is None or current.updated_at != endpoint.updated_at:
            # An admin changed the endpoint during the attempt. The failure may be that of the old address or secret, so
            # it does not count: the next attempt is due at once.
            return
        problem, status = outcome.problem, outcome.status
        if outcome.gone:
            deliveries.settle(conn, delivery.id, DeliveryState.PARKED, status=status, problem=problem)
            deliveries.park(conn, endpoint.id, problem)
            endpoints.update(conn, endpoint.id, enabled=False, problem=problem, retry_at=None)
            log.warning("endpoint %s is disabled: %s", endpoint.id, problem)
            return
        old = later(-PARK_SECONDS)
        was_long_failing = endpoint.failures >= len(self._delays) and delivery.created_at < old
        is_last = delivery.attempts >= len(self._delays) or was_long_failing
        state = DeliveryState.PARKED if is_last else DeliveryState.PENDING
        deliveries.settle(conn, delivery.id, state, status=status, problem=problem)
        if is_last:
            deliveries.park(conn, endpoint.id, problem, created_before=old)
            log.warning("a notification for endpoint %s is parked: %s", endpoint.id, problem)
        delay = self._delays[min(endpoint.failures, len(self._delays) - 1)] if self._delays else 0.0
        endpoints.note_failure(conn, endpoint.id, problem, max(delay, outcome.retry_after))


def sign(target: EndpointTarget, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks for a message. After a rotation, both secrets sign."""
    at, text = datetime.fromtimestamp(seconds, UTC), body.decode()
    signatures = [Webhook(secret).sign(message_id, at, text) for secret in target.signing_secrets(now())]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(signatures),
    }


def _read_head(
    conn: Connection, *, endpoint_id: str
) -> "tuple[EndpointRecord, DeliveryRecord, secrets.SecretRecord | None] | None":
    endpoint, delivery = endpoints.get(conn, endpoint_id), deliveries.head(conn, endpoint_id)
    if endpoint is None or not endpoint.enabled or delivery is None:
        return None
    return endpoint, delivery, secrets.get(conn, endpoint.domain_id, secrets.endpoint_secret(endpoint_id))


async def _read(response: httpx2.Response) -> bytes:
    """Return the beginning of an answer, at most `ANSWER_BYTES`."""
    answer = bytearray()
    async for part in response.aiter_raw():
        answer += part
        if len(answer) >= ANSWER_BYTES:
            break
    return bytes(answer[:ANSWER_BYTES])


def _judge(channel: Channel, response: httpx2.Response, answer: bytes) -> Outcome:
    """Return the outcome of an attempt that was answered. The answer's text is not repeated to people."""
    status, host = response.status_code, response.request.url.host
    if 200 <= status < 300:
        try:
            said = orjson.loads(answer)
        except orjson.JSONDecodeError:
            said = None
        return Outcome(refusal_in(channel, said), status)
    if status == GONE:
        return Outcome(f"{host} answered 410 Gone", status, gone=True)
    if 300 <= status < 400:
        return Outcome(f"{host} redirects ({status}), which is not followed", status)
    given = response.headers.get("retry-after", "")
    wait = min(float(given), MAX_RETRY_AFTER) if given.isascii() and given.isdigit() and len(given) < 9 else 0.0
    return Outcome(f"{host} answered {status}", status, retry_after=wait)
