"""A fake Qdrant server with the endpoints that `ServerIndex` uses, over the client's engine in memory, with faults.

This module translates requests and answers of the REST interface, and causes faults on request. It is not shipped and
proves nothing about Qdrant itself; for that, run the tests with ``QDRANT_URL``.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import uvicorn
from pydantic import BaseModel, TypeAdapter
from qdrant_client import AsyncQdrantClient
from qdrant_client import models as m
from qdrant_client.http import models as rest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Answer = Callable[[AsyncQdrantClient, str, Any], Awaitable[Any]]
NAMES: TypeAdapter[Any] = TypeAdapter(m.VectorNameConfig)


@dataclass
class Faults:
    """The next faults. Each one counts requests whose path contains ``where``."""

    where: str = ""
    refuse: int = 0
    """Number of requests to answer with 503."""
    stall: int = 0
    """Number of requests to leave unanswered."""
    stale: int = 0
    """Number of alias queries to answer with the state before the last change."""
    seen: list[str] = field(default_factory=list)

    def take(self, name: str, path: str) -> bool:
        remaining: int = getattr(self, name)
        if not remaining or self.where not in path:
            return False
        setattr(self, name, remaining - 1)
        return True


class Shim:
    """One server's collections, with ``faults``."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._engine = AsyncQdrantClient(":memory:")
        self._aliases: Any = None
        """The aliases before the last change."""
        collection_path = "/collections/{name}"
        self.app = Starlette(
            routes=[
                Route("/", self._version),
                self._route("GET", "/collections", lambda engine, _, __: engine.get_collections()),
                self._route("GET", "/aliases", self._list_aliases),
                self._route("POST", "/collections/aliases", self._change_aliases),
                self._route("GET", collection_path, lambda engine, name, _: engine.get_collection(name)),
                self._route("PUT", collection_path, _create),
                self._route("PATCH", collection_path, _update),
                self._route("DELETE", collection_path, lambda engine, name, _: engine.delete_collection(name)),
                self._route("PUT", f"{collection_path}/index", _index),
                self._route("PUT", collection_path + "/vectors/{vector}", _add_vector),
                self._route("PUT", f"{collection_path}/points", _upsert),
                self._route("PUT", f"{collection_path}/points/vectors", _update_vectors),
                self._route("POST", f"{collection_path}/points", _retrieve),
                self._route("POST", f"{collection_path}/points/delete", _delete),
                self._route("POST", f"{collection_path}/points/count", _count),
                self._route("POST", f"{collection_path}/points/scroll", _scroll),
                self._route("POST", f"{collection_path}/points/query", _query),
                self._route("POST", f"{collection_path}/points/query/batch", _query_batch),
                self._route("POST", f"{collection_path}/facet", _facet),
            ]
        )

    def _route(self, method: str, path: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            self.faults.seen.append(f"{method} {request.url.path}")
            if self.faults.take("stall", request.url.path):
                await anyio.sleep_forever()
            if self.faults.take("refuse", request.url.path):
                return _failed("the service is overloaded", 503)
            body = await request.json() if await request.body() else {}
            if "vector" in request.path_params:
                body = {**body, "vector_name": request.path_params["vector"]}
            try:
                result = await answer(self._engine, request.path_params.get("name", ""), body)
            except ValueError as exc:
                return _failed(str(exc), 404 if "not found" in str(exc) else 400)
            return JSONResponse({"result": _plain(result), "status": "ok", "time": 0.0})

        return Route(path, endpoint, methods=[method])

    async def _version(self, _: Request) -> Response:
        from importlib.metadata import version

        return JSONResponse({"title": "shim", "version": version("qdrant-client")})

    async def _list_aliases(self, engine: AsyncQdrantClient, _: str, __: Any) -> Any:
        if self._aliases is not None and self.faults.take("stale", "/aliases"):
            return self._aliases
        return await engine.get_aliases()

    async def _change_aliases(self, engine: AsyncQdrantClient, _: str, body: Any) -> Any:
        before = await engine.get_aliases()
        collections = {collection.name for collection in (await engine.get_collections()).collections}
        actions = rest.ChangeAliasesOperation.model_validate(body).actions
        for action in actions:  # all or nothing
            if isinstance(action, rest.CreateAliasOperation) and action.create_alias.collection_name not in collections:
                raise ValueError(f"Collection {action.create_alias.collection_name} not found")
        outcome = await engine.update_collection_aliases(actions)
        self._aliases = before
        return outcome


@asynccontextmanager
async def serving(shim: Shim) -> AsyncIterator[str]:
    """Serve on a free port and yield the address."""
    server = uvicorn.Server(uvicorn.Config(shim.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    listener = socket.create_server(("127.0.0.1", 0))
    await server.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])


def _failed(reason: str, status: int) -> Response:
    return JSONResponse({"status": {"error": reason}, "time": 0.0}, status)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


# Each handler takes the engine, a collection's name and the request's body.


async def _create(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    parsed = rest.CreateCollection.model_validate(body)
    return await engine.create_collection(
        name,
        vectors_config=parsed.vectors or {},
        sparse_vectors_config=parsed.sparse_vectors,
        metadata=parsed.metadata,
    )


async def _update(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    return await engine.update_collection(name, metadata=rest.UpdateCollection.model_validate(body).metadata)


async def _index(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    parsed = rest.CreateFieldIndex.model_validate(body)
    return await engine.create_payload_index(name, parsed.field_name, parsed.field_schema)


async def _add_vector(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    vector = body.pop("vector_name")
    return await engine.create_vector_name(name, vector, NAMES.validate_python(body))


async def _upsert(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    return await engine.upsert(name, rest.PointsList.model_validate(body).points)


async def _update_vectors(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    return await engine.update_vectors(name, rest.UpdateVectors.model_validate(body).points)


async def _retrieve(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    parsed = rest.PointRequest.model_validate(body)
    return await engine.retrieve(
        name, parsed.ids, with_payload=parsed.with_payload or False, with_vectors=parsed.with_vector or False
    )


async def _delete(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    return await engine.delete(name, rest.FilterSelector.model_validate(body))


async def _count(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    parsed = rest.CountRequest.model_validate(body)
    return await engine.count(name, parsed.filter, exact=True)


async def _scroll(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    scroll = rest.ScrollRequest.model_validate(body)
    records, next_offset = await engine.scroll(
        name, scroll.filter, limit=scroll.limit or 10, offset=scroll.offset, with_payload=True
    )
    return {"points": _plain(records), "next_page_offset": next_offset}


async def _query(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    (response,) = await engine.query_batch_points(name, [rest.QueryRequest.model_validate(body)])
    return response


async def _query_batch(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    return await engine.query_batch_points(name, rest.QueryRequestBatch.model_validate(body).searches)


async def _facet(engine: AsyncQdrantClient, name: str, body: Any) -> Any:
    parsed = rest.FacetRequest.model_validate(body)
    return await engine.facet(name, parsed.key, parsed.filter, limit=parsed.limit or 10, exact=True)
