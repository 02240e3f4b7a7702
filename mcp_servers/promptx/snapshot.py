"""The derived files of one memory: `network.json` and `state.json`, in PromptX's own format.

Owns reading and writing them. They are written for PromptX and for people; we ourselves read back only the recall
frequencies, because everything else follows from the engrams. Every write is a temporary file and a rename, so a reader
never sees half a file. No fsync: both files can be lost without losing a memory.

`network.json` carries one field more than PromptX's: `newestEngram`, the id of the newest engram it includes.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_servers.promptx.network import Mind, Network

NETWORK: Final = "network.json"
STATE: Final = "state.json"
VERSION: Final = "1.0"
ANCHOR_VERSION: Final = "1.0.0"
PAUSE_EVERY: Final = 16
PAUSE_SECONDS: Final = 0.0002
"""How often and how long writing a network lets other threads run: a thread that computes gives up the interpreter only
every 5 ms, and a remember asks for it ten times."""

_text: Final = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """What is read back of a network file: the recall frequency of every cue, and the newest engram it includes.

    `newest` is None in a file that PromptX wrote.
    """

    frequencies: dict[str, int]
    newest: str | None


def signature(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when another process replaces the file; None when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_network(path: Path) -> NetworkFile | None:
    """Read a network file, PromptX's or ours; None if it is absent or damaged.

    Edges and members are not read: they follow from the engrams, and making them anew is quicker than parsing them.
    The file is read line by line, as both programs indent it: one JSON call over 40 MB would hold the interpreter, and
    with it every event loop, for half a second. A file indented otherwise is parsed whole.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            scanned = _scan(lines)
        return _parse(path.read_text("utf-8")) if scanned is None else scanned
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # whatever is wrong with it, the engrams are the truth


def _scan(lines: Iterator[str]) -> NetworkFile | None:
    """A file indented by two spaces; None if it is not, or ends early."""
    frequencies: dict[str, int] = {}
    newest: str | None = None
    word = ""
    line = ""
    for line in lines:
        if line.startswith('    "'):
            word = json.loads(line.strip().removesuffix(": {"))
        elif line.startswith('      "recallFrequency": '):
            frequencies[word] = int(line.strip().removesuffix(",").partition(": ")[2])
        elif line.startswith('  "newestEngram": '):
            newest = json.loads(line.strip().removesuffix(",").partition(": ")[2])
    return NetworkFile(frequencies, newest) if frequencies and line.rstrip() == "}" else None


def _parse(text: str) -> NetworkFile:
    document = json.loads(text)
    frequencies = {word: int(cue.get("recallFrequency") or 0) for word, cue in document["cues"].items()}
    return NetworkFile(frequencies, document.get("newestEngram"))


def write_network(path: Path, network: Network, words: Sequence[str], newest: str, now_ms: int) -> None:
    """Write `words` of the network, as `JSON.stringify(…, null, 2)` would.

    May run while another thread adds to the network, or drops it for a new one: a word's edges are copied at once. What
    is then too much or missing in the file is put right by the next write.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
    """
    temporary = path.with_name(path.name + ".tmp")  # one name: the caller holds the network's lock
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as out:
            out.write(f'{{\n  "version": "{VERSION}",\n  "timestamp": {now_ms},\n')
            out.write(f'  "newestEngram": {_text(newest)},\n  "cues": {{')
            for number, word in enumerate(words):
                if number % PAUSE_EVERY == 0:
                    time.sleep(PAUSE_SECONDS)
                out.write(",\n" if number else "\n")
                out.write(_entry(word, network))
            out.write("\n  }\n}" if words else "}\n}")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


def write_state(folder: Path, mind: Mind, center: str | None, now_ms: int) -> None:
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
    temporary = folder / f".{STATE}.{os.getpid()}.tmp"
    try:
        temporary.write_text(json.dumps(state, ensure_ascii=False, indent=2), encoding="utf-8")
        temporary.replace(folder / STATE)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value
