"""Roles: listing, activating, checking and writing them.

Owns the composition of a role and its description for a host. Knows nothing of finding and reading files (`rolefiles`),
of DPML's grammar (`dpml`, `lint`), of MCP or of permissions. Roles are not cached: a new, changed or deleted file
counts from the next call.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_servers.promptx.builtin import BUILTIN_ROLES
from mcp_servers.promptx.dpml import (
    KINDS,
    MAX_FILE_BYTES,
    Rendered,
    Resources,
    normalise,
    parse,
    references,
    render,
    resolve,
    summary,
    title,
)
from mcp_servers.promptx.errors import BrokenRole, RoleRefused, UnknownRole
from mcp_servers.promptx.ids import ID, check_id, is_plain
from mcp_servers.promptx.lint import Finding, lint
from mcp_servers.promptx.nuwa import MAX_FILES, RoleFile, layout, put
from mcp_servers.promptx.rolefiles import (
    LIMIT_SHOWN,
    RESOURCE_FOLDER,
    DiskFile,
    Origin,
    Reading,
    RoleFileIndex,
    add_draft,
    collect,
)
from mcp_servers.safe_files import Folder

Findings = list[Finding]

NOTED_FINDINGS: Final = 5
"""Maximum number of findings in the notes of an activation. `RoleActivation.findings` has all of them."""


@dataclass(frozen=True, slots=True)
class RoleInfo:
    """A role in a list. `findings` counts the lint findings of the role's file."""

    id: str
    source: Origin
    path: Path
    title: str
    findings: int


@dataclass(frozen=True, slots=True)
class RoleActivation:
    """A role ready for a model. `hash` changes with the role's file and with any inlined file."""

    role: str
    hash: str
    text: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class WrittenRole:
    """The written files, role file last, and their remaining lint findings, which are no errors."""

    paths: tuple[Path, ...]
    findings: tuple[Finding, ...]


class RoleLibrary:
    """The roles of one workspace, which override the built-in ones. Methods block and are thread-safe.

    Creating the object is cheap. ``drafts``: files of the role ``drafted`` that count like files in the workspace.
    """

    def __init__(
        self,
        workspace: Path | None,
        builtin: Path = BUILTIN_ROLES,
        *,
        drafted: str = "",
        drafts: Sequence[RoleFile] = (),
    ) -> None:
        self.workspace = workspace.absolute() if workspace else None
        self.builtin = builtin.absolute()
        self._drafted = drafted
        self._drafts = tuple(drafts)

    def list(self) -> list[RoleInfo]:
        """Return all roles, ordered by id."""
        reading = Reading(self._scan())
        return [
            RoleInfo(key, file.source, file.path, title(reading.usable(file) or ""), len(reading.lint(file)))
            for (kind, key), file in sorted(reading.index.winners.items())
            if kind == "role"
        ]

    def summaries(self, roles: Iterable[str]) -> dict[str, str]:
        """Return a one-line summary of each role, by id. It is empty for a missing or unreadable role."""
        reading = Reading(self._scan())
        files = {role: reading.index.winners.get(("role", role)) for role in roles}
        return {role: summary(reading.usable(file) or "") if file else "" for role, file in files.items()}

    def ids(self) -> tuple[str, ...]:
        """Return the known role ids, sorted."""
        return _role_ids(self._scan())

    def activate(self, role: str, resources: Resources = "all") -> RoleActivation:
        """Render a role from the current files.

        Raises:
            BadRoleId, UnknownRole: no such role.
            BrokenRole: its file is incomplete or unreadable, and no earlier good version is cached.
        """
        reading = Reading(self._scan())
        file, text = self._role(reading, role)
        document = parse("role", text)
        # The hash and the findings are those of the whole role, whichever part of it is asked for.
        whole = render(document, "all", reading.lookup)
        rendered = whole if resources == "all" else render(document, resources, reading.lookup)
        used = [file, *(reading.index.find(kind, key) for kind, key in whole.inlined)]
        findings = [finding for used_file in dict.fromkeys(used) if used_file for finding in reading.lint(used_file)]
        noted = [finding for finding in findings if finding.severity != "info"]
        notes = [*reading.notes, *map(str, noted[:NOTED_FINDINGS])]
        return RoleActivation(role, _digest(reading, text, whole), rendered.text, tuple(notes), tuple(findings))

    def hash(self, role: str) -> str | None:
        """Return the hash that `activate` reports, without running lint. None if the role is unknown or unusable."""
        reading = Reading(self._scan())
        try:
            _, text = self._role(reading, role)
        except (UnknownRole, BrokenRole):
            return None
        return _digest(reading, text, render(parse("role", text), "all", reading.lookup))

    def check(self, role: str | None = None) -> Findings:
        """Return the findings of all files, or of one role and its referenced files, ordered by file and line.

        Raises:
            BadRoleId, UnknownRole: `role` is given and there is no such role.
        """
        reading = Reading(self._scan())
        files, findings = reading.index.files, [*reading.index.findings]
        if role is not None:
            file = self._find(reading.index, role)
            files = [file, *_find_references(reading, file)]
            names = {member.shown for member in files}
            findings = [finding for finding in findings if finding.file in names]
        findings += [finding for file in files for finding in reading.lint(file)]
        return sorted(findings, key=lambda finding: (finding.file, finding.line, finding.column))

    def write(self, role: str, files: Sequence[RoleFile], replace: bool = True) -> WrittenRole:
        """Validate files of one role and write them into the workspace, the role file last.

        An existing file is replaced at its path; a new one gets PromptX's layout. `replace=False` refuses to replace.

        Raises:
            BadRoleId: the id of the role or of a file is not legal.
            RoleRefused: lint finds an error, another role uses an id, or writing fails. No file was changed.
        """
        check_id(role)
        for file in files:
            check_id(file.id, f"id of the {file.kind} file")
        reading = Reading(self._scan())
        problems = [*_batch_problems(role, files)]
        new = {(file.kind, file.id): normalise(file.content) for file in files}
        if ("role", role) not in new and reading.index.find("role", role) is None:
            problems.append(f"there is no role {role!r} yet; write its role file in the same call")
        findings: Findings = []
        targets: list[tuple[str, str]] = []
        # The role file comes last, so that no reader finds a role whose other files are not written yet.
        for file in sorted(files, key=lambda file: file.kind == "role"):
            path, target_problems = self._target(reading, role, file, replace)
            problems += target_problems
            targets.append((path, normalise(file.content)))
            findings += lint(file.kind, file.content, path, lambda k, i: new.get((k, i)) or reading.lookup(k, i))
        problems += [str(finding) for finding in findings if finding.severity == "error"]
        if self.workspace is None:
            problems.append("there is no workspace to write to")
        if problems or self.workspace is None:
            raise RoleRefused(role, problems)
        try:
            put(Folder(self.workspace), targets)
        except OSError as exc:
            raise RoleRefused(role, [f"the workspace cannot be written: {exc.strerror}"]) from exc
        return WrittenRole(tuple(self.workspace / path for path, _ in targets), tuple(findings))

    def put_back(self, path: str, content: str | None) -> str:
        """Write one file at a path in the workspace, or remove it if the content is None. Return the id in its name.

        Raises:
            RoleRefused: the path is no valid path of a role file, lint finds an error, or writing fails. Nothing
            changed.
        """
        name = path.rpartition("/")[2]
        kind = next((candidate for candidate in KINDS if name.endswith(f".{candidate}.md")), None)
        ident = name.removesuffix(f".{kind}.md")
        if kind is None or not path.startswith(f"{RESOURCE_FOLDER}/") or not ID.match(ident) or self.workspace is None:
            raise RoleRefused(ident, [f"{path!a} is no place of a role's file"])
        root = Folder(self.workspace)
        try:
            if content is None:
                root.remove(path)
                return ident
            problems = list(_batch_problems(ident, [RoleFile(kind, ident, content)]))
            text = normalise(content)
            findings = lint(kind, text, path, Reading(self._scan()).lookup)
            problems += [str(finding) for finding in findings if finding.severity == "error"]
            if problems:
                raise RoleRefused(ident, problems)
            put(root, [(path, text)])
        except OSError as exc:
            raise RoleRefused(ident, [f"the workspace cannot be written: {exc.strerror}"]) from exc
        return ident

    def _target(self, reading: Reading, role: str, file: RoleFile, replace: bool) -> tuple[str, tuple[str, ...]]:
        """Return the path of a file relative to the workspace, and the reasons against writing it."""
        path = f"{RESOURCE_FOLDER}/{layout(role, file)}"
        current = reading.index.find(file.kind, file.id)
        if current is not None and file.kind != "role" and (users := _users(reading, file, role)):
            return path, (f"{file.kind} {file.id!r} is used by {', '.join(users)} too; choose another id",)
        if current is not None and current.source == "workspace":
            if not replace:
                return path, (f"{current.shown} exists already",)
            path = current.shown
        return path, ()

    def _role(self, reading: Reading, role: str) -> tuple[DiskFile, str]:
        file = self._find(reading.index, role)
        text = reading.usable(file)
        if text is None:
            raise BrokenRole(role, [str(finding) for finding in reading.lint(file) if finding.severity == "error"])
        return file, text

    def _find(self, index: RoleFileIndex, role: str) -> DiskFile:
        if (file := index.find("role", check_id(role))) is None:
            raise UnknownRole(role, _role_ids(index))
        return file

    def _scan(self) -> RoleFileIndex:
        index = RoleFileIndex()
        collect(index, "builtin", Folder(self.builtin, owned=False))  # installers may link the files of a package
        if self.workspace is not None:
            root = Folder(self.workspace).at(RESOURCE_FOLDER)
            collect(index, "workspace", root)
            for file in self._drafts:
                key = (file.kind, unicodedata.normalize("NFC", check_id(file.id, f"id of the {file.kind} file")))
                add_draft(index, root, layout(check_id(self._drafted), file), key, normalise(file.content))
        return index


def _digest(reading: Reading, text: str, whole: Rendered) -> str:
    """Return the SHA-256 over the role's text, every inlined text and every missing reference."""
    digest = hashlib.sha256(text.encode())
    for kind, key in whole.inlined:
        digest.update(f"\0{kind}\0{key}\0{reading.lookup(kind, key)}".encode())
    # A missing file that is written later changes the text.
    digest.update("\0".join(whole.missing).encode())
    return digest.hexdigest()


def _batch_problems(role: str, files: Sequence[RoleFile]) -> Iterator[str]:
    """Yield the problems of a batch of files that do not depend on lint."""
    if not 1 <= len(files) <= MAX_FILES:
        yield f"give 1 to {MAX_FILES} files"
    keys = [(file.kind, file.id) for file in files]
    for file in files:
        name = f"{file.kind} {file.id!r}"
        if keys.count((file.kind, file.id)) > 1:
            yield f"{name} is given twice"
        if file.kind == "role" and file.id != role:
            yield f"{name}: the role file must have the role's id, {role!r}"
        if (size := len(file.content.encode("utf-8", "surrogatepass"))) > MAX_FILE_BYTES:
            yield f"{name} has {size} bytes, keep it under {LIMIT_SHOWN}"
        if not is_plain(file.content):
            yield f"{name} contains NUL or a lone surrogate"


def _users(reading: Reading, file: RoleFile, role: str) -> list[str]:
    """Return the other roles, including built-in ones, that use this file."""
    return [
        name
        for (kind, name), other in reading.index.winners.items()
        if kind == "role" and name != role
        for reference in references(reading.usable(other) or "")
        if reference.protocol == file.kind and file.id in reference.candidates
    ]


def _role_ids(index: RoleFileIndex) -> tuple[str, ...]:
    return tuple(sorted(key for kind, key in index.winners if kind == "role"))


def _find_references(reading: Reading, file: DiskFile) -> Iterator[DiskFile]:
    text, _ = reading.raw(file)
    for reference in references(text or ""):
        if target := resolve(reference, reading.lookup):
            target_file = reading.index.find(target[0], target[1])
            if target_file is not None:
                yield target_file
