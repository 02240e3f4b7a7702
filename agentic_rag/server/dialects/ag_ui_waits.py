"""Translate waits to AG-UI interrupts, and entries of ``resume`` to answers.

`agentic_rag.conversations.waits` checks the rights and the answers. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import WaitAction, WaitKind
from agentic_rag.base.json_form import Json

_SHOWN = ("title", "answerer", "server", "toolName", "arguments", "url", "options", "multiple", "warning", "sources")
_TEXT: Final[Json] = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Resumption:
    """One entry of ``resume``; ``at`` is its index in the list."""

    at: int
    wait_id: str
    cancelled: bool
    payload: object

    def answer(self, kind: WaitKind) -> tuple[WaitAction, Json]:
        """Return its answer to a wait of this kind.

        Raises:
            InvalidInput: the payload is not valid.
        """
        payload = self.payload
        if self.cancelled:
            return WaitAction.CANCEL, _reason_of(payload)
        if kind is WaitKind.QUESTION and isinstance(payload, str):
            return WaitAction.ACCEPT, {"text": payload}
        if kind is WaitKind.APPROVAL and isinstance(payload, bool):
            payload = {"approved": payload}
        if payload is None:
            payload = {}
        if not isinstance(payload, Mapping):
            raise InvalidInput(f"resume.{self.at}.payload", "a JSON object is expected, as responseSchema has it.")
        if kind is not WaitKind.APPROVAL:
            return WaitAction.ACCEPT, dict(payload)
        approved = payload.get("approved", True)
        if not isinstance(approved, bool):
            raise InvalidInput(f"resume.{self.at}.payload.approved", "true or false is expected.")
        if not approved:
            return WaitAction.DECLINE, _reason_of(payload)
        return WaitAction.ACCEPT, {name: value for name, value in payload.items() if name not in ("approved", "reason")}


def show_interrupt(fields: Json, subagent: Json) -> Json:
    """Return an ``input_required`` event as an interrupt. ``subagent`` is the field that names a delegate."""
    call = fields.get("toolCallId")
    return {
        **subagent,
        "id": fields["waitId"],
        "reason": fields["kind"],
        "message": fields["message"],
        **({"toolCallId": call} if call else {}),
        "responseSchema": _schema_of(fields),
        "expiresAt": fields["expiresAt"],
        "metadata": {name: fields[name] for name in _SHOWN if fields.get(name) is not None},
    }


def _schema_of(fields: Json) -> Json:
    """Return the JSON Schema of the payload that answers a wait."""
    match fields["kind"]:
        case WaitKind.APPROVAL:
            properties: Json = {
                "approved": {"type": "boolean"},
                "arguments": fields.get("schema") or {"type": "object"},
                "scope": {"type": "string", "enum": ["once", "conversation"]},
                "reason": _TEXT,
            }
        case WaitKind.FORM:
            return dict(fields.get("schema") or {"type": "object"})
        case WaitKind.QUESTION:
            values = [option["value"] for option in fields.get("options") or ()]
            chosen: Json = {"type": "array", "items": {"type": "string", "enum": values}}
            if not fields.get("multiple"):
                chosen["maxItems"] = 1
            properties = {**({"choices": chosen} if values else {}), "text": _TEXT}
        case WaitKind.FUNCTION:
            properties = {"output": _TEXT}
        case _:
            properties = {}
    return {"type": "object", "properties": properties}


def _reason_of(payload: object) -> Json:
    """Return the content of an answer that does not accept."""
    reason = payload.get("reason") if isinstance(payload, Mapping) else None
    return {} if reason is None else {"reason": reason}
