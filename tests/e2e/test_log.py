"""The log of a served process."""

from pathlib import Path

import anyio.to_thread
import pytest

from tests.e2e.serving import serving_without_demo
from tests.retriever import qdrant_shim


async def test_requests_to_the_index_server_are_not_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shim = qdrant_shim.Shim()

    def run() -> None:
        with serving_without_demo(tmp_path / "data", QDRANT_URL=address, AGENTIC_RAG_EMBEDDING="none") as server:
            server.call("GET", "/api/health")

    async with qdrant_shim.serving(shim) as address:
        await anyio.to_thread.run_sync(run)
    assert shim.faults.seen
    assert "HTTP Request" not in capfd.readouterr().err
