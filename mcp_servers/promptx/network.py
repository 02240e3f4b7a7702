"""The associative network and the recall algorithm: from a query to cues, edges, ranked engrams and a mindmap.

Owns the rules that turn engrams into weighted edges, the order in which keywords are listed, and the recall algorithm.
Pure: a network is a value in memory that `snapshot` writes and a recall only reads; times are arguments. Knows nothing
of files, SQLite and clocks.

Source of the rules: PromptX 1.27/2.4 (its ``Remember``, ``Network``, ``TwoPhaseRecallStrategy``, ``ActivationMode``),
as stated in the project's specification and checked against 24 recorded recalls. Numbers in the code are PromptX's own.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise
from typing import Final, Literal

POSITION_DECAY: Final = 0.9
"""Factor between the weights of two consecutive edges of one engram."""

DEFAULT_STRENGTH: Final = 0.8
"""The strength 0 counts as this in an edge's weight, and only there: PromptX computes `strength || 0.8`."""

RECALL_STEP: Final = 2
"""Increment of each activated cue's frequency by one recall."""

MAX_ARRAY_INDEX: Final = 2**32 - 2
"""Largest key that a JavaScript object sorts as a number."""

ROOT: Final = "mind"
DMN_CENTRES: Final = 15
MAX_MAP_NODES: Final = 100
MAX_MAP_DEPTH: Final = 5
MIN_CONTAINED: Final = 2
"""Characters of the shortest cue that is searched for in text without spaces. Single letters would always match."""
MAX_CONTAINED: Final = 64
DAY_MS: Final = 86_400_000
MAX_FUTURE_DAYS: Final = 3650.0
"""Maximum days that a timestamp may be in the future. A later one is a mistake, and its exponential would overflow."""

Query = str | Sequence[str] | None
Fallback = Literal["dmn", "contained"]


def keywords(schema: str) -> list[str]:
    """Split a schema into trimmed, non-empty keywords: by lines, else by `" - "`, else by spaces."""
    separator = "\n" if "\n" in schema else " - " if " - " in schema else " "
    return [word for word in (part.strip() for part in schema.split(separator)) if word]


def is_array_index(word: str) -> bool:
    """Return whether a JavaScript object would list `word` among its leading, ascending integer keys."""
    if not (word.isascii() and word.isdigit()) or (word[0] == "0" and word != "0"):
        return False
    # The largest index has ten digits. Python refuses to convert more than 4 300.
    return len(word) <= 10 and int(word) <= MAX_ARRAY_INDEX


def object_order(words: Iterable[str]) -> list[str]:
    """Return `words` in the key order of a JavaScript object: ascending integers, then the others by insertion."""
    integers: list[str] = []
    names: list[str] = []
    for word in words:
        (integers if is_array_index(word) else names).append(word)
    return sorted(integers, key=int) + names


@dataclass(slots=True)
class Network:
    """Keywords ("cues") with their outgoing edges, engrams and recall frequencies.

    Not thread-safe for writers. Copying the edges of one word is atomic, and a snapshot needs no more.
    """

    edges: dict[str, dict[str, float]] = field(default_factory=dict)
    """word → {target: weight}, both in insertion order. Every known cue is a key, even without edges."""
    engrams: list[str] = field(default_factory=list)
    """Engram ids in the order in which they were learned."""
    members: "dict[str, array[int]]" = field(default_factory=dict)
    """word → indexes into `engrams`. The garbage collector skips arrays but would walk half a million list items."""
    frequency: dict[str, int] = field(default_factory=dict)
    """word → recall frequency; absent means 0."""

    def learn(
        self, engram_id: str, words: Sequence[str], timestamp_ms: int, strength: float, *, recalled: bool = True
    ) -> None:
        """Add one engram: an edge from each keyword to the next, replacing that edge's old weight.

        ``recalled`` is False if another engram has replaced this one. Its edges stay, but no keyword leads to it.
        """
        self.engrams.append(engram_id)
        for word in dict.fromkeys(words):
            if word not in self.edges:
                self.edges[word] = {}
                self.members[word] = array("L")
            if recalled:
                self.members[word].append(len(self.engrams) - 1)
        decay = 1.0
        for word, target in pairwise(words):
            self.edges[word][target] = timestamp_ms * decay * (strength or DEFAULT_STRENGTH)
            decay *= POSITION_DECAY  # a running product, not a power: it gives V8's last bit, and weights are compared

    def leave(self, engram_id: str, words: Iterable[str]) -> None:
        """Remove an engram from its keywords, because another one has replaced it."""
        for word in dict.fromkeys(words):
            members = self.members.get(word, array("L"))
            for index in [member for member in members if self.engrams[member] == engram_id]:
                members.remove(index)

    def count_recall(self, words: Iterable[str]) -> list[str]:
        """Count one recall of `words`. Return the words that are cues and were counted."""
        counted = [word for word in words if word in self.edges]
        for word in counted:
            self.frequency[word] = self.frequency.get(word, 0) + RECALL_STEP
        return counted

    def engrams_of(self, word: str) -> list[str]:
        """Return the ids of a cue's engrams in the order in which they were learned; none for an unknown word."""
        return [self.engrams[index] for index in self.members.get(word, ())]

    def degree(self, word: str) -> int:
        """Return the number of outgoing edges; 0 for an unknown word."""
        return len(self.edges.get(word, ()))


@dataclass(frozen=True, slots=True)
class Mode:
    """The parameters of one spreading mode."""

    threshold: float
    synaptic: float
    inhibition: float
    cycles: int
    decay: float
    boost: float
    limit: int


MODES: Final[Mapping[str, Mode]] = {
    "focused": Mode(0.2, 0.75, 0.15, 4, 0.85, 0.2, 20),
    "balanced": Mode(0.1, 0.9, 0.1, 10, 0.9, 0.1, 50),
    "creative": Mode(0.05, 0.95, 0.05, 12, 0.95, 0.05, 80),
}

TYPE_WEIGHT: Final[Mapping[str, float]] = {"PATTERN": 2.0, "LINK": 1.5, "ATOMIC": 1.0}
TYPE_QUOTA: Final[Mapping[str, int]] = {"PATTERN": 10, "LINK": 15, "ATOMIC": 25}


@dataclass(frozen=True, slots=True)
class Edge:
    """A recorded step of the activation."""

    source: str
    target: str
    weight: float


@dataclass(frozen=True, slots=True)
class RecallActivation:
    """The words and edges that a query activated. `depth`: distance of each word from the root, in activation order."""

    depth: Mapping[str, int]
    edges: Sequence[Edge]

    @property
    def activated(self) -> list[str]:
        """All words in activation order, the root first."""
        return list(self.depth)


Trace = tuple[str, float, float]
"""The ranking data of an engram: type, strength, timestamp in milliseconds.

A plain tuple on purpose: a memory holds one per engram. The garbage collector stops tracking plain tuples of atoms, but
never instances of a class.
"""


def choose_centres(network: Network, query: Query) -> tuple[list[str], Fallback | None]:
    """Choose the cues where activation starts.

    Returns the centres and the fallback that chose them:

    - None: words of the query, or the hubs if there is no query.
    - `contained`: cues inside the query's text. PromptX, which splits at spaces, finds nothing in a Chinese sentence.
    - `dmn`: the hubs of the network (PromptX's "default mode network"), because no cue matched.
    """
    if query is None or query == "null":
        return _hubs(network), None
    if isinstance(query, str):
        words = [word for word in query.split() if word in network.edges]
        best = max(words, key=network.degree, default=None)
        if best is not None and network.degree(best):
            return [best], None
        if best is None and (inside := _find_contained(network, query)):
            return inside, "contained"
    elif cues := list(dict.fromkeys(word for word in query if word in network.edges)):
        return cues, None
    return _hubs(network), "dmn"


def _hubs(network: Network) -> list[str]:
    """Return the cues with the most outgoing edges; equal ones in the order of the network's file."""
    # Only the words that can be among the hubs are sorted: a network has many thousands of others.
    degrees = nlargest(DMN_CENTRES, map(len, network.edges.values()))
    least = max(1, degrees[-1]) if degrees else 1
    candidates = object_order(word for word, edges in network.edges.items() if len(edges) >= least)
    return sorted(candidates, key=network.degree, reverse=True)[:DMN_CENTRES]


def _find_contained(network: Network, text: str) -> list[str]:
    """Return the longest cues inside `text`, from left to right, without overlaps."""
    cues: dict[str, None] = {}
    start = 0
    while start < len(text):
        for length in range(min(MAX_CONTAINED, len(text) - start), MIN_CONTAINED - 1, -1):
            if (piece := text[start : start + length]) in network.edges:
                cues[piece] = None
                start += length
                break
        else:
            start += 1
    return list(cues)


def spread(network: Network, centres: Sequence[str], mode: Mode) -> RecallActivation:
    """Spread activation from the centres, cycle by cycle, until it fades or `mode.cycles` are done."""
    start = 1.0 if len(centres) > 5 else 1 / max(1, len(centres))
    depth = {ROOT: 0}
    edges = {(ROOT, centre): start for centre in centres}
    depth.update((centre, 1) for centre in centres if centre not in depth)
    pool = dict.fromkeys(centres, start)
    cycle = 0
    while pool and cycle < mode.cycles:
        reached: dict[str, float] = {}
        inhibition = max(0.5, 1 - mode.inhibition * len(depth) / 200)
        for word, energy in pool.items():
            if energy < mode.threshold:
                continue
            for target, weight, passed in _fire(network, word, energy, mode):
                if passed * inhibition >= mode.threshold and target not in depth:
                    reached[target] = reached.get(target, 0.0) + passed * inhibition
                    edges.setdefault((word, target), weight)
        cycle += 1
        depth.update(dict.fromkeys(reached, cycle))  # so the first targets share depth 1 with the centres
        pool = {target: remaining for target, energy in reached.items() if (remaining := energy * mode.decay) >= 0.01}
    return RecallActivation(depth, [Edge(source, target, weight) for (source, target), weight in edges.items()])


def _fire(network: Network, word: str, energy: float, mode: Mode) -> Iterable[tuple[str, float, float]]:
    """Yield the strongest edges of one word with the energy that each passes on, before inhibition."""
    outgoing = network.edges.get(word) or {}
    degree = len(outgoing)
    if not degree:
        return
    keep = min(8, max(3, math.ceil(math.log2(degree + 1))))
    strongest = nlargest(keep, outgoing.items(), key=lambda edge: edge[1])
    share = energy * (1 + 0.3 * math.log(1 + degree)) * mode.synaptic / len(strongest)
    for target, weight in strongest:
        yield target, weight, share * (1 + mode.boost * math.log(1 + network.frequency.get(target, 0)))


def collect(network: Network, mind: RecallActivation) -> dict[str, int]:
    """Return the depth of the first activated cue of each engram, by id.

    The order is cue by cue, and within a cue PromptX's index order.
    """
    depths: dict[str, int] = {}
    for word, depth in mind.depth.items():
        for engram_id in sorted(network.engrams_of(word)):
            depths.setdefault(engram_id, depth)
    return depths


def rank(depths: Mapping[str, int], traces: Mapping[str, Trace], limit: int, now_ms: int) -> list[str]:
    """Return the ids of the best `limit` engrams of `collect`: first by each type's quota, then the rest, by score."""
    ids = list(depths)
    scores = [_score(traces[engram_id], depth, now_ms) for engram_id, depth in depths.items()]
    used = dict.fromkeys(TYPE_QUOTA, 0)
    chosen: list[str] = []
    rest: list[str] = []
    for number in sorted(range(len(ids)), key=scores.__getitem__, reverse=True):
        kind = traces[ids[number]][0]
        if used.get(kind, 0) < TYPE_QUOTA.get(kind, 0) and len(chosen) < limit:
            used[kind] += 1
            chosen.append(ids[number])
        else:
            rest.append(ids[number])
    return chosen + rest[: limit - len(chosen)]


def _score(trace: Trace, depth: int, now_ms: int) -> float:
    kind, strength, timestamp = trace
    age_days = max(-MAX_FUTURE_DAYS, (now_ms - timestamp) / DAY_MS)
    return (
        0.3 * TYPE_WEIGHT.get(kind, 1.0)
        + 0.4 / (1 + 0.2 * depth)
        + 0.2 * (strength or 0.5)
        + 0.1 * math.exp(-age_days / 30)
    )


def mindmap(mind: RecallActivation) -> list[str]:
    """Return the activation as lines of a Mermaid mindmap, the strongest edge first and every node once."""
    children: dict[str, list[Edge]] = {}
    for edge in mind.edges:
        children.setdefault(edge.source, []).append(edge)
    lines = ["mindmap", f"  root(({ROOT}))"]
    nodes = {ROOT}

    def draw(word: str, level: int) -> None:
        if level > MAX_MAP_DEPTH:
            return
        for edge in sorted(children.get(word, ()), key=lambda edge: edge.weight, reverse=True):
            if edge.target not in nodes and len(nodes) < MAX_MAP_NODES:
                nodes.add(edge.target)
                lines.append("  " * (level + 2) + edge.target)
                draw(edge.target, level + 1)

    draw(ROOT, 0)
    return lines
