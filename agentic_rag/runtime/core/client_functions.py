"""Functions that a client's program runs for the model. Pure.

A client of OpenAI's API or of Open Responses offers functions with its question. The model calls them like tools. The
call is stored as a wait, the turn pauses, and the client's next request brings the result. This module owns the tools
that stand for the functions, the checks of a client's list, the outcome of a call for the model, and the detection of
a pause in a turn's events.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import AgentEvent, ToolStatus, WaitAction, WaitKind
from agentic_rag.base.ids import WaitId
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.base.messages import text_block
from agentic_rag.runtime.core.arguments import find_problem
from agentic_rag.runtime.core.definition import ClientFunction, Definition
from agentic_rag.runtime.core.model_tools import adapt_for
from agentic_rag.tools.base import CallOutcome, InputGiven, InputNeeded, ToolInfo
from agentic_rag.tools.listing import owner_of
from agentic_rag.tools.schema_compat import RefusedSchema
from agentic_rag.tools.system import BY_NAME, CLIENT

JsonSchema = Mapping[str, Any]

MAX_FUNCTIONS = 128
MAX_DEFINITIONS = 200_000
"""Maximum characters of all descriptions and schemas."""
FORM_FUNCTION = "answer_in_form"
FORM_DESCRIPTION = "Give the final answer. Call this once, when you have found all you need."
KEYLESS_MODEL = "extractive"
ANY_FUNCTION = "required"
"""The choice of a client that wants any of its functions to be called."""

_WATCHED = frozenset({"tool_call", "tool_result", "input_required"})


@dataclass(frozen=True, slots=True)
class ClientFunctions:
    """The functions that come with a question.

    ``choice``: the name of the function that the model is asked to call, `ANY_FUNCTION`, or empty. ``form``: the JSON
    Schema of the answer that the client wants, or None for text. The model fills it in as arguments of `FORM_FUNCTION`.
    """

    offered: tuple[ClientFunction, ...] = ()
    choice: str = ""
    form: JsonSchema | None = None

    @property
    def all(self) -> tuple[ClientFunction, ...]:
        """The offered functions, and the one that stands for the form."""
        if self.form is None:
            return self.offered
        return (*self.offered, ClientFunction(FORM_FUNCTION, FORM_DESCRIPTION, self.form))

    @classmethod
    def of(cls, definition: Definition) -> "ClientFunctions":
        """Return the functions of a definition; reverses `with_functions`."""
        functions = definition.functions or ()
        form = next((function.parameters for function in functions if function.name == FORM_FUNCTION), None)
        offered = tuple(function for function in functions if function.name != FORM_FUNCTION)
        return cls(offered, definition.function_choice or "", form)


NO_FUNCTIONS = ClientFunctions()


def client_tools(definition: Definition, other_tools: Iterable[ToolInfo]) -> tuple[ToolInfo, ...]:
    """Return the client's functions as tools, without those whose name one of the ``other_tools`` has."""
    used_names = {tool.name for tool in other_tools}
    return tuple(
        ToolInfo(
            name=function.name,
            remote_name=function.name,
            server=CLIENT,
            origin="user",
            description=function.description,
            input_schema=function.parameters,
            idempotent=True,  # the call itself only asks the client
        )
        for function in definition.functions or ()
        if function.name not in used_names
    )


def check_function_name(path: str, name: str, servers: Collection[str]) -> None:
    """Check that a name is not that of a tool of this server.

    Raises:
        InvalidInput: the server has, or may have, a tool of this name. ``servers`` are the domain's MCP servers.
    """
    if name in BY_NAME or name == FORM_FUNCTION:
        raise InvalidInput(path, f"{name!r} is a tool of this server, which runs it itself: use another name.")
    server = owner_of(name, servers)
    if server is not None:
        problem = f"{name!r} is a name of a tool of the MCP server {server!r}, which this server calls itself"
        raise InvalidInput(path, f"{problem}: use another name.")


def with_functions(definition: Definition, client_functions: ClientFunctions) -> Definition:
    """Add a client's functions to the definition of one turn.

    Raises:
        InvalidInput: there are too many functions, the domain's model cannot be shown one of them, or it cannot fill in
            a form.
    """
    functions, choice = client_functions.all, client_functions.choice
    if not functions:
        return definition
    if client_functions.form is not None and definition.model == KEYLESS_MODEL:
        raise InvalidInput("response_format", "the model without a key quotes passages and cannot fill in a form.")
    if len(functions) > MAX_FUNCTIONS:
        raise InvalidInput("tools", f"{len(functions)} functions; at most {MAX_FUNCTIONS} are possible.")
    size = sum(len(function.description) + len(to_text(function.parameters)) for function in functions)
    if size > MAX_DEFINITIONS:
        raise InvalidInput("tools", f"{size} characters of descriptions and schemas; at most {MAX_DEFINITIONS}.")
    for at, function in enumerate(functions):
        adapted = adapt_for(definition.model, function.parameters)
        if isinstance(adapted, RefusedSchema):
            raise InvalidInput(f"tools.{at}.parameters", f"{definition.model} cannot be shown it: {adapted.reason}.")
    if choice == ANY_FUNCTION and len(client_functions.offered) == 1:
        choice = client_functions.offered[0].name
    return replace(definition, functions=functions, function_choice=choice or None)


def function_note(client_functions: ClientFunctions) -> str:
    """Return the requests to the model to call functions, since not every model accepts forced calls."""
    choice, names = client_functions.choice, [function.name for function in client_functions.offered]
    notes = []
    if choice == ANY_FUNCTION and len(names) > 1:
        notes.append(f"Before you answer, call at least one of these functions: {', '.join(names)}.")
    elif choice:
        notes.append(f"Before you answer, call the function {names[0] if choice == ANY_FUNCTION else choice}.")
    if client_functions.form is not None:
        notes.append(f"Give your answer only as the arguments of {FORM_FUNCTION}, and write no other text.")
    return "\n".join(notes)


def forced_choice(definition: Definition, called: Collection[str]) -> Json | None:
    """Return the ``tool_choice`` of a step. ``called`` are the tools that the turn has called."""
    choice = definition.function_choice
    if not choice or any(function.name in called for function in definition.functions or ()):
        return None
    return {"type": "any"} if choice == ANY_FUNCTION else {"type": "tool", "name": choice}


def function_request(name: str) -> InputNeeded:
    """Return the request to the client for the result of a call."""
    message = "The program that sent the question runs this function and sends its result."
    return InputNeeded(WaitKind.FUNCTION, f"Waiting for {name}", message)


def function_outcome(answer: InputGiven) -> CallOutcome:
    """Return the client's result as the outcome of the call."""
    if answer.action is not WaitAction.ACCEPT:
        reason = answer.content.get("reason")
        why = f": {reason[:500]}" if isinstance(reason, str) and reason.strip() else ""
        text = f"The client gave no result ({answer.action.value}){why}. Go on without."
        return CallOutcome(ToolStatus.ERROR, (text_block(text),))
    return CallOutcome(ToolStatus.OK, (text_block(str(answer.content["output"])),))


class FunctionPauses:
    """Finds in the events of a turn where it pauses: all of its running calls wait for the client's results.

    The parts of a turn between its pauses are separate answers to the client. ``muted`` is True for events before the
    wanted part: the one after the pause with the waits ``answered``, or the part number ``wanted``, counted from 0.
    """

    def __init__(self, answered: Collection[WaitId] = (), wanted_part: int = 0) -> None:
        self.part = 0
        """Number of the current part."""
        self.spent: Json = {}
        """The usage of the turn until its last pause."""
        self._answered = frozenset(answered)
        self._wanted = wanted_part
        self._running: set[str] = set()
        self._open_calls: dict[str, Json] = {}
        self._shown: set[str] = set()

    @property
    def muted(self) -> bool:
        return bool(self._answered) or self.part < self._wanted

    def take(self, event: AgentEvent, fields: Json | None = None) -> tuple[Json, ...]:
        """Process an event. Returns the ``input_required`` events at which the wanted part pauses, else nothing."""
        if event.type not in _WATCHED:
            return ()
        fields = event.fields() if fields is None else fields
        if fields.get("agent"):
            return ()
        call = fields.get("toolCallId", "")
        match event.type:
            case "tool_call":
                self._running.add(call)
            case "tool_result":
                self._running.discard(call)
                self._open_calls.pop(call, None)
            case _ if fields["kind"] == WaitKind.FUNCTION:
                self._open_calls[call] = fields
        new = tuple(event for event in self._open_calls.values() if event["waitId"] not in self._shown)
        if not new or not self._running <= self._open_calls.keys():
            return ()
        waits = {event["waitId"] for event in new}
        self._shown |= waits
        was_muted = self.muted
        self.part += 1
        self.spent = new[-1].get("usage") or {}
        if self._answered & waits:
            self._answered = frozenset()
            self._wanted = self.part
        return () if was_muted else new


def form_answer(pauses: Iterable[Json]) -> str | None:
    """Return the filled-in form as JSON text if a pause is the end of an answer in a form, else None."""
    return next((to_text(pause.get("arguments") or {}) for pause in pauses if pause["toolName"] == FORM_FUNCTION), None)


def form_in_text(text: str, form: JsonSchema) -> str | None:
    """Return the JSON object in a text if it fits a form, else None: some models write it instead of calling."""
    try:
        value = orjson.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return None
    return to_text(value) if find_problem(form, value, user=True) is None else None


def function_call(pause: Json) -> Json:
    """Return id, name and arguments (as JSON text) of a call for the client. The id is that of the wait."""
    return {"id": pause["waitId"], "name": pause["toolName"], "arguments": to_text(pause.get("arguments") or {})}
