"""One bad tool costs one tool: odd lists, schemas and results of MCP servers, through the whole application."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.models import tool_rules
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.testing.fake_api import Answer, FakeMessagesAPI, Fault, Scripted
from agentic_rag.testing.steps import Step, say, use
from tests.server.rig import Rig
from tests.waiting import pause

CASE = Path(__file__).parent.parent / "tools" / "servers" / "case.py"
GOOD = {"name": "good", "description": "works", "inputSchema": {"type": "object", "properties": {}}}
MODEL = "claude-sonnet-5-5"
Json = dict[str, Any]


def case(tools: Any, result: Any = None) -> Json:
    """Return the entry of a server with exactly these answers."""
    env = {"TOOLS": json.dumps(tools)} | ({} if result is None else {"RESULT": json.dumps(result)})
    return {"command": sys.executable, "args": [str(CASE)], "env": env}


def large_case(folder: Path, result: Json) -> Json:
    """Return the entry of a server whose only tool answers more than an entry's variable may hold."""
    (folder / "result.json").write_text(json.dumps(result))
    return {**case([GOOD]), "env": {"TOOLS": json.dumps([GOOD]), "RESULT_FILE": str(folder / "result.json")}}


@asynccontextmanager
async def open_rig(
    folder: Path, *script: Scripted, fallback: Scripted | None = None
) -> AsyncIterator[tuple[Rig, FakeMessagesAPI]]:
    """Run the application with a service that refuses as the Messages API does."""
    async with FakeMessagesAPI(*script, then=fallback, enforced=False) as api:
        model = AnthropicModel(api.key, api.url)
        try:
            async with Rig(folder, instead=model, any_command=True, model=MODEL) as rig:
                yield rig, api
        finally:
            await model.aclose()


async def read_server(rig: Rig, domain: str, name: str = "case") -> Json:
    items = (await rig.ok("GET", f"/api/domains/{domain}/mcp-servers"))["items"]
    return next(item for item in items if item["name"] == name)


def tools_of(request: Json) -> dict[str, Json]:
    return {tool["name"]: tool for tool in request["tools"]}


def end_of(events: list[Json]) -> str:
    return str(events[-1]["type"])


def results(events: list[Json]) -> list[Json]:
    return [event for event in events if event["type"] == "tool_result"]


UNION = {
    "name": "bad",
    "description": "x",
    "inputSchema": {
        "type": "object",
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
    },
}


async def test_a_union_at_the_top_is_folded_and_the_call_is_checked_against_the_original(tmp_path: Path) -> None:
    script = (use("case__bad"), use("case__bad", a="1"), say("Done."))
    async with open_rig(tmp_path, *script) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case([GOOD, UNION], "echo")}, toolPolicy={"case__*": "allow"})
        events = await rig.say(await rig.conversation(domain), "hello")
        assert end_of(events) == "done"
        tool = tools_of(api.requests[0])["case__bad"]
        assert tool["input_schema"]["properties"] == UNION["inputSchema"]["properties"]  # type: ignore[index]
        assert "at least one of these forms: a; or b" in tool["description"]
        refused_result, called_result = results(events)
        assert refused_result["status"] == "error"
        assert called_result["status"] == "ok"
        assert api.refused == []


async def test_renamed_arguments_reach_the_server_under_their_original_names(tmp_path: Path) -> None:
    person = {"type": "object", "properties": {"full name": {"type": "string"}}, "required": ["full name"]}
    schema = {"type": "object", "properties": {"guest list[]": {"type": "array", "items": person}}}
    tool = {"name": "book", "description": "x", "inputSchema": schema}
    wrong = {"guest_list": [{"full_name": 3}]}
    right = {"guest_list": [{"full_name": "Ada"}]}
    async with open_rig(tmp_path, use("case__book", **wrong), use("case__book", **right), say("Done.")) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case([tool], "echo")}, toolPolicy={"case__*": "allow"})
        events = await rig.say(await rig.conversation(domain), "hello")
        assert end_of(events) == "done"
        messages = json.dumps(api.requests[-1]["messages"], ensure_ascii=False)
        assert "guest_list[0].full_name must be text" in messages
        assert 'got {\\"guest list[]\\": [{\\"full name\\": \\"Ada\\"}]}' in messages


ODD_TOOLS: list[tuple[Any, str, str]] = [
    ({"name": "bad", "description": "no inputSchema"}, "bad", "it has no inputSchema"),
    ({"name": "bad", "inputSchema": None}, "bad", "its inputSchema is null"),
    ({"name": "bad", "inputSchema": []}, "bad", "its inputSchema is a list, not an object"),
    ({"name": "bad", "inputSchema": {"type": "string"}}, "bad", "its inputSchema describes a string, not an object"),
    ({"name": 7, "inputSchema": {"type": "object"}}, "(tool 2)", "its name is a number"),
    ({"inputSchema": {"type": "object"}}, "(tool 2)", "it has no name"),
    (None, "(tool 2)", "it is null, not an object"),
    ("bad", "(tool 2)", "it is a text, not an object"),
]


async def test_a_tool_that_cannot_be_read_is_named_by_the_test_the_list_and_health(tmp_path: Path) -> None:
    cases = {f"case{number}": definition for number, definition in enumerate(ODD_TOOLS)}
    document = {"mcpServers": {server: case([GOOD, tool]) for server, (tool, _, _) in cases.items()}}
    async with open_rig(tmp_path, say("Hi.")) as (rig, api):
        domain = await rig.domain()
        items = (await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/test", document))["items"]
        trials = {trial["name"]: trial for trial in items}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": document})
        for server in cases:
            await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/{server}/restart")
        assert end_of(await rig.say(await rig.conversation(domain), "hello")) == "done"
        health = {server["name"]: server for server in (await rig.ok("GET", "/api/health"))["servers"]}
        for server, (_, name, reason) in cases.items():
            trial = trials[server]
            assert (trial["state"], [tool["name"] for tool in trial["tools"]]) == ("ready", ["good"])
            assert trial["droppedTools"] == [{"name": name, "reason": reason}]
            assert f"{server}__good" in tools_of(api.requests[0])
            assert (await read_server(rig, domain, server))["droppedTools"] == trial["droppedTools"]
            assert (health[server]["state"], health[server]["droppedTools"]) == ("ready", trial["droppedTools"])


async def test_odd_fields_of_a_tool_are_ignored(tmp_path: Path) -> None:
    odd_tool = {
        "name": "odd",
        "title": 5,
        "description": None,
        "inputSchema": {"properties": None, "required": True},
        "outputSchema": "broken",
        "annotations": {"readOnlyHint": "yes", "title": "Reads the archive"},
        "icons": [{"src": 3}],
        "_meta": [1],
        "execution": 3,
    }
    pages = {
        "": {"tools": [GOOD, odd_tool], "nextCursor": "2", "_meta": 3},
        "2": {"tools": [{**GOOD, "name": "last"}], "nextCursor": "2"},
    }
    async with open_rig(tmp_path, say("Hi.")) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case(pages)})
        assert end_of(await rig.say(await rig.conversation(domain), "hello")) == "done"
        tools = tools_of(api.requests[0])
        assert {"case__good", "case__odd", "case__last"} <= tools.keys()
        assert "Reads the archive" in tools["case__odd"]["description"]
        assert (await read_server(rig, domain))["droppedTools"] == []


async def test_a_server_that_repeats_its_page_for_each_cursor_keeps_its_tools(tmp_path: Path) -> None:
    page = [GOOD, {**GOOD, "name": "other"}]
    pages = {str(number or ""): {"tools": page, "nextCursor": str(number + 1)} for number in range(5)}
    async with open_rig(tmp_path, say("Hi.")) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case(pages)})
        assert end_of(await rig.say(await rig.conversation(domain), "hello")) == "done"
        assert {"case__good", "case__other"} <= tools_of(api.requests[0]).keys()
        assert (await read_server(rig, domain))["droppedTools"] == []


CALLS: list[tuple[str, Any, str, list[str]]] = [
    (
        "an unknown block",
        {"content": [{"type": "video", "data": "x"}, {"type": "text", "text": "42 rows"}]},
        "ok",
        ["[video: not shown]", "42 rows"],
    ),
    ("a null for no error", {"content": [{"type": "text", "text": "fine"}], "isError": None}, "ok", ["fine"]),
    ("structured content alone", {"structuredContent": {"rows": 42}}, "ok", ['{"rows": 42}']),
    ("a list as structured content", {"structuredContent": [1, 2], "content": []}, "ok", ["[1, 2]"]),
    ("content as text", {"content": "plain words"}, "ok", ["plain words"]),
    ("one block", {"content": {"type": "text", "text": "one"}}, "ok", ["one"]),
    (
        "a number as text",
        {"content": [{"type": "text", "text": 42}, {"type": "image"}, None, 5]},
        "ok",
        ["42", "[image: not shown]"],
    ),
    (
        "an unknown block with words",
        {"content": [{"type": "markdown", "text": "# Title"}]},
        "ok",
        ["[markdown]", "# Title"],
    ),
    ("no content", {}, "error", ["case answered in a form that cannot be read (content is missing)"]),
    (
        "a number as content",
        {"content": 5},
        "error",
        ["case answered in a form that cannot be read (content is a number)"],
    ),
    ("no object", [1], "error", ["case answered in a form that cannot be read (content is missing)"]),
]


async def test_an_odd_result_is_shown_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    script = [step for _ in CALLS for step in (use("case__good"), say("Done."))]
    async with open_rig(tmp_path, *script) as (rig, api):
        for name, result, status, words in CALLS:
            domain = await rig.domain(mcpServers={"case": case([GOOD], result)}, toolPolicy={"case__*": "allow"})
            events = await rig.say(await rig.conversation(domain), "hello")
            assert (name, [result["status"] for result in results(events)]) == (name, [status])
            content = api.requests[-1]["messages"][-1]["content"]
            (block,) = [block for block in content if block["type"] == "tool_result"]
            text = "\n\n".join(part["text"] for part in block["content"])
            assert all(word in text for word in words), text
            assert "not available" not in text


async def test_many_blocks_of_a_result_are_merged_with_the_same_text(tmp_path: Path) -> None:
    texts = [{"type": "text", "text": f"row {number}"} for number in range(150)]
    odd_blocks = [{"type": "a", "data": "AA"}] * 150
    script = (use("case__good"), say("Done."))
    async with open_rig(tmp_path, *script) as (rig, api):
        entry = large_case(tmp_path, {"content": [*texts, *odd_blocks]})
        domain = await rig.domain(mcpServers={"case": entry}, toolPolicy={"case__*": "allow"})
        events = await rig.say(await rig.conversation(domain), "hello")
        (result,) = results(events)
        blocks = next(
            block["content"]
            for message in api.requests[-1]["messages"]
            for block in message["content"]
            if block["type"] == "tool_result"
        )
        assert len(blocks) <= 202  # twice 100, the text of all others, and the number of omitted ones
        words = result["content"].split("\n\n")
        assert [word for word in words if word.startswith("row ")] == [f"row {number}" for number in range(150)]
        assert sum(word.startswith("[a: not shown]") for word in words) == 100
        assert "[50 more blocks: not shown]" in result["content"]


async def test_a_large_result_is_stored_whole_and_without_secrets(tmp_path: Path) -> None:
    rows = [f"row {number} of hunter2-hunter2" for number in range(1_000)]
    answer = {"content": [{"type": "text", "text": "\n".join(rows)}], "structuredContent": {"hunter2-hunter2": rows}}
    script = (use("case__good"), say("Done."))
    async with open_rig(tmp_path, *script) as (rig, _):
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/WORD", {"value": "hunter2-hunter2"})
        entry = large_case(tmp_path, answer)
        entry["env"]["WORD"] = "${WORD}"
        settings = {"mcpServers": {"case": entry}, "toolPolicy": {"case__*": "allow"}}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": settings})
        conversation = await rig.conversation(domain)
        (result,) = results(await rig.say(conversation, "hello"))
        assert result["truncated"]
        for ref in (result["ref"], result["structured"]["_ref"]):
            payload = (await rig.http.get(f"/api/payloads/{ref}")).text
            assert "row 999 of [" in payload
            assert "hunter2" not in payload
        assert "hunter2" not in json.dumps(result)


# --- rules that only the service knows --------------------------------------------------------------------------------


def refuse_tool(
    name: str, fallback: Step, words: str = "tools.{place}.custom.input_schema: it is not liked"
) -> Scripted:
    """Return a step that refuses each request with a tool of this name, like a service with additional rules."""

    def answer(body: Json) -> Answer:
        names = [tool["name"] for tool in body["tools"]]
        return Fault(400, message=words.format(place=names.index(name), name=name)) if name in names else fallback

    return answer


BAD = {"name": "bad", "description": "x", "inputSchema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("words", ["tools.{place}.custom.input_schema: no", "Invalid schema for function '{name}': no"])
async def test_a_tool_refused_by_the_service_is_left_out_until_its_server_changes_it(
    tmp_path: Path, words: str
) -> None:
    refuse = refuse_tool("case__bad", say("Hi."), words)
    script = (refuse, refuse, refuse, refuse, say("Changed."))
    async with open_rig(tmp_path, *script) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case([GOOD, BAD])})
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "hello")
        assert end_of(events) == "done"
        assert [event["message"] for event in events if event.get("code") == "TOOL_REFUSED"]
        assert ["case__bad" in tools_of(request) for request in api.requests] == [True, False]
        assert "case__good" in tools_of(api.requests[-1])
        (dropped,) = (await read_server(rig, domain))["droppedTools"]
        assert dropped["name"] == "bad"
        assert f"the service of {MODEL} refused it" in dropped["reason"]
        (health,) = [server for server in (await rig.ok("GET", "/api/health"))["servers"] if server["name"] == "case"]
        assert health["droppedTools"] == [dropped]
        assert end_of(await rig.say(conversation, "again")) == "done"
        assert end_of(await rig.say(await rig.conversation(domain), "elsewhere")) == "done"
        assert ["case__bad" in tools_of(request) for request in api.requests] == [True, False, False, False]
        other_entry = case([GOOD, {**BAD, "description": "other words"}])
        other_entry["args"].append("another entry, whose list is accepted with it")
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"case": other_entry}}})
        assert end_of(await rig.say(conversation, "and now")) == "done"
        assert tools_of(api.requests[-1])["case__bad"]["description"] == "other words"
        assert (await read_server(rig, domain))["droppedTools"] == []


async def test_a_refused_tool_whose_description_was_cut_is_still_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_rules, "MESSAGES", replace(tool_rules.MESSAGES, max_description=1024))
    refuse = refuse_tool("case__bad", say("Hi."))
    async with open_rig(tmp_path, refuse, refuse, refuse) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case([{**BAD, "description": "words " * 400}])})
        conversation = await rig.conversation(domain)
        for _ in range(2):
            assert end_of(await rig.say(conversation, "hello")) == "done"
        assert len(tools_of(api.requests[0])["case__bad"]["description"]) == 1024
        assert [tool["name"] for tool in (await read_server(rig, domain))["droppedTools"]] == ["bad"]


async def test_a_conversation_continues_after_a_tool_of_an_earlier_call_is_refused(tmp_path: Path) -> None:
    script = (
        use("case__bad"),
        say("Done."),
        refuse_tool("case__bad", say("Hi.")),
        refuse_tool("case__bad", say("Hi.")),
    )
    async with open_rig(tmp_path, *script) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case([GOOD, BAD])}, toolPolicy={"case__*": "allow"})
        conversation = await rig.conversation(domain)
        assert end_of(await rig.say(conversation, "hello")) == "done"
        assert end_of(await rig.say(conversation, "again")) == "done"
        assert "case__bad" not in tools_of(api.requests[-1])
        assert "case__bad" in json.dumps(api.requests[-1]["messages"])


async def test_a_turn_is_answered_although_many_tools_are_refused(tmp_path: Path) -> None:
    tools = [{**BAD, "name": f"bad{number}"} for number in range(25)]

    def refuse_first(body: Json) -> Answer:
        bad = [place for place, tool in enumerate(body["tools"]) if tool["name"].startswith("case__bad")]
        return Fault(400, message=f"tools.{bad[0]}.custom.input_schema: no") if bad else say("Hi.")

    async with open_rig(tmp_path, fallback=refuse_first) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case(tools)})
        assert end_of(await rig.say(await rig.conversation(domain), "hello")) == "done"
        assert len(api.requests) < 20
        assert not [name for name in tools_of(api.requests[-1]) if name.startswith("case__")]


async def test_a_refusal_of_a_built_in_tool_is_shown_to_everyone(tmp_path: Path) -> None:
    async with open_rig(
        tmp_path, refuse_tool("search_documents", say("Hi.")), refuse_tool("search_documents", say("Hi."))
    ) as (
        rig,
        _,
    ):
        domain = await rig.domain()
        events = await rig.say(await rig.conversation(domain), "hello")
        assert end_of(events) == "done"
        (notice,) = [event for event in events if event.get("code") == "TOOL_REFUSED"]
        assert "search_documents" in notice["message"]


# --- elicitation ------------------------------------------------------------------------------------------------------

HINTED = {**GOOD, "name": "hinted", "annotations": {"readOnlyHint": True}}
CHINESE = [
    {"name": name, "description": "", "inputSchema": {"type": "object", "properties": {}}}
    for name in ("查询天气", "查询股票")
]


async def open_wait(rig: Rig, conversation: str) -> Json:
    while True:
        items = (await rig.ok("GET", f"/api/waits?conversationId={conversation}&state=open"))["items"]
        if items:
            return items[0]  # type: ignore[no-any-return]
        await pause()


async def test_a_tool_not_marked_read_only_asks_at_first_use_even_without_keys(tmp_path: Path) -> None:
    script = (use("case__hinted"), use("case__good"), say("Done."), use("case__good"), say("Again."))
    async with open_rig(tmp_path, *script) as (rig, _):
        domain = await rig.domain(mcpServers={"case": case([GOOD, HINTED])})
        conversation = await rig.conversation(domain)
        async with anyio.create_task_group() as tasks:
            events: list[Json] = []

            async def say_hello() -> None:
                events.extend(await rig.say(conversation, "hello"))

            tasks.start_soon(say_hello)
            wait = await open_wait(rig, conversation)
            assert (wait["kind"], wait["toolName"]) == ("approval", "case__good")
            change = {"settings": {"toolPolicy": {wait["toolName"]: "allow"}}}
            await rig.ok("PATCH", f"/api/domains/{domain}", change)
            answer = {"action": "accept", "content": {"scope": "conversation"}}
            await rig.ok("POST", f"/api/waits/{wait['id']}", answer)
        assert [result["status"] for result in results(events)] == ["ok", "ok"]
        later_events = await rig.say(await rig.conversation(domain), "elsewhere")
        assert [result["status"] for result in results(later_events)] == ["ok"], "the rule holds in the whole domain"


async def test_the_switch_of_a_tool_with_underscores_uses_the_models_name(tmp_path: Path) -> None:
    script = (
        say("Hi."),
        lambda request: use(next(name for name in tools_of(request) if "b__good" in name)),
        say("Done."),
    )
    async with open_rig(tmp_path, *script) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case([{**GOOD, "name": "b__good"}])})
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "hello")
        (listed_tool,) = (await read_server(rig, domain))["tools"]
        assert listed_tool["calledAs"] in tools_of(api.requests[0])
        assert listed_tool["calledAs"] != "case__b__good", "that is the tool good of a server case__b"
        await rig.ok(
            "PATCH", f"/api/domains/{domain}", {"settings": {"toolPolicy": {listed_tool["calledAs"]: "allow"}}}
        )
        events = await rig.say(conversation, "again")
        assert [result["status"] for result in results(events)] == ["ok"]


async def test_names_without_latin_letters_are_readable_and_found(tmp_path: Path) -> None:
    async with open_rig(tmp_path, say("Hi.")) as (rig, api):
        domain = await rig.domain(mcpServers={"case": case(CHINESE)})
        assert end_of(await rig.say(await rig.conversation(domain), "hello")) == "done"
        tools = {name: tool for name, tool in tools_of(api.requests[0]).items() if name.startswith("case__")}
        weather, stock = sorted(tools, key=lambda name: "TianQi" not in name)
        assert weather.startswith("case__ChaXunTianQi_")
        assert stock.startswith("case__ChaXunGu")
        assert [tools[weather]["description"], tools[stock]["description"]] == ["查询天气", "查询股票"]
        (server,) = [
            item
            for item in (await rig.ok("GET", f"/api/domains/{domain}/mcp-servers"))["items"]
            if item["name"] == "case"
        ]
        assert [tool["calledAs"] for tool in server["tools"]] == [weather, stock]
