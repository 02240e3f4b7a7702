"""The associative network: which keyword leads to which, how strongly, and how often it was recalled.

Owns the rules that turn engrams into weighted edges and the order in which keywords are listed. Deliberately knows
nothing of files, SQLite, clocks or recall: it is a value in memory that `snapshot` writes and `recall` reads.

Source of the rules: PromptX 1.27/2.4 (its `Remember` and `Network`), as recorded in the project's specification.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

POSITION_DECAY = 0.9
"""Each later edge of one engram weighs this much of the one before it."""

DEFAULT_STRENGTH = 0.8
"""PromptX computes `strength || 0.8`, so strength 0 counts as this in an edge's weight, and only there."""

RECALL_STEP = 2
"""What one recall adds to the frequency of every cue it activated."""

MAX_ARRAY_INDEX = 2**32 - 2
"""Largest key a JavaScript object sorts as a number."""


def keywords(schema: str) -> list[str]:
    """Split a schema into its keywords: by lines, else by `" - "`, else by spaces; trimmed, without empties."""
    separator = "\n" if "\n" in schema else " - " if " - " in schema else " "
    return [word for word in (part.strip() for part in schema.split(separator)) if word]


def is_array_index(word: str) -> bool:
    """Whether a JavaScript object would list `word` among its leading, ascending integer keys."""
    return word.isascii() and word.isdigit() and (word == "0" or word[0] != "0") and int(word) <= MAX_ARRAY_INDEX


def object_order(words: Iterable[str]) -> list[str]:
    """`words` in the order a JavaScript object keeps its keys: integer-like ones ascending, then by insertion."""
    integers: list[str] = []
    others: list[str] = []
    for word in words:
        (integers if is_array_index(word) else others).append(word)
    return sorted(integers, key=int) + others


@dataclass(slots=True)
class Network:
    """Keywords ("cues") with their outgoing edges, engrams and recall frequencies.

    Not thread-safe for writers; copying the edges of one word is atomic, which is all a snapshot needs.
    """

    edges: dict[str, dict[str, float]] = field(default_factory=dict)
    """word → {target: weight}, both in insertion order. Every known cue is a key, also one without edges."""
    engrams: list[str] = field(default_factory=list)
    """Engram ids in the order they were learned."""
    members: "dict[str, array[int]]" = field(default_factory=dict)
    """word → indexes into `engrams`. Arrays, because the garbage collector would walk half a million list items."""
    frequency: dict[str, int] = field(default_factory=dict)
    """word → recall frequency; absent means 0."""

    def learn(self, engram_id: str, words: Sequence[str], timestamp_ms: int, strength: float) -> None:
        """Add one engram: an edge from each keyword to the next, replacing that edge's old weight."""
        self.engrams.append(engram_id)
        for word in dict.fromkeys(words):
            if word not in self.edges:
                self.edges[word] = {}
                self.members[word] = array("L")
            self.members[word].append(len(self.engrams) - 1)
        decay = 1.0
        for word, target in pairwise(words):
            self.edges[word][target] = timestamp_ms * decay * (strength or DEFAULT_STRENGTH)
            decay *= POSITION_DECAY  # a running product, not a power: it gives V8's last bit, and weights are compared

    def recalled(self, words: Iterable[str]) -> list[str]:
        """Count one recall of `words`; returns those that are cues and were therefore counted."""
        known = [word for word in words if word in self.edges]
        for word in known:
            self.frequency[word] = self.frequency.get(word, 0) + RECALL_STEP
        return known

    def engrams_of(self, word: str) -> list[str]:
        """Ids of the engrams a cue leads to, in the order they were learned; none for an unknown word."""
        return [self.engrams[index] for index in self.members.get(word, ())]

    def degree(self, word: str) -> int:
        """Number of outgoing edges; 0 for an unknown word."""
        return len(self.edges.get(word, ()))
