"""Two tenants on one server: ann, who has one object of every kind, and mallory, who knows all of ann's ids."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from agentic_rag.base.events import WaitKind
from agentic_rag.base.ids import ConversationId, TurnId, WaitId
from agentic_rag.store import payloads
from agentic_rag.store.attachments import AttachmentRecord
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.waits import WaitRecord
from agentic_rag.testing.scripted import Scripted
from agentic_rag.testing.steps import say
from tests.server.rig import Json, Rig
from tests.ws.serving import Client

SECRET_WORDS = ("Annsdomain", "Annstitle", "Annsquestion", "Annsdocument", "Annsanswer", "Annsresult")
"""Words that only ann may read. Her ids are not secret, because mallory has them."""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def as_operator(rig: Rig) -> None:
    """Send the rig's own requests as the local operator, even if there are keys."""
    rig.http.headers.update(bearer(rig.application.access.local_key))


async def make_key(rig: Rig, user: str, role: str, *domains: str) -> str:
    """Create a key and return it."""
    as_operator(rig)
    created = await rig.ok("POST", "/api/keys", {"user": user, "role": role, "domains": list(domains)})
    return str(created["key"])


async def audited(rig: Rig, **expected: Any) -> list[Json]:
    """Return the audit rows with these fields, newest first. The chain must be intact."""
    as_operator(rig)
    verdict = await rig.ok("GET", "/api/audit/verify")
    assert verdict["intact"], verdict
    rows: list[Json] = []
    before: int | None = None
    while before is None or before > 1:
        params = {"limit": "200", **({"before": str(before)} if before is not None else {})}
        items = (await rig.ok("GET", "/api/audit", params=params))["items"]
        rows += items
        before = items[-1]["seq"] if items else 0
    return [row for row in rows if all(row[name] == value for name, value in expected.items())]


async def count_refused(rig: Rig, actor: str, code: str | None = None) -> int:
    """Return the number of an actor's refusals in the log."""
    rows = await audited(rig, actor=actor, outcome="refused")
    return sum(row["count"] for row in rows if code in (None, row["details"]["code"]))


@dataclass
class Tenants:
    """Both tenants. ``ids`` are ann's, by the names of path parameters."""

    rig: Rig
    ann: str
    mallory: str
    own_domain: str
    own_conversation: str
    message: str
    ids: dict[str, str] = field(default_factory=dict)

    async def ask(self, key: str | None, method: str, path: str, json: Any = None) -> httpx2.Response:
        """Send a request with a key, or without one (None)."""
        headers = {} if key is None else bearer(key)
        body: dict[str, Any] = {} if json is None else {"json": json}
        transport = httpx2.ASGITransport(self.rig.application.app)
        async with httpx2.AsyncClient(base_url="http://127.0.0.1", headers=headers, transport=transport) as http:
            return await http.request(method, path, **body)

    async def state(self) -> list[Any]:
        """Return everything that ann sees of her data."""
        domain, conversation = f"/api/domains/{self.ids['domain']}", f"/api/conversations/{self.ids['conversation']}"
        paths = [domain, f"{domain}/documents", f"{domain}/roles", conversation, f"{conversation}/messages"]
        return [(await self.ask(self.ann, "GET", path)).json() for path in (*paths, "/api/conversations")]


@asynccontextmanager
async def tenants(
    folder: Path, role: str = "admin", steps: Sequence[Scripted] = (), **settings: Any
) -> AsyncIterator[Tenants]:
    """Run the server. Ann administers her domain, and mallory has ``role`` in another one.

    ``steps`` are those of the model after its first one.
    """
    wide: dict[str, Any] = {"requests_per_second": 10_000, **settings}
    async with Rig(folder, say("Annsanswer."), *steps, **wide) as rig:
        domain_id = str((await rig.ok("POST", "/api/domains", {"name": "Annsdomain"}))["id"])
        own = str((await rig.ok("POST", "/api/domains", {"name": "Mallory's"}))["id"])
        document = await rig.upload(domain_id, "Annsdocument.md", b"# Leave\n\nTwenty-five days.")
        ann = await make_key(rig, "ann", "admin", domain_id)
        mallory = await make_key(rig, "mallory", role, own)
        keys = (await rig.ok("GET", "/api/keys"))["items"]
        pair = Tenants(rig, ann, mallory, own, "", "")
        response = await pair.ask(ann, "POST", "/api/conversations", {"domainId": domain_id, "title": "Annstitle"})
        conversation = response.json()["id"]
        turn = await pair.ask(ann, "POST", f"/api/conversations/{conversation}/messages", {"content": "Annsquestion"})
        assert "Annsanswer" in turn.text
        messages = (await pair.ask(ann, "GET", f"/api/conversations/{conversation}/messages")).json()["items"]
        own_made = await pair.ask(mallory, "POST", "/api/conversations", {"domainId": own})
        pair.own_conversation = own_made.json()["id"]
        pair.message = messages[0]["id"]
        payload = payloads.record_of(new_id("ref"), response.json()["sessionId"], "text/plain", b"Annsresult")
        await PayloadFiles(rig.settings.data / "payloads").write(payload.ref, b"Annsresult")
        await rig.application.database.write(lambda conn: payloads.put(conn, payload))
        attached = AttachmentRecord(
            id=new_id("att"),
            session_id=payload.session_id,
            name="Annsresult.txt",
            media_type="text/plain",
            size=payload.size,
            sha256=payload.sha256,
            ref=payload.ref,
            text_ref=payload.ref,
            passages=1,
            created_at=now(),
        )
        await rig.application.database.write(lambda conn: attached.insert(conn))
        wait = WaitRecord(
            id=WaitId(new_id("wait")),
            turn_id=TurnId(messages[0]["turnId"]),
            root_turn_id=TurnId(messages[0]["turnId"]),
            session_id=payload.session_id,
            conversation_id=ConversationId(conversation),
            domain_id=domain_id,
            user_id="ann",
            tool_call_id="toolu_1",
            kind=WaitKind.QUESTION,
            request={"title": "Annstitle", "message": "Annsquestion"},
            opened_at=now(),
            expires_at=later(3600),
        )
        await rig.application.database.write(lambda conn: wait.insert(conn))
        pair.ids = {
            "domain": domain_id,
            "conversation": conversation,
            "turn": messages[0]["turnId"],
            "response": messages[0]["turnId"].replace("turn_", "resp_"),
            "document": document["id"],
            "role": "assistant",
            "key": keys[0]["id"],
            "ref": payload.ref,
            "attachment": attached.id,
            "wait": wait.id,
            "image": (await pair.ask(ann, "GET", f"/api/turns/{messages[0]['turnId']}")).json()["imageId"],
        }
        yield pair


@asynccontextmanager
async def socket(address: str, *protocols: str, key: str | None = None, **headers: str) -> AsyncIterator[Client]:
    """Connect to `/ws` with a key or with other offered protocols."""
    sent_headers = {**({} if key is None else bearer(key)), **headers}
    subprotocols = [Subprotocol(protocol) for protocol in protocols] or None
    url = f"ws://{address}/ws"
    async with connect(
        url, subprotocols=subprotocols, additional_headers=sent_headers, compression=None, proxy=None
    ) as connection:
        yield Client(connection)
