"""Construction of one model request from a definition and a transcript. Pure.

Owns ``system``, ``tools``, the parameters and the notes of a turn. Each request of a session has the previous one as
its prefix: ``system`` and ``tools`` stay those of the first request, messages are only appended (`sent_messages`), and
changes are announced by a note at the end. Knows no store and no clock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import DOWN, GONE, NOTE, Block, Message, ToolSpec, text_block
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.encoded import Settled
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.deferred_tools import CALL, catalogue, list_deferred, many_tokens, shown_tools
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.model_tools import notes_on, sendable_specs, shown_schema, without_references
from agentic_rag.runtime.core.prompt import bootstrap_prompt, is_chinese, present_block, skills_block
from agentic_rag.runtime.core.prompt_state import Prompt, PromptState, note_block
from agentic_rag.runtime.core.sent_messages import CitablePassage, SentMessages, show_pictures
from agentic_rag.runtime.core.window import tokens_of
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.system import ACTION, DELEGATE, SEARCH

LOCAL_USER = "local"
"""User name on a server without API keys; the prompt does not mention this name."""
STARTING = "still starting: a call of its tools waits for it, and tools not listed yet come with the next message"
UNAVAILABLE = "not available now: do not call its tools"
LAST_STEP = "This is your last step: no tool can be called any more. Answer from what you have; say what is open."


NO_PICTURES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class BuiltRequest:
    """A request with the data that its answer is checked against.

    ``passages[i]`` is the passage that the API calls ``search_result_index`` i, or None if nothing there may be cited.
    ``call_ids``: ids of all calls in the request. ``messages``: the state from which the conversation's next request is
    built.
    """

    request: ModelRequest
    passages: tuple[CitablePassage | None, ...]
    call_ids: frozenset[str]
    messages: SentMessages = field(compare=False, repr=False)


def tool_specs(definition: Definition, tools: Iterable[ToolInfo]) -> tuple[ToolSpec, ...]:
    """Return the specs of the tools. The search tool describes the collection, and ``delegate`` lists its roles."""
    return tuple(_tool_spec(definition, tool) for tool in tools)


def _tool_spec(definition: Definition, tool: ToolInfo) -> ToolSpec:
    note, schema = notes_on(definition.model, tool), shown_schema(definition.model, tool)
    if tool.name == SEARCH.name and tool.origin == "builtin":
        note = definition.collection_note
    elif tool.name == DELEGATE.name and tool.origin == "system":
        roles = definition.binding.sub_roles
        lines = [f"- {role}: {definition.role_lines.get(role) or role}" for role in roles]
        note = "\n".join(["The roles:", *lines])
        properties = schema.get("properties", {})
        role = {**properties.get("role", {}), "enum": list(roles)}
        schema = {**schema, "properties": {**properties, "role": role}}
    return ToolSpec(name=tool.name, description=f"{tool.description}\n{note}".strip(), input_schema=schema)


def build_request(
    definition: Definition,
    tools: Sequence[ToolInfo],
    transcript: Sequence[Message],
    *,
    state: PromptState | None = None,
    gone_chunks: Collection[str] = (),
    hidden: Collection[str] = (),
    tool_choice: Json | None = None,
    pictures: Mapping[str, str] = NO_PICTURES,
    before: SentMessages | None = None,
    refused: Collection[str] = (),
) -> BuiltRequest:
    """Build the request of the next step.

    The cost grows with the messages added since ``before`` was built, not with the conversation.

    Args:
        definition: the settings of the turn.
        tools: the turn's tools in stable order.
        transcript: the messages from the window's start, oldest first.
        state: the prompt state of the session, or None before its first request.
        gone_chunks: ids of chunks that no longer exist and cannot be cited. For a Claude model their sentences stay,
            because its earlier messages must not change. For other models `REMOVED` replaces the sentences.
        hidden: ids of documents that the reader may not see. Their names and sentences are replaced for every model.
        tool_choice: None, or an API value. Ignored without tools.
        pictures: base64 of the stored images, by ref. An image that is missing here, or that the model cannot see, is
            described by text.
        before: state of the conversation's last request, which this call uses up. A state that does not fit any more,
            because the model or a message has changed, is replaced by a new one.
        refused: keys of tools' specs that the model's service refused; see `sendable_specs`.
    """
    profile, conversation = profile_of(definition.model), list(transcript)
    if before is None or not before.continues(definition.model, tools, gone_chunks, conversation, hidden):
        before = SentMessages(definition.model, gone_chunks, hidden)
    sent = before.take(conversation, tools)
    show_pictures(sent, pictures if profile.images else None)
    if state is None:
        state = begin_prompt_state(definition, prompt_of(definition, tools), tools)
    # System and tools are those of the session's first request, followed by the tools that came later. The beginning of
    # the request stays the same, so the service's cache stays valid; notes describe what has changed since.
    late = state.late
    if CALL in tools and CALL.name not in state.names:  # a fallback model without deferred tools needs it
        late = (*late, *tool_specs(definition, [CALL]))
    specs = shown_tools(state.first.tools, late, by_service=profile.deferred_tools)
    current = {spec["name"]: spec for spec in _prompt_parts_of(definition, tools).tools}
    sendable = sendable_specs(definition.model, specs, current, refused)
    messages = tuple(sent.messages)
    settled: Settled | None = before.settled
    # A service refuses a reference to a tool that is not in the request. Removing one changes an earlier message.
    if len(sendable) < len(specs) and profile.deferred_tools:
        fewer = without_references(messages, {spec["name"] for spec in sendable})
        if fewer != messages:
            messages, settled = fewer, None
    request = ModelRequest(
        model=definition.model,
        max_tokens=definition.max_tokens,
        system=state.first.system,
        messages=messages,
        tools=sendable,
        tool_choice=tool_choice if sendable else None,
        temperature=definition.temperature,
        thinking=definition.thinking,
        effort=definition.effort,
        settled=settled,
    )
    return BuiltRequest(request, tuple(sent.passages), frozenset(sent.call_ids), before)


def prompt_of(definition: Definition, tools: Sequence[ToolInfo], today: str = "") -> Prompt:
    """Return the prompt for a session that begins now. ``today``: the date."""
    user = definition.binding.user
    present = [present_block(definition.persona, today, "" if user == LOCAL_USER else user)] if today else []
    prompt_parts = _prompt_parts_of(definition, tools)
    return Prompt((*prompt_parts.system, *present), prompt_parts.tools)


def fixed_tokens(definition: Definition, tools: Sequence[ToolInfo]) -> int:
    """Return the approximate tokens of system and tools in every request."""
    return _prompt_parts_of(definition, tools).tokens


@dataclass(frozen=True, slots=True)
class _PromptParts:
    """System blocks and tool specs built from ``parts``, with their tokens."""

    parts: tuple[object, ...]
    system: tuple[Block, ...]
    tools: tuple[ToolSpec, ...]
    tokens: int


MOST_MADE = 512
"""Most cached entries."""
_prompt_parts: dict[tuple[str, str], _PromptParts] = {}
"""Cache by domain and model, most recently used last. From turn to turn a domain's prompt seldom changes."""


def _prompt_parts_of(definition: Definition, tools: Sequence[ToolInfo]) -> _PromptParts:
    """Return the system blocks and tool specs of a definition, from the cache if its inputs are unchanged."""
    key, binding = (definition.domain_id, definition.model), definition.binding
    parts = (definition.persona, definition.collection_note, binding.sub_roles, definition.role_lines, *tools)
    prompt_parts = _prompt_parts.pop(key, None)  # inserted again below, so that the oldest entry is the first
    if prompt_parts is None or prompt_parts.parts != parts:
        deferred = list_deferred(tools, many_tokens(definition.model))
        visible = [tool for tool in tools if tool not in deferred] if deferred else tools
        system, specs = _system(definition, tools), tool_specs(definition, tools)
        shown_specs = tool_specs(definition, visible) if deferred else specs
        prompt_parts = _PromptParts(parts, system, specs, tokens_of([system, shown_specs]))
    _prompt_parts[key] = prompt_parts
    if len(_prompt_parts) > MOST_MADE:
        del _prompt_parts[next(iter(_prompt_parts))]
    return prompt_parts


def begin_prompt_state(definition: Definition, current: Prompt, tools: Sequence[ToolInfo]) -> PromptState:
    """Return the prompt state of a session that begins now."""
    return PromptState.begin(current, {tool.name for tool in list_deferred(tools, many_tokens(definition.model))})


def _system(definition: Definition, tools: Sequence[ToolInfo]) -> tuple[Block, ...]:
    names = [tool.name for tool in tools]
    if not definition.collection_note:  # without documents there is nothing to search; the first document adds the line
        names = [name for name in names if name != SEARCH.name]
    blocks = bootstrap_prompt(definition.persona, names, definition.binding.sub_roles)
    skills = skills_block(definition.persona, names)
    catalogue_text = catalogue(tools, chinese=is_chinese(definition.persona), most=many_tokens(definition.model))
    return (*blocks, *([skills] if skills else ()), *([text_block(catalogue_text)] if catalogue_text else ()))


def servers_back(down: Iterable[str], missing: Collection[str], available: Collection[str]) -> list[str]:
    """Return the servers that can be called again.

    Args:
        down: the servers that the newest note on servers reports as unavailable (`Transcript.down`).
        missing: the servers that are unavailable now.
        available: the servers whose tools the turn has.
    """
    return [name for name in down if name in available and name not in missing]


def turn_notes(
    missing: Mapping[str, bool],
    changed_role: str | None,
    changes: Sequence[str] = (),
    lost_documents: Mapping[str, str] | None = None,
    back: Sequence[str] = (),
) -> list[Block]:
    """Return the notes before a new user message, possibly none.

    Everything that varies by turn goes into these notes, which are stored with the message, so that the prefix stays
    the same.

    Args:
        missing: servers that cannot be called. True means that the server is still starting. The model does not learn
            other reasons.
        changed_role: the role that was edited since its activation.
        changes: changes of the prompt since the session's last request.
        lost_documents: deleted documents with passages in the conversation: id and name.
        back: servers that can be called again.
    """
    notes = [*changes, *(f"the server {name} is back: its tools can be called again" for name in back)]
    for name, starting in missing.items():
        notes.append(f"the server {name} is {STARTING if starting else UNAVAILABLE}")
    if changed_role is not None:
        notes.append(f'the role "{changed_role}" was edited; call {ACTION.name} with role "{changed_role}" again')
    notes += [
        f"the document {name} was deleted: what stands above of it holds no more and cannot be cited"
        for name in (lost_documents or {}).values()
    ]
    if not notes:
        return []
    block = note_block(notes) | {NOTE: True}
    if missing or back:
        block |= {DOWN: list(missing)}
    return [block | {GONE: list(lost_documents)}] if lost_documents else [block]


def last_step_note() -> Block:
    """Return the note for the last step of a turn."""
    return note_block([LAST_STEP]) | {NOTE: True}
