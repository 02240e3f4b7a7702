"""A receiver of notifications on this machine, and a sender without an application around it."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
from standardwebhooks import Webhook
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.access.users import LOCAL, User
from agentic_rag.base.redaction import Redactor
from agentic_rag.domains.vault import Vault
from agentic_rag.reach.endpoints import EndpointForm, Endpoints
from agentic_rag.reach.sending import MailRelay, Sender
from agentic_rag.store import deliveries, endpoints
from agentic_rag.store.database import Database
from agentic_rag.store.deliveries import DeliveryRecord, Event
from agentic_rag.store.endpoints import SERVER, Channel, EndpointRecord, EventKind
from agentic_rag.tools.launch.addresses import AddressPolicy
from tests.databases import database_at
from tests.waiting import pause
from tests.ws.serving import serving

Json = dict[str, Any]
Answer = Callable[[int], Response]


@dataclass
class Receiver:
    """Records each request. ``answer`` maps the number of the request, from 1, to the response."""

    answer: Answer = lambda number: Response(status_code=204)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    received: list[Json] = field(default_factory=list)
    """The bodies that were answered with success."""
    address: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.address}/hook"

    async def take(self, request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:  # the sender was stopped
            return Response(status_code=400)
        self.requests.append((dict(request.headers), body))
        response = self.answer(len(self.requests))
        if response.status_code < 300:
            self.received.append(orjson.loads(body))
        return response

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Receiver"]:
        app = Starlette(routes=[Route("/hook", self.take, methods=["POST"])])
        async with serving(app) as address:
            self.address = address
            yield self

    async def wait_for(self, count: int, seconds: float = 240) -> list[Json]:
        """Return what was received, once there are ``count`` bodies."""
        with anyio.fail_after(seconds):
            while len(self.received) < count:
                await pause()
        return self.received

    def verify(self, secret: str) -> None:
        """Check the signature of each request with the library's own verifier."""
        for headers, body in self.requests:
            Webhook(secret).verify(body, headers)

    def ids(self) -> Counter[str]:
        return Counter(headers["webhook-id"] for headers, _ in self.requests)


class NoLinks:
    """Implements `agentic_rag.reach.sending.Links` without links."""

    async def link_for(self, endpoint: EndpointRecord, delivery: DeliveryRecord) -> str:
        return ""


@dataclass(frozen=True)
class Rules:
    """The network rules. ``reach`` allows the receiver."""

    reach: AddressPolicy


class Nobody:
    """Implements `agentic_rag.access.users.ActiveUsers` with the local user only."""

    def user_named(self, user_id: str) -> User | None:
        return LOCAL if user_id == LOCAL.id else None


@dataclass
class Outbox:
    """A database with endpoints of the server, and senders."""

    database: Database
    vault: Vault
    rules: Rules
    endpoints: Endpoints

    def sender(
        self, *delays: float, owner: str = "run_1", relay: MailRelay | None = None, seconds: float = 15
    ) -> Sender:
        links = NoLinks()
        return Sender(
            self.database, self.vault, self.rules, links, relay, owner, delays=delays, seconds=seconds, look=0.01
        )

    async def add(self, url: str, channel: Channel = Channel.WEBHOOK, **fields: Any) -> tuple[str, str]:
        """Create an endpoint for feedback and schedules, and return its id and its secret."""
        events = (EventKind.FEEDBACK_CREATED, EventKind.SCHEDULE_FINISHED)
        form = EndpointForm(name="Hook", channel=channel, url=url, events=events, **fields)
        record, secret = await self.endpoints.create(LOCAL, SERVER, form)
        return record.id, secret

    async def announce(self, *numbers: int) -> None:
        """Store one event per number, each in its own transaction."""
        for number in numbers:
            event = Event(EventKind.FEEDBACK_CREATED, "law", {"number": number}, {"reason": "secret words"})
            await self.database.write(lambda conn, event=event: deliveries.announce(conn, event))  # type: ignore[misc]

    async def list_deliveries(self, endpoint_id: str) -> list[DeliveryRecord]:
        """Return the deliveries, oldest first."""
        records = await self.database.read(lambda conn: deliveries.list_newest(conn, endpoint_id, None, 100_000))
        return records[::-1]

    async def endpoint(self, endpoint_id: str) -> EndpointRecord:
        record = await self.database.read(lambda conn: endpoints.get(conn, endpoint_id))
        assert record is not None
        return record

    async def wait_until(
        self, endpoint_id: str, is_reached: Callable[[EndpointRecord, list[DeliveryRecord]], bool]
    ) -> None:
        with anyio.fail_after(240):
            while not is_reached(await self.endpoint(endpoint_id), await self.list_deliveries(endpoint_id)):
                await pause()


@asynccontextmanager
async def outbox(folder: Path, *allowed: str, mails: bool = False) -> AsyncIterator[Outbox]:
    """Yield an outbox that may connect to the ``allowed`` addresses (host:port)."""
    hosts = frozenset((host, int(port)) for host, _, port in (address.rpartition(":") for address in allowed))
    rules = Rules(AddressPolicy(hosts))
    async with aclosing(await Database.open(database_at(folder / "outbox.db"))) as database:
        vault = await Vault.open(database, folder, None, Redactor())
        yield Outbox(database, vault, rules, Endpoints(database, vault, Nobody(), rules, mails=mails))


@contextmanager
def run_sender(tasks: anyio.abc.TaskGroup, sender: Sender) -> Iterator[None]:
    """Run a sender inside the block."""
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await sender.run()

    tasks.start_soon(run)
    try:
        yield
    finally:
        scope.cancel()
