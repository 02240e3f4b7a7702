"""Compares two versions of something: texts by line, JSON values by path. Pure.

Owns the limits: for untrusted input, too, a comparison takes time that is linear in its length, and the shown result is
truncated.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_PAIRS = 1_000_000
"""Limit for the product of the two line counts, up to which lines are compared in every combination.

Beyond the limit, everything between the first and the last differing line counts as changed.
"""
MAX_SHOWN = 64 * 1024
"""Maximum length of a shown difference in characters."""
CONTEXT = 3
ABSENT = None


@dataclass(frozen=True, slots=True)
class JsonChange:
    """A value that differs. ``path``: names with dots; ``before`` or ``after`` is None where there was, or is, none."""

    path: str
    before: Any
    after: Any


def compare_json(before: object, after: object, path: str = "") -> list[JsonChange]:
    """Return the differences between two JSON values; objects are compared by member, all other values as a whole."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        changes: list[JsonChange] = []
        for name in sorted(before.keys() | after.keys()):
            inner = f"{path}.{name}" if path else str(name)
            changes += compare_json(before.get(name, ABSENT), after.get(name, ABSENT), inner)
        return changes
    return [] if _same(before, after) else [JsonChange(path, before, after)]


def _same(before: object, after: object) -> bool:
    return before == after and isinstance(before, bool) == isinstance(after, bool)


def compare_lines(before: str, after: str) -> str:
    """Return a unified difference of two texts, without a head; empty when they are the same."""
    old, new = before.splitlines(), after.splitlines()
    start = next((at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        start = min(len(old), len(new))
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if start == len(old) == len(new):
        return "" if before == after else "(only line ends differ)"
    first = max(0, start - CONTEXT)
    around = min(end, CONTEXT)
    old_part, new_part = old[first : len(old) - end + around], new[first : len(new) - end + around]
    if (len(old) - start - end) * (len(new) - start - end) <= MAX_PAIRS:
        lines = _fine(old_part, new_part, first)
    else:
        lines = _coarse(old, new, start, end, first)
    return _cut(lines)


def _fine(old: list[str], new: list[str], first: int) -> Iterator[str]:
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{first + i1 + 1},{i2 - i1} +{first + j1 + 1},{j2 - j1} @@"
        for tag, start, stop, begin, ending in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[start:stop])
                continue
            yield from (f"-{line}" for line in old[start:stop])
            yield from (f"+{line}" for line in new[begin:ending])


def _coarse(old: list[str], new: list[str], start: int, end: int, first: int) -> Iterator[str]:
    yield f"@@ -{first + 1},{len(old) - end - first} +{first + 1},{len(new) - end - first} @@"
    yield from (f" {line}" for line in old[first:start])
    yield from (f"-{line}" for line in old[start : len(old) - end])
    yield from (f"+{line}" for line in new[start : len(new) - end])


def _cut(lines: Iterator[str]) -> str:
    kept_lines: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_SHOWN:
            return "\n".join([*kept_lines, "[…]"])
        kept_lines.append(line)
    return "\n".join(kept_lines)
