"""The format of a bundle: its members' names, its manifest, and their limits. Pure.

This module defines the permitted names of members, which are valid on any system that unpacks the bundle, and converts
other names. A bundle holds nothing specific to its time and place: no id, no date, no version of the program. An
imported domain is therefore exported again as the same bytes.
"""

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from agentic_rag.archive.files import leads_out
from agentic_rag.base.bundle_errors import BundleDamaged, BundleRefused, BundleTooLarge, BundleTooNew
from agentic_rag.base.forms import Form, IsoDate, nests_deeper
from agentic_rag.base.json_form import Absent, Json, to_json
from agentic_rag.directory.document_labels import Labels
from mcp_servers.promptx.dpml import KINDS
from mcp_servers.promptx.ids import ID

FORMAT = "agentic-rag domain bundle"
VERSION = 1
"""The newest format version that this program writes and reads."""
MANIFEST, DOMAIN, SERVERS = "bundle.json", "domain.json", "mcp-servers.json"
CASES = "cases.json"
"""The member with a domain's evaluation cases; missing if it has none."""
LINES = "context-lines.json"
"""The member with the context lines of a domain's documents; missing if there are none."""
NOTIFICATIONS = "notifications.json"
"""The member with a domain's endpoints, schedules and sources; missing if it has none."""
PROMPT, ROLES, SKILLS, MEMORIES, DOCUMENTS = "prompt/", "roles/", "skills/", "memories/", "documents/"
FOLDERS = (PROMPT, ROLES, SKILLS, MEMORIES, DOCUMENTS)
_ROLE_ENDINGS = tuple(f".{kind}.md" for kind in KINDS)
_ID_ENDINGS = (*_ROLE_ENDINGS, ".json")
"""Endings of files whose names are ids: role files and memories."""

MAX_MEMBERS = 50_000
MAX_NAME = 1024
"""Maximum size of a member's name in bytes; `MAX_PART` limits each part between slashes."""
MAX_PART = 240
MAX_PARTS = 24
MAX_JSON = 16 * 2**20
"""Maximum size in bytes of a member that is read into memory."""
MAX_TEXT = 2**20
"""Maximum size in bytes of a prompt component, a role file or a skill file."""
MAX_MEMORY = 128 * 2**20
MAX_LEVELS = 64


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A member as the manifest lists it; ``size`` in bytes."""

    path: str
    size: int
    sha256: str
    labels: Absent[tuple[str, ...]] = None
    """A document's own labels; None: it has none."""
    date: Absent[str] = None
    """The date that a document was given, `YYYY-MM-DD`."""
    review: Absent[str] = None
    """The day until which a document should be reviewed, `YYYY-MM-DD`."""


class ManifestDocument(Form):
    """The optional members of a document in the manifest; see `BundleFile`."""

    labels: Labels | None = None
    date: IsoDate | None = None
    review: IsoDate | None = None


@dataclass(frozen=True, slots=True)
class NeededSecret:
    """A value that a bundle lacks: the secret's ``name`` as the entry of ``server`` refers to it."""

    name: str
    server: str


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """The first member: a list of the other members and of the required secrets."""

    secrets: tuple[NeededSecret, ...]
    files: tuple[BundleFile, ...]

    def to_bytes(self) -> bytes:
        """Return the member's bytes."""
        return pretty({"format": FORMAT, "version": VERSION, **to_json(self)})


def pretty(value: object) -> bytes:
    """Return human-readable JSON; equal values give equal bytes."""
    return (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode("utf-8", "backslashreplace")


def read_manifest(data: bytes) -> BundleManifest:
    """Return the manifest of a member's bytes.

    Raises:
        BundleTooNew: a newer program wrote the manifest.
        BundleDamaged, BundleRefused: the bytes are no manifest.
    """
    document = read_object(MANIFEST, data)
    version = document.get("version")
    if document.get("format") != FORMAT or not isinstance(version, int):
        raise BundleDamaged("it is no bundle of a domain: its bundle.json is another's")
    if version > VERSION:
        raise BundleTooNew(str(version))
    files = [_read_file(item) for item in _list(document, "files")]
    secrets = [_read_secret(item) for item in _list(document, "secrets")]
    return BundleManifest(tuple(secrets), tuple(files))


def read_object(path: str, data: bytes) -> Json:
    """Return the JSON object of a member.

    Raises:
        BundleDamaged: the member is no JSON object, or is nested too deeply.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise BundleDamaged(f"{path} is no JSON: {exc}") from exc
    if not isinstance(value, dict) or nests_deeper(value, MAX_LEVELS):
        raise BundleDamaged(f"{path} is no JSON object, or one of more than {MAX_LEVELS} levels")
    return value


def _list(document: Json, key: str) -> list[Any]:
    items = document.get(key)
    if not isinstance(items, list):
        raise BundleDamaged(f"{MANIFEST}: {key} is no list")
    return items


def _read_file(item: object) -> BundleFile:
    match item:
        case {"path": str(path), "size": int(size), "sha256": str(sha256), **rest} if size >= 0:
            return BundleFile(path, size, sha256, **_read_facts(path, {str(key): value for key, value in rest.items()}))
    raise BundleDamaged(f"{MANIFEST}: an entry of files is none: path, size and sha256 are expected")


def _read_facts(path: str, facts: Json) -> Json:
    """Return the labels and dates of a document. Unknown members and other values are refused.

    A label that was lost would show the document to everyone.
    """
    try:
        return ManifestDocument.model_validate(facts).model_dump(exclude_unset=True) if facts else {}
    except ValidationError as exc:
        raise BundleDamaged(f"{MANIFEST}: {path[:200]!a} has labels or dates of another form") from exc


def _read_secret(item: object) -> NeededSecret:
    match item:
        case {"name": str(name), "server": str(server), **rest} if not rest:
            return NeededSecret(name, server)
    raise BundleDamaged(f"{MANIFEST}: an entry of secrets is none: name and server are expected")


def check_paths(paths: Iterable[str]) -> None:
    """Reject names that lead out of a folder, have special characters, or collide on some file systems.

    Raises:
        BundleRefused: a name is invalid; the error quotes the first one.
        BundleTooLarge: there are too many names.
    """
    paths_by_key: dict[str, str] = {}
    folders: dict[str, str] = {}
    for number, path in enumerate(paths):
        if number >= MAX_MEMBERS:
            raise BundleTooLarge(f"it has more than {MAX_MEMBERS} members")
        if (problem := problem_of(path)) is not None:
            raise BundleRefused(f"the name {path[:200]!a} {problem}")
        key = fold(path)
        if key in paths_by_key:
            raise BundleRefused(f"the names {paths_by_key[key][:200]!a} and {path[:200]!a} are one on some systems")
        paths_by_key[key] = path
        for at, char in enumerate(path):
            if char == "/":
                folders.setdefault(fold(path[:at]), path)
    for key, path in paths_by_key.items():
        if key in folders:
            raise BundleRefused(f"{path[:200]!a} is a file, and a folder in {folders[key][:200]!a}")


def fold(path: str) -> str:
    """Return the form of a name that is equal for names which some file systems treat as the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def problem_of(path: str) -> str | None:
    """Return the reason why a member's name is not permitted, or None."""
    if path in (MANIFEST, DOMAIN, SERVERS, CASES, LINES, NOTIFICATIONS):
        return None
    if leads_out(path) or "\\" in path or path[1:2] == ":":
        return "leads out of its folder"
    parts = path.split("/")
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError:
        return "is no Unicode text"
    if any(unicodedata.category(char)[0] == "C" for char in path):
        return "has control or invisible characters"
    if any(part.startswith(".") for part in parts):
        return "is hidden"
    if len(parts) > MAX_PARTS or sum(map(len, encoded)) + len(parts) > MAX_NAME or max(map(len, encoded)) > MAX_PART:
        return "is too long, or lies too deep"
    return _find_misplacement(parts)


def _find_misplacement(parts: list[str]) -> str | None:
    """Return the reason why a bundle cannot hold this name, or None."""
    folder, name = f"{parts[0]}/", parts[-1]
    if folder not in FOLDERS or len(parts) < 2:
        return "is none that a bundle has"
    if folder == PROMPT and (len(parts) != 2 or not name.lower().endswith(".md")):
        return "is no prompt component: NAME.md is expected"
    if folder == ROLES and not name.endswith(_ROLE_ENDINGS):
        return "is no file of a role: NAME.role.md and the like are expected"
    if folder == SKILLS and len(parts) < 3:
        return "lies in no skill's folder"
    if folder == MEMORIES and (len(parts) != 2 or not name.endswith(".json") or not ID.match(name[:-5])):
        return "is no memory: ROLE.json is expected"
    return None


def limit_of(path: str) -> int | None:
    """Return the maximum size of a member in bytes; None: the limit of documents applies."""
    if path.startswith(DOCUMENTS):
        return None
    return MAX_MEMORY if path.startswith(MEMORIES) else MAX_TEXT if "/" in path else MAX_JSON


def portable_names(paths: Iterable[str]) -> dict[str, str]:
    """Return the name in a bundle for each name of a folder: the same name, if a bundle permits it.

    Names that collide on some systems, for example because they differ only in case, get a number.
    """
    taken_names: set[str] = set()
    names: dict[str, str] = {}
    for path in sorted(paths):
        plain = "/".join(_portable_part(part) for part in path.split("/"))
        number, name = 2, plain
        while fold(name) in taken_names:
            name, number = _with_number(plain, number), number + 1
        taken_names.add(fold(name))
        names[path] = name
    return names


def _with_number(name: str, number: int) -> str:
    """Return a name with a number before its ending; an id stays a valid id."""
    for ending in _ID_ENDINGS:
        if name.endswith(ending):
            return f"{name.removesuffix(ending)}-{number}{ending}"
    stem, dot, ending = name.rpartition(".")
    if not dot or "/" in ending:
        return f"{name} ({number})"
    return f"{stem} ({number}).{ending}"


def _portable_part(part: str) -> str:
    plain = "".join("_" if char in "\\:" or unicodedata.category(char)[0] == "C" else char for char in part)
    if plain.startswith("."):
        plain = f"_{plain[1:]}"
    if len(plain.encode()) <= MAX_PART:
        return plain
    stem, dot, ending = plain.rpartition(".")
    room = MAX_PART - len(ending.encode()) - 1
    if not dot or room < 1:
        return plain.encode()[:MAX_PART].decode(errors="ignore")
    return f"{stem.encode()[:room].decode(errors='ignore')}.{ending}"
