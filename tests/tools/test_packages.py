"""Packages: installed once, atomically, without running their code, and identical at every start.

A script here plays the registry's client and does the same to the disk; `test_real_servers` uses the real client.
"""

import json
import os
import shutil
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.errors import PackageChanged, PackageProblem
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.packages import Installations, Packages
from agentic_rag.tools.launch.registry_clients import (
    OUTPUT_BYTES,
    PYTHON,
    RegistryClients,
    client_sandbox,
    no_sandbox,
)
from agentic_rag.tools.launch.sandbox import Sandbox
from tests.tools.captives import needs_bubblewrap
from tests.tools.registry import package_registry
from tests.tools.support import alive, until

DEMO = Package("pypi", "demo-server", "1.2.3")
UV = """#!/bin/sh
echo "$@" >> {log}
{before}
case "$1" in
venv)
    for tree; do :; done
    mkdir -p "$tree/bin" && ln -s {python} "$tree/bin/python" ;;
pip)
    while [ "$1" != "--python" ]; do shift; done
    tree=$(dirname "$(dirname "$2")")
    mkdir -p "$tree/lib/python3/site-packages/demo_server-1.2.3.dist-info"
    echo 'print("demo")' > "$tree/bin/demo-server" ;;
esac
"""


class Registry:
    """A folder with the client of a registry, and the log of its calls."""

    def __init__(self, folder: Path, before: str = "") -> None:
        self.folder = folder
        self.log = folder / "log"
        folder.mkdir(parents=True)
        client = folder / "uv"
        client.write_text(UV.format(log=self.log, python=os.path.realpath(sys.executable), before=before))
        client.chmod(0o755)

    @property
    def calls(self) -> Sequence[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def packages(self, where: Path, seconds: float = 60) -> Packages:
        return Packages(where, {"PATH": f"{self.folder}:/usr/bin:/bin"}, seconds)


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []


def list_exposed_files(tree: Path) -> list[Path]:
    """Return the files that other users may read, write or run."""
    return [path for path in (tree, *tree.rglob("*")) if not path.is_symlink() and path.stat().st_mode & 0o077]


async def test_a_package_is_installed_once_and_then_found(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "bin")
    packages = registry.packages(tmp_path / "mcp")
    installed = await packages.install(DEMO)
    assert installed.args == ("-I", "-B", f"{installed.tree}/bin/demo-server")
    assert installed.executable == f"{installed.tree}/bin/python"
    assert installed.tree == str(tmp_path / "mcp" / "pypi" / "demo-server@1.2.3" / "tree")
    assert (await packages.install(DEMO), packages.find_installed(DEMO)) == (installed, installed)
    assert registry.packages(tmp_path / "mcp").find_installed(DEMO) == installed
    assert len(registry.calls) == 2
    assert list_names(tmp_path / "mcp") == ["pypi"]


async def test_a_package_is_installed_from_wheels_alone_at_the_exact_version(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "bin")
    await registry.packages(tmp_path / "mcp").install(DEMO)
    assert registry.calls[1].endswith("--only-binary :all: demo-server==1.2.3")


async def test_files_that_a_client_opened_to_all_are_closed_to_other_users(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "bin", before='[ "$1" = pip ] && trap \'chmod -R a+rX,u+x "$tree"\' EXIT')
    installed = await registry.packages(tmp_path / "mcp").install(DEMO)
    assert list_exposed_files(Path(installed.tree)) == []
    assert os.access(f"{installed.tree}/bin/demo-server", os.X_OK)
    assert registry.packages(tmp_path / "mcp").find_installed(DEMO) == installed


async def test_concurrent_requests_install_a_package_once(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "bin", before="sleep 0.1")
    packages = registry.packages(tmp_path / "mcp")
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(packages.install, DEMO)
    assert len(registry.calls) == 2


async def test_two_simultaneous_installations_leave_one_complete_package(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "bin", before="sleep 0.1")
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(registry.packages(tmp_path / "mcp").install, DEMO)
    assert len(registry.calls) == 6
    assert list_names(tmp_path / "mcp") == ["pypi"]
    registry.packages(tmp_path / "mcp").find_installed(DEMO)


async def test_an_unversioned_package_is_pinned_to_what_was_installed(tmp_path: Path) -> None:
    packages = Registry(tmp_path / "bin").packages(tmp_path / "mcp")
    assert (await packages.install(Package("pypi", "demo-server", ""))).version == "1.2.3"
    packages.find_installed(DEMO)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("echo 'error sending request for url (https://user:pw@registry.example/simple)'; exit 1", "cannot be reached"),
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "cannot be reached"),
        ("echo 'npm error code E404' >&2; exit 1", "does not know it in this version"),
        ("echo 'no wheel at https://user:pw@registry.example/x'; exit 1", r"no wheel at \(address\)"),
        ("exit 1", "no reason was given"),
        ("[ $1 = venv ] || exit 0", "has no program 'demo-server'"),
    ],
)
async def test_a_failed_installation_gives_the_reason_and_leaves_nothing(
    tmp_path: Path, before: str, words: str
) -> None:
    packages = Registry(tmp_path / "bin", before).packages(tmp_path / "mcp")
    with pytest.raises(PackageProblem, match=words) as problem:
        await packages.install(DEMO)
    assert "pw@" not in str(problem.value)
    assert list_names(tmp_path / "mcp") == []


NPM = """#!/bin/sh
while [ "$1" != "--prefix" ]; do shift; done
mkdir -p "$2/node_modules/demo-server" && cd "$2/node_modules/demo-server" && touch server.js
{describe} > package.json
"""


class NpmRegistry(Registry):
    """A registry whose client writes the given ``package.json``. ``describe``: the shell command that prints it."""

    def __init__(self, folder: Path, describe: str) -> None:
        super().__init__(folder)
        client = folder / "npm"
        client.write_text(NPM.format(describe=describe))
        client.chmod(0o755)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js: no node on this machine")
@pytest.mark.parametrize(
    "describe",
    [
        "echo '{'",
        "echo '[]'",
        "echo '{}'",
        "printf '%0100000d' 0 | tr 0 '['",
    ],
)
async def test_a_package_without_a_usable_description_is_refused_and_the_next_one_installed(
    tmp_path: Path, describe: str
) -> None:
    packages = NpmRegistry(tmp_path / "bin", describe).packages(tmp_path / "mcp")
    hostile = Package("npm", "demo-server", "")
    with pytest.raises(PackageProblem, match=r"package\.json"):
        await packages.install(hostile)
    assert list_names(tmp_path / "mcp") == []
    installations = Installations(packages)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(installations.run)
        await until(lambda: installations.working)
        for package in (hostile, replace(hostile, version="1.2.3"), DEMO):
            installations.begin(package)
        await until(lambda: packages.has(DEMO))
        tasks.cancel_scope.cancel()
    assert "package.json" in installations.failure(hostile)


async def test_an_endless_output_of_a_client_is_read_in_part(tmp_path: Path) -> None:
    clients = RegistryClients({"PATH": "/usr/bin:/bin"}, 240, no_sandbox, tmp_path / "mcp")
    place = clients.open(DEMO, tmp_path)
    noise = f"head -c {8 * OUTPUT_BYTES} /dev/zero"
    tracemalloc.start()
    try:
        text = await clients.run(["sh", "-c", f"echo begin; {noise}"], place)
        with pytest.raises(PackageProblem, match="does not know it in this version"):
            await clients.run(["sh", "-c", f"{noise}; echo No matching distribution found; exit 1"], place)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert text.startswith("begin")
    assert peak < 4 * OUTPUT_BYTES


async def test_a_missing_client_is_named(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "mcp", {"PATH": str(tmp_path)})
    with pytest.raises(PackageProblem, match="npm is not installed"):
        await packages.install(Package("npm", "demo-server", "1.2.3"))
    assert list_names(tmp_path / "mcp") == []


async def test_a_cancelled_installation_is_killed_with_its_children_and_leaves_nothing(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    registry = Registry(tmp_path / "bin", before=f"sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(registry.packages(tmp_path / "mcp").install, DEMO)
        await until(pid.exists)
        tasks.cancel_scope.cancel()
    await until(lambda: not alive(int(pid.read_text())))
    assert list_names(tmp_path / "mcp") == []


async def test_a_hanging_installation_times_out(tmp_path: Path) -> None:
    packages = Registry(tmp_path / "bin", before="sleep 600").packages(tmp_path / "mcp", 0.2)
    with pytest.raises(PackageProblem, match="took longer"):
        await packages.install(DEMO)
    assert list_names(tmp_path / "mcp") == []


def change_byte(tree: Path) -> None:
    script = tree / "bin" / "demo-server"
    times = (script.stat().st_atime_ns, script.stat().st_mtime_ns)
    script.write_text(script.read_text().replace("demo", "evil"))
    os.utime(script, ns=times)  # as if it had never been touched


def add_file(tree: Path) -> None:
    (tree / "lib" / "sitecustomize.py").write_text("")


def remove_file(tree: Path) -> None:
    (tree / "bin" / "demo-server").unlink()


def replace_interpreter(tree: Path) -> None:
    (tree / "bin" / "python").unlink()
    (tree / "bin" / "python").symlink_to("/bin/sh")


def change_record(tree: Path) -> None:
    manifest = tree.parent / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": "9"}))


def break_record(tree: Path) -> None:
    (tree.parent / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    "tampering", [change_byte, add_file, remove_file, replace_interpreter, change_record, break_record]
)
async def test_a_modified_package_is_refused_now_and_after_a_restart(tmp_path: Path, tampering: object) -> None:
    assert callable(tampering)
    registry = Registry(tmp_path / "bin")
    packages = registry.packages(tmp_path / "mcp")
    tampering(Path((await packages.install(DEMO)).tree))
    for store in (packages, registry.packages(tmp_path / "mcp")):
        with pytest.raises(PackageProblem, match="Remove"):
            store.find_installed(DEMO)


async def test_an_incomplete_installation_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    old, young = tmp_path / "mcp" / ".new-old", tmp_path / "mcp" / ".new-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    await Registry(tmp_path / "bin").packages(tmp_path / "mcp").install(DEMO)
    assert not old.exists()
    assert young.exists()


async def test_a_wheel_is_installed_only_with_the_approved_hash(tmp_path: Path) -> None:
    with package_registry() as index:
        index.publish_wheel("demo-server", "1.2.3")
        stand_in = Registry(tmp_path / "bin")
        clients = {"PATH": f"{stand_in.folder}:/usr/bin:/bin", **index.environment(tmp_path)}
        packages = Packages(tmp_path / "mcp", clients)
        facts = await packages.inspect(Package("pypi", "demo-server", ""))
        assert (facts.version, facts.license, facts.programs) == ("1.2.3", "MIT", ("demo-server",))
        with pytest.raises(PackageProblem, match="other content under this version"):
            await packages.install(replace(DEMO, integrity="sha256-other"))
        assert stand_in.calls == []
        approved = replace(DEMO, integrity=facts.integrity)
        assert (await packages.install(approved)).integrity == facts.integrity
        assert stand_in.calls[1].endswith("/wheel/demo_server-1.2.3-py3-none-any.whl")
        with pytest.raises(PackageChanged, match="differ from the approved ones"):
            packages.find_installed(replace(DEMO, integrity="sha256-other"))
        with pytest.raises(PackageProblem, match="does not know it"):
            await packages.inspect(Package("pypi", "no-such-server", ""))
    assert list_names(tmp_path / "mcp") == ["pypi"]


INTRUDER = """#!/bin/sh
case "$1" in
venv)
    for tree; do :; done
    mkdir -p "$tree/bin" && ln -s {python} "$tree/bin/python"
    while [ ! -e "$tree/go" ]; do sleep 0.02; done ;;
pip)
    while [ "$1" != "--python" ]; do shift; done
    tree=$(dirname "$(dirname "$2")")
    ln -s {outside} "$tree/../../whole/link" "$HOME/../manifest.json"
    {{ cat {secret}; touch {outside}/new; ls {mcp}; cat "$HOME/.npmrc"; }} > "$tree/bin/demo-server" 2>&1 ;;
esac
exit 0
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root: only root can start a client as another user")


def find_owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def find_outer_ids(mark: str) -> set[str]:
    """Return the user ids, as the host sees them, of all processes with this text in their environment."""
    ids = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                uid_line = next(
                    uid_line
                    for uid_line in (process / "status").read_text().splitlines()
                    if uid_line.startswith("Uid:")
                )
                ids |= set(uid_line.split()[1:])
    return ids


@as_root
@needs_bubblewrap
async def test_a_command_run_for_a_root_server_is_another_user_limited_to_its_folder(
    tmp_path: Path,
) -> None:
    secret, outside, mcp = tmp_path / "secret", tmp_path / "outside", tmp_path / "mcp"
    marker = f"mark-{os.urandom(8).hex()}"
    secret.write_text("canary")
    outside.mkdir(mode=0o777)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text("registry=https://registry.example\n")
    (home / ".npmrc").chmod(0o600)
    registry = Registry(tmp_path / "bin")
    text = INTRUDER.format(python=PYTHON, secret=secret, outside=outside, mcp=mcp)
    (registry.folder / "uv").write_text(text)
    environment = {"PATH": f"{registry.folder}:/usr/bin:/bin", "HOME": str(home), "MARK": marker}
    packages = Packages(mcp, environment, sandbox=client_sandbox)
    ids: set[str] = set()

    async def watch() -> None:
        await until(lambda: any(mcp.glob(".new-*/work/tree/bin/python")))
        ids.update(find_outer_ids(marker))
        (next(mcp.glob(".new-*/work/tree")) / "go").touch()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await packages.install(DEMO)
    sandbox = client_sandbox()
    assert isinstance(sandbox, Sandbox)
    if sandbox.user is not None:
        assert ids == {str(sandbox.user)}
    tree = mcp / "pypi" / "demo-server@1.2.3" / "tree"
    written_text = (tree / "bin" / "demo-server").read_text()
    assert "registry=https://registry.example" in written_text  # its settings
    assert "canary" not in written_text
    assert "pypi" not in written_text
    assert list(outside.iterdir()) == []
    assert find_owners(tree.parent) == {0}
    assert list_exposed_files(tree) == []
    assert {path.name for path in tree.parent.iterdir()} == {"tree", "manifest.json"}
    assert list_names(mcp) == ["pypi"]


@as_root
@needs_bubblewrap
async def test_the_real_clients_work_in_the_sandbox_of_a_server_that_runs_as_root(tmp_path: Path) -> None:
    with package_registry() as index:
        index.publish_wheel("demo-server", "1.2.3")
        index.publish_npm("notes-server", "1.2.0")
        environment = {**os.environ, **index.environment(tmp_path)}
        packages = Packages(tmp_path / "mcp", environment, sandbox=client_sandbox)
        assert (await packages.inspect(Package("pypi", "demo-server", ""))).version == "1.2.3"
        if shutil.which("npm"):
            notes = Package("npm", "notes-server", "1.2.0")
            assert (await packages.inspect(notes)).license == "MIT"
            assert (await packages.install(notes)).integrity.startswith("sha512-")


async def test_root_without_a_sandbox_installs_no_package_and_gives_the_reason(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "bin")
    packages = Packages(tmp_path / "mcp", {"PATH": str(registry.folder)}, sandbox=lambda: "bubblewrap is not installed")
    with pytest.raises(PackageProblem, match="bubblewrap is not installed"):
        await packages.install(DEMO)
    assert registry.calls == []
    assert list_names(tmp_path / "mcp") == []


async def test_a_pipe_or_a_link_in_place_of_the_import_folder_is_refused(tmp_path: Path) -> None:
    pipe = Registry(tmp_path / "pipe", before='[ "$1" = pip ] && trap \'mkfifo "$tree/bin/x"\' EXIT')
    with pytest.raises(PackageProblem, match="'bin/x', which is no file"):
        await pipe.packages(tmp_path / "mcp").install(DEMO)
    outside = tmp_path / "outside"
    link = Registry(
        tmp_path / "link", before=f'[ "$1" = pip ] && trap \'mv "$tree" {outside}; ln -s {outside} "$tree"\' EXIT'
    )
    with pytest.raises(PackageProblem, match="left no folder"):
        await link.packages(tmp_path / "mcp").install(DEMO)
    assert list_names(tmp_path / "mcp") == []
