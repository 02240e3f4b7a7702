"""The clients of package registries (npm, uv, pip): how they are found and run.

A server that runs as root starts them in the sandbox of MCP programs, as the unprivileged user. There they see the
system, the interpreter, their own program, copies of their settings, the files and folders that these settings name,
and one folder to write in. Any other server starts them as its own user. Knows no package folder.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.base.errors import PackageProblem
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.sandbox import Sandbox, find_sandbox, interpreter_files, launch_command

TRIAL_SECONDS = 30
"""Time limit for a client outside ``/usr`` to state its version, which shows that it works in the sandbox."""

OUTPUT_BYTES = 8 << 20
"""Maximum number of bytes read of a client's output; `npm view` writes a few hundred kilobytes for a long history."""

REASON_BYTES = 64 * 1024
"""Number of bytes at the end of a failed client's output in which its reason is looked up."""

OUTPUT_CHARS = 300
"""Maximum number of characters shown of a client's output."""

_LIMITS = (("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 1 << 30))
"""Limits of a client in the sandbox: no core dumps, and files of at most 1 GiB."""

CONFIG_BYTES = 64 * 1024
"""Size of the largest settings file that is copied for a client."""

PYTHON = os.path.realpath(sys.executable)
"""The interpreter under our own virtual environment, if any; installed packages get their own environments."""

_HOME_SETTINGS = (".npmrc", ".netrc", ".pip/pip.conf")
"""Settings files below a home folder."""
_CONFIG_SETTINGS = ("pip/pip.conf", "uv/uv.toml")
"""Settings files below ``XDG_CONFIG_HOME``."""

_SYSTEM_SETTINGS = ("/etc/npmrc", "/etc/pip.conf", "/etc/xdg/pip", "/etc/xdg/uv", "/etc/uv")
"""Settings files of the machine, which the clients look up themselves."""

_OUR_PLACES = frozenset({"home", "tmpdir", "npm_config_cache", "npm_config_tmp", "pip_cache_dir", "uv_cache_dir"})
"""Variables, in lower case, that a client in the sandbox gets from us, because it may write in one folder only."""

_CLIENT_PREFIXES = ("pip_", "uv_", "npm_config_", "ssl_cert_", "node_extra_ca", "requests_ca", "curl_ca")
"""Beginnings, in lower case, of the variables that may name files of a client."""

_PATH = re.compile(r"(?:^|[\s=,;\"'])(?:file://)?(/[^\s,;\"'=]{1,400})")

_ADDRESS = re.compile(
    r"\b[a-z][a-z+]{0,30}://\S+"
)  # bounded: without a limit, each letter of a long word would start another scan of its rest
_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET|error sending request|"
    r"[Cc]ould not connect|dns error|Temporary failure|NewConnectionError|tcp connect error|timed out|Max retries"
)
_UNKNOWN = re.compile(
    r"E404|ETARGET|No matching version|not found in the (?:package )?registry|No matching distribution|no version of"
)


def client_sandbox(*, unsandboxed: bool = False) -> Sandbox | str | None:
    """Return the sandbox for clients if this server runs as root, or the reason why there is none.

    Returns None for a server of any other user. ``unsandboxed``: where there is no sandbox, programs may run without
    one; then None is returned, too. Blocks for a moment.
    """
    if os.geteuid() != 0:
        return None
    sandbox = find_sandbox()
    return None if unsandboxed and isinstance(sandbox, str) else sandbox


def no_sandbox() -> None:
    """Return None: clients run as the server's own user."""


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """A client's program, and the files that it needs in a sandbox."""

    program: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workplace:
    """A folder in which clients work for one package.

    ``sandbox``: None if clients run as the server's own user. ``environment``: the variables of the clients.
    ``shown``: the files and folders that they see in the sandbox besides the system.
    """

    package: Package
    folder: Path
    sandbox: Sandbox | None
    environment: Mapping[str, str]
    shown: frozenset[str] = frozenset()


@dataclass(slots=True)
class RegistryClients:
    """Finds and runs the clients.

    ``environment``: the variables that configure them. ``seconds``: time limit of one command. ``sandbox``: as
    `client_sandbox`. ``hidden``: a folder that no client sees, the package folder.
    """

    environment: Mapping[str, str]
    seconds: float
    sandbox: Callable[[], Sandbox | str | None]
    hidden: Path
    _clients_by_name: dict[str, RegistryClient | None] = field(default_factory=dict)

    def open(self, package: Package, folder: Path) -> Workplace:
        """Prepare an empty folder, whose path has no links, for the clients of one package. Blocks.

        Raises:
            PackageProblem: The server runs as root, and there is no sandbox.
        """
        sandbox = self.sandbox()
        if sandbox is None:
            return Workplace(package, folder, None, self.environment)
        if isinstance(sandbox, str):
            reason = f"as root this server fetches packages in a sandbox only, and there is none: {sandbox}."
            raise PackageProblem(str(package), reason)
        environment, named_files = self._copy_settings(folder / "home")
        visible_files = frozenset({*interpreter_files(Path(PYTHON)), *named_files})
        return Workplace(package, folder, sandbox, environment, visible_files)

    async def find(self, name: str, at: Workplace) -> RegistryClient | None:
        """Return a client by its name, or None if this machine has none.

        Raises:
            PackageProblem: The client is installed where it does not work in the sandbox.
        """
        if at.sandbox is None:
            program = shutil.which(name, path=self.environment.get("PATH"))
            return None if program is None else RegistryClient(program)
        if name not in self._clients_by_name:
            self._clients_by_name[name] = await self._find_confined(name, at)
        return self._clients_by_name[name]

    async def run(
        self,
        command: Sequence[str],
        at: Workplace,
        *,
        cwd: Path | None = None,
        seconds: float | None = None,
        files: Sequence[str] = (),
    ) -> str:
        """Run a client and return its output, at most `OUTPUT_BYTES` of it.

        On a timeout or cancellation, the client is killed with all its children.

        Args:
            command: the program with its arguments.
            at: where the client works. In a sandbox it writes there only.
            cwd: its working directory, the workplace's folder or one below it.
            seconds: a shorter time limit.
            files: the client's own files (`RegistryClient.files`).

        Raises:
            PackageProblem: The client failed or took too long.
        """
        seconds = min(seconds or self.seconds, self.seconds)
        if at.sandbox is not None:
            folders = sorted([(str(at.folder), True), *((path, False) for path in {*at.shown, *files})])
            options = [option for path in _SYSTEM_SETTINGS for option in ("--ro-bind-try", path, path)]
            command = launch_command(at.sandbox, folders, command, network=True, options=options, limits=_LIMITS)
        with tempfile.TemporaryFile() as output:  # not a pipe: a child of the client may hold that open
            process = subprocess.Popen(  # noqa: ASYNC220 - it returns once the child runs
                command,
                cwd=cwd or at.folder,
                env=at.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with anyio.fail_after(seconds):
                    await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
            except TimeoutError as exc:
                raise PackageProblem(str(at.package), f"the installation took longer than {seconds:g} s.") from exc
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):  # it ended just now
                        os.killpg(process.pid, signal.SIGKILL)
                    with anyio.CancelScope(shield=True):  # it was killed, so it ends at once
                        await anyio.to_thread.run_sync(process.wait)
            if process.returncode:
                output.seek(max(output.seek(0, os.SEEK_END) - REASON_BYTES, 0))
                reason = reason_of(output.read(REASON_BYTES).decode("utf-8", "replace"))
                raise PackageProblem(str(at.package), reason)
            output.seek(0)
            return output.read(OUTPUT_BYTES).decode("utf-8", "replace")

    async def _find_confined(self, name: str, at: Workplace) -> RegistryClient | None:
        """Return the first client of a name on the search path that works in the sandbox."""
        failed = ""
        # Below /usr every user may read a program. Elsewhere only a trial shows whether the unprivileged one can.
        for client in await anyio.to_thread.run_sync(self._installed_clients, name):
            if client.program.startswith("/usr/"):
                return client
            try:
                await self.run([client.program, "--version"], at, seconds=TRIAL_SECONDS, files=client.files)
            except PackageProblem:
                failed = failed or client.program
            else:
                return client
        if failed and name != "uv":  # pip does the same work
            reason = f"{failed} does not run as an unprivileged user in the sandbox. Install {name} below /usr."
            raise PackageProblem(str(at.package), reason)
        return None

    def _installed_clients(self, name: str) -> list[RegistryClient]:
        """Return the clients of a name on the search path, without links in their paths. Blocks."""
        folders = filter(None, self.environment.get("PATH", "").split(":"))
        programs = dict.fromkeys(os.path.realpath(os.path.join(folder, name)) for folder in folders)
        runnable = [program for program in programs if os.path.isfile(program) and os.access(program, os.X_OK)]
        return [
            RegistryClient(program, () if program.startswith("/usr/") else _files_of(Path(program)))
            for program in runnable
        ]

    def _copy_settings(self, home: Path) -> tuple[dict[str, str], set[str]]:
        """Copy the clients' settings files to their home folder.

        Returns the variables for a client in the sandbox, and the files and folders that the settings name.
        """
        (home / "tmp").mkdir(parents=True)
        here = Path(self.environment.get("HOME") or "/")
        config = Path(self.environment.get("XDG_CONFIG_HOME") or here / ".config")
        sources = {home / name: here / name for name in _HOME_SETTINGS}
        sources |= {home / ".config" / name: config / name for name in _CONFIG_SETTINGS}
        texts = [_copy(source, target) for target, source in sources.items()]
        texts += [_read(file) for path in _SYSTEM_SETTINGS for file in _files_below(Path(path))]
        environment: dict[str, str] = {}
        for name, text in self.environment.items():
            # These would lead the client to folders that it does not see in the sandbox.
            if name.lower() in _OUR_PLACES or name.startswith("XDG_"):
                continue
            environment[name] = text
            if not name.lower().startswith(_CLIENT_PREFIXES):
                continue
            texts.append(text)
            if text.startswith("/") and os.path.isfile(text) and not _is_public(text):
                copy = home / "named" / name
                texts.append(_copy(Path(text), copy))
                environment[name] = str(copy)
        environment |= {
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "npm_config_cache": str(home / ".npm"),
            "PIP_CACHE_DIR": str(home / "pip"),
            "UV_CACHE_DIR": str(home / "uv"),
        }
        return environment, set(self._named_places(texts))

    def _named_places(self, texts: Sequence[str]) -> Iterator[str]:
        """Yield the files and folders in texts of settings that every user may read, without links in their paths."""
        for text in texts:
            for written_path in _PATH.findall(text):
                place = Path(os.path.realpath(written_path))
                if place.name == "simple":  # the files of a static index are beside it
                    place = place.parent
                # The sandbox has /usr already, and a file that only root may read must stay hidden.
                if place.is_relative_to("/usr") or not _is_public(str(place)):
                    continue
                if len(place.parts) > 1 and not self.hidden.is_relative_to(place):
                    yield str(place)


def reason_of(output: str) -> str:
    """Return the reason in a client's output; addresses may carry credentials and are left out."""
    if _UNREACHABLE.search(output):
        return "the package registry cannot be reached."
    if _UNKNOWN.search(output):
        return "the package registry does not know it in this version."
    lines = [_ADDRESS.sub("(address)", line.strip()) for line in output.splitlines() if line.strip()]
    return f"it could not be installed: {' / '.join(lines[-3:])[-OUTPUT_CHARS:] or 'no reason was given'}"


def _files_of(program: Path) -> tuple[str, ...]:
    """Return the files of a client outside ``/usr``: the package that contains its script, or the program alone."""
    package = program.parent.parent
    place = package if program.parent.name == "bin" and (package / "package.json").is_file() else program
    return (str(place),) if _is_public(str(place)) else ()


def _is_public(path: str) -> bool:
    """Return whether every user may read a file, or list a folder."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return (os.path.isdir(path) and mode & 0o5 == 0o5) or (os.path.isfile(path) and mode & 0o4 != 0)


def _files_below(place: Path) -> list[Path]:
    return sorted(place.glob("*")) if place.is_dir() else [place]


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(CONFIG_BYTES)
    except OSError:
        return ""


def _copy(source: Path, target: Path) -> str:
    """Copy a settings file if it exists, and return its text."""
    if not source.is_file():
        return ""
    text = _read(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return text
