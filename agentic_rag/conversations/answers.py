"""Validation of a person's answer to a wait. Pure.

Checks each kind of answer and defines the form in which it is stored and passed to the waiting call.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import WaitAction, WaitKind
from agentic_rag.base.json_form import Json
from agentic_rag.runtime.core.arguments import find_problem
from agentic_rag.store.waits import WaitRecord
from agentic_rag.tools.elicited_forms import fill_form

Scope = Literal["once", "conversation", "domain"]
"""Validity of an approval: this call only, the same tool of the same server for the rest of the conversation, or the
tool in the whole domain, which adds a rule to the domain's ``toolPolicy``."""

MAX_TEXT = 10_000
"""Maximum characters of a text in an answer."""
MAX_OUTPUT = 500_000
"""Maximum characters of a function's result."""


def read_answer(wait: WaitRecord, action: WaitAction, content: Json) -> Json:
    """Return a person's answer in the form that is stored.

    - An approval has ``arguments`` (those to send) and ``scope``.
    - A form has its fields, with defaults filled in.
    - A question has ``choices`` and ``text``.
    - A function has ``output``, the text of its result.
    - A declined wait has a ``reason``, if one was given.

    Raises:
        InvalidInput: a field is invalid; the error names it and the expected value.
    """
    if action is not WaitAction.ACCEPT:
        return _read_reason(content)
    if wait.kind is WaitKind.APPROVAL:
        return _read_approval(wait.request, content)
    if wait.kind is WaitKind.FORM:
        return fill_form(wait.request.get("schema") or {}, content)
    if wait.kind is WaitKind.QUESTION:
        return _read_choices(wait.request, content)
    if wait.kind is WaitKind.FUNCTION:
        return _read_output(content)
    _refuse_others(content, ())
    return {}


def _read_reason(content: Json) -> Json:
    _refuse_others(content, ("reason",))
    reason = content.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_TEXT:
        raise InvalidInput("content.reason", f"a text of at most {MAX_TEXT} characters is needed.")
    return {"reason": reason} if reason.strip() else {}


def _read_approval(request: Json, content: Json) -> Json:
    _refuse_others(content, ("arguments", "scope"))
    arguments = content.get("arguments", request["arguments"])
    if not isinstance(arguments, dict):
        raise InvalidInput("content.arguments", "a JSON object is needed.")
    # A person may have edited the arguments, so they are checked like those of the model.
    problem = find_problem(request["schema"], arguments, user=True)
    if problem:
        raise InvalidInput("content.arguments", problem)
    scope = content.get("scope", "once")
    if scope not in get_args(Scope):
        raise InvalidInput("content.scope", '"once", "conversation" or "domain" is needed.')
    return {"arguments": arguments, "scope": scope}


def _read_choices(request: Json, content: Json) -> Json:
    _refuse_others(content, ("choices", "text"))
    options = [option["value"] for option in request.get("options") or ()]
    choices, text = content.get("choices") or [], content.get("text") or ""
    if not isinstance(choices, list) or any(choice not in options for choice in choices):
        raise InvalidInput("content.choices", f"a list of offered values is needed: {', '.join(options) or 'none'}.")
    if len(choices) > 1 and not request.get("multiple"):
        raise InvalidInput("content.choices", "only one can be chosen.")
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidInput("content.text", f"a text of at most {MAX_TEXT} characters is needed.")
    if not choices and not text.strip():
        raise InvalidInput("content", "an answer needs choices or a text; decline to give none.")
    return {"choices": list(dict.fromkeys(choices)), "text": text}


def _read_output(content: Json) -> Json:
    _refuse_others(content, ("output",))
    output = content.get("output")
    if not isinstance(output, str) or len(output) > MAX_OUTPUT:
        raise InvalidInput("content.output", f"a text of at most {MAX_OUTPUT} characters is needed.")
    return {"output": output}


def _refuse_others(content: Json, allowed: Sequence[str]) -> None:
    for name in content:
        if name not in allowed:
            raise InvalidInput(f"content.{name[:80]}", f"not known here; known: {', '.join(allowed) or 'nothing'}.")
