"""Draft the questions that a new conversation offers, from the headings of a domain's documents. Pure.

No model is asked: a draft costs one read of the document records. A heading that is a question is offered as written.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentic_rag.store.documents import DocumentRecord

MAX_STARTERS = 4
_SHORTEST, _LONGEST = 3, 80
"""Characters of a heading that can be asked about."""

_CHINESE = re.compile(r"[\u3400-\u9fff]")
_NUMBERING = re.compile(r"^(?:[\dIVX]+(?:[.\-]\d+)*[.)、]?|第.{1,4}[章节条]|[（(]?[一二三四五六七八九十]+[)）、.])\s*")
_EMPTY_HEADINGS = re.compile(
    r"contents|table of contents|index|introduction|preface|foreword|overview|imprint|appendix|summary|references"
    r"|目录|前言|引言|简介|概述|附录|总则|说明",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class DraftedStarter:
    """A drafted question and the document it is about."""

    text: str
    document_name: str


def draft_starters(documents: Sequence[DocumentRecord]) -> list[DraftedStarter]:
    """Return at most `MAX_STARTERS` questions, from as many documents as possible. Documents come in a stable order."""
    drafts = [_drafts_of(document) for document in sorted(documents, key=lambda record: record.name)]
    chosen: dict[str, DraftedStarter] = {}
    for turn in range(MAX_STARTERS):
        for of_document in drafts:
            if turn < len(of_document) and len(chosen) < MAX_STARTERS:
                chosen.setdefault(of_document[turn].text, of_document[turn])
    return list(chosen.values())


def _drafts_of(document: DocumentRecord) -> list[DraftedStarter]:
    title = readable_name(document.name)
    drafts = [DraftedStarter(_question(heading, title), document.name) for heading in _headings(document)]
    if drafts:
        return drafts
    text = f"《{title}》讲了什么？" if _CHINESE.search(title) else f"What is “{title}” about?"
    return [DraftedStarter(text, document.name)]


def _headings(document: DocumentRecord) -> Iterable[str]:
    for line in document.progress.outline or ():
        heading = _NUMBERING.sub("", " ".join(line.split())).strip(" :：.。#*")
        is_named = _SHORTEST <= len(heading) <= _LONGEST or (_CHINESE.search(heading) and 2 <= len(heading) <= _LONGEST)
        if is_named and not _EMPTY_HEADINGS.fullmatch(heading):
            yield heading


def _question(heading: str, title: str) -> str:
    if heading.endswith(("?", "？")):
        return heading
    if _CHINESE.search(heading):
        return f"《{title}》关于“{heading}”是怎么说的？"
    return f"What does “{title}” say about “{heading}”?"


def readable_name(name: str) -> str:
    """Return a document's name without its ending and with spaces between words."""
    stem = re.sub(r"\.[A-Za-z0-9]{1,5}$", "", name.rsplit("/", 1)[-1])
    return re.sub(r"[_\-\s]+", " ", stem).strip()[:_LONGEST] or name
