"""The guard around the application: foreign pages, unknown paths, unexpected failures."""

from pathlib import Path

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from agentic_rag.errors import BadConfiguration
from agentic_rag.server.auth import Guard
from tests.server.rig import Rig


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "user@127.0.0.1", "10.0.0.1:8000"])
async def test_a_foreign_host_is_refused(tmp_path: Path, host: str) -> None:
    async with Rig(tmp_path) as rig:
        assert (await rig.refused("GET", "/api/health", headers={"host": host}))[:2] == (403, "FORBIDDEN")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"])
async def test_a_loopback_host_is_served(tmp_path: Path, host: str) -> None:
    async with Rig(tmp_path) as rig:
        assert await rig.ok("GET", "/api/ready", headers={"host": host}) == {"ready": True}


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize(
    "origin",
    ["null", "http://evil.example", "http://127.0.0.1:81", "http://127.0.0.1.evil.example", "http://localhost"],
)
async def test_a_foreign_origin_is_refused(tmp_path: Path, origin: str) -> None:
    async with Rig(tmp_path) as rig:
        assert (await rig.refused("GET", "/api/health", headers={"origin": origin}))[:2] == (403, "FORBIDDEN")
        assert (await rig.http.get("/api/health", headers={"origin": "http://127.0.0.1"})).status_code == 200


async def test_unknown_paths_and_methods_are_answered_in_our_form(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        assert (await rig.refused("GET", "/nothing"))[:2] == (404, "NOT_FOUND")
        assert (await rig.refused("PATCH", "/api/health"))[:2] == (405, "METHOD_NOT_ALLOWED")


async def test_an_unexpected_failure_tells_the_client_nothing_but_a_reference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the secret is 42")

    transport = httpx2.ASGITransport(Guard(broken))
    async with httpx2.AsyncClient(base_url="http://127.0.0.1", transport=transport) as http:
        response = await http.get("/")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "INTERNAL_ERROR")
    assert "42" not in response.text
    assert error["requestId"] in caplog.text
    assert "the secret is 42" in caplog.text


async def test_health_names_every_part_with_its_state(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        health = await rig.ok("GET", "/api/health")
        assert health["model"] == {"name": "scripted", "state": "ready"}
        assert health["embedder"]["mode"] == "lexical"
        assert {health["store"]["state"], health["index"]["state"]} == {"ready"}
        assert [server["name"] for server in health["servers"]] == ["promptx", "retriever"]
        assert (await rig.ok("GET", "/api/version"))["version"]


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
async def test_without_a_key_the_server_does_not_start_where_others_could_connect(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadConfiguration, match="agentic-rag keys create --user NAME --role operator"):
        async with Rig(tmp_path, host=host):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
async def test_without_a_key_the_server_starts_on_loopback(tmp_path: Path, host: str) -> None:
    async with Rig(tmp_path, host=host) as rig:
        assert (await rig.http.get("/api/ready")).status_code == 200
