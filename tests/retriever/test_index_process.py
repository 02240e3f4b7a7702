"""The index process: a kill at any moment loses nothing acknowledged, and never ends its server."""

import os
import select
import signal
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.errors import IndexMismatch, IndexUnavailable
from mcp_servers.retriever.index import UPSERT_BATCH, CollectionMeta, Dense
from mcp_servers.retriever.index_supervisor import IndexSupervisor, Request
from mcp_servers.retriever.process_index import ProcessIndex, open_process_index
from mcp_servers.retriever.retrieval import Retriever
from tests.waiting import pause

from .corpus import handbook, long_section, rules

SECONDS = 240
"""No test takes long. A hanging one must show where it hangs."""


def pid_of(index: ProcessIndex) -> int:
    assert index.pid is not None
    return index.pid


async def wait_until_ended(pid: int) -> None:
    """Return once a process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with anyio.fail_after(SECONDS):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            await anyio.to_thread.run_sync(poll.poll, SECONDS * 1000)
    finally:
        os.close(descriptor)


async def test_a_kill_at_any_moment_loses_no_acknowledged_event(tmp_path: Path) -> None:
    chunks = long_section(60)
    acknowledged: list[str] = []
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", handbook())
        for start in range(0, len(chunks), 10):
            batch = chunks[start : start + 10]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(index.upsert, "law", batch)
                for _ in range(start // 10):  # each time a little later: sent, begun, half done, answered
                    await anyio.lowlevel.checkpoint()
                if start % 20 == 0:
                    os.kill(pid_of(index), signal.SIGKILL)
            acknowledged += [chunk.chunk_id for chunk in batch]
            assert await index.existing("law", acknowledged) == set(acknowledged)
        assert await index.count("law") == len(handbook()) + len(chunks)


async def test_a_search_interrupted_by_a_kill_is_repeated_once(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", handbook())
        counts: list[int] = []

        async def search() -> None:
            counts.append(len((await index.search_legs("law", "annual leave")).lexical))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(search)
            await anyio.lowlevel.checkpoint()
            os.kill(pid_of(index), signal.SIGKILL)
        assert counts == [2] * 8


async def test_a_memory_mapped_page_that_cannot_be_read_fails_a_search_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_process_index(tmp_path / "index") as index:
        chunks = long_section(50)
        await index.upsert("law", chunks, Dense("e", [[1.0, float(number)] for number in range(len(chunks))]))
        await index.upsert("other", handbook())
        for mapped in (tmp_path / "index" / "law").rglob("chunk_0.mmap"):
            os.truncate(mapped, 0)
        with pytest.raises(IndexUnavailable):
            await index.search_legs("law", "pumps", [1.0, 0.5])
        assert "ended with SIGBUS while it was to search (law)" in caplog.text
        assert await index.count("other") == len(handbook())
        assert (await index.search_legs("other", "annual leave")).lexical


async def test_a_mismatch_is_returned_unchanged(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", handbook(), Dense("e", [[1.0, 0.0], [0.0, 1.0]]))
        with pytest.raises(IndexMismatch) as exc_info:
            await index.upsert("law", handbook(), Dense("other", [[1.0, 0.0], [0.0, 1.0]]))
        assert (exc_info.value.what, exc_info.value.recorded, exc_info.value.given) == ("embedder", "e", "other")


async def test_a_cancelled_request_does_not_affect_others(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", handbook())
        document = rules()[0].document_id
        for delay in range(6):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(index.upsert, "law", rules())
                for _ in range(delay):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await index.delete_document("law", document)  # earlier requests are done first
            assert await index.count("law", document) == 0
            assert await index.chunks("law", handbook()[0].document_id) == handbook()


async def count_within(supervisor: IndexSupervisor, seconds: float) -> int:
    answer = await supervisor.ask(Request("count", "count chunks", {"collection": "law"}, seconds=seconds))
    return int(answer.data["value"])


async def test_a_silent_process_is_killed_after_the_time_limit_for_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = IndexSupervisor(tmp_path / "index")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        assert await count_within(supervisor, SECONDS) == 0
        first = supervisor.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(IndexUnavailable, match="no answer"):
                await count_within(supervisor, 0.2)
        os.kill(first, signal.SIGCONT)
        assert await count_within(supervisor, SECONDS) == 0
        assert supervisor.pid == first
        os.kill(first, signal.SIGSTOP)
        monkeypatch.setattr("mcp_servers.retriever.index_supervisor.STUCK_SECONDS", 0.1)
        with pytest.raises(IndexUnavailable, match="no answer"):
            await count_within(supervisor, 0.2)
        await wait_until_ended(first)
        assert await count_within(supervisor, SECONDS) == 0
        assert supervisor.pid != first
        await supervisor.close()


async def test_a_search_is_one_request(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", [*handbook(), *long_section(200)])
        retriever = Retriever(index)
        first = await retriever.search("law", "annual leave", 10)
        before = index.asked
        assert (await retriever.search("law", "annual leave", 10)).hits == first.hits
        assert index.asked == before + 1


async def test_cached_values_of_a_collection_end_with_each_change(tmp_path: Path) -> None:
    def vectors(count: int) -> Dense:
        return Dense("e", [[1.0, float(number)] for number in range(count)])

    async with open_process_index(tmp_path / "index") as index:
        assert (await index.meta("law"), await index.count("law")) == (None, 0)
        await index.upsert("law", handbook(), vectors(len(handbook())))
        meta = await index.meta("law")
        assert meta is not None
        assert (meta.embedder, await index.count("law")) == ("e", len(handbook()))
        before = index.asked
        await index.meta("law")
        await index.count("law")
        assert index.asked == before
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(index.upsert, "law", rules())
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await index.count("law")  # read before, during or after the write
        await index.delete_document("law", handbook()[0].document_id)  # earlier requests are done first
        existing = await index.existing("law", [chunk.chunk_id for chunk in (*handbook(), *rules())])
        assert await index.count("law") == len(existing)
        generation = await index.rebuild("law", CollectionMeta())
        await index.upsert(generation, handbook())
        await index.swap("law", generation)
        assert await index.count("law") == len(handbook())
        meta = await index.meta("law")
        assert meta is not None
        assert meta.embedder is None
        before = index.asked
        pid = pid_of(index)
        os.kill(pid, signal.SIGKILL)
        while index.pid == pid:
            await pause()
        assert await index.count("law") == len(handbook())
        assert index.asked > before


async def test_a_refused_part_ends_a_write_with_its_reason(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        chunks = long_section(5_000)
        assert len(chunks) > 2 * UPSERT_BATCH, "it takes several parts"
        await index.upsert("law", chunks, Dense("e", [[1.0, 0.0]] * len(chunks)))
        assert await index.count("law") == len(chunks)
        with pytest.raises(IndexMismatch):
            await index.upsert("law", chunks, Dense("e", [[1.0, 0.0, 0.0]] * len(chunks)))
        with pytest.raises(ValueError, match="not a collection name"):
            await index.upsert("../law", chunks)


async def test_collections_take_turns(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        large_document = long_section(15_000)
        await index.upsert("large", large_document)
        await index.upsert("small", handbook())  # creating a collection takes longer than a turn in it
        order: list[str] = []

        async def rewrite() -> None:
            await index.upsert("large", large_document)
            await index.delete_document("large", large_document[0].document_id)
            order.append("large")

        async def add() -> None:
            await index.upsert("small", handbook())
            order.append("small")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rewrite)
            tasks.start_soon(add)
        assert order == ["small", "large"]


async def test_a_folder_in_use_prevents_the_start_until_it_is_free(tmp_path: Path) -> None:
    owner = EdgeIndex(tmp_path / "index")
    async with open_process_index(tmp_path / "index") as index:
        with pytest.raises(IndexUnavailable, match=f"in use by process {os.getpid()}"):
            await index.count("law")
        await owner.aclose()
        with anyio.fail_after(SECONDS):
            while True:
                try:
                    assert await index.count("law") == 0
                except IndexUnavailable:
                    await index.wait_for_loss()  # each failed start is one
                else:
                    break


async def test_closing_ends_the_process_with_all_data_on_disk(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", handbook())
        pid = pid_of(index)
    await wait_until_ended(pid)
    reopened = EdgeIndex(tmp_path / "index")
    assert await reopened.chunks("law", handbook()[0].document_id) == handbook()
    await reopened.aclose()


async def test_a_killed_server_leaves_no_process_behind(tmp_path: Path) -> None:
    script = """
import os, sys, anyio
from pathlib import Path
from mcp_servers.retriever.process_index import open_process_index

async def main():
    async with open_process_index(Path(sys.argv[1])) as index:
        await index.count("law")
        print(index.pid, flush=True)
        os.kill(os.getpid(), 9)

anyio.run(main)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "index")]
    process = await anyio.run_process(command, env={"PYTHONPATH": str(Path(__file__).parents[2])}, check=False)
    assert process.returncode == -signal.SIGKILL
    await wait_until_ended(int(process.stdout))


async def test_signals_to_the_server_do_not_end_its_index_process(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", handbook())
        pid = pid_of(index)
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, name)
        assert await index.count("law") == len(handbook())
        assert index.pid == pid


async def test_the_process_imports_neither_the_server_nor_an_event_loop() -> None:
    libraries = {"agentic_rag", "anyio", "asyncio", "numpy", "mcp"}
    script = f"import sys, mcp_servers.retriever.index_process; print(*{libraries} & set(sys.modules))"
    process = await anyio.run_process([sys.executable, "-c", script])
    assert process.stdout.decode().split() == []
