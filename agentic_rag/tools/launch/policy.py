"""The launch policy: which entries may be started or connected to, and the exact command or address.

Owns the way from a `LaunchSpec` to a command line in its sandbox, or to an address. Knows no MCP and starts nothing:
`StdioTransport` runs the resulting command, and `LaunchCatalogue` decides which lines may run at all.

A line must match the launch catalogue, and runs in the sandbox. A single user on loopback may lift the first rule
(``--allow-any-command``) or, where there is no bubblewrap, the second (``--allow-unsandboxed``).
"""

import hashlib
import json
import logging
import os
import shlex
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from agentic_rag.base.errors import AgenticRagError, CommandNotAllowed, InvalidInput, PackageProblem
from agentic_rag.tools.entries.entry import HttpTarget, ResolvedTarget, StdioTarget, Target, digest
from agentic_rag.tools.launch.addresses import AddressPolicy, HttpEndpoint, endpoint_of
from agentic_rag.tools.launch.allowed import LaunchCatalogue, allow_command, file_hash, find_program, refuse_inside
from agentic_rag.tools.launch.catalogue import (
    CatalogueEntry,
    CatalogueMatch,
    LineRefusal,
    Package,
    Program,
    SlotValue,
    match_line,
    pin_version,
)
from agentic_rag.tools.launch.environment import base_environment, check_variables
from agentic_rag.tools.launch.leftovers import sweep_leftovers
from agentic_rag.tools.launch.local_programs import LocalPrograms
from agentic_rag.tools.launch.packages import Installations, Packages
from agentic_rag.tools.launch.requests import PackageLine, local_name, plan_line
from agentic_rag.tools.launch.sandbox import CLOSING, Sandbox, find_sandbox, interpreter_files, system_call_filter
from agentic_rag.tools.launch.spec import FILES, UNSET, LaunchSpec
from agentic_rag.tools.launch.usage import Allowance

logger = logging.getLogger(__name__)

SINGLE_USER = "On a single-user machine, start the server on loopback with --allow-any-command."
NO_SANDBOX = "Install bubblewrap, or on a single-user machine start the server on loopback with --allow-unsandboxed."

USER_PROCESSES = 4096
"""Limit for the processes and threads of our user when a child starts another one."""

NICENESS = 3
"""Difference between a child's priority and ours, so that a child gets half the time of our event loop.

With a larger value, servers would not start at all on a busy machine.
"""


HOMES, LOCKS = "homes", "locks"
"""Folders inside the folder that the processes of a shared store share."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The resource limits of a child.

    ``processes``, ``memory_bytes`` and ``cpu_seconds`` (of one processor, per hour) count all its processes together.
    ``disk_bytes`` limits the contents of the folders that the child may write. These limits are measured from outside
    (`usage`).
    """

    open_files: int = 1024
    processes: int = 512
    file_bytes: int = 1 << 30
    memory_bytes: int = 1 << 30
    cpu_seconds: int = 900
    disk_bytes: int = 4 << 30

    def as_pairs(self) -> list[tuple[str, int]]:
        """Return ``(name in the resource module, value)``; core dumps are always off.

        There is no limit on address space: V8 and most runtimes reserve far more than they use. Private writable memory
        is limited: one process may have twice the memory of all processes together. The kernel counts all processes of
        our user, and on a desktop that user may have thousands.
        """
        return [
            ("RLIMIT_CORE", 0),
            ("RLIMIT_NOFILE", self.open_files),
            ("RLIMIT_NPROC", max(self.processes, USER_PROCESSES)),
            ("RLIMIT_FSIZE", self.file_bytes),
            ("RLIMIT_DATA", 2 * self.memory_bytes),
        ]


@dataclass(frozen=True, slots=True)
class StdioCommand:
    """The exact command of a child: absolute executable, argument list, its whole environment.

    The launcher checks ``files`` (path → SHA-256) and ``folders`` (path, writable) once more, right before the child
    runs. If ``sandbox`` (a bubblewrap line) is not empty, the child sees only them and the system.
    """

    executable: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    marker: str
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    files: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[tuple[str, bool], ...] = ()
    sandbox: tuple[str, ...] = ()
    user: int | None = None
    """The id that root drops to; see `Sandbox.user`."""
    network: bool = False
    """Whether the child's sandbox shares the host's network."""
    disk_reserve: int = 0
    """Bytes of the disk that the child must leave free."""
    lock: Path | None = None
    """A file that the child holds locked while it lives, so that no second one starts. None: the child keeps no state.
    """

    @property
    def allowance(self) -> Allowance:
        """The limits that are measured while the child runs."""
        limits = self.limits
        return Allowance(
            limits.memory_bytes, limits.cpu_seconds, limits.processes, limits.disk_bytes, self.disk_reserve
        )

    @property
    def places(self) -> list[Path]:
        """The folders that the child may write in, as far as known: without a sandbox it may write anywhere."""
        return [Path(folder) for folder, writable in self.folders if writable] or [self.cwd]

    def plan(self) -> str:
        """Return the plan for the launcher, as JSON."""
        return json.dumps(
            {
                "limits": self.limits.as_pairs(),
                "files": dict(self.files),
                "folders": self.folders,
                "sandbox": self.sandbox,
                "closing": CLOSING,
                "filter": system_call_filter(network=self.network).hex(),
                "nice": NICENESS,
                "user": self.user,
            }
        )


@dataclass(frozen=True, slots=True)
class Review:
    """The reviewed target of an entry as it would be stored, and its changes, as sentences.

    ``catalogue_id``: the matching catalogue entry. ``uninstalled``: the package that must be installed before the entry
    can start, or None.
    """

    target: Target
    changes: tuple[str, ...] = ()
    catalogue_id: str = ""
    uninstalled: Package | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """Tools of a server whose hints are trusted, by the names the server gives them."""

    read_only: frozenset[str] = frozenset()
    idempotent: frozenset[str] = frozenset()


class Audience(Protocol):
    """The people who can reach this server."""

    @property
    def alone(self) -> bool:
        """Whether only the local user can reach the server."""
        ...


@dataclass(frozen=True, slots=True)
class LiftedRules:
    """The rules that the operator lifted for a server that only one local user can reach.

    ``any_command``: an entry may run any program, also without a sandbox. ``unsandboxed``: an allowed program may run
    without a sandbox where there is none. Both have no effect unless the server listens on ``loopback`` only, and while
    ``people`` are more than one local user (None: they never are).
    """

    any_command: bool = False
    unsandboxed: bool = False
    loopback: bool = False
    people: Audience | None = None

    @property
    def requested(self) -> bool:
        """Whether this process was started with rights that a multi-user server must not have."""
        return (self.any_command or self.unsandboxed) and self.loopback

    @property
    def single_user(self) -> bool:
        """Whether only the local user can reach the server now. A first API key ends this."""
        return self.loopback and (self.people is None or self.people.alone)


class LaunchPolicy:
    """Decides which commands an entry may start, and their exact form.

    An entry passes through these steps, each of which may refuse it:

    1. `review`, before it is saved: a line must match the catalogue, an address must be permitted.
    2. `install`, where a package is needed: it is installed in the background, without running its code.
    3. `resolve`, before each start: the rules, the files and the hashes are checked again, because they may have
       changed since the entry was saved. The result is the exact command in its sandbox.

    Invariants: nothing runs that the operator did not allow, except under `LiftedRules`. A refusal names the place in
    the entry and the remedy. The policy starts no process and asks no network itself.
    """

    def __init__(
        self,
        homes: Path,
        *,
        catalogue: LaunchCatalogue | None = None,
        packages: Packages | None = None,
        sandbox: Sandbox | str | None = None,
        hosts: Collection[tuple[str, int]] = (),
        lifted: LiftedRules | None = None,
        data: Path | None = None,
        programs: Path | None = None,
        disk_reserve: int = 0,
        shared: Path | None = None,
    ) -> None:
        """Store the configuration.

        ``homes``: folder for the private directories of children (created on first use, 0700).
        ``data``: the data folder, of which a child sees only its own parts.
        ``programs``: the folder of the operator's programs; None means ``local`` next to the homes.
        ``disk_reserve``: bytes of its disk that children leave free.

        ``sandbox``: the sandbox to use, or the reason why there is none; None means to look for one when it is needed.
        ``hosts``: the operator's list of ``(host, port)`` that may be reached at any IP address. ``lifted``: the rules
        that do not count; None: all rules count.

        ``shared``: folder of all processes of a shared store, with ``homes`` of stateful servers, and ``locks``. None
        means that there is only one process.
        """
        self.homes = homes.resolve()
        self._shared = None if shared is None else shared.resolve()
        self._data = None if data is None else data.resolve()
        self._disk_reserve = disk_reserve
        self._lifted = lifted or LiftedRules()
        self.marker = hashlib.sha256(str(self.homes).encode()).hexdigest()[:16]
        self.packages = packages
        self.installations = Installations(packages) if packages is not None else None
        self.catalogue = catalogue or LaunchCatalogue()
        self.local = LocalPrograms(programs or self.homes.parent / "local")
        self._hosts = frozenset(hosts)
        self._sandbox = sandbox
        self._spawned = 0

    @property
    def any_command(self) -> bool:
        """Whether a user's entry may run any program."""
        return self._lifted.any_command and self._lifted.single_user

    @property
    def unsandboxed(self) -> bool:
        """Whether a user's entry may run without a sandbox where there is none."""
        return (self._lifted.unsandboxed or self._lifted.any_command) and self._lifted.single_user

    @property
    def single_user(self) -> bool:
        """Whether this process was started with rights that a multi-user server must not have."""
        return self._lifted.requested

    @property
    def networked(self) -> bool:
        """Whether any catalogue entry lets a sandboxed server use the network."""
        return any(entry.network for entry in self.catalogue.entries())

    @property
    def sandbox(self) -> Sandbox | str:
        """The sandbox, or the reason why there is none. The first access blocks for some milliseconds."""
        if self._sandbox is None:
            self._sandbox = find_sandbox()
        return self._sandbox

    # -- before anything is started ---------------------------------------------------------------------------

    def review(self, spec: LaunchSpec) -> Review:
        """Check whether an entry may be saved, and return its stored form. Reads files; starts and fetches nothing.

        Raises:
            CommandNotAllowed: No rule allows it; names the path in the settings and the remedy.
            InvalidInput: The entry itself cannot be run.
        """
        target, entry_target = spec.resolved, spec.entry.target
        if isinstance(target, HttpTarget) or isinstance(entry_target, HttpTarget):
            self.endpoint(spec)
            return Review(entry_target)
        match = self._match(spec, target)
        if match is None:
            self._check_line(spec, target)
            return Review(entry_target)
        self._check_folders(match.entry, spec)
        for value in (*match.args, *match.env.values()):
            if value.text != UNSET:  # a start checks again
                self._slot_text(value, spec)
        # Stored with the version that the operator allowed, so that an entry keeps its meaning when another one is
        # allowed.
        pinned = pin_version(match.entry, entry_target)
        runs = match.entry.runs
        there = not isinstance(runs, Package) or self.packages is None or self.packages.has(runs)
        return Review(pinned, match.changes, match.entry.id, None if there or not isinstance(runs, Package) else runs)

    def unfit_paths(self, spec: LaunchSpec) -> dict[int, str]:
        """Return the path arguments that name no folder of the workspace's files: index → reason. Blocks.

        Empty for a line that the catalogue does not know.
        """
        target = spec.resolved
        if isinstance(target, HttpTarget):
            return {}
        match = match_line(self.catalogue.entries(), target.command, target.args, target.env)
        if not isinstance(match, CatalogueMatch):
            return {}
        problems: dict[int, str] = {}
        at = 0
        for value in match.args:  # in the order of the line
            text = value.prefix + value.text
            if text not in target.args[at:]:
                continue
            # From the last place on: the same text may occur more than once in a line.
            at = target.args.index(text, at)
            if value.kind == "path" and value.text != UNSET:
                try:
                    self._slot_text(value, spec)
                except CommandNotAllowed as exc:
                    problems[at] = exc.reason
                except InvalidInput as exc:
                    problems[at] = exc.problem
            at += 1
        return problems

    def advise(self, review: Review, *, saving: bool = False) -> str:
        """Return the text for an admin whose entry needs a package that is not installed; empty if the entry can start.

        ``saving``: the entry is about to be saved, which begins the installation.
        """
        package, installations = review.uninstalled, self.installations
        if package is None:
            return ""
        if installations is not None and installations.working and (saving or installations.is_under_way(package)):
            return f"{package} is not installed yet: it is being installed now, in the background."
        if installations is not None and (failure := installations.failure(package)):
            return f"{failure} Test or restart the server to try again."
        return f"{package} is not installed yet: test or restart the server to install it. A turn fetches nothing."

    def install(self, package: Package) -> None:
        """Install a package in the background, if this process serves."""
        if self.installations is not None:
            self.installations.begin(package)

    def is_installing(self, review: Review) -> bool:
        """Return whether the package of an entry is being installed."""
        package, installations = review.uninstalled, self.installations
        return package is not None and installations is not None and installations.is_under_way(package)

    async def prepare(self, spec: LaunchSpec) -> None:
        """Install the package of an entry, if it has one: at a test or an approval, never at a start.

        Raises:
            PackageProblem, CommandNotAllowed, InvalidInput.
        """
        match = self._match(spec, spec.resolved)
        if match is not None and isinstance(match.entry.runs, Package):
            await self._packages(match.entry.runs).install(match.entry.runs)

    def trust(self, spec: LaunchSpec) -> Trust:
        """Return which tools of a server are trusted: none for a line that is not in the catalogue."""
        try:
            match = self._match(spec, spec.resolved)
        except AgenticRagError:  # it cannot run, so none of its tools can be trusted
            return Trust()
        return Trust() if match is None else Trust(match.entry.read_only, match.entry.idempotent)

    # -- at each start ----------------------------------------------------------------------------------------

    def resolve(self, spec: LaunchSpec) -> StdioCommand:
        """Return the command of a stdio entry; called again at each start, so that changes take effect. Blocks.

        Raises:
            CommandNotAllowed: No rule allows it, an allowed file was changed, or there is no sandbox.
            InvalidInput: The entry itself cannot be run (no command, no such program, a bad variable name).
            PackageProblem: Its package is not installed, or was changed.
        """
        target = spec.resolved
        assert isinstance(target, StdioTarget)
        match = self._match(spec, target)
        if match is None:
            executable = self._check_line(spec, target)
            base = self._base(spec, stateful=bool(spec.entry.stateful))
            cwd = _files_of(spec) or base.cwd
            # Ours last: an entry must not replace the variables that mark and confine the child.
            return replace(base, executable=executable, args=target.args, env={**target.env, **base.env}, cwd=cwd)
        args = [(value, self._argument(value, match.entry, spec)) for value in match.args]
        declared_env = {name: self._slot_text(value, spec) for name, value in match.env.items()}
        sandbox = self.sandbox
        if isinstance(sandbox, str) and not self.unsandboxed:
            raise CommandNotAllowed(f"{spec.path}.command", f"there is no sandbox: {sandbox}.", NO_SANDBOX)
        command = self._program(match.entry, spec)
        folders = dict(command.folders)
        for value, text in args:
            if value.kind == "path":
                # A folder that is named twice, or is the child's own, stays writable.
                folders[text] = folders.get(text, False) or match.entry.write
        cwd = (_files_of(spec) if any(value.kind == "path" for value in match.args) else None) or command.cwd
        return replace(
            command,
            cwd=cwd,
            args=(*command.args, *(value.prefix + text for value, text in args)),
            env={**command.env, **declared_env},
            folders=tuple(sorted(folders.items())),
            sandbox=() if isinstance(sandbox, str) else (*sandbox.options(network=match.entry.network), *self._mask()),
            user=None if isinstance(sandbox, str) else sandbox.user,
            network=match.entry.network,
        )

    def endpoint(self, spec: LaunchSpec) -> HttpEndpoint:
        """Return the address of an HTTP entry; the IP address is checked when it is connected to.

        Raises:
            CommandNotAllowed: Not https, and the operator did not list the host.
            InvalidInput: Not a web address, or a header that an entry must not set.
        """
        target = spec.resolved
        assert isinstance(target, HttpTarget)
        return endpoint_of(target, spec.path, self._hosts, unchecked=self.any_command)

    @property
    def reach(self) -> AddressPolicy:
        """The addresses that a sign-in may connect to: the rules of entries apply."""
        return AddressPolicy(self._hosts, self.any_command)

    def sweep(self) -> int:
        """Kill the children that an earlier process of this data folder left behind; returns how many were killed."""
        return sweep_leftovers(self.marker)

    def remove_homes(self, domain: str) -> None:
        """Remove the private folders of a domain's servers, which have ended. Blocks."""
        pattern = f"{digest(domain)[:16]}-*"
        for lock in [] if self._shared is None else (self._shared / LOCKS).glob(pattern):
            lock.unlink(missing_ok=True)
        for home in [home for homes in self._all_homes for home in homes.glob(pattern)]:
            try:
                shutil.rmtree(home)
            except (OSError, RecursionError) as exc:  # a server can make its own folder hard to remove
                logger.warning("the folder %s of a deleted domain's server was not removed whole: %r", home, exc)

    # -- parts ------------------------------------------------------------------------------------------------

    def _match(self, spec: LaunchSpec, target: ResolvedTarget) -> CatalogueMatch | None:
        """Return the catalogue match of a line, or None if the entry has an address or any line may run."""
        if isinstance(target, HttpTarget):
            return None
        command = target.command
        if not command or "\x00" in command:
            raise InvalidInput(f"{spec.path}.command", "a program name or an absolute path is needed.")
        match = match_line(self.catalogue.entries(), command, target.args, target.env)
        if isinstance(match, CatalogueMatch):
            return match
        if self.any_command:
            return None
        line = shlex.join([command, *target.args])
        if match.final:
            raise CommandNotAllowed(f"{spec.path}.{match.place}", match.reason, command=line)
        allow = allow_command(command, target.args, list(target.env))
        remedy = f"The operator can allow this whole line: {allow} — {SINGLE_USER}"
        obstacle = self._obstacle(spec, target)
        request = f"/api/domains/{spec.domain}/mcp-servers/{spec.name}/request" if spec.domain and not obstacle else ""
        if request:
            remedy += f" Or request it here: POST {request}"
        elif obstacle:
            remedy += f" It cannot be requested as it stands: {obstacle}"
        place = f"{spec.path}.{match.place}"
        raise CommandNotAllowed(place, match.reason, remedy, command=line, allow=allow, request=request)

    def _obstacle(self, spec: LaunchSpec, target: StdioTarget[str]) -> str:
        """Return why an admin cannot request a line in its present form; empty if a request is possible. Blocks."""
        plan = plan_line(target.command, target.args, list(target.env))
        if isinstance(plan, LineRefusal):
            return plan.reason
        if isinstance(plan, PackageLine):
            from_registry = plan.package.registry != "mcpb"
            return "" if from_registry else "a bundle is proposed by its file: agentic-rag mcp propose DOMAIN FILE.mcpb"
        try:
            self.local.find(plan, "")
        except CommandNotAllowed as exc:
            return f"{exc.reason} {exc.remedy}"
        except InvalidInput as exc:
            return exc.problem
        return ""

    def _check_line(self, spec: LaunchSpec, target: StdioTarget[str]) -> str:
        """Check a line that a single user allowed without a catalogue entry; return the program's absolute path."""
        executable = find_program(target.command, f"{spec.path}.command")
        refuse_inside(executable, self._kept_out(spec), f"{spec.path}.command")
        if any("\x00" in arg for arg in target.args):
            raise InvalidInput(f"{spec.path}.args", "an argument must not hold a NUL character.")
        check_variables(target.env, spec.path)
        return executable

    def _program(self, entry: CatalogueEntry, spec: LaunchSpec) -> StdioCommand:
        """Return the start of an entry's command: the program and its folders, without the user's values."""
        self._check_folders(entry, spec)
        stated = spec.entry.stateful
        base = self._base(spec, stateful=entry.stateful if stated is None else stated)
        limits = ProcessLimits(**entry.limits)
        own = ((str(base.cwd), True), *((folder, False) for folder in entry.folders))
        if isinstance(entry.runs, Package):
            installed = self._packages(entry.runs).find_installed(entry.runs)
            needed = (installed.tree, *interpreter_files(Path(installed.executable).resolve()))
            folders = (*own, *((place, False) for place in needed))
            env = {**base.env, **_fixed_variables(entry, base, installed.tree)}
            return replace(
                base, executable=installed.executable, args=installed.args, limits=limits, folders=folders, env=env
            )
        for file, sha256 in entry.runs.files.items():
            refuse_inside(file, self._kept_out(spec), f"{spec.path}.command")
            if not os.path.isfile(file) or file_hash(file) != sha256:
                reason = f"{file} is not the file that was allowed."
                raise CommandNotAllowed(f"{spec.path}.command", reason, "Allow it again.")
        env = {**base.env, **_fixed_variables(entry, base, "")}
        return replace(base, executable=entry.runs.path, limits=limits, folders=own, files=entry.runs.files, env=env)

    def _argument(self, value: SlotValue, entry: CatalogueEntry, spec: LaunchSpec) -> str:
        """Return an argument for the child; the name of a file in the operator's folder becomes its path."""
        if value.kind == "literal" and isinstance(entry.runs, Program) and entry.runs.names:
            return entry.runs.names.get(local_name(value.text) or "", value.text)
        return self._slot_text(value, spec)

    def _slot_text(self, value: SlotValue, spec: LaunchSpec) -> str:
        """Return a slot's text for the child; a path becomes absolute and must be inside the workspace's files."""
        if value.kind != "path":
            return value.text
        place = f"{spec.path}.args"
        if not spec.workspace:
            raise InvalidInput(place, "there is no workspace for this path.")
        # The real path on both sides: otherwise a link inside the files would be accepted by its name.
        files = os.path.join(os.path.realpath(spec.workspace), FILES)
        real = os.path.realpath(os.path.join(files, value.text))
        if not Path(real).is_relative_to(files):
            reason = f"{value.text[:200]!r} is outside this domain's files folder, and a server sees nothing else"
            raise CommandNotAllowed(place, f'{reason}; use "." for the whole folder, or name a folder inside it.')
        if os.path.exists(files) and not os.path.isdir(files):
            raise InvalidInput(place, f"{FILES}/ of the workspace is no folder; move away what stands there.")
        if real != files and not os.path.exists(real):
            raise InvalidInput(place, f"there is no {value.text!r} in {FILES}/ of the workspace.")
        return real

    def _check_folders(self, entry: CatalogueEntry, spec: LaunchSpec) -> None:
        """Refuse an operator's folder that contains the server's data or is inside it: memories, documents, tenants."""
        own_folders = [
            *self._all_homes,
            *filter(None, [self._data]),
            *([Path(spec.workspace).resolve()] if spec.workspace else []),
        ]
        for folder in entry.folders:
            real = Path(folder).resolve()
            if any(real.is_relative_to(folder) or folder.is_relative_to(real) for folder in own_folders):
                reason = f"the operator's folder {folder} contains the server's data, or is inside it."
                raise CommandNotAllowed(f"{spec.path}.command", reason, "Allow the line again with another folder.")

    def _mask(self) -> tuple[str, ...]:
        """Hide a data folder below the system folders of every sandbox; a child's own folders are mounted after it."""
        if self._data is None or not self._data.is_relative_to("/usr"):
            return ()
        return ("--size", "1048576", "--tmpfs", str(self._data))

    def _base(self, spec: LaunchSpec, *, stateful: bool) -> StdioCommand:
        """Return the common parts of every child: a private folder (deleted only with its owner), and a marker.

        The folder of a stateful server is in the place that all processes of a shared store share, with a lock.
        """
        name, homes, lock = f"{digest(spec.domain)[:16]}-{digest([spec.name, spec.owner])[:16]}", self.homes, None
        if stateful and self._shared is not None:
            homes, lock = self._shared / HOMES, self._shared / LOCKS / name
            lock.parent.mkdir(parents=True, exist_ok=True)
        home = homes / name
        home.mkdir(parents=True, exist_ok=True)
        # Also for a folder that exists: an older umask or the child may have opened it.
        home.chmod(0o700)
        self._spawned += 1
        # The first part finds all children of this data folder, the second one tells the runs apart
        # (`sweep_leftovers`).
        marker = f"{self.marker}:{os.getpid()}-{self._spawned}"
        environment = base_environment(str(home), marker)
        return StdioCommand("", (), environment, home, marker, disk_reserve=self._disk_reserve, lock=lock)

    def _packages(self, package: Package) -> Packages:
        if self.packages is None:
            raise PackageProblem(str(package), "this process has no package folder.")
        return self.packages

    def _kept_out(self, spec: LaunchSpec) -> list[Path]:
        return [*self._all_homes, *([Path(spec.workspace)] if spec.workspace else [])]

    @property
    def _all_homes(self) -> list[Path]:
        """The folders that contain the private folders of children."""
        return [self.homes] if self._shared is None else list({self.homes, self._shared / HOMES})


def _fixed_variables(entry: CatalogueEntry, base: StdioCommand, tree: str) -> dict[str, str]:
    """Return the variables that an entry sets itself."""
    places = {"{home}": str(base.cwd), "{tree}": tree}
    fixed = dict(entry.fixed)
    for word, place in places.items():
        fixed = {name: text.replace(word, place) for name, text in fixed.items()}
    return fixed


def _files_of(spec: LaunchSpec) -> Path | None:
    """Return the workspace's folder for children, created if missing; None without a workspace."""
    if not spec.workspace or not os.path.isdir(spec.workspace):
        return None
    files = Path(os.path.realpath(spec.workspace), FILES)
    with suppress(FileExistsError):
        files.mkdir()
    return files if files.is_dir() and not files.is_symlink() else None
