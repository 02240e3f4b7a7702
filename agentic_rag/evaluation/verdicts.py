"""Verdicts: whether an answer, or the passages of a search, meet the expectations of a case. Pure.

A verdict is a fact. It follows from stored citations, texts, tool names and totals alone, so that the same answer
always gets the same verdict.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from agentic_rag.directory.cases import (
    Contained,
    Expectations,
    ExpectedNumber,
    ExpectedPassage,
    describe_contained,
)
from agentic_rag.directory.languages import languages_of
from agentic_rag.documents.text_positions import Letters
from mcp_servers.folding import fold

LEAST_LETTERS = 8
"""Letters from which a cited sentence counts as part of a longer expected passage."""
MAX_SHOWN = 300
"""Maximum characters of a text in a check."""


class CaseOutcome(StrEnum):
    """The result of a case.

    ``gone``: an expected document is not in the domain. ``unknown``: there is no answer to judge, for example because
    the model did not answer. ``unchecked``: the case expects nothing that this tier can check.
    """

    PASSED = "passed"
    FAILED = "failed"
    GONE = "gone"
    UNKNOWN = "unknown"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class SeenPassage:
    """A passage that an answer cited or a search found. ``score`` is its relevance."""

    document: str
    text: str
    heading_path: tuple[str, ...] = ()
    page: int | None = None
    cells: str | None = None
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class SeenAnswer:
    """The judged parts of a conversation's last turn. ``dropped`` counts citations that could not be verified."""

    text: str
    cited: tuple[SeenPassage, ...] = ()
    tools: tuple[str, ...] = ()
    seconds: float = 0.0
    tokens: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation and whether it was met. ``kind`` is the expectation's name; ``found`` explains a failure."""

    kind: str
    expected: str
    passed: bool
    found: str = ""


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The verdict on a case. ``rank`` is the rank of the first right passage, counted from 1."""

    outcome: CaseOutcome
    checks: tuple[Check, ...] = ()
    rank: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KnownDocuments:
    """The documents of the judged domain: names that can be searched, and names that are still being indexed."""

    ready: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()

    @classmethod
    def of(cls, ready: Iterable[str], pending: Iterable[str] = ()) -> "KnownDocuments":
        """Return the documents with these names."""
        return cls(frozenset(map(_fold_text, ready)), frozenset(map(_fold_text, pending)))

    def missing(self, expect: Expectations) -> CaseVerdict | None:
        """Return the verdict on a case if the domain lacks expected documents; None otherwise."""
        names = [passage.document for passage in expect.cites]
        absent = [name for name in names if _fold_text(name) not in self.ready]
        if not absent or (expect.need == "any" and len(absent) < len(names)):
            return None
        name = absent[0]
        if _fold_text(name) in self.pending:
            return CaseVerdict(CaseOutcome.UNKNOWN, reason=f"{name} is still being indexed")
        return CaseVerdict(CaseOutcome.GONE, reason=f"{name} is not in this domain")


def judge_search(expect: Expectations, passages: Sequence[SeenPassage]) -> CaseVerdict:
    """Return the verdict on the passages of a search, best first: whether they include the expected passages."""
    if not expect.cites:
        return CaseVerdict(CaseOutcome.UNCHECKED, reason="the case expects no passage")
    checks, ranks = _check_passages("finds", expect, passages)
    passed = _is_met(expect, checks)
    reached = [rank for rank in ranks if rank is not None]
    rank = None
    if passed:
        rank = max(reached) if expect.need == "all" else min(reached)
    return CaseVerdict(CaseOutcome.PASSED if passed else CaseOutcome.FAILED, tuple(checks), rank)


def judge_answer(expect: Expectations, answer: SeenAnswer) -> CaseVerdict:
    """Return the verdict on an answer."""
    passages, ranks = _check_passages("cites", expect, answer.cited)
    met = _is_met(expect, passages)
    others = list(_check_rest(expect, answer))
    reached = [rank for rank in ranks if rank is not None]
    outcome = CaseOutcome.PASSED if met and all(check.passed for check in others) else CaseOutcome.FAILED
    return CaseVerdict(outcome, (*passages, *others), min(reached) if reached else None)


def _is_met(expect: Expectations, checks: Sequence[Check]) -> bool:
    if not checks:
        return True
    return (all if expect.need == "all" else any)(check.passed for check in checks)


# Passages


def _check_passages(
    kind: str, expect: Expectations, passages: Sequence[SeenPassage]
) -> tuple[list[Check], list[int | None]]:
    checks: list[Check] = []
    ranks: list[int | None] = []
    for expected in expect.cites:
        rank = next((place for place, passage in enumerate(passages, 1) if is_expected(expected, passage)), None)
        ranks.append(rank)
        explanation = f"rank {rank}" if rank is not None else _describe_seen(passages)
        checks.append(Check(kind, describe_passage(expected), rank is not None, explanation))
    return checks, ranks


def is_expected(expected: ExpectedPassage, passage: SeenPassage) -> bool:
    """Return whether a passage is the expected one."""
    if _fold_text(expected.document) != _fold_text(passage.document):
        return False
    if expected.page is not None and expected.page != passage.page:
        return False
    if expected.section is not None and not _is_below(expected.section, passage.heading_path):
        return False
    if expected.cells is not None and not cells_overlap(expected.cells, passage.cells or ""):
        return False
    return expected.text is None or _has_text(passage.text, expected.text)


def _is_below(section: str, path: Sequence[str]) -> bool:
    letters = _letters(section)
    return any(_letters(heading) == letters for heading in path) or _letters(" ".join(path)) == letters


def _has_text(text: str, expected: str) -> bool:
    """Return whether a passage has the expected text, or is a whole sentence of it."""
    letters, expected_letters = _letters(text), _letters(expected)
    return expected_letters in letters or (len(letters) >= LEAST_LETTERS and letters in expected_letters)


_CELLS = re.compile(
    r"(?:(?P<sheet>.*)!)?\$?(?P<c1>[A-Za-z]{0,3})\$?(?P<r1>\d{0,7})(?::\$?(?P<c2>[A-Za-z]{0,3})\$?(?P<r2>\d{0,7}))?"
)


def cells_overlap(one: str, other: str) -> bool:
    """Return whether two ranges of cells, such as ``Rates!A2:D9`` and ``Rates!B4``, share a cell."""
    first, second = _read_cells(one), _read_cells(other)
    if first is None or second is None:
        return _fold_text(one) == _fold_text(other)
    if first[0] and second[0] and _fold_text(first[0]) != _fold_text(second[0]):
        return False
    return all(low <= high2 and low2 <= high for (low, high), (low2, high2) in zip(first[1], second[1], strict=True))


def _read_cells(text: str) -> tuple[str, tuple[tuple[int, int], tuple[int, int]]] | None:
    match = _CELLS.fullmatch(text.strip())
    if match is None:
        return None
    most = 10**9
    columns = [_column(match[name]) for name in ("c1", "c2")]
    rows = [int(match[name]) if match[name] else None for name in ("r1", "r2")]
    spans: list[tuple[int, int]] = []
    for first, last in (columns, rows):  # ``A:C`` has all rows, and ``A2`` is a range of one cell
        low = first if first is not None else 0
        high = last if last is not None else (first if first is not None else most)
        spans.append((min(low, high), max(low, high)))
    return (match["sheet"] or "").strip("'"), (spans[0], spans[1])


def _column(letters: str | None) -> int | None:
    if not letters:
        return None
    number = 0
    for letter in letters.upper():
        number = number * 26 + ord(letter) - 64
    return number


def describe_passage(passage: ExpectedPassage) -> str:
    """Return an expected passage in words for a list: document, place and text."""
    page = None if passage.page is None else f"p. {passage.page}"
    parts = [passage.document, page, passage.section, passage.cells, passage.text and f"“{passage.text[:80]}”"]
    return ", ".join(part for part in parts if part)


def _describe_seen(passages: Sequence[SeenPassage]) -> str:
    if not passages:
        return "nothing"
    names: dict[str, None] = {}
    for passage in passages:
        page = f" p. {passage.page}" if passage.page else ""
        section = f", {passage.heading_path[-1]}" if passage.heading_path else ""
        names[f"{passage.document}{page}{section}"] = None
    return "; ".join(names)[:MAX_SHOWN]


# Texts


def _check_rest(expect: Expectations, answer: SeenAnswer) -> Iterator[Check]:
    text = _plain(answer.text)
    for expected in expect.contains:
        yield Check("contains", describe_contained(expected), contains(text, expected))
    for words in expect.must_not_contain:
        yield Check("mustNotContain", words, not contains(text, words))
    if expect.declines is not None:
        declined = declines(answer)
        passed = declined is expect.declines
        explanation = "" if passed else _why_not_declined(answer) if expect.declines else "it declines"
        yield Check("declines" if expect.declines else "answers", "", passed, explanation)
    for tool in expect.calls:
        yield Check("calls", tool, _was_called(tool, answer.tools), ", ".join(dict.fromkeys(answer.tools)))
    for tool in expect.must_not_call:
        yield Check("mustNotCall", tool, not _was_called(tool, answer.tools))
    if expect.language is not None:
        spoken = languages_of(answer.text)
        yield Check("language", expect.language, _is_in(expect.language, spoken), ", ".join(spoken))
    if expect.max_seconds is not None:
        took = f"{answer.seconds:.1f} s"
        yield Check("maxSeconds", f"{expect.max_seconds:g}", answer.seconds <= expect.max_seconds, took)
    if expect.max_tokens is not None:
        yield Check("maxTokens", str(expect.max_tokens), answer.tokens <= expect.max_tokens, str(answer.tokens))


def _was_called(pattern: str, tools: Sequence[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for tool in tools)


_LATIN = frozenset({"en", "de", "fr", "es"})


def _is_in(language: str, spoken: Sequence[str]) -> bool:
    """Return whether the languages found in an answer include the expected one.

    Languages that `languages_of` does not know pass, unless the answer is written in another script.
    """
    primary = language.partition("-")[0].lower()
    if primary in spoken:
        return True
    recognised = {"zh", "ja", "ko", "ru", "ar"} | _LATIN
    if not spoken:  # Latin letters without a common word, such as a name or a number
        return primary not in recognised - _LATIN  # so only a language of another script can be ruled out
    return primary not in recognised and not set(spoken) - _LATIN


_MARKUP = re.compile(r"[*_`]+|\[\^?\d+\]")


def _plain(text: str) -> str:
    """Return an answer's text folded, without emphasis and marks of citations."""
    return _fold_text(_MARKUP.sub("", text))


def contains(text: str, expected: Contained) -> bool:
    """Return whether a folded text contains an expected text, one of several, or a number."""
    if isinstance(expected, ExpectedNumber):
        return _has_number(text, expected)
    if isinstance(expected, str):
        return _has_words(text, _fold_text(_MARKUP.sub("", expected)) or _fold_text(expected))
    return any(contains(text, alternative) for alternative in expected)


def _has_words(text: str, words: str) -> bool:
    """Return whether the text contains the words; a figure at their edges must match a whole number."""
    before = r"(?<!\d)(?<!\d[.,])" if words[:1].isdecimal() else ""
    after = r"(?!\d)(?![.,]\d)" if words[-1:].isdecimal() else ""
    return re.search(before + re.escape(words) + after, text) is not None


_NUMBER = re.compile(r"(?<![\d.,])[-+]?\d[\d.,' \u00a0\u202f]*\d|(?<![\d.,])[-+]?\d")


def _has_number(text: str, expected: ExpectedNumber) -> bool:
    unit = _fold_text(expected.unit)
    for match in _NUMBER.finditer(text):
        for value, length in readings_of(match[0]):
            # Decimal fractions have no exact binary form: 0.3 must match 0.1 + 0.2.
            if abs(value - expected.number) > expected.tolerance + 1e-9 * max(1.0, abs(expected.number)):
                continue
            after, before = text[match.start() + length :], text[: match.start()]
            if not unit or _begins_with_unit(after.lstrip(), unit) or before.rstrip().endswith(unit):
                return True
    return False


def _begins_with_unit(text: str, unit: str) -> bool:
    """Return whether a text begins with the unit as a whole word; ``pound`` also stands for ``pounds``."""
    if not text.startswith(unit):
        return False
    rest = text[len(unit) :]
    return not rest[:1].isalpha() or not unit[-1:].isascii() or re.match(r"s(?![a-z])", rest) is not None


def readings_of(written: str) -> Iterator[tuple[float, int]]:
    """Yield the values that a written number may have, each with the number of its characters.

    ``1,200`` is 1200 and 1.2; ``1.200,50`` is 1200.5; ``12 000`` is 12000, and also 12 followed by another number.
    """
    parts = re.split(r"([.,' \u00a0\u202f]+)", written)
    for count in range(1, len(parts) + 1, 2):
        digits, length = parts[:count:2], len("".join(parts[:count]))
        marks = [mark.strip() or " " for mark in parts[1:count:2]]
        sign = -1.0 if digits[0].startswith("-") else 1.0
        first = digits[0].lstrip("+-")
        rest = digits[1:]
        # Groups of three digits behind one kind of mark: the marks separate thousands.
        if all(len(group) == 3 for group in rest) and len(set(marks)) <= 1:
            yield sign * float(first + "".join(rest)), length
        # The last mark differs from the others: it may be the decimal mark.
        if (
            rest
            and marks[-1] in (".", ",")
            and all(len(group) == 3 for group in rest[:-1])
            and marks[-1] not in marks[:-1]
        ):
            yield sign * float(f"{first}{''.join(rest[:-1])}.{rest[-1]}"), length


# Declining

_DECLINES = tuple(
    re.compile(pattern)
    for pattern in (
        # English
        r"\b(found|find|contains?|have|has|know|see|says?|mention\w*|there (is|are)) "
        r"(nothing|no (information|answer|mention|details?|passages?|documents?|data|results?))",
        r"\b(could|can|did|do|does|was|were|is|are)(n't| ?not) (\w+ ){0,4}"
        r"(find|found|answer\w*|contain\w*|mention\w*|cover\w*|say|state\w*|include\w*|provide\w*|know|have|able"
        r"|available|specif\w+|help|tell|share|disclose)",
        r"\b(unable|not able) to (find|answer|help|tell|say)",
        r"\bno (relevant |matching )?(information|documents?|passages?|results?) "
        r"(was |were |is |are )?(found|available|about)",
        r"\b(outside|beyond) (the scope|my scope)|\bno documents that can be searched",
        # German
        r"\b(keine?|keinen|nichts) (\w+ ){0,5}"
        r"(gefunden|finden|enthalten|bekannt|verfügbar|informationen|angaben|antwort|hinweise?)",
        r"\b(kann|konnte|könnte|steht|enthalten|enthält|finde|weiß) (\w+ ){0,8}(nicht|nichts|keine)\b",
        # French, Spanish, Italian, Portuguese
        r"\b(aucune?|pas d'?|pas de) (information|réponse|document|mention|passage|résultat)"
        r"|\bn'ai (rien|pas) trouvé|\bne (peux|trouve|contien\w*|mentionn\w*|sais) pas",
        r"\bno (he |se |pude |puedo |encuentro |encontr\w+|hay |contien\w+|mencion\w+|dispon\w+)|\bno tengo",
        r"\bnon (ho trovato|trovo|è|sono|posso|contien\w*)|\bnessun\w* (informazion\w*|risultat\w*|document\w*)",
        r"\bnão (encontrei|há|consta\w*|posso|sei)|\bnenhum\w* (informaç\w*|resultad\w*|document\w*)",
        # Russian, Arabic
        r"\bне (наш\w+|найден\w*|могу|содерж\w+|указан\w*|упомина\w+)"
        r"|\bнет (информац\w+|данных|сведен\w+|ответа)",
        r"لم (أجد|يتم العثور|أعثر)|لا (توجد|يوجد|تتضمن|تحتوي|أستطيع)",
        # Chinese, Japanese, Korean
        r"(没有|沒有|未能?|无法|無法|找不到|查不到)[^。！？]{0,12}"
        r"(找到|查到|提到|提及|说明|說明|信息|資訊|内容|內容|回答|相关|相關|确定)|找不到|不清楚|没有可以查找",
        r"(見つかり|見当たり|記載され|含まれ|ござい|あり|わかり|分かり|答えられ)(ません|ていません)|情報はない",
        r"(찾을 수 없|찾지 못|없습니다|알 수 없|포함되어 있지 않|답변할 수 없)",
    )
)
"""Ways to say that the documents do not answer a question, matched against folded text."""


def declines(answer: SeenAnswer) -> bool:
    """Return whether an answer says that the documents do not answer the question, and cites nothing."""
    return not answer.cited and _says_it_declines(answer.text)


def _says_it_declines(text: str) -> bool:
    # Bounded, because the patterns take long on long texts. They know one form of the apostrophe.
    folded = _plain(text)[:4_000].replace("’", "'")
    return any(pattern.search(folded) for pattern in _DECLINES)


def _why_not_declined(answer: SeenAnswer) -> str:
    if answer.cited:
        return f"it cites {_describe_seen(answer.cited)}"
    return "it does not say that the documents have no answer"


@lru_cache(2_048)
def _fold_text(text: str) -> str:
    return fold(text).text.strip()


@lru_cache(2_048)
def _letters(text: str) -> str:
    """Return the letters and figures of a text, which two readings of the same text share."""
    return Letters.of(text).text


@dataclass(frozen=True, slots=True)
class ResultSummary:
    """The verdict on all repetitions of a case: the outcome of most of them."""

    outcome: CaseOutcome
    passed: int
    judged: int
    rank: int | None = None
    reasons: tuple[str, ...] = field(default=())


def summarise(outcomes: Sequence[tuple[CaseOutcome, int | None, str]]) -> ResultSummary:
    """Return the majority verdict of a case's repetitions, given as outcome, rank and reason.

    A case is unknown only if no repetition could be judged. A tie counts as failed.
    """
    judged = [repetition for repetition in outcomes if repetition[0] in (CaseOutcome.PASSED, CaseOutcome.FAILED)]
    reasons = tuple(dict.fromkeys(repetition[2] for repetition in outcomes if repetition[2]))
    if not judged:
        outcome = outcomes[0][0] if outcomes else CaseOutcome.UNKNOWN
        return ResultSummary(outcome, 0, 0, None, reasons)
    passed = sum(repetition[0] is CaseOutcome.PASSED for repetition in judged)
    ranks = sorted(repetition[1] for repetition in judged if repetition[1] is not None)
    rank = ranks[len(ranks) // 2] if ranks else None
    outcome = CaseOutcome.PASSED if 2 * passed > len(judged) else CaseOutcome.FAILED
    return ResultSummary(outcome, passed, len(judged), rank, reasons)
