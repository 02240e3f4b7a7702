"""Endpoints of a domain or of the server: creating, changing and removing them, and their deliveries.

Owns the rules for addresses and secrets. An address is sealed together with its secret, because the addresses of
messengers are secrets themselves. Knows no HTTP client: `agentic_rag.reach.sending` sends.
"""

import base64
import os
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlsplit

import orjson
from pydantic import Field, StringConstraints
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import ActiveUsers, User
from agentic_rag.base.errors import Forbidden, InvalidInput, LimitReached, NotFound
from agentic_rag.base.forms import Form, line
from agentic_rag.base.json_form import Json, from_json, to_json, to_text
from agentic_rag.domains.vault import Vault
from agentic_rag.store import deliveries, domains, endpoints, secrets
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.deliveries import DeliveryRecord, DeliveryState, Event
from agentic_rag.store.endpoints import MAX_ENDPOINTS, SERVER, Channel, EndpointRecord, EventKind
from agentic_rag.store.secrets import SecretRecord
from agentic_rag.tools.launch.addresses import AddressRules
from agentic_rag.tools.transports.network import url_problem

OLD_SECRET_SECONDS = 24 * 3600.0
"""How long messages are also signed with the secret before a rotation."""
SECRET_BYTES = 32
_SIGNED = (Channel.FEISHU, Channel.DINGTALK)
"""Messengers that give a secret with which a message has to be signed."""


class EndpointForm(Form):
    """A new endpoint. ``url`` is its address; for mail, ``address`` instead.

    ``secret`` is the signing secret of Feishu or DingTalk, if the robot has one. A Standard Webhooks endpoint gets a
    secret from the server. ``recipient`` is the user who gets links to answer waits: the caller, or for operators any
    user.
    """

    name: Annotated[str, StringConstraints(max_length=200)]
    channel: Channel = Channel.WEBHOOK
    url: Annotated[str, StringConstraints(max_length=2_000)] = ""
    address: Annotated[str, StringConstraints(max_length=320)] = ""
    secret: Annotated[str, StringConstraints(max_length=500)] = ""
    events: Annotated[tuple[EventKind, ...], Field(max_length=len(EventKind))]
    with_texts: bool = False
    recipient: Annotated[str, StringConstraints(max_length=200)] = ""
    enabled: bool = True


class EndpointChange(Form):
    """Changed fields of an endpoint; absent ones keep their values."""

    name: Annotated[str, StringConstraints(max_length=200)] | None = None
    url: Annotated[str, StringConstraints(max_length=2_000)] | None = None
    address: Annotated[str, StringConstraints(max_length=320)] | None = None
    secret: Annotated[str, StringConstraints(max_length=500)] | None = None
    events: Annotated[tuple[EventKind, ...], Field(max_length=len(EventKind))] | None = None
    with_texts: bool | None = None
    recipient: Annotated[str, StringConstraints(max_length=200)] | None = None
    enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class EndpointTarget:
    """The sealed part of an endpoint: its address, its secret, and the secret before a rotation until ``old_until``."""

    url: str
    secret: str = ""
    old_secret: str = ""
    old_until: str = ""

    def signing_secrets(self, at: str) -> tuple[str, ...]:
        """Return the secrets with which a message is signed at a time."""
        return (self.secret, self.old_secret) if self.old_secret and at < self.old_until else (self.secret,)


@dataclass(frozen=True, slots=True)
class ListedEndpoint:
    """An endpoint with the numbers of its pending and parked deliveries."""

    record: EndpointRecord
    pending: int
    parked: int


def open_target(vault: Vault, row: SecretRecord) -> EndpointTarget:
    """Return an endpoint's target from its sealed row. From now on, texts of its domain are searched for its secrets.

    Raises:
        SecretUnreadable: the row does not open.
    """
    target = _unseal(vault, row)
    for name, value in (("url", target.url), ("secret", target.secret), ("old", target.old_secret)):
        if value:
            vault.redact.add(row.domain_id, f"{row.name}:{name}", value)
    return target


def _unseal(vault: Vault, row: SecretRecord | None) -> EndpointTarget:
    """Return an endpoint's target from its sealed row; an empty target without a row."""
    if row is None:
        return EndpointTarget("")
    value: Json = orjson.loads(vault.open_text(row))
    return from_json(EndpointTarget, value)


class Endpoints:
    """The endpoints of all domains and of the server.

    ``addresses`` are the network rules of MCP servers over HTTP. ``mails`` says whether an SMTP relay is configured.
    """

    def __init__(
        self, database: Database, vault: Vault, people: ActiveUsers, addresses: AddressRules, *, mails: bool
    ) -> None:
        self._db = database
        self._vault = vault
        self._people = people
        self._addresses = addresses
        self._mails = mails

    async def list_of(self, domain_id: str) -> list[ListedEndpoint]:
        """Return the endpoints of a domain, or of the server."""

        def read(conn: Connection) -> list[ListedEndpoint]:
            records = endpoints.of_domain(conn, domain_id)
            counts = deliveries.count_by_state(conn, [record.id for record in records])
            return [
                ListedEndpoint(
                    record,
                    counts.get((record.id, DeliveryState.PENDING), 0),
                    counts.get((record.id, DeliveryState.PARKED), 0),
                )
                for record in records
            ]

        return await self._db.read(read)

    async def get(self, domain_id: str, endpoint_id: str) -> EndpointRecord:
        """Return an endpoint of a domain, or of the server.

        Raises:
            NotFound: there is no such endpoint.
        """
        endpoint = await self._db.read(lambda conn: endpoints.get(conn, endpoint_id))
        if endpoint is None or endpoint.domain_id != domain_id:
            raise NotFound("endpoint", endpoint_id, hidden=endpoint is not None)
        return endpoint

    async def create(self, user: User, domain_id: str, form: EndpointForm) -> tuple[EndpointRecord, str]:
        """Create an endpoint. Returns its record and the secret that the server made for it, or an empty text.

        Raises:
            InvalidInput: a value is invalid.
            Forbidden: the recipient is another user, and the caller is no operator.
            LimitReached: there are `MAX_ENDPOINTS` endpoints.
        """
        name = line("name", form.name, 200, required=True)
        target, shown = self._target(form.channel, form.url, form.address, form.secret)
        secret = ""
        if form.channel is Channel.WEBHOOK:
            secret = new_secret()
            target = replace(target, secret=secret)
        self._check_recipient(user, domain_id, form.recipient)
        at = now()
        record = EndpointRecord(
            id=new_id("end"),
            domain_id=domain_id,
            name=name,
            channel=form.channel,
            shown=shown,
            events=tuple(dict.fromkeys(form.events)),
            with_texts=form.with_texts,
            recipient=form.recipient,
            enabled=form.enabled,
            created_by=user.id,
            created_at=at,
            updated_at=at,
        )
        sealed = self._seal(record, target)
        entry = change("endpoint.create", record.id, domainId=domain_id, channel=record.channel.value, host=shown)

        def store(conn: Connection) -> None:
            if domain_id != SERVER and domains.get(conn, domain_id) is None:
                raise NotFound("domain", domain_id)
            record.insert(conn)
            if endpoints.count(conn, domain_id) > MAX_ENDPOINTS:
                raise LimitReached("endpoints", MAX_ENDPOINTS)
            secrets.put(conn, sealed)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        return record, secret

    async def change(self, user: User, domain_id: str, endpoint_id: str, form: EndpointChange) -> EndpointRecord:
        """Change an endpoint. Enabling it, or a new address, makes its next attempt due at once.

        Raises:
            NotFound, InvalidInput, Forbidden: as `create`.
        """
        before = await self.get(domain_id, endpoint_id)
        changes_target = form.url is not None or form.address is not None or form.secret is not None
        values: dict[str, object] = {"updated_at": now()}
        if changes_target:
            # A wrong address is reported before the transaction, which reads the stored target again.
            _, values["shown"] = self._changed_target(before.channel, await self.target(before), form)
        if form.name is not None:
            values["name"] = line("name", form.name, 200, required=True)
        if form.events is not None:
            values["events"] = tuple(dict.fromkeys(form.events))
        if form.with_texts is not None:
            values["with_texts"] = form.with_texts
        if form.recipient is not None and form.recipient != before.recipient:
            self._check_recipient(user, domain_id, form.recipient)
            values["recipient"] = form.recipient
        if form.enabled is not None:
            if form.enabled and not before.shown and not changes_target:
                raise InvalidInput("enabled", "this endpoint came with a bundle and has no address yet; set its url.")
            values["enabled"] = form.enabled
        if form.enabled or changes_target:  # the next attempt is due at once
            values |= {"failures": 0, "retry_at": None, "problem": ""}
        entry = change("endpoint.change", endpoint_id, domainId=domain_id, fields=sorted(set(values) - {"updated_at"}))

        def store(conn: Connection) -> None:
            if not endpoints.update(conn, endpoint_id, **values):
                raise NotFound("endpoint", endpoint_id)
            if changes_target:
                target, shown = self._changed_target(before.channel, self._locked_target(conn, before), form)
                endpoints.update(conn, endpoint_id, shown=shown)
                secrets.put(conn, self._seal(before, target))
            audit(conn, entry)

        await self._db.write(store, durable=True)
        return await self.get(domain_id, endpoint_id)

    async def rotate(self, domain_id: str, endpoint_id: str) -> str:
        """Give a Standard Webhooks endpoint a new secret and return it. The old one also signs for a day.

        Raises:
            NotFound: there is no such endpoint.
            InvalidInput: the endpoint is a messenger or a mail address.
        """
        record = await self.get(domain_id, endpoint_id)
        if record.channel is not Channel.WEBHOOK:
            raise InvalidInput("endpoint", f"{record.channel.value!r} has no secret of this server.")
        secret, until = new_secret(), later(OLD_SECRET_SECONDS)
        entry = change("endpoint.rotate", endpoint_id, domainId=domain_id)

        def store(conn: Connection) -> None:
            if not endpoints.update(conn, endpoint_id, updated_at=now()):
                raise NotFound("endpoint", endpoint_id)
            before = self._locked_target(conn, record)
            target = replace(before, secret=secret, old_secret=before.secret, old_until=until)
            secrets.put(conn, self._seal(record, target))
            audit(conn, entry)

        await self._db.write(store, durable=True)
        return secret

    async def delete(self, domain_id: str, endpoint_id: str) -> None:
        """Delete an endpoint with its deliveries. Links that it sent are invalid from now on.

        Raises:
            NotFound: there is no such endpoint.
        """
        await self.get(domain_id, endpoint_id)
        entry = change("endpoint.delete", endpoint_id, domainId=domain_id)

        def store(conn: Connection) -> None:
            remove(conn, domain_id, endpoint_id)
            audit(conn, entry)

        await self._db.write(store, durable=True)

    async def test(self, domain_id: str, endpoint_id: str, user: User) -> str:
        """Queue a test message for an endpoint. Returns the delivery's id.

        Raises:
            NotFound: there is no such endpoint.
            InvalidInput: the endpoint is disabled.
        """
        record = await self.get(domain_id, endpoint_id)
        if not record.enabled:
            raise InvalidInput("endpoint", "this endpoint is disabled; enable it first.")
        facts = {"test": True, "scheduleId": "test", "name": "test", "state": "done"}
        event = Event(EventKind.SCHEDULE_FINISHED, domain_id, facts, user_id=user.id)
        return await self._db.write(lambda conn: deliveries.send_to(conn, record, event, with_texts=False))

    async def deliveries(
        self, domain_id: str, endpoint_id: str, state: DeliveryState | None, limit: int
    ) -> list[DeliveryRecord]:
        """Return the newest deliveries of an endpoint.

        Raises:
            NotFound: there is no such endpoint.
        """
        await self.get(domain_id, endpoint_id)
        return await self._db.read(lambda conn: deliveries.list_newest(conn, endpoint_id, state, limit))

    async def replay(self, domain_id: str, endpoint_id: str, delivery_id: str | None) -> int:
        """Send a delivery again, or all parked ones of the endpoint with None. Returns their number.

        Raises:
            NotFound: there is no such endpoint or ended delivery.
        """
        await self.get(domain_id, endpoint_id)
        entry = change("endpoint.replay", endpoint_id, domainId=domain_id, deliveryId=delivery_id or "parked")

        def store(conn: Connection) -> int:
            if delivery_id is None:
                count = deliveries.replay_parked(conn, endpoint_id)
            else:
                delivery = deliveries.get(conn, delivery_id)
                if delivery is None or delivery.endpoint_id != endpoint_id:
                    raise NotFound("delivery", delivery_id)
                count = int(deliveries.replay(conn, delivery_id))
            endpoints.update(conn, endpoint_id, failures=0, retry_at=None)
            audit(conn, entry)
            return count

        return await self._db.write(store, durable=True)

    async def target(self, record: EndpointRecord) -> EndpointTarget:
        """Return the address and secret of an endpoint; an empty target if it has none yet.

        Raises:
            SecretUnreadable: the sealed row does not open.
        """
        row = await self._db.read(lambda conn: _sealed_target(conn, record))
        return EndpointTarget("") if row is None else open_target(self._vault, row)

    def _locked_target(self, conn: Connection, record: EndpointRecord) -> EndpointTarget:
        """Return the stored target to a transaction that changes it and has updated the endpoint's row before.

        That update locks the row until the commit. Otherwise a new address and a rotation at the same time would each
        write back the other's old value. The transaction may run in another thread, so this method does not tell the
        redactor about the secrets.
        """
        return _unseal(self._vault, _sealed_target(conn, record))

    def _seal(self, record: EndpointRecord, target: EndpointTarget) -> SecretRecord:
        return self._vault.seal_text(record.domain_id, secrets.endpoint_secret(record.id), to_text(to_json(target)))

    def _target(self, channel: Channel, url: str, address: str, secret: str) -> tuple[EndpointTarget, str]:
        """Check an address. Returns the target and the part of the address that people may see."""
        if secret and channel not in _SIGNED:
            raise InvalidInput("secret", f"a secret can be given for feishu and dingtalk, not for {channel.value}.")
        if channel is Channel.MAIL:
            if not self._mails:
                raise InvalidInput("channel", "mail needs an SMTP relay; the operator can set AGENTIC_RAG_SMTP_URL.")
            address = line("address", address, 320, required=True)
            check_mail_address(address)
            return EndpointTarget(address), address
        url = line("url", url, 2_000, required=True)
        problem = url_problem(self._addresses.reach, url)
        if problem:
            raise InvalidInput("url", f"this address cannot be used: {problem}.")
        return EndpointTarget(url, secret), urlsplit(url).hostname or ""

    def _changed_target(
        self, channel: Channel, target: EndpointTarget, form: EndpointChange
    ) -> tuple[EndpointTarget, str]:
        """Return a changed target and the part of its address that people may see."""
        if channel is Channel.MAIL:
            url, address = form.url or "", target.url if form.address is None else form.address
        else:
            url, address = target.url if form.url is None else form.url, form.address or ""
        if channel is Channel.WEBHOOK:
            # Its secret is the server's: a form cannot set it (`_target` refuses that), and a new address keeps it.
            checked, shown = self._target(channel, url, address, form.secret or "")
            return replace(target, url=checked.url), shown
        secret = target.secret if form.secret is None else form.secret
        checked, shown = self._target(channel, url, address, secret)
        return replace(target, url=checked.url, secret=secret), shown

    def _check_recipient(self, user: User, domain_id: str, recipient: str) -> None:
        if not recipient:
            return
        if recipient != user.id and not user.operator:
            raise Forbidden("Only an operator may name another person as the recipient of links.")
        person = self._people.user_named(recipient)
        if person is None or (domain_id != SERVER and not person.sees(domain_id)):
            raise InvalidInput("recipient", f"{recipient[:200]!r} is no active user who sees this domain.")


def _sealed_target(conn: Connection, record: EndpointRecord) -> SecretRecord | None:
    return secrets.get(conn, record.domain_id, secrets.endpoint_secret(record.id))


def remove(conn: Connection, domain_id: str, endpoint_id: str) -> None:
    """Delete an endpoint with its deliveries and its sealed address."""
    endpoints.delete(conn, endpoint_id)
    deliveries.delete_of_endpoint(conn, endpoint_id)
    secrets.delete(conn, domain_id, [secrets.endpoint_secret(endpoint_id)])


def new_secret() -> str:
    """Return a new secret in the form of Standard Webhooks."""
    return f"whsec_{base64.b64encode(os.urandom(SECRET_BYTES)).decode()}"


def check_mail_address(address: str) -> None:
    """Check the form of a mail address.

    Raises:
        InvalidInput: the text is no mail address.
    """
    local, at, host = address.rpartition("@")
    plain = address.isascii() and address.isprintable() and not set(address) & set(' ,;<>()[]\\"')
    if not at or not local or "." not in host.strip(".") or len(local) > 64 or not plain:
        raise InvalidInput("address", f"{address[:200]!r} is no mail address; name@example.org is expected.")
