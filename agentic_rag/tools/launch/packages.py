"""Packages of MCP servers: installed once, without running any of their code, and re-checked at each start.

Owns the package folder and the clients of the registries (npm; uv or pip). Knows no server and starts none of what
it installs: no install scripts (npm), wheels only (PyPI). What was installed is recorded as one hash over the whole
tree; a start compares it, so a file that was changed, added or removed since is found.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.errors import PackageChanged, PackageProblem
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.environment import SEARCH_PATH

INSTALL_SECONDS = 300
"""How long one command of an installation may take, if nothing else is said."""

STALE_SECONDS = 3600
"""A half-made installation this old was left by a process that died."""

OUTPUT_CHARS = 300
"""How much of what a client said is shown."""

_PYTHON = os.path.realpath(sys.executable)
"""The interpreter under any virtual environment of ours; what is installed gets an environment of its own."""

_ADDRESS = re.compile(
    r"\b[a-z][a-z+]{0,30}://\S+"
)  # bounded: else each letter of a long word begins a look at its rest
_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET|error sending request|"
    r"[Cc]ould not connect|dns error|Temporary failure|NewConnectionError|tcp connect error|timed out|Max retries"
)
_UNKNOWN = re.compile(
    r"E404|ETARGET|No matching version|not found in the (?:package )?registry|No matching distribution|no version of"
)


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed package, ready to start. ``args`` come before the server's own; paths are absolute.

    ``tree``: its folder.
    """

    registry: str
    name: str
    version: str
    executable: str
    args: tuple[str, ...]
    tree: str
    sha256: str


class Packages:
    """The package folder. Safe to share between processes: an installation appears whole or not at all."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, seconds: float = INSTALL_SECONDS
    ) -> None:
        """``environment``: what the registries' clients get (their settings, no secret of ours). None: a bare one.

        ``seconds``: how long one command of an installation may take.
        """
        self._seconds = seconds
        self.folder = folder.absolute()
        self._environment = dict(environment or {"PATH": ":".join(SEARCH_PATH), "HOME": str(self.folder)})
        self._locks: dict[str, anyio.Lock] = {}
        self._seen: dict[str, str] = {}

    async def install(self, package: Package) -> Installed:
        """Install a package if it is not; an empty version is the newest one.

        Raises:
            PackageProblem: a client is missing, the registry cannot be reached or does not know the version, or
                the package cannot be installed without running its code.
        """
        lock = self._locks.setdefault(f"{package.registry}:{package.name}", anyio.Lock())
        async with lock:
            if package.version and self.has(package):
                return await anyio.to_thread.run_sync(self.find_installed, package)
            await anyio.to_thread.run_sync(self._remove_stale)
            folder = await anyio.to_thread.run_sync(self._make_folder, self.folder)
            staging = Path(await anyio.to_thread.run_sync(lambda: tempfile.mkdtemp(prefix=".new-", dir=folder)))
            try:
                return await self._install(package, staging)
            finally:
                with anyio.CancelScope(shield=True):  # a thread that removes files ends by itself
                    await anyio.to_thread.run_sync(lambda: shutil.rmtree(staging, ignore_errors=True))

    def has(self, package: Package) -> bool:
        """Whether a package is there, as it is or changed."""
        return self._place(package).is_dir()

    def find_installed(self, package: Package) -> Installed:
        """Return an installed package after looking whether it still is what was installed. Blocks.

        All files are read the first time in a process; later only what `os.lstat` tells is compared, change times
        included, which nobody but the system sets.

        Raises:
            PackageProblem: not installed, or changed since.
        """
        place = self._place(package)
        try:
            found = read_manifest(place)
        except FileNotFoundError as exc:
            raise PackageProblem(
                str(package), "it is not installed yet. Test or restart the server: nothing is fetched at a start."
            ) from exc
        except (OSError, ValueError, TypeError, KeyError) as exc:
            raise PackageProblem(str(package), f"its record cannot be read ({exc}). Remove {place}.") from exc
        if (found.registry, found.name, found.version) != (package.registry, package.name, package.version):
            raise PackageProblem(str(package), f"{place} holds another package. Remove it.")
        tree = place / "tree"
        seen = _tree_hash(tree, _stat_facts)
        if self._seen.get(str(place)) != seen:
            if _tree_hash(tree, _content_facts) != found.sha256:
                raise PackageChanged(str(package), f"its files were changed since they were installed. Remove {place}.")
            self._seen[str(place)] = seen
        return found

    async def _install(self, package: Package, staging: Path) -> Installed:
        tree = staging / "tree"
        await (self._npm if package.registry == "npm" else self._pypi)(package, tree)

        def finish() -> Installed:
            exact = replace(package, version=package.version or _version(package, tree))
            place = self._place(exact)
            found = _describe(exact, tree, place / "tree")
            (staging / "manifest.json").write_text(json.dumps(asdict(found)))
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                staging.rename(place)
            except OSError as exc:
                if not place.is_dir():
                    raise PackageProblem(str(exact), f"its folder cannot be made: {exc.strerror}") from exc
            return self.find_installed(exact)  # ours, or that of a process that was faster

        return await anyio.to_thread.run_sync(finish)

    async def _npm(self, package: Package, tree: Path) -> None:
        npm = self._client("npm")
        if npm is None:
            raise PackageProblem(str(package), "npm is not installed on this machine (it comes with Node.js).")
        _program("node", package)
        await anyio.to_thread.run_sync(self._make_folder, tree)
        wanted = f"{package.name}@{package.version}" if package.version else package.name
        flags = ("--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(tree))
        await self._run(package, [npm, "install", *flags, wanted], tree)

    async def _pypi(self, package: Package, tree: Path) -> None:
        python = _PYTHON
        wanted = f"{package.name}=={package.version}" if package.version else package.name
        inside = str(tree / "bin" / "python")
        uv = self._client("uv")
        folder = tree.parent
        if uv is not None:
            await self._run(package, [uv, "venv", "-q", "--no-project", "--python", python, str(tree)], folder)
            install = [uv, "pip", "install", "-q", "--python", inside, "--link-mode", "copy", "--compile-bytecode"]
        else:
            await self._run(package, [python, "-m", "venv", str(tree)], folder)
            install = [inside, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]
        await self._run(package, [*install, "--only-binary", ":all:", wanted], folder)

    async def _run(self, package: Package, command: Sequence[str], folder: Path) -> None:
        """Run a registry's client to its end; on a timeout or when cancelled it is killed with all it started."""
        with tempfile.TemporaryFile() as output:  # not a pipe: something it started may hold that open
            process = subprocess.Popen(  # noqa: ASYNC220 - it returns once the child runs
                command,
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with anyio.fail_after(self._seconds):
                    await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
            except TimeoutError as exc:
                raise PackageProblem(str(package), f"the installation took longer than {self._seconds:g} s.") from exc
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):  # it ended just now
                        os.killpg(process.pid, signal.SIGKILL)
                    with anyio.CancelScope(shield=True):  # it was killed: it ends at once
                        await anyio.to_thread.run_sync(process.wait)
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
        if process.returncode:
            raise PackageProblem(str(package), reason_of(said))

    def _client(self, name: str) -> str | None:
        return shutil.which(name, path=self._environment.get("PATH"))

    def _place(self, package: Package) -> Path:
        return self.folder / package.registry / f"{package.name.replace('/', '+')}@{package.version}"

    def _make_folder(self, folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def _remove_stale(self) -> None:
        for each in self.folder.glob(".new-*"):
            if time.time() - each.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(each, ignore_errors=True)


def read_manifest(place: Path) -> Installed:
    record = json.loads((place / "manifest.json").read_text())
    return Installed(**{**record, "args": tuple(record["args"])})


def _describe(package: Package, tree: Path, final: Path) -> Installed:
    """Return how the package in ``tree`` is started once it lies at ``final``."""
    digest = _tree_hash(tree, _content_facts)
    if package.registry == "npm":
        script = _npm_script(package, tree).relative_to(tree)
        program = _program("node", package)
        args: tuple[str, ...] = (str(final / script),)
    else:
        name = package.program or package.name
        script = Path("bin") / name
        if not (tree / script).is_file() or "/" in name:
            raise PackageProblem(str(package), f"it has no program {name!r}.")
        # By its interpreter, isolated: the script's first line names the folder it was installed in
        program, args = str(final / "bin" / "python"), ("-I", "-B", str(final / script))
    return Installed(package.registry, package.name, package.version, program, args, str(final), digest)


def _npm_script(package: Package, tree: Path) -> Path:
    folder = tree / "node_modules" / package.name
    declared = json.loads((folder / "package.json").read_text()).get("bin") or {}
    programs = declared if isinstance(declared, dict) else {package.name.rpartition("/")[2]: declared}
    name = package.program or (next(iter(programs)) if len(programs) == 1 else package.name.rpartition("/")[2])
    script = (folder / str(programs.get(name, ""))).resolve()
    if name not in programs or not script.is_file() or not script.is_relative_to(folder.resolve()):
        raise PackageProblem(str(package), f"it has no program {name!r}; it has: {', '.join(programs) or 'none'}.")
    return tree / script.relative_to(tree.resolve())


def _version(package: Package, tree: Path) -> str:
    if package.registry == "npm":
        text = (tree / "node_modules" / package.name / "package.json").read_text()
        return str(json.loads(text)["version"])
    wanted = package.name.replace("-", "_")
    for record in tree.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = record.name.removesuffix(".dist-info").rpartition("-")
        if re.sub(r"[-_.]+", "_", name).lower() == wanted:
            return version
    raise PackageProblem(str(package), "its version cannot be found.")


def _program(name: str, package: Package) -> str:
    found = shutil.which(name, path=":".join(SEARCH_PATH))
    if found is None:
        raise PackageProblem(str(package), f"it needs {name!r}, which is not in {' or '.join(SEARCH_PATH)}.")
    return os.path.realpath(found)


def _tree_hash(tree: Path, facts: Callable[[str], object]) -> str:
    """Hash the names of everything below a folder with the facts about each."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(tree):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)
            digest.update(json.dumps([os.path.relpath(path, tree), facts(path)]).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _content_facts(path: str) -> object:
    if os.path.islink(path):
        return ["link", os.readlink(path)]
    if os.path.isdir(path):
        return "folder"
    with open(path, "rb") as file:
        return [os.lstat(path).st_mode & 0o100, hashlib.file_digest(file, "sha256").hexdigest()]


def _stat_facts(path: str) -> object:
    found = os.lstat(path)
    return [found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def reason_of(output: str) -> str:
    """Return what a client's output means; addresses may carry credentials and are left out."""
    if _UNREACHABLE.search(output):
        return "the package registry cannot be reached."
    if _UNKNOWN.search(output):
        return "the package registry does not know it in this version."
    lines = [_ADDRESS.sub("(address)", line.strip()) for line in output.splitlines() if line.strip()]
    return f"it could not be installed: {' / '.join(lines[-3:])[-OUTPUT_CHARS:] or 'no reason was given'}"
