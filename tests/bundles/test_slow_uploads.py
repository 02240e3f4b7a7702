"""Clients that send their bundles slowly do not block the bundles of others."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from agentic_rag.bundles.receiving import AT_ONCE, Reception
from agentic_rag.documents.disk_reserve import DiskReserve

from .making import pack, plain


async def test_a_slow_upload_occupies_no_place(tmp_path: Path) -> None:
    reception = Reception(tmp_path / "imports", DiskReserve(tmp_path, 0), 2**20, 2**24)
    go_on, waiting_events = anyio.Event(), [anyio.Event() for _ in range(AT_ONCE)]
    data = pack(plain())

    async def slow(number: int) -> AsyncIterator[bytes]:
        yield data[:10]
        waiting_events[number].set()
        await go_on.wait()
        yield data[10:]

    async def quick() -> AsyncIterator[bytes]:
        yield data

    received_ids: list[str] = []

    async def take(pieces: AsyncIterator[bytes]) -> None:
        async with reception.receive(pieces) as received:
            received_ids.append(received.id)

    with anyio.fail_after(240):
        async with anyio.create_task_group() as tasks:
            for number in range(AT_ONCE):
                tasks.start_soon(take, slow(number))
            for event in waiting_events:
                await event.wait()
            with anyio.fail_after(240):
                await take(quick())
            assert len(received_ids) == 1
            go_on.set()
    assert len(received_ids) == AT_ONCE + 1
    assert not any((tmp_path / "imports").iterdir())
