"""Skills: folders with a ``SKILL.md`` in a workspace's `skills` folder. Nothing in them is ever run.

Owns the discovery of skills, their front matter, findings and readable files, and the export of a role as a skill.
Skills are not cached. Knows nothing of MCP, of role files or of permissions.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from mcp_servers.promptx.errors import SkillUnreadable, UnknownSkill
from mcp_servers.promptx.lint import Finding, Severity
from mcp_servers.safe_files import Folder, FolderEntry, Refused

Json = dict[str, Any]
Findings = list[Finding]

SKILLS_FOLDER: Final = "skills"
BODY: Final = "SKILL.md"
MAX_SKILLS: Final = 64
"""Maximum number of skills of one workspace. Further ones, by name, are ignored."""
MAX_FILES: Final = 200
"""Maximum number of files of one skill."""
MAX_BODY_BYTES: Final = 256 * 1024
MAX_FILE_BYTES: Final = 1024 * 1024
"""Maximum bytes of another file of a skill. A larger file is left out."""
MAX_SKILL_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of all files of a skill together."""
MAX_FRONT: Final = 16_000
"""Maximum characters of the front matter."""
MAX_DEPTH: Final = 16
"""Maximum nesting of lists and mappings in the front matter."""
MAX_DESCRIPTION: Final = 1_024
NAME_CHARS: Final = 64
SHOWN_CHARS: Final = 32_000
"""Maximum characters of a file in one answer."""

_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FRONT: Final = re.compile(r"---[ \t]*\n(.*?)(?:\n)?^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_RESERVED: Final = re.compile("anthropic|claude")
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill. ``path`` is relative to the skill's folder; ``digest`` is `sha256:…` of its bytes."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill. It is ``usable``, and offered to the model, if none of its findings is an error.

    ``front_matter`` is the author's front matter as JSON. ``description`` is cleaned and cut for a prompt.
    """

    name: str
    description: str
    front_matter: Json
    body: str
    files: tuple[SkillFile, ...]
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def digest(self) -> str:
        """A digest that changes with any file of the skill."""
        return _digest("\n".join(f"{file.path} {file.digest}" for file in self.files).encode())


class SkillLibrary:
    """The skills of one workspace. Creating the object is cheap. Methods block and are thread-safe."""

    def __init__(self, workspace: Path) -> None:
        self._folder = Folder(workspace.absolute()).at(SKILLS_FOLDER)

    def summaries(self) -> list[tuple[str, str]]:
        """Return the name and description of the usable skills, ordered by name. Never raises."""
        return [(skill.name, skill.description) for skill in self.list(with_files=False) if skill.usable]

    def list(self, *, with_files: bool = True) -> "list[Skill]":
        """Return all skills, broken ones too, ordered by name. ``with_files`` False: read only each ``SKILL.md``."""
        try:
            entries = self._folder.entries()
        except OSError:
            return []
        folders = [entry for entry in entries if not entry.name.startswith(".") and entry.kind != "file"]
        return [self._skill(entry, with_files=with_files) for entry in folders[:MAX_SKILLS]]

    def get(self, name: str) -> Skill:
        """Return one skill.

        Raises:
            UnknownSkill: no skill has this name, or the skill is not usable.
        """
        skills = {skill.name: skill for skill in self.list(with_files=False) if skill.usable}
        if name not in skills:
            raise UnknownSkill(name, tuple(skills))
        return self._skill(FolderEntry(name, "folder"), with_files=True)

    def read(self, name: str, path: str) -> bytes:
        """Return the content of a file of a usable skill.

        Raises:
            UnknownSkill: there is no such skill, or it is not usable.
            SkillUnreadable: the file does not exist or may not be read (a link, a pipe, too large, outside the folder).
        """
        skill = self.get(name)
        try:
            return self._folder.at(skill.name).read(path, MAX_BODY_BYTES if path == BODY else MAX_FILE_BYTES)
        except Refused as exc:
            raise SkillUnreadable(name, path, exc.strerror or exc.why) from exc
        except OSError as exc:
            first_paths = ", ".join(file.path for file in skill.files[:20])
            raise SkillUnreadable(name, path, f"it is not there; there are {first_paths}") from exc

    def findings(self) -> Findings:
        """Return the findings of all skills."""
        return [finding for skill in self.list() for finding in skill.findings]

    def _skill(self, entry: FolderEntry, *, with_files: bool) -> Skill:
        name, shown_path = entry.name, f"{SKILLS_FOLDER}/{entry.name}"
        folder = self._folder.at(name)
        try:
            content = folder.read(BODY, MAX_BODY_BYTES)
            text = content.decode("utf-8-sig").replace("\r\n", "\n")
        except (OSError, UnicodeDecodeError) as exc:
            return Skill(name, "", {}, "", (), (_unreadable(shown_path, exc),))
        front, body, findings = read_front_matter(text, f"{shown_path}/{BODY}")
        findings = [*findings, *_check_fields(name, front, text, f"{shown_path}/{BODY}")]
        files = list(_files(folder, f"{shown_path}/", findings)) if with_files else []
        description = clean_line(str(front.get("description") or ""))[:MAX_DESCRIPTION]
        return Skill(name, description, front, body, tuple(files), tuple(findings))


def _unreadable(shown_path: str, exc: Exception) -> Finding:
    if isinstance(exc, UnicodeDecodeError):
        reason = f"it is not UTF-8 at byte {exc.start}"
    elif isinstance(exc, FileNotFoundError):
        reason = "it is not there"
    else:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or type(exc).__name__
    return Finding(f"{shown_path}/{BODY}", 1, 1, "error", "skill-unreadable", f"{BODY} cannot be read: {reason}", _COPY)


_COPY: Final = f"put a folder with a text file {BODY} here, copies and no links"


def _files(folder: Folder, shown_path: str, findings: Findings) -> Iterator[SkillFile]:
    """Yield the files of a skill in path order. Other entries and files that are too large become findings."""
    entries: list[FolderEntry] = []
    try:
        entries = list(islice((entry for entry in folder.walk(hidden=False) if entry.kind != "folder"), MAX_FILES + 1))
    except OSError as exc:
        findings.append(_warn(shown_path, "skill-files", f"its files cannot be listed: {exc.strerror}", _COPY))
    if len(entries) > MAX_FILES:
        findings.append(_warn(shown_path, "skill-files", f"only {MAX_FILES} files count", "split the skill"))
    room = MAX_SKILL_BYTES
    for entry in sorted(entries[:MAX_FILES], key=lambda item: item.path):
        if entry.status is None:
            findings.append(
                _warn(f"{shown_path}{entry.path}", "skill-link", f"it is a {entry.kind}: it is not read", _COPY)
            )
            continue
        try:
            content = folder.read(entry.path, min(MAX_FILE_BYTES, room))
        except OSError as exc:
            findings.append(_warn(f"{shown_path}{entry.path}", "skill-link", f"it is not read: {exc.strerror}", _COPY))
            continue
        room -= len(content)
        yield SkillFile(entry.path, len(content), _digest(content))


def _warn(file: str, code: str, message: str, hint: str, line: int = 1) -> Finding:
    return Finding(file, line, 1, "warning", code, message, hint)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_front_matter(text: str, file: str) -> tuple[Json, str, Findings]:
    """Return the front matter of a ``SKILL.md`` as JSON, the text below it, and its findings."""

    def wrong(line: int, message: str) -> tuple[Json, str, Findings]:
        hint = "begin with --- on a line, then name: … and description: …, then --- on a line"
        return {}, text, [Finding(file, line, 1, "error", "skill-front-matter", message, hint)]

    match = _FRONT.match(text)
    if match is None:
        return wrong(1, "there is no front matter")
    front = match[1]
    if len(front) > MAX_FRONT:
        return wrong(1, f"the front matter has more than {MAX_FRONT} characters")
    try:
        depth = 0
        for event in yaml.parse(front, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a few lines could stand for gigabytes
                return wrong(2, "the front matter refers to itself (an alias)")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:  # the parser's time grows with the square of the nesting depth
                return wrong(event.start_mark.line + 2, f"the front matter nests more than {MAX_DEPTH} levels")
        value = yaml.safe_load(front)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 2 if exc.problem_mark else 2
        return wrong(line, f"the front matter is no YAML: {exc.problem}")
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as exc:
        return wrong(2, f"the front matter is no YAML: {type(exc).__name__}")
    if not isinstance(value, dict):
        return wrong(2, "the front matter holds no names with values")
    return _as_json(value), text[match.end() :].strip(), []


def _as_json(value: Json) -> Json:
    """Return a YAML value with only what JSON has: no dates, no lone surrogates and no infinite numbers."""
    text = json.dumps(value, default=str, skipkeys=True, ensure_ascii=False)
    plain = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    document: Json = json.loads(plain, parse_constant=str)
    return document


def _check_fields(name: str, front: Json, text: str, file: str) -> Iterator[Finding]:
    if not front:
        return

    def make_finding(severity: Severity, field: str, code: str, message: str, hint: str) -> Finding:
        lines = text.splitlines()
        line = next((number for number, line_text in enumerate(lines, 1) if line_text.startswith(f"{field}:")), 1)
        return Finding(file, line, 1, severity, code, message, hint)

    if len(name) > NAME_CHARS or not _NAME.fullmatch(name):
        hint = f"rename the folder: 1 to {NAME_CHARS} of a-z, 0-9, single hyphens between them"
        yield make_finding("error", "name", "skill-name", f"{name!r} cannot be the name of a skill", hint)
    elif front.get("name") != name:
        yield make_finding(
            "warning", "name", "skill-name", f"its name is not that of its folder, {name!r}", f"name: {name}"
        )
    elif _RESERVED.search(name):
        yield make_finding("warning", "name", "skill-name", "some hosts refuse this name", "leave out names of vendors")
    description = front.get("description")
    if not isinstance(description, str) or not clean_line(description):
        hint = "say what the skill does and when it is used"
        yield make_finding("error", "description", "skill-description", "there is no description", hint)
    elif len(description) > MAX_DESCRIPTION:
        message = f"the description has more than {MAX_DESCRIPTION} characters; the rest is not shown"
        yield make_finding("warning", "description", "skill-description", message, "shorten it")
    elif re.search(r"<[^>]{1,200}>", description):
        yield make_finding("warning", "description", "skill-description", "it holds a tag", "some hosts refuse tags")


def clean_line(text: str) -> str:
    """Return a text as one line, without tags and invisible characters."""
    plain = re.sub(r"<[^<>]{0,200}>", " ", text)
    plain = "".join(char if unicodedata.category(char) not in _HIDDEN else " " for char in plain)
    return " ".join(plain.split())


def role_as_skill(role: str, summary: str, text: str) -> tuple[str, str]:
    """Return a role as a skill: the skill's name and its ``SKILL.md``.

    ``summary``: the role's one-line summary. ``text``: the whole role with its references inlined.
    """
    folded = unicodedata.normalize("NFKD", role).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[:NAME_CHARS].strip("-")
    if not name:  # an id in another script
        name = f"role-{hashlib.sha256(role.encode()).hexdigest()[:8]}"
    about = clean_line(summary) or f"The role {role}."
    description = f"Act as the role {role}. {about}"[:MAX_DESCRIPTION]
    front = yaml.safe_dump(
        {"name": name, "description": description, "metadata": {"role": role}},
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
    )
    return name, f"---\n{front}---\n\n{text.strip()}\n"
