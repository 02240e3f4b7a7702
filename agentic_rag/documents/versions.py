"""Versions of one document, recognised by their names. Pure.

`Travel policy 2023.pdf`, `travel-policy_v2 (final).docx` and `Travel Policy 2024-05-01.pdf` are versions of one
document: their names are the same without dates, version numbers, copy numbers and words such as *final*. The newest
version is the one with the latest date; among equal dates, the one that was added last.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcp_servers.retriever.hits import Hit

_MARKS = re.compile(
    r"""
    (?<![^\W_])                                       # not inside a word
    (?:
        (?:19|20)\d\d(?:[-._ ]?(?:0[1-9]|1[0-2])(?:[-._ ]?(?:0[1-9]|[12]\d|3[01]))?)?   # 2024, 2024-05, 20240501
      | (?:v|ver|version|rev|revision|stand|ausgabe|fassung|edition)[-._ ]?\d+(?:[._]\d+)*
      | q[1-4] | [1-4]\.?[-_ ]?quartal
      | (?:final|draft|entwurf|new|neu|old|alt|copy|kopie|latest|aktuell)
      | \(\d{1,3}\)
    )
    (?![^\W_])
    """,
    re.VERBOSE,
)
_CHINESE = re.compile(
    r"(?:19|20)\d\d年(?:\d{1,2}月(?:\d{1,2}日)?)?|第[0-9一二三四五六七八九十]+版|修订版|最终版|草案|新版|旧版"
)
MAX_NAME = 300


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """The facts that order the versions of a document: its name, its date (`YYYY-MM-DD`), and when it was added."""

    name: str
    date: str
    added: str


def series_of(name: str) -> str:
    """Return a key that is equal for the names of all versions of one document; the name itself if nothing is left."""
    folded = unicodedata.normalize("NFKC", name[:MAX_NAME]).casefold()
    stem, dot, ending = folded.rpartition(".")
    stem = stem if dot and len(ending) <= 5 else folded
    bare = _CHINESE.sub(" ", _MARKS.sub(" ", stem))
    words = re.findall(r"[^\W_]+", bare)
    return " ".join(words) or folded


def newest_first(hits: Sequence[Hit], documents: Mapping[str, VersionFacts]) -> tuple[Hit, ...]:
    """Return the hits, those of superseded versions last. A version is superseded by a newer one among the hits.

    The order is otherwise unchanged, and no hit is left out.
    """
    newest: dict[str, tuple[str, str, str]] = {}
    ages: dict[str, tuple[str, str, str]] = {}
    series: dict[str, str] = {}
    for hit in hits:
        facts = documents.get(hit.document_id)
        if facts is None:
            continue
        key = series[hit.document_id] = series_of(facts.name)
        ages[hit.document_id] = (facts.date, facts.added, hit.document_id)
        newest[key] = max(newest.get(key, ("", "", "")), ages[hit.document_id])

    def is_superseded(hit: Hit) -> bool:
        return hit.document_id in ages and ages[hit.document_id] < newest[series[hit.document_id]]

    return tuple(sorted(hits, key=is_superseded))
