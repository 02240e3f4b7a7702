"""Building one model request from a definition and a transcript. Pure.

Owns what of a transcript is sent, its repair (every ``tool_use`` answered), the map from
``search_result_index`` to passages, and the notes of a turn. ``system`` and ``tools`` are what the session was told
first, messages only grow, and what changes is a note at their end: each request of a session has the previous one as
its prefix. Knows no store and no clock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentic_rag.json_form import Json
from agentic_rag.messages import (
    DOWN,
    GONE,
    MADE_BY,
    NOTE,
    SHED,
    Block,
    Message,
    Passage,
    ToolSpec,
    image_in_words,
    join_neighbours,
    ref_of_image,
    text_block,
    tool_result_block,
    tool_uses,
)
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.profiles import is_claude, profile_of
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.many_tools import (
    CALL,
    catalogue,
    list_deferred,
    many_tokens,
    references_in_words,
    shown_tools,
)
from agentic_rag.runtime.core.prompt import bootstrap_prompt, is_chinese, present_block, skills_block
from agentic_rag.runtime.core.told import Prompt, Told, note_block
from agentic_rag.runtime.core.transcript import as_sent, pictures_in, tokens_of, without_repeats
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.pictures import MOST, count_beyond
from agentic_rag.tools.system import ACTION, DELEGATE, SEARCH

LOCAL_USER = "local"
"""Who asks on a server without keys: nobody's name."""
OUTCOME_UNKNOWN = "outcome unknown: the server stopped while this ran"
REMOVED = "[removed]"
"""What a sentence of a deleted document reads for a model that keeps no cache and no thinking; block counts stay, so
that indexes do."""
STARTING = "still starting: a call of its tools waits for it"
UNAVAILABLE = "not available now: do not call its tools"
LAST_STEP = "This is your last step: no tool can be called any more. Answer from what you have; say what is open."


BLIND = "[this model cannot be shown images]"
NO_PICTURES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class CitablePassage:
    """One ``search_result`` of a request: ``texts[i]`` is its block i. A chunk that is gone has no id."""

    source: Passage
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuiltRequest:
    """``passages[i]`` is what the API calls ``search_result_index`` i; None where nothing may be cited.

    ``call_ids``: of all calls in it.
    """

    request: ModelRequest
    passages: tuple[CitablePassage | None, ...]
    call_ids: frozenset[str]


def tool_specs(definition: Definition, tools: Iterable[ToolInfo]) -> tuple[ToolSpec, ...]:
    """Return the tools as the model sees them: the search tool describes the collection, ``delegate`` its roles."""
    return tuple(_tool_spec(definition, tool) for tool in tools)


def _tool_spec(definition: Definition, tool: ToolInfo) -> ToolSpec:
    note, schema = "", dict(tool.input_schema)
    if tool.name == SEARCH.name and tool.origin == "builtin":
        note = definition.collection_note
    elif tool.name == DELEGATE.name and tool.origin == "system":
        roles = definition.binding.sub_roles
        lines = [f"- {role}: {definition.role_lines.get(role) or role}" for role in roles]
        note = "\n".join(["The roles:", *lines])
        properties = schema.get("properties", {})
        schema["properties"] = {**properties, "role": {**properties.get("role", {}), "enum": list(roles)}}
    return ToolSpec(name=tool.name, description=f"{tool.description}\n{note}".strip(), input_schema=schema)


def build_request(
    definition: Definition,
    tools: Sequence[ToolInfo],
    transcript: Sequence[Message],
    *,
    told: Told | None = None,
    gone: Collection[str] = (),
    tool_choice: Json | None = None,
    pictures: Mapping[str, str] = NO_PICTURES,
) -> BuiltRequest:
    """Build the request of the next step.

    Args:
        definition: what the turn runs on.
        tools: the turn's tools in stable order.
        transcript: the messages from the window's start, oldest first.
        told: what the session was told; None: nothing yet.
        gone: ids of chunks that no longer exist; they cannot be cited. For a Claude, which may be sent nothing
            else than before, their sentences stay where they are; for others they read `REMOVED`.
        tool_choice: None, or an API value; without tools there is no choice to make.
        pictures: base64 of the images that are kept, by ref; one that is missing, or that the model cannot see, is
            told in words.
    """
    profile = profile_of(definition.model)
    transcript = [_without_others(message, definition.model) for message in transcript]
    transcript = _with_pictures(transcript, pictures if profile.images else None)
    if not profile.deferred_tools:
        transcript = [references_in_words(message, tools) for message in transcript]
    stays = is_claude(profile.name)
    sent = without_repeats(answer_calls(transcript), () if stays else gone)
    messages, passages = _render(sent, frozenset(gone), stays=stays)
    if profile.system_messages:
        messages = [each for message in messages for each in _with_system_message(message)]
    if told is None:
        told = begin_told(definition, prompt_of(definition, tools), tools)
    late = told.late
    if CALL in tools and CALL.name not in told.names:  # another model took over that needs it
        late = (*late, *tool_specs(definition, [CALL]))
    specs = shown_tools(told.first.tools, late, by_service=profile.deferred_tools)
    request = ModelRequest(
        model=definition.model,
        max_tokens=definition.max_tokens,
        system=told.first.system,
        messages=tuple(messages),
        tools=specs,
        tool_choice=tool_choice if specs else None,
        temperature=definition.temperature,
        thinking=definition.thinking,
        effort=definition.effort,
    )
    call_ids = frozenset(
        use["id"] for each in messages if each["role"] == "assistant" for use in tool_uses(each["content"])
    )
    return BuiltRequest(request, tuple(passages), call_ids)


def _without_others(message: Message, model: str) -> Message:
    """Return a message without the thinking of other models than the one that is asked: the same where it has none."""
    content = message["content"]
    if all(block.get(MADE_BY, model) == model for block in content):
        return message
    return {"role": message["role"], "content": [block for block in content if block.get(MADE_BY, model) == model]}


def _with_pictures(transcript: Sequence[Message], pictures: Mapping[str, str] | None) -> list[Message]:
    """Return messages with the bytes of their images; None: the model cannot be shown any."""
    sent = [picture for message in transcript for picture in pictures_in(message["content"])]
    # more than may stand together, and none of them seen yet: those that may not are words
    if pictures is not None and count_beyond(sent):
        small = {ref for ref in pictures if not _is_large(ref, transcript)}
        pictures = {ref: pictures[ref] for ref in list(small)[:MOST]}
    return [
        {"role": message["role"], "content": [_with_picture(block, pictures) for block in message["content"]]}
        for message in transcript
    ]


def _is_large(ref: str, transcript: Sequence[Message]) -> bool:
    blocks = (block for message in transcript for block in message["content"])
    parts = (part for block in blocks for part in (block["content"] if block["type"] == "tool_result" else (block,)))
    return any(picture.is_large for part in parts if ref_of_image(part) == ref for picture in pictures_in([part]))


def _with_picture(block: Block, pictures: Mapping[str, str] | None) -> Block:
    """Return a block with the bytes of its images: the same object where it has none."""
    if block["type"] == "tool_result" and any(part["type"] == "image" for part in block["content"]):
        return {**block, "content": [_with_picture(part, pictures) for part in block["content"]]}
    ref = ref_of_image(block)
    if ref is None:
        return block
    if pictures is None:
        return text_block(f"{image_in_words(block)}\n{BLIND}")
    if ref not in pictures:
        return text_block(image_in_words(block))
    source = {"type": "base64", "media_type": block["source"]["media_type"], "data": pictures[ref]}
    return {"type": "image", "source": source}


def prompt_of(definition: Definition, tools: Sequence[ToolInfo], today: str = "") -> Prompt:
    """Return what a session that begins now is told first; ``today``: the date."""
    user = definition.binding.user
    present = [present_block(definition.persona, today, "" if user == LOCAL_USER else user)] if today else []
    made = _made_of(definition, tools)
    return Prompt((*made.system, *present), made.tools)


def fixed_tokens(definition: Definition, tools: Sequence[ToolInfo]) -> int:
    """Return about how many tokens system and tools cost in every request."""
    return _made_of(definition, tools).tokens


@dataclass(frozen=True, slots=True)
class _Made:
    """What system and tools come to that are made of ``parts``."""

    parts: tuple[object, ...]
    system: tuple[Block, ...]
    tools: tuple[ToolSpec, ...]
    tokens: int


MOST_MADE = 512
_made: dict[tuple[str, str], _Made] = {}
"""What domains came to last, by domain and model, the latest last: from turn to turn mostly nothing of it changes."""


def _made_of(definition: Definition, tools: Sequence[ToolInfo]) -> _Made:
    key, binding = (definition.domain_id, definition.model), definition.binding
    parts = (definition.persona, definition.collection_note, binding.sub_roles, definition.role_lines, *tools)
    made = _made.pop(key, None)
    if made is None or made.parts != parts:
        deferred = list_deferred(tools, many_tokens(definition.model))
        shown = [tool for tool in tools if tool not in deferred] if deferred else tools
        system, specs = _system(definition, tools), tool_specs(definition, tools)
        shown_specs = tool_specs(definition, shown) if deferred else specs
        made = _Made(parts, system, specs, tokens_of([system, shown_specs]))
    _made[key] = made
    if len(_made) > MOST_MADE:
        del _made[next(iter(_made))]
    return made


def begin_told(definition: Definition, current: Prompt, tools: Sequence[ToolInfo]) -> Told:
    """Return what a session is told that begins now."""
    return Told.begin(current, {tool.name for tool in list_deferred(tools, many_tokens(definition.model))})


def _with_system_message(message: Message) -> list[Message]:
    """Return a user's message with the notes in it as a system message after it, which nobody else can write."""
    notes = [block for block in message["content"] if NOTE in block]
    if message["role"] != "user" or not notes or len(notes) == len(message["content"]):
        return [message]
    others = [block for block in message["content"] if NOTE not in block]
    return [{"role": "user", "content": others}, {"role": "system", "content": notes}]


def _system(definition: Definition, tools: Sequence[ToolInfo]) -> tuple[Block, ...]:
    names = [tool.name for tool in tools]
    blocks = bootstrap_prompt(definition.persona, names, definition.binding.sub_roles)
    skills = skills_block(definition.persona, names)
    others = catalogue(tools, chinese=is_chinese(definition.persona), most=many_tokens(definition.model))
    return (*blocks, *([skills] if skills else ()), *([text_block(others)] if others else ()))


def answer_calls(transcript: Sequence[Message]) -> list[Message]:
    """Return the transcript joined by role, with a result for every ``tool_use``.

    A transcript cut at any point (a crash, a kill) stays sendable: calls without a result get one that says
    that the outcome is unknown. Results without a call, which only a moved window can leave, are dropped.
    """
    merged = join_neighbours(transcript)
    result: list[Message] = []
    open_ids: list[str] = []
    for message in merged:
        if message["role"] == "user":
            message = _with_results(message, open_ids)
            open_ids = []
            if not message["content"]:
                continue
        elif not result:  # a request begins with a user: an answer whose question is gone goes too
            continue
        if message["role"] == "assistant":
            open_ids = [block["id"] for block in tool_uses(message["content"])]
        result.append(message)
    if open_ids:
        result.append({"role": "user", "content": [_unknown(ident) for ident in open_ids]})
    return result


def _with_results(message: Message, open_ids: Sequence[str]) -> Message:
    if not open_ids and all(block["type"] != "tool_result" for block in message["content"]):
        return message
    present = {
        block["tool_use_id"]: block
        for block in message["content"]
        if block["type"] == "tool_result" and block["tool_use_id"] in open_ids
    }
    results = [present.get(ident) or _unknown(ident) for ident in open_ids]
    return {"role": "user", "content": results + [b for b in message["content"] if b["type"] != "tool_result"]}


def _unknown(tool_use_id: str) -> Block:
    return tool_result_block(tool_use_id, [text_block(OUTCOME_UNKNOWN)], is_error=True)


def _render(
    messages: list[Message], gone: frozenset[str], *, stays: bool
) -> tuple[list[Message], list[CitablePassage | None]]:
    passages: list[CitablePassage | None] = []
    for message in messages:
        if message["role"] != "user":
            continue
        for position, block in enumerate(message["content"]):
            if block["type"] != "tool_result":
                continue
            block = message["content"][position] = as_sent(block)
            content = block["content"]
            if not any(part["type"] == "search_result" for part in content):
                continue
            rendered: list[Block] = []
            for part in content:  # in their order: a delegate's words come before its passages
                if part["type"] == "search_result":
                    part, passage = _search_result(part, gone, stays=stays)
                    passages.append(passage)
                rendered.append(part)
            message["content"][position] = {**block, "content": rendered}
    return messages, passages


def _search_result(block: Block, gone: frozenset[str], *, stays: bool) -> tuple[Block, CitablePassage | None]:
    passage = Passage.of(block)
    if passage is None:
        return block, None
    if not gone.isdisjoint(passage.chunk_ids):
        lost = all(chunk in gone for chunk in passage.chunk_ids)
        if not stays:
            content = [
                text_block(REMOVED) if chunk in gone else part
                for chunk, part in zip(passage.chunk_ids, block["content"], strict=True)
            ]
            block = {**block, "content": content, **({"title": REMOVED} if lost else {})}
        if lost:
            return block, None
        passage = replace(passage, chunk_ids=tuple("" if chunk in gone else chunk for chunk in passage.chunk_ids))
    return block, CitablePassage(passage, tuple(part["text"] for part in block["content"]))


def lost_documents(transcript: Iterable[Message], gone: Collection[str]) -> dict[str, str]:
    """Return the documents all of whose sentences in a transcript are gone and of which no note tells: id and name."""
    found: dict[str, str] = {}
    known: set[str] = set()
    for message in transcript:
        for block in message["content"]:
            known.update(block.get(GONE, ()))
            if block["type"] != "tool_result" or SHED in block:
                continue
            for part in block["content"]:
                passage = Passage.of(part)
                if passage is not None and passage.chunk_ids and all(chunk in gone for chunk in passage.chunk_ids):
                    found[passage.document_id] = passage.document_name
    return {ident: name for ident, name in found.items() if ident not in known}


def servers_back(transcript: Sequence[Message], missing: Collection[str], known: Collection[str]) -> list[str]:
    """Return the servers that the newest note on servers says cannot be called, and that can be now.

    ``missing``: servers that cannot; ``known``: those that the domain has.
    """
    for message in reversed(transcript):
        for block in reversed(message["content"]):
            if DOWN in block:
                return [name for name in block[DOWN] if name in known and name not in missing]
    return []


def turn_notes(
    missing: Mapping[str, bool],
    changed_role: str | None,
    changes: Sequence[str] = (),
    lost: Mapping[str, str] | None = None,
    back: Sequence[str] = (),
) -> list[Block]:
    """Return the notes that come with a new user message, possibly none.

    Whatever varies by turn stands here and is stored with the message, so that the prefix stays the same.

    Args:
        missing: servers that cannot be called; True: one is still starting. Why, is not the model's to know.
        changed_role: the role that was edited since it was activated.
        changes: what holds since the session was told last.
        lost: deleted documents whose passages stand in the conversation: id and name.
        back: servers that can be called again.
    """
    notes = [*changes, *(f"the server {name} is back: its tools can be called again" for name in back)]
    for name, starting in missing.items():
        notes.append(f"the server {name} is {STARTING if starting else UNAVAILABLE}")
    if changed_role is not None:
        notes.append(f'the role "{changed_role}" was edited; call {ACTION.name} with role "{changed_role}" again')
    notes += [
        f"the document {name} was deleted: what stands above of it holds no more and cannot be cited"
        for name in (lost or {}).values()
    ]
    if not notes:
        return []
    block = note_block(notes) | {NOTE: True}
    if missing or back:
        block |= {DOWN: list(missing)}
    return [block | {GONE: list(lost)}] if lost else [block]


def last_step_note() -> Block:
    """Return the note with which a turn's last step is asked for."""
    return note_block([LAST_STEP]) | {NOTE: True}
