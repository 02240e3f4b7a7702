"""What may be spawned or connected to, and the exact form in which it is.

Owns the way from a merged server entry to a command line in its sandbox, or to an address. Knows no MCP and spawns
nothing: `stdio` does, with the value made here; `catalogue` says which lines may run at all.

Whose word counts: entries of the system and built-in origin are the operator's own. A user's line must match the
launch catalogue, and runs in the sandbox. A single user on loopback may lift the first rule (``--allow-any-command``)
or, where there is no bubblewrap, the second (``--allow-unsandboxed``).
"""

import hashlib
import json
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from agentic_rag.errors import AgenticRagError, CommandNotAllowed, InvalidInput, PackageProblem
from agentic_rag.tools.base import Origin
from agentic_rag.tools.launch.allowed import LaunchCatalogue, allowing, file_hash, find_program, refuse_inside
from agentic_rag.tools.launch.catalogue import Entry, Match, Package, Value, match, pinned
from agentic_rag.tools.launch.endpoint import HttpEndpoint, endpoint_of
from agentic_rag.tools.launch.environment import base_environment, declared
from agentic_rag.tools.launch.leftovers import sweep_leftovers
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.sandbox import Sandbox, find_sandbox

logger = logging.getLogger(__name__)

SINGLE_USER = "On a single-user machine, start the server on loopback with --allow-any-command."
NO_SANDBOX = "Install bubblewrap, or on a single-user machine start the server on loopback with --allow-unsandboxed."


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server of a domain's merged set.

    ``kind`` ``memory``: the in-process server registered under ``name``. Otherwise ``config`` is the normalised
    entry: ``command, args, env`` (stdio) or ``url, headers`` (http, sse), and ``identity`` (domain | user).
    ``resolve`` returns the same entry with its placeholders filled in, secrets too; it may raise `AgenticRagError`.
    Without it the entry has none. ``tools``: the names, as the server calls them, that are offered; None: all.
    """

    name: str
    origin: Origin
    kind: Literal["memory", "stdio", "http", "sse"]
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tools: tuple[str, ...] | None = None
    domain: str = ""
    workspace: str = ""
    user: str = ""
    resolve: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def owner(self) -> str:
        """The user a connection belongs to; empty when the whole domain shares it."""
        return self.user if self.config.get("identity") == "user" else ""

    def filled(self) -> Mapping[str, Any]:
        """Return the entry with all its values."""
        return self.config if self.resolve is None else self.resolve()

    def key(self) -> str:
        """Return the pool key: equal keys may share one connection. A one-way hash, since it covers secrets."""
        if self.kind == "memory":
            return f"memory:{self.name}"
        try:
            values = self.filled()
        except AgenticRagError as exc:  # the start will say the same, and fail
            values = {"unresolved": str(exc)}
        parts = [self.domain, self.name, self.kind, self.workspace, self.owner, self.config, values]
        return _digest(parts)

    def entry_hash(self) -> str:
        """Return a hash of what the admin wrote: another one is another server. No secret is in it."""
        return _digest([self.kind, {key: self.config.get(key) for key in ("command", "args", "env", "url", "headers")}])


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """rlimits of a child. There is none on address space: V8 and most runtimes reserve far more than they use."""

    open_files: int = 1024
    processes: int = 4096
    file_bytes: int = 1 << 30

    def as_pairs(self) -> list[tuple[str, int]]:
        """Return ``(name in the resource module, value)``; core dumps are always off."""
        return [
            ("RLIMIT_CORE", 0),
            ("RLIMIT_NOFILE", self.open_files),
            ("RLIMIT_NPROC", self.processes),
            ("RLIMIT_FSIZE", self.file_bytes),
        ]


@dataclass(frozen=True, slots=True)
class StdioCommand:
    """A child exactly as it is started: absolute executable, argument list, its whole environment.

    ``files`` (path → SHA-256) and ``folders`` (path, writable) are looked at once more by the launcher, right before
    it runs; they are all that is visible beside the system when ``sandbox`` (a bubblewrap line) is not empty.
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

    def plan(self) -> str:
        """Return what the launcher is told, as JSON."""
        return json.dumps(
            {
                "limits": self.limits.as_pairs(),
                "files": dict(self.files),
                "folders": self.folders,
                "sandbox": self.sandbox,
            }
        )


@dataclass(frozen=True, slots=True)
class Review:
    """What saving an entry would store, and what was changed in it, as sentences. ``entry``: id in the catalogue.

    ``uninstalled``: the package that must be installed before it can start; empty when there is none.
    """

    config: Mapping[str, Any] = field(repr=False)
    changes: tuple[str, ...] = ()
    entry: str = ""
    uninstalled: str = ""


@dataclass(frozen=True, slots=True)
class Trust:
    """Tools of a server whose hints are believed, by the names the server gives them."""

    read_only: frozenset[str] = frozenset()
    idempotent: frozenset[str] = frozenset()


class People(Protocol):
    """Who may come in to this server."""

    @property
    def alone(self) -> bool:
        """Whether nobody but the local user can come in."""
        ...


class LaunchPolicy:
    """Decides what an entry may start, and in what form."""

    def __init__(
        self,
        homes: Path,
        *,
        catalogue: LaunchCatalogue | None = None,
        packages: Packages | None = None,
        sandbox: Sandbox | str | None = None,
        hosts: Collection[tuple[str, int]] = (),
        allow_any_command: bool = False,
        allow_unsandboxed: bool = False,
        loopback: bool = False,
        people: "People | None" = None,
    ) -> None:
        """``homes``: folder for the private directories of children (made on first use, 0700).

        ``sandbox``: the one to use, or why there is none; None: find out when it is needed. ``hosts``: the
        operator's list of ``(host, port)`` that may be reached whatever their address. The two ``allow`` flags
        have an effect only together with ``loopback`` (the server listens there alone), and as long as ``people``
        are one local user (None: they always are).
        """
        self.homes = homes.resolve()
        self._any_command = allow_any_command and loopback
        self._unsandboxed = (allow_unsandboxed or allow_any_command) and loopback
        self._people = people
        self.marker = hashlib.sha256(str(self.homes).encode()).hexdigest()[:16]
        self.packages = packages
        self.catalogue = catalogue or LaunchCatalogue()
        self._hosts = frozenset(hosts)
        self._sandbox = sandbox
        self._spawned = 0

    @property
    def any_command(self) -> bool:
        """Whether a user's entry may run any program."""
        return self._any_command and (self._people is None or self._people.alone)

    @property
    def unsandboxed(self) -> bool:
        """Whether a user's entry may run without a sandbox where there is none."""
        return self._unsandboxed and (self._people is None or self._people.alone)

    @property
    def sandbox(self) -> Sandbox | str:
        """The sandbox, or why there is none. The first look blocks for some milliseconds."""
        if self._sandbox is None:
            self._sandbox = find_sandbox()
        return self._sandbox

    # -- before anything is started ---------------------------------------------------------------------------

    def review(self, spec: ServerSpec) -> Review:
        """Say whether an entry may be saved, and in what form. Looks at files; spawns and fetches nothing.

        Raises:
            CommandNotAllowed: nothing allows it; names the path in the settings and the remedy.
            InvalidInput: the entry itself cannot be run.
        """
        if spec.kind in ("http", "sse"):
            self.endpoint(spec)
            return Review(spec.config)
        if spec.kind == "memory" or spec.origin != "user":
            return Review(spec.config)
        found = self._match(spec)
        if found is None:
            self._checked_line(spec)
            return Review(spec.config)
        for value in (*found.args, *found.env.values()):
            self._value(value, spec)
        stored = pinned(found.entry, _words(spec.config), dict(spec.config.get("env") or {}))
        runs = found.entry.runs
        there = not isinstance(runs, Package) or self.packages is None or self.packages.has(runs)
        return Review({**spec.config, **stored}, found.changes, found.entry.id, "" if there else str(runs))

    async def prepare(self, spec: ServerSpec) -> None:
        """Install what an entry runs, if it is a package: at a test or an approval, never at a start.

        Raises:
            PackageProblem, CommandNotAllowed, InvalidInput.
        """
        found = self._match(spec) if spec.kind == "stdio" and spec.origin == "user" else None
        if found is not None and isinstance(found.entry.runs, Package):
            await self._packages(found.entry.runs).install(found.entry.runs)

    def trust(self, spec: ServerSpec) -> Trust:
        """Return which tools of a server are trusted; of a line that is not in the catalogue none is."""
        if spec.kind != "stdio" or spec.origin != "user":
            return Trust()
        try:
            found = self._match(spec)
        except AgenticRagError:  # it cannot run, so nothing of it can be trusted
            return Trust()
        return Trust() if found is None else Trust(found.entry.read_only, found.entry.idempotent)

    # -- at each start ----------------------------------------------------------------------------------------

    def resolve(self, spec: ServerSpec) -> StdioCommand:
        """Return the command of a stdio entry; called anew at each start, so that a change is seen. Blocks.

        Raises:
            CommandNotAllowed: nothing allows it, what is allowed was changed, or there is no sandbox.
            InvalidInput: the entry itself cannot be run (no command, no such program, a bad variable name).
            PackageProblem: its package is not installed, or was changed.
        """
        found = self._match(spec) if spec.origin == "user" else None
        if found is None:
            return self._any_line(spec)
        args = [(value, self._value(value, spec)) for value in found.args]
        declared_env = {name: self._value(value, spec) for name, value in found.env.items()}
        sandbox = self.sandbox
        if isinstance(sandbox, str) and not self.unsandboxed:
            raise CommandNotAllowed(f"mcpServers.{spec.name}.command", f"there is no sandbox: {sandbox}.", NO_SANDBOX)
        command = self._program(found.entry, spec)
        folders = dict(command.folders)
        for value, text in args:
            if value.kind == "path":
                folders[text] = folders.get(text, False) or found.entry.write
        env = {**command.env, **declared_env}
        env |= {name: text.replace("{home}", str(command.cwd)) for name, text in found.entry.fixed.items()}
        return replace(
            command,
            args=(*command.args, *(value.prefix + text for value, text in args)),
            env=env,
            folders=tuple(sorted(folders.items())),
            sandbox=() if isinstance(sandbox, str) else tuple(sandbox.options(network=found.entry.network)),
        )

    def endpoint(self, spec: ServerSpec) -> HttpEndpoint:
        """Return the address of an ``http`` or ``sse`` entry; where it leads is checked when it is connected to.

        Raises:
            CommandNotAllowed: not https, and the operator did not list the host.
            InvalidInput: no web address, or a header that an entry must not set.
        """
        unchecked = self.any_command or spec.origin != "user"
        return endpoint_of(spec.filled(), f"mcpServers.{spec.name}", self._hosts, unchecked=unchecked)

    def sweep(self) -> int:
        """Kill what an earlier process of the same data folder left behind; returns how many were killed."""
        return sweep_leftovers(self.marker)

    def remove_homes(self, domain: str) -> None:
        """Remove the private folders of a domain's servers, which have ended. Blocks."""
        for home in self.homes.glob(f"{_digest(domain)[:16]}-*"):
            try:
                shutil.rmtree(home)
            except (OSError, RecursionError) as exc:  # a server can make its own folder hard to remove
                logger.warning("the folder %s of a deleted domain's server was not removed whole: %r", home, exc)

    # -- parts ------------------------------------------------------------------------------------------------

    def _match(self, spec: ServerSpec) -> Match | None:
        """Return what a user's line stands for; None: nothing, but any line may run."""
        path = f"mcpServers.{spec.name}"
        config = spec.filled()
        command = _command(config, path)
        args, env = _words(config), {str(name): str(value) for name, value in (config.get("env") or {}).items()}
        found = match(self.catalogue.entries(), command, args, env)
        if isinstance(found, Match):
            return found
        if self.any_command:
            return None
        allow = "" if found.final else allowing(command, args, list(env))
        remedy = f"The operator can allow this whole line: {allow} — {SINGLE_USER}" if allow else ""
        line = shlex.join([command, *args])
        raise CommandNotAllowed(f"{path}.{found.place}", found.reason, remedy, command=line, allow=allow)

    def _any_line(self, spec: ServerSpec) -> StdioCommand:
        """Return a line that needs no entry: the operator's own, or of the single user who allowed any."""
        executable, args, variables = self._checked_line(spec)
        base = self._base(spec)
        return replace(base, executable=executable, args=args, env={**variables, **base.env})

    def _checked_line(self, spec: ServerSpec) -> tuple[str, tuple[str, ...], dict[str, str]]:
        path = f"mcpServers.{spec.name}"
        config = spec.filled()
        executable = find_program(_command(config, path), f"{path}.command")
        refuse_inside(executable, self._kept_out(spec), f"{path}.command")
        args = tuple(_words(config))
        if any("\x00" in arg for arg in args):
            raise InvalidInput(f"{path}.args", "an argument must not hold a NUL character.")
        return executable, args, declared(config.get("env") or {}, path)

    def _program(self, entry: Entry, spec: ServerSpec) -> StdioCommand:
        """Return the beginning of an entry's command: what runs, its folders, nothing of the user's yet."""
        base = self._base(spec)
        limits = ProcessLimits(**entry.limits)
        own = ((str(base.cwd), True), *((folder, False) for folder in entry.folders))
        if isinstance(entry.runs, Package):
            installed = self._packages(entry.runs).installed(entry.runs)
            prefix = str(Path(installed.executable).resolve().parents[1])
            needed = (installed.tree,) if Path(prefix).is_relative_to("/usr") else (installed.tree, prefix)
            folders = (*own, *((folder, False) for folder in needed))
            return replace(base, executable=installed.executable, args=installed.args, limits=limits, folders=folders)
        for file, digest in entry.runs.files.items():
            refuse_inside(file, self._kept_out(spec), f"mcpServers.{spec.name}.command")
            if not os.path.isfile(file) or file_hash(file) != digest:
                raise CommandNotAllowed(
                    f"mcpServers.{spec.name}.command", f"{file} is not the file that was allowed.", "Allow it again."
                )
        return replace(base, executable=entry.runs.path, limits=limits, folders=own, files=entry.runs.files)

    def _value(self, value: Value, spec: ServerSpec) -> str:
        """Return a slot's text as the child gets it; a path becomes absolute, and lies in the workspace."""
        if value.kind != "path":
            return value.text
        place = f"mcpServers.{spec.name}.args"
        if not spec.workspace:
            raise InvalidInput(place, "there is no workspace for this path.")
        workspace = os.path.realpath(spec.workspace)
        real = os.path.realpath(os.path.join(workspace, value.text))
        if not Path(real).is_relative_to(workspace):
            raise CommandNotAllowed(place, f"{value.text!r} leads out of the workspace; name a folder inside it.")
        if not os.path.exists(real):
            raise InvalidInput(place, f"there is no {value.text!r} in the workspace.")
        return real

    def _base(self, spec: ServerSpec) -> StdioCommand:
        """Return what every child has: a private folder (it outlives restarts, never its owner), and a marker."""
        home = self.homes / f"{_digest(spec.domain)[:16]}-{_digest([spec.name, spec.owner])[:16]}"
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        self._spawned += 1
        marker = f"{self.marker}:{os.getpid()}-{self._spawned}"
        return StdioCommand("", (), base_environment(str(home), marker), home, marker)

    def _packages(self, package: Package) -> Packages:
        if self.packages is None:
            raise PackageProblem(str(package), "this process has no package folder.")
        return self.packages

    def _kept_out(self, spec: ServerSpec) -> list[Path]:
        return [self.homes, *([Path(spec.workspace)] if spec.workspace else [])]


def _command(config: Mapping[str, Any], path: str) -> str:
    command = config.get("command")
    if not isinstance(command, str) or not command or "\x00" in command:
        raise InvalidInput(f"{path}.command", "a program name or an absolute path is needed.")
    return command


def _words(config: Mapping[str, Any]) -> list[str]:
    return [str(arg) for arg in config.get("args") or ()]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=dict).encode()).hexdigest()
