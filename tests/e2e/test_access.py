"""Keys end to end: the real server process, the real command line, real sockets."""

import json
import sqlite3
import subprocess
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.databases import database_url
from tests.e2e.serving import environment, serving_without_demo
from tests.programs import run_program


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    settings = {"AGENTIC_RAG_DATABASE_URL": database_url(folder / "data"), **variables}
    return run_program(arguments, cwd=folder, env=environment(**settings))


def test_beyond_loopback_the_server_starts_only_with_a_key(tmp_path: Path) -> None:
    refusal = run(tmp_path, "serve", "--port", "0", "--host", "0.0.0.0")
    assert refusal.returncode == 2
    assert "agentic-rag keys create --user NAME --role operator" in refusal.stderr
    created = run(tmp_path, "keys", "create", "--user", "ann", "--role", "operator")
    assert created.returncode == 0, created.stderr
    with serving_without_demo(tmp_path / "data", "--host", "0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        denied = run(tmp_path, "domains", "list", "--url", url)
        assert (denied.returncode, denied.stderr.count("\n")) == (1, 1)
        assert "API key" in denied.stderr
        key = created.stdout.strip()
        domain = run(tmp_path, "domains", "create", "Law", "--url", url, AGENTIC_RAG_KEY=key).stdout.strip()
        assert domain
        assert domain in run(tmp_path, "--key", key, "domains", "list", "--url", url).stdout
        assert domain in run(tmp_path, "domains", "list").stdout  # with the key in the data folder


@pytest.mark.sqlite("changes the file")
async def test_a_member_chats_until_the_operator_revokes_the_key(tmp_path: Path) -> None:
    with serving_without_demo(tmp_path / "data") as server:
        domain = await server.make_domain_with("leave.md", b"Full-time staff have 25 days of paid leave a year.")
        created = run(tmp_path, "keys", "create", "--user", "ann", "--role", "member", "--domain", domain)
        key = created.stdout.strip()
        answer = run(tmp_path, "chat", domain, "How many days of paid leave?", "--url", server.url, "--key", key)
        assert answer.returncode == 0, answer.stderr
        assert run(tmp_path, "chat", domain, "Hi", "--url", server.url).returncode == 1
        address = server.url.replace("http", "ws") + "/ws"
        with pytest.raises(InvalidStatus):
            async with connect(address):
                pass
        async with connect(address, additional_headers={"Authorization": f"Bearer {key}"}) as socket:
            await socket.send(json.dumps({"type": "ping"}))
            assert json.loads(await socket.recv()) == {"type": "pong"}
            key_id = run(tmp_path, "keys", "list").stdout.split("\t")[0]
            assert run(tmp_path, "keys", "revoke", key_id).returncode == 0
            with pytest.raises(ConnectionClosed) as closing:
                await socket.recv()
        assert closing.value.rcvd is not None
        assert closing.value.rcvd.code == 1008
        audit_list = run(tmp_path, "audit", "list").stdout
        assert "key.create" in audit_list
        assert "key.revoke" in audit_list
        assert key not in audit_list
        verification = run(tmp_path, "audit", "verify")
        assert (verification.returncode, "intact" in verification.stdout) == (0, True)
        head = verification.stdout.split()[-1]
    database = sqlite3.connect(tmp_path / "data" / "agentic-rag.db")
    with database:
        database.execute("UPDATE audit SET actor = 'nobody' WHERE action = 'key.revoke'")
    database.close()
    second_verification = run(tmp_path, "audit", "verify", "--head", head)
    assert second_verification.returncode == 1
    assert "content was changed" in second_verification.stderr
