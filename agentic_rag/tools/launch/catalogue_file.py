"""The file format of a launch catalogue: parses TOML tables, or the same as JSON, into entries.

Owns the keys, the slots in templates and the error texts for a file. Pure: reads no file itself.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentic_rag.base.errors import CatalogueProblem
from agentic_rag.tools.launch.catalogue import (
    ArgumentPart,
    CatalogueEntry,
    LineRefusal,
    Package,
    Program,
    Registry,
    SlotKind,
    read_line,
)

_LIMITS = {"open_files", "processes", "file_bytes", "memory_bytes", "cpu_seconds", "disk_bytes"}
_RUNNERS: Mapping[Registry, str] = {"npm": "npx", "pypi": "uvx", "mcpb": "mcpb"}
_SLOT = re.compile(r"\{(path:workspace|text|url)\}(\?|\.\.\.|\*)?")


def parse_catalogue(text: str, source: str) -> tuple[CatalogueEntry, ...]:
    """Return the entries of a catalogue file.

    Raises:
        CatalogueProblem: Names ``source``, the entry and the key.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise CatalogueProblem(f"{source}: {exc}") from exc
    return entries_of(document, source)


def entries_of(document: Mapping[str, Any], source: str) -> tuple[CatalogueEntry, ...]:
    """Return the entries of a parsed catalogue: ``{"entry": [table, …]}``; see `parse_catalogue`."""
    tables = document.get("entry", [])
    if set(document) - {"entry"} or not isinstance(tables, list):
        raise CatalogueProblem(f"{source}: only [[entry]] tables are known")
    by_id: dict[str, CatalogueEntry] = {}
    for number, table in enumerate(tables, 1):
        where = f"{source}: entry {number}"
        try:
            entry = _entry(dict(table))
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise CatalogueProblem(f"{where}: {exc}") from exc
        if entry.id in by_id:
            raise CatalogueProblem(f"{where}: the id {entry.id!r} is taken")
        by_id[entry.id] = entry
    return tuple(by_id.values())


def _entry(table: dict[str, Any]) -> CatalogueEntry:
    ident = _text(table.pop("id"))
    args = tuple(_parts(table.pop("args", [])))
    if any(part.many for part in args[:-1]):
        raise ValueError("only the last argument may be repeated")
    options = {_text(name): _kind(kind) for name, kind in table.pop("options", {}).items()}
    env = {_text(name): _kind(kind) for name, kind in table.pop("env", {}).items()}
    entry = CatalogueEntry(
        id=ident,
        runs=_runs(table),
        args=args,
        options=options,
        env=env,
        fixed={_text(name): _text(value) for name, value in table.pop("set", {}).items()},
        network=_flag(table.pop("network", False)),
        write=_flag(table.pop("write", False)),
        folders=tuple(_text(folder) for folder in table.pop("folders", [])),
        read_only=frozenset(_text(name) for name in table.pop("read_only", [])),
        idempotent=frozenset(_text(name) for name in table.pop("idempotent", [])),
        stateful=_flag(table.pop("stateful", False)),
        limits={_text(name): int(value) for name, value in table.pop("limits", {}).items()},
    )
    if table:
        raise ValueError(f"the key {min(table)!r} is not known")
    if set(entry.limits) - _LIMITS:
        raise ValueError(f"limits are {', '.join(sorted(_LIMITS))}")
    return entry


def _runs(table: dict[str, Any]) -> Package | Program:
    registry = next((key for key in _RUNNERS if key in table), None)
    if registry is None:
        path = _text(table.pop("executable"))
        if not path.startswith("/"):
            raise ValueError("executable: an absolute path is needed")
        files = {path: _text(table.pop("sha256")), **table.pop("files", {})}
        command = _text(table.pop("command", path))
        names = {_text(name): _text(place) for name, place in table.pop("names", {}).items()}
        return Program(path, command, {_text(name): _text(digest).lower() for name, digest in files.items()}, names)
    requested = read_line(_RUNNERS[registry], [_text(table.pop(registry))])
    if isinstance(requested, LineRefusal) or not requested.version:
        raise ValueError(f"{registry}: a package name with an exact version is needed")
    program, integrity = _text(table.pop("program", "")), _text(table.pop("integrity", ""))
    return Package(registry, requested.name, requested.version, program, integrity)


def _parts(words: Sequence[Any]) -> Iterator[ArgumentPart]:
    for word in words:
        slot = _SLOT.fullmatch(_text(word))
        if slot is None:
            yield ArgumentPart("literal", word)
        else:
            many = slot[2] in ("...", "*")
            yield ArgumentPart(_kind("{" + slot[1] + "}"), needed=slot[2] in (None, "..."), many=many)


def _kind(word: Any) -> SlotKind:
    kinds: Mapping[str, SlotKind] = {"": "literal", "{path:workspace}": "path", "{text}": "text", "{url}": "url"}
    if word not in kinds:
        raise ValueError(f"{word!r} is no slot; slots are {{path:workspace}}, {{text}} and {{url}}")
    return kinds[word]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value
