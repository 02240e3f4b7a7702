"""Lines that the operator allowed in addition to the built-in launch catalogue: files in the data folder.

Owns ``catalogue.toml`` (written by the operator, only read here) and ``allowed.json`` (written by ``agentic-rag mcp
allow`` and ``revoke``). Each access reloads a file that changed, so a change by the operator takes effect at the next
start of a server, without a restart of this process.
"""

import fcntl
import hashlib
import json
import logging
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentic_rag.base.errors import CatalogueProblem, CommandNotAllowed, InvalidInput
from agentic_rag.tools.launch.catalogue import CatalogueEntry, LineRefusal, Package, RequestedProgram, read_line
from agentic_rag.tools.launch.catalogue_file import entries_of, parse_catalogue
from agentic_rag.tools.launch.environment import SEARCH_PATH
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.requests import LOCAL, local_name, scripts_of
from mcp_servers.safe_files import Folder, FolderEntry

logger = logging.getLogger(__name__)

MAX_FILES = 200
"""Maximum number of files in a program's own folder: each is checked before every start."""
MAX_BYTES = 64 << 20

OPERATORS, ALLOWED = "catalogue.toml", "allowed.json"

Stamp = tuple[int, int, int]


class PermissionSource(StrEnum):
    """The source of an entry's permission: the operator's file, an approval or ``mcp allow``, or the product."""

    OPERATOR = "operator"
    ALLOWED = "allowed"
    BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class ExtraRights:
    """The rights that ``mcp allow`` grants in addition to the line itself. Paths are absolute."""

    network: bool = False
    env: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Further folders that the program may read."""


class LaunchCatalogue:
    """The entries that may run now: the operator's, then the built-in ones."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read the built-in entries. ``folder`` holds the operator's files; None means built-in entries only."""
        builtin = Path(__file__).with_name("catalogue.toml")
        self.builtin = parse_catalogue(builtin.read_text(encoding="utf-8"), builtin.name)
        self._folder = folder
        self._read: dict[str, tuple[Stamp, tuple[CatalogueEntry, ...]]] = {}

    def entries(self) -> tuple[CatalogueEntry, ...]:
        """Return all entries, the operator's first. An unreadable file allows nothing, and the problem is logged."""
        return (*self._of(OPERATORS), *self._of(ALLOWED), *self.builtin)

    def by_origin(self) -> dict[PermissionSource, tuple[CatalogueEntry, ...]]:
        """Return all entries, grouped by the source of their permission."""
        return {
            PermissionSource.OPERATOR: self._of(OPERATORS),
            PermissionSource.ALLOWED: self._of(ALLOWED),
            PermissionSource.BUILTIN: self.builtin,
        }

    def allowed_entries(self) -> tuple[CatalogueEntry, ...]:
        """Return the entries that ``mcp allow`` added."""
        return self._of(ALLOWED)

    async def allow(
        self, line: Sequence[str], grant: ExtraRights, packages: Packages, kept_out: Sequence[Path]
    ) -> CatalogueEntry:
        """Allow one whole line and return its entry; a package is installed, a program bound to its hash.

        ``kept_out``: folders in which a model or a child process writes. No file in them may be a program.

        Raises:
            InvalidInput: The line cannot be allowed in this form.
            PackageProblem: The package cannot be installed.
        """
        command, *args = line
        program = read_line(command, args)
        if isinstance(program, LineRefusal):
            raise InvalidInput(program.place, program.reason)
        if program.registry == "mcpb":
            raise InvalidInput("allow", "a bundle is proposed by its file: agentic-rag mcp propose DOMAIN FILE.")
        if program.registry:
            installed = await packages.install(Package(program.registry, program.name, program.version))
            package = Package(program.registry, program.name, installed.version)
            table: dict[str, Any] = {program.registry: str(package)}
        else:
            assert self._folder is not None
            table = _program_table(program, args, kept_out, self._folder / "local")
        table |= {
            "id": _ident(program, line),
            "args": list(program.args),
            "env": dict.fromkeys(grant.env, "{text}"),
            "network": grant.network,
            "read_only": list(grant.read_only),
            "folders": list(grant.folders),
        }
        try:
            # Read as it will be read again, so that no entry is stored that a later start refuses.
            entry = entries_of({"entry": [table]}, "allow")[0]
        except CatalogueProblem as exc:
            raise InvalidInput("allow", str(exc)) from exc
        self.put(table)
        return entry

    def put(self, table: Mapping[str, Any]) -> None:
        """Store an allowed entry, replacing an entry of the same id. Blocks.

        Raises:
            InvalidInput: There is no data folder, or the existing file cannot be read.
        """
        with self._changing():
            self._write([*(existing for existing in self._tables() if existing["id"] != table["id"]), dict(table)])

    def move_programs(self, local: Path) -> None:
        """Rewrite the paths of allowed programs in the operator's folder after the data folder moved to ``local``.

        The hashes do not change. Blocks.

        Raises:
            InvalidInput: There is no data folder, or the existing file cannot be read.
        """
        with self._changing():
            tables = self._tables()
            for table in tables:
                names = table.get("names", {})
                moved = {
                    place: str(local / name) for name, place in names.items() if place.endswith(f"/{local.name}/{name}")
                }
                if moved:
                    table["names"] = {name: moved.get(place, place) for name, place in names.items()}
                    table["files"] = {moved.get(place, place): digest for place, digest in table["files"].items()}
            self._write(tables)

    def revoke(self, ident: str) -> bool:
        """Revoke the entry with an id; returns False if there is none."""
        with self._changing():
            tables = self._tables()
            remaining = [table for table in tables if table["id"] != ident]
            if len(remaining) < len(tables):
                self._write(remaining)
            return len(remaining) < len(tables)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the file against other processes: a server may approve while a command line allows."""
        if self._folder is None:
            raise InvalidInput(ALLOWED, "there is no data folder to keep this in.")
        for folder in (self._folder.parent, self._folder):  # the command line may be the first to create them
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f".{ALLOWED}.lock"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _of(self, name: str) -> tuple[CatalogueEntry, ...]:
        if self._folder is None:
            return ()
        path = self._folder / name
        try:
            status = path.stat()
            # The file is replaced, never changed in place, so its inode alone tells two versions apart.
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            cached = self._read.get(name)
            if cached is None or cached[0] != stamp:
                text = path.read_text(encoding="utf-8")
                entries = parse_catalogue(text, name) if name == OPERATORS else entries_of(json.loads(text), name)
                cached = self._read[name] = (stamp, entries)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, CatalogueProblem) as exc:
            logger.error("%s allows nothing: %s", path, exc)
            return ()
        return cached[1]

    def _tables(self) -> list[dict[str, Any]]:
        if self._folder is None or not (self._folder / ALLOWED).exists():
            return []
        try:
            tables: list[dict[str, Any]] = json.loads((self._folder / ALLOWED).read_text(encoding="utf-8"))["entry"]
            entries_of({"entry": [dict(table) for table in tables]}, ALLOWED)
        except (ValueError, KeyError, TypeError, CatalogueProblem) as exc:
            raise InvalidInput(ALLOWED, f"{self._folder / ALLOWED} cannot be read: {exc}") from exc
        return tables

    def _write(self, tables: list[dict[str, Any]]) -> None:
        """Replace the file atomically; a reader sees the old one or the new one."""
        assert self._folder is not None
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=".allowed-")
        with open(descriptor, "w", encoding="utf-8") as file:  # mkstemp makes it 0600
            json.dump({"entry": tables}, file, indent=2, ensure_ascii=False)
        os.replace(name, self._folder / ALLOWED)


def allow_command(command: str, args: Sequence[str], env: Sequence[str]) -> str:
    """Return the exact command by which an operator allows a line."""
    flags = [word for name in env for word in ("--env", name)]
    return shlex.join(["agentic-rag", "mcp", "allow", *flags, "--", command, *args])


def find_program(command: str, path: str) -> str:
    """Return the absolute path of a program; a bare name is looked up on the fixed `SEARCH_PATH`.

    Raises:
        InvalidInput: The program does not exist or its path is relative. ``path`` is its place in the settings.
    """
    if "/" in command and not os.path.isabs(command):
        raise InvalidInput(path, f"{command!r} is a relative path; use a program name or an absolute path.")
    candidates = [command] if "/" in command else [f"{folder}/{command}" for folder in SEARCH_PATH]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    where = "" if "/" in command else f" in {':'.join(SEARCH_PATH)}"
    raise InvalidInput(path, f"there is no program {command!r}{where}.")


def refuse_inside(file: str, folders: Sequence[Path], path: str) -> None:
    """Refuse a program in a folder where a model or a child process can write."""
    real = Path(file).resolve()
    if any(real.is_relative_to(folder.resolve()) for folder in folders):
        raise CommandNotAllowed(path, "nothing under a workspace may be the program.")


def file_hash(path: str) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_local_files(local: Path, name: str, path: str) -> dict[str, str]:
    """Return the files of the operator's folder that a script is bound to: their paths by name.

    Raises:
        CommandNotAllowed: The files cannot be bound; ``path`` is the argument's place.
    """
    root = local.resolve()
    own, _, inner = name.partition("/")
    if not inner:
        return {name: str(root / name)}
    folder = Folder(root).at(own)
    entries: list[FolderEntry] = []
    size = 0
    for entry in folder.walk():
        if entry.status is None:
            reason = f"{LOCAL}/{own}/{entry.path} is a link or no file, so that it can be bound to no hash."
            raise CommandNotAllowed(path, reason, "Put the file itself there.")
        entries.append(entry)
        size += entry.status.st_size
        if len(entries) <= MAX_FILES and size <= MAX_BYTES:
            continue
        reason = f"{LOCAL}/{own} has more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB, all of which it may load."
        remedy = "Put its script into one file, or make it a package or a bundle (.mcpb)."
        raise CommandNotAllowed(path, reason, remedy)
    return {f"{own}/{entry.path}": str(root / own / entry.path) for entry in entries}


def _program_table(
    program: RequestedProgram, args: Sequence[str], kept_out: Sequence[Path], local: Path
) -> dict[str, Any]:
    """Bind a line to the program and to every file it names.

    ``local``: the operator's folder for programs; a relative name is a file in it, as in an approved request.

    Raises:
        InvalidInput, CommandNotAllowed: The line could not start; the text names the missing part.
    """
    path = os.path.realpath(find_program(program.name, "command"))
    files = {}
    names: dict[str, str] = {}
    scripts = scripts_of(program.name, args)
    for index, arg in enumerate(program.args):
        named_path = arg.partition("=")[2] or arg
        if os.path.isabs(named_path) and os.path.isfile(named_path):
            files[os.path.realpath(named_path)] = file_hash(named_path)
            # The hash is of the target. A link could lead to another file later.
            if os.path.realpath(named_path) != named_path:
                raise InvalidInput("args", f"{named_path} is a link; name {os.path.realpath(named_path)} itself.")
        elif os.path.isabs(named_path) and arg in scripts:
            raise InvalidInput(f"args.{index}", f"there is no file {named_path}, so that the line could not start.")
        elif arg in scripts or arg.startswith(("./", "../")) or (local_name(arg) and (local / arg).is_file()):
            names |= list_local_files(local, _find_relative(arg, index, local), f"args.{index}")
    files |= {place: file_hash(place) for place in names.values()}
    # A program that a model or a child can write would make its hash meaningless.
    for file in (path, *files):
        refuse_inside(file, kept_out, "command")
    table = {"executable": path, "command": program.name, "sha256": file_hash(path), "files": files}
    return {**table, "names": names} if names else table


def _find_relative(text: str, index: int, local: Path) -> str:
    """Return the name in the operator's folder for a relative name, because servers start in a private, empty folder.

    Raises:
        InvalidInput: There is no such file; the text tells how to put it there.
    """
    name = local_name(text)
    if name is not None and (local / name).is_file():
        return name
    here = os.path.abspath(text)
    place = f"args.{index}"
    if os.path.isfile(here):
        folder = shlex.quote(str((local / (name or os.path.basename(here))).parent))
        remedy = f"Copy it there (mkdir -p {folder} && cp {shlex.quote(here)} {folder}/), or name it {here}."
    else:
        remedy = "Put the file there, or name one by its absolute path."
    raise InvalidInput(place, f"there is no {text!r} in {local}, from where a relative name is read. {remedy}")


def _ident(program: RequestedProgram, line: Sequence[str]) -> str:
    digest = hashlib.sha256(json.dumps(list(line)).encode()).hexdigest()[:8]
    return f"{program.name.rpartition('/')[2]}-{digest}"
