"""The derived files of one memory: `network.json` and `state.json`, in PromptX's own format.

Owns reading and writing them. They are written for PromptX and for people; we ourselves read back only the recall
frequencies, because everything else follows from the engrams. A reader never sees half a file. No fsync: both files can
be lost without losing a memory.

`network.json` carries one field more than PromptX's: `newestEngram`, the id of the newest engram it includes.
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
"""Written before other threads have their turn: a remember asks for it ten times."""
LINES_AT_ONCE: Final = 4_096
"""Read before other threads have their turn."""

MAX_BYTES: Final = 1 << 30
"""Of a network file that is read; one of 100 000 engrams has 40 MB."""

_text: Final = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """What is read back of a network file: the recall frequency of every cue, and the newest engram it includes.

    `newest` is None in a file that PromptX wrote.
    """

    frequencies: dict[str, int]
    newest: str | None


def signature(folder: Folder) -> tuple[int, int, int] | None:
    """A value that changes when another process replaces the network file; None when there is none."""
    try:
        status = folder.check(NETWORK)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def read_network(folder: Folder) -> NetworkFile | None:
    """Read a network file, PromptX's or ours; None if it is absent or damaged.

    Edges and members are not read: they follow from the engrams, and making them anew is quicker than parsing them.
    The file is read line by line, as both programs indent it: one JSON call over 40 MB would hold the interpreter, and
    with it every event loop, for half a second. A file indented otherwise is parsed whole.
    """
    try:
        with io.TextIOWrapper(folder.open(NETWORK, MAX_BYTES), "utf-8") as lines:
            scanned = _scan(lines)
        return _parse(folder.read(NETWORK, MAX_BYTES)) if scanned is None else scanned
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # whatever is wrong with it, the engrams are the truth


def _scan(lines: Iterator[str]) -> NetworkFile | None:
    """A file indented by two spaces; None if it is not, or ends early."""
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
    """Write `words` of the network, as `JSON.stringify(…, null, 2)` would. The caller holds the network's lock.

    May run while another thread adds to the network, or drops it for a new one: a word's edges are copied at once. What
    is then too much or missing in the file is put right by the next write.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
    """
    folder.write(NETWORK, _network_text(network, words, newest, now_ms), durable=False, sweep=True)


def _network_text(network: Network, words: Sequence[str], newest: str, now_ms: int) -> Iterator[bytes]:
    yield f'{{\n  "version": "{VERSION}",\n  "timestamp": {now_ms},\n'.encode()
    yield f'  "newestEngram": {_text(newest)},\n  "cues": {{'.encode()
    for number, word in enumerate(giving_way(words, WORDS_AT_ONCE)):
        yield (",\n" if number else "\n").encode() + _entry(word, network).encode()
    yield b"\n  }\n}" if words else b"}\n}"


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
    """Write the last activation, the file PromptX resumes from.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
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
