"""One role's memory: remember, recall, browse, delete, export, import.

The blocking API the server, the CLI and the REST layer share; call it in a worker thread. Owns the validation of what
enters a memory, the layout of scopes and the shape of what comes out. Deliberately knows nothing of MCP, of roles'
texts or of who is allowed to do what.
"""

import random
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

from mcp_servers.promptx import snapshot
from mcp_servers.promptx.errors import BadEngram, BadRecall, BadScope, MemoryUnavailable
from mcp_servers.promptx.ids import check_id, is_plain
from mcp_servers.promptx.ledger import DATABASE, Engram, Ledger
from mcp_servers.promptx.live import SHELF, LiveFolder
from mcp_servers.promptx.network import keywords
from mcp_servers.promptx.recall import (
    MODES,
    TYPE_WEIGHT,
    Edge,
    Fallback,
    Mind,
    Query,
    choose_centres,
    collect,
    mindmap,
    rank,
    spread,
)

Scope = Literal["domain", "user"]

MAX_BATCH: Final = 100
MAX_CONTENT: Final = 65_536
"""Characters of one engram: more is a document, and documents have their own search."""
MAX_SCHEMA: Final = 8_192
MAX_QUERY: Final = 2_000
MAX_FOLDER_NAME: Final = 240
"""Bytes of an encoded user id; file systems stop at 255."""
MAX_CUES: Final = 256
OVERVIEW_ENGRAMS: Final = 50
OVERVIEW_CHARS: Final = 4_000
"""Budget of the overview: about a thousand tokens of what the role knows best."""

_PLAIN_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def memory_folder(workspace: Path, scope: str, user: str | None, role: str) -> Path:
    """Where a role's memory lives.

    `domain` is the layout of a PromptX home: `.promptx/cognition/{role}`. `user` is
    `.promptx/cognition.user/{user}/{role}`, the user id percent-encoded so that any two ids give two folders, also on
    file systems that fold case; `folder_user` reverses it.

    Raises:
        BadScope: unknown scope, or a user id that is empty, too long or tries to be a path.
        BadRoleId: the role is no id.
    """
    role = unicodedata.normalize("NFC", check_id(role))
    if scope == "domain":
        return workspace / ".promptx" / "cognition" / role
    if scope == "user":
        return workspace / ".promptx" / "cognition.user" / _user_folder(user or "") / role
    raise BadScope("scope", scope, "must be 'domain' or 'user'.")


def _user_folder(user: str) -> str:
    if not user or not user.isprintable() or user in (".", "..") or "/" in user or "\\" in user:
        raise BadScope("user", user, "must be printable text without '/' or '\\', and not '.' or '..'.")
    name = "".join(chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02X}" for byte in user.encode())
    if len(name) > MAX_FOLDER_NAME:
        raise BadScope("user", user, f"is too long: {len(name)} bytes encoded, {MAX_FOLDER_NAME} allowed.")
    return name


def folder_user(name: str) -> str:
    """The user id a folder of `cognition.user` stands for."""
    return unquote(name)


@dataclass(frozen=True, slots=True)
class Recollection:
    """What a recall found.

    `engrams` are those of the activated cues, ranked; `overview` are the strongest of the whole memory and only
    filled when the hubs of the network were shown because the query named no cue, or nothing was asked.
    """

    mind: Mind
    center: str | None
    mode: str
    fallback: Fallback | None
    engrams: tuple[Engram, ...]
    overview: tuple[Engram, ...]
    mindmap: tuple[str, ...]

    @property
    def edges(self) -> Sequence[Edge]:
        """The recorded steps of the activation."""
        return self.mind.edges


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a memory, newest first; `total` counts all engrams that match."""

    total: int
    engrams: tuple[Engram, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """Outcome of an import: engrams added, and one reason per engram that could not be."""

    added: int
    skipped: tuple[str, ...]


class Memory:
    """The memory in one folder. Cheap to make; safe to use from several threads and processes.

    Every method may raise MemoryUnavailable: locked for too long, disk full, read-only or corrupt files. Nothing is
    half saved then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def exists(self) -> bool:
        """Whether anything was ever remembered here."""
        return (self.folder / DATABASE).is_file()

    def _live(self) -> LiveFolder:
        return SHELF.folder(self.folder)

    def remember(self, batch: Sequence[Mapping[str, Any]], now_ms: int) -> list[Engram]:
        """Save a batch of `{content, schema, strength, type}`, all or nothing; returns the engrams as saved.

        Raises:
            BadEngram: one of them is invalid; names its index.
        """
        if not batch:
            raise BadEngram(0, "the batch is empty; give at least one engram.")
        if len(batch) > MAX_BATCH:
            raise BadEngram(MAX_BATCH, f"a batch has at most {MAX_BATCH} engrams.")
        engrams = [_checked(index, item, now_ms) for index, item in enumerate(batch)]
        live = self._live()
        live.insert(engrams)
        SHELF.soil(live)
        return engrams

    def recall(self, query: Query, mode: str, now_ms: int) -> Recollection:
        """Activate the network from `query` (text, a list of cues, or None for the overview) and rank what it finds.

        Raises:
            BadRecall: mode or query is invalid.
        """
        if mode not in MODES:
            raise BadRecall("mode", f"must be one of {', '.join(MODES)}, not {ascii(mode)[:40]}.")
        _check_query(query)
        live = self._live()
        with live.lock:
            network = live.network()
            centres, fallback = choose_centres(network, query)
            mind = spread(network, centres, MODES[mode])
            center = centres[0] if centres else None
            engrams: list[Engram] = []
            if query is not None and fallback != "dmn":  # PromptX shows the map alone then; so it is recorded
                ids = rank(collect(network, mind), live.traces, MODES[mode].limit, now_ms)
                engrams = live.ledger.fetch(ids)
            overview = _overview(live) if query in (None, "null") or fallback == "dmn" else ()
            live.recalled(network, mind, center, now_ms)
        return Recollection(mind, center, mode, fallback, tuple(engrams), overview, tuple(mindmap(mind)))

    def browse(self, offset: int = 0, limit: int = 50, q: str = "") -> Page:
        """Engrams newest first, those whose content or keywords contain `q` (ASCII letters in any case)."""
        live = self._live()
        with live.lock:
            total, engrams = live.ledger.page(max(0, offset), max(0, limit), q)
        return Page(total, tuple(engrams))

    def delete(self, ids: Sequence[str]) -> int:
        """Forget engrams by id; returns how many there were. Unknown ids are no error."""
        live = self._live()
        removed = live.delete(ids)
        if removed:
            live.save()  # now, not soon: the owner wants the keywords gone from the file too
            (self.folder / snapshot.STATE).unlink(missing_ok=True)
        return removed

    def export(self) -> list[dict[str, Any]]:
        """Every engram, oldest first, as JSON-ready objects."""
        live = self._live()
        with live.lock:
            return [engram_json(engram) for engram in live.ledger.all()]

    def import_(self, folder: Path) -> Imported:
        """Add the engrams of a PromptX folder (`engrams.db`, and recall frequencies from `network.json`).

        Engrams whose id is already here are left as they are; ids, times and strengths are kept.
        """
        if not (folder / DATABASE).is_file():
            raise MemoryUnavailable(folder, f"there is no {DATABASE} in the folder to import")
        source = Ledger(folder.absolute(), read_only=True)
        good: list[Engram] = []
        skipped: list[str] = []
        try:
            for number, engram in enumerate(source.all()):
                try:
                    good.append(_imported(number, engram))
                except BadEngram as exc:
                    skipped.append(f"{engram.id[:40]}: {exc.reason}")
        finally:
            source.close()
        live = self._live()
        added = live.insert(good)
        live.merge_frequencies(snapshot.read_frequencies(folder / snapshot.NETWORK) or {})
        live.save()
        return Imported(added, tuple(skipped))

    def flush(self) -> None:
        """Write `network.json` now instead of within a second."""
        self._live().save()


def engram_json(engram: Engram) -> dict[str, Any]:
    """The shape clients get: `{id, content, type, strength, createdAt, cues}`, createdAt in milliseconds."""
    return {
        "id": engram.id,
        "content": engram.content,
        "type": engram.type,
        "strength": engram.strength,
        "createdAt": engram.timestamp,
        "cues": list(engram.cues),
    }


def _overview(live: LiveFolder) -> tuple[Engram, ...]:
    chosen: list[Engram] = []
    left = OVERVIEW_CHARS
    for engram in live.ledger.strongest(OVERVIEW_ENGRAMS):
        left -= len(engram.content)
        if chosen and left < 0:
            break
        chosen.append(engram)
    return tuple(chosen)


def _check_query(query: Query) -> None:
    words = [query] if isinstance(query, str) else list(query or ())
    if sum(map(len, words)) > MAX_QUERY:
        raise BadRecall("query", f"has more than {MAX_QUERY} characters; name a few cues.")
    if any(not is_plain(word) for word in words):
        raise BadRecall("query", "contains NUL or a lone surrogate; send plain Unicode text.")


def _checked(index: int, item: Mapping[str, Any], now_ms: int) -> Engram:
    """One engram as the model sent it, validated. Error texts say what would be right."""
    if not isinstance(item, Mapping):
        raise BadEngram(index, "must be an object {content, schema, strength, type}.")
    content, schema, strength, kind = (item.get(name) for name in ("content", "schema", "strength", "type"))
    if not isinstance(content, str) or not content.strip():
        raise BadEngram(index, "content must be text that is not empty.")
    if not isinstance(schema, str):
        raise BadEngram(index, "schema must be text: keywords separated by spaces, ' - ' or newlines.")
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength <= 1:
        raise BadEngram(index, "strength must be a number from 0 to 1.")
    suffix = "".join(random.choices(_BASE36, k=9))  # an id, not a secret
    words = tuple(keywords(schema))
    return _valid(index, Engram(f"{now_ms}_{suffix}", content, words, str(kind), now_ms, float(strength)), len(schema))


def _imported(index: int, engram: Engram) -> Engram:
    return _valid(index, engram, sum(map(len, engram.cues)))


def _valid(index: int, engram: Engram, schema_length: int) -> Engram:
    if engram.type not in TYPE_WEIGHT:
        raise BadEngram(index, f"type must be ATOMIC, LINK or PATTERN, not {ascii(engram.type)[:40]}.")
    if not 0 <= engram.strength <= 1:
        raise BadEngram(index, "strength must be a number from 0 to 1.")
    if len(engram.content) > MAX_CONTENT:
        raise BadEngram(index, f"content has {len(engram.content)} characters, {MAX_CONTENT} are allowed.")
    if schema_length > MAX_SCHEMA or len(engram.cues) > MAX_CUES:
        raise BadEngram(index, f"schema is too long: {MAX_CUES} keywords and {MAX_SCHEMA} characters are allowed.")
    if len(engram.cues) < 2:
        # PromptX drops such an engram without a word; then the model believes it was saved.
        raise BadEngram(index, f"schema gives {len(engram.cues)} keyword(s), at least 2 are needed.")
    if not all(map(is_plain, (engram.content, engram.id, *engram.cues))):
        raise BadEngram(index, "content or schema contains NUL or a lone surrogate; send plain Unicode text.")
    return engram
