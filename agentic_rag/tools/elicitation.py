"""Elicitation: the input an MCP server asks a person for during a call, as shown, stored and answered. Pure.

Owns the choice of forms and addresses that are shown, their texts and warnings, and the answer to the server. If one
answer of a server holds several requests, people get them one by one, and the server gets all answers together. Knows
no connection and no wait.
"""

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import mcp_types as types

from agentic_rag.base.events import WaitAction, WaitKind
from agentic_rag.base.json_form import Json
from agentic_rag.tools.base import InputGiven, InputNeeded
from agentic_rag.tools.elicited_forms import UnfitForm, read_schema
from agentic_rag.tools.listing import clean

MESSAGE_CHARS = 4_000
URL_CHARS = 2_048
SHOWN_CHARS = 100
"""Maximum length of a server's own text that is quoted in a reason."""
REQUESTS = 8
"""Maximum number of requests in one answer of a server."""
STATE_CHARS = 256 * 1024
"""Maximum size of the state that a server wants back; it is stored with the wait."""

TOO_MANY = f"it asks {{count}} things at once, at most {REQUESTS} are shown"
TOO_LARGE = "it is too large"

HELD = "elicitation"
"""The key in `InputNeeded.held` under which an `InputRound` is stored."""

ACTIONS: Mapping[WaitAction, Any] = {
    WaitAction.ACCEPT: "accept",
    WaitAction.DECLINE: "decline",
    WaitAction.CANCEL: "cancel",
    # The protocol has no answer for a question whose time ran out.
    WaitAction.EXPIRE: "decline",
}

_SECRETS = re.compile(
    r"pass[\s_-]?(?:word|code|phrase|wd)|\bpwd\b|\bpin\b|secret|credential|token|api[\s_-]?key|private[\s_-]?key"
    r"|access[\s_-]?key|card[\s_-]?(?:number|no\b)|credit[\s_-]?card|\bcv[vc]\b|\biban\b|\bssn\b|social security"
    r"|one[\s_-]?time|\botp\b|seed phrase|kennwort|passwort|geheim|mot de passe|contrase(?:ñ|n)a|密码|密碼|パスワード",
    re.IGNORECASE,
)
_SECRET_WARNING = (
    "This form seems to ask for a password, key, card or other secret. What you enter goes to the server {server!r} "
    "and is kept with this conversation. Enter no secret here."
)


@dataclass(frozen=True, slots=True)
class Unfit:
    """A request that is not shown to a person and counts as declined; ``why`` ends a sentence for the model."""

    why: str

    @property
    def text(self) -> str:
        """The text for the model."""
        return f"The server asked the user for input that is not passed on: {self.why}. It was declined."


@dataclass(frozen=True, slots=True)
class InputRound:
    """The questions that a server wants answered before it resumes a call.

    ``state`` is the opaque value that the server wants back. ``open`` holds the unanswered questions by the server's
    own keys and in its order, as parameters of ``elicitation/create``. ``answers`` holds the results of the answered
    ones. ``task`` is the task that asks, if the call runs as one, and ``earlier`` the keys of its earlier rounds.
    """

    state: str | None = None
    open: Mapping[str, Json] = field(default_factory=dict)
    answers: Mapping[str, Json] = field(default_factory=dict)
    task: str = ""
    earlier: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all answers so far, those of earlier rounds included."""
        return (*self.earlier, *self.answers)

    def question(self, server: str) -> InputNeeded | Unfit | None:
        """Return the next question, or None if all are answered."""
        for params in self.open.values():
            question = question_of(server, params)
            if isinstance(question, Unfit):
                return question
            # The whole round is held, so that after a restart the remaining questions are known.
            round_state: Json = {"state": self.state, "open": dict(self.open), "answers": dict(self.answers)}
            if self.task:
                round_state |= {"task": self.task, "earlier": list(self.earlier)}
            return replace(question, held={HELD: round_state})
        return None

    def unfit(self, server: str) -> Unfit | None:
        """Return the problem of the first unfit question; if there is one, no question is asked."""
        questions = (question_of(server, params) for params in self.open.values())
        return next((question for question in questions if isinstance(question, Unfit)), None)

    @property
    def elicitation(self) -> str:
        """The id under which the server reports that the next question is done; empty if there is none."""
        params = next(iter(self.open.values()), {})
        return str(params.get("elicitationId") or "")

    @property
    def responses(self) -> types.InputResponses:
        """The answers in the form that is sent."""
        return {key: types.ElicitResult.model_validate(answer) for key, answer in self.answers.items()}


def answered_round(answer: InputGiven | None) -> InputRound | None:
    """Return the round that a person's answer belongs to, with the answer included; None if there is no round."""
    round_state = (answer.held or {}).get(HELD) if answer is not None else None
    if answer is None or round_state is None:
        return None
    still_open = dict(round_state["open"])
    # Only one question is open, so the answer belongs to it.
    key, params = next(iter(still_open.items()))
    del still_open[key]
    answers = {**round_state["answers"], key: result_of(answer, params)}
    return InputRound(
        round_state["state"], still_open, answers, round_state.get("task", ""), tuple(round_state.get("earlier", ()))
    )


def result_of(answer: InputGiven, params: Json) -> Json:
    """Return a person's answer as an ``ElicitResult``."""
    result: dict[str, Any] = {"action": ACTIONS[answer.action]}
    # The server itself receives the input on a page that a person opened.
    if answer.action is WaitAction.ACCEPT and params.get("mode") != "url":
        result["content"] = dict(answer.content)
    return result


def round_of(result: types.InputRequiredResult) -> InputRound | Unfit:
    """Return the questions that a server of the newer protocol era sends instead of the answer to a call."""
    requests, questions = result.input_requests or {}, dict[str, Json]()
    if len(requests) > REQUESTS:
        return Unfit(TOO_MANY.format(count=len(requests)))
    if len(result.request_state or "") > STATE_CHARS:
        return Unfit(TOO_LARGE)
    for key, request in requests.items():
        if not isinstance(request, types.ElicitRequest):
            return Unfit(f"{clean(request.method[:SHOWN_CHARS])} is not offered here")
        questions[key] = _params(request.params)
    return _check_bounds(InputRound(result.request_state, questions))


def round_of_error(data: object) -> InputRound | Unfit:
    """Return the questions in the error ``URL_ELICITATION_REQUIRED`` of a server of the older protocol era."""
    try:
        requests = types.ElicitationRequiredErrorData.model_validate(data).elicitations
    except ValueError:
        return Unfit("it does not say which address is to be opened")
    return _check_bounds(InputRound(None, {str(number): _params(request) for number, request in enumerate(requests)}))


def _params(params: types.ElicitRequestParams) -> Json:
    return params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})


def _check_bounds(input_round: InputRound) -> InputRound | Unfit:
    if len(input_round.open) > REQUESTS:
        return Unfit(TOO_MANY.format(count=len(input_round.open)))
    if len(input_round.state or "") + len(json.dumps(input_round.open)) > STATE_CHARS:
        return Unfit(TOO_LARGE)
    return input_round


def question_of(server: str, params: Json) -> InputNeeded | Unfit:
    """Return the question that a person is shown for an elicitation; ``params`` as in ``elicitation/create``."""
    message = params.get("message")
    if not isinstance(message, str) or len(message) > MESSAGE_CHARS:
        return Unfit(f"its message is longer than {MESSAGE_CHARS} characters")
    if params.get("mode", "form") == "url":
        return _address_question(server, clean(message), params.get("url"))
    schema = read_schema(params.get("requestedSchema"))
    if isinstance(schema, UnfitForm):
        return Unfit(f"its form cannot be shown: {schema.why}")
    texts = (message, *_words(schema))
    warning = _SECRET_WARNING.format(server=server) if any(map(_SECRETS.search, texts)) else None
    title = f"The server {server!r} asks for input"
    return InputNeeded(WaitKind.FORM, title, clean(message), schema=schema, warning=warning)


def _words(schema: Json) -> Iterable[str]:
    for name, form_field in schema["properties"].items():
        # ``apiKey`` and ``api_key`` become words, as the pattern for secrets expects.
        yield re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
        yield from (form_field[word] for word in ("title", "description") if word in form_field)


def _address_question(server: str, message: str, url: object) -> InputNeeded | Unfit:
    if not isinstance(url, str) or len(url) > URL_CHARS or not url.isprintable() or " " in url or "\\" in url:
        return Unfit("its address is none, too long, or has characters that do not belong there")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
        port = parts.port
    except ValueError:
        return Unfit("its address cannot be read")
    if not host or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not _is_loopback(host)):
        return Unfit("its address is neither https nor of this machine")
    # ``https://bank.example@evil.example`` leads to the second host, and ``%`` can spell any host in another way.
    if "@" in parts.netloc or "%" in parts.netloc:
        return Unfit("its address has a name or password in it, or a host in another spelling")
    ascii_url = _ascii(parts, host, port)
    title = f"The server {server!r} asks you to open a page at {host}"
    return InputNeeded(WaitKind.URL, title, message, url=ascii_url, warning=_host_warning(parts.hostname or "", host))


def _ascii(parts: SplitResult, host: str, port: int | None) -> str:
    """Return an address with its host in the ASCII form used for DNS, so that people see the address that opens."""
    if host == (parts.hostname or ""):
        return urlunsplit(parts)
    return urlunsplit(parts._replace(netloc=host if port is None else f"{host}:{port}"))


def _host_warning(hostname: str, host: str) -> str | None:
    if not any(label.startswith("xn--") for label in host.split(".")):
        return None
    try:
        read = host.encode().decode("idna")
    except UnicodeError:
        read = hostname
    looks = f" It may be displayed as {read!r}." if read != host else ""
    return f"The page's name has letters that can look like others: it is {host}.{looks} Open it only if you know it."


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
