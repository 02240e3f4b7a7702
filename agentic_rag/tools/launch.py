"""What may be spawned or connected to, and the exact form in which it is.

Owns the rule that turns a merged server entry into a command line or an address, the environment a child
gets, the limits on it, and the marker by which leftovers of a dead process are found. Knows no MCP and
spawns nothing: `stdio` does, with the value made here.

There is one rule so far, strict: a user's entry runs only where a single user on loopback started the process
with ``--allow-any-command``. Entries of the system and built-in origin are the operator's word.
"""

import hashlib
import json
import os
import re
import select
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from agentic_rag.errors import CommandNotAllowed, InvalidInput
from agentic_rag.tools.base import Origin

SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where a bare command name is looked up, and the ``PATH`` of every child. Never the server's own ``PATH``."""

MARKER = "AGENTIC_RAG_MCP_CHILD"
"""Environment variable of every child: ``{marker of the data folder}:{number of the spawn}``."""

REMEDY = "On a single-user machine, start the server on loopback with --allow-any-command."

SWEEP_PASSES = 10
"""How often a sweep looks again for what was forked meanwhile."""

SWEEP_MILLISECONDS = 1000
"""How long a sweep waits for one killed process to be gone."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server of a domain's merged set, ready to start: placeholders resolved, secrets filled in.

    ``kind`` ``memory``: the in-process server registered under ``name``. Otherwise ``config`` is the normalised
    entry: ``command, args, env`` (stdio) or ``url, headers`` (http, sse), and ``identity`` (domain | user).
    ``tools``: the names, as the server calls them, that are offered; None: all.
    """

    name: str
    origin: Origin
    kind: Literal["memory", "stdio", "http", "sse"]
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tools: tuple[str, ...] | None = None
    domain: str = ""
    workspace: str = ""
    user: str = ""

    @property
    def owner(self) -> str:
        """The user a connection belongs to; empty when the whole domain shares it."""
        return self.user if self.config.get("identity") == "user" else ""

    def key(self) -> str:
        """Return the pool key: equal keys may share one connection. A one-way hash, since it covers secrets."""
        if self.kind == "memory":
            return f"memory:{self.name}"
        parts = [self.domain, self.name, self.kind, self.workspace, self.owner, self.config]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=dict).encode()).hexdigest()


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
    """A child exactly as it is started: absolute executable, argument list, its whole environment."""

    executable: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    marker: str
    limits: ProcessLimits = field(default_factory=ProcessLimits)


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """An address exactly as it is connected to."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class LaunchPolicy:
    """Decides what an entry may start. The launch catalogue will be asked in `resolve`, before the flag."""

    def __init__(self, homes: Path, *, allow_any_command: bool = False, loopback: bool = False) -> None:
        """``homes``: folder for the private directories of children (made on first use, 0700).

        ``allow_any_command`` has an effect only together with ``loopback`` (the server listens there alone).
        """
        self.homes = homes.resolve()
        self.any_command = allow_any_command and loopback
        self.marker = hashlib.sha256(str(self.homes).encode()).hexdigest()[:16]
        self._spawned = 0

    def resolve(self, spec: ServerSpec) -> StdioCommand:
        """Return the command of a stdio entry; called anew at each start, so that a change is seen.

        Raises:
            CommandNotAllowed: nothing allows it; names the path in the settings and the remedy.
            InvalidInput: the entry itself cannot be run (no command, no such program, a bad variable name).
        """
        path = f"mcpServers.{spec.name}"
        command = spec.config.get("command")
        if not isinstance(command, str) or not command or "\x00" in command:
            raise InvalidInput(f"{path}.command", "a program name or an absolute path is needed.")
        if spec.origin == "user" and not self.any_command:
            raise CommandNotAllowed(f"{path}.command", f"{command!r} matches nothing the operator allowed.", REMEDY)
        executable = _executable(command, f"{path}.command")
        self._outside(executable, spec, f"{path}.command")
        args = tuple(str(arg) for arg in spec.config.get("args") or ())
        if any("\x00" in arg for arg in args):
            raise InvalidInput(f"{path}.args", "an argument must not hold a NUL character.")
        self._spawned += 1
        marker = f"{self.marker}:{os.getpid()}-{self._spawned}"
        home = self._home(spec)
        env = {"PATH": ":".join(SEARCH_PATH), "HOME": str(home), "LANG": "C.UTF-8"}
        env |= _declared(spec.config.get("env") or {}, f"{path}.env")
        env[MARKER] = marker
        return StdioCommand(executable, args, env, home, marker)

    def endpoint(self, spec: ServerSpec) -> HttpEndpoint:
        """Return the address of an ``http`` or ``sse`` entry.

        Until addresses are checked at connect time a user's entry needs the same permission as a command: an
        unchecked URL reaches every service of the host's network.

        Raises:
            CommandNotAllowed: nothing allows it.
            InvalidInput: not an http or https URL.
        """
        path = f"mcpServers.{spec.name}.url"
        url = str(spec.config.get("url") or "")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(path, "an http:// or https:// address is needed.")
        if spec.origin == "user" and not self.any_command:
            raise CommandNotAllowed(path, f"{parts.hostname!r} is not an address the operator allowed.", REMEDY)
        headers = {str(name): str(value) for name, value in (spec.config.get("headers") or {}).items()}
        return HttpEndpoint(url, headers)

    def sweep(self) -> int:
        """Kill what an earlier process of the same data folder left behind; returns how many were killed."""
        return sweep_leftovers(self.marker)

    def _home(self, spec: ServerSpec) -> Path:
        """Return the private folder of a server; it outlives restarts and new secrets, never its owner."""
        owner = json.dumps([spec.domain, spec.name, spec.owner])
        home = self.homes / hashlib.sha256(owner.encode()).hexdigest()[:24]
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        return home

    def _outside(self, executable: str, spec: ServerSpec, path: str) -> None:
        """Refuse a program that lies where a model or a child can write."""
        real = Path(executable).resolve()
        writable = [self.homes, *([Path(spec.workspace).resolve()] if spec.workspace else [])]
        if any(real.is_relative_to(folder) for folder in writable):
            raise CommandNotAllowed(path, "nothing under a workspace may be the program.")


def _executable(command: str, path: str) -> str:
    candidates = [command] if "/" in command else [f"{folder}/{command}" for folder in SEARCH_PATH]
    if "/" in command and not os.path.isabs(command):
        raise InvalidInput(path, f"{command!r} is a relative path; use a program name or an absolute path.")
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    where = "" if "/" in command else f" in {':'.join(SEARCH_PATH)}"
    raise InvalidInput(path, f"there is no program {command!r}{where}.")


def _declared(env: Mapping[str, Any], path: str) -> dict[str, str]:
    declared: dict[str, str] = {}
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(str(name)) or "\x00" in str(value):
            raise InvalidInput(f"{path}.{name}", "a variable name has letters, digits and _; a value has no NUL.")
        declared[str(name)] = str(value)
    return declared


def sweep_leftovers(marker: str) -> int:
    """Kill every process whose environment carries ``marker`` (a whole one, or the part before the colon).

    Returns how many were killed, once they are gone; 0 where there is no ``/proc``. Blocks for milliseconds, so
    call it in a thread. Looks again until a pass finds none, since a process may fork while it is looked for.
    """
    if not sys.platform.startswith("linux"):
        return 0
    wanted = f"{MARKER}={marker}".encode()
    killed = 0
    for _ in range(SWEEP_PASSES):
        found = [pid for pid in os.listdir("/proc") if pid.isdigit() and _kill_marked(int(pid), wanted)]
        killed += len(found)
        if not found:
            break
    return killed


def _kill_marked(pid: int, wanted: bytes) -> bool:
    """Kill one process if it is marked. It is pinned before it is looked at: a number given anew is never hit."""
    if pid == os.getpid():
        return False
    try:
        pinned = os.pidfd_open(pid)
    except OSError:  # gone meanwhile
        return False
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\x00")
        if not any(each == wanted or each.startswith(wanted + b":") for each in variables):
            return False
        signal.pidfd_send_signal(pinned, signal.SIGKILL)
        gone = select.poll()
        gone.register(pinned, select.POLLIN)
        gone.poll(SWEEP_MILLISECONDS)
        return True
    except OSError:  # gone meanwhile, or another user's
        return False
    finally:
        os.close(pinned)
