"""XLSX, CSV and TSV: groups of whole rows below the repeated header, each with its cell range.

A sheet may hold several tables with a title above each: a title becomes a heading, a header is repeated over its own
rows only. Hidden sheets are not read: a citation of one could not be looked up.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from openpyxl.reader.excel import ExcelReader
from openpyxl.utils import get_column_letter

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.package import check_package, package_date
from mcp_servers.retriever.formats.text import decode

_SNIFFED_CHARACTERS = 1 << 11
"""What the sniffer looks at: its patterns take the square of it."""
_LAST_COLUMN = 18_278
"""ZZZ: columns beyond it are given its name."""
_DELIMITERS = ",;\t|"
_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?\n')
"""The first line by which Excel tells itself the delimiter."""

_FIGURE = re.compile(r"(?!(?:19|20)\d\d$)[\s(+−-]*+[$€£¥]?[\s+−-]*+\d[\d\s.,:/'’%€$£¥)T-]*+")
"""Numbers, amounts, dates and times: what stands in data, seldom in a header; years stand in both."""

_DIGITS = 15
"""What Excel itself shows of a number: 0.1 + 0.2 is 0.3."""


class _Row(NamedTuple):
    """``number`` is the row's in its sheet; ``cells`` are all from the first column on."""

    number: int
    cells: list[str]

    @property
    def filled(self) -> list[int]:
        return [at for at, cell in enumerate(self.cells) if cell.strip()]


class _Workbook(ExcelReader):  # type: ignore[misc]  # openpyxl has no types
    """openpyxl's reader without charts: it fails on sheets that hold nothing else."""

    def read_chartsheet(self, sheet: object, rel: object) -> None:
        """Nothing is read of a chart."""


def read_xlsx(path: Path, limits: ParseLimits) -> ParsedDocument:
    check_package(path, limits)
    with path.open("rb") as file:  # of a path, openpyxl would look at the ending
        return replace(_read_workbook(file, limits), date=package_date(path))


def _read_workbook(file: BinaryIO, limits: ParseLimits) -> ParsedDocument:
    reader = _Workbook(file, read_only=True, data_only=True, keep_links=False)
    reader.read()
    blocks: list[Block] = []
    left = limits.max_characters
    hidden = 0
    for sheet in reader.wb.worksheets:
        if sheet.sheet_state != "visible":
            hidden += 1
            continue
        # One cell in the last row or column would otherwise fill up all between: 17 billion.
        sheet.reset_dimensions()
        rows: list[_Row] = []
        for number, row in enumerate(sheet.iter_rows(), 1):
            cells = [_text(cell.value, cell) for cell in row]
            size = sum(map(len, cells))
            left -= size
            if left < 0:
                raise DocumentError(
                    "DOCUMENT_TOO_LARGE", f"the sheets hold more than {limits.max_characters:,} characters"
                )
            if size:
                rows.append(_Row(number, cells))
        blocks += _sheet(rows, sheet.title)
    reader.wb.close()
    return ParsedDocument(tuple(blocks), notes=(f"hidden sheets were not read: {hidden}",) if hidden else ())


def read_csv(path: Path, limits: ParseLimits) -> ParsedDocument:
    text = decode(path.read_bytes())
    csv.field_size_limit(limits.max_characters)
    first = 1
    if told := _SEPARATOR_LINE.match(text):
        text, first, delimiter, spaced = text[told.end() :], 2, told[1], False
    else:
        delimiter, spaced = _dialect(text[:_SNIFFED_CHARACTERS])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=spaced)
    return ParsedDocument(tuple(_sheet([_Row(number, cells) for number, cells in enumerate(reader, first)], "")))


def _dialect(sample: str) -> tuple[str, bool]:
    """Delimiter, and whether spaces follow it. What the sniffer thinks of quotes is true of the sample only."""
    try:
        dialect = csv.Sniffer().sniff(sample, _DELIMITERS)
    except csv.Error:
        return ",", False
    return dialect.delimiter, dialect.skipinitialspace


def _sheet(rows: Iterable[_Row], title: str) -> Iterator[Block]:
    """Blocks of a sheet's tables, below headings of the sheet (when it has a title) and of each table's own title."""
    tables = list(_tables([row for row in rows if row.filled]))
    titled = False
    for at, table in enumerate(tables):
        names, table = _titles(table)
        if title and (at == 0 or titled):
            yield heading(title, 1)
        if names:
            yield heading(" · ".join(names), 2 if title else 1)
        titled = bool(names)
        yield from _groups(table, f"{title}!" if title else "")


def _tables(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Runs of rows; a new one begins after an empty row if what follows looks like a title or header above data."""
    table: list[_Row] = []
    is_whole = False
    for at, row in enumerate(rows):
        if is_whole and row.number > table[-1].number + 1 and _begins_table(rows[at : at + 5]):
            yield table
            table, is_whole = [], False
        table.append(row)
        is_whole = is_whole or len(row.filled) > 1
    if table:
        yield table


def _begins_table(rows: Sequence[_Row]) -> bool:
    titles = next((at for at, row in enumerate(rows[:4]) if len(row.filled) > 1), 0)
    below = rows[titles + 1 : titles + 2]
    return _is_header(rows[titles]) and bool(below) and not _is_header(below[0])


def _is_header(row: _Row) -> bool:
    return len(row.filled) > 1 and not any(_FIGURE.fullmatch(row.cells[at]) for at in row.filled)


def _titles(table: list[_Row]) -> tuple[list[str], list[_Row]]:
    """The rows above a header that hold one text in its first column, and the rest."""
    start = next((at for at, row in enumerate(table) if len(row.filled) > 1), 0)
    first = min(at for row in table for at in row.filled)
    above = table[:start]
    if not _is_header(table[start]) or any(row.filled != [first] for row in above):
        return [], table
    return [row.cells[first].strip() for row in above], table[start:]


def _groups(rows: Sequence[_Row], sheet: str) -> Iterator[Block]:
    """Blocks of rows; columns that are empty in all of them are left out."""
    used = sorted({at for row in rows for at in row.filled})
    left, right = (get_column_letter(min(at + 1, _LAST_COLUMN)) for at in (used[0], used[-1]))
    texts = [[row.cells[at] for at in used if at < len(row.cells)] for row in rows]
    for first, last, text in row_groups(texts):
        yield Block("table", text, cells=f"{sheet}{left}{rows[first].number}:{right}{rows[last].number}")


def _text(value: object, cell: Any) -> str:
    """A cell as its author sees it, more or less."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        percent = "%" in (cell.number_format or "")
        return f"{value * 100:.{_DIGITS}g}%" if percent else _number(value)
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "seconds")
    return value.isoformat() if isinstance(value, date) else str(value)


def _number(value: float) -> str:
    if isinstance(value, int) or (value.is_integer() and abs(value) < 10**_DIGITS):
        return str(int(value))
    return f"{value:.{_DIGITS}g}"
