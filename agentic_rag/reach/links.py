"""Links with which a person answers a wait without a session.

A link carries the wait and the endpoint that it was sent to, with an HMAC over both and the endpoint's recipient. The
key follows from the key of the secrets, so every server of a store verifies every link, and nothing is stored. A link
ends with its wait: only the first answer counts. Removing the endpoint, or changing its recipient, ends its links.

The recipient answers with the rights that the recipient has at that moment. Whoever holds the link answers in the
recipient's name, so a domain can demand a sign-in, or switch links off.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection

from agentic_rag.access.users import ActiveUsers, User, acting_for
from agentic_rag.base.errors import Forbidden, NotFound
from agentic_rag.base.events import WaitAction
from agentic_rag.base.ids import WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.waits import Waits
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.sign_in_secrets import OwnAddress
from agentic_rag.domains.vault import Vault
from agentic_rag.store import endpoints, waits
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.deliveries import DeliveryRecord
from agentic_rag.store.endpoints import SERVER, EndpointRecord, EventKind
from agentic_rag.store.waits import WaitRecord, WaitState

PATH: Final = "/api/answers/"
PURPOSE: Final = "answer links"
MAX_TOKEN: Final = 200
MAC_BYTES: Final = 24


class LinkState(StrEnum):
    """What a link leads to: the question, the sign-in in front of it, or the reason why it cannot be answered."""

    OPEN = "open"
    SIGN_IN = "signIn"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class LinkedWait:
    """The wait behind a link. ``recipient`` is the person in whose name the link answers."""

    state: LinkState
    wait: WaitRecord | None = None
    recipient: str = ""


class AnswerLinks:
    """Makes and redeems links. ``address`` is where browsers reach this server."""

    def __init__(
        self,
        database: Database,
        vault: Vault,
        people: ActiveUsers,
        waits: Waits,
        directory: Directory,
        address: OwnAddress,
    ) -> None:
        self._db = database
        self._vault = vault
        self._people = people
        self._waits = waits
        self._directory = directory
        self._address = address

    async def link_for(self, endpoint: EndpointRecord, delivery: DeliveryRecord) -> str:
        """Return the link for the endpoint's recipient to answer the wait of a delivery.

        Returns an empty text for other events, for a recipient who may not answer, and if the domain allows no links.
        """
        url = self._address.url
        if delivery.kind is not EventKind.WAIT_CREATED or not endpoint.recipient or url is None:
            return ""
        wait = await self._db.read(lambda conn: waits.get(conn, WaitId(str(delivery.data.get("waitId", "")))))
        user = self._people.user_named(endpoint.recipient)
        if wait is None or wait.state is not WaitState.OPEN or user is None:
            return ""
        try:
            settings = await self._directory.settings(wait.domain_id)
        except NotFound:
            return ""
        if settings.answer_links == "off" or not self._waits.may_answer(user, wait):
            return ""
        return f"{url}{PATH}{self.token(wait.id, endpoint)}"

    def token(self, wait_id: WaitId, endpoint: EndpointRecord) -> str:
        """Return the token of a link."""
        mac = _mac(self._vault.derived_keys(PURPOSE)[0], wait_id, endpoint.id, endpoint.recipient)
        return f"{wait_id}.{endpoint.id}.{mac}"

    async def find(self, token: str) -> LinkedWait:
        """Return the wait behind a link and its state."""
        link = await self._verify(token)
        if link is None:
            return LinkedWait(LinkState.INVALID)
        wait, endpoint, user = link
        ended = {
            WaitState.EXPIRED: LinkState.EXPIRED,
            WaitState.CANCELLED: LinkState.CANCELLED,
            WaitState.ACCEPTED: LinkState.ANSWERED,
            WaitState.DECLINED: LinkState.ANSWERED,
        }
        state = ended.get(wait.state, LinkState.OPEN)
        if state is LinkState.OPEN and wait.expires_at <= now():
            state = LinkState.EXPIRED
        if state is LinkState.OPEN:
            try:
                chosen = (await self._directory.settings(wait.domain_id)).answer_links
            except NotFound:
                chosen = "off"
            if chosen == "off" or not self._waits.may_answer(user, wait):
                return LinkedWait(LinkState.INVALID)
            if chosen == "sign-in":
                state = LinkState.SIGN_IN
        return LinkedWait(state, await self._waits.without_hidden(user, wait), endpoint.recipient)

    async def answer(self, token: str, action: WaitAction, content: Json) -> WaitRecord:
        """Answer the wait behind a link in the recipient's name. The audit log says that a link was used.

        Raises:
            NotFound: the link is invalid.
            Forbidden: the domain demands a sign-in.
            WaitAnswered: the wait was answered or has expired.
            InvalidInput: the answer does not match the request; the wait stays open.
        """
        link = await self._verify(token)
        if link is None:
            raise NotFound("link", "answer")
        wait, endpoint, user = link
        settings = await self._directory.settings(wait.domain_id)
        if settings.answer_links != "open":
            raise Forbidden("This domain accepts answers only from a person who is signed in.")
        with acting_for(user.id):
            via = {"link": endpoint.id}
            return await self._waits.answer(user, wait.id, action, content, via=via)

    async def _verify(self, token: str) -> tuple[WaitRecord, EndpointRecord, User] | None:
        """Return the wait, endpoint and recipient of a link, or None if the link is not valid."""
        parts = token.split(".") if len(token) <= MAX_TOKEN and token.isascii() and token.isprintable() else []
        if len(parts) != 3:
            return None
        wait_id, endpoint_id, mac = parts

        def read(conn: Connection) -> tuple[WaitRecord | None, EndpointRecord | None]:
            return waits.get(conn, WaitId(wait_id)), endpoints.get(conn, endpoint_id)

        wait, endpoint = await self._db.read(read)
        recipient = "" if endpoint is None else endpoint.recipient
        keys = self._vault.derived_keys(PURPOSE)
        # Several keys are valid after a rotation of the key of the secrets.
        is_ours = [hmac.compare_digest(mac, _mac(key, wait_id, endpoint_id, recipient)) for key in keys]
        if not any(is_ours) or wait is None or endpoint is None or not endpoint.enabled or not recipient:
            return None
        if endpoint.domain_id not in (SERVER, wait.domain_id):  # it was never sent this wait
            return None
        user = self._people.user_named(recipient)
        return None if user is None else (wait, endpoint, user)


def _mac(key: bytes, wait_id: str, endpoint_id: str, recipient: str) -> str:
    text = f"{wait_id}\n{endpoint_id}\n{recipient}".encode()
    digest = hmac.new(key, text, hashlib.sha256).digest()[:MAC_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
