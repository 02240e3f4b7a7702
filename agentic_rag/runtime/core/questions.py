"""The agent's own tool ``ask_user``: a question to the user during a turn. Pure.

Owns `ASK_TOOL`, the conversion of its arguments to a question, and the text of the answer for the model.
"""

from agentic_rag.base.events import Option, ToolStatus, WaitAction, WaitKind
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.base.messages import text_block
from agentic_rag.tools.base import CallOutcome, InputGiven, InputNeeded, ToolInfo
from agentic_rag.tools.system import ASK_USER

MAX_OPTIONS = 20

ASK_TOOL = ToolInfo(
    name=ASK_USER.name,
    remote_name=ASK_USER.name,
    server=ASK_USER.server,
    origin=ASK_USER.origin,
    description="Ask the user what only they can say, and wait. Not for what tools can find.",
    input_schema={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": 2_000},
            "options": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 200},
                "minItems": 2,
                "maxItems": MAX_OPTIONS,
                "description": "Answers to choose from; others stay possible.",
            },
            "multiple": {"type": "boolean", "description": "Several options may be chosen."},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
    read_only=True,
)


def question_of(arguments: Json) -> InputNeeded:
    """Return the question to the user from the tool's arguments."""
    options = tuple(Option(text, text) for text in dict.fromkeys(arguments.get("options") or ()))
    return InputNeeded(
        WaitKind.QUESTION,
        "The assistant asks",
        arguments["question"],
        options=options,
        multiple=bool(arguments.get("multiple")),
    )


def answer_of(answer: InputGiven) -> CallOutcome:
    """Return the user's answer as a tool outcome for the model."""
    if answer.action is not WaitAction.ACCEPT:
        text = f"The user gave no answer ({answer.action.value}). Go on with what you know, and say what you assumed."
        return CallOutcome(ToolStatus.ERROR, (text_block(text),))
    chosen, words = answer.content.get("choices") or [], answer.content.get("text", "")
    parts = [f"The user chose: {to_text(chosen)}"] if chosen else []
    parts += [f"The user answered: {words}"] if words else []
    return CallOutcome(ToolStatus.OK, (text_block("\n".join(parts) or "The user answered nothing."),))
