"""The index on a server that refuses, hangs or answers with stale data, and two of our servers on one Qdrant server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import anyio
import pytest
from qdrant_client import AsyncQdrantClient

from mcp_servers.retriever.errors import IndexUnavailable
from mcp_servers.retriever.index import CollectionMeta
from mcp_servers.retriever.server_index import ServerIndex

from .corpus import handbook, rules
from .qdrant_shim import Shim, serving

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
NAME = "domain_x"


@asynccontextmanager
async def indexes(count: int, timeout: int = 30) -> AsyncIterator[tuple[Shim, list[ServerIndex]]]:
    """One Qdrant server with several clients, each of which acts as a separate process."""
    shim = Shim()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(shim))
        clients = []
        for _ in range(count):
            client = AsyncQdrantClient(url=url, timeout=timeout, check_compatibility=False)
            clients.append(await stack.enter_async_context(aclosing(ServerIndex(client))))
        yield shim, clients


async def test_a_server_that_refuses_is_unavailable_until_it_accepts() -> None:
    async with indexes(1) as (shim, (index,)):
        await index.upsert(NAME, handbook())
        shim.faults.where, shim.faults.refuse = "/points/query/batch", 1
        with pytest.raises(IndexUnavailable, match="search"):
            await index.search_legs(NAME, "annual leave")
        assert (await index.search_legs(NAME, "annual leave")).lexical
        shim.faults.where, shim.faults.refuse = "/points", 1
        with pytest.raises(IndexUnavailable, match="store chunks"):
            await index.upsert(NAME, rules())
        await index.upsert(NAME, rules())
        assert await index.count(NAME) == len(handbook()) + len(rules())


async def test_a_silent_server_times_out_and_the_retry_leaves_one_result() -> None:
    async with indexes(1, timeout=1) as (shim, (index,)):
        await index.upsert(NAME, handbook())
        shim.faults.where, shim.faults.stall = "/points", 1
        with pytest.raises(IndexUnavailable, match="store chunks"):
            await index.upsert(NAME, handbook())
        await index.upsert(NAME, handbook())
        assert await index.count(NAME) == len(handbook())


async def test_the_first_documents_of_a_domain_can_arrive_through_two_servers_at_once() -> None:
    async with indexes(2) as (_, (a, b)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.upsert, NAME, handbook())
            tasks.start_soon(b.upsert, NAME, rules())
        for index in (a, b):
            assert await index.count(NAME) == len(handbook()) + len(rules())


async def test_collections_of_other_programs_are_no_generations() -> None:
    async with serving(Shim()) as url:
        client = AsyncQdrantClient(url=url, check_compatibility=False)
        async with aclosing(ServerIndex(client)) as index:
            await client.create_collection("2031", vectors_config={})
            assert await index.rebuild(NAME, CollectionMeta()) == f"{NAME}@1"


async def test_a_collection_rebuilt_by_one_server_is_searched_by_the_other() -> None:
    async with indexes(2) as (_, (a, b)):
        await a.upsert(NAME, handbook())
        assert (await b.search_legs(NAME, "annual leave")).lexical
        generation = await a.rebuild(NAME, CollectionMeta())
        await a.upsert(generation, rules())
        await a.swap(NAME, generation)
        assert await b.count(NAME) == len(rules())
        assert await b.roll_back(NAME)
        assert await a.count(NAME) == len(handbook())


async def test_an_answer_from_before_a_swap_deletes_no_live_point() -> None:
    async with indexes(2) as (shim, (a, b)):
        await a.upsert(NAME, handbook())
        second = await a.rebuild(NAME, CollectionMeta())
        await a.upsert(second, rules())
        third = await b.rebuild(NAME, CollectionMeta())
        await b.upsert(third, [*handbook(), *rules()])
        await a.swap(NAME, second)
        shim.faults.where, shim.faults.stale = "", 1
        await b.swap(NAME, third)  # its cache says that the first one is live
        assert await a.count(NAME) == len(handbook()) + len(rules())
        assert await a.roll_back(NAME)
        assert await a.count(NAME) == len(handbook())
        shim.faults.stale = 1
        await b.swap(NAME, third)  # its cache says that the third one is live
        assert await a.count(NAME) == len(handbook()) + len(rules())
