"""A secret enters through the API, reaches its server, and appears nowhere else."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.store import secrets
from agentic_rag.testing.steps import say, use
from tests.server.rig import Rig, types_of

pytestmark = pytest.mark.attack(kind="secrets")

SECRET = "sk-planted-0123456789-wxyz"
LEAKY = [str(Path(__file__).with_name("leaky.py"))]

Json = dict[str, Any]


def leaky_entry(env: Json | None = None, **fields: Any) -> Json:
    return {"command": sys.executable, "args": LEAKY, "env": {"TOKEN": SECRET} if env is None else env, **fields}


@contextmanager
def capture_logs() -> Iterator[io.StringIO]:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield log
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def assert_nowhere(folder: Path, secret: str = SECRET) -> None:
    """Read every byte below a folder: database, journal, payloads, homes."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def assert_in_no_command_line(secret: str = SECRET) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        assert secret.encode() not in line


async def start(rig: Rig, domain: str, name: str) -> None:
    """Start a server before the turn, because on a busy machine a turn may begin without a slow one."""
    server = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/{name}/restart")
    assert server["state"] == "ready", server


async def test_a_secret_reaches_its_server_and_is_never_shown(tmp_path: Path) -> None:
    steps = (use("leaky__leak"), use("leaky__fail"), use("leaky__take", text=f"send {SECRET} away"), say("Done."))
    with capture_logs() as log:
        async with Rig(tmp_path, *steps, any_command=True) as rig:
            domain = await rig.domain()
            path = f"/api/domains/{domain}"
            responses = [await rig.ok("PUT", f"{path}/secrets/API_TOKEN", {"value": SECRET})]
            env = {"TOKEN": "${API_TOKEN}", "MODE": {"value": "${STAGE:-test}-mode", "secret": False}}
            change = {"settings": {"mcpServers": {"leaky": leaky_entry(env)}, "toolPolicy": {"leaky__*": "allow"}}}
            responses.append(await rig.ok("PUT", path, change))
            await start(rig, domain, "leaky")
            conversation = await rig.conversation(domain)
            events = await rig.say(conversation, "Go")
            assert types_of(events)[-1] == "done"
            results = [event for event in events if event["type"] == "tool_result"]
            assert [result["status"] for result in results] == ["ok", "error", "denied"]
            assert "[secret API_TOKEN]" in results[0]["content"]
            assert "test-mode" in results[0]["content"]
            assert "[secret API_TOKEN]" in results[1]["content"]
            model_messages = json.dumps([block for request in rig.model.requests[:3] for block in request.messages])
            assert "[secret API_TOKEN]" in model_messages
            assert SECRET not in model_messages
            assert "Use [secret API_TOKEN] well." in str(rig.model.requests[0].tools)
            assert SECRET not in json.dumps(events)
            assert_in_no_command_line()
            responses.append(await rig.ok("GET", f"{path}/mcp-servers"))
            assert "started with [secret API_TOKEN]" in json.dumps(responses[-1])
            turn_path = f"/api/turns/{events[0]['turnId']}"
            secrets_path = f"{path}/secrets"
            conversation_path = f"/api/conversations/{conversation}"
            responses += [
                await rig.ok("GET", response_path)
                for response_path in (
                    path,
                    "/api/domains",
                    secrets_path,
                    f"{secrets_path}/API_TOKEN",
                    "/api/health",
                    turn_path,
                    conversation_path,
                    f"{conversation_path}/messages",
                    f"{conversation_path}/tool-calls",
                )
            ]
            assert SECRET not in json.dumps(responses)
    assert SECRET not in log.getvalue()


async def test_an_inline_secret_is_sealed_masked_kept_replaced_and_removed(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("leaky__leak"), say("Done."), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"leaky": leaky_entry()})
        path = f"/api/domains/{domain}"
        domain_record = await rig.ok("GET", path)
        entry = domain_record["settings"]["mcpServers"]["leaky"]
        assert entry["env"] == {"TOKEN": {"set": True, "last4": "wxyz"}}
        domain_record["settings"]["tone"] = "formal"
        saved = await rig.ok("PUT", path, domain_record)
        assert saved["settings"]["mcpServers"]["leaky"] == entry
        assert (saved["changes"], saved["warnings"]) == ([], [])
        await start(rig, domain, "leaky")
        events = await rig.say(await rig.conversation(domain), "Go")
        assert "[secret leaky.env.TOKEN]" in json.dumps(events)
        assert SECRET not in json.dumps(events)
        assert (await rig.ok("GET", f"{path}/secrets"))["items"] == []
        entry["env"] = {"TOKEN": "another-secret-value"}
        saved = await rig.ok("PATCH", path, {"settings": {"mcpServers": {"leaky": entry}}})
        assert saved["settings"]["mcpServers"]["leaky"]["env"]["TOKEN"]["last4"] == "alue"
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"leaky": None}}})
        entry["env"] = {"TOKEN": {"set": True, "last4": "alue"}}
        refusal = await rig.refused("PATCH", path, {"settings": {"mcpServers": {"leaky": entry}}})
        assert refusal[:2] == (422, "VALIDATION_ERROR")
        assert refusal[2].startswith("settings.mcpServers.leaky.env.TOKEN: no value is stored")
    assert_nowhere(tmp_path)
    assert_nowhere(tmp_path, "another-secret-value")


async def test_a_mask_of_another_entry_or_variable_keeps_no_secret(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        path = f"/api/domains/{await rig.domain(mcpServers={'leaky': leaky_entry()})}"
        mask = {"set": True, "last4": "wxyz"}
        for servers in ({"other": leaky_entry({"TOKEN": mask})}, {"leaky": leaky_entry({"COPY": mask})}):
            refusal = await rig.refused("PATCH", path, {"settings": {"mcpServers": servers}})
            assert refusal[:2] == (422, "VALIDATION_ERROR")


async def test_an_unset_placeholder_fails_only_its_entry_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    async with Rig(tmp_path, use("fine__take", text="abc"), say("Done."), any_command=True) as rig:
        servers = {
            "unset": leaky_entry({"TOKEN": "${HOST_SECRET}"}),
            "fine": leaky_entry({"TOKEN": "${HOST_SECRET:-none}"}),
        }
        created = await rig.ok("POST", "/api/domains", {"name": "Law", "settings": {"mcpServers": servers}})
        assert "settings.mcpServers.unset" in [note["path"] for note in created["warnings"]]
        await rig.ok("PATCH", f"/api/domains/{created['id']}", {"settings": {"toolPolicy": {"fine__*": "allow"}}})
        await start(rig, created["id"], "fine")
        events = await rig.say(await rig.conversation(created["id"]), "Go")
        assert [event["content"] for event in events if event["type"] == "tool_result"] == ["took 3"]
        servers_shown = (await rig.ok("GET", f"/api/domains/{created['id']}/mcp-servers"))["items"]
        states = {server["name"]: (server["state"], server["reason"]) for server in servers_shown}
        assert states["fine"][0] == "ready"
        assert states["unset"][0] == "failed"
        assert "mcpServers.unset.env.TOKEN: ${HOST_SECRET} has no value" in states["unset"][1]
        assert SECRET not in json.dumps([events, servers_shown])


async def test_a_secret_is_refused_in_arguments_and_addresses(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        path = f"/api/domains/{await rig.domain()}"
        await rig.ok("PUT", f"{path}/secrets/KEY", {"value": SECRET})
        for entry, field in (
            ({"command": sys.executable, "args": ["-x", "${KEY}"]}, "args.1"),
            ({"url": "https://${KEY}.example/mcp"}, "url"),
        ):
            refusal = await rig.refused("PATCH", path, {"settings": {"mcpServers": {"x": entry}}})
            assert refusal[:2] == (422, "VALIDATION_ERROR")
            assert refusal[2].startswith(f"settings.mcpServers.x.{field}: ")


async def test_a_secret_created_after_its_use_in_arguments_is_not_sent(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        domain = await rig.domain(
            variables={"PLACE": "here"}, mcpServers={"x": {"command": sys.executable, "args": [*LEAKY, "${PLACE}"]}}
        )
        path = f"/api/domains/{domain}"
        await rig.ok("PUT", f"{path}/secrets/PLACE", {"value": SECRET})
        server = await rig.ok("POST", f"{path}/mcp-servers/x/restart")
        assert server["state"] == "failed"
        assert "${PLACE} is a secret" in server["reason"]
        assert_in_no_command_line()


async def test_a_trial_starts_the_entry_saves_nothing_and_shows_no_secret(tmp_path: Path) -> None:
    with capture_logs() as log:
        async with Rig(tmp_path, any_command=True) as rig:
            path = f"/api/domains/{await rig.domain()}"
            before = await rig.ok("GET", path)
            document = {"mcpServers": {"good": leaky_entry(), "bad": leaky_entry({"TOKEN": SECRET, "DIE": "1"})}}
            report = await rig.ok("POST", f"{path}/mcp-servers/test", document)
            good, bad = report["items"]
            assert good["state"] == "ready"
            assert [tool["name"] for tool in good["tools"]] == ["leak", "fail", "take"]
            assert bad["state"] != "ready"
            assert any("dying with [secret " in line for line in bad["log"])
            assert [note["path"] for note in report["changes"]] == [
                "mcpServers.good.type",
                "mcpServers.bad.type",
            ]
            assert SECRET not in json.dumps(report)
            assert await rig.ok("GET", path) == before
            assert [mcp_server["name"] for mcp_server in (await rig.ok("GET", f"{path}/mcp-servers"))["items"]] == [
                "promptx"
            ]
    assert SECRET not in log.getvalue()
    assert_nowhere(tmp_path)


async def test_saving_and_reading_entries_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    async with Rig(tmp_path, any_command=True) as rig:
        entry = {"command": "/bin/sh", "args": ["-c", f"echo >> {mark}"]}
        domain = await rig.domain(mcpServers={"mark": entry})
        path = f"/api/domains/{domain}"
        await rig.ok("PUT", path, await rig.ok("GET", path))
        await rig.refused("PUT", path, {"settings": {"mcpServers": {"mark": entry, "promptx": entry}}})
        await rig.refused("POST", f"{path}/mcp-servers/test", {"mark": entry, "broken": {}})
        await rig.ok("GET", f"{path}/mcp-servers")
        assert not mark.exists()


async def test_a_restart_or_acceptance_of_a_server_that_is_not_the_domains_own_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/mcp-servers"
        for name, expected in (("promptx", (409, "MCP_SERVER_RESERVED")), ("nothing", (404, "MCP_SERVER_NOT_FOUND"))):
            for action, body in (("restart", None), ("accept", {"fingerprint": "0" * 64})):
                assert (await rig.refused("POST", f"{path}/{name}/{action}", body))[:2] == expected


async def test_secrets_beyond_the_domains_limits_are_refused_on_saving(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = f"/api/domains/{await rig.domain()}"
        for number in range(8):
            await rig.ok("PUT", f"{domain}/secrets/LONG{number}", {"value": str(number) * 8_000})
        status, code, message = await rig.refused("PUT", f"{domain}/secrets/LONG8", {"value": "8" * 8_000})
        assert (status, code) == (422, "SECRET_LIMIT")
        assert message.startswith("value: the domain's secrets would have 72000 bytes")
        for number in range(8):
            await rig.ok("PUT", f"{domain}/secrets/LONG{number}", {"value": f"replaced-{number}"})
        entries = {
            f"s{server}": {
                "url": "https://mcp.example.com",
                "headers": {f"X-{index}": f"v-{index}" for index in range(50)},
            }
            for server in range(4)
        }
        status, code, message = await rig.refused("PATCH", domain, {"settings": {"mcpServers": entries}})
        assert (status, code) == (422, "SECRET_LIMIT")
        assert message.startswith("mcpServers: the domain would have 208 secrets")
        assert [secret["name"] for secret in (await rig.ok("GET", f"{domain}/secrets"))["items"]] == [
            f"LONG{number}" for number in range(8)
        ]


async def test_the_secret_routes_accept_values_and_return_masks(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/secrets"
        mask = {"name": "KEY", "set": True, "last4": "wxyz"}
        assert await rig.ok("PUT", f"{path}/KEY", {"value": SECRET}) == mask
        assert await rig.ok("PUT", f"{path}/KEY", {"set": True, "last4": "wxyz"}) == mask
        assert await rig.ok("GET", f"{path}/KEY") == mask
        assert (await rig.refused("PUT", f"{path}/NEW", {"set": True}))[:2] == (422, "VALIDATION_ERROR")
        for body in ({}, {"value": ""}, {"value": 5}, {"value": "x", "more": 1}, [SECRET], {"value": SECRET * 500}):
            status, code, message = await rig.refused("PUT", f"{path}/KEY", body)
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert SECRET not in message
        for name in ("a b", "x.env.TOKEN", "1X", "K" * 65, "%00"):
            assert (await rig.refused("PUT", f"{path}/{name}", {"value": "v"}))[1] in ("VALIDATION_ERROR", "NOT_FOUND")
        await rig.ok("DELETE", f"{path}/KEY")
        for method in ("GET", "DELETE"):
            assert (await rig.refused(method, f"{path}/KEY"))[:2] == (404, "SECRET_NOT_FOUND")
        assert (await rig.refused("GET", "/api/domains/dom_none/secrets"))[:2] == (404, "DOMAIN_NOT_FOUND")
    assert_nowhere(tmp_path)


async def test_headers_of_a_remote_server_are_sealed_and_survive_get_edit_put(tmp_path: Path) -> None:
    entry = {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": f"Bearer {SECRET}", "X-App": "${APP}"}}
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"mcpServers": {"remote": entry}}, variables={"APP": "one"})
        path = f"/api/domains/{domain}"
        domain_record = await rig.ok("GET", path)
        remote = domain_record["settings"]["mcpServers"]["remote"]
        assert remote["headers"] == {"Authorization": {"set": True, "last4": "wxyz"}, "X-App": "${APP}"}
        remote["enabled"] = False
        saved = await rig.ok("PUT", path, domain_record, headers={"if-match": '"1"'})
        assert saved["settings"]["mcpServers"]["remote"] == remote
        assert (await rig.application.services.vault.values(domain))[
            "remote.headers.Authorization"
        ] == f"Bearer {SECRET}"
        assert (await rig.refused("PUT", path, domain_record, headers={"if-match": '"1"'}))[:2] == (
            409,
            "VERSION_CONFLICT",
        )
    assert_nowhere(tmp_path)


async def test_a_row_swapped_in_the_database_fails_its_server_and_reveals_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        first_domain, second_domain = await rig.domain(mcpServers={"x": leaky_entry()}), await rig.domain()
        await rig.ok("PUT", f"/api/domains/{second_domain}/secrets/KEY", {"value": "another-secret-value"})
        database = rig.application.database
        (row,) = await database.read(lambda conn: secrets.of_domain(conn, first_domain))
        (second_row,) = await database.read(lambda conn: secrets.of_domain(conn, second_domain))
        await database.write(lambda conn: secrets.reseal(conn, row, second_row.sealed))
        server = await rig.ok("POST", f"/api/domains/{first_domain}/mcp-servers/x/restart")
        assert server["state"] == "failed"
        assert "mcpServers.x.env.TOKEN: its stored value is missing or cannot be read" in server["reason"]
        domain_record = await rig.ok("GET", f"/api/domains/{first_domain}")
        assert domain_record["settings"]["mcpServers"]["x"]["env"] == {"TOKEN": {"set": True}}


async def test_secrets_are_deleted_with_their_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/KEY", {"value": SECRET})
        await rig.ok("DELETE", f"/api/domains/{domain}")
        assert await rig.application.services.vault.values(domain) == {}
