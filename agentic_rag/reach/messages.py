"""The bodies of notifications: Standard Webhooks, messengers' incoming webhooks, and mail. Pure.

A notification is text for people (`describe`) or a JSON document (`event_document`). Texts come from models, users and
servers, so each form escapes them: no text can add a link, a mention or formatting to a message.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote_plus

from agentic_rag.base.forms import one_line
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.store.deliveries import DeliveryRecord
from agentic_rag.store.endpoints import Channel, EventKind

MAX_TITLE = 200
MAX_LINE = 500
MARKDOWN_BYTES = 3_000
"""Maximum bytes of a message in Markdown: WeCom accepts 4096 bytes, and escaping adds some."""

_TITLES = {
    EventKind.WAIT_CREATED: "Your answer is needed: {toolName}",
    EventKind.WAIT_ANSWERED: "Answered ({state}): {toolName}",
    EventKind.TURN_FAILED: "An answer failed: {code}",
    EventKind.DOCUMENT_FAILED: "A document could not be read: {name}",
    EventKind.BUDGET_CROSSED: "Budget of {scope} {subject} reached its {limit} limit",
    EventKind.EVALUATION_FINISHED: "Evaluation {state}: {passed} passed, {failed} failed",
    EventKind.SCHEDULE_FINISHED: "Schedule {name}: {state}",
    EventKind.SIGN_IN_NEEDED: "Sign-in needed at {server}",
    EventKind.FEEDBACK_CREATED: "Feedback on an answer: {rating}",
}
_LABELS = {
    "domainId": "Domain",
    "title": "Question",
    "message": "Message",
    "question": "Question",
    "arguments": "Arguments",
    "answer": "Answer",
    "reason": "Reason",
    "detail": "Reason",
    "warning": "Warning",
    "server": "Server",
    "kind": "Kind",
    "userId": "User",
    "answeredBy": "Answered by",
    "conversationId": "Conversation",
    "code": "Code",
    "amount": "Limit",
    "spent": "Spent",
    "unit": "Unit",
    "renewsAt": "Renews at",
    "expiresAt": "Answer until",
    "slot": "Time",
    "paused": "Paused",
    "label": "Run",
}
"""The shown fields of an event in their order, with the words before them."""


@dataclass(frozen=True, slots=True)
class NotificationText:
    """A notification as text for people: ``lines`` are pairs of a label and a text. ``link`` may be empty."""

    title: str
    lines: Sequence[tuple[str, str]]
    link: str = ""


def event_document(delivery: DeliveryRecord, data: Json, link: str) -> Json:
    """Return the JSON document of a Standard Webhooks message."""
    shown = {**data, "link": link} if link else dict(data)
    return {"type": delivery.kind.value, "timestamp": delivery.created_at, "data": shown}


def describe(kind: EventKind, data: Json, link: str = "") -> NotificationText:
    """Return an event as text for people."""
    title = _TITLES[kind].format_map(_Named(data)).strip(": ")
    lines = [(label, _text(data[name])) for name, label in _LABELS.items() if data.get(name) not in (None, "", False)]
    return NotificationText(one_line(title[: 2 * MAX_TITLE])[:MAX_TITLE], lines, link)


class _Named(dict[str, object]):
    """The fields of an event for a title; a missing one is empty text."""

    def __getitem__(self, name: str) -> object:
        return one_line(str(self.get(name, ""))[:MAX_TITLE])

    def __missing__(self, name: str) -> str:
        return ""


def _text(value: object) -> str:
    if value is True:
        return "yes"
    text = value if isinstance(value, str) else to_text(value)
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"


def messenger_body(channel: Channel, notice: NotificationText, secret: str, now: int) -> Json:
    """Return the body for a messenger's incoming webhook. ``secret`` signs it where the messenger supports that.

    ``now`` is the time in seconds since 1970.
    """
    match channel:
        case Channel.SLACK:
            return {"text": _slack(notice)}
        case Channel.TEAMS:
            return _teams(notice)
        case Channel.FEISHU:
            return _feishu(notice) | (_feishu_signature(secret, now) if secret else {})
        case Channel.DINGTALK:
            return {"msgtype": "markdown", "markdown": {"title": notice.title, "text": _markdown(notice)}}
        case Channel.WECOM:
            return {"msgtype": "markdown", "markdown": {"content": _markdown(notice)}}
    raise ValueError(f"{channel} is no messenger")


def messenger_url(channel: Channel, url: str, secret: str, now: int) -> str:
    """Return the address for one message. DingTalk expects its signature in the address."""
    if channel is not Channel.DINGTALK or not secret:
        return url
    stamp = str(now * 1000)
    digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
    joint = "&" if "?" in url else "?"
    return f"{url}{joint}timestamp={stamp}&sign={quote_plus(base64.b64encode(digest))}"


def refusal_in(channel: Channel, answer: object) -> str:
    """Return the error in a messenger's answer, which may have status 200; empty if it accepted the message."""
    if not isinstance(answer, Mapping) or channel not in (Channel.FEISHU, Channel.DINGTALK, Channel.WECOM):
        return ""
    code = answer.get("errcode", answer.get("code", answer.get("StatusCode", 0)))
    if code == 0:
        return ""
    text = answer.get("errmsg") or answer.get("msg") or ""
    return f"the messenger refused the message: {one_line(str(code)[:20])} {one_line(str(text)[:200])}"


def mail_text(notice: NotificationText) -> str:
    """Return the text of a mail."""
    said = "\n".join(f"{label}: {text}" for label, text in notice.lines)
    link = f"\n\nAnswer here:\n{notice.link}\n\nThe link is meant for you only." if notice.link else ""
    return f"{said}{link}\n"


def _slack(notice: NotificationText) -> str:
    """Return text for Slack, whose format needs three escapes (docs.slack.dev, "Formatting message text")."""

    def escape(text: str) -> str:
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return re.sub(r"([*_~`])", "\u200b\\1", escaped)

    said = [f"*{escape(notice.title)}*", *(f"{label}: {escape(text)}" for label, text in notice.lines)]
    return "\n".join([*said, *([f"<{notice.link}|Answer>"] if notice.link else [])])


def _markdown(notice: NotificationText) -> str:
    """Return Markdown for DingTalk and WeCom, with every special character escaped."""
    said = _escape_markdown(notice.title)
    lines, left = [f"### {said}"], MARKDOWN_BYTES - len(said.encode())
    for label, text in notice.lines:
        line = f"**{label}**: {_escape_markdown(one_line(text))}"
        left -= len(line.encode())
        if left < 0:
            lines.append("…")
            break
        lines.append(line)
    if notice.link:
        lines.append(f"[Answer]({notice.link})")
    return "\n\n".join(lines)


def _escape_markdown(text: str) -> str:
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!|~@])", r"\\\1", plain)


def _teams(notice: NotificationText) -> Json:
    """Return an Adaptive Card, as Teams' workflow webhooks expect it. A fact's value shows no formatting."""
    facts = [{"title": label, "value": _escape_markdown(one_line(text))} for label, text in notice.lines]
    content: Json = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": _escape_markdown(notice.title), "weight": "Bolder", "wrap": True},
            {"type": "FactSet", "facts": facts},
        ],
    }
    if notice.link:
        content["actions"] = [{"type": "Action.OpenUrl", "title": "Answer", "url": notice.link}]
    card = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": content}
    return {"type": "message", "attachments": [card]}


def _feishu(notice: NotificationText) -> Json:
    """Return a rich text message for Feishu, whose text elements show no formatting."""
    rows: list[list[Json]] = [[{"tag": "text", "text": f"{label}: {text}"}] for label, text in notice.lines]
    if notice.link:
        rows.append([{"tag": "a", "text": "Answer", "href": notice.link}])
    return {"msg_type": "post", "content": {"post": {"en_us": {"title": notice.title, "content": rows}}}}


def _feishu_signature(secret: str, now: int) -> Json:
    digest = hmac.new(f"{now}\n{secret}".encode(), b"", hashlib.sha256).digest()
    return {"timestamp": str(now), "sign": base64.b64encode(digest).decode()}
