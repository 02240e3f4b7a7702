"""On which line of a JSON text each of its values stands, for errors in files that people write.

Pure. Reads texts that `json.loads` takes; what is no JSON is that one's to refuse, with its line.
"""

import json
import re
from collections.abc import Iterator

Path = tuple[str, ...]
"""The names and places on the way to a value, from the outside in."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def lines_of(text: str) -> dict[Path, int]:
    """Return the line (from 1) on which each value begins, by its path; of a name that is there twice, the last."""
    found: dict[Path, int] = {}
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    tokens = _tokens(text, starts)
    first = next(tokens, None)
    if first is not None:
        _take(first, tokens, (), found)
    return found


def _tokens(text: str, starts: list[int]) -> Iterator[tuple[str, int]]:
    line = 0
    for match in _TOKEN.finditer(text):
        while line + 1 < len(starts) and starts[line + 1] <= match.start():
            line += 1
        yield match[0], line + 1


def _take(token: tuple[str, int], tokens: Iterator[tuple[str, int]], path: Path, found: dict[Path, int]) -> None:
    """Note a value whose first token was read, and what is inside of it."""
    found[path] = token[1]
    if token[0] == "{":
        for name, line in tokens:
            if name == "}":
                return
            if name != ",":
                next(tokens)  # the colon
                inner = (*path, str(json.loads(name)))
                _take(next(tokens), tokens, inner, found)
                found[inner] = line
    elif token[0] == "[":
        place = 0
        for each in tokens:
            if each[0] == "]":
                return
            if each[0] != ",":
                _take(each, tokens, (*path, str(place)), found)
                place += 1
