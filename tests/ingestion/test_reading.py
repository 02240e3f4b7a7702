"""Files read in a process of their own: the same chunks as in process, and every cap as a coded error."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agentic_rag.documents.reading import ReadingProcess
from mcp_servers.retriever.chunking import Chunk, chunk_document
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.parsing import DEFAULT_LIMITS, parse
from tests.retriever import files


@asynccontextmanager
async def reading(limits: ParseLimits = DEFAULT_LIMITS) -> AsyncIterator[ReadingProcess]:
    async with aclosing(ReadingProcess(limits)) as process:
        yield process


async def read(process: ReadingProcess, path: Path, name: str) -> list[Chunk]:
    await process.begin(path, name, "doc", "version")
    chunks: list[Chunk] = []
    while batch := await process.batch():
        chunks += batch.chunks
    return chunks


def written(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


async def test_the_child_process_gives_the_same_document(tmp_path: Path) -> None:
    path = files.word(tmp_path / "a.docx")
    here = chunk_document(parse(path, path.name), "doc\0version", "a.docx")
    async with reading() as process:
        there = await read(process, path, "a.docx")
    assert [chunk.chunk_id for chunk in there] == [chunk.chunk_id for chunk in here]
    assert [(chunk.text, chunk.heading_path, chunk.sentences) for chunk in there] == [
        (chunk.text, chunk.heading_path, chunk.sentences) for chunk in here
    ]
    assert {chunk.document_id for chunk in there} == {"doc"}


async def test_a_failure_in_the_child_keeps_its_code_and_text_and_the_next_file_is_read(tmp_path: Path) -> None:
    path = files.pdf(tmp_path / "stored", [[]])
    async with reading() as process:
        with pytest.raises(DocumentError, match="no text layer on 1 of 1 pages") as caught:
            await read(process, path, "scan.pdf")
        assert caught.value.code == "DOCUMENT_SCANNED"
        assert await read(process, files.word(tmp_path / "a.docx"), "a.docx")


@pytest.mark.attack(kind="files")
async def test_a_name_is_data_not_a_path_or_an_option(tmp_path: Path) -> None:
    path = written(tmp_path / "stored", "Hello there.")
    async with reading() as process:
        for name in ("../../etc/passwd.txt", "--help.txt", "a\nb.txt", "年假 规定.txt"):
            assert [chunk.text for chunk in await read(process, path, name)] == ["Hello there."]


@pytest.mark.attack(kind="files")
async def test_a_child_that_needs_too_much_memory_is_too_large(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", bytes([120]) * (48 * 2**20))
    async with reading(ParseLimits(memory_bytes=96 * 2**20, max_characters=10**9)) as process:
        with pytest.raises(DocumentError, match="needs more than") as caught:
            await read(process, path, "a.txt")
    assert caught.value.code == "DOCUMENT_TOO_LARGE"


@pytest.mark.attack(kind="files")
async def test_a_child_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "每位员工每年享有二十五天带薪年假。" * 400_000)
    async with reading(ParseLimits(seconds=0.001)) as process:
        with pytest.raises(DocumentError) as caught:
            await read(process, path, "a.txt")
    assert caught.value.code == "DOCUMENT_TIMEOUT"


async def test_cancelling_kills_the_child(tmp_path: Path) -> None:
    path = files.pdf(tmp_path / "a.pdf", [[(10, "x")]] * 900)
    async with reading() as process:
        with anyio.move_on_after(0.05) as scope:
            await read(process, path, "a.pdf")
        assert scope.cancelled_caught
        await process.reset()
        assert await read(process, files.word(tmp_path / "a.docx"), "a.docx")
