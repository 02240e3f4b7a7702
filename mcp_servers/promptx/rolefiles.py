"""Role files as they are on disk: which there are, which one wins, what may be read, and the last good text of each.

Owns the walk over a root, the refusal of links, devices, binaries and giants, and the memory of good texts that lets a
half-written edit do no harm. Deliberately knows nothing of rendering, of roles as a whole or of writing.
"""

import os
import stat
import threading
import unicodedata
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from mcp_servers.promptx.dpml import KINDS, MAX_FILE_BYTES, Kind, normalise, parse, position
from mcp_servers.promptx.ids import ID
from mcp_servers.promptx.lint import Finding, lint

Origin = Literal["workspace", "builtin"]
Key = tuple[Kind, str]
"""Kind and id (NFC) of a file."""

RESOURCE_FOLDER: Final = Path(".promptx") / "resource"
LIMIT_SHOWN: Final = f"{MAX_FILE_BYTES // 1024} KiB"
MAX_GOOD_TEXTS: Final = 512


@dataclass(frozen=True, slots=True)
class DiskFile:
    key: Key
    source: Origin
    root: Path
    path: Path

    @property
    def shown(self) -> str:
        """The path findings name: relative to the workspace, or to the folder that holds the built-in roles."""
        base = self.root.parent.parent if self.source == "workspace" else self.root.parent
        return self.path.relative_to(base).as_posix()


@dataclass(slots=True)
class Index:
    """What is on disk now: the winning file per key, all files in path order, and files that cannot count."""

    winners: dict[Key, DiskFile] = field(default_factory=dict)
    files: list[DiskFile] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def find(self, kind: Kind, key: str) -> DiskFile | None:
        """The file that counts for an id, in whatever Unicode form it is written."""
        return self.winners.get((kind, unicodedata.normalize("NFC", key)))


class _GoodTexts:
    """The last complete text this process read of each file; bounded, shared by all libraries."""

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
    """The files of one call: each is read once, so that one answer never mixes two versions of a file."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.notes: list[str] = []
        self._texts: dict[DiskFile, tuple[str | None, Finding | None]] = {}
        self._usable: dict[DiskFile, str | None] = {}

    def raw(self, file: DiskFile) -> tuple[str | None, Finding | None]:
        """The text as it is on disk, or why it cannot be read."""
        if file not in self._texts:
            self._texts[file] = _read(file)
        return self._texts[file]

    def usable(self, file: DiskFile) -> str | None:
        """The text on disk if it is complete, else the last good one, else what can be used of a resource."""
        if file not in self._usable:
            self._usable[file] = self._choose(file)
        return self._usable[file]

    def _choose(self, file: DiskFile) -> str | None:
        text, problem = self.raw(file)
        kind = file.key[0]
        if text is not None:
            document = parse(kind, text)
            if document.complete or (kind != "role" and document.body is None):
                _GOOD.keep(file.path, text)
                return text
        reason = problem.message if problem else f"<{kind}> is not complete"
        if (last := _GOOD.get(file.path)) is not None:
            self.notes.append(f"{file.shown} is broken ({reason}); the last good version is used.")
            return last
        if kind != "role":
            self.notes.append(f"{file.shown} is broken ({reason}).")
            return text
        return None

    def lookup(self, kind: Kind, key: str) -> str | None:
        """The `Lookup` of dpml: workspace before built-in."""
        file = self.index.find(kind, key)
        return None if file is None else self.usable(file)

    def lint(self, file: DiskFile) -> list[Finding]:
        """Findings of the text on disk."""
        text, problem = self.raw(file)
        return [problem] if problem else lint(file.key[0], text or "", file.shown, self.lookup)


def collect(index: Index, source: Origin, root: Path, home: Path) -> None:
    """Add the files of one root. Later roots beat earlier ones, later paths of one root beat earlier paths."""
    if not inside(root, home):  # a link that leads out of the workspace
        return
    own: dict[Key, DiskFile] = {}
    for path, kind, key in _walk(root):
        file = DiskFile((kind, key), source, root, path)
        if not ID.match(key):
            hint = "use letters, digits, '_', '.' or '-', at most 64"
            index.findings.append(Finding(file.shown, 1, 1, "error", "bad-id", f"{key!a} is not a valid id", hint))
            continue
        if (earlier := own.get(file.key)) is not None:
            said = f"the {kind} {key!r} is also in {file.shown}, which is used"
            index.findings.append(Finding(earlier.shown, 1, 1, "warning", "duplicate", said, "remove or rename one"))
        own[file.key] = file
        index.files.append(file)
    index.winners.update(own)


def _walk(root: Path) -> list[tuple[Path, Kind, str]]:
    """Files with a suffix of ours, in path order; links to folders are not followed, so there are no cycles."""
    found: list[tuple[Path, Kind, str]] = []
    for folder, _, names in os.walk(root):
        for name in names:
            for kind in KINDS:
                if name.endswith(f".{kind}.md"):
                    key = unicodedata.normalize("NFC", name.removesuffix(f".{kind}.md"))
                    found.append((Path(folder, name), kind, key))
    return sorted(found, key=lambda item: item[0].as_posix())


def inside(path: Path, home: Path) -> bool:
    try:
        return path.resolve().is_relative_to(home.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def _read(file: DiskFile) -> tuple[str | None, Finding | None]:
    """The file's text, or the finding that says why it has none. Never opens a device or a file outside the root."""

    def refuse(code: str, message: str, hint: str, line: int = 1, column: int = 1) -> tuple[None, Finding]:
        return None, Finding(file.shown, line, column, "error", code, message, hint)

    if not inside(file.path, file.root):
        return refuse("link", "the link leads out of its folder and is refused", "copy the file here")
    try:
        status = file.path.stat()
        if not stat.S_ISREG(status.st_mode):
            return refuse("not-a-file", "it is not a regular file", "replace it by a text file")
        if status.st_size > MAX_FILE_BYTES:
            return refuse("too-large", f"the file has {status.st_size} bytes", f"keep it under {LIMIT_SHOWN}")
        with file.path.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        return refuse("unreadable", f"it cannot be read: {exc.strerror}", "check that it exists and may be read")
    if len(data) > MAX_FILE_BYTES:  # it grew meanwhile
        return refuse("too-large", f"the file has more than {MAX_FILE_BYTES} bytes", f"keep it under {LIMIT_SHOWN}")
    if b"\0" in data:
        return refuse("encoding", "the file is binary or UTF-16", "save it as UTF-8 text")
    try:
        text = normalise(data.decode())
    except UnicodeDecodeError as exc:
        before = data[: exc.start].decode()
        return refuse("encoding", "the file is not UTF-8 here", "save it as UTF-8", *position(before, len(before)))
    return text, None
