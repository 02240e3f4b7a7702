"""Finds tools by words: BM25 over their names, descriptions and arguments. Pure.

Owns the definition of a word: parts of names (``readFile``, ``read_file``), words of any script without accents and
plural endings, and pairs of characters in scripts without spaces. Knows no model and no server.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

NAME_WEIGHT = 3
"""Number of times that a word of a name is counted."""
READ_CHARACTERS = 2_000
"""Characters read of a description, or of all argument texts together. The first ones tell the purpose.
"""
ARGUMENT_DEPTH = 4
_K1, _B = 1.2, 0.5

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_RUN = re.compile(rf"[{_UNSPACED}]")


class IndexedTool(Protocol):
    """The parts of a tool that are searched."""

    @property
    def name(self) -> str: ...
    @property
    def remote_name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def input_schema(self) -> Mapping[str, Any]: ...


T = TypeVar("T", bound=IndexedTool)


class ToolIndex(Generic[T]):
    """The tools that a query may find."""

    def __init__(self, tools: Iterable[T]) -> None:
        self._tools = tuple(tools)
        self._words = [Counter(_words_of(tool)) for tool in self._tools]
        lengths = [sum(words.values()) for words in self._words]
        self._mean = sum(lengths) / max(1, len(lengths)) or 1.0
        self._lengths = lengths
        self._holders = Counter(word for words in self._words for word in words)

    def find(self, query: str, most: int) -> list[T]:
        """Return the tools that fit a query, best first. Tools whose full names are in the query come first."""
        names = set(re.split(r"[\s,;]+", query))
        query_words = set(words_in(query))
        scores = [
            (tool.name in names, self._score(query_words, place), tool.name, tool)
            for place, tool in enumerate(self._tools)
        ]
        fitting = sorted(
            (score for score in scores if score[0] or score[1] > 0), key=lambda score: (-score[0], -score[1])
        )
        return [tool for *_, tool in fitting[:most]]

    def _score(self, query_words: Iterable[str], place: int) -> float:
        words, count = self._words[place], len(self._tools)
        share = 1 - _B + _B * self._lengths[place] / self._mean
        score = 0.0
        for word in query_words:
            if (times := words[word]) > 0:
                holders = self._holders[word]
                rarity = math.log(1 + (count - holders + 0.5) / (holders + 0.5))
                score += rarity * times * (_K1 + 1) / (times + _K1 * share)
        return score


def words_in(text: str) -> Iterator[str]:
    """Return the comparable words of a text, in order."""
    folded = unicodedata.normalize("NFKD", _CAMEL.sub(" ", unicodedata.normalize("NFKC", text)))
    # composed again, because a decomposed syllable of Hangul would be three letters
    bare = unicodedata.normalize("NFC", "".join(char for char in folded if not unicodedata.combining(char)))
    for word in _WORD.findall(bare.casefold()):
        if _RUN.match(word):
            yield from (word,) if len(word) < 3 else (word[at : at + 2] for at in range(len(word) - 1))
        else:
            yield _singular(word)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _words_of(tool: IndexedTool) -> Iterator[str]:
    for _ in range(NAME_WEIGHT):
        yield from words_in(tool.name)
        yield from words_in(f"{tool.title} {'' if tool.remote_name.isascii() else tool.remote_name}")
    yield from words_in(tool.description[:READ_CHARACTERS])
    yield from words_in(" ".join(_argument_texts(tool.input_schema, ARGUMENT_DEPTH))[:READ_CHARACTERS])


def _argument_texts(schema: object, depth: int) -> Iterator[str]:
    """Return the names and descriptions of a schema's arguments."""
    if not isinstance(schema, Mapping) or depth < 0:
        return
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        yield str(name)
        yield from _argument_texts(inner, depth - 1)
    described = schema.get("description")
    if isinstance(described, str):
        yield described
    yield from _argument_texts(schema.get("items"), depth - 1)
