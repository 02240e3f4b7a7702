"""MCP servers of a domain over REST and through turns: who shares a process, and the effect of a save or a removal."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.steps import Step, say, use
from agentic_rag.tools.launch.environment import MARKER
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig, events_of, types_of
from tests.tools.captives import allow_captive, find_processes, needs_bubblewrap
from tests.tools.registry import package_registry
from tests.tools.support import SERVERS, until
from tests.waiting import pause

MEMORY = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}


def hostile(behaviour: str = "ok", **fields: Any) -> dict[str, Any]:
    """An entry of the server that starts fast."""
    return {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "hostile.py"), behaviour], **fields}


def children(rig: Rig) -> int:
    """The number of running servers: each one starts with a unique mark, which all its processes carry."""
    marks: set[bytes] = set()
    for pid in find_processes(rig.application.parts.policy.marker):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\x00")
        except OSError:  # ended meanwhile
            continue
        marks.update(name for name in environment if name.startswith(MARKER.encode()))
    return len(marks)


def homes(rig: Rig) -> int:
    folder = rig.application.parts.policy.homes
    return len(list(folder.iterdir())) if folder.exists() else 0


def calling(tool: str, **arguments: Any) -> Callable[[ModelRequest], Step]:
    """Call the tool, then answer with its result."""

    def step(request: ModelRequest) -> Step:
        content = request.messages[-1]["content"]
        results = [block for block in content if block["type"] == "tool_result"]
        return say(results[0]["content"][0]["text"]) if results else use(tool, **arguments)

    return step


async def read_server(rig: Rig, domain: str, name: str) -> dict[str, Any]:
    items = (await rig.ok("GET", f"/api/domains/{domain}/mcp-servers"))["items"]
    return next(item for item in items if item["name"] == name)


async def accept_waiting(rig: Rig, domain: str, name: str) -> dict[str, Any]:
    """Accept the pending changes of a server, as an admin does after a review."""
    place = f"/api/domains/{domain}/mcp-servers/{name}"
    fingerprint = (await rig.ok("GET", f"{place}/pending"))["fingerprint"]
    accepted: dict[str, Any] = await rig.ok("POST", f"{place}/accept", {"fingerprint": fingerprint})
    return accepted


@pytest.mark.nightly("tools/test_hub.py counts the children every time")
async def test_turns_of_two_hundred_conversations_on_three_servers_have_three_children(tmp_path: Path) -> None:
    steps = [calling("b__fine")] * 400
    async with Rig(tmp_path, *steps, any_command=True) as rig:
        domain = await rig.domain(mcpServers={name: hostile() for name in ("a", "b", "c")})
        await rig.say(await rig.conversation(domain), "Go")  # starts them
        limit = anyio.CapacityLimiter(20)
        most = 0

        async def converse() -> None:
            nonlocal most
            async with limit:
                events = await rig.say(await rig.conversation(domain), "Go")
                assert types_of(events)[-1] == "done"
                most = max(most, children(rig))

        async with anyio.create_task_group() as conversations:
            for _ in range(199):
                conversations.start_soon(converse)
        assert most == 3


@needs_bubblewrap
async def test_each_user_of_a_per_user_entry_has_a_separate_child(tmp_path: Path) -> None:
    steps = [calling("captive__look", path=".")] * 10
    async with Rig(tmp_path, *steps) as rig:
        spec = await allow_captive(rig.application.parts.policy)
        entry = {**spec.entry.to_json(), "identity": "user"}
        domain = await rig.domain(mcpServers={"captive": entry}, toolPolicy={"captive__*": "allow"})
        keys = {user: await make_key(rig, user, "member", domain) for user in ("anna", "ben")}
        counts = []
        for user in ("anna", "anna", "ben", "anna", "ben"):
            headers = bearer(keys[user])
            conversation = await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=headers)
            path = f"/api/conversations/{conversation['id']}/messages"
            response = await rig.http.post(path, json={"content": "Go"}, headers=headers)
            assert types_of(events_of(response.text))[-1] == "done"
            counts.append((children(rig), homes(rig)))
        assert counts == [(1, 1), (1, 1), (2, 2), (2, 2), (2, 2)]
        assert {status.user for status in rig.application.parts.pool.status(domain)} == {"anna", "ben"}


@pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js: no npm on this machine")
async def test_a_save_installs_the_package_in_the_background_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with package_registry() as registry:
        for name, text in registry.environment(tmp_path).items():
            monkeypatch.setenv(name, text)
        async with Rig(tmp_path) as rig:
            domain = await rig.domain()
            disabled = {"settings": {"mcpServers": {"notes": {**MEMORY, "disabled": True}}}}
            assert (await rig.ok("PATCH", f"/api/domains/{domain}", disabled))["warnings"] == []
            domain_record = await rig.ok(
                "PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"notes": MEMORY}}}
            )
            warning = domain_record["warnings"][0]
            assert warning["path"] == "settings.mcpServers.notes"
            assert "server-memory@" in warning["text"]
            assert "it is being installed now" in warning["text"]
            server = await read_server(rig, domain, "notes")
            assert (server["state"], server["reason"], server["connections"]) == ("installing", warning["text"], 0)
            server_after = await wait_installed(rig, domain, "notes")
            assert server_after["state"] == "stopped"
            assert "does not know it in this version" in server_after["reason"]
            name, version = "@modelcontextprotocol/server-memory", "2026.8.31"
            registry.publish_npm(name, version, bin={"mcp-server-memory": "server.js"})
            changed_settings = {"settings": {"mcpServers": {"notes": {**MEMORY, "timeoutMs": 1000}}}}
            assert "being installed" in str(
                (await rig.ok("PATCH", f"/api/domains/{domain}", changed_settings))["warnings"]
            )
            server_installed = await wait_installed(rig, domain, "notes")
            assert (server_installed["state"], server_installed["reason"]) == ("stopped", "")
            assert children(rig) == 0


async def wait_installed(rig: Rig, domain: str, name: str) -> dict[str, Any]:
    """Return a server once no installation for it is running."""
    with anyio.fail_after(240):
        while (server := await read_server(rig, domain, name))["state"] == "installing":
            await pause()
    return server


@needs_bubblewrap
async def test_a_turn_without_the_package_continues_and_gives_the_remedy(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Fine.")) as rig:
        domain = await rig.domain(mcpServers={"notes": MEMORY})
        events = await rig.say(await rig.conversation(domain), "Hi")
        assert types_of(events)[-1] == "done"
        assert "Test or restart the server" in str(events)
        server = await read_server(rig, domain, "notes")
        assert server["state"] == "failed"
        assert "not installed yet" in server["reason"]


async def test_an_entry_that_is_no_longer_allowed_shows_the_reason_before_its_use(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        policy = rig.application.parts.policy
        spec = await allow_captive(policy)
        domain = await rig.domain(mcpServers={"captive": spec.entry.to_json()})
        assert (await read_server(rig, domain, "captive"))["reason"] == ""
        policy.catalogue.revoke(policy.catalogue.allowed_entries()[0].id)
        assert "matches nothing in the launch catalogue" in (await read_server(rig, domain, "captive"))["reason"]


async def test_a_disabled_or_removed_server_ends_at_once(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[calling("a__fine")] * 4, any_command=True) as rig:
        domain = await rig.domain(mcpServers={"a": hostile(), "b": hostile()})
        path = f"/api/domains/{domain}"
        await rig.say(await rig.conversation(domain), "Go")
        assert children(rig) == 2
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"b": None}}})
        await until(lambda: children(rig) == 1)
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"a": hostile(disabled=True)}}})
        await until(lambda: children(rig) == 0)
        assert (await read_server(rig, domain, "a"))["state"] == "stopped"
        status, code, message = await rig.refused("POST", f"{path}/mcp-servers/a/restart")
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert "disabled" in message
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"a": hostile()}}})
        events = await rig.say(await rig.conversation(domain), "Go")
        assert [event["status"] for event in events if event["type"] == "tool_result"] == ["ok"]


async def test_an_edited_entry_shows_its_state_and_its_older_child_ends_when_unused(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[calling("a__fine")] * 4, any_command=True) as rig:
        domain = await rig.domain(mcpServers={"a": hostile()})
        await rig.say(await rig.conversation(domain), "Go")
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"a": hostile("noisy")}}})
        await rig.say(await rig.conversation(domain), "Go")
        older, newer = sorted(
            rig.application.parts.pool.connections()[-2:], key=lambda connection: not connection.retired
        )
        assert (older.retired, newer.retired) == (True, False)
        assert "stdout, not a message" in str((await read_server(rig, domain, "a"))["log"])


async def test_a_deleted_domain_leaves_no_child_and_no_folder_of_one(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[calling("a__fine")] * 4, any_command=True) as rig:
        other_domain = await rig.domain(mcpServers={"a": hostile()})
        domain = await rig.domain(mcpServers={"a": hostile(), "b": hostile(identity="user")})
        for domain_id in (other_domain, domain):
            await rig.say(await rig.conversation(domain_id), "Go")
        assert (children(rig), homes(rig)) == (3, 3)
        await rig.ok("DELETE", f"/api/domains/{domain}")
        assert (children(rig), homes(rig)) == (1, 1)


async def test_a_get_answer_can_be_tested_unchanged(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        domain = await rig.domain(mcpServers={"a": hostile()})
        everything = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]
        for document in (everything, {"mcpServers": everything}):
            report = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/test", document)
            assert [(item["name"], item["state"]) for item in report["items"]] == [("a", "ready")]
            assert (report["changes"], report["warnings"]) == ([], [])
        servers = (await rig.ok("GET", f"/api/domains/{domain}/effective-prompt"))["servers"]
        (server_a,) = [server for server in servers if server["name"] == "a"]
        assert server_a["tools"] == len(report["items"][0]["tools"])
        assert server_a["tokens"] > 0
        changed_servers = {**everything, "promptx": {**everything["promptx"], "enabled": False}}
        assert (await rig.refused("POST", f"/api/domains/{domain}/mcp-servers/test", changed_servers))[:2] == (
            409,
            "MCP_SERVER_RESERVED",
        )


async def test_notes_name_the_entry_by_one_path_in_every_wrapper(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        path = f"/api/domains/{await rig.domain()}"
        for root in ("mcpServers", "servers"):
            document = {root: {"a": hostile(iconPath="/x")}}
            tested = await rig.ok("POST", f"{path}/mcp-servers/test", document)
            assert [note["path"] for note in tested["changes"]] == ["mcpServers.a.type"]
            assert [note["path"] for note in tested["warnings"]] == ["mcpServers.a.iconPath"]
            domain_record = await rig.ok("PUT", path, {"settings": {"mcpServers": document}})
            assert [note["path"] for note in domain_record["changes"]] == ["settings.mcpServers.a.type"]
            assert [note["path"] for note in domain_record["warnings"]] == ["settings.mcpServers.a.iconPath"]


async def test_unaccepted_tools_are_shown_only_for_their_entry(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[calling("a__grow")] * 2, say("Fine."), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"a": hostile()})
        path = f"/api/domains/{domain}"
        await rig.say(await rig.conversation(domain), "Go")

        async def is_waiting() -> bool:
            await rig.application.parts.pool.connections()[-1].tools(5)
            return "grown" in str([tool.name for tool in rig.application.parts.pool.connections()[-1].known_tools])

        await until(is_waiting)
        await rig.say(await rig.conversation(domain), "Again")
        assert (await read_server(rig, domain, "a"))["pendingTools"] == ["grown"]
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"a": hostile("noisy")}}})
        assert (await read_server(rig, domain, "a"))["pendingTools"] == []
        assert (await accept_waiting(rig, domain, "a"))["accepted"] == []
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"a": hostile()}}})
        assert (await read_server(rig, domain, "a"))["pendingTools"] == ["grown"]
        pending = await rig.ok("GET", f"{path}/mcp-servers/a/pending")
        assert [(tool["name"], tool["before"], tool["now"]["name"]) for tool in pending["tools"]] == [
            ("grown", None, "grown")
        ]
        stale = {"fingerprint": "0" * 64}
        assert (await rig.refused("POST", f"{path}/mcp-servers/a/accept", stale))[:2] == (409, "TOOLS_CHANGED")
        assert (await rig.refused("POST", f"{path}/mcp-servers/a/accept", {}))[:2] == (422, "VALIDATION_ERROR")
        assert (await accept_waiting(rig, domain, "a"))["accepted"] == ["grown"]
        rows = (await rig.ok("GET", "/api/audit"))["items"]
        row = next(row for row in rows if row["action"] == "mcp.accept")  # the newest comes first
        assert (row["target"], row["details"]) == (f"{domain}/a", {"fingerprint": pending["fingerprint"]})


async def test_a_tool_listed_twice_is_shown_to_no_model_and_the_admin_reads_why(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Fine."), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"a": hostile("twice")})
        await rig.say(await rig.conversation(domain), "Go")
        (dropped,) = (await read_server(rig, domain, "a"))["droppedTools"]
        assert dropped["name"] == "fine"
        assert "more than once" in dropped["reason"]
        tool_names = [tool["name"] for tool in rig.model.requests[0].tools]
        assert "a__fine" not in tool_names
        assert "a__grow" in tool_names


async def test_a_secrets_change_or_removal_applies_from_the_next_turn(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[calling("a__fine")] * 6, say("Not today."), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"a": hostile(env={"TOKEN": "${KEY}", "OWN": "own-value-1"})})
        path = f"/api/domains/{domain}"
        conversation = await rig.conversation(domain)
        own = {"settings": {"mcpServers": {"a": hostile(env={"TOKEN": "${KEY}", "OWN": "own-value-2"})}}}
        changes = [("PUT", f"{path}/secrets/KEY", {"value": "first-value"}), ("PATCH", path, own)]
        changes.append(("PUT", f"{path}/secrets/KEY", {"value": "second-value"}))
        for child_count, (method, place, body) in enumerate(changes, 1):
            await rig.ok(method, place, body)
            events = await rig.say(conversation, "Go")
            assert [event["status"] for event in events if event["type"] == "tool_result"] == ["ok"]
            assert [
                connection.retired for connection in rig.application.parts.pool.connections() if connection.domain
            ] == [
                False,
                *[True] * (child_count - 1),
            ]
        await rig.ok("DELETE", f"{path}/secrets/KEY")
        assert "${KEY} has no value" in str(await rig.say(conversation, "Go"))


async def test_a_built_in_server_cannot_be_restarted_and_an_unknown_one_is_not_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/mcp-servers"
        for name in ("promptx", "retriever"):
            for action in ("restart", "accept"):
                response = await rig.http.post(f"{path}/{name}/{action}", json={"fingerprint": "0"})
                error = response.json()["error"]
                assert (response.status_code, error["code"]) == (409, "MCP_SERVER_RESERVED")
                assert error["details"]["path"] == f"mcpServers.{name}"
                assert "cannot be restarted" in error["message"]
        status, code, message = await rig.refused("POST", f"{path}/files/restart")
        assert (status, code, message) == (404, "MCP_SERVER_NOT_FOUND", "There is no MCP server 'files'.")


async def test_a_refused_entry_has_its_place_and_remedy_in_the_details(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        for name, entry, expected in (
            (
                "x",
                {"command": "/opt/tool", "args": ["a b"], "env": {"KEY": "${K}"}},
                {
                    "path": "settings.mcpServers.x.command",
                    "command": "/opt/tool 'a b'",
                    "allow": "agentic-rag mcp allow --env KEY -- /opt/tool 'a b'",
                },
            ),
            ("y", {"url": "http://example.com/mcp"}, {"path": "settings.mcpServers.y.url"}),
        ):
            response = await rig.http.patch(path, json={"settings": {"mcpServers": {name: entry}}})
            error = response.json()["error"]
            assert error["code"] == "MCP_COMMAND_NOT_ALLOWED"
            problems = error["details"].pop("problems", [{"path": expected["path"]}])
            assert problems[0]["path"] == expected["path"], "a refusal lists every problem, its own first"
            assert error["details"].pop("reason") in error["message"]
            assert error["details"] == expected
        response = await rig.http.patch(path, json={"settings": {"mcpServers": {"promptx": {"command": "x"}}}})
        assert response.json()["error"]["details"]["path"] == "settings.mcpServers.promptx"
