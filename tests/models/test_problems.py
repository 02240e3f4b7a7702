"""The fakes' refusals, rule by rule, and the two liberties that the API grants."""

import base64
from collections.abc import Callable
from typing import Any

import pytest

from agentic_rag.testing.problems import problems, sign

JSON = dict[str, Any]

TOOL: JSON = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
RESULT: JSON = {
    "type": "search_result",
    "source": "doc_1",
    "title": "Doc",
    "content": [{"type": "text", "text": "One."}],
    "citations": {"enabled": True},
}


def text(value: Any) -> JSON:
    return {"type": "text", "text": value}


def tool_use(call_id: str = "toolu_1", name: str = "look") -> JSON:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def tool_result(call_id: str = "toolu_1", content: Any = "found") -> JSON:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def user(*blocks: JSON) -> JSON:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: JSON) -> JSON:
    return {"role": "assistant", "content": list(blocks)}


def request(*messages: JSON, **parameters: Any) -> JSON:
    """Return a request to an unlisted model, for which only the common rules apply."""
    return {"model": "m", "max_tokens": 5, "messages": list(messages or [user(text("hi"))]), **parameters}


def turn(*content: JSON, results: list[JSON] | None = None, **parameters: Any) -> JSON:
    """Return a request in which the model used a tool."""
    results_message = user(*(results if results is not None else [tool_result()]))
    return request(
        user(text("hi")), assistant(*(content or [tool_use()])), results_message, **{"tools": [TOOL], **parameters}
    )


THINKING: JSON = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}


@pytest.mark.parametrize(
    "body",
    [
        request(),
        request({"role": "user", "content": "hi"}),
        request(system="be brief", stream=True, stop_sequences=["END"]),
        request(system=[{**text("be brief"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]),
        turn(),
        turn(THINKING, text("I look."), tool_use(), thinking={"type": "adaptive"}),
        turn({"type": "redacted_thinking", "data": "x"}, tool_use()),
        turn(tool_use("a"), tool_use("b"), results=[tool_result("b"), tool_result("a"), text("and?")]),
        turn(results=[tool_result(content=[text("see"), RESULT])]),
        turn(results=[{"type": "tool_result", "tool_use_id": "toolu_1"}]),
        turn(results=[{**tool_result(content=[text("no")]), "is_error": True}]),
        turn(tool_choice={"type": "none"}),
        turn(tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True}),
        request(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000),
        request(user(RESULT, text("which?"))),
        request(user({**RESULT, "citations": {"enabled": False}}, {**RESULT, "citations": None})),
        request(user({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, text("what?"))),
    ],
)
def test_a_request_the_api_accepts_has_no_problems(body: JSON) -> None:
    assert problems(body) == []


def test_adjacent_messages_of_one_role_are_joined() -> None:
    messages = [
        user(text("a")),
        user(text("b")),
        assistant(text("c")),
        assistant(tool_use()),
        user(tool_result()),
        user(text("d")),
    ]
    assert problems(request(*messages, tools=[TOOL])) == []


def test_an_old_turn_can_contain_a_tool_that_is_no_longer_offered() -> None:
    assert problems(turn(tool_use(name="gone_long_ago"))) == []


def test_private_data_of_tools_can_look_like_a_breakpoint() -> None:
    use = {**tool_use(), "input": {"cache_control": 1, "content": [{"cache_control": 2}] * 9}}
    assert problems(turn(use)) == []


HEADER = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
END = b"\0\0\0\0IEND\xaeB`\x82"


def picture(data: bytes = HEADER + (8).to_bytes(4, "big") * 2 + END, kind: str = "image/png") -> JSON:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}}


PNG = picture()
HUGE = HEADER + (8_001).to_bytes(4, "big") * 2
LATE: JSON = {"name": "late", "description": "Comes late.", "input_schema": {"type": "object"}, "defer_loading": True}
REFERENCE: JSON = {"type": "tool_reference", "tool_name": "late"}
LOCATION: JSON = {
    "type": "search_result_location",
    "cited_text": "One.",
    "search_result_index": 0,
    "source": "doc_1",
    "title": "Doc",
    "start_block_index": 0,
    "end_block_index": 1,
}


def cited_request(**changes: Any) -> JSON:
    cited_block = {**text("So."), "citations": [{**LOCATION, **changes}]}
    return request(user(RESULT), assistant(cited_block), user(text("and?")))


CACHED = {"type": "ephemeral"}
FIVE = [{**text(str(number)), "cache_control": CACHED} for number in range(5)]

REFUSED: list[tuple[str, Any, str]] = [
    ("no object", [], "request: must be a JSON object"),
    ("unknown top-level key", request(temperature=0.5), "temperature: Extra inputs"),
    ("no model", {"max_tokens": 1, "messages": [user(text("x"))]}, "model: Field required"),
    ("blank model", request(model=" "), "model: "),
    ("no max_tokens", {"model": "m", "messages": [user(text("x"))]}, "max_tokens: Field required"),
    ("max_tokens 0", request(max_tokens=0), "max_tokens: "),
    ("max_tokens true", request(max_tokens=True), "max_tokens: "),
    ("no messages", {"model": "m", "max_tokens": 1}, "messages: Field required"),
    ("empty messages", {"model": "m", "max_tokens": 1, "messages": []}, "messages: at least one"),
    ("messages no list", {"model": "m", "max_tokens": 1, "messages": "hi"}, "messages: at least one"),
    ("stream no boolean", request(stream="yes"), "stream: "),
    ("blank stop sequence", request(stop_sequences=[" "]), "stop_sequences: "),
    ("message no object", request("hi"), "messages.0: "),  # type: ignore[arg-type]
    ("message with a further key", request({**user(text("x")), "id": 1}), "messages.0.id: Extra inputs"),
    ("unknown role", request({"role": "tool", "content": "x"}), "messages.0.role: "),
    ("system first", request({"role": "system", "content": "x"}), "messages.0: use the top-level 'system'"),
    (
        "system before a user",
        request(user(text("a")), {"role": "system", "content": "x"}, user(text("b"))),
        "messages.1: role 'system' must precede an 'assistant' message or end the array",
    ),
    (
        "system after an answer",
        request(user(text("a")), assistant(text("b")), {"role": "system", "content": "x"}),
        "messages.2: role 'system' must follow a 'user' message",
    ),
    (
        "blank system message",
        request(user(text("a")), {"role": "system", "content": [text(" ")]}),
        "messages.1.content.0.text: ",
    ),
    (
        "an image in a system message",
        request(user(text("a")), {"role": "system", "content": [PNG]}),
        "messages.1.content",
    ),
    ("no content", request({"role": "user"}), "messages.0.content: "),
    ("empty content", request(user()), "messages.0.content: all messages must have non-empty"),
    ("first message not user", request(assistant(text("a")), user(text("b"))), "messages.0.role: first message"),
    (
        "last message assistant",
        request(user(text("a")), assistant(text("b"))),
        "messages.1.content.0: the conversation",
    ),
    ("empty text", request(user(text(""))), "messages.0.content.0.text: text content blocks must be non-empty"),
    ("blank text", request(user(text(" \n"))), "messages.0.content.0.text: text content blocks must contain"),
    ("blank string", request({"role": "user", "content": " "}), "messages.0.content: text content"),
    ("blank system", request(system=" "), "system: text content"),
    ("blank system block", request(system=[text("")]), "system.0.text: text content"),
    ("system of another type", request(system=[RESULT]), "system.0.type: "),
    ("text no string", request(user(text(3))), "messages.0.content.0.text: Input should be a valid string"),
    ("citations no list", request(user({**text("x"), "citations": {}})), "messages.0.content.0.citations: "),
    ("unknown block type", request(user({"type": "audio"})), "messages.0.content.0.type: "),
    ("block no object", request(user("x")), "messages.0.content.0.type: "),  # type: ignore[arg-type]
    ("a private key", request(user({**text("x"), "_passage": 1})), "messages.0.content.0._passage: Extra inputs"),
    ("tool_use by the user", request(user(tool_use()), tools=[TOOL]), "messages.0.content.0.type: "),
    ("tool_result by the assistant", turn(tool_result()), "messages.1.content.0.type: "),
    ("image without source", request(user({"type": "image"})), "messages.0.content.0.source: Field required"),
    ("image with odd source", request(user({"type": "image", "source": {}})), "messages.0.content.0.source.type: "),
    # thinking
    (
        "no signature",
        turn({"type": "thinking", "thinking": "x"}, tool_use()),
        "messages.1.content.0.signature: Field required",
    ),
    ("wrong signature", turn({**THINKING, "signature": "x"}, tool_use()), "messages.1.content.0: Invalid `signature`"),
    (
        "changed thinking",
        turn({**THINKING, "thinking": "hmm"}, tool_use()),
        "messages.1.content.0: Invalid `signature`",
    ),
    ("thinking no string", turn({**THINKING, "thinking": 1}, tool_use()), "messages.1.content.0.thinking: "),
    (
        "redacted without data",
        turn({"type": "redacted_thinking", "data": ""}, tool_use()),
        "messages.1.content.0.data: ",
    ),
    (
        "message ends in thinking",
        request(user(text("a")), assistant(text("b"), THINKING), user(text("c"))),
        "messages.1.content.1: The final block",
    ),
    (
        "breakpoint on thinking",
        turn({**THINKING, "cache_control": CACHED}, tool_use()),
        "messages.1.content.0.cache_control: ",
    ),
    ("unknown thinking", request(thinking={"type": "deep"}), "thinking.type: "),
    ("thinking budget", request(thinking={"type": "enabled", "budget_tokens": 9}), "thinking.budget_tokens: "),
    # tool use and results
    (
        "no result",
        request(user(text("a")), assistant(tool_use()), user(text("b")), tools=[TOOL]),
        "messages.1.content.0: `tool_use`",
    ),
    (
        "one of two results missing",
        turn(tool_use("a"), tool_use("b"), results=[tool_result("a")]),
        "messages.1.content.1: `tool_use` id 'b'",
    ),
    (
        "result a turn late",
        request(
            user(text("a")),
            assistant(tool_use()),
            user(text("b")),
            assistant(text("c")),
            user(tool_result()),
            tools=[TOOL],
        ),
        "messages.1.content.0: `tool_use`",
    ),
    (
        "result after text",
        turn(results=[text("so"), tool_result()]),
        "messages.2.content.1: `tool_result` blocks must come first",
    ),
    (
        "result after the text of a joined neighbour",
        request(user(text("a")), assistant(tool_use()), user(text("b")), user(tool_result()), tools=[TOOL]),
        "messages.3.content.0: `tool_result` blocks must come first",
    ),
    (
        "unknown result id",
        turn(results=[tool_result(), tool_result("x")]),
        "messages.2.content.1.tool_use_id: unexpected id 'x'",
    ),
    ("result at the start", request(user(tool_result()), tools=[TOOL]), "messages.0.content.0.tool_use_id: unexpected"),
    (
        "doubled result",
        turn(results=[tool_result(), tool_result()]),
        "messages.2.content.1.tool_use_id: each `tool_use`",
    ),
    ("doubled use id", turn(tool_use(), tool_use()), "messages.1.content.1.id: `tool_use` ids must be unique"),
    (
        "use id of an older turn",
        request(
            user(text("a")),
            assistant(tool_use()),
            user(tool_result()),
            assistant(tool_use()),
            user(tool_result()),
            tools=[TOOL],
        ),
        "messages.3.content.0.id: `tool_use` ids must be unique",
    ),
    (
        "use without input",
        turn({"type": "tool_use", "id": "a", "name": "look"}),
        "messages.1.content.0.input: Field required",
    ),
    ("input no object", turn({**tool_use(), "input": []}), "messages.1.content.0.input: "),
    (
        "use id off the pattern",
        turn(tool_use("a b"), results=[tool_result("a b")]),
        "messages.1.content.0.id: String should match",
    ),
    ("use name off the pattern", turn(tool_use(name="a b")), "messages.1.content.0.name: String should match"),
    ("result id no string", turn(results=[tool_result(1)]), "messages.2.content.0.tool_use_id: "),  # type: ignore[arg-type]
    ("blank result", turn(results=[tool_result(content=" ")]), "messages.2.content.0.content: text content"),
    (
        "blank text in a result",
        turn(results=[tool_result(content=[text("")])]),
        "messages.2.content.0.content.0.text: ",
    ),
    (
        "tool use in a result",
        turn(results=[tool_result(content=[tool_use("b")])]),
        "messages.2.content.0.content.0.type: ",
    ),
    ("is_error no boolean", turn(results=[{**tool_result(), "is_error": 1}]), "messages.2.content.0.is_error: "),
    (
        "error with a search result",
        turn(results=[{**tool_result(content=[text("no"), RESULT]), "is_error": True}]),
        "messages.2.content.0.content: all content must be type `text`",
    ),
    ("tool use without tools", turn(tools=[]), "tools: Requests which have `tool_use`"),
    # tools
    ("tools no list", request(tools={}), "tools: "),
    ("tool no object", request(tools=["look"]), "tools.0: "),
    ("tool name off the pattern", request(tools=[{**TOOL, "name": "look.up"}]), "tools.0.name: String should match"),
    ("tool name too long", request(tools=[{**TOOL, "name": "x" * 65}]), "tools.0.name: String should match"),
    ("tool name with a line end", request(tools=[{**TOOL, "name": "look\n"}]), "tools.0.name: String should match"),
    ("doubled tool", request(tools=[TOOL, TOOL]), "tools.1.name: Tool names must be unique"),
    ("no schema", request(tools=[{"name": "look"}]), "tools.0.input_schema: "),
    ("schema no object", request(tools=[{**TOOL, "input_schema": True}]), "tools.0.input_schema: "),
    (
        "schema not of an object",
        request(tools=[{**TOOL, "input_schema": {"type": "array"}}]),
        "tools.0.input_schema.type: ",
    ),
    ("description no string", request(tools=[{**TOOL, "description": None}]), "tools.0.description: "),
    ("tool with a further key", request(tools=[{**TOOL, "server": "x"}]), "tools.0.server: Extra inputs"),
    ("tool_choice without tools", request(tool_choice={"type": "auto"}), "tool_choice: may only be specified"),
    ("unknown tool_choice", request(tools=[TOOL], tool_choice={"type": "some"}), "tool_choice.type: "),
    (
        "tool_choice of no tool",
        request(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}),
        "tool_choice.name: Tool 'x'",
    ),
    (
        "odd key in tool_choice",
        request(tools=[TOOL], tool_choice={"type": "none", "name": "x"}),
        "tool_choice.name: Extra",
    ),
    (
        "forced tool while thinking",
        request(tools=[TOOL], tool_choice={"type": "any"}, thinking={"type": "adaptive"}),
        "tool_choice: Thinking may not be enabled",
    ),
    # search results
    ("search result without title", request(user({**RESULT, "title": ""})), "messages.0.content.0.title: "),
    ("search result without content", request(user({**RESULT, "content": []})), "messages.0.content.0.content: "),
    (
        "search result of images",
        request(user({**RESULT, "content": [RESULT]})),
        "messages.0.content.0.content.0.type: ",
    ),
    ("blank sentence", request(user({**RESULT, "content": [text(" ")]})), "messages.0.content.0.content.0.text: "),
    ("citations no setting", request(user({**RESULT, "citations": True})), "messages.0.content.0.citations.enabled: "),
    (
        "citations on some results only",
        turn(results=[tool_result(content=[RESULT, {**RESULT, "citations": {"enabled": False}}])]),
        "messages.2.content.0.content.1.citations: must be enabled on all",
    ),
    # cache breakpoints
    ("five breakpoints", request(user(*FIVE)), "messages.0.content.4.cache_control: A maximum of 4"),
    (
        "the fifth inside a result",
        turn(system=FIVE[:4], results=[tool_result(content=FIVE[:1])]),
        "messages.2.content.0.content.0.cache_control: A maximum of 4",
    ),
    ("the fifth at the top", request(system=FIVE[:4], cache_control=CACHED), "cache_control: A maximum of 4"),
    (
        "unknown breakpoint",
        request(user({**text("x"), "cache_control": {"type": "for_ever"}})),
        "messages.0.content.0.cache_control: must",
    ),
    (
        "unknown ttl",
        request(user({**text("x"), "cache_control": {**CACHED, "ttl": "1d"}})),
        "messages.0.content.0.cache_control.ttl: ",
    ),
    (
        "an hour after five minutes",
        request(user({**text("x"), "cache_control": {**CACHED, "ttl": "1h"}}), system=FIVE[:1]),
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after",
    ),
    # citations sent back to the model
    (
        "a citation of nothing",
        cited_request(search_result_index=1),
        "messages.1.content.0.citations.0.search_result_index: ",
    ),
    ("a citation past the end", cited_request(end_block_index=2), "messages.1.content.0.citations.0.end_block_index: "),
    ("a citation of no kind", cited_request(type="x"), "messages.1.content.0.citations.0.type: "),
    ("a citation with a private key", cited_request(_number=1), "messages.1.content.0.citations.0._number: Extra"),
    # images
    ("an image of another type", request(user(picture(kind="image/bmp"))), "messages.0.content.0.image.source.base64"),
    ("an image that is none", request(user(picture(b"x"))), "messages.0.content.0.image.source.base64: Image does not"),
    (
        "an image of many pixels",
        request(user(picture(HUGE))),
        "messages.0.content.0.image.source.base64.data: At least",
    ),
    (
        "an image of many bytes",
        request(user(picture(b"\x89PNG\r\n\x1a\n" + b"x" * 4_000_000))),
        "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum",
    ),
    # deferred tools
    ("all tools deferred", request(tools=[LATE]), "tools: At least one tool must"),
    ("a deferred tool in the cache", request(tools=[TOOL, {**LATE, "cache_control": CACHED}]), "tools.1: Tool 'late'"),
    (
        "a reference to no tool",
        turn(results=[tool_result(content=[{"type": "tool_reference", "tool_name": "late"}])]),
        "messages.2.content.0.content.0: Tool reference 'late' not found",
    ),
    # output
    ("unknown effort", request(output_config={"effort": "huge"}), "output_config.effort: "),
    (
        "an open schema",
        request(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}),
        "output_config.format.schema: ",
    ),
    (
        "a limit in structured output",
        request(output_config={"format": {"type": "json_schema", "schema": {"type": "string", "maxLength": 9}}}),
        "output_config.format.schema: property 'maxLength' is not supported",
    ),
    (
        "an id of no answer",
        request(diagnostics={"previous_message_id": "resp_1"}),
        "diagnostics.previous_message_id: String should match",
    ),
    ("an unknown diagnosis", request(diagnostics={"why": True}), "diagnostics.why: Extra inputs"),
    (
        "structured output with citations",
        request(user(RESULT), output_config={"format": {"type": "json_schema", "schema": {}}}),
        "output_config.format: citations",
    ),
    # surrogates
    ("surrogate in text", request(user(text("a\ud800"))), "messages.0.content.0.text: string holds a lone surrogate"),
    ("surrogate in a key", turn({**tool_use(), "input": {"\udfff": 1}}), "messages.1.content.0.input: string holds"),
    ("surrogate in a tool", request(tools=[{**TOOL, "description": "\udc00"}]), "tools.0.description: string holds"),
]


@pytest.mark.parametrize(("body", "start"), [pytest.param(value, start, id=name) for name, value, start in REFUSED])
def test_a_refusal_names_the_path_and_the_rule(body: Any, start: str) -> None:
    assert any(problem.startswith(start) for problem in problems(body)), problems(body)


SONNET, HAIKU, OLD = "claude-sonnet-5-5", "claude-haiku-5-5", "claude-haiku-4-5-20251001"
BETA = "thinking-binding-controls-2026-08-01"
DROP = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}

PARAMETERS: list[tuple[str, JSON, str]] = [
    (SONNET, {"temperature": 1}, "`temperature` is deprecated for this model."),
    (SONNET, {"top_p": 1}, "`top_p` is deprecated"),
    (SONNET, {"thinking": {"type": "disabled"}}, '"thinking.type.disabled" is not supported'),
    (SONNET, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, '"thinking.type.enabled" is not supported'),
    ("claude-opus-5-5", {"thinking": {"type": "between_tools"}}, '"thinking.type.between_tools" is not supported'),
    (SONNET, {"thinking": {"type": "adaptive", **DROP}}, "thinking.adaptive.block_binding: Extra inputs"),
    (SONNET, {"thinking": {"type": "between_tools", "display": "omitted"}}, "thinking.between_tools.display: Extra"),
    (SONNET, {"tools": [TOOL], "tool_choice": {"type": "any"}}, 'tool_choice: type "tool" and "any" are not'),
    (SONNET, {"max_tokens": 128_001}, "max_tokens: 128001 > 128000, which is the maximum"),
    (HAIKU, {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "output_config.effort: 'max'"),
    (OLD, {"thinking": {"type": "adaptive"}}, '"thinking.type.adaptive" is not supported'),
    (OLD, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "`max_tokens` must be greater"),
    (OLD, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.enabled.budget_tokens: "),
    (OLD, {"output_config": {"effort": "low"}}, "This model does not support the effort parameter."),
    (
        OLD,
        {"messages": [user(text("a")), {"role": "system", "content": "x"}]},
        "messages.1: role 'system' is not supported on this model",
    ),
    (OLD, {"messages": [user(text("a")), assistant(text("{ "))]}, "messages: final assistant content cannot end"),
]


@pytest.mark.parametrize(("model", "parameters", "start"), PARAMETERS)
def test_each_model_has_separate_parameters(model: str, parameters: JSON, start: str) -> None:
    reported = problems(request(**{"max_tokens": 4000, **parameters, "model": model}))
    assert [problem for problem in reported if problem.startswith(start)], reported


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (SONNET, {"thinking": {"type": "adaptive", "display": "summarized", **DROP}}),
        (SONNET, {"thinking": {"type": "between_tools"}, "output_config": {"effort": "high"}}),
        (SONNET, {"messages": [user(text("a")), {"role": "system", "content": "b"}]}),
        (SONNET, {"messages": [user(text("a")), {"role": "system", "content": "b"}, assistant(text("c")), user(PNG)]}),
        (HAIKU, {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}),
        (OLD, {"temperature": 0.2, "messages": [user(text("a")), assistant(text("{"))]}),
        (OLD, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (SONNET, cited_request()),
        (
            SONNET,
            turn(tools=[TOOL, LATE], results=[tool_result(content=[{"type": "tool_reference", "tool_name": "late"}])]),
        ),
    ],
)
def test_supported_parameters_cause_no_problem(model: str, parameters: JSON) -> None:
    assert problems(request(**{"max_tokens": 4000, **parameters, "model": model}), betas=[BETA]) == []


def test_an_older_endpoint_can_get_extra_parameters() -> None:
    assert problems(request(temperature=0.5), also_allowed={"temperature"}) == []


def test_all_problems_of_a_request_are_reported() -> None:
    assert len(problems(request(user(text("")), max_tokens=0, foo=1))) == 3


def _problems_after(change: Callable[[JSON], None]) -> list[str]:
    body = turn(THINKING, tool_use())
    change(body)
    return problems(body)


def test_a_signature_is_valid_only_with_its_thinking() -> None:
    assert _problems_after(lambda body: body["messages"][1]["content"][0].update(signature=sign("other")))
