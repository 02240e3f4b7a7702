"""Rules of robots.txt (RFC 9309). Pure.

Owns the reading of the file and the decision whether a path may be requested.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

AGENT = "agentic-rag"
"""Our product token, in the file and in the header ``User-Agent``."""
MAX_BYTES = 500 * 1024
"""Bytes of a file that count (RFC 9309, 2.5)."""
MAX_RULES = 5_000

_SAFE = "/*$%?&=+,;:@!'()~-._"


@dataclass(frozen=True, slots=True)
class Robots:
    """The rules for us: pairs of a path pattern and whether it allows. The longest matching pattern decides."""

    rules: Sequence[tuple[str, bool]] = ()

    def allows(self, path: str) -> bool:
        """Return whether a path with its query may be requested."""
        path = _normal(path)
        best, allowed = -1, True
        for pattern, allows in self.rules:
            length = len(pattern)
            if (length > best or (length == best and allows)) and _matches(pattern, path):
                best, allowed = length, allows
        return allowed


NOTHING = Robots((("/", False),))
"""The rules of a site whose file cannot be read because of an error of the site (RFC 9309, 2.3.1.4)."""


def read_robots(data: bytes) -> Robots:
    """Return the rules of a file for our product token, or those for ``*`` if none names it."""
    groups: dict[str, list[tuple[str, bool]]] = {}
    agents: list[str] = []
    in_agents = False
    count = 0
    for raw in data[:MAX_BYTES].decode("utf-8", "replace").lstrip("\ufeff").splitlines():
        key, colon, value = raw.partition("#")[0].partition(":")
        key, value = key.strip().lower(), value.strip()
        if not colon:
            continue
        if key == "user-agent":
            # Lines of agents that follow each other begin one group. A rule between them ends it.
            agents = [*agents, value.lower()] if in_agents else [value.lower()]
            in_agents = True
            for agent in agents:
                groups.setdefault(agent, [])
        elif key in ("allow", "disallow"):
            in_agents = False
            count += 1
            if value and count <= MAX_RULES:
                for agent in agents:
                    groups[agent].append((_normal(value), key == "allow"))
    for agent, rules in groups.items():
        if re.match(r"[a-z_-]*", agent.partition("/")[0])[0] == AGENT:  # type: ignore[index]
            return Robots(tuple(rules))
    return Robots(tuple(groups.get("*", ())))


def _normal(path: str) -> str:
    """Return a path in the form for comparisons, whatever characters of it are percent-encoded."""
    return quote(unquote(path, errors="replace"), safe=_SAFE)


def _matches(pattern: str, path: str) -> bool:
    ends = pattern.endswith("$")
    first, *pieces = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    end = len(first)
    if not pieces:
        return not ends or end == len(path)
    # The first place of each piece is enough, so the time is linear. A regular expression would try all places.
    *middle, last = pieces
    for piece in middle:
        start = path.find(piece, end)
        if start < 0:
            return False
        end = start + len(piece)
    if ends:
        return len(path) - len(last) >= end and path.endswith(last)
    return path.find(last, end) >= 0
