"""Modules that an import of the light modules must not load."""

import sys

import anyio
import pytest

HEAVY = ("mcp", "fastembed", "onnxruntime", "qdrant_client", "numpy", "pypdfium2", "docx", "openpyxl", "pptx", "httpx2")


@pytest.mark.parametrize("module", ["chunking", "index", "edge_index", "parsing", "formats", "embedding"])
async def test_a_light_module_loads_no_heavy_library(module: str) -> None:
    script = f"import sys, mcp_servers.retriever.{module}; print(*set({HEAVY}) & set(sys.modules))"
    process = await anyio.run_process([sys.executable, "-c", script])
    assert process.stdout.decode().split() == []


@pytest.mark.parametrize("module", ["sentences", "document", "chunking", "fusion"])
async def test_the_pure_core_loads_no_event_loop(module: str) -> None:
    script = f"import sys, mcp_servers.retriever.{module}; print(*{{'asyncio', 'anyio', 'socket'}} & set(sys.modules))"
    process = await anyio.run_process([sys.executable, "-c", script])
    assert process.stdout.decode().split() == []
