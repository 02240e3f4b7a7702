"""The derived files of one memory: `network.json` and `state.json`, in PromptX's format.

Owns reading and writing these files, which are for PromptX and for people. This package reads only the recall
frequencies, because everything else can be derived from the engrams. A reader never sees half a file. The files are
written without fsync: both can be lost without losing a memory.

`network.json` has one field more than PromptX's: `newestEngram`, the id of the newest included engram.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from mcp_servers.promptx.errors import MemoryUnavailable
from mcp_servers.promptx.ledger import Tip, file_lock, has_memory
from mcp_servers.promptx.network import Network, RecallActivation
from mcp_servers.promptx.yielding import giving_way
from mcp_servers.safe_files import Folder

NETWORK: Final = "network.json"
STATE: Final = "state.json"
NETWORK_LOCK: Final = ".network.lock"
VERSION: Final = "1.0"
ANCHOR_VERSION: Final = "1.0.0"
WORDS_AT_ONCE: Final = 16
"""Words that are written between two pauses for other threads; a remember needs ten such pauses."""
LINES_AT_ONCE: Final = 4_096
"""Lines that are read between two pauses for other threads."""

MAX_BYTES: Final = 1 << 30
"""Maximum size of a network file. A file with 100 000 engrams has 40 MB."""

_text: Final = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """The parts of a network file that are read: the recall frequency of every cue, and the newest included engram.

    `newest` is None in a file that PromptX wrote.
    """

    frequencies: dict[str, int]
    newest: str | None


def signature(folder: Folder) -> tuple[int, int, int] | None:
    """Return a value that changes when another process replaces the network file, or None if there is no file."""
    try:
        status = folder.check(NETWORK)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def read_network(folder: Folder) -> NetworkFile | None:
    """Return a network file that PromptX or this package wrote, or None if it is missing or damaged.

    Edges and members are not read, because building them from the engrams is faster than parsing them. Both programs
    indent the file in the same way, so it is read line by line: parsing 40 MB in one JSON call would hold the
    interpreter lock, and so block every event loop, for half a second. A file with another indentation is parsed as a
    whole.
    """
    try:
        with io.TextIOWrapper(folder.open(NETWORK, MAX_BYTES), "utf-8") as lines:
            scanned = _scan(lines)
        return _parse(folder.read(NETWORK, MAX_BYTES)) if scanned is None else scanned
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # the engrams are the source of truth, so any damage is harmless


def _scan(lines: Iterator[str]) -> NetworkFile | None:
    """Return a file that is indented by two spaces, or None if the file is indented differently or ends early."""
    frequencies: dict[str, int] = {}
    newest: str | None = None
    word = ""
    line = ""
    for line in giving_way(lines, LINES_AT_ONCE):
        if line.startswith('    "'):
            word = json.loads(line.strip().removesuffix(": {"))
        elif line.startswith('      "recallFrequency": '):
            frequencies[word] = int(line.strip().removesuffix(",").partition(": ")[2])
        elif line.startswith('  "newestEngram": '):
            newest = json.loads(line.strip().removesuffix(",").partition(": ")[2])
    return NetworkFile(frequencies, newest) if frequencies and line.rstrip() == "}" else None


def _parse(text: bytes) -> NetworkFile:
    document = json.loads(text)
    frequencies = {word: int(cue.get("recallFrequency") or 0) for word, cue in document["cues"].items()}
    return NetworkFile(frequencies, document.get("newestEngram"))


def write_network(folder: Folder, network: Network, words: Sequence[str], newest: str, now_ms: int) -> None:
    """Write `words` of the network in the form of `JSON.stringify(…, null, 2)`. The caller holds the network's lock.

    Another thread may add to the network or drop it meanwhile, because the edges of a word are copied atomically. The
    next write corrects surplus or missing entries.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    folder.write(NETWORK, _network_text(network, words, newest, now_ms), durable=False, sweep=True)


def _network_text(network: Network, words: Sequence[str], newest: str, now_ms: int) -> Iterator[bytes]:
    yield f'{{\n  "version": "{VERSION}",\n  "timestamp": {now_ms},\n'.encode()
    yield f'  "newestEngram": {_text(newest)},\n  "cues": {{'.encode()
    for number, word in enumerate(giving_way(words, WORDS_AT_ONCE)):
        yield (",\n" if number else "\n").encode() + _entry(word, network).encode()
    yield b"\n  }\n}" if words else b"}\n}"  # `JSON.stringify` writes an empty object without a line break


def _entry(word: str, network: Network) -> str:
    edges = [
        f'        {{\n          "target": {_text(target)},\n          "weight": {_number(weight)}\n        }}'
        for target, weight in list(network.edges.get(word, {}).items())
    ]
    ids = [f"        {_text(key)}" for key in network.engrams_of(word)]
    return (
        f'    {_text(word)}: {{\n      "word": {_text(word)},\n      "connections": {_array(edges)},\n'
        f'      "recallFrequency": {network.frequency.get(word, 0)},\n      "memories": {_array(ids)}\n    }}'
    )


def _array(items: list[str]) -> str:
    return "[\n" + ",\n".join(items) + "\n      ]" if items else "[]"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def write_state(folder: Folder, mind: RecallActivation, center: str | None, now_ms: int) -> None:
    """Write the last activation, from which PromptX resumes.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    state = {
        "centerWord": center,
        "timestamp": now_ms,
        "roleId": folder.name,
        "activatedCues": mind.activated,
        "connections": [{"from": edge.source, "to": edge.target, "weight": _plain(edge.weight)} for edge in mind.edges],
        "metadata": {
            "nodeCount": len(mind.depth),
            "connectionCount": len(mind.edges),
            "anchorVersion": ANCHOR_VERSION,
        },
    }
    folder.write(STATE, [json.dumps(state, ensure_ascii=False, indent=2).encode()], durable=False)


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value


class NetworkFiles:
    """``network.json`` and ``state.json`` in a memory's folder.

    Implements `mcp_servers.promptx.memory_cache.RecallCounts`.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._signature: tuple[int, int, int] | None = None

    def is_there(self) -> bool:
        return has_memory(self._folder)

    def lock(self) -> AbstractContextManager[None]:
        return file_lock(self._folder, NETWORK_LOCK)

    def read(self) -> NetworkFile | None:
        self._signature = signature(self._folder)
        return read_network(self._folder)

    def read_changed(self) -> NetworkFile | None:
        if signature(self._folder) == self._signature:
            return None
        # The signature is taken over by `write`, which follows. If that fails, the file is read again.
        return read_network(self._folder)

    def write(
        self, network: Network, words: Sequence[str], tip: Tip, new_counts: Mapping[str, int], now_ms: int
    ) -> None:
        try:
            write_network(self._folder, network, words, tip.id, now_ms)
        except OSError as exc:
            reason = f"{NETWORK} was not written ({exc.strerror})"
            raise MemoryUnavailable(self._folder.path, reason) from exc
        self._signature = signature(self._folder)

    def write_state(self, mind: RecallActivation, center: str | None, now_ms: int) -> None:
        write_state(self._folder, mind, center, now_ms)

    def remove_state(self) -> None:
        self._folder.remove(STATE)
