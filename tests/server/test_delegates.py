"""Delegates through the whole application: settings, server map, the in-process server, the stream, a stop."""

from pathlib import Path

import anyio

from agentic_rag.base.messages import plain_text
from agentic_rag.models.base import ModelRequest
from agentic_rag.store import sessions, turns
from agentic_rag.testing.scripted import Plain, Scripted, Stalled
from agentic_rag.testing.steps import Step, Use, say, use
from tests.server.rig import Json, Rig, events_of, types_of

AS_JSON = {"accept": "application/json"}


def events_of_agent(agent: str, events: list[Json]) -> list[Json]:
    return [event for event in events if event.get("agent", "") == agent]


async def test_the_delegate_server_exists_exactly_with_sub_roles(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(subRoleIds=["researcher"])
        servers = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]
        assert list(servers) == ["promptx", "delegate"]
        assert (servers["delegate"]["origin"], servers["delegate"]["readOnly"]) == ("system", True)
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": servers, "subRoleIds": []}})
        assert list((await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]) == ["promptx"]


async def test_a_model_delegates_to_listed_roles_in_parallel_and_one_level_deeper(tmp_path: Path) -> None:
    def by_task(request: ModelRequest) -> Plain:
        assert "delegate: hand self-contained tasks to" in plain_text(request.system)
        return script[plain_text(request.messages[0]["content"]).split()[0]].pop(0)

    def last(request: ModelRequest) -> Plain:
        task = plain_text(request.messages[0]["content"])
        return say("Deep.") if task == "Deeper" else by_task(request)

    calls = (("researcher", "One"), ("assistant", "Two"), ("nuwa", "Three"))
    delegation = Step(tuple(Use("delegate", {"role": role, "task": task}) for role, task in calls))
    script = {
        "Ask": [delegation, say("All done.")],
        "One": [use("delegate", role="assistant", task="Deeper"), say("First.")],
        "Two": [use("promptx_discover"), say("Second.")],
    }
    steps: list[Scripted] = [last] * 7
    async with Rig(tmp_path, *steps) as rig:
        conversation = await rig.conversation(await rig.domain(subRoleIds=["researcher", "assistant"]))
        events = await rig.say(conversation, "Ask them")
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert {event.get("agent", "") for event in events} == {"", "researcher", "researcher/assistant", "assistant"}
        assert types_of(events).count("turn_started") == types_of(events).count("done") == 1
        results = {
            event["content"]: event["status"] for event in events_of_agent("", events) if event["type"] == "tool_result"
        }
        refusal = "There is no role 'nuwa' to delegate to. The roles are: researcher, assistant."
        assert results == {"First.": "ok", "Second.": "ok", refusal: "error"}
        assert [e["content"] for e in events_of_agent("researcher", events) if e["type"] == "tool_result"] == ["Deep."]
        messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert [item["role"] for item in messages] == ["user", "assistant"]
        assert (await rig.ok("GET", f"/api/conversations/{conversation}"))["messageCount"] == 2


async def test_an_interrupt_ends_the_delegate_and_the_conversation_continues(tmp_path: Path) -> None:
    slow = Stalled(say("This takes long."), 3)
    async with Rig(tmp_path, use("delegate", role="researcher", task="Dig"), slow, say("Next.")) as rig:
        path = "/api/conversations/" + await rig.conversation(await rig.domain(subRoleIds=["researcher"]))
        turn = await rig.ok("POST", f"{path}/messages", {"content": "Go"}, headers=AS_JSON)
        with anyio.fail_after(240):
            await slow.reached.wait()
        assert await rig.ok("POST", f"{path}/interrupt") == {"interrupted": True}
        events = events_of((await rig.http.get(f"/api/turns/{turn['id']}/events")).text)
        assert types_of(events)[-2:] == ["tool_result", "interrupted"]
        assert await rig.application.database.read(turns.list_running) == []
        (child,) = await rig.application.database.read(lambda conn: sessions.list_delegated(conn, turn["id"]))
        assert types_of(await rig.say(path.rpartition("/")[2], "Go on"))[-1] == "done"
        await rig.ok("DELETE", path)
        assert await rig.application.database.read(lambda conn: sessions.get(conn, child.id)) is None


async def test_a_server_stopped_during_a_delegate_resumes_it(tmp_path: Path) -> None:
    slow = Stalled(say("Never seen."), 3)
    async with Rig(tmp_path, use("delegate", role="researcher", task="Dig"), slow) as rig:
        path = "/api/conversations/" + await rig.conversation(await rig.domain(subRoleIds=["researcher"]))
        turn = await rig.ok("POST", f"{path}/messages", {"content": "Go"}, headers=AS_JSON)
        with anyio.fail_after(240):
            await slow.reached.wait()
        before = await rig.application.database.read(lambda conn: sessions.list_delegated(conn, turn["id"]))
    async with Rig(tmp_path, say("Gold."), say("Found.")) as rig:
        events = events_of((await rig.http.get(f"/api/turns/{turn['id']}/events")).text)
        assert [event["content"] for event in events if event["type"] == "tool_result"] == ["Gold."]
        assert types_of(events)[-1] == "done"
        after = await rig.application.database.read(lambda conn: sessions.list_delegated(conn, turn["id"]))
        assert [record.id for record in after] == [record.id for record in before]


async def test_a_delegates_records_can_be_read_and_its_calls_filtered(tmp_path: Path) -> None:
    steps: list[Scripted] = [
        use("delegate", role="researcher", task="Dig"),
        use("promptx_discover"),
        say("Gold."),
        say("Done."),
    ]
    async with Rig(tmp_path, *steps) as rig:
        conversation = await rig.conversation(await rig.domain(subRoleIds=["researcher"]))
        events = await rig.say(conversation, "Go")
        (call,) = [event["toolCallId"] for event in events_of_agent("", events) if event["type"] == "tool_call"]
        (child,) = (await rig.ok("GET", f"/api/turns/{events[0]['turnId']}/children"))["items"]
        assert (child["agent"], child["parentToolCallId"]) == ("researcher", call)
        assert child["turn"]["status"] == "done"
        assert [message["content"] for message in child["messages"]] == ["Dig", "Gold."]
        assert [tool_call["toolName"] for tool_call in child["toolCalls"]] == ["promptx_discover"]
        assert (await rig.ok("GET", f"/api/turns/{child['turn']['id']}/children"))["items"] == []
        path = f"/api/conversations/{conversation}/tool-calls"
        assert [item["toolName"] for item in (await rig.ok("GET", path))["items"]] == ["delegate", "promptx_discover"]
        for agent, names in (("researcher", ["promptx_discover"]), ("", ["delegate"]), ("writer", [])):
            calls = (await rig.ok("GET", f"{path}?agent={agent}"))["items"]
            assert [call["toolName"] for call in calls] == names


async def test_the_delegate_tool_describes_each_role_from_its_file(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hello."), say("Again.")) as rig:
        domain = await rig.domain(subRoleIds=["researcher"])
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hi")
        (tool,) = [tool for tool in rig.model.requests[0].tools if tool["name"] == "delegate"]
        assert "- researcher: Researcher · 研究员: I find what the documents say" in tool["description"]
        assert tool["input_schema"]["properties"]["role"]["enum"] == ["researcher"]
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"subRoleIds": ["researcher", "assistant"]}})
        await rig.say(conversation, "Hi again")
        last_request = rig.model.requests[1]
        # The text of the delegate stays.
        assert [tool for tool in last_request.tools if tool["name"] == "delegate"] == [tool]
        assert "- assistant: General assistant" in str(last_request.messages[-1])
