"""The installed wheel serves everything in the environment of the container file and the unit.

That is: not as root, without capabilities, and read-only except for the data folder and one for temporary files. The
product's sandbox runs inside of it.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.containers import container, find_problem, process_in, temporary
from tests.e2e.serving import Server, environment, text_of

ROOT = Path(__file__).parents[2]
QUESTION = "How many days of paid leave do full-time staff have?"

pytestmark = pytest.mark.skipif(bool(find_problem()), reason=f"no containers: {find_problem()}")


@pytest.fixture(scope="module")
def installed_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the installed wheel, next to its dependencies; return its Python."""
    folder = tmp_path_factory.mktemp("installed")
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    result = subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], timeout=240, check=True)
    python = folder / "venv" / "bin" / "python"
    place = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")}))
    with zipfile.ZipFile(folder / result.stdout.split()[-1]) as wheel:
        wheel.extractall(place)
    # a line of a .pth file adds the folder, but not that folder's own .pth files, such as our editable installation
    (place / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


@contextmanager
def _serving(python: Path, data: Path, **variables: str) -> Iterator[Server]:
    places = {"AGENTIC_RAG_DATA": str(data), "TMPDIR": str(temporary(data))}
    settings = environment(**places, AGENTIC_RAG_EMBEDDING="none", PYTHONDONTWRITEBYTECODE="1")
    for name in ("AGENTIC_RAG_ALLOW_ROOT", "PYTHONPATH"):
        settings.pop(name, None)
    command = container(data, str(python), "-P", "-m", "agentic_rag.cli", "serve", "--port", "0")
    child = subprocess.Popen(command, env=settings | variables, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        assert line.startswith("Agentic RAG serves"), line
        yield Server(child, line.split()[3], data)
    finally:
        if child.poll() is None:
            os.kill(process_in(child.pid), signal.SIGTERM)  # the process before it does not forward signals
        try:
            assert child.wait(120) == 0
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


async def test_an_installed_wheel_serves_like_in_a_container(installed_python: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    temporary(data).mkdir()
    with _serving(installed_python, data) as server:
        assert {document["status"] for document in await server.wait_until_indexed()} == {
            "indexed"
        }  # with a PDF, which the sandbox reads
        roles = {role["id"] for role in server.call("GET", "/api/domains/demo/roles")["items"]}
        assert {"assistant", "researcher", "nuwa", "guide"} <= roles
        async with server.chat(await server.conversation()) as chat:
            assert "27 days" in text_of(await chat.say(QUESTION))
        health = server.call("GET", "/api/health")
        assert health["status"] == "ok", health
        assert server.call("GET", "/api/openapi.json")["paths"]


def test_the_wheel_contains_every_served_file_and_no_tests(installed_python: Path) -> None:
    place = next((installed_python.parents[1] / "lib").glob("python*/site-packages"))
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("no git: which files are the repository's is not known")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "agentic_rag", "mcp_servers", "roles", "workspaces"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, tracked.stdout.split("\0")):
        if name.startswith("agentic_rag/testing/"):
            assert not (place / name).exists(), name
            continue
        top, _, inner_path = name.partition("/")
        inside = {"roles": "mcp_servers/promptx/builtin_roles", "workspaces": "agentic_rag/workspaces"}.get(top, top)
        assert (place / inside / inner_path).read_bytes() == (ROOT / name).read_bytes(), name
