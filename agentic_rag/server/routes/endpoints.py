"""REST routes for the endpoints of notifications, of a domain (admins) and of the server (operators).

This module defines the answers. ``reach.endpoints`` decides the rules.
"""

from collections.abc import Sequence

from pydantic import Field

from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, LimitReached, NotFound
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.directory.directory import Directory
from agentic_rag.reach.endpoints import EndpointChange, EndpointForm, Endpoints, ListedEndpoint
from agentic_rag.server.replies import Items, Redacted, answer, answer_from
from agentic_rag.server.routing import route
from agentic_rag.store.deliveries import DeliveryRecord, DeliveryState
from agentic_rag.store.endpoints import SERVER, Channel, EndpointRecord, EventKind

OF_DOMAIN = "/api/domains/{domain}/endpoints"
OF_SERVER = "/api/endpoints"


class DeliveryQuery(Form):
    """Filter for deliveries, newest first. Without ``state`` all are listed."""

    state: DeliveryState | None = None
    limit: int = Field(50, ge=1, le=500)


@answer(kw_only=True)
class EndpointAnswer:
    """An address that receives notifications. ``address`` is the part of it that may be shown.

    ``problem`` is the error of the last attempt, or the reason why the server disabled the endpoint. ``secret`` is
    shown once, by the request that created it.
    """

    id: str
    name: str
    channel: Channel
    address: str
    events: Sequence[EventKind]
    with_texts: bool
    recipient: str
    enabled: bool
    problem: str
    failures: int
    retry_at: str | None
    sent_at: str | None
    pending: int = 0
    parked: int = 0
    created_by: str
    created_at: str
    updated_at: str
    secret: Absent[str] = None


@answer()
class SecretAnswer:
    """A new signing secret, shown once. The old one also signs messages for 24 hours."""

    secret: str


@answer(kw_only=True)
class Delivery:
    """A notification for an endpoint. ``id`` is its ``webhook-id`` in all attempts."""

    id: str
    kind: EventKind
    state: DeliveryState
    attempts: int
    status: int | None
    problem: str
    data: Json
    created_at: str
    ended_at: str | None


@answer()
class Queued:
    """Number of deliveries that are sent again."""

    count: int


@answer()
class QueuedTest:
    """The delivery of a test message."""

    delivery_id: str


class EndpointRoutes:
    """Endpoints of notifications."""

    def __init__(self, endpoints: Endpoints, directory: Directory) -> None:
        self._endpoints = endpoints
        self._directory = directory

    @route("GET", OF_DOMAIN)
    async def list_of_domain(self, domain: str) -> Items[EndpointAnswer]:
        """List the endpoints of a domain."""
        return await self._list((await self._directory.get(domain)).id)

    @route("POST", OF_DOMAIN, status=201, errors=[LimitReached, Forbidden])
    async def create(self, user: User, domain: str, body: EndpointForm) -> EndpointAnswer:
        """Create an endpoint of a domain."""
        return await self._create(user, (await self._directory.get(domain)).id, body)

    @route("PATCH", f"{OF_DOMAIN}/{{endpoint}}", errors=[Forbidden])
    async def change(self, user: User, domain: str, endpoint: str, body: EndpointChange) -> EndpointAnswer:
        """Change an endpoint of a domain."""
        return _show(await self._endpoints.change(user, domain, endpoint, body))

    @route("DELETE", f"{OF_DOMAIN}/{{endpoint}}")
    async def delete(self, domain: str, endpoint: str) -> None:
        """Delete an endpoint of a domain with its deliveries."""
        await self._endpoints.delete(domain, endpoint)

    @route("POST", f"{OF_DOMAIN}/{{endpoint}}/secret")
    async def rotate(self, domain: str, endpoint: str) -> SecretAnswer:
        """Replace the signing secret of an endpoint of a domain."""
        return SecretAnswer(await self._endpoints.rotate(domain, endpoint))

    @route("POST", f"{OF_DOMAIN}/{{endpoint}}/test")
    async def test(self, user: User, domain: str, endpoint: str) -> QueuedTest:
        """Send a test message to an endpoint of a domain."""
        return QueuedTest(await self._endpoints.test(domain, endpoint, user))

    @route("GET", f"{OF_DOMAIN}/{{endpoint}}/deliveries")
    async def deliveries(self, domain: str, endpoint: str, query: DeliveryQuery) -> Redacted[Items[Delivery]]:
        """List the deliveries of an endpoint of a domain, newest first."""
        return Redacted(domain, await self._deliveries(domain, endpoint, query))

    @route("POST", f"{OF_DOMAIN}/{{endpoint}}/replay")
    async def replay_parked(self, domain: str, endpoint: str) -> Queued:
        """Send all parked deliveries of an endpoint of a domain again."""
        return Queued(await self._endpoints.replay(domain, endpoint, None))

    @route("POST", f"{OF_DOMAIN}/{{endpoint}}/deliveries/{{delivery}}/replay", errors=[NotFound])
    async def replay(self, domain: str, endpoint: str, delivery: str) -> Queued:
        """Send a delivery of an endpoint of a domain again, with the same id."""
        return Queued(await self._endpoints.replay(domain, endpoint, delivery))

    @route("GET", OF_SERVER)
    async def list_of_server(self) -> Items[EndpointAnswer]:
        """List the endpoints of the server, which receive the events of all domains."""
        return await self._list(SERVER)

    @route("POST", OF_SERVER, status=201, errors=[LimitReached])
    async def create_of_server(self, user: User, body: EndpointForm) -> EndpointAnswer:
        """Create an endpoint of the server."""
        return await self._create(user, SERVER, body)

    @route("PATCH", f"{OF_SERVER}/{{endpoint}}")
    async def change_of_server(self, user: User, endpoint: str, body: EndpointChange) -> EndpointAnswer:
        """Change an endpoint of the server."""
        return _show(await self._endpoints.change(user, SERVER, endpoint, body))

    @route("DELETE", f"{OF_SERVER}/{{endpoint}}")
    async def delete_of_server(self, endpoint: str) -> None:
        """Delete an endpoint of the server with its deliveries."""
        await self._endpoints.delete(SERVER, endpoint)

    @route("POST", f"{OF_SERVER}/{{endpoint}}/secret")
    async def rotate_of_server(self, endpoint: str) -> SecretAnswer:
        """Replace the signing secret of an endpoint of the server."""
        return SecretAnswer(await self._endpoints.rotate(SERVER, endpoint))

    @route("POST", f"{OF_SERVER}/{{endpoint}}/test")
    async def test_of_server(self, user: User, endpoint: str) -> QueuedTest:
        """Send a test message to an endpoint of the server."""
        return QueuedTest(await self._endpoints.test(SERVER, endpoint, user))

    @route("GET", f"{OF_SERVER}/{{endpoint}}/deliveries")
    async def deliveries_of_server(self, endpoint: str, query: DeliveryQuery) -> Items[Delivery]:
        """List the deliveries of an endpoint of the server, newest first."""
        return await self._deliveries(SERVER, endpoint, query)

    @route("POST", f"{OF_SERVER}/{{endpoint}}/replay")
    async def replay_parked_of_server(self, endpoint: str) -> Queued:
        """Send all parked deliveries of an endpoint of the server again."""
        return Queued(await self._endpoints.replay(SERVER, endpoint, None))

    @route("POST", f"{OF_SERVER}/{{endpoint}}/deliveries/{{delivery}}/replay", errors=[NotFound])
    async def replay_of_server(self, endpoint: str, delivery: str) -> Queued:
        """Send a delivery of an endpoint of the server again, with the same id."""
        return Queued(await self._endpoints.replay(SERVER, endpoint, delivery))

    async def _list(self, domain_id: str) -> Items[EndpointAnswer]:
        return Items([_show_listed(listed) for listed in await self._endpoints.list_of(domain_id)])

    async def _create(self, user: User, domain_id: str, form: EndpointForm) -> EndpointAnswer:
        record, secret = await self._endpoints.create(user, domain_id, form)
        return answer_from(EndpointAnswer, record, address=record.shown, pending=0, parked=0, secret=secret or None)

    async def _deliveries(self, domain_id: str, endpoint_id: str, query: DeliveryQuery) -> Items[Delivery]:
        deliveries = await self._endpoints.deliveries(domain_id, endpoint_id, query.state, query.limit)
        return Items([_show_delivery(delivery) for delivery in deliveries])


def _show(record: EndpointRecord) -> EndpointAnswer:
    return answer_from(EndpointAnswer, record, address=record.shown, pending=0, parked=0, secret=None)


def _show_listed(listed: ListedEndpoint) -> EndpointAnswer:
    record = listed.record
    counts = {"pending": listed.pending, "parked": listed.parked}
    return answer_from(EndpointAnswer, record, address=record.shown, secret=None, **counts)


def _show_delivery(record: DeliveryRecord) -> Delivery:
    return answer_from(Delivery, record)
