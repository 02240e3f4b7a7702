"""Role files on disk: discovery, precedence, safe reading, and the last good text of each file.

Owns the findings about links, devices, binaries and oversized files, and the cache of good texts that makes a
half-written edit harmless. Knows nothing of rendering, of roles as a whole or of writing.
"""

import re
import threading
import unicodedata
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from mcp_servers.promptx.dpml import KINDS, MAX_FILE_BYTES, Kind, normalise, parse, position
from mcp_servers.promptx.ids import ID
from mcp_servers.promptx.lint import Finding, lint
from mcp_servers.safe_files import Folder, Refused

Origin = Literal["workspace", "builtin"]
Key = tuple[Kind, str]
"""Kind and id (NFC) of a file."""

RESOURCE_FOLDER: Final = ".promptx/resource"
LIMIT_SHOWN: Final = f"{MAX_FILE_BYTES // 1024} KiB"
MAX_GOOD_TEXTS: Final = 512
_NEAR_NAME: Final = re.compile(
    rf"(?P<id>.+?)(?:\.(?P<kind>{'|'.join(KINDS)})s?(?:\.(?:md|mdx|markdown|txt|text|html?|docx?|rtf))*)", re.IGNORECASE
)
"""Names that resemble those of role files: clerk.role.md.txt, clerk.role, clerk.Role.MD, clerk.roles.markdown."""
COPY: Final = "put a text file here, a copy and no link"


@dataclass(frozen=True, slots=True)
class DiskFile:
    """A file below a root. ``inner`` is its path relative to the root."""

    key: Key
    source: Origin
    root: Folder
    inner: str

    @property
    def path(self) -> Path:
        """The file's path, for people."""
        return self.root.path / self.inner

    @property
    def shown(self) -> str:
        """The path in findings, relative to the workspace or to the folder that contains the built-in roles."""
        return _path_for_people(self.source, self.root, self.inner)


@dataclass(slots=True)
class RoleFileIndex:
    """The files on disk now: the winning file per key, all files in path order, and findings about unusable files."""

    winners: dict[Key, DiskFile] = field(default_factory=dict)
    files: list[DiskFile] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    drafts: dict[DiskFile, str] = field(default_factory=dict)
    """Texts that override the content of files on disk, or stand for files that do not exist yet."""

    def find(self, kind: Kind, key: str) -> DiskFile | None:
        """Return the winning file of an id, in any Unicode form of the id."""
        return self.winners.get((kind, unicodedata.normalize("NFC", key)))


class _GoodTexts:
    """A bounded cache of the last complete text of each file in this process, shared by all libraries."""

    def __init__(self) -> None:
        self._texts: OrderedDict[Path, str] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, path: Path, text: str) -> None:
        with self._lock:
            self._texts[path] = text
            self._texts.move_to_end(path)
            if len(self._texts) > MAX_GOOD_TEXTS:
                self._texts.popitem(last=False)

    def get(self, path: Path) -> str | None:
        with self._lock:
            return self._texts.get(path)


_GOOD: Final = _GoodTexts()


class Reading:
    """The files of one call. Each file is read once, so that an answer never mixes two versions of a file."""

    def __init__(self, index: RoleFileIndex) -> None:
        self.index = index
        self.notes: list[str] = []
        self._texts: dict[DiskFile, tuple[str | None, Finding | None]] = {}
        self._usable: dict[DiskFile, str | None] = {}

    def raw(self, file: DiskFile) -> tuple[str | None, Finding | None]:
        """Return the text on disk, or the finding that explains why it cannot be read."""
        if file not in self._texts:
            draft = self.index.drafts.get(file)
            self._texts[file] = _read(file) if draft is None else (draft, None)
        return self._texts[file]

    def usable(self, file: DiskFile) -> str | None:
        """Return the text on disk if complete, else the last good one, else a resource's incomplete text or None."""
        if file not in self._usable:
            self._usable[file] = self._choose(file)
        return self._usable[file]

    def _choose(self, file: DiskFile) -> str | None:
        text, problem = self.raw(file)
        kind = file.key[0]
        if text is not None:
            document = parse(kind, text)
            if document.complete or (kind != "role" and document.body is None):
                if file not in self.index.drafts:  # a draft may never be written, so it is no version of the file
                    _GOOD.keep(file.path, text)
                return text
        if file in self.index.drafts:  # the author wants to see the draft unchanged
            return text if kind != "role" else None
        reason = problem.message if problem else f"<{kind}> is not complete"
        if (last := _GOOD.get(file.path)) is not None:
            self.notes.append(f"{file.shown} is broken ({reason}); the last good version is used.")
            return last
        if kind != "role":
            self.notes.append(f"{file.shown} is broken ({reason}).")
            return text
        return None

    def lookup(self, kind: Kind, key: str) -> str | None:
        """Return the text of a file, workspace before built-in. This is a `Lookup` of `dpml`."""
        file = self.index.find(kind, key)
        return None if file is None else self.usable(file)

    def lint(self, file: DiskFile) -> list[Finding]:
        """Return the findings of the text on disk."""
        text, problem = self.raw(file)
        return [problem] if problem else lint(file.key[0], text or "", file.shown, self.lookup)


def collect(index: RoleFileIndex, source: Origin, root: Folder) -> None:
    """Add the files of one root to the index. Later roots override earlier ones, and so do later paths in one root."""
    own: dict[Key, DiskFile] = {}
    for inner, kind, key in _walk(index, source, root):
        file = DiskFile((kind, key), source, root, inner)
        if not ID.match(key):
            hint = "use letters, digits, '_', '.' or '-', at most 64"
            index.findings.append(Finding(file.shown, 1, 1, "error", "bad-id", f"{key!a} is not a valid id", hint))
            continue
        if (earlier := own.get(file.key)) is not None:
            message = f"the {kind} {key!r} is also in {file.shown}, which is used"
            index.findings.append(Finding(earlier.shown, 1, 1, "warning", "duplicate", message, "remove or rename one"))
        own[file.key] = file
        index.files.append(file)
    index.winners.update(own)


def add_draft(index: RoleFileIndex, root: Folder, inner: str, key: Key, text: str) -> None:
    """Add an unwritten text to the index, in place of its workspace file, or else at ``inner``."""
    current = index.winners.get(key)
    if current is None or current.source != "workspace":
        current = DiskFile(key, "workspace", root, inner)
        index.files.append(current)
        index.winners[key] = current
    index.drafts[current] = text


def _walk(index: RoleFileIndex, source: Origin, root: Folder) -> list[tuple[str, Kind, str]]:
    """Return the files with a role file's suffix, in path order. Other links become findings: one may mean a folder."""
    files: list[tuple[str, Kind, str]] = []
    try:
        for entry in root.walk():
            kind = next((kind for kind in KINDS if entry.name.endswith(f".{kind}.md")), None)
            if kind is not None:
                key = unicodedata.normalize("NFC", entry.name.removesuffix(f".{kind}.md"))
                files.append((entry.path, kind, key))
            elif entry.kind == "file" and (intended := _meant_name(entry.name)):
                shown_path = _path_for_people(source, root, entry.path)
                message = f"{entry.name} is not read: its name does not end in .{intended.rsplit('.', 2)[1]}.md"
                index.findings.append(Finding(shown_path, 1, 1, "warning", "name", message, f"rename it to {intended}"))
            elif entry.kind == "link":
                shown_path = _path_for_people(source, root, entry.path)
                index.findings.append(Finding(shown_path, 1, 1, "warning", "link", "the link is not followed", COPY))
    except OSError as exc:
        shown_path = _path_for_people(source, root, "")
        message = f"the folder cannot be read: {exc.strerror}"
        index.findings.append(
            Finding(shown_path, 1, 1, "error", "unreadable", message, "put a folder with role files here")
        )
    return sorted(files)


def _meant_name(name: str) -> str:
    """Return the intended name of a file whose name resembles that of a role file, or an empty string.

    For example, Notepad adds `.txt`, which Explorer hides. Backup copies of editors are no role files.
    """
    match = _NEAR_NAME.fullmatch(name)
    if match is None or name.startswith((".", "#", "~")):
        return ""
    return f"{match['id']}.{match['kind'].lower()}.md"


def _path_for_people(source: Origin, root: Folder, inner: str) -> str:
    base = root.path.parent.parent if source == "workspace" else root.path.parent
    return (root.path / inner).relative_to(base).as_posix()


def _read(file: DiskFile) -> tuple[str | None, Finding | None]:
    """Return the file's text, or the finding that explains why it cannot be read."""

    def refuse(code: str, message: str, hint: str, line: int = 1, column: int = 1) -> tuple[None, Finding]:
        return None, Finding(file.shown, line, column, "error", code, message, hint)

    try:
        data = file.root.read(file.inner, MAX_FILE_BYTES)
    except Refused as exc:
        hint = f"keep it under {LIMIT_SHOWN}" if exc.why == "too-large" else COPY
        return refuse(exc.why, exc.strerror or exc.why, hint)
    except OSError as exc:
        return refuse("unreadable", f"it cannot be read: {exc.strerror}", "check that it exists and may be read")
    if b"\0" in data:
        return refuse("encoding", "the file is binary or UTF-16", "save it as UTF-8 text")
    try:
        text = normalise(data.decode())
    except UnicodeDecodeError as exc:
        before = data[: exc.start].decode()
        return refuse("encoding", "the file is not UTF-8 here", "save it as UTF-8", *position(before, len(before)))
    return text, None
