"""A data folder with a row in every table and a file of every kind, as people and models create them.

Where an outside party is needed, a real one runs on this machine (an MCP server that requires a sign-in). Nothing in
the folder expires soon, so that it can be opened years later. Its keys and secrets are valid only there.
"""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from agentic_rag.base.ids import ConversationId, MessageId
from agentic_rag.models.base import ModelRequest
from agentic_rag.store import (
    collections,
    context_lines,
    conversations,
    evaluation,
    logins,
    payloads,
    probe,
    run_groups,
    scans,
)
from agentic_rag.store.authorizations import (
    AuthorizationRecord,
    ClientRecord,
    CodeRecord,
    RequestRecord,
    TokenKind,
    TokenRecord,
)
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.collections import CollectionRecord
from agentic_rag.store.columns import BigInt
from agentic_rag.store.context_lines import ContextLineRecord
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.deliveries import DeliveryRecord, DeliveryState
from agentic_rag.store.documents import ExpectedLabelsRecord
from agentic_rag.store.endpoints import Channel, EndpointRecord, EventKind
from agentic_rag.store.evaluation import DraftRecord, DraftState, ResultRecord, RunRecord, RunState
from agentic_rag.store.logins import BegunRecord
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.record import Record
from agentic_rag.store.run_events import EventBatch
from agentic_rag.store.scans import ScanRecord
from agentic_rag.store.schedules import FiringRecord, FiringState, ScheduleRecord
from agentic_rag.store.shares import ShareRecord
from agentic_rag.store.sources import SourceItemRecord, SourceKind, SourceRecord
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Step, say, use
from tests.access.tenants import as_operator, bearer, make_key
from tests.runtime.test_pictures import png
from tests.server.rig import Rig
from tests.server.test_attachments import attach
from tests.server.test_waits import open_wait
from tests.sign_in.support import serve_places, sign_in

from .making import ANSWER, DOCUMENT, SECRET

USER = "ann"
ROLE = "law"
REMEMBERED = "The pump was new in 2020."
NOTED = "Ann likes tea."
SUMMARY = "The pump was asked about."
BRANCHED = "And the valve?"
FOLDER = "Pumps"
CENTURY_HOURS = 24 * 365 * 100.0
"""Lifetime of waits, sign-ins of browsers and run logs in the folder."""

_ENGRAM = {"schema": "pump\n  2020", "strength": 0.9, "type": "ATOMIC"}
_ROLE_FILE = b"<role><personality>Calm.</personality></role>"
_CALLS: Mapping[str, Step] = {
    "Search": use("search_documents", query="pump"),
    "Remember at once": use("promptx_remember", engrams=[{**_ENGRAM, "content": REMEMBERED}]),
    "Remember later": use("promptx_remember", engrams=[{**_ENGRAM, "content": NOTED}]),
    "Delegate": use("delegate", role="researcher", task="Look at the pump."),
}
_ALLOWED = {"toolPolicy": {"promptx_remember": "allow"}, "subRoleIds": ["researcher"]}


@dataclass(frozen=True, slots=True)
class Filled:
    """A created data folder, a key of `USER`, and the ids of its content."""

    data: Path
    key: str
    domain: str
    talk: str
    waiting: str

    def to_json(self) -> dict[str, str]:
        """Return all fields except the folder, which may move."""
        return {"user": USER, "key": self.key, "domain": self.domain, "talk": self.talk, "waiting": self.waiting}


def answer(request: ModelRequest) -> Step:
    """Do once what the user's words ask for; otherwise say `ANSWER`."""
    last = request.messages[-1]
    if "Summarise" in f"{request.system}{last}":
        return say(f'{{"facts": ["{SUMMARY}"]}}')
    if "tool_result" not in str(last):
        for words, call in _CALLS.items():
            if words in str(last):
                return call
    return say(ANSWER)


async def fill_all(folder: Path) -> Filled:
    """Create a full data folder below ``folder``."""
    lasting: dict[str, Any] = {
        "wait_hours": CENTURY_HOURS,
        "sign_in_hours": CENTURY_HOURS,
        "sign_in_minutes": CENTURY_HOURS * 60,
        "run_log_hours": CENTURY_HOURS,
        "mcp_hosts": "127.0.0.1:*",
    }
    async with Rig(folder, instead=ScriptedModel(then=answer), **lasting) as rig:
        rig.application.begin()
        as_operator(rig)
        domain = await rig.domain(**_ALLOWED, memory={"extract": "after-turn"})
        await asyncio.to_thread(_write_files, rig.settings.data, domain)
        await rig.upload(domain, "pump.md", DOCUMENT)
        deleted_document = await rig.upload(domain, "gone.md", b"# Gone\n\nNobody needs it.\n")
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{deleted_document['id']}")
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/TOKEN", {"value": SECRET})
        budget = {"scope": "domain", "subject": domain, "unit": "tokens", "period": "month", "hard": 1_000_000_000}
        await rig.ok("PUT", "/api/budgets", budget)
        await _sign_in_at_a_server(rig)
        key = await make_key(rig, USER, "admin", domain)
        await _ask_for_a_program(rig, domain)
        login = {"name": USER, "key": key}
        await rig.ok("POST", "/api/auth/sign-in", login, headers={"x-requested-with": "page", "authorization": ""})
        rig.http.cookies.clear()
        rig.http.headers.update(bearer(key))
        conversation, waiting_conversation = (
            await rig.conversation(domain),
            await rig.conversation(domain, title="Later"),
        )
        await rig.ok("PATCH", f"/api/conversations/{conversation}", {"folder": FOLDER})
        await _talk(rig, conversation)
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"toolPolicy": {"promptx_remember": "ask"}}})
        path, json_headers = f"/api/conversations/{waiting_conversation}/messages", {"accept": "application/json"}
        await rig.ok("POST", path, {"content": "Remember later"}, headers=json_headers)
        await open_wait(rig)
        await _keep_rows(rig, conversation, domain)
        return Filled(rig.settings.data, key, domain, conversation, waiting_conversation)


async def _talk(rig: Rig, conversation: str) -> None:
    """Cause tool calls, a delegate, images, an attachment, branches and a compaction."""
    picture = {"mediaType": "image/png", "data": base64.b64encode(png()).decode()}
    for words in ("Search", "Remember at once", "Delegate"):
        await rig.say(conversation, words)
    events = await rig.say(conversation, "What is it?", images=[picture])
    (attached,) = await attach(rig, conversation, ("terms.md", b"# Terms\n\nThe pump is rented for a year.\n"))
    for number in range(7):
        await rig.say(conversation, f"Question {number}?", attachments=[] if number else [attached["id"]])
    messages = await rig.ok("GET", f"/api/conversations/{conversation}/messages")
    feedback = {"rating": "down", "reason": "It holds more."}
    await rig.ok("PUT", f"/api/conversations/{conversation}/messages/{messages['items'][-1]['id']}/feedback", feedback)
    await rig.ok("POST", f"/api/conversations/{conversation}/compact")
    last_message = (await rig.say(conversation, "How much does the pump hold?"))[0]["userMessageId"]
    assert last_message != events[0]["userMessageId"]
    path = f"/api/conversations/{conversation}/messages/{last_message}/edit"
    assert (await rig.http.post(path, json={"content": BRANCHED})).is_success


async def _sign_in_at_a_server(rig: Rig) -> None:
    """Sign in at one MCP server for a domain, and begin a sign-in at another."""
    async with serve_places() as place, serve_places() as later_found:
        web, after = {"url": place.url}, {"url": later_found.url}
        domain = await rig.domain(mcpServers={"web": web})
        servers = f"/api/domains/{domain}/mcp-servers"
        await sign_in(rig, (await rig.ok("POST", f"{servers}/web/restart"))["signIn"])
        state = await rig.ok("POST", f"{servers}/web/restart")
        assert state["state"] == "ready", state
        await rig.say(await rig.conversation(domain), "Hello")  # this stores the list of its tools
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"web": web, "later": after}}})
        assert (await rig.ok("POST", f"{servers}/later/restart"))["state"] == "needs_auth"
        off = {name: {**entry, "disabled": True} for name, entry in (("web", web), ("later", after))}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": off}})  # the servers are gone later


async def _ask_for_a_program(rig: Rig, domain: str) -> None:
    path = f"/api/domains/{domain}/mcp-servers/notes/request"
    await rig.ok("POST", path, {"command": "python3", "args": ["./notes.py"]})


async def _keep_rows(rig: Rig, conversation_id: str, domain: str) -> None:
    """Store rows that otherwise need an OpenID provider, minutes, a kill or a large result."""
    record = await rig.application.database.read(lambda conn: conversations.get(conn, ConversationId(conversation_id)))
    assert record is not None
    ref, data = new_id("ref"), b"a large result " * 2000
    await PayloadFiles(rig.settings.data / "payloads").write(ref, data)
    payload = payloads.record_of(ref, record.session_id, "text/plain", data)
    expires = later(CENTURY_HOURS * 3600)
    begun_sign_in = BegunRecord(
        id="5" * 64, browser_sha256="6" * 64, nonce="n", verifier="v", return_to="/", expires_at=expires
    )
    await rig.application.database.write(lambda conn: payloads.put(conn, payload))
    await rig.application.database.write(lambda conn: logins.begin(conn, begun_sign_in, now(), 10))
    await rig.application.database.write(
        lambda conn: collections.put(conn, CollectionRecord(domain_id=domain, updated_at=now()))
    )
    (document, *_) = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
    scan = ScanRecord(
        document_id=document["id"], sha256="7" * 64, page=1, domain_id=domain, content={"lines": []}, created_at=now()
    )
    await rig.application.database.write(lambda conn: scans.put(conn, scan))
    line = ContextLineRecord(
        document_id=document["id"], digest="7" * 32, model="claude", domain_id=domain, line="Pumps.", updated_at=now()
    )
    await rig.application.database.write(lambda conn: context_lines.put(conn, [line]))
    await rig.application.database.write(lambda conn: probe.touch(conn, now()))
    group = [EventBatch("turn_that_is_gone", 1, [b"{}"])]
    await rig.application.database.write(partial(run_groups.add, group=2**62, batches=group))
    await rig.application.database.write(partial(_put_evaluation, domain=domain))
    await rig.application.database.write(partial(_put_notifications, conversation=record))


def _put_evaluation(conn: Connection, domain: str) -> None:
    """Store a finished run with one result, and a decided draft."""
    run = RunRecord(
        id=new_id("run"),
        domain_id=domain,
        tier="retrieval",
        purpose="check",
        state=RunState.DONE,
        subject={},
        case_ids=["case"],
        user_id=USER,
        created_at=now(),
        ended_at=now(),
    )
    result = ResultRecord(
        run_id=run.id,
        case_id="case",
        repeat=0,
        domain_id=domain,
        question="When was the pump bought?",
        case_version=1,
        outcome="passed",
        at=now(),
    )
    draft = DraftRecord(
        id=new_id("draft"),
        domain_id=domain,
        kind="settings",
        label="Tone",
        change={},
        author=USER,
        state=DraftState.DROPPED,
        created_at=now(),
        updated_at=now(),
    )
    evaluation.insert_run(conn, run)
    evaluation.put_results(conn, [result])
    evaluation.insert_draft(conn, draft)


def _put_notifications(conn: Connection, conversation: ConversationRecord) -> None:
    """Store a disabled endpoint, schedule and source with their parts, expected labels and a shared link."""
    domain, timestamp = conversation.domain_id, now()
    endpoint = EndpointRecord(
        id=new_id("end"),
        domain_id=domain,
        name="Desk",
        channel=Channel.WEBHOOK,
        shown="desk.example",
        events=(EventKind.WAIT_CREATED,),
        enabled=False,
        created_by=USER,
        created_at=timestamp,
        updated_at=timestamp,
    )
    delivery = DeliveryRecord(
        id=new_id("del"),
        endpoint_id=endpoint.id,
        domain_id=domain,
        transaction=BigInt(0),
        kind=EventKind.WAIT_CREATED,
        data={},
        user_id=USER,
        conversation_id=conversation.id,
        state=DeliveryState.DELIVERED,
        created_at=timestamp,
        ended_at=timestamp,
    )
    schedule = ScheduleRecord(
        id=new_id("sched"),
        domain_id=domain,
        name="Morning",
        owner_id=USER,
        cron="0 8 * * *",
        prompt="News?",
        enabled=False,
        created_by=USER,
        created_at=timestamp,
        updated_at=timestamp,
    )
    firing = FiringRecord(
        id=new_id("fire"),
        schedule_id=schedule.id,
        domain_id=domain,
        slot=timestamp,
        state=FiringState.DONE,
        created_at=timestamp,
        ended_at=timestamp,
    )
    labels = ExpectedLabelsRecord(domain_id=domain, sha256="8" * 64, labels=("board",))
    share = ShareRecord(
        token_hash="9" * 64,
        session_id=conversation.session_id,
        conversation_id=conversation.id,
        leaf_message_id=MessageId("msg_that_is_gone"),
        created_at=timestamp,
    )
    source = SourceRecord(
        id=new_id("src"),
        domain_id=domain,
        name="Share",
        kind=SourceKind.FOLDER,
        config={"path": "/srv/share", "include": []},
        folder="sources/Share",
        labels=("board",),
        interval_minutes=60,
        grace_hours=24,
        max_items=100,
        enabled=False,
        owner_id=USER,
        created_at=timestamp,
        updated_at=timestamp,
    )
    item = SourceItemRecord(
        source_id=source.id, uri="/srv/share/a.md", domain_id=domain, name="a.md", version="1:1", seen_at=timestamp
    )
    for record in (
        endpoint,
        delivery,
        schedule,
        firing,
        labels,
        share,
        source,
        item,
        *_authorization(domain, timestamp),
    ):
        record.insert(conn)


def _authorization(domain: str, timestamp: str) -> tuple[Record, ...]:
    authorization = AuthorizationRecord(
        id=new_id("authz"),
        user_id=USER,
        domain_id=domain,
        key_id="",
        client_id="client_that_is_gone",
        client_name="Program",
        redirect_uri="http://127.0.0.1/callback",
        resource=f"http://127.0.0.1/mcp/{domain}",
        scopes=("ask",),
        created_at=timestamp,
        used_at=timestamp,
        expires_at=later(3600 * CENTURY_HOURS),
    )
    expires = authorization.expires_at
    own: dict[str, Any] = {
        "authorization_id": authorization.id,
        "domain_id": domain,
        "expires_at": expires,
        "used": False,
    }
    return (
        authorization,
        CodeRecord(id="a" * 64, challenge="c", **own),
        TokenRecord(id="b" * 64, kind=TokenKind.ACCESS, scopes=("ask",), **own),
        ClientRecord(
            id=new_id("client"),
            name="Program",
            redirect_uris=("https://a/cb",),
            created_at=timestamp,
            used_at=timestamp,
        ),
        RequestRecord(
            id="c" * 64,
            domain_id=domain,
            client_id="client_that_is_gone",
            client_name="Program",
            redirect_uri="https://a/cb",
            issuer="http://127.0.0.1",
            resource=authorization.resource,
            scopes=("ask",),
            state=None,
            challenge="c",
            expires_at=expires,
        ),
    )


def _write_files(data: Path, domain: str) -> None:
    workspace = data / "workspaces" / domain
    (workspace / "files" / "notes \u00fc.txt").write_bytes(b"what a tool wrote")
    (workspace / ".promptx" / "resource" / f"{ROLE}.role.md").write_bytes(_ROLE_FILE)
    local = data / "mcp" / "local"
    local.mkdir(parents=True, exist_ok=True)
    (local / "notes.py").write_text("print('notes')\n")
    (data / "mcp" / "allowed.json").write_text('{"entry": []}')
