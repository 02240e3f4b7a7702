"""Labels of documents: their form, the folder rules that give them, and the labels that groups hold. Pure.

A document carries its own labels and those of each folder rule that its path matches. A reader sees a document if the
reader holds all of its labels. Knows no record and no user.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from agentic_rag.base.forms import require_shape
from agentic_rag.base.json_form import Json

MAX_LABELS = 20
"""Maximum number of labels of one document, of one folder rule, or of one group."""
MAX_RULES = 1_000
"""Maximum number of groups, and of folder rules, in a domain's settings."""
MAX_GROUP_CHARACTERS = 500

Label = Annotated[
    str,
    require_shape(
        r"\w(?:[\w .&+/-]{0,62}\w)?",
        "a label has 1 to 64 letters, digits, spaces and . & + / - _, and begins and ends with a letter or digit",
    ),
]
Labels = Annotated[tuple[Label, ...], Field(max_length=MAX_LABELS), AfterValidator(lambda labels: distinct(labels))]

Group = Annotated[str, StringConstraints(min_length=1, max_length=MAX_GROUP_CHARACTERS)]
"""The name of a group, compared character by character. An identity provider may use any characters."""


def distinct(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels sorted and without duplicates."""
    return tuple(sorted(set(labels)))


def _check_pattern(pattern: str) -> str:
    parts = pattern.split("/")
    if not pattern.strip("/ ") or pattern.startswith("/") or "\\" in pattern or ".." in parts or "." in parts:
        raise ValueError(
            'a path inside the documents folder is expected, such as "hr" for a folder and all below it, or '
            '"*-salaries.xlsx" with * for any characters'
        )
    return pattern


FolderPattern = Annotated[str, StringConstraints(min_length=1, max_length=1_000), AfterValidator(_check_pattern)]
"""A path relative to the documents folder, for a file or for a folder and all below it. ``*``: any characters."""


@dataclass(frozen=True, slots=True)
class LabelRules:
    """The rules of a domain: labels by group, and labels by folder pattern."""

    groups: Mapping[str, Sequence[str]]
    folders: Mapping[str, Sequence[str]]

    @classmethod
    def of_settings(cls, settings: Json) -> "LabelRules":
        """Return the rules in a domain's stored settings (`DomainSettings.to_json`)."""
        return cls(settings.get("groupLabels") or {}, settings.get("folderLabels") or {})

    def labels_of(self, path: str, own: Iterable[str] = ()) -> frozenset[str]:
        """Return the labels of a document. ``path`` is relative to the documents folder, ``own`` its own labels."""
        labels = set(own)
        if self.folders:
            folded = _fold(path)
            for pattern, folder_labels in self.folders.items():
                if _compile_pattern(pattern).matches(folded):
                    labels.update(folder_labels)
        return frozenset(labels)

    def held_by(self, groups: Iterable[str]) -> frozenset[str]:
        """Return the labels that the members of these groups hold."""
        return frozenset(label for group in groups for label in self.groups.get(group, ()))


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A folder pattern: the folded texts around its asterisks, for the folder itself and for the paths below it."""

    whole: tuple[str, ...]
    below: tuple[str, ...]

    def matches(self, path: str) -> bool:
        """Return whether a folded path matches. Takes linear time for every pattern."""
        if len(self.whole) == 1:
            return path == self.whole[0] or path.startswith(self.below[0])
        return matches_pieces(self.whole, path) or matches_pieces(self.below, path)


@lru_cache(2 * MAX_RULES)
def _compile_pattern(pattern: str) -> _Pattern:
    whole = tuple(_fold(pattern).rstrip("/").split("*"))
    # The empty last piece stands for any rest, so that the second form matches every path below a matching folder.
    return _Pattern(whole, (*whole[:-1], f"{whole[-1]}/", ""))


def matches_pieces(pieces: Sequence[str], text: str) -> bool:
    """Return whether a text consists of these pieces with any characters between them. Takes linear time."""
    if len(pieces) == 1:
        return text == pieces[0]
    first, *middle, last = pieces
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    # The leftmost position of each piece leaves the most text for the following ones, so no other needs to be tried.
    for part in middle:
        position = text.find(part, at, end)
        if position < 0:
            return False
        at = position + len(part)
    return True


def _fold(path: str) -> str:
    """Return the form in which paths are compared. Case does not matter, so that ``HR/`` is as protected as ``hr/``."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
