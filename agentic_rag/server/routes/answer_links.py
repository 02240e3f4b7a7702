"""The page behind a link in a notification: it shows a wait and takes the answer, without a session.

Only a POST answers. A GET changes nothing, because mail programs and messengers fetch links for previews. The page
loads nothing and runs no script. ``reach.links`` decides the rules.
"""

import html
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentic_rag.base.errors import AgenticRagError, BodyTooLarge, Forbidden, InvalidInput, NotFound, WaitAnswered
from agentic_rag.base.events import WaitAction, WaitKind
from agentic_rag.base.forms import JsonLimits
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redactor
from agentic_rag.reach.links import PATH, AnswerLinks, LinkedWait, LinkState
from agentic_rag.server.routing import read_body, route
from agentic_rag.store.waits import WaitRecord, WaitState
from agentic_rag.tools.elicited_forms import FIELDS, OPTIONS

MAX_BODY = 256 * 1024
MAX_FIELDS = FIELDS * OPTIONS + 8
"""Maximum fields of the page's form: each ticked option is one, and a few belong to the page itself."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "x-robots-tag": "noindex, nofollow",
}
"""``same-origin``: with ``no-referrer``, browsers send the form with ``Origin: null``, which is refused."""

LINK_ERRORS = (BodyTooLarge, Forbidden, InvalidInput, NotFound, WaitAnswered)
_LIMITS = JsonLimits(keys=2_000, size=128 * 1024)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;"
    "background:#fff}textarea{width:100%;box-sizing:border-box;font:14px/1.4 ui-monospace,monospace}"
    "dt{font-weight:600;margin-top:.75rem}dd{margin:0;overflow-wrap:anywhere;white-space:pre-wrap}"
    "button{font:inherit;padding:.5rem 1.25rem;margin:1rem .5rem 0 0}.warning{border-left:4px solid #b45309;"
    "padding-left:.75rem}label{display:block}"
)

_EN = {
    "title": "Your answer is needed",
    "for": "This link was sent to {recipient}. The answer is recorded in this name. If you are somebody else, close "
    "this page.",
    "tool": "Tool",
    "server": "Server",
    "until": "You can answer until",
    "arguments": "Arguments (you can edit them)",
    "sources": "The model read content written by others. One of these may have triggered this request:",
    "approve": "Approve",
    "decline": "Decline",
    "answer": "Answer",
    "reason": "Reason for declining (optional)",
    "text": "Your answer",
    "console": "Open the console",
    "elsewhere": "This question can be answered in the console only. You can decline it here.",
    "signIn": "Sign in to answer",
    "signInText": "This domain accepts answers only from a person who is signed in.",
    "done": "Your answer is stored",
    "accepted": "Accepted. The turn continues. You can close this page.",
    "declined": "Declined. The turn continues without it. You can close this page.",
    "answered": "Already answered",
    "answeredText": "{who} has answered this at {when}. Nothing was changed.",
    "expired": "The link has expired",
    "expiredText": "The time to answer has passed. The request counts as declined.",
    "cancelled": "No longer needed",
    "cancelledText": "The turn that asked has ended.",
    "invalid": "This link is not valid",
    "invalidText": "It may be incomplete, or it was withdrawn. Answer in the console instead.",
    "problem": "The answer was not accepted:",
}
_ZH = {
    "title": "需要您的答复",
    "for": "此链接发送给 {recipient},答复将以该名义记录。如果您不是此人,请关闭本页。",
    "tool": "工具",
    "server": "服务器",
    "until": "答复截止时间",
    "arguments": "参数(可以修改)",
    "sources": "模型读取了他人撰写的内容,其中之一可能触发了此请求:",
    "approve": "批准",
    "decline": "拒绝",
    "answer": "答复",
    "reason": "拒绝原因(可选)",
    "text": "您的答复",
    "console": "打开控制台",
    "elsewhere": "此问题只能在控制台中答复。您可以在此拒绝。",
    "signIn": "登录后答复",
    "signInText": "此领域只接受已登录人员的答复。",
    "done": "答复已保存",
    "accepted": "已批准,对话继续。您可以关闭本页。",
    "declined": "已拒绝,对话将不使用它而继续。您可以关闭本页。",
    "answered": "已有答复",
    "answeredText": "{who} 已于 {when} 答复,没有任何更改。",
    "expired": "链接已过期",
    "expiredText": "答复时间已过,该请求视为拒绝。",
    "cancelled": "不再需要",
    "cancelledText": "提出请求的对话轮次已结束。",
    "invalid": "链接无效",
    "invalidText": "链接可能不完整或已被撤回。请在控制台中答复。",
    "problem": "答复未被接受:",
}
_STATUS = {
    LinkState.ANSWERED: 409,
    LinkState.EXPIRED: 409,
    LinkState.CANCELLED: 409,
    LinkState.INVALID: 404,
}


class AnswerRoutes:
    """Answers by links in notifications."""

    def __init__(self, links: AnswerLinks, redactor: Redactor) -> None:
        self._links = links
        self._redactor = redactor

    @route("GET", f"{PATH}{{token}}", allow="anyone", errors=[NotFound, WaitAnswered])
    async def show(self, request: Request, token: str) -> HTMLResponse:
        """Show the question behind a link. Nothing is changed."""
        return self._page(await self._links.find(token), token, _words(request))

    @route("POST", f"{PATH}{{token}}", allow="anyone", errors=LINK_ERRORS)
    async def answer(self, request: Request, token: str) -> HTMLResponse:
        """Answer the question behind a link with the fields of the page's form."""
        words = _words(request)
        linked = await self._links.find(token)
        if linked.state is not LinkState.OPEN or linked.wait is None:
            return self._page(linked, token, words)
        body = (await read_body(request, MAX_BODY)).decode("utf-8", "replace")
        fields: dict[str, list[str]] = {}
        try:
            fields = _read_fields(body)
            shown = self._redactor.of(linked.wait.domain_id).json(linked.wait.request.get("arguments"))
            action, content = _read_answer(linked.wait, fields, shown)
            wait = await self._links.answer(token, action, content)
        except (WaitAnswered, NotFound, Forbidden):
            return self._page(await self._links.find(token), token, words)
        except InvalidInput as exc:
            return self._page(linked, token, words, problem=exc, entered=fields)
        text = words["accepted" if wait.state is WaitState.ACCEPTED else "declined"]
        return _html(words["done"], f"<p>{html.escape(text)}</p>", 200)

    def _page(
        self,
        linked: LinkedWait,
        token: str,
        words: Mapping[str, str],
        *,
        problem: AgenticRagError | None = None,
        entered: Mapping[str, Sequence[str]] | None = None,
    ) -> HTMLResponse:
        wait = linked.wait
        if wait is None or linked.state in _STATUS:
            text = words[f"{linked.state.value}Text"]
            if wait is not None:
                text = text.format(who=wait.answered_by, when=wait.answered_at)
            return _html(words[linked.state.value], f"<p>{html.escape(text)}</p>", _STATUS[linked.state])
        if linked.state is LinkState.SIGN_IN:
            link = f'<p><a href="/#/waiting">{html.escape(words["signIn"])}</a></p>'
            return _html(words["title"], f"<p>{html.escape(words['signInText'])}</p>{link}", 200)
        request = self._redactor.of(wait.domain_id).json(wait.request)
        parts = [f"<p>{html.escape(words['for'].format(recipient=linked.recipient))}</p>"]
        if problem is not None:
            text = html.escape(f"{words['problem']} {problem}")
            parts.append(f'<p class="warning" role="alert">{text}</p>')
        parts.append(_describe(wait, request, words))
        parts.append(_form(wait, request, words, entered or {}))
        return _html(words["title"], "".join(parts), 200 if problem is None else 422)


def _words(request: Request) -> Mapping[str, str]:
    language = request.headers.get("accept-language", "")[:200].lower().split(",")[0].strip()
    return _ZH if language.startswith("zh") else _EN


def _read_fields(body: str) -> dict[str, list[str]]:
    """Return the fields of a form.

    Raises:
        InvalidInput: there are more than `MAX_FIELDS`.
    """
    try:
        return parse_qs(body, max_num_fields=MAX_FIELDS)
    except ValueError as exc:
        raise InvalidInput("body", f"more than {MAX_FIELDS} fields.") from exc


def _read_answer(wait: WaitRecord, fields: Mapping[str, Sequence[str]], shown: object) -> tuple[WaitAction, Json]:
    """Return the answer in a form's fields. ``shown``: the arguments on the page, in which secrets are masked.

    Raises:
        InvalidInput: the action is missing, or the arguments are not a JSON object.
    """
    match fields.get("action", [""])[0]:
        case "decline":
            return WaitAction.DECLINE, {"reason": fields.get("reason", [""])[0].strip()}
        case "accept" if wait.kind is WaitKind.APPROVAL:
            return WaitAction.ACCEPT, _read_arguments(fields, shown)
        case "accept" if wait.kind is WaitKind.QUESTION:
            return WaitAction.ACCEPT, {
                "choices": list(fields.get("choice", [])),
                "text": fields.get("text", [""])[0].strip(),
            }
    raise InvalidInput("action", "accept or decline is expected.")


def _read_arguments(fields: Mapping[str, Sequence[str]], shown: object) -> Json:
    text = fields.get("arguments", [""])[0]
    if not text.strip():
        return {}
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput("arguments", f"not valid JSON: {exc}.") from exc
    if not isinstance(arguments, dict):
        raise InvalidInput("arguments", "a JSON object is needed.")
    try:
        _LIMITS.check(arguments)
    except ValueError as exc:
        raise InvalidInput("arguments", str(exc)) from exc
    # Unedited arguments are not sent on: the page shows masks in place of secrets, which would replace the values.
    return {} if arguments == shown else {"arguments": arguments}


def _describe(wait: WaitRecord, request: Json, words: Mapping[str, str]) -> str:
    rows = [(words["tool"], request.get("toolName")), (words["server"], request.get("server"))]
    rows.append((words["until"], wait.expires_at))
    listed = "".join(f"<dt>{html.escape(label)}</dt><dd>{html.escape(str(text))}</dd>" for label, text in rows if text)
    title, message = str(request.get("title") or ""), str(request.get("message") or "")
    heading = f"<h2>{html.escape(title)}</h2><p>{html.escape(message)}</p>"
    warning = request.get("warning")
    warnings = f'<p class="warning">{html.escape(str(warning))}</p>' if warning else ""
    sources = request.get("sources") or ()
    if sources:
        named = [f"{source.get('kind')}: {source.get('name')}" for source in sources]
        items = "".join(f"<li>{html.escape(name)}</li>" for name in named)
        warnings += f'<div class="warning"><p>{html.escape(words["sources"])}</p><ul>{items}</ul></div>'
    return f"{heading}{warnings}<dl>{listed}</dl>"


def _form(wait: WaitRecord, request: Json, words: Mapping[str, str], entered: Mapping[str, Sequence[str]]) -> str:
    fields = ""
    accept = words["approve"]
    can_accept = wait.kind in (WaitKind.APPROVAL, WaitKind.QUESTION)
    if wait.kind is WaitKind.APPROVAL:
        pretty = orjson.dumps(request.get("arguments") or {}, option=orjson.OPT_INDENT_2).decode()
        text = entered.get("arguments", [pretty])[0]
        rows = min(24, text.count("\n") + 2)
        fields = (
            f'<label>{html.escape(words["arguments"])}<textarea name="arguments" rows="{rows}" spellcheck="false">\n'
            f"{html.escape(text)}</textarea></label>"
        )
    elif wait.kind is WaitKind.QUESTION:
        accept = words["answer"]
        kind = "checkbox" if request.get("multiple") else "radio"
        for option in request.get("options") or ():
            value, label = str(option.get("value", "")), str(option.get("label") or option.get("value", ""))
            fields += (
                f'<label><input type="{kind}" name="choice" value="{html.escape(value)}"> {html.escape(label)}</label>'
            )
        fields += f'<label>{html.escape(words["text"])}<textarea name="text" rows="3"></textarea></label>'
    else:
        fields = f'<p>{html.escape(words["elsewhere"])} <a href="/#/waiting">{html.escape(words["console"])}</a></p>'
    buttons = f'<button name="action" value="accept">{html.escape(accept)}</button>' if can_accept else ""
    buttons += f'<button name="action" value="decline">{html.escape(words["decline"])}</button>'
    reason = f'<label>{html.escape(words["reason"])}<textarea name="reason" rows="2"></textarea></label>'
    return f'<form method="post">{fields}{reason}{buttons}</form>'


def _html(title: str, body: str, status: int) -> HTMLResponse:
    heading = html.escape(title)
    page = (
        f'<!doctype html><html lang="{"zh" if title in _ZH.values() else "en"}"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{heading}</title><style>{_STYLE}</style></head>'
        f"<body><main><h1>{heading}</h1>{body}</main></body></html>"
    )
    return HTMLResponse(page, status, HEADERS)
