"""Bundles of MCP servers (``.mcpb``): a zip with a ``manifest.json``, read as a proposal and unpacked after approval.

Owns the checks of an archive and the translation of its manifest into a line: ``mcpb NAME@VERSION``, slots for the
values a user fills in, variables for the environment. Runs nothing. All content is untrusted: names that lead out of
the bundle, links, and too many or too large files are refused before anything is written. Blocks.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentic_rag.archive.zips import UNREADABLE, open_zip
from agentic_rag.base.errors import PackageProblem
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.environment import SEARCH_PATH, steers_a_program
from agentic_rag.tools.launch.facts import TEXT_CHARS, Facts

MAX_BUNDLE_BYTES = 64 << 20
MAX_FILES = 20_000
MAX_UNPACKED_BYTES = 256 << 20
MAX_MANIFEST_BYTES = 256 << 10
MAX_FIELDS = 100
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024
"""Maximum bytes of one part of a file's name, as file systems limit it, and of the whole name."""
COPY_BYTES = 1 << 20

MANIFEST = "manifest.json"
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_INSIDE = "${__dirname}/"
_PATHS = frozenset({"PYTHONPATH", "NODE_PATH"})
"""Variables that steer a program, allowed only if they point into the bundle itself."""
_KINDS = {"node": ("node", "nodejs"), "python": ("python", "python3"), "binary": ()}


@dataclass(frozen=True, slots=True)
class Bundle:
    """The requirements of a bundle.

    ``args`` contain ``${NAME}`` for values that the user fills in; ``kinds`` gives the slot of each name.
    ``env``: variables whose values the user sets.
    ``secrets``: those that the manifest marks as secret.
    ``start``: the interpreter (empty: none) and the file in the bundle that it runs.
    """

    facts: Facts
    args: tuple[str, ...]
    env: tuple[str, ...]
    kinds: Mapping[str, str]
    secrets: tuple[str, ...]
    start: tuple[str, str]


def read_bundle(path: Path) -> Bundle:
    """Return the requirements of a bundle.

    Raises:
        PackageProblem: The bundle is refused; the text gives the reason.
    """
    with _open_zip(path) as archive:
        entries = _check_entries(archive, path)
        manifest_info = next((entry for entry in entries if entry.filename == MANIFEST), None)
        if manifest_info is None or manifest_info.file_size > MAX_MANIFEST_BYTES:
            raise PackageProblem(path.name, f"it has no {MANIFEST} of at most {MAX_MANIFEST_BYTES >> 10} KiB.")
        _check_contents(archive, entries)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files = {entry.filename for entry in entries if not entry.is_dir()}
        try:
            manifest = McpbManifest(json.loads(archive.read(manifest_info)), files)
            return manifest.read(f"sha256-{digest}", sum(entry.file_size for entry in entries), len(files))
        except (ValueError, RecursionError) as exc:
            raise PackageProblem(path.name, f"its {MANIFEST} cannot be used: {str(exc)[:TEXT_CHARS]}") from exc


def unpack_bundle(path: Path, package: Package, tree: Path) -> None:
    """Unpack a bundle into a new folder.

    Raises:
        PackageProblem: The bundle is missing, or differs from the approved one.
    """
    if not package.integrity or not path.is_file():
        raise PackageProblem(str(package), "the bundle is not here any more. Propose it again.")
    bundle = read_bundle(path)
    # The file lies in the data folder since the approval; it is not trusted to be the same.
    if bundle.facts.integrity != package.integrity:
        raise PackageProblem(str(package), "the bundle is not the one that was approved. Propose it again.")
    with _open_zip(path) as archive:
        tree.mkdir()
        for member in _check_entries(archive, path):
            place = tree / member.filename
            if member.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            # The upper half of the attributes is the Unix mode of the file.
            runs = bool(member.external_attr >> 16 & 0o100)
            # The folder is new and no name occurs twice, so nothing may be here: O_EXCL makes that an error.
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if runs else 0o644)
            with os.fdopen(descriptor, "wb") as target, archive.open(member) as source:
                shutil.copyfileobj(source, target)
    interpreter, entry = bundle.start
    if not interpreter:
        (tree / entry).chmod(0o755)


def read_start(tree: Path, final: Path) -> tuple[str, tuple[str, ...]]:
    """Return the program and leading arguments of an unpacked bundle, for its future place at ``final``.

    Raises:
        PackageProblem: The interpreter is not on this machine.
    """
    files = {str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()}
    manifest = McpbManifest(json.loads((tree / MANIFEST).read_text(encoding="utf-8")), files)
    bundle = manifest.read("", 0, 0)
    interpreter, entry = bundle.start
    if not interpreter:
        return str(final / entry), ()
    program = shutil.which(interpreter, path=":".join(SEARCH_PATH))
    if program is None:
        raise PackageProblem(
            bundle.facts.name, f"it needs {interpreter!r}, which is not in {' or '.join(SEARCH_PATH)}."
        )
    # With -B, because python3 would write its bytecode into the unpacked bundle, which nothing may change.
    return os.path.realpath(program), (*(("-B",) if interpreter == "python3" else ()), str(final / entry))


@contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        if path.stat().st_size > MAX_BUNDLE_BYTES:
            raise PackageProblem(path.name, f"a bundle has at most {MAX_BUNDLE_BYTES >> 20} MiB.")
        with path.open("rb") as file, open_zip(file) as archive:
            yield archive
    except UNREADABLE as exc:
        raise PackageProblem(path.name, f"it cannot be read as a zip: {str(exc)[:TEXT_CHARS]}") from exc


def _check_entries(archive: zipfile.ZipFile, path: Path) -> Sequence[zipfile.ZipInfo]:
    """Return the entries of an archive after checking that all of them may be unpacked."""
    entries = archive.infolist()
    if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        most = f"{MAX_FILES} files and {MAX_UNPACKED_BYTES >> 20} MiB unpacked"
        raise PackageProblem(path.name, f"a bundle has at most {most}.")
    names: set[str] = set()
    for entry in entries:
        parts = PurePosixPath(entry.filename).parts
        odd = (
            not parts or entry.filename.startswith("/") or ".." in parts or re.search(r"[\x00-\x1f\\:]", entry.filename)
        )
        # 0: the zip was made on a system without Unix modes. Bit 0 of the flags: encrypted.
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if odd or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or entry.flag_bits & 1:
            quoted = ascii(entry.filename[:80])
            raise PackageProblem(path.name, f"{quoted} is a link, encrypted, or a name that leads out of the bundle.")
        if len(entry.filename.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
            most = f"a name has at most {MAX_PATH_BYTES} bytes, and each part of it {MAX_NAME_BYTES}"
            raise PackageProblem(path.name, f"{entry.filename[:80]!a} is too long: {most}.")
        # Folded, since the archive may have been made, and be meant, for a file system that ignores case.
        name = "/".join(parts).casefold()
        if name in names:
            raise PackageProblem(path.name, f"{entry.filename[:80]!a} is in it twice.")
        names.add(name)
    # A name cannot be a file and a folder at once: unpacking would fail half way.
    files = {"/".join(PurePosixPath(entry.filename).parts).casefold() for entry in entries if not entry.is_dir()}
    for name in sorted(names):
        for folder in PurePosixPath(name).parents:
            if str(folder) in files:
                raise PackageProblem(path.name, f"{str(folder)[:80]!a} is a file, and the folder of {name[:80]!a}.")
    return entries


def _check_contents(archive: zipfile.ZipFile, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Read each file to its end, so that no operator approves a bundle that cannot be unpacked.

    Raises:
        OSError and other errors of `zipfile`: A file is damaged, or has another size or checksum than the list says.
    """
    for entry in entries:
        with archive.open(entry) as source:
            while source.read(COPY_BYTES):
                pass


class McpbManifest:
    """Reads a manifest. An invalid part raises a `ValueError` that describes a valid one."""

    def __init__(self, document: object, files: set[str]) -> None:
        self._fields = _object(document, MANIFEST)
        self._files = files
        self._settings = _object(self._fields.get("user_config", {}), "user_config")
        self._kinds: dict[str, str] = {}
        self._secrets: list[str] = []

    def read(self, integrity: str, size: int, count: int) -> Bundle:
        """Return the requirements of the bundle."""
        name = re.sub(r"[^a-z0-9._-]+", "-", _text(self._fields.get("name"), "name").lower()).strip("-._")
        version = _text(self._fields.get("version"), "version")
        if not name or not _VERSION.fullmatch(version):
            raise ValueError("name and version are needed: letters, digits, '.', '-' and '_'")
        server = _object(self._fields.get("server"), "server")
        start, rest = self._read_start(server)
        args = tuple(self._fill_in(arg, "server.mcp_config.args") for arg in rest)
        env, fixed = self._read_env(_object(server.get("mcp_config", {}), "server.mcp_config"))
        facts = Facts(
            registry="mcpb",
            name=name,
            version=version,
            integrity=integrity,
            license=str(self._fields.get("license", ""))[:TEXT_CHARS],
            size_bytes=size,
            file_count=count,
            programs=(f"{start[0]} {start[1]}".strip()[:TEXT_CHARS],),
            fixed=fixed,
        )
        return Bundle(facts, args, env, self._kinds, tuple(self._secrets), start)

    def _read_start(self, server: Mapping[str, object]) -> tuple[tuple[str, str], list[str]]:
        """Return interpreter and file, and the arguments that follow."""
        kind = _text(server.get("type"), "server.type")
        if kind not in _KINDS:
            raise ValueError(f"server.type {kind!r} is none of {', '.join(_KINDS)}; publish it as a package instead")
        entry = _text(server.get("entry_point"), "server.entry_point").removeprefix("./")
        if entry not in self._files:
            raise ValueError("server.entry_point names no file of the bundle")
        config = _object(server.get("mcp_config", {}), "server.mcp_config")
        command, args = config.get("command"), _texts(config.get("args", []), "server.mcp_config.args")
        if kind == "binary":
            if command not in (None, _INSIDE + entry, entry):
                raise ValueError(f"server.mcp_config.command has to be {_INSIDE}{entry}")
            return ("", entry), args
        if command is not None and command not in _KINDS[kind]:
            raise ValueError(f"server.mcp_config.command has to be {' or '.join(_KINDS[kind])}")
        if args and args[0] not in (_INSIDE + entry, entry):
            raise ValueError(
                f"server.mcp_config.args has to begin with {_INSIDE}{entry}, the only file of the bundle that is run"
            )
        return (_KINDS[kind][0] if kind == "node" else "python3", entry), args[1:]

    def _read_env(self, config: Mapping[str, object]) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the variables that a user fills in, and those that the bundle sets itself."""
        env: list[str] = []
        fixed: dict[str, str] = {}
        for name, value in _object(config.get("env", {}), "server.mcp_config.env").items():
            text, place = _text(value, f"env.{name}"), f"server.mcp_config.env.{name}"
            inside = text.startswith(_INSIDE) and "$" not in text[2:] and ".." not in text
            if steers_a_program(name) and not (name in _PATHS and inside):
                raise ValueError(f"{place} can make a program load or run another one")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name):
                raise ValueError(f"{place} is no variable's name")
            if inside:
                fixed[name] = "{tree}/" + text.removeprefix(_INSIDE)
            elif "${" in text:
                whole = _REFERENCE.fullmatch(text)
                if whole is None:
                    raise ValueError(
                        f"{place}: a value is either fixed, or one ${{user_config.…}} and nothing beside it"
                    )
                env.append(name)
                if self._setting(whole[1], place)[1].get("sensitive") is True:
                    self._secrets.append(name)
            else:
                fixed[name] = text
        return tuple(env), fixed

    def _setting(self, reference: str, place: str) -> tuple[str, Mapping[str, object]]:
        """Return the name and the declaration of a value that a user fills in."""
        key = reference.removeprefix("user_config.")
        setting = self._settings.get(key)
        if key == reference or not isinstance(setting, dict):
            raise ValueError(f"{place}: only ${{user_config.…}} that is declared can be filled in")
        return key, setting

    def _fill_in(self, text: str, place: str) -> str:
        """Return an argument with our placeholders in place of the manifest's."""

        def replacement(match: re.Match[str]) -> str:
            key, setting = self._setting(match[1], place)
            name = re.sub(r"[^A-Za-z0-9]+", "_", key).strip("_").upper()
            if not re.match(r"[A-Z]", name):
                name = f"VALUE_{name}"
            name = name[:64]
            if setting.get("sensitive") is True:
                raise ValueError(f"{place}: {key!r} is secret, and every process can read arguments; use env")
            self._kinds[name] = "{path:workspace}" if setting.get("type") in ("directory", "file") else "{text}"
            return f"${{{name}}}"

        return _REFERENCE.sub(replacement, text)


def _object(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict) or len(value) > MAX_FIELDS:
        raise ValueError(f"{place} has to be an object of at most {MAX_FIELDS} fields")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or len(value) > 4_000 or re.search(r"[\x00-\x1f\x7f]", value):
        raise ValueError(f"{place} has to be a text of one line")
    return value


def _texts(value: object, place: str) -> list[str]:
    if not isinstance(value, list) or len(value) > MAX_FIELDS:
        raise ValueError(f"{place} has to be a list of texts")
    return [_text(item, place) for item in value]
