"""Evaluation cases as people write them: a question or short conversation, and facts that its answer must meet.

This module owns the form of a case, its limits, and the CSV and JSON forms in which cases travel. Pure. The store keeps
cases (``store.evaluation``), and `agentic_rag.evaluation` judges answers by them.
"""

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import Form, check_form
from agentic_rag.base.json_form import Json, to_text
from mcp_servers.folding import fold

MAX_CASES = 10_000
"""Maximum number of cases in a domain."""
MAX_QUESTIONS = 20
MAX_TEXT = 4_000
"""Maximum characters of a question or of an expected passage."""
MAX_ITEMS = 20
"""Maximum number of expectations of one kind."""
MAX_CSV_BYTES = 8 * 2**20

Words = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT, strip_whitespace=True)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=128, strip_whitespace=True)]


class ExpectedPassage(Form):
    """A passage that must be cited or found: ``document`` by its name, and optionally a place in it.

    ``section`` is one of the headings above the passage. ``cells`` is a range such as ``Rates!A2:D9``. ``text`` is part
    of the passage, so that the expectation survives re-indexing.
    """

    document: Name
    section: Name | None = None
    page: int | None = Field(None, ge=1, le=1_000_000)
    cells: Name | None = None
    text: Words | None = None


class ExpectedNumber(Form):
    """A number that the answer must contain, with an optional unit after or before it.

    ``tolerance`` is the largest accepted difference.
    """

    number: float = Field(allow_inf_nan=False)
    unit: Annotated[str, StringConstraints(max_length=40, strip_whitespace=True)] = ""
    tolerance: float = Field(0, ge=0, allow_inf_nan=False)


Contained = Words | Annotated[tuple[Words, ...], Field(min_length=1, max_length=MAX_ITEMS)] | ExpectedNumber
"""A text, one of several texts, or a number."""


class Expectations(Form):
    """The facts by which an answer is judged. At least one must be given.

    ``cites`` are passages; ``need`` says whether all of them or any one must be cited. ``declines`` is true if the
    answer must say that the documents do not answer the question, false if it must not. ``language`` is a code such as
    ``en`` or ``zh``. ``max_seconds`` and ``max_tokens`` bound the last turn.
    """

    cites: Annotated[tuple[ExpectedPassage, ...], Field(max_length=MAX_ITEMS)] = ()
    need: Literal["all", "any"] = "all"
    contains: Annotated[tuple[Contained, ...], Field(max_length=MAX_ITEMS)] = ()
    must_not_contain: Annotated[tuple[Words, ...], Field(max_length=MAX_ITEMS)] = ()
    declines: bool | None = None
    calls: Annotated[tuple[ToolName, ...], Field(max_length=MAX_ITEMS)] = ()
    must_not_call: Annotated[tuple[ToolName, ...], Field(max_length=MAX_ITEMS)] = ()
    language: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] | None = None
    max_seconds: float | None = Field(None, gt=0, le=86_400)
    max_tokens: int | None = Field(None, ge=1, le=100_000_000)

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        fields = (getattr(self, name) for name in type(self).model_fields if name != "need")
        if all(field is None or field == () for field in fields):
            raise ValueError("at least one expectation is needed, such as cites, contains or declines.")
        return self

    def to_json(self) -> Json:
        """Return the stored form: only the given expectations."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Return the expectations of a stored form."""
        return cls.model_validate(value)


class CaseForm(Form):
    """A case. ``questions`` are the user's messages of one conversation; the answer to the last one is judged."""

    questions: Annotated[tuple[Words, ...], Field(min_length=1, max_length=MAX_QUESTIONS)]
    expect: Expectations
    note: Annotated[str, StringConstraints(max_length=MAX_TEXT)] = ""

    def to_json(self) -> Json:
        """Return the form in which bundles and the history hold the case."""
        form: Json = {"questions": list(self.questions), "expect": self.expect.to_json()}
        return {**form, "note": self.note} if self.note else form


def digest_of(questions: Sequence[str]) -> str:
    """Return the identity of a case in its domain: a checksum of the folded questions."""
    folded = "\0".join(" ".join(fold(question).text.split()) for question in questions)
    return hashlib.sha256(folded.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# CSV

COLUMNS = (
    "question",
    "document",
    "section",
    "page",
    "cells",
    "text",
    "contains",
    "mustNotContain",
    "declines",
    "calls",
    "mustNotCall",
    "language",
    "maxSeconds",
    "maxTokens",
    "note",
)
"""The columns of a CSV file of cases; ``question`` is required. ``|`` separates alternatives, ``;`` several values."""
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class CsvCases:
    """The cases of a CSV file, and a problem for each row that is none. Rows count from 2, as spreadsheets do."""

    cases: tuple[CaseForm, ...]
    problems: tuple[InvalidInput, ...]


def read_csv(data: bytes) -> CsvCases:
    """Read cases from CSV: a header with names from `COLUMNS`, then one case a row. Comma, semicolon or tab separates.

    Rows that are no case are left out and listed.

    Raises:
        InvalidInput: the file is too large or no text, or a column is unknown, missing or listed twice.
    """
    if len(data) > MAX_CSV_BYTES:
        raise InvalidInput("body", f"{len(data)} bytes; a CSV file may have at most {MAX_CSV_BYTES}.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInput("body", "the file is not UTF-8 text; save it as CSV UTF-8.") from exc
    head = text.partition("\n")[0]
    separator = max(",;\t", key=head.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        names = _read_header(next(rows, []))
        cases: list[CaseForm] = []
        problems: list[InvalidInput] = []
        for number, cells in enumerate(rows, 2):
            if not any(cell.strip() for cell in cells):
                continue
            if len(cases) + len(problems) >= MAX_CASES:
                raise InvalidInput("body", f"more than {MAX_CASES} rows; a domain has at most that many cases.")
            case, row_problems = _read_row(names, cells, f"row {number}")
            cases += [case] if case is not None else []
            problems += row_problems[:1]
    except csv.Error as exc:
        raise InvalidInput("body", f"line {rows.line_num} is not CSV: {exc}.") from exc
    return CsvCases(tuple(cases), tuple(problems))


def _read_header(cells: Sequence[str]) -> list[str]:
    by_folded = {name.casefold(): name for name in COLUMNS}
    names: list[str] = []
    for cell in cells:
        name = by_folded.get(cell.strip().replace("_", "").replace(" ", "").casefold())
        if name is None:
            column_names = ", ".join(COLUMNS)
            raise InvalidInput(
                "header", f"the column {cell.strip()[:200]!r} is unknown. Known columns: {column_names}."
            )
        if name in names:
            raise InvalidInput("header", f"the column {name!r} is listed twice.")
        names.append(name)
    if "question" not in names:
        raise InvalidInput("header", f"the column 'question' is missing. Known columns: {', '.join(COLUMNS)}.")
    return names


def _read_row(names: Sequence[str], cells: Sequence[str], place: str) -> tuple[CaseForm | None, list[InvalidInput]]:
    if len(cells) > len(names):
        return None, [InvalidInput(place, f"{len(cells)} cells, but the header names {len(names)} columns.")]
    row = {name: _unguard(cell.strip()) for name, cell in zip(names, cells, strict=False) if cell.strip()}
    expect: dict[str, Any] = {}
    passage: dict[str, Any] = {key: row[key] for key in ("document", "section", "cells", "text") if key in row}
    flag = row.get("declines", "yes").casefold()
    if flag not in _FLAGS:
        return None, [InvalidInput(f"{place}.declines", f"yes or no is expected, not {flag[:200]!r}.")]
    try:
        for key, read in (("page", int), ("maxSeconds", float), ("maxTokens", int)):
            if key in row:
                (passage if key == "page" else expect)[key] = read(row[key])
        expect |= {key: _several(row[key]) for key in ("mustNotContain", "calls", "mustNotCall") if key in row}
        if "contains" in row:
            expect["contains"] = [_read_contained(part) for part in _several(row["contains"])]
    except ValueError as exc:
        return None, [InvalidInput(place, f"a number is expected: {exc}.")]
    expect |= {"cites": [passage]} if passage else {}
    expect |= {"declines": _FLAGS[flag]} if "declines" in row else {}
    expect |= {"language": row["language"]} if "language" in row else {}
    questions = [line for line in row.get("question", "").split("\n") if line.strip()]
    return check_form(CaseForm, {"questions": questions, "expect": expect, "note": row.get("note", "")}, place)


def _several(cell: str) -> list[str]:
    return [part.strip() for part in cell.split(";") if part.strip()]


def _read_contained(text: str) -> object:
    """Return a text, a list of alternatives, or a number: ``=900±5 m³/h``."""
    if text.startswith("="):
        body = text[1:].strip()
        size = 0
        while size < len(body) and (body[size].isdecimal() or body[size] in "+-.eE±"):
            size += 1
        number, _, tolerance = body[:size].partition("±")
        return {"number": float(number), "tolerance": float(tolerance or 0), "unit": body[size:].strip()}
    parts = [part.strip() for part in text.split("|") if part.strip()]
    return parts if len(parts) > 1 else text


def write_csv(cases: Sequence[CaseForm]) -> str:
    """Return cases as CSV. Only the first of several passages fits into the columns."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\r\n")
    rows.writerow(COLUMNS)
    for case in cases:
        rows.writerow([_guard(cell) for cell in _cells(case)])
    return out.getvalue()


def _guard(cell: str) -> str:
    """Return a cell that no spreadsheet runs as a formula."""
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@") and not cell[1:2].isdecimal() else cell


def _unguard(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and cell[1:2] in ("=", "+", "-", "@") else cell


def _cells(case: CaseForm) -> list[str]:
    expect = case.expect
    passage = expect.cites[0] if expect.cites else None
    bounds = [expect.max_seconds, expect.max_tokens]
    return [
        "\n".join(case.questions),
        passage.document if passage else "",
        (passage and passage.section) or "",
        str(passage.page) if passage and passage.page else "",
        (passage and passage.cells) or "",
        (passage and passage.text) or "",
        "; ".join(describe_contained(item) for item in expect.contains),
        "; ".join(expect.must_not_contain),
        "" if expect.declines is None else "yes" if expect.declines else "no",
        "; ".join(expect.calls),
        "; ".join(expect.must_not_call),
        expect.language or "",
        *("" if bound is None else f"{bound:g}" for bound in bounds),
        case.note,
    ]


def describe_contained(expected: Contained) -> str:
    """Return an expected text, alternatives or number as the CSV form writes them."""
    if isinstance(expected, ExpectedNumber):
        tolerance = f"±{expected.tolerance:g}" if expected.tolerance else ""
        return f"={expected.number:g}{tolerance}{f' {expected.unit}' if expected.unit else ''}"
    return expected if isinstance(expected, str) else "|".join(expected)


# Bundles and templates

CASES_FORMAT_KEY = "cases"


def write_cases(cases: Sequence[CaseForm]) -> Json:
    """Return cases as the JSON object of a bundle or a template, in an order that does not depend on time."""
    ordered = sorted((case.to_json() for case in cases), key=lambda document: json.dumps(document, sort_keys=True))
    return {CASES_FORMAT_KEY: ordered}


def read_cases(document: Json, path: str) -> CsvCases:
    """Return the cases of such an object; those that do not fit are left out and listed.

    Raises:
        InvalidInput: the object has no list of cases, or too many.
    """
    listed = document.get(CASES_FORMAT_KEY)
    if not isinstance(listed, list):
        raise InvalidInput(path, 'an object with a list "cases" is expected.')
    if len(listed) > MAX_CASES:
        raise InvalidInput(path, f"{len(listed)} cases; a domain has at most {MAX_CASES}.")
    cases: list[CaseForm] = []
    problems: list[InvalidInput] = []
    for number, item in enumerate(listed):
        case, case_problems = check_form(CaseForm, item, f"{path}.cases[{number}]")
        cases += [case] if case is not None else []
        problems += case_problems[:1]
    return CsvCases(tuple(cases), tuple(problems))


def case_text(case: CaseForm) -> str:
    """Return the text of a case for the history."""
    return json.dumps(case.to_json(), indent=2, ensure_ascii=False, sort_keys=True)


def size_of(case: CaseForm) -> int:
    """Return the size of a case as JSON, in bytes."""
    return len(to_text(case.to_json()).encode("utf-8", "surrogatepass"))
