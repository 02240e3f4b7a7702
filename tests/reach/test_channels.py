"""Notifications to messengers and by mail: the expected forms, and texts that could break out of them."""

import asyncio
import base64
import email
import email.policy
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import orjson
import pytest
from pydantic import SecretStr
from starlette.responses import JSONResponse

from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.reach.endpoints import EndpointForm
from agentic_rag.reach.messages import _TITLES, NotificationText, describe, messenger_body, messenger_url
from agentic_rag.reach.sending import MailRelay
from agentic_rag.store.deliveries import DeliveryState
from agentic_rag.store.endpoints import SERVER, Channel, EventKind
from tests.reach.receiver import Receiver, outbox, run_sender

EVIL = "*bold* [click](https://evil.example) <https://evil.example|here> <!channel> # `x` @all\r\nBcc: x@y.z"
LINK = "https://rag.example.org/api/answers/x.y.z"
MESSENGERS = [Channel.SLACK, Channel.TEAMS, Channel.FEISHU, Channel.DINGTALK, Channel.WECOM]


ROOT = Path(__file__).parents[2]


def test_every_kind_of_event_has_a_title_and_is_offered_and_documented() -> None:
    kinds = {kind.value for kind in EventKind}
    assert {kind.value for kind in _TITLES} == kinds
    page = ROOT.joinpath("agentic_rag/server/web/notifications/endpoints.js").read_text("utf-8")
    (offered,) = re.findall(r"^const EVENTS = \[(.*?)\];$", page, re.MULTILINE | re.DOTALL)
    assert {*re.findall(r'"(.*?)"', offered)} == kinds
    documentation = ROOT.joinpath("docs/notifications.md").read_text("utf-8")
    first_cells = re.findall(r"^\| (`[a-z_]+\..*?) \|", documentation, re.MULTILINE)
    assert {*re.findall("`(.*?)`", " ".join(first_cells))} == kinds


def notice_of(**fields: Any) -> NotificationText:
    return describe(EventKind.WAIT_CREATED, {"toolName": "send_mail", "domainId": "law", **fields}, LINK)


@pytest.mark.parametrize("channel", MESSENGERS)
def test_each_messenger_gets_title_facts_and_link_in_its_own_form(channel: Channel) -> None:
    body = messenger_body(channel, notice_of(expiresAt="2026-01-02T03:04:05.000Z"), "", 0)
    payload = orjson.dumps(body).decode()
    assert LINK in payload
    assert "law" in payload
    assert "2026" in payload
    match channel:
        case Channel.SLACK:
            assert body["text"].startswith("*Your answer is needed: send")
            assert body["text"].endswith(f"<{LINK}|Answer>")
        case Channel.TEAMS:
            (card,) = body["attachments"]
            assert body["type"] == "message"
            assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
            assert card["content"]["actions"] == [{"type": "Action.OpenUrl", "title": "Answer", "url": LINK}]
        case Channel.FEISHU:
            post = body["content"]["post"]["en_us"]
            assert (body["msg_type"], post["title"]) == ("post", "Your answer is needed: send_mail")
            assert post["content"][-1] == [{"tag": "a", "text": "Answer", "href": LINK}]
        case Channel.DINGTALK:
            assert body["msgtype"] == "markdown"
            assert body["markdown"]["title"] == "Your answer is needed: send_mail"
        case _:
            assert body["msgtype"] == "markdown"
            assert len(body["markdown"]["content"].encode()) < 4096


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize("channel", MESSENGERS)
def test_texts_add_no_link_no_mention_and_no_formatting(channel: Channel) -> None:
    body = messenger_body(channel, notice_of(message=EVIL * 30, toolName=EVIL, title="汉" * 5_000), "", 0)
    if channel is Channel.DINGTALK:  # the title is plain text
        del body["markdown"]["title"]
    payload = orjson.dumps(body).decode()
    if channel is Channel.SLACK:
        assert "<!channel>" not in payload
        assert "<https://evil" not in payload
    elif channel is not Channel.FEISHU:  # its text elements have no formatting
        assert "[click](" not in payload
        assert "<https://evil" not in payload
    assert "\n" not in describe(EventKind.WAIT_CREATED, {"toolName": EVIL}).title
    if channel is Channel.WECOM:
        assert len(body["markdown"]["content"].encode()) < 4096


def test_feishu_and_dingtalk_messages_are_signed_as_their_documentation_says() -> None:
    body = messenger_body(Channel.FEISHU, notice_of(), "key", 1_700_000_000)
    feishu_mac = hmac.new(b"1700000000\nkey", b"", hashlib.sha256).digest()
    assert (body["timestamp"], body["sign"]) == ("1700000000", base64.b64encode(feishu_mac).decode())
    url = messenger_url(Channel.DINGTALK, "https://oapi.example/robot/send?access_token=t", "SECx", 1_700_000_000)
    query = parse_qs(urlsplit(url).query)
    dingtalk_mac = hmac.new(b"SECx", b"1700000000000\nSECx", hashlib.sha256).digest()
    assert query == {
        "access_token": ["t"],
        "timestamp": ["1700000000000"],
        "sign": [base64.b64encode(dingtalk_mac).decode()],
    }
    assert messenger_url(Channel.SLACK, "https://x.example/y", "", 0) == "https://x.example/y"


async def test_a_messenger_that_refuses_with_status_200_is_a_failed_attempt(tmp_path: Path) -> None:
    answers = {1: {"errcode": 310000, "errmsg": "sign not match"}}
    receiver = Receiver(lambda number: JSONResponse(answers.get(number, {"errcode": 0, "errmsg": "ok"})))
    async with receiver.open(), outbox(tmp_path, receiver.address) as box, anyio.create_task_group() as tasks:
        endpoint, secret = await box.add(receiver.url, Channel.DINGTALK, secret="SECx")
        assert secret == ""
        await box.announce(1)
        with run_sender(tasks, box.sender(0.0)):
            await box.wait_until(endpoint, lambda _, rows: rows[0].state is DeliveryState.DELIVERED)
        (row,) = await box.list_deliveries(endpoint)
        assert row.attempts == 2
        assert "markdown" in receiver.received[0]


class Relay:
    """An SMTP server that stores messages. It refuses the first ``refuses`` recipients."""

    def __init__(self, refuses: int = 0) -> None:
        self.messages: list[EmailMessage] = []
        self.recipients: list[str] = []
        self._refuses = refuses
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 relay\r\n")
        while line := await reader.readline():
            match line.split(b":")[0].split()[0].upper():
                case b"EHLO":
                    writer.write(b"250-relay\r\n250 8BITMIME\r\n")
                case b"RCPT" if self._refuses:
                    self._refuses -= 1
                    writer.write(b"451 try later\r\n")
                case b"RCPT":
                    self.recipients.append(line.decode().strip())
                    writer.write(b"250 ok\r\n")
                case b"DATA":
                    writer.write(b"354 go on\r\n")
                    data = await reader.readuntil(b"\r\n.\r\n")
                    parsed = email.message_from_bytes(data[:-5], policy=email.policy.default)
                    assert isinstance(parsed, EmailMessage)
                    self.messages.append(parsed)
                    writer.write(b"250 stored\r\n")
                case b"QUIT":
                    writer.write(b"221 bye\r\n")
                    break
                case _:
                    writer.write(b"250 ok\r\n")
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


async def test_mail_reaches_the_relay_and_is_tried_again_after_a_refusal(tmp_path: Path) -> None:
    async with Relay(refuses=1).open() as relay, outbox(tmp_path, mails=True) as box:
        async with anyio.create_task_group() as tasks:
            events = (EventKind.FEEDBACK_CREATED,)
            form = EndpointForm(name="Ann", channel=Channel.MAIL, address="ann@example.org", events=events)
            record, secret = await box.endpoints.create(LOCAL, SERVER, form)
            assert (secret, record.shown) == ("", "ann@example.org")
            await box.announce(1)
            sender = MailRelay("127.0.0.1", relay.port, secure=False, sender="Agentic RAG <rag@example.org>")
            with run_sender(tasks, box.sender(0.0, relay=sender)):
                await box.wait_until(record.id, lambda _, rows: rows[0].state is DeliveryState.DELIVERED)
        (row,) = await box.list_deliveries(record.id)
        assert row.attempts == 2
        (message,) = relay.messages
        assert relay.recipients == ["RCPT TO:<ann@example.org>"]
        assert message["subject"] == "Feedback on an answer"
        assert message["auto-submitted"] == "auto-generated"
        assert message["message-id"] == f"<{row.id}@example.org>"
        assert "law" in message.get_content()


async def test_a_missing_mail_relay_is_a_failed_attempt(tmp_path: Path) -> None:
    async with outbox(tmp_path, mails=True) as box, anyio.create_task_group() as tasks:
        form = EndpointForm(
            name="Ann", channel=Channel.MAIL, address="ann@example.org", events=(EventKind.FEEDBACK_CREATED,)
        )
        mail_endpoint, _ = await box.endpoints.create(LOCAL, SERVER, form)
        await box.announce(1)
        relay = MailRelay("127.0.0.1", 1, secure=False, sender="rag@example.org")
        with run_sender(tasks, box.sender(3600.0, relay=relay)):
            await box.wait_until(mail_endpoint.id, lambda record, _: record.failures == 1)
        assert "mail relay did not take" in (await box.list_deliveries(mail_endpoint.id))[0].problem


@pytest.mark.parametrize(
    "address", ["", "ann", "ann@", "@example.org", "a@b", "a b@example.org", "a@example.org\r\nBcc: x@y.z", "a,b@x.org"]
)
async def test_an_invalid_mail_address_is_refused(tmp_path: Path, address: str) -> None:
    async with outbox(tmp_path, mails=True) as box:
        form = EndpointForm(name="x", channel=Channel.MAIL, address=address, events=())
        with pytest.raises(InvalidInput):
            await box.endpoints.create(LOCAL, SERVER, form)


async def test_mail_without_a_relay_is_refused_with_the_setting(tmp_path: Path) -> None:
    async with outbox(tmp_path) as box:
        form = EndpointForm(name="x", channel=Channel.MAIL, address="ann@example.org", events=())
        with pytest.raises(InvalidInput, match="AGENTIC_RAG_SMTP_URL"):
            await box.endpoints.create(LOCAL, SERVER, form)


def test_the_relay_is_read_from_its_address() -> None:
    relay = MailRelay.of(SecretStr("smtp://me%40x:p%20w@mail.example:587"), "rag@example.org")
    assert relay == MailRelay("mail.example", 587, False, "rag@example.org", "me@x", "p w")
    assert MailRelay.of(SecretStr("smtps://mail.example"), "rag@example.org") == MailRelay(
        "mail.example", 465, True, "rag@example.org"
    )
    assert MailRelay.of(None, "") is None
    for bad in ("mail.example:25", "http://mail.example", "smtp://", "smtp://x:99999", "smtp://x/y", "smtp://x?y=z"):
        with pytest.raises(BadConfiguration):
            MailRelay.of(SecretStr(bad), "rag@example.org")
    with pytest.raises(BadConfiguration):
        MailRelay.of(SecretStr("smtp://x"), "")
