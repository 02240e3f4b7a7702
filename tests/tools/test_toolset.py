"""An agent's tools: names, order, cleaned texts, blocks, and everything that is hidden."""

import re
import unicodedata
from typing import Any, Literal

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, TypeAdapter

from agentic_rag.base.messages import SENDABLE
from agentic_rag.base.redaction import Redaction
from agentic_rag.domains.turn_tools import GuardedTools
from agentic_rag.runtime.core.calls import Denial, DenialReason, Policy
from agentic_rag.tools.base import Binding, CallOutcome, CallRequest, SystemServer, Toolset
from agentic_rag.tools.bounds import DESCRIPTION_BYTES, LIST_BYTES, SCHEMA_BYTES, fit_list
from agentic_rag.tools.content import LARGE_BYTES, clean_json, is_large, to_blocks
from agentic_rag.tools.exchange import RESULT_BYTES
from agentic_rag.tools.listing import OUR_TOOLS, TITLE_CHARS, Catalog, clean, user_name
from agentic_rag.tools.toolset import open_toolset
from tests.tools.support import START, Hub, call, hostile, open_hub, plain, text_of, tool

OBJECT = {"type": "object"}


class Found(BaseModel):
    hits: list[str]


def make_server(*names: str) -> MCPServer:
    server = MCPServer("ours")
    for name in names:

        async def run(text: str = "") -> str:
            return text

        server.add_tool(run, name=name, annotations=ToolAnnotations(read_only_hint=True))
    return server


def make_tool(name: str, **fields: Any) -> types.Tool:
    return types.Tool(name=name, input_schema=fields.pop("schema", OBJECT), **fields)


def system_server(
    name: str, origin: Literal["system", "builtin"] = "system", tools: tuple[str, ...] | None = None
) -> SystemServer:
    return SystemServer(name, origin, tools)


async def test_our_tools_have_bare_names_in_a_fixed_order() -> None:
    hub = Hub(
        {
            "retriever": make_server("search_documents"),
            "delegate": make_server("delegate"),
            "promptx": make_server(
                "role_write", "promptx_discover", "promptx_remember", "promptx_recall", "promptx_action"
            ),
        }
    )
    async with hub:
        toolset: Toolset = await open_toolset(
            hub, [system_server("retriever", "builtin"), system_server("delegate"), system_server("promptx")]
        )
        names = [tool.name for tool in toolset.tools]
        assert names == [*(name for name in OUR_TOOLS if name in names), "role_write"]
        assert len(names) == 7
        assert toolset.notices == ()


async def test_bound_values_reach_only_in_process_servers(tmp_path: Any) -> None:
    server = MCPServer("ours")

    @server.tool()
    async def bound(ctx: Context) -> dict[str, Any]:
        return {key: value for key, value in (ctx.request_context.meta or {}).items() if key.startswith("agentic_rag/")}

    binding = Binding(workspace="/w", documents=("d1",), top_k=3)
    values = {"workspace": "/w", "documents": ["d1"], "top_k": 3, "admin": False, "turn": "turn_1", "call": "1"}
    async with open_hub(tmp_path, builtin={"ours": server}) as hub:
        toolset = await open_toolset(hub, [system_server("ours"), plain()], wait=START)
        in_process = await toolset.call(CallRequest("1", tool(toolset, "bound"), {}, "turn_1", binding), 5)
        assert isinstance(in_process, CallOutcome)
        assert {f"agentic_rag/{key}": value for key, value in values.items()}.items() <= in_process.structured.items()
        assert tool(toolset, "bound").input_schema.get("properties", {}) == {}
        over_stdio = await toolset.call(CallRequest("2", tool(toolset, "plain__meta"), {}, "turn_1", binding), 5)
        assert isinstance(over_stdio, CallOutcome)
        assert "agentic_rag" not in text_of(over_stdio)


async def test_the_model_reads_a_tools_own_failure() -> None:
    server = MCPServer("ours")

    @server.tool()
    async def refuse() -> str:
        raise ToolError("There is no role 'judge'.")

    @server.tool()
    async def find(query: str) -> Found:
        return Found(hits=[query])

    async with Hub({"ours": server}) as hub:
        toolset = await open_toolset(hub, [system_server("ours")])
        refusal = await call(toolset, "refuse")
        assert (refusal.status, text_of(refusal)) == ("error", "There is no role 'judge'.")
        assert (await call(toolset, "find")).status == "error"  # an argument is missing
        outcome = await call(toolset, "find", query="a\ud800b")
        assert (outcome.status, outcome.structured) == ("ok", {"hits": ["a?b"]})
        assert outcome.duration_ms >= 0


async def test_a_tools_failure_shows_no_library_text_and_no_local_path() -> None:
    server = MCPServer("ours")

    @server.tool()
    async def look() -> str:
        raise OSError(13, "Permission denied", "/srv/data/workspaces/demo/x.md")

    @server.tool()
    async def read() -> str:
        try:
            return str(TypeAdapter(dict[str, int]).validate_python({"size": "many"}))
        except ValueError as exc:
            raise ToolError(str(exc)) from exc

    @server.tool()
    async def trace() -> str:
        raise ToolError('Traceback (most recent call last):\n  File "/opt/a.py", line 1, in <module>\nValueError: no')

    async with Hub({"ours": server}) as hub:
        toolset = await open_toolset(hub, [system_server("ours")])
        assert text_of(await call(toolset, "look")) == "The tool failed; it does not say why."
        refusal = text_of(await call(toolset, "read"))
        assert refusal.startswith("The arguments do not fit:\nsize\n  Input should be a valid integer")
        assert not [word for word in ("pydantic", "type=", "input_value", "validation error") if word in refusal]
        assert text_of(await call(toolset, "trace")) == "ValueError: no"


async def test_a_result_beyond_the_cap_is_refused() -> None:
    server = MCPServer("ours")

    @server.tool(structured_output=False)
    async def huge() -> str:
        return "x" * (RESULT_BYTES + 1)

    async with Hub({"ours": server}) as hub:
        outcome = await call(await open_toolset(hub, [system_server("ours")]), "huge")
        assert outcome.status == "error"
        assert "was refused" in text_of(outcome)


async def test_only_included_tools_are_offered() -> None:
    async with Hub({"ours": make_server("one", "two")}) as hub:
        toolset = await open_toolset(hub, [system_server("ours", tools=("two",))])
        assert [tool.name for tool in toolset.tools] == ["two"]


@pytest.mark.parametrize("name", ["promptx", "PromptX", " promptx", "ｐｒｏｍｐｔｘ", "prompt\u200bx"])
async def test_a_user_entry_with_a_built_in_name_is_left_out(tmp_path: Any, name: str) -> None:
    async with open_hub(tmp_path, builtin={"promptx": make_server("promptx_recall")}) as hub:
        toolset = await open_toolset(hub, [hostile(name=name), system_server("promptx")])
        assert [(tool.name, tool.origin) for tool in toolset.tools] == [("promptx_recall", "system")]
        assert toolset.notices == ((name, "left out: the name belongs to another server"),)
        assert len(hub.status()) == 1


def test_tools_of_users_servers_are_prefixed_with_our_key_and_sorted() -> None:
    catalog = Catalog()
    catalog.add("promptx", "system", [make_tool("promptx_recall")])
    catalog.add("files", "user", [make_tool("write"), make_tool("promptx_recall"), make_tool("read")])
    assert [tool.name for tool in catalog.tools] == [
        "promptx_recall",
        "files__promptx_recall",
        "files__read",
        "files__write",
    ]
    assert catalog.tools[1].remote_name == "promptx_recall"


def test_a_duplicate_name_is_refused_with_a_notice() -> None:
    catalog = Catalog()
    catalog.add("a", "user", [make_tool("x"), make_tool("y"), make_tool("y")])
    catalog.add("a", "user", [make_tool("x")])
    assert [(tool.name, tool.server) for tool in catalog.tools] == [("a__x", "a")]
    assert [server for server, _ in catalog.notices] == ["a", "a", "a"]


@given(st.text(max_size=90), st.text(max_size=90))
def test_any_name_becomes_a_valid_tool_name(server: str, name: str) -> None:
    tool_name = user_name(server, name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool_name)
    assert tool_name == user_name(server, name)


def test_names_that_differ_stay_different_after_fitting() -> None:
    originals = ["数据", "数拟", "x" * 100, "x" * 101, "a b", "a.b"]
    assert len({user_name("s", name) for name in originals}) == len(originals)


def test_only_our_own_servers_tool_hints_are_trusted() -> None:
    hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True)
    catalog = Catalog()
    catalog.add("retriever", "builtin", [make_tool("search_documents", annotations=hints)])
    catalog.add("files", "user", [make_tool("delete", annotations=hints)])
    assert [(tool.read_only, tool.idempotent) for tool in catalog.tools] == [(True, True), (False, False)]


def test_descriptions_and_schemas_are_cleaned_and_bounded() -> None:
    hidden = "Reads.\u200b\u202e\U000e0041\x07\ud800 Really.\u2028Done."
    schema = {"type": "object", "properties": {"p\u200b": {"description": hidden, "enum": [hidden, 1]}}}
    catalog = Catalog()
    catalog.add(
        "s", "user", [make_tool("a", description=hidden, schema=schema), make_tool("b", description="é" * 10_000)]
    )
    a, b = catalog.tools
    assert a.description == "Reads. Really.\nDone."
    assert a.input_schema["properties"] == {"p": {"description": a.description, "enum": [a.description, 1]}}
    assert len(b.description.encode()) <= DESCRIPTION_BYTES
    assert b.description.endswith("[truncated: 20000 bytes]")
    assert clean("a\tb\nc 👍🏽 नमस्ते") == "a\tb\nc 👍🏽 नमस्ते"


@given(st.text(max_size=60))
def test_cleaning_removes_exactly_the_hidden_characters(text: str) -> None:
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    lines = text.replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    assert clean(text) == "".join(line for line in lines if line in "\n\t" or unicodedata.category(line) not in hidden)


def test_a_long_title_or_description_is_cut_before_it_is_cleaned() -> None:
    catalog = Catalog()
    catalog.add("s", "user", [make_tool("a", title="t\u200b" * 1_000, description="d\u200b" * 100_000)])
    (tool,) = catalog.tools
    assert tool.title == "t" * (TITLE_CHARS // 2)
    assert tool.description.startswith("d" * 1_000)
    assert tool.description.endswith(" [truncated: 400000 bytes]")
    assert len(tool.description.encode()) <= DESCRIPTION_BYTES


@pytest.mark.parametrize(
    "schema",
    [{"type": "string"}, {"type": ["array", "null"]}, {"type": "object", "description": "x" * SCHEMA_BYTES}],
)
def test_a_tool_whose_input_is_not_a_small_object_is_left_out(schema: dict[str, Any]) -> None:
    catalog = Catalog()
    catalog.add("s", "user", [make_tool("odd", schema=schema), make_tool("fine")])
    assert [tool.name for tool in catalog.tools] == ["s__fine"]
    assert "input" in catalog.notices[0][1]


def nest_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "description": "x" * SCHEMA_BYTES}, "longer than"),
        (nest_schema(100), "nested deeper"),
        (nest_schema(50_000), "nested deeper"),
        ({"type": "object", "enum": [0] * 3_000}, "more than 2000 keywords"),
    ],
)
def test_only_tools_beyond_the_limits_are_left_out_with_a_reason(schema: dict[str, Any], reason: str) -> None:
    odd_tool = types.Tool.model_construct(name="odd", input_schema=schema, description=None, annotations=None)
    kept_tools, left_out = fit_list([make_tool("one"), odd_tool, make_tool("two")])
    assert [kept_tool.name for kept_tool in kept_tools] == ["one", "two"]
    ((name, problem),) = left_out
    assert name == "odd"
    assert reason in problem


async def test_an_admin_sees_which_tools_of_a_long_list_are_left_out(tmp_path: Any) -> None:
    server = MCPServer("ours")
    for number in range(300):

        async def act() -> str:
            return "done"

        server.add_tool(act, name=f"act_{number}", description="x" * 1_000)
    async with open_hub(tmp_path, builtin={"ours": server}) as hub:
        toolset = await open_toolset(hub, [system_server("ours")], wait=START)
        assert 200 < len(toolset.tools) < LIST_BYTES // 1_000
        [state] = [status for status in hub.status() if status.name == "ours"]
        assert len(state.dropped_tools) == 300 - len(toolset.tools)
        assert all("longer than 262144 bytes" in dropped_tool.reason for dropped_tool in state.dropped_tools)
        assert len(state.tools) == len(toolset.tools)


def test_all_servers_together_have_a_limit_too() -> None:
    catalog = Catalog()
    for number in range(10):
        tools = [make_tool(f"t{index}", schema={"type": "object", "description": "x" * 20_000}) for index in range(10)]
        catalog.add(f"s{number}", "user", tools)
    assert len(catalog.tools) == 52
    assert [server for server, _ in catalog.notices] == ["s5", "s6", "s7", "s8", "s9"]
    assert "8 of its tools are left out" in catalog.notices[0][1]


async def test_every_kind_of_content_becomes_a_text_or_an_image(tmp_path: Any) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        image, *texts = (await call(toolset, "odd_blocks")).content
        assert image["source"] == {
            "type": "base64",
            "media_type": "image/png",
            "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB",
        }
        assert [block["text"] for block in texts] == [
            "[image, image/png, 2 bytes: not shown: PNG, JPEG, GIF and WebP can be]",
            "[image, image/tiff, 3 bytes: not shown: PNG, JPEG, GIF and WebP can be]",
            "[audio, audio/wav, 3 bytes: not shown]",
            "[resource file:///a.txt — a — the letter]",
            "[resource file:///b.txt]\ninside",
            "[resource file:///c.bin, unknown type, 3 bytes: not shown: PNG, JPEG, GIF and WebP can be]",
        ]


@pytest.mark.parametrize(
    ("blob", "text"),
    [
        ("w6TDtg==", "[resource demo://note]\näö"),
        ("", "[resource demo://note]\n"),
        (
            "plain words!",
            "[resource demo://note, text/plain; charset=utf-8, 8 bytes: not shown: PNG, JPEG, GIF and WebP can be]",
        ),
    ],
)
def test_a_text_that_is_sent_as_bytes_is_shown(blob: str, text: str) -> None:
    resource = types.BlobResourceContents(uri="demo://note", blob=blob, mime_type="text/plain; charset=utf-8")
    (block,) = to_blocks([types.EmbeddedResource(resource=resource)])
    assert block["text"] == text


def test_content_is_never_empty() -> None:
    assert to_blocks([]) == ({"type": "text", "text": "(no output)"},)
    assert to_blocks([types.TextContent(text=" \n")]) == ({"type": "text", "text": "(no output)"},)
    assert to_blocks([], {"rows": ["ä"]}) == ({"type": "text", "text": '{"rows": ["ä"]}'},)


async def test_a_tool_description_is_redacted_once_its_text_is_a_secret() -> None:
    server = MCPServer("ours")

    @server.tool(description="Send it to hunter2-hunter2.")
    async def send() -> str:
        return "sent"

    redact = Redaction()
    redact.add("OTHER", "something-else")
    async with Hub({"ours": server}) as hub:
        before = await open_toolset(hub, [system_server("ours")])
        assert GuardedTools(before, redact).tools[0].description == "Send it to hunter2-hunter2."
        redact.add("TOKEN", "hunter2-hunter2")
        after = await open_toolset(hub, [system_server("ours")])
        assert GuardedTools(after, redact).tools[0].description == "Send it to [secret TOKEN]."


def test_an_ambiguous_tool_name_belongs_to_one_server_in_any_order() -> None:
    servers = ("a", "a__b")
    lists = {"a": [make_tool("b__send"), make_tool("plain"), make_tool("get__x")], "a__b": [make_tool("send")]}
    for order in (servers, servers[::-1]):
        catalog = Catalog()
        for server in order:
            catalog.add(server, "user", lists[server])
        owners = {tool.name: (tool.server, tool.remote_name) for tool in catalog.tools}
        assert catalog.notices == []
        assert owners["a__b__send"] == ("a__b", "send")
        assert owners["a__plain"] == ("a", "plain")
        assert "a__get__x" not in owners, "it would be the tool x of a server a__get"
        (ambiguous_name,) = [name for name, owner in owners.items() if owner == ("a", "b__send")]
        policy = Policy({"a__b__send": "allow", "a__b__*": "allow"}, effects_allowed=False)
        by_owner = {(tool.server, tool.remote_name): tool for tool in catalog.tools}
        assert policy.ruling(by_owner["a__b", "send"]) is None
        assert policy.ruling(by_owner["a", "b__send"]) is not None
        assert not ambiguous_name.startswith("a__b__")
        assert SENDABLE.fullmatch(ambiguous_name)


@pytest.mark.parametrize(
    ("server", "tool", "rule"),
    [
        ("a", "b__send", "a__b__send"),
        ("a", "b__send", "a__b__*"),
        ("a", "_send", "a___send"),
        ("a", "__send", "a____send"),
        ("a", "b..send!", "a__b__*"),
        ("a", "b__" + "x" * 90, "a__b__*"),
        ("a-b", "c__send", "a-b__c__send"),
    ],
)
def test_a_leftover_rule_of_a_deleted_server_allows_no_tool_of_another(server: str, tool: str, rule: str) -> None:
    catalog = Catalog()
    catalog.add(server, "user", [make_tool(tool)])
    (info,) = catalog.tools
    assert Policy({rule: "allow"}, effects_allowed=False).ruling(info) is not None
    assert Policy({info.name: "allow"}, effects_allowed=False).ruling(info) is None


@pytest.mark.parametrize("rule", ["a__b__send", "a__b__*", "a__*"])
def test_a_rule_for_the_plain_name_still_denies_a_tool_with_a_hash(rule: str) -> None:
    catalog = Catalog()
    catalog.add("a", "user", [make_tool("b__send")])
    (info,) = catalog.tools
    policy = Policy({rule: "deny", "*": "allow"}, effects_allowed=False)
    assert policy.ruling(info) == Denial(
        DenialReason.POLICY, f"Denied by this domain's setting toolPolicy for {info.name!r}. Go on without."
    )


def test_a_json_value_is_cleaned_for_the_store_and_a_clean_one_is_returned_unchanged() -> None:
    dirty = {"a\0": ["b\0c", {"d": "e\ud800"}], "n": 1}
    assert clean_json(dirty) == {"a": ["bc", {"d": "e?"}], "n": 1}
    clean_one = {"a": ["b", "\\u0041"]}
    assert clean_json(clean_one) is clean_one


def test_a_result_is_large_by_its_texts_and_its_structured_content_together() -> None:
    text = [types.TextContent(text="x" * (LARGE_BYTES // 2))]
    assert not is_large(text)
    assert is_large([*text, *text, *text])
    assert is_large(text, {"x": "y" * LARGE_BYTES})
    assert is_large([], {"x": "\ud800"}), "it cannot be measured"
