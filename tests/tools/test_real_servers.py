"""Published servers as an admin adds them: installed once, in the sandbox without network, called, killed, recovered.

Tests are skipped by name without a registry, its client, or bubblewrap.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.errors import PackageProblem
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.toolset import ServerToolset, open_toolset
from tests.tools.captives import find_processes, needs_bubblewrap
from tests.tools.support import QUICK, START, Hub, alive, call, stdio_spec, text_of, tool, until

INSTALL_SECONDS = 240
LINES = {
    "files": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "."],
    "notes": ["npx", "-y", "@modelcontextprotocol/server-memory"],
    "every": ["npx", "-y", "@modelcontextprotocol/server-everything"],
    "clock": ["uvx", "mcp-server-time", "--local-timezone", "Europe/Berlin"],
}

pytestmark = [
    needs_bubblewrap,
    pytest.mark.nightly("installs four published packages; test_packages.py installs small ones every time"),
]


@pytest.fixture(scope="session")
def installed() -> Iterator[Packages]:
    """The four packages, installed side by side like tested entries."""
    if shutil.which("npm") is None or not any(
        Path(folder, "node").exists() for folder in ("/usr/local/bin", "/usr/bin")
    ):
        pytest.skip("Node.js: no npm and node on this machine")
    folder = Path(tempfile.mkdtemp(prefix="agentic-rag-mcp-"))
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_", "ANTHROPIC_"))}
    packages = Packages(folder, environment)

    async def install() -> None:
        policy = LaunchPolicy(folder / "homes", packages=packages)
        with anyio.fail_after(INSTALL_SECONDS):
            async with anyio.create_task_group() as tasks:
                for name, line in LINES.items():
                    tasks.start_soon(policy.prepare, entry(name, folder, line))

    try:
        try:
            anyio.run(install)
        except* TimeoutError:
            pytest.skip(f"registries: four packages were not installed within {INSTALL_SECONDS} s")
        except* PackageProblem as group:
            if "cannot be reached" not in str(group.exceptions[0]):
                raise
            pytest.skip("registries: they cannot be reached")
        yield packages
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def entry(name: str, workspace: Path, line: list[str]) -> LaunchSpec:
    return stdio_spec(*line, name=name, domain="law", workspace=str(workspace))


@asynccontextmanager
async def run_servers(
    packages: Packages, folder: Path, *names: str
) -> AsyncIterator[tuple[LaunchPolicy, ServerToolset]]:
    workspace = folder / "workspace"
    policy = LaunchPolicy(folder / "homes", packages=packages, catalogue=LaunchCatalogue(folder))
    specs = [entry(name, workspace, LINES[name]) for name in names]
    async with Hub(policy=policy, patience=QUICK) as hub:
        toolset = await open_toolset(hub, specs, wait=START)
        assert toolset.notices == ()
        yield policy, toolset
    assert policy.sweep() == 0


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The part of a workspace that a server can see."""
    folder = tmp_path / "workspace" / "files"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("inside")
    (tmp_path / "b.txt").write_text("outside")
    (folder / "link").symlink_to(tmp_path / "b.txt")
    return folder


async def test_four_published_servers_work_in_parallel(installed: Packages, workspace: Path) -> None:
    async with run_servers(installed, workspace.parent.parent, *LINES) as (_, toolset):
        content = await call(toolset, "files__read_text_file", path=str(workspace / "a.txt"))
        assert text_of(content) == "inside"
        for path in (workspace.parent.parent / "b.txt", workspace / "link", "/etc/passwd"):
            assert (await call(toolset, "files__read_text_file", path=str(path))).status == "error"
        outcome = await call(toolset, "files__write_file", path=str(workspace / "c.txt"), content="new")
        assert outcome.status == "ok"
        assert (workspace / "c.txt").read_text() == "new"
        fact = {"name": "GDPR", "entityType": "law", "observations": ["Article 17"]}
        assert (await call(toolset, "notes__create_entities", entities=[fact])).status == "ok"
        assert "Article 17" in text_of(await call(toolset, "notes__search_nodes", query="GDPR"))
        assert "5" in text_of(await call(toolset, "every__get-sum", a=2, b=3))
        assert "Asia/Tokyo" in text_of(await call(toolset, "clock__get_current_time", timezone="Asia/Tokyo"))
        read_only = {name: tool(toolset, name).read_only for name in ("files__read_text_file", "files__write_file")}
        assert read_only == {"files__read_text_file": True, "files__write_file": False}
        assert not any(tool.changed for tool in toolset.tools)


async def test_a_real_servers_stored_data_survives_its_process(installed: Packages, workspace: Path) -> None:
    fact = {"name": "GDPR", "entityType": "law", "observations": ["Article 17"]}
    async with run_servers(installed, workspace.parent.parent, "notes") as (_, toolset):
        await call(toolset, "notes__create_entities", entities=[fact])
    async with run_servers(installed, workspace.parent.parent, "notes") as (_, toolset):
        assert "Article 17" in text_of(await call(toolset, "notes__read_graph"))


async def test_a_published_server_killed_during_a_call_is_an_error_and_restarts(
    installed: Packages, workspace: Path
) -> None:
    async with run_servers(installed, workspace.parent.parent, "every", "clock") as (policy, toolset):
        outcomes = []
        has_started = anyio.Event()

        async def progress(step: float, total: float | None, message: str | None) -> None:
            has_started.set()

        async def call_slow_tool() -> None:
            name = "every__trigger-long-running-operation"
            outcomes.append(await call(toolset, name, 30, progress, duration=60, steps=600))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_slow_tool)
            await has_started.wait()
            pids = [pid for pid in find_processes(policy.marker) if "server-everything" in command_line_of(pid)]
            assert pids
            os.kill(pids[-1], signal.SIGKILL)  # the server itself, in its namespace
        assert outcomes[0].status == "error"
        assert "not available" in text_of(outcomes[0])
        await until(lambda: not any(alive(pid) for pid in pids))
        assert (await call(toolset, "clock__get_current_time", timezone="UTC")).status == "ok"  # the other continues
        assert "5" in text_of(await call(toolset, "every__get-sum", 30, a=2, b=3))


async def test_an_installed_package_that_was_changed_is_not_started(installed: Packages, tmp_path: Path) -> None:
    copy = tmp_path / "mcp"
    place = next(installed.folder.glob("npm/*server-memory*"))
    shutil.copytree(place, copy / "npm" / place.name, symlinks=True)
    packages = Packages(copy)
    policy = LaunchPolicy(tmp_path / "homes", packages=packages)
    spec = entry("notes", tmp_path, LINES["notes"])
    policy.resolve(spec)
    file = copy / "npm" / place.name / "tree" / "node_modules" / "zod" / "package.json"
    file.write_text(file.read_text() + " ")
    with pytest.raises(PackageProblem, match="changed since"):
        policy.resolve(spec)
    with pytest.raises(PackageProblem, match="changed since"):
        LaunchPolicy(tmp_path / "homes", packages=Packages(copy)).resolve(spec)  # in another process
    shutil.rmtree(copy)  # thousands of files that nobody needs


async def test_a_version_that_was_never_published_is_refused_and_leaves_nothing(installed: Packages) -> None:
    before = sorted(installed.folder.rglob("manifest.json"))
    for registry, name in (("npm", "@modelcontextprotocol/server-memory"), ("pypi", "mcp-server-time")):
        with pytest.raises(PackageProblem, match="does not know it"):
            await installed.install(Package(registry, name, "0.0.99999"))  # type: ignore[arg-type]
    assert sorted(installed.folder.rglob("manifest.json")) == before
    assert not list(installed.folder.glob(".new-*"))


def command_line_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\x00", b" ").decode()
