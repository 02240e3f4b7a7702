"""Packages of MCP servers: installed once, without running any of their code, and checked again at each start.

Owns the package folder; `registry_clients` runs npm, uv or pip. Knows no server and starts nothing that it installs: no
install scripts (npm), wheels only (PyPI). An installation is recorded as one hash over the whole tree. A
start compares the hash, which reveals files that were changed, added or removed since. `Installations` installs in the
background what saved entries need.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from email.parser import HeaderParser
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.archive.zips import UNREADABLE, open_zip
from agentic_rag.base.errors import AgenticRagError, PackageChanged, PackageProblem
from agentic_rag.base.json_form import Json
from agentic_rag.base.workers import Queue
from agentic_rag.tools.launch.bundles import Bundle, read_bundle, read_start, unpack_bundle
from agentic_rag.tools.launch.catalogue import Package, normal_name
from agentic_rag.tools.launch.environment import SEARCH_PATH
from agentic_rag.tools.launch.facts import MAX_LISTED, TEXT_CHARS, Facts, add_npm_sizes, read_npm_facts
from agentic_rag.tools.launch.registry_clients import PYTHON, RegistryClient, RegistryClients, Workplace, no_sandbox
from agentic_rag.tools.launch.sandbox import Sandbox

INSTALL_SECONDS = 300
"""Default time limit of one command of an installation."""

INSPECT_SECONDS = 60
"""Time limit for a registry to describe a package."""

WHEEL_BLOCKS = 512 * 1024
"""The largest wheel that is fetched, in blocks of 512 bytes: 256 MiB."""

STALE_SECONDS = 3600
"""An incomplete installation of this age was left by a process that died."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed package, ready to start. ``args`` come before the server's own; paths are absolute.

    ``tree``: its folder. ``integrity``: hash of the fetched package; empty if no integrity was required.
    """

    registry: str
    name: str
    version: str
    executable: str
    args: tuple[str, ...]
    tree: str
    sha256: str
    integrity: str = ""


class Packages:
    """The package folder. Safe to share between processes: an installation appears atomically."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        seconds: float = INSTALL_SECONDS,
        sandbox: Callable[[], Sandbox | str | None] = no_sandbox,
    ) -> None:
        """Store the configuration.

        ``environment`` is passed to the registries' clients (their settings, none of our secrets); None passes a
        minimal one. ``seconds``: time limit of one command of an installation. ``sandbox``: returns the sandbox of the
        clients, the reason why there is none, or None to run them as the server's own user (see `client_sandbox`).
        """
        self._seconds = seconds
        self.folder = folder.absolute()
        environment = dict(environment or {"PATH": ":".join(SEARCH_PATH), "HOME": str(self.folder)})
        self._clients = RegistryClients(environment, seconds, sandbox, Path(os.path.realpath(folder)))
        self._locks: dict[str, anyio.Lock] = {}
        self._checked_hashes: dict[str, str] = {}

    async def install(self, package: Package) -> Installed:
        """Install a package if it is not installed yet; an empty version means the newest one.

        Raises:
            PackageProblem: A client is missing, the registry cannot be reached or does not know the version, or
                the package cannot be installed without running its code.
        """
        lock = self._locks.setdefault(f"{package.registry}:{package.name}", anyio.Lock())
        async with lock:
            if package.version and self.has(package):
                return await anyio.to_thread.run_sync(self.find_installed, package)
            async with self._staging() as staging:
                return await self._install(package, staging)

    async def inspect(self, package: Package) -> Facts:
        """Return the facts about a package from its registry or stored bundle; runs and installs nothing.

        An empty version means the newest one.

        Raises:
            PackageProblem: A client is missing, the registry cannot be reached, does not know the version, or its
                authors withdrew it.
        """
        async with self._staging() as staging:
            if package.registry == "npm":
                return await self._inspect_npm(package, await self._workplace(package, staging))
            if package.registry == "pypi":
                at = await self._workplace(package, staging)
                return await anyio.to_thread.run_sync(read_wheel, await self._fetch_wheel(package, at))
        return (await anyio.to_thread.run_sync(read_bundle, self.bundle_of(package))).facts

    def bundle_of(self, package: Package) -> Path:
        """Return the path of a package's stored bundle, which is named by its hash."""
        return self.folder / "bundles" / f"{package.integrity.removeprefix('sha256-')}.mcpb"

    async def keep_bundle(self, data: bytes) -> Bundle:
        """Store a proposed bundle, and return its requirements.

        Raises:
            PackageProblem: The bundle could not be installed.
        """

        def keep() -> Bundle:
            folder = Path(self._make_folder(self.folder / "bundles"))
            descriptor, name = tempfile.mkstemp(prefix=".new-", dir=folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                bundle = read_bundle(Path(name))
                facts = bundle.facts
                Path(name).replace(self.bundle_of(Package("mcpb", facts.name, facts.version, "", facts.integrity)))
                return bundle
            finally:
                Path(name).unlink(missing_ok=True)

        return await anyio.to_thread.run_sync(keep)

    def forget_bundles(self, needed: Collection[str], integrity: str = "") -> None:
        """Remove a bundle, and every unneeded one that is older than an hour. Blocks.

        ``needed``: integrities of the bundles that are needed.
        """
        for path in (self.folder / "bundles").glob("*"):
            bundle_integrity = f"sha256-{path.stem}"
            stale = time.time() - path.stat().st_mtime > STALE_SECONDS
            if bundle_integrity not in needed and (bundle_integrity == integrity or stale):
                path.unlink(missing_ok=True)

    def has(self, package: Package) -> bool:
        """Return whether a package is installed, even if its files were changed."""
        return self._place(package).is_dir()

    def find_installed(self, package: Package) -> Installed:
        """Return an installed package after checking that its files are unchanged. Blocks.

        The first check in a process reads all files. Later checks only compare the result of `os.lstat`, including
        change times, which only the system can set.

        Raises:
            PackageProblem: Not installed, or changed since.
        """
        place = self._place(package)
        try:
            manifest = read_manifest(place)
        except FileNotFoundError as exc:
            raise PackageProblem(
                str(package), "it is not installed yet. Test or restart the server: nothing is fetched at a start."
            ) from exc
        except (OSError, ValueError, TypeError, KeyError) as exc:
            raise PackageProblem(str(package), f"its record cannot be read ({exc}). Remove {place}.") from exc
        if (manifest.registry, manifest.name, manifest.version) != (package.registry, package.name, package.version):
            raise PackageProblem(str(package), f"{place} holds another package. Remove it.")
        tree = place / "tree"
        tree_hash = _tree_hash(tree, _stat_facts)
        if package.integrity and manifest.integrity != package.integrity:
            reason = f"the installed files of this version differ from the approved ones. Remove {place}."
            raise PackageChanged(str(package), reason)
        if self._checked_hashes.get(str(place)) != tree_hash:
            if _tree_hash(tree, _content_facts) != manifest.sha256:
                raise PackageChanged(str(package), f"its files were changed since they were installed. Remove {place}.")
            self._checked_hashes[str(place)] = tree_hash
        return manifest

    @contextlib.asynccontextmanager
    async def _staging(self) -> AsyncIterator[Path]:
        """Create a folder for this task, and remove it at the end."""
        await anyio.to_thread.run_sync(self._remove_stale)
        folder = await anyio.to_thread.run_sync(self._make_folder, self.folder)
        make = partial(tempfile.mkdtemp, prefix=".new-", dir=folder)
        staging = Path(await anyio.to_thread.run_sync(lambda: os.path.realpath(make())))
        try:
            yield staging
        finally:
            with anyio.CancelScope(shield=True):  # a thread that removes files ends soon in any case
                await anyio.to_thread.run_sync(lambda: shutil.rmtree(staging, ignore_errors=True))

    async def _workplace(self, package: Package, staging: Path) -> Workplace:
        """Return the folder inside ``staging`` in which the registry's client works."""
        folder = Path(await anyio.to_thread.run_sync(self._make_folder, staging / "work"))
        return await anyio.to_thread.run_sync(self._clients.open, package, folder)

    async def _install(self, package: Package, staging: Path) -> Installed:
        """Install a package below ``staging``, check it, and move it to its final place with one rename."""
        whole = Path(await anyio.to_thread.run_sync(self._make_folder, staging / "whole"))
        tree = whole / "tree"
        if package.registry == "mcpb":
            await anyio.to_thread.run_sync(unpack_bundle, self.bundle_of(package), package, tree)
        else:
            at = await self._workplace(package, staging)
            install = self._npm if package.registry == "npm" else self._pypi
            fetched = await install(package, at)
            await anyio.to_thread.run_sync(fetched.rename, tree)  # out of the folder that the client could write

        def finish() -> Installed:
            _close(package, tree)
            exact = replace(package, version=package.version or _version(package, tree))
            place = self._place(exact)
            installed = _describe(exact, tree, place / "tree")
            if package.integrity and installed.integrity != package.integrity:
                raise PackageProblem(str(exact), "the registry has other content under this version than was approved.")
            (whole / "manifest.json").write_text(json.dumps(asdict(installed)))
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                whole.rename(place)
            except OSError as exc:
                if not place.is_dir():
                    raise PackageProblem(str(exact), f"its folder cannot be made: {exc.strerror}") from exc
            return self.find_installed(exact)  # this installation, or that of a faster process

        return await anyio.to_thread.run_sync(finish)

    async def _npm(self, package: Package, at: Workplace) -> Path:
        """Install a package of npm; return its folder."""
        npm = await self._find_npm(package, at)
        _program("node", package)
        tree = at.folder / "tree"
        await anyio.to_thread.run_sync(self._make_folder, tree)
        requirement = f"{package.name}@{package.version}" if package.version else package.name
        flags = ("--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(tree))
        await self._clients.run([npm.program, "install", *flags, requirement], at, cwd=tree, files=npm.files)
        return tree

    async def _find_npm(self, package: Package, at: Workplace) -> RegistryClient:
        npm = await self._clients.find("npm", at)
        if npm is None:
            raise PackageProblem(str(package), "npm is not installed on this machine (it comes with Node.js).")
        return npm

    async def _inspect_npm(self, package: Package, at: Workplace) -> Facts:
        npm = await self._find_npm(package, at)
        requirement = f"{package.name}@{package.version or 'latest'}"

        async def ask(*words: str) -> str:
            return await self._clients.run([npm.program, *words], at, seconds=INSPECT_SECONDS, files=npm.files)

        facts = read_npm_facts(await ask("view", "--json", "--loglevel=silent", requirement))
        if facts is None or not facts.version:
            raise PackageProblem(str(package), "the package registry does not know it in this version.")
        if facts.file_count:
            return facts
        exact = f"{facts.name}@{facts.version}"  # older packages: only the archive knows; it is fetched and discarded
        packed = await ask("pack", "--dry-run", "--json", "--ignore-scripts", "--loglevel=silent", exact)
        return add_npm_sizes(facts, packed)

    async def _fetch_wheel(self, package: Package, at: Workplace) -> Path:
        """Fetch the wheel of one package, without its dependencies."""
        place = Path(await anyio.to_thread.run_sync(self._make_folder, at.folder / "wheel"))
        requirement = f"{package.name}=={package.version}" if package.version else package.name
        python, flags = PYTHON, ("-q", "--no-input", "--disable-pip-version-check", "--no-deps", "--dest", str(place))
        try:
            await self._clients.run([python, "-c", "import pip"], at, seconds=INSPECT_SECONDS)
        except PackageProblem:  # an interpreter without pip can still create environments that have it
            python = str(at.folder / "pip" / "bin" / "python")
            await self._clients.run([PYTHON, "-m", "venv", str(at.folder / "pip")], at)
        bounded = ["/bin/sh", "-c", f'ulimit -f {WHEEL_BLOCKS}; exec "$@"', "sh"]
        fetch = [*bounded, python, "-m", "pip", "download", *flags, "--only-binary", ":all:", requirement]
        output = await self._clients.run(fetch, at, seconds=max(INSPECT_SECONDS, self._seconds))
        if "yanked version" in output:
            raise PackageProblem(str(package), "its authors took this version back (yanked). Ask for another one.")
        wheels = await anyio.to_thread.run_sync(lambda: list(place.glob("*.whl")))
        if not wheels:
            raise PackageProblem(str(package), "its registry's client left no wheel.")
        return wheels[0]

    async def _pypi(self, package: Package, at: Workplace) -> Path:
        """Install a package of PyPI into an environment; return the environment's folder."""
        tree = at.folder / "tree"
        requirement = f"{package.name}=={package.version}" if package.version else package.name
        if package.integrity:
            wheel = await self._fetch_wheel(package, at)
            if (await anyio.to_thread.run_sync(read_wheel, wheel)).integrity != package.integrity:
                raise PackageProblem(
                    str(package), "the registry has other content under this version than was approved."
                )
            requirement = str(wheel)
        inside = str(tree / "bin" / "python")
        uv = await self._clients.find("uv", at)
        files = () if uv is None else uv.files
        if uv is not None:
            venv = [uv.program, "venv", "-q", "--no-project", "--python", PYTHON, str(tree)]
            install = [uv.program, "pip", "install", "-q", "--python", inside, "--link-mode", "copy"]
            install.append("--compile-bytecode")
        else:
            venv = [PYTHON, "-m", "venv", str(tree)]
            install = [inside, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]
        await self._clients.run(venv, at, files=files)
        await self._clients.run([*install, "--only-binary", ":all:", requirement], at, files=files)
        return tree

    def _place(self, package: Package) -> Path:
        return self.folder / package.registry / f"{package.name.replace('/', '+')}@{package.version}"

    def _make_folder(self, folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def _remove_stale(self) -> None:
        for folder in self.folder.glob(".new-*"):
            if time.time() - folder.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def read_manifest(place: Path) -> Installed:
    record = json.loads((place / "manifest.json").read_text())
    return Installed(**{**record, "args": tuple(record["args"])})


def _close(package: Package, tree: Path) -> None:
    """Restrict an installed tree to the server's user: pip and venv open some files to all users despite the umask.

    A client in the sandbox was another user. Nothing that it left may make the server follow a link or wait for a pipe.

    Raises:
        PackageProblem: The tree holds something that is no file, folder or link.
    """
    if tree.is_symlink() or not tree.is_dir():
        raise PackageProblem(str(package), "its registry's client left no folder.")
    for folder, _, names in os.walk(tree):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            mode = os.lstat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise PackageProblem(str(package), f"it holds {os.path.relpath(path, tree)!r}, which is no file.")
            if os.geteuid() == 0:
                os.lchown(path, 0, 0)
            if not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(mode) & stat.S_IRWXU)


def _describe(package: Package, tree: Path, final: Path) -> Installed:
    """Return the start command of the package in ``tree`` for its future place at ``final``."""
    digest = _tree_hash(tree, _content_facts)
    integrity = package.integrity
    if package.registry == "npm":
        integrity = _npm_integrity(package, tree)
        script = _npm_script(package, tree).relative_to(tree)
        program = _program("node", package)
        args: tuple[str, ...] = (str(final / script),)
    elif package.registry == "mcpb":
        program, args = read_start(tree, final)
    else:
        name = package.program or package.name
        script = Path("bin") / name
        if not (tree / script).is_file() or "/" in name:
            raise PackageProblem(str(package), f"it has no program {name!r}.")
        # Run by its interpreter, isolated: the script's first line names the folder it was installed in.
        program, args = str(final / "bin" / "python"), ("-I", "-B", str(final / script))
    return Installed(package.registry, package.name, package.version, program, args, str(final), digest, integrity)


def _npm_integrity(package: Package, tree: Path) -> str:
    """Return the integrity that npm recorded after it fetched and compared the package."""
    try:
        locked = json.loads((tree / "node_modules" / ".package-lock.json").read_text())["packages"]
        return str(locked[f"node_modules/{package.name}"].get("integrity", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def _npm_script(package: Package, tree: Path) -> Path:
    folder = tree / "node_modules" / package.name
    declared = _package_json(package, tree).get("bin") or {}
    programs = declared if isinstance(declared, dict) else {package.name.rpartition("/")[2]: declared}
    name = package.program or (next(iter(programs)) if len(programs) == 1 else package.name.rpartition("/")[2])
    named = programs.get(name)
    usable = isinstance(named, str) and "\x00" not in named
    script = (folder / str(named)).resolve() if usable else folder
    if not script.is_file() or not script.is_relative_to(folder.resolve()):
        raise PackageProblem(str(package), f"it has no program {name!r}; it has: {', '.join(programs) or 'none'}.")
    return tree / script.relative_to(tree.resolve())


def _package_json(package: Package, tree: Path) -> Json:
    """Return the description that the authors of an npm package wrote.

    Raises:
        PackageProblem: It cannot be read as a JSON object.
    """
    try:
        text = (tree / "node_modules" / package.name / "package.json").read_text("utf-8")
        description = json.loads(text)
    except (OSError, ValueError, RecursionError) as exc:
        raise PackageProblem(str(package), f"its package.json cannot be read: {str(exc)[:TEXT_CHARS]}") from exc
    if not isinstance(description, dict):
        raise PackageProblem(str(package), "its package.json is no JSON object.")
    return description


def _version(package: Package, tree: Path) -> str:
    if package.registry == "npm":
        described = _package_json(package, tree).get("version")
        if not isinstance(described, str) or not described:
            raise PackageProblem(str(package), "its package.json names no version.")
        return described
    normal_name = package.name.replace("-", "_")
    for record in tree.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = record.name.removesuffix(".dist-info").rpartition("-")
        if re.sub(r"[-_.]+", "_", name).lower() == normal_name:
            return version
    raise PackageProblem(str(package), "its version cannot be found.")


def _program(name: str, package: Package) -> str:
    program = shutil.which(name, path=":".join(SEARCH_PATH))
    if program is None:
        raise PackageProblem(str(package), f"it needs {name!r}, which is not in {' or '.join(SEARCH_PATH)}.")
    return os.path.realpath(program)


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
    status = os.lstat(path)
    return [status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


log = logging.getLogger(__name__)

MAX_TEXT_BYTES = 1 << 20
"""Maximum size of a wheel's metadata that is read."""
_PROGRAM = re.compile(r"^\s*([A-Za-z0-9][\w.-]{0,100})\s*=", re.MULTILINE)


def read_wheel(path: Path) -> Facts:
    """Return the facts of a wheel.

    Raises:
        PackageProblem: The file is not a wheel.
    """
    try:
        with path.open("rb") as file, open_zip(file) as archive:
            entries = archive.infolist()
            head = HeaderParser().parsestr(_read(archive, "METADATA"))
            programs = _programs(_read(archive, "entry_points.txt"))
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except UNREADABLE as exc:
        raise PackageProblem(path.name, f"it cannot be read as a wheel: {exc}") from exc
    needed = [
        requirement.partition(";")[0].strip()
        for requirement in head.get_all("Requires-Dist", [])
        if "extra ==" not in requirement
    ]
    return Facts(
        registry="pypi",
        name=normal_name("pypi", str(head.get("Name", ""))),
        version=str(head.get("Version", "")),
        integrity=f"sha256-{digest}",
        license=str(head.get("License-Expression") or head.get("License") or "").partition("\n")[0][:TEXT_CHARS],
        size_bytes=sum(entry.file_size for entry in entries),
        file_count=len(entries),
        dependencies=tuple(requirement[:TEXT_CHARS] for requirement in needed[:MAX_LISTED]),
        programs=tuple(programs[:MAX_LISTED]),
    )


def _read(archive: zipfile.ZipFile, name: str) -> str:
    """Return a text of the wheel's own folder; empty if there is none."""
    info = next((entry for entry in archive.infolist() if entry.filename.endswith(f".dist-info/{name}")), None)
    if info is None:
        return ""
    with archive.open(info) as file:
        return file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")


def _programs(text: str) -> list[str]:
    section = text.partition("[console_scripts]")[2].partition("\n[")[0]
    return sorted(_PROGRAM.findall(section))


AT_ONCE = 2
MAX_REMEMBERED = 500
"""Maximum number of packages whose failed installation is remembered with the reason."""


class Installations:
    """The packages of one data folder that are being installed."""

    def __init__(self, packages: Packages) -> None:
        self._packages = packages
        self._waiting: Queue[Package] = Queue()
        self._under_way: set[Package] = set()
        self._failures: dict[Package, str] = {}
        self._working = False

    @property
    def working(self) -> bool:
        """Whether this process runs the queue: only a serving process does."""
        return self._working

    def begin(self, package: Package) -> None:
        """Queue a package for installation, unless it is queued or being installed already."""
        if self._working and package not in self._under_way:
            self._failures.pop(package, None)
            self._under_way.add(package)
            self._waiting.put(package)

    def is_under_way(self, package: Package) -> bool:
        """Return whether a package is queued or being installed."""
        return package in self._under_way

    def failure(self, package: Package) -> str:
        """Return why the last installation of a package failed; empty if it did not fail or was never tried."""
        return self._failures.get(package, "")

    async def run(self) -> None:
        """Install queued packages until cancelled."""
        self._working = True
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            package = await self._waiting.get()
            try:
                await self._packages.install(package)
            except Exception as exc:  # boundary: one package must not end the installation of all others
                log.warning("%s was not installed: %s", package, exc, exc_info=not isinstance(exc, AgenticRagError))
                if len(self._failures) >= MAX_REMEMBERED:
                    self._failures.clear()
                self._failures[package] = str(exc) or type(exc).__name__
            finally:
                self._under_way.discard(package)
