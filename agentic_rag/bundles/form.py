"""What a bundle is: its members' names, its manifest, and the bounds of both. Pure.

Owns which names a member may have, on any system that unpacks it, and what becomes of a name that no bundle may hold.
A bundle holds nothing of its own time and place: no id, no date, no version of the program, so that what was imported
is exported again as the same bytes.
"""

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from agentic_rag.bundle_errors import BundleDamaged, BundleRefused, BundleTooLarge, BundleTooNew
from agentic_rag.forms import nests_deeper
from agentic_rag.json_form import Json, to_json
from mcp_servers.promptx.dpml import KINDS
from mcp_servers.promptx.ids import ID

FORMAT = "agentic-rag domain bundle"
VERSION = 1
"""Of the newest form this program writes and reads."""
MANIFEST, DOMAIN, SERVERS = "bundle.json", "domain.json", "mcp-servers.json"
PROMPT, ROLES, SKILLS, MEMORIES, DOCUMENTS = "prompt/", "roles/", "skills/", "memories/", "documents/"
FOLDERS = (PROMPT, ROLES, SKILLS, MEMORIES, DOCUMENTS)
_ROLE_ENDINGS = tuple(f".{kind}.md" for kind in KINDS)
_ID_ENDINGS = (*_ROLE_ENDINGS, ".json")
"""Of files whose names are ids: of roles' files and memories."""

MAX_MEMBERS = 50_000
MAX_NAME = 1024
"""Bytes of a member's name, and `MAX_PART` of what stands between two slashes."""
MAX_PART = 240
MAX_PARTS = 24
MAX_JSON = 16 * 2**20
"""Bytes of a member that is read into memory."""
MAX_TEXT = 2**20
"""Bytes of a prompt component, a role's file or a skill's."""
MAX_MEMORY = 128 * 2**20
MAX_LEVELS = 64


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A member as the manifest lists it; ``size`` in bytes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class NeededSecret:
    """A value that is not in a bundle: the secret's ``name`` as the entry of ``server`` refers to it."""

    name: str
    server: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The first member: what else there is, and what is asked for."""

    secrets: tuple[NeededSecret, ...]
    files: tuple[BundleFile, ...]

    def to_bytes(self) -> bytes:
        """Return the member's bytes."""
        return pretty({"format": FORMAT, "version": VERSION, **to_json(self)})


def pretty(value: object) -> bytes:
    """Return JSON as a person reads it, and always the same bytes of the same value."""
    return (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode("utf-8", "backslashreplace")


def read_manifest(data: bytes) -> Manifest:
    """Return the manifest of a member's bytes.

    Raises:
        BundleTooNew: a newer program wrote it.
        BundleDamaged, BundleRefused: it is none.
    """
    document = read_object(MANIFEST, data)
    version = document.get("version")
    if document.get("format") != FORMAT or not isinstance(version, int):
        raise BundleDamaged("it is no bundle of a domain: its bundle.json is another's")
    if version > VERSION:
        raise BundleTooNew(str(version))
    files = [_read_file(each) for each in _list(document, "files")]
    secrets = [_read_secret(each) for each in _list(document, "secrets")]
    return Manifest(tuple(secrets), tuple(files))


def read_object(path: str, data: bytes) -> Json:
    """Return the JSON object that a member holds.

    Raises:
        BundleDamaged: it is none.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise BundleDamaged(f"{path} is no JSON: {exc}") from exc
    if not isinstance(value, dict) or nests_deeper(value, MAX_LEVELS):
        raise BundleDamaged(f"{path} is no JSON object, or one of more than {MAX_LEVELS} levels")
    return value


def _list(document: Json, key: str) -> list[Any]:
    found = document.get(key)
    if not isinstance(found, list):
        raise BundleDamaged(f"{MANIFEST}: {key} is no list")
    return found


def _read_file(each: object) -> BundleFile:
    match each:
        case {"path": str(path), "size": int(size), "sha256": str(sha256), **rest} if not rest and size >= 0:
            return BundleFile(path, size, sha256)
    raise BundleDamaged(f"{MANIFEST}: an entry of files is none: path, size and sha256 are expected")


def _read_secret(each: object) -> NeededSecret:
    match each:
        case {"name": str(name), "server": str(server), **rest} if not rest:
            return NeededSecret(name, server)
    raise BundleDamaged(f"{MANIFEST}: an entry of secrets is none: name and server are expected")


def check_paths(paths: Iterable[str]) -> None:
    """Refuse names that lead out of a folder, mean something to a terminal or a system, or meet on some file system.

    Raises:
        BundleRefused: names the first.
        BundleTooLarge: there are too many.
    """
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for number, path in enumerate(paths):
        if number >= MAX_MEMBERS:
            raise BundleTooLarge(f"it has more than {MAX_MEMBERS} members")
        if (problem := problem_of(path)) is not None:
            raise BundleRefused(f"the name {path[:200]!a} {problem}")
        key = fold(path)
        if key in seen:
            raise BundleRefused(f"the names {seen[key][:200]!a} and {path[:200]!a} are one on some systems")
        seen[key] = path
        for at, char in enumerate(path):
            if char == "/":
                folders.setdefault(fold(path[:at]), path)
    for key, path in seen.items():
        if key in folders:
            raise BundleRefused(f"{path[:200]!a} is a file, and a folder in {folders[key][:200]!a}")


def fold(path: str) -> str:
    """Return what two names share that some file system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def problem_of(path: str) -> str | None:
    """Return why a member may not have a name; None when it may."""
    if path in (MANIFEST, DOMAIN, SERVERS):
        return None
    if path.startswith("/") or "\\" in path or path[1:2] == ":":
        return "leads out of its folder"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "leads out of its folder"
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
    return _find_misplacement(path, parts)


def _find_misplacement(path: str, parts: list[str]) -> str | None:
    """Return why there is nothing of this name in a bundle."""
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
    """Return how many bytes a member may have; None: as many as a document may."""
    if path.startswith(DOCUMENTS):
        return None
    return MAX_MEMORY if path.startswith(MEMORIES) else MAX_TEXT if "/" in path else MAX_JSON


def portable_names(paths: Iterable[str]) -> dict[str, str]:
    """Return for each name of a folder the one that it has in a bundle: itself, if a bundle may hold that.

    Two that are one on some systems, which differ in case alone for example, get a number.
    """
    taken: set[str] = set()
    names: dict[str, str] = {}
    for path in sorted(paths):
        plain = "/".join(_portable_part(part) for part in path.split("/"))
        number, name = 2, plain
        while fold(name) in taken:
            name, number = _with_number(plain, number), number + 1
        taken.add(fold(name))
        names[path] = name
    return names


def _with_number(name: str, number: int) -> str:
    """Return a name with a number before its ending; what is an id stays one."""
    for ending in _ID_ENDINGS:
        if name.endswith(ending):
            return f"{name.removesuffix(ending)}-{number}{ending}"
    stem, dot, ending = name.rpartition(".")
    if not dot or "/" in ending:
        return f"{name} ({number})"
    return f"{stem} ({number}).{ending}"


def _portable_part(part: str) -> str:
    shown = "".join("_" if char in "\\:" or unicodedata.category(char)[0] == "C" else char for char in part)
    if shown.startswith("."):
        shown = f"_{shown[1:]}"
    if len(shown.encode()) <= MAX_PART:
        return shown
    stem, dot, ending = shown.rpartition(".")
    room = MAX_PART - len(ending.encode()) - 1
    if not dot or room < 1:
        return shown.encode()[:MAX_PART].decode(errors="ignore")
    return f"{stem.encode()[:room].decode(errors='ignore')}.{ending}"
