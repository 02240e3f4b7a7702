"""Two complete servers on one database: a change at one takes effect at the other, for all its users."""

import base64
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.exceptions import InvalidStatus

from agentic_rag.base.errors import first_cause
from agentic_rag.base.startup_errors import BadConfiguration, DataFolderOwned
from agentic_rag.operations.data_folder import DataFolder
from agentic_rag.testing.scripted import Scripted, ScriptedModel
from agentic_rag.testing.steps import say
from tests.access.tenants import bearer, make_key, socket
from tests.server.rig import Json, Rig
from tests.store.conftest import needs_postgresql
from tests.store.test_leases import store
from tests.waiting import pause
from tests.ws.serving import client, serving

__all__ = ["store"]
PATIENCE = 240
KEY = base64.b64encode(secrets.token_bytes(32)).decode()
QUESTION = "How many days of paid leave do full-time staff have?"


@asynccontextmanager
async def open_servers(folder: Path, store: str, *steps: Scripted, **settings: Any) -> AsyncIterator[tuple[Rig, Rig]]:
    """Two servers; ``steps`` are the answers of the first one's model."""
    settings = {"database_url": store, "secret_key": KEY, **settings}
    async with (
        Rig(folder / "a", *steps, **settings) as a,
        Rig(folder / "b", instead=ScriptedModel(then=say("Here.")), **settings) as b,
    ):
        yield a, b


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    with anyio.fail_after(PATIENCE):
        checks = count()
        while not await condition():
            await pause(next(checks))


@needs_postgresql
async def test_a_ticket_of_one_server_is_valid_once_at_another(tmp_path: Path, store: str) -> None:
    async with open_servers(tmp_path, store) as (a, b), serving(b.application.app) as address:
        key = await make_key(a, "ann", "operator")
        ticket = await a.ok("POST", "/api/ws-tickets", headers=bearer(key))
        async with socket(address, ticket["subprotocol"], "agentic-rag.native") as reader:
            assert (await reader.ask("ping"))["type"] == "pong"
        with pytest.raises(InvalidStatus, match="401"):
            async with socket(address, ticket["subprotocol"], "agentic-rag.native"):
                pass
        ticket_of_revoked = await a.ok("POST", "/api/ws-tickets", headers=bearer(key))
        (key_record,) = (await a.ok("GET", "/api/keys"))["items"]
        await a.ok("DELETE", f"/api/keys/{key_record['id']}")

        async def is_refused() -> bool:
            return (await b.http.get("/api/domains", headers=bearer(key))).status_code == 401

        await until(is_refused)
        with pytest.raises(InvalidStatus, match="401"):
            async with socket(address, ticket_of_revoked["subprotocol"], "agentic-rag.native"):
                pass


@needs_postgresql
async def test_a_budget_change_on_one_server_applies_on_the_other(tmp_path: Path, store: str) -> None:
    async with open_servers(tmp_path, store) as (a, b):
        conversation = await b.conversation()
        domain = (await b.ok("GET", f"/api/conversations/{conversation}"))["domainId"]
        assert (await b.say(conversation, "Hi"))[-1]["type"] == "done"  # a call with a cost
        budget = {"scope": "domain", "subject": domain, "unit": "tokens", "period": "day", "hard": "1"}
        budget_record = await a.ok("PUT", "/api/budgets", budget)
        spending = b.application.parts.spending

        async def is_limited() -> bool:
            return bool(spending._budgets)

        await until(is_limited)
        refusal = await b.refused("POST", f"/api/conversations/{conversation}/messages", {"content": "Again"})
        assert refusal[1] == "BUDGET_EXCEEDED"
        await a.ok("DELETE", f"/api/budgets/{budget_record['id']}")

        async def is_free() -> bool:
            return not await is_limited()

        await until(is_free)


@needs_postgresql
async def test_a_title_from_one_server_reaches_clients_of_another(tmp_path: Path, store: str) -> None:
    steps = (say("27 days."), say("Paid leave of full-time staff"))
    async with open_servers(tmp_path, store, *steps, titles="model") as (a, b), serving(b.application.app) as address:
        conversation = await a.conversation()
        async with client(address) as reader:
            await reader.ask("subscribe", conversationId=conversation)
            await a.say(conversation, QUESTION)
            await a.application.parts.naming.run()
            with anyio.fail_after(PATIENCE):
                messages: list[Json] = []
                while not messages or messages[-1].get("title") != "Paid leave of full-time staff":
                    messages.append(await reader.hear())


@pytest.mark.sqlite("no database to share")
async def test_redis_without_a_shared_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as group:  # from the nesting depth of the open parts
        async with Rig(tmp_path, redis_url="redis://127.0.0.1:1/0"):
            pass
    cause = first_cause(group.value)
    assert isinstance(cause, BadConfiguration)
    assert "AGENTIC_RAG_REDIS_URL" in str(cause)
    assert "AGENTIC_RAG_DATABASE_URL" in str(cause)


@needs_postgresql
async def test_servers_share_a_data_folder_and_keep_private_files_beside_it(tmp_path: Path, store: str) -> None:
    """The other server reads the files of the first one. A server that wants the folder alone is refused meanwhile."""
    places: list[dict[str, Any]] = [{"data": tmp_path / "shared", "local": tmp_path / name} for name in ("a", "b")]
    options: dict[str, Any] = {"database_url": store, "secret_key": KEY}
    async with (
        Rig(tmp_path, say("One."), **options, **places[0]) as a,
        Rig(tmp_path, say("Two."), **options, **places[1]) as b,
    ):
        domain = await a.domain()
        document = await a.upload(domain, "leave.md", b"# Leave\n\nThirty days.")
        await a.settled(domain, document["id"])
        conversation = await b.conversation(domain)
        assert (await b.say(conversation, "Hi"))[-1]["type"] == "done"
        assert (await a.say(conversation, "Again"))[-1]["type"] == "done"
        response = await b.http.get(f"/api/domains/{domain}/documents/{document['id']}/file")
        assert response.content == b"# Leave\n\nThirty days."
        folders = [server.application.parts.folder for server in (a, b)]
        assert folders[0].incoming != folders[1].incoming
        for name in ("a", "b"):
            assert {"lock", "name"} <= {path.name for path in (tmp_path / name).iterdir()}
        with pytest.raises(DataFolderOwned):
            DataFolder.own(tmp_path / "shared")
    DataFolder.own(tmp_path / "shared").release()
    name_before = folders[0].name
    async with Rig(tmp_path, **options, **places[0]) as a:
        assert a.application.parts.folder.name == name_before


@needs_postgresql
async def test_two_servers_with_separate_indexes_report_that_they_need_qdrant(
    tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"database_url": store, "secret_key": KEY, "data": tmp_path / "shared"}
    async with Rig(tmp_path, local=tmp_path / "a", **options) as a:
        assert (await a.ok("GET", "/api/health"))["index"]["state"] == "ready"
        async with Rig(tmp_path, local=tmp_path / "b", **options):
            index = (await a.ok("GET", "/api/health"))["index"]
            assert (index["state"], "QDRANT_URL" in index["reason"]) == ("degraded", True)
            assert "QDRANT_URL" in caplog.text


def mount(*arguments: str | Path) -> None:
    process = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if process.returncode:
        pytest.skip(f"nothing can be mounted here: {process.stderr}")


@contextmanager
def make_read_only(place: Path) -> Iterator[None]:
    """Make a folder read-only for everybody who opens it by its path."""
    mount("--bind", place, place)
    try:
        mount("-o", "remount,bind,ro", place)
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@needs_postgresql
async def test_a_shared_folder_that_turns_read_only_is_reported_and_keeps_its_files(tmp_path: Path, store: str) -> None:
    options: dict[str, Any] = {"database_url": store, "secret_key": KEY, "data": tmp_path / "shared"}
    async with (
        Rig(tmp_path, say("One."), say("Two."), local=tmp_path / "a", **options) as a,
        Rig(tmp_path, say("Three."), local=tmp_path / "b", **options) as b,
    ):
        domain = await a.domain()
        document = await a.upload(domain, "leave.md", b"# Leave\n\nThirty days.")
        conversation = await b.conversation(domain)
        assert (await a.say(conversation, "Hi"))[-1]["type"] == "done"
        path = f"/api/domains/{domain}/documents"
        with make_read_only(tmp_path / "shared"):
            response = await b.http.post(path, files={"f": ("more.md", b"# More")})
            assert (response.status_code, response.json()["error"]["code"]) == (507, "STORAGE_FULL")
            for server in (a, b):  # turns need only the database, and existing files are read
                assert (await server.say(conversation, "Hi"))[-1]["type"] == "done"
                assert (await server.http.get(f"{path}/{document['id']}/file")).content == b"# Leave\n\nThirty days."
        more = await b.upload(domain, "more.md", b"# More\n\nForty days.")
        assert {item["id"] for item in (await a.ok("GET", path))["items"]} == {document["id"], more["id"]}


@needs_postgresql
async def test_documents_left_by_a_stopping_server_are_ingested_by_the_next_at_once(tmp_path: Path, store: str) -> None:
    is_claimed = anyio.Event()

    def note_claim(place: str) -> None:
        if place == "ingest.claimed":
            is_claimed.set()

    async with Rig(tmp_path, database_url=store, secret_key=KEY, failpoint=note_claim) as rig:
        domain = await rig.domain()
        uploaded = await rig.ok(
            "POST", f"/api/domains/{domain}/documents", files={"f": ("a.md", b"# Leave\n\nTwenty days.")}
        )
        with anyio.fail_after(PATIENCE):
            await is_claimed.wait()
    async with Rig(tmp_path, database_url=store, secret_key=KEY) as rig:
        rig.application.begin()
        headers = bearer(rig.application.access.local_key)
        path = f"/api/domains/{domain}/documents/{uploaded['items'][0]['id']}"

        async def is_read() -> bool:
            return bool((await rig.ok("GET", path, headers=headers))["status"] == "indexed")

        await until(is_read)


@pytest.mark.sqlite("no database to share")
async def test_a_private_data_folder_needs_a_shared_database(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"AGENTIC_RAG_LOCAL.*AGENTIC_RAG_DATABASE_URL"):
        async with Rig(tmp_path, local=tmp_path / "own"):
            pass
