"""Files read in a separate process: the same chunks as in process, and every limit as a coded error."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import orjson
import pytest

from agentic_rag.base.ids import DocumentId
from agentic_rag.documents.child import Job
from agentic_rag.documents.reading import ReadingProcess
from agentic_rag.tools.launch.sandbox import NOBODY
from mcp_servers.retriever.chunking import Chunk, chunk_document
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.parsing import DEFAULT_LIMITS, parse
from tests.programs import run_victim
from tests.retriever import files
from tests.tools.captives import needs_bubblewrap


@asynccontextmanager
async def open_reader(limits: ParseLimits = DEFAULT_LIMITS) -> AsyncIterator[ReadingProcess]:
    async with aclosing(ReadingProcess(limits)) as process:
        yield process


async def read(process: ReadingProcess, path: Path, name: str) -> list[Chunk]:
    with path.open("rb") as file:
        await process.begin(file, name, DocumentId("doc"), "version")
    chunks: list[Chunk] = []
    while batch := await process.batch():
        chunks += batch.chunks
    return chunks


def write_file(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def text_pdf(path: Path) -> Path:
    return files.pdf(path, [[(18, "Rates"), (12, "Ten for each.")]])


@pytest.mark.parametrize(
    ("make", "name"),
    [(files.word, "a.docx"), (files.workbook, "a.xlsx"), (files.slides, "a.pptx"), (text_pdf, "a.pdf")],
)
async def test_the_child_process_gives_the_same_document(
    tmp_path: Path, make: Callable[[Path], Path], name: str
) -> None:
    path = make(tmp_path / name)
    expected = chunk_document(parse(path, path.name), "doc\0version", name)
    async with open_reader() as process:
        chunks = await read(process, path, name)
    assert [chunk.chunk_id for chunk in chunks] == [chunk.chunk_id for chunk in expected]
    assert [(chunk.text, chunk.heading_path, chunk.sentences) for chunk in chunks] == [
        (chunk.text, chunk.heading_path, chunk.sentences) for chunk in expected
    ]
    assert {chunk.document_id for chunk in chunks} == {"doc"}


async def test_a_failure_in_the_child_keeps_its_code_and_text_and_the_next_file_is_read(tmp_path: Path) -> None:
    path = files.pdf(tmp_path / "stored", [[]])
    async with open_reader() as process:
        with pytest.raises(DocumentError, match="no text layer on 1 of 1 pages") as exc_info:
            await read(process, path, "scan.pdf")
        assert exc_info.value.code == "DOCUMENT_SCANNED"
        assert await read(process, files.word(tmp_path / "a.docx"), "a.docx")


@pytest.mark.attack(kind="files")
async def test_a_name_is_data_not_a_path_or_an_option(tmp_path: Path) -> None:
    path = write_file(tmp_path / "stored", "Hello there.")
    async with open_reader() as process:
        for name in ("../../etc/passwd.txt", "--help.txt", "a\nb.txt", "年假 规定.txt"):
            assert [chunk.text for chunk in await read(process, path, name)] == ["Hello there."]


PRYING = """
import json, os, socket, sys
from mcp_servers.retriever.document import Block, ParsedDocument

media_types = {".pry": "application/x-pry"}


def read(path, limits):
    places = path.read_text().split()
    seen = {"text": path.read_text(), "home": os.listdir(places[2]) if os.path.isdir(places[2]) else []}
    seen["readable"] = [place for place in places if os.path.exists(place)]
    seen["uid"] = os.getuid()
    seen["variables"] = sorted(os.environ)
    try:
        socket.create_connection(("127.0.0.1", int(places[-1])), 2)
        seen["network"] = True
    except OSError:
        seen["network"] = False
    seen["processes"] = len([each for each in os.listdir("/proc") if each.isdigit()])
    raise ValueError(json.dumps(seen))
"""


def pry_package(folder: Path) -> Path:
    """Install a format whose reader reports its surroundings; return the folder of packages."""
    site = folder / "site"
    metadata = site / "acme_pry-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-pry\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[agentic_rag.document_formats]\npry = acme_pry\n")
    (site / "acme_pry.py").write_text(PRYING)
    return site


@needs_bubblewrap
@pytest.mark.attack(kind="files")
async def test_a_document_reader_sees_only_its_file(tmp_path: Path) -> None:
    site, data = pry_package(tmp_path), tmp_path / "data"
    data.mkdir()
    (data / "secret.key").write_text("of the host")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        places = [data / "secret.key", data / "a.pry", Path.home(), "/etc/passwd", listener.getsockname()[1]]
        write_file(data / "a.pry", " ".join(map(str, places)))
        variables = {**os.environ, "ANTHROPIC_API_KEY": "sk-1"}
        process = await run_victim("tests.ingestion.prying", site, data / "a.pry", env=variables)
    output = process.stdout
    assert "ValueError" in output, (output, process.stderr[-2000:])
    report = json.loads(output[output.index("{") : output.rindex("}") + 1])
    assert report["text"].startswith(str(data))
    assert set(report["readable"]) <= {str(Path.home())}
    # The home folder may hold the interpreter.
    assert all(str(Path.home() / name) in sys.base_prefix for name in report["home"])
    assert report["uid"] == 65534
    assert set(report["variables"]) <= {"LC_CTYPE", "ORT_DISABLE_TELEMETRY", "PWD", "PYTHONPATH", "PYTHONUTF8"}
    assert not report["network"]
    assert report["processes"] <= 4


async def test_an_unprivileged_reader_can_read_a_private_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "Hello there.")
    path.chmod(0o600)
    async with open_reader() as process:
        assert [chunk.text for chunk in await read(process, path, "a.txt")] == ["Hello there."]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up root")
@pytest.mark.attack(kind="files")
async def test_a_reader_of_a_root_server_is_not_root_without_a_sandbox(tmp_path: Path) -> None:
    """Runs the reading process as on a machine without bubblewrap."""
    site = pry_package(tmp_path)
    path = write_file(tmp_path / "a.pry", f"x x {tmp_path} 1")
    os.chown(path, NOBODY, NOBODY)  # as `ChildProcess.send` does
    job = orjson.dumps(Job("", "a.pry", DocumentId("doc"), "version", DEFAULT_LIMITS))
    variables = {"PYTHONPATH": os.pathsep.join([str(site), str(Path(__file__).parents[2]), *filter(None, sys.path)])}
    parent_end, child_end = socket.socketpair()
    command = [sys.executable, "-m", "agentic_rag.documents.child"]
    with parent_end, path.open("rb") as file:
        with child_end:
            process = await anyio.open_process(command, stdin=child_end.fileno(), env=variables, cwd="/")
        async with process:
            socket.send_fds(parent_end, [job + b"\n"], [file.fileno()])
            assert process.stdout is not None
            with anyio.fail_after(240):
                frame = await process.stdout.receive()
            parent_end.shutdown(socket.SHUT_RDWR)
    output = frame[4:].decode()
    assert '\\"uid\\": 65534' in output, output
    assert "x x" in output


@pytest.mark.attack(kind="files")
async def test_a_file_whose_reader_needs_too_much_memory_is_too_large(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", bytes([120]) * (48 * 2**20))
    async with open_reader(ParseLimits(memory_bytes=96 * 2**20, max_characters=10**9)) as process:
        with pytest.raises(DocumentError, match="needs more than") as exc_info:
            await read(process, path, "a.txt")
    assert exc_info.value.code == "DOCUMENT_TOO_LARGE"


@pytest.mark.attack(kind="files")
async def test_a_child_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "每位员工每年享有二十五天带薪年假。" * 400_000)
    async with open_reader(ParseLimits(seconds=0.001)) as process:
        with pytest.raises(DocumentError) as exc_info:
            await read(process, path, "a.txt")
    assert exc_info.value.code == "DOCUMENT_TIMEOUT"


async def test_cancelling_kills_the_child(tmp_path: Path) -> None:
    path = files.pdf(tmp_path / "a.pdf", [[(10, "x")]] * 900)
    async with open_reader() as process:
        with anyio.move_on_after(0.05) as scope:
            await read(process, path, "a.pdf")
        assert scope.cancelled_caught
        await process.reset()
        assert await read(process, files.word(tmp_path / "a.docx"), "a.docx")
