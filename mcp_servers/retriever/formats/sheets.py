"""XLSX, XLS, CSV and TSV: groups of whole rows below the repeated header, each with its cell range.

A sheet may have several tables with a title above each: a title becomes a heading, a header is repeated only over its
own rows. The value of a merged cell is repeated in each of its cells. Hidden sheets are not read, because a person
could not look up a citation of one.
"""

import csv
import io
import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from openpyxl.reader.excel import ExcelReader
from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format, is_timedelta_format
from openpyxl.utils import get_column_letter
from openpyxl.utils.cell import range_boundaries
from openpyxl.utils.datetime import from_excel
from openpyxl.worksheet._reader import WorkSheetParser
from openpyxl.xml.functions import iterparse

from mcp_servers.retriever.document import Block, Json, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.drawing import local, read_drawing, unescape
from mcp_servers.retriever.formats.number_formats import iso_moment, plain_number, show_date, show_number
from mcp_servers.retriever.formats.package import (
    Parts,
    Relation,
    open_office,
    package_date,
    parse_xml,
    read_integer,
    unread_parts,
)
from mcp_servers.retriever.formats.text import decode, to_superscript, with_address

MAX_UNCLOSED = 20
"""Maximum number of quotation marks without an end that are mended, since each needs another pass over the rest."""
_SNIFFED_CHARACTERS = 1 << 11
"""Characters that the sniffer reads: its patterns take quadratic time."""
_SNIFFED_LINES = 20
"""Lines whose delimiters are counted."""
_LAST_COLUMN = 18_278
"""Number of column ZZZ, whose name also stands for the columns beyond it."""
_DELIMITERS = ",;\t|"
_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?\n')
"""First line that declares the delimiter to Excel."""

MAX_REPEATED_CELLS = 500_000
"""Maximum number of cells of a sheet filled by merged cells; further ones keep their value in the first cell only."""
MAX_TABLE_CELLS = 4_000_000
"""Maximum product of rows and columns of one table; a larger, sparse one is written as lines of single cells."""
MAX_NAMED = 10
"""Maximum number of names in one note."""

_DIGIT = re.compile(r"\d")
_WITH_UNIT = re.compile(r"[\s(+−-]*+(?:[A-Z]{3}\s|[$€£¥])?\s*+\d")
"""Start of a number with a unit, such as "9 m" or "EUR 5", but not of a name with a number, such as "Room 9"."""
_FIGURE = re.compile(r"(?!(?:19|20)\d\d$)[\s(+−-]*+[$€£¥]?[\s+−-]*+\d[\d\s.,:/'’%€$£¥)T-]*+")
"""Numbers, amounts, dates and times, which occur in data but rarely in headers. Years, which occur in both, are
excluded."""

_HYPERLINK = re.compile(r"""=?\s*HYPERLINK\s*\(\s*"([^"]{1,2000})\"""", re.IGNORECASE)
_PAGE_CODES = re.compile(r'&(?:"[^"]*"|K[0-9A-F]{6}|K\d\d[+-]\d{3}|[PNDTZFAGBIUESXYHOQ]|[+-]?\d+|[LCR])', re.IGNORECASE)
_SIDES = re.compile(r"(?<!&)&[LCR]")
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_MARGINS = ("oddHeader", "evenHeader", "firstHeader", "oddFooter", "evenFooter", "firstFooter")
_CLEARED = ("row", "mergeCell", "hyperlink", "dataValidation", "conditionalFormatting")
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


class _SheetRow(NamedTuple):
    """A row of a sheet. ``number`` is its number in the sheet; ``cells`` are the cells with text, by column from 0."""

    number: int
    cells: dict[int, str]

    @property
    def filled(self) -> list[int]:
        return sorted(self.cells)


class Merge(NamedTuple):
    """A merged range: rows from 1, columns from 0, both ends within."""

    first_row: int
    last_row: int
    first_column: int
    last_column: int


class _Workbook(ExcelReader):  # type: ignore[misc]  # openpyxl has no types
    """openpyxl's reader without charts, because it fails on sheets that consist of a chart."""

    def read_chartsheet(self, sheet: Any, rel: Any) -> None:
        """Record the part of a chart sheet, whose chart is read like that of a slide."""
        self.chartsheets = [*getattr(self, "chartsheets", []), (sheet, rel.target)]


class _SheetParser(WorkSheetParser):  # type: ignore[misc]
    """openpyxl's parser of cells, which also returns the formulas of links and of cells without a value.

    Without date formats the parser leaves dates as numbers, so that this module can apply their format. Of the elements
    beside the cells, it keeps only those that are read here: openpyxl creates objects for all of them, which takes
    minutes for 100 000 merged cells, and fails at a broken one.
    """

    def parse(self) -> Iterator[tuple[int, Sequence[Json]]]:
        self.merges: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.margins: list[str] = []
        self.hidden_columns = self.validations = self.conditions = 0
        for _, element in iterparse(self.source):
            name = local(element)
            if name == "row":
                yield self.parse_row(element)
            elif name == "mergeCell":
                self.merges.append(element.get("ref", ""))
            elif name == "hyperlink":
                self.links.append((element.get("ref", ""), element.get(_RELATION, "")))
            elif name in _MARGINS:
                self.margins.append(element.text or "")
            elif name == "col" and element.get("hidden") in ("1", "true"):
                self.hidden_columns += _column_count(element)
            elif name in ("dataValidation", "conditionalFormatting"):
                self.validations += name == "dataValidation"
                self.conditions += name == "conditionalFormatting"
            # Their contents are freed at once: a sheet may have a hundred thousand of each.
            if name in _CLEARED:
                element.clear()

    def parse_cell(self, element: Any) -> Json:
        cell: Json = super().parse_cell(element)
        if element.get("t") == "inlineStr" and next(element.iter(f"{_MAIN}vertAlign"), None) is not None:
            return {**cell, "value": _rich_text(element.find(f"{_MAIN}is"))}
        formula = element.find(f"{_MAIN}f")
        if formula is None:
            return cell
        if formula.get("t") == "shared" and formula.text:
            self.parse_formula(element)  # records the formula from which cells that share it are translated
        if cell["value"] is None and element.get("t") != "str":
            expression = self.parse_formula(element)
            return {**cell, "formula": str(getattr(expression, "text", expression) or "=")}
        if formula.text and (link := _HYPERLINK.match(formula.text)):
            return {**cell, "address": link[1]}
        return cell


@dataclass(slots=True)
class _UnreadCounts:
    """Counts of contents other than tables, for the notes."""

    hidden_sheets: int = 0
    hidden_rows: int = 0
    hidden_columns: int = 0
    formulas: int = 0
    validations: int = 0
    conditions: int = 0
    unrepeated: int = 0


def read_xlsx(path: Path, limits: ParseLimits) -> ParsedDocument:
    office = open_office(path, limits)
    counts = _UnreadCounts()
    with office.open() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes name the problems of which openpyxl warns
        blocks, names, parts = _read_workbook(file, limits, counts)
    notes = (*office.notes, *_notes(counts, names), *unread_parts(path, parts))
    return ParsedDocument(tuple(blocks), notes=notes, date=package_date(path))


def _read_workbook(file: BinaryIO, limits: ParseLimits, counts: _UnreadCounts) -> tuple[list[Block], list[str], Parts]:
    reader = _Workbook(file, read_only=True, data_only=True, keep_links=False)
    reader.read()
    _mark_raised(reader)
    book, parts = reader.wb, Parts(reader.archive)
    # openpyxl has read them; without the mark they would be named as unread parts.
    parts.mark_read(*(name for name in reader.archive.namelist() if "sharedStrings" in name))
    blocks: list[Block] = []
    left = limits.max_characters
    for sheet in book.worksheets:
        if sheet.sheet_state != "visible":
            counts.hidden_sheets += 1
            parts.mark_read(sheet._worksheet_path)
            continue
        rows, extras = _read_sheet(sheet, left, parts, counts)
        left -= sum(len(text) for row in rows for text in row.cells.values())
        shown = list(table_blocks(rows, sheet.title))
        if extras and not shown:
            shown = [heading(sheet.title, 1)]
        blocks += [*shown, *extras]
    for sheet, part in getattr(reader, "chartsheets", []):
        if sheet.state != "visible":
            counts.hidden_sheets += 1
        elif charts := _drawings(parts, part.lstrip("/")):
            blocks += [heading(sheet.name, 1), *charts]
    names = [*book.defined_names, *(name for sheet in book.worksheets for name in sheet.defined_names)]
    book.close()
    return blocks, [name for name in names if not name.startswith("_xlnm.")], parts


def _mark_raised(reader: _Workbook) -> None:
    """Replace shared texts that have raised digits, which openpyxl joins with the digits before them."""
    for name in reader.archive.namelist():
        if "sharedStrings" not in name or b'"superscript"' not in (data := reader.archive.read(name)):
            continue
        for index, item in enumerate(parse_xml(data).iter(f"{_MAIN}si")):
            if index < len(reader.shared_strings) and next(item.iter(f"{_MAIN}vertAlign"), None) is not None:
                reader.shared_strings[index] = _rich_text(item)


def _rich_text(item: Any) -> str:
    """Return the text of runs with formats, without the readings of their characters."""
    pieces = []
    for run in item:
        if run.tag in (f"{_MAIN}t", f"{_MAIN}r"):
            text = "".join(piece.text or "" for piece in run.iter(f"{_MAIN}t"))
            is_raised = any(element.get("val") == "superscript" for element in run.iter(f"{_MAIN}vertAlign"))
            pieces.append(to_superscript(text) if is_raised else text)
    return "".join(pieces)


def _read_sheet(sheet: Any, left: int, parts: Parts, counts: _UnreadCounts) -> tuple[list[_SheetRow], list[Block]]:
    """Return the rows of a sheet with text, and its comments, drawings and page headers."""
    part = sheet._worksheet_path
    parts.mark_read(part)
    rows: list[_SheetRow] = []
    with sheet._get_source() as source:
        parser = _SheetParser(source, sheet._shared_strings, data_only=True, epoch=sheet.parent.epoch)
        for number, raw in parser.parse():
            cells = {cell["column"] - 1: text for cell in raw if (text := _show_cell(cell, sheet.parent)).strip()}
            counts.formulas += sum("formula" in cell for cell in raw)
            left -= sum(map(len, cells.values()))
            if left < 0:
                raise DocumentError("DOCUMENT_TOO_LARGE", "the sheets hold more characters than can be read")
            if cells:
                rows.append(_SheetRow(number, cells))
    _count_unread(parser, counts)
    _add_addresses(rows, parser, parts.relations(part))
    bounds = filter(None, map(_bounds, parser.merges))
    rows, unrepeated = repeat_merged(rows, [Merge(top, end, first - 1, last - 1) for first, top, last, end in bounds])
    counts.unrepeated += unrepeated
    extras = [*_page_texts(parser.margins), *_comments(parts, part), *_drawings(parts, part)]
    return rows, extras


def _show_cell(cell: Json, book: Any) -> str:
    return with_address(cell.get("formula") or _text(cell, book), cell.get("address"))


def _count_unread(parser: Any, counts: _UnreadCounts) -> None:
    counts.hidden_rows += sum(row.get("hidden") in ("1", "true") for row in parser.row_dimensions.values())
    counts.hidden_columns += parser.hidden_columns
    counts.validations += parser.validations
    counts.conditions += parser.conditions


def _add_addresses(rows: Sequence[_SheetRow], parser: Any, relations: Mapping[str, Relation]) -> None:
    """Append the address of each linked cell to its text."""
    addresses: dict[tuple[int, int], str] = {}
    for reference, ident in parser.links:
        relation = relations.get(ident)
        bounds = _bounds(reference)
        if relation is not None and relation.is_external and bounds is not None:
            addresses[bounds[1], bounds[0] - 1] = relation.target
    for row in rows if addresses else ():
        for column, text in row.cells.items():
            row.cells[column] = with_address(text, addresses.get((row.number, column)))


def _bounds(reference: str) -> tuple[int, int, int, int] | None:
    """Return the first column and row and the last ones of a range, from 1, or None for an invalid range."""
    try:
        first_column, first_row, last_column, last_row = range_boundaries(reference)
    except (TypeError, ValueError):
        return None
    bounds = (first_column, first_row, last_column, last_row)
    return None if None in bounds else bounds


def _column_count(column: Mapping[str, str]) -> int:
    """Return the number of columns of an element; a hidden rest of the sheet counts as one."""
    first, last = read_integer(column.get("min"), 1), read_integer(column.get("max"), 1)
    return last - first + 1 if first <= last < 16_384 else 1


def repeat_merged(rows: Sequence[_SheetRow], merges: Iterable[Merge]) -> tuple[list[_SheetRow], int]:
    """Repeat the value of each merged cell in all its cells; return the rows and the number of ranges left out.

    A merged cell over the whole width of its rows is a title, whose value is written once in each row.
    """
    by_number = {row.number: row for row in rows}
    numbers = [row.number for row in rows]
    last_used = max((max(row.cells) for row in rows), default=0)
    room = MAX_REPEATED_CELLS
    unrepeated = 0
    added: dict[int, dict[int, str]] = {}
    for merge in merges:
        row = by_number.get(merge.first_row)
        text = row.cells.get(merge.first_column) if row is not None else None
        if text is None:
            continue
        # A range may reach to the end of the sheet, far behind the last text.
        last_column = min(merge.last_column, max(last_used, merge.first_column))
        columns = range(merge.first_column, last_column + 1)
        is_title = row is not None and set(row.cells) <= set(columns) and merge.first_row == merge.last_row
        below = numbers[bisect_left(numbers, merge.first_row) : bisect_right(numbers, merge.last_row)]
        if is_title:
            continue
        room -= len(columns) * len(below)
        if room < 0:
            unrepeated += 1
            continue
        for number in below:
            added.setdefault(number, {}).update((column, text) for column in columns)
    return [_SheetRow(row.number, {**added.get(row.number, {}), **row.cells}) for row in rows], unrepeated


def _comments(parts: Parts, sheet: str) -> Iterator[Block]:
    """Yield the comments on the cells of a sheet as one list."""
    texts: dict[str, list[tuple[str, str]]] = {}
    people = _people(parts)
    for kind in ("threadedComment", "comments"):  # a threaded comment is repeated in the older form
        own: dict[str, list[tuple[str, str]]] = {}
        for name in parts.related_parts(sheet, kind):
            root = parts.xml(name)
            authors = [] if root is None else [entry.text or "" for entry in root.iter("{*}author")]
            for element in () if root is None else root.iter("{*}comment", "{*}threadedComment"):
                words = "".join(piece.text or "" for piece in element.iter("{*}t", "{*}text"))
                number = read_integer(element.get("authorId"), -1)
                author = people.get(element.get("personId", ""), "")
                if 0 <= number < len(authors):
                    author = authors[number]
                author = "" if author.startswith("tc=") else " ".join(author.split())[:80]  # the id of a thread
                own.setdefault(element.get("ref", ""), []).append((author, " ".join(unescape(words).split())))
        for cell, comments in own.items():
            texts.setdefault(cell, comments)
    lines = [
        f"- Comment on {cell}{f' by {author}' if author else ''}: {_without_author(text, author)}"
        for cell, comments in texts.items()
        for author, text in comments
        if text
    ]
    if lines:
        yield Block("list", "\n".join(lines))


def _people(parts: Parts) -> dict[str, str]:
    """Return the names of the authors of threaded comments by their ids."""
    people = {}
    for name in parts.related_parts("xl/workbook.xml", "person"):
        root = parts.xml(name)
        for person in () if root is None else root.iter("{*}person"):
            people[person.get("id", "")] = person.get("displayName", "")
    return people


def _without_author(text: str, author: str) -> str:
    """Return a comment without its author's name, with which Excel begins the text."""
    return (text.removeprefix(f"{author}:").strip() or text) if author else text


def _drawings(parts: Parts, sheet: str) -> list[Block]:
    return [block for name in parts.related_parts(sheet, "drawing") for block in read_drawing(parts, name)]


def _page_texts(margins: Iterable[str]) -> Iterator[Block]:
    """Yield the printed headers and footers of a sheet, each distinct text once; page numbers are left out."""
    texts: dict[str, None] = {}
    for raw in margins:
        for piece in _SIDES.split(raw):
            text = " ".join(_PAGE_CODES.sub(" ", piece).replace("&&", "&").split())
            if re.search(r"\w", re.sub(r"(?i)\b(?:page|of|seite|von)\b", "", text)):
                texts[text] = None
    yield from (Block("prose", text) for text in texts)


def _notes(counts: _UnreadCounts, names: list[str]) -> Iterator[str]:
    if counts.formulas:
        yield (
            f"formulas without a value: {counts.formulas}; they are shown as formulas. "
            "Open the workbook in a spreadsheet program and save it"
        )
    if counts.hidden_sheets:
        yield f"hidden sheets were not read: {counts.hidden_sheets}"
    if counts.hidden_rows:
        yield f"hidden rows were read too: {counts.hidden_rows}"
    if counts.hidden_columns:
        yield f"hidden columns were read too: {counts.hidden_columns}"
    if counts.validations:
        yield f"data validations (rules for the input of cells) were not read: {counts.validations}"
    if counts.conditions:
        yield f"conditional formats were not read: {counts.conditions}"
    if names:
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        yield f"defined names were not read: {', '.join(name[:60] for name in names[:MAX_NAMED])}{more}"
    if counts.unrepeated:
        yield f"merged cells whose value stands in their first cell only: {counts.unrepeated}"


def read_csv(path: Path, limits: ParseLimits) -> ParsedDocument:
    return _read_delimited(path, limits, "")


def read_tsv(path: Path, limits: ParseLimits) -> ParsedDocument:
    return _read_delimited(path, limits, "\t")


def _read_delimited(path: Path, limits: ParseLimits, usual: str) -> ParsedDocument:
    """Read a text file of rows; ``usual`` is the delimiter of the file's ending, if the ending implies one."""
    text = decode(path.read_bytes())
    csv.field_size_limit(limits.max_characters)  # Python's own limit of a cell is 131 072 characters
    first = 1
    if declared := _SEPARATOR_LINE.match(text):
        text, first, delimiter, spaced = text[declared.end() :], 2, declared[1], False
    else:
        delimiter, spaced = _dialect(text, usual)
    records, unclosed = _read_records(text, delimiter, spaced)
    title = text.partition("\n")[0].strip()
    rows = [
        _SheetRow(number, {at: cell for at, cell in enumerate(cells) if cell.strip()})
        for number, cells in enumerate(records, first)
    ]
    rows = [row for row in rows if row.cells]
    if _begins_with_title(rows):  # the line has the delimiter, but as punctuation
        rows[0] = _SheetRow(rows[0].number, {0: title})
    notes = [
        f"the quotation mark in line {number + first - 1} has no end; the line was read as it is" for number in unclosed
    ]
    return ParsedDocument(tuple(table_blocks(rows, "")), notes=tuple(notes))


def _read_records(text: str, delimiter: str, spaced: bool) -> tuple[list[list[str]], list[int]]:
    """Return the rows of a delimited text, and the numbers of the lines with a quotation mark that has no end.

    Python's reader takes everything behind such a mark as one cell, so that line is read without quotation marks.
    """
    lines = list(io.StringIO(text, newline=""))
    rows: list[list[str]] = []
    unclosed: list[int] = []
    start = 0
    while start < len(lines):
        reader = csv.reader(lines[start:], delimiter=delimiter, skipinitialspace=spaced)
        begin = start
        for row in reader:
            end = start + reader.line_num
            if end - begin > 1 and len(unclosed) < MAX_UNCLOSED and not _is_record(lines[begin:end], delimiter, spaced):
                break
            rows.append(row)
            begin = end
        else:
            break
        rows += csv.reader([lines[begin]], delimiter=delimiter, quoting=csv.QUOTE_NONE)
        unclosed.append(begin + 1)
        start = begin + 1
    return rows, unclosed


def _is_record(lines: Sequence[str], delimiter: str, spaced: bool) -> bool:
    """Return whether lines are a record whose quotation marks are all at the ends of cells."""
    try:
        return len(list(csv.reader(lines, delimiter=delimiter, skipinitialspace=spaced, strict=True))) == 1
    except csv.Error:
        return False


def _begins_with_title(rows: Sequence[_SheetRow]) -> bool:
    """Return whether the first row is a sentence above a wider header: fewer cells than all rows below it."""
    if len(rows) < 3 or not 1 < len(rows[0].cells) < len(rows[1].cells) or not _is_header(rows[1]):
        return False
    return all(row.filled == rows[1].filled for row in rows[2:_SNIFFED_LINES]) and not _is_header(rows[2])


def _dialect(text: str, usual: str) -> tuple[str, bool]:
    """Return the delimiter, and whether spaces follow it. The sniffer's guess about quotes holds for the sample only.

    The delimiter of the file's ending has priority if the first lines contain it. Next is a delimiter that divides all
    of the first lines into the same number of cells: tabs before semicolons and bars, and these before commas, which
    occur in numbers too.
    """
    sample = text[:_SNIFFED_CHARACTERS]
    if usual and usual in sample:
        return usual, False
    lines = [line for line in sample.split("\n")[:_SNIFFED_LINES] if line.strip()]
    if len(lines) > 1 and all("\t" in line for line in lines[:-1]):  # the last one may be cut off
        return "\t", False
    longer = text[: _SNIFFED_CHARACTERS * 4]
    title, _, below = longer.partition("\n")
    for delimiter in (";", "|"):
        if _divides_evenly(longer, delimiter):
            return delimiter, False
        # a title above the header, such as "Prices; in euros"; a line with commas alone may be a header
        if (delimiter in title or "," not in title) and _divides_evenly(below, delimiter):
            return delimiter, False
    try:
        dialect = csv.Sniffer().sniff(sample, _DELIMITERS)
    except csv.Error:
        return ",", False
    return dialect.delimiter, dialect.skipinitialspace


def _divides_evenly(sample: str, delimiter: str) -> bool:
    """Return whether the first rows, at least two, all have the same number of cells, more than one."""
    reader = csv.reader(io.StringIO(sample[: sample.rfind("\n") + 1] or sample, newline=""), delimiter=delimiter)
    widths: set[int] = set()
    count = 0
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                widths.add(len(row))
                count += 1
            if count == _SNIFFED_LINES:
                break
    except csv.Error:
        return False
    return count > 1 and len(widths) == 1 and min(widths) > 1


def read_xls(path: Path, limits: ParseLimits) -> ParsedDocument:
    """Read a workbook of Excel 97 to 2003, with python-calamine."""
    # part of the extra `legacy`
    from python_calamine import CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

    with path.open("rb") as file:
        book = CalamineWorkbook.from_filelike(io.BytesIO(file.read()))
    blocks: list[Block] = []
    left = limits.max_characters
    notes = ["number formats of this old Excel version are not shown; values are as stored"]
    hidden = others = 0
    for facts in book.sheets_metadata:
        if facts.typ != SheetTypeEnum.WorkSheet:
            others += 1
            continue
        if facts.visible != SheetVisibleEnum.Visible:
            hidden += 1
            continue
        sheet = book.get_sheet_by_name(facts.name)
        rows: list[_SheetRow] = []
        for number, values in enumerate(sheet.iter_rows(), 1):
            cells = {at: text for at, value in enumerate(values) if (text := _plain(value)).strip()}
            left -= sum(map(len, cells.values()))
            if left < 0:
                raise DocumentError("DOCUMENT_TOO_LARGE", "the sheets hold more characters than can be read")
            if cells:
                rows.append(_SheetRow(number, cells))
        merges = [Merge(a[0] + 1, b[0] + 1, a[1], b[1]) for a, b in sheet.merged_cell_ranges or []]
        rows, unrepeated = repeat_merged(rows, merges)
        blocks += table_blocks(rows, facts.name)
        if unrepeated:
            notes.append(f"merged cells whose value stands in their first cell only: {unrepeated}")
    if hidden:
        notes.append(f"hidden sheets were not read: {hidden}")
    if others:
        notes.append(f"sheets of charts and macros were not read: {others}")
    return ParsedDocument(tuple(blocks), notes=tuple(notes))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return plain_number(value)
    if isinstance(value, datetime | date | time):
        return iso_moment(value)
    if isinstance(value, timedelta):
        return show_date(value, "[h]:mm:ss")
    return "" if value is None else str(value)


def table_blocks(rows: Sequence[_SheetRow], title: str) -> Iterator[Block]:
    """Yield the blocks of a sheet's tables, below headings of the sheet (if it has a title) and of each table."""
    tables = list(_tables(rows))
    titled = False
    for at, table in enumerate(tables):
        names, table = _titles(table)
        if title and (at == 0 or titled):
            yield heading(title, 1)
        if names:
            yield heading(" · ".join(names), 2 if title else 1)
        titled = bool(names)
        yield from _groups(table, f"{title}!" if title else "")


def sheet_row(number: int, cells: dict[int, str]) -> _SheetRow:
    """Return a row for `table_blocks`: its number from 1, its texts by column from 0."""
    return _SheetRow(number, cells)


def _tables(rows: Sequence[_SheetRow]) -> Iterator[list[_SheetRow]]:
    """Yield runs of rows; a run ends at an empty row that is followed by a likely title or header above data."""
    table: list[_SheetRow] = []
    is_whole = False
    for at, row in enumerate(rows):
        if is_whole and row.number > table[-1].number + 1 and _begins_table(rows[at : at + 5]):
            yield table
            table, is_whole = [], False
        table.append(row)
        is_whole = is_whole or len(row.cells) > 1
    if table:
        yield table


def _begins_table(rows: Sequence[_SheetRow]) -> bool:
    titles = next((at for at, row in enumerate(rows[:4]) if len(row.cells) > 1), 0)
    header, below = rows[titles], rows[titles + 1 : titles + 2]
    return _is_header(header) and bool(below) and (not _is_header(below[0]) or _has_units(header, rows[titles + 1 :]))


def _has_units(header: _SheetRow, below: Sequence[_SheetRow]) -> bool:
    """Return whether a name is above numbers with units, such as "9 m", in all of the adjacent rows, at least two."""
    adjacent = [row for at, row in enumerate(below) if row.number == header.number + 1 + at]
    return len(adjacent) > 1 and any(
        not _DIGIT.search(name) and all(_WITH_UNIT.match(row.cells.get(at, "")) for row in adjacent)
        for at, name in header.cells.items()
    )


def _is_header(row: _SheetRow) -> bool:
    return len(row.cells) > 1 and not any(_FIGURE.fullmatch(text) for text in row.cells.values())


def _titles(table: list[_SheetRow]) -> tuple[list[str], list[_SheetRow]]:
    """Split off the rows above a header whose only text is in its first column; return their texts and the rest."""
    start = next((at for at, row in enumerate(table) if len(row.cells) > 1), 0)
    first = min(min(row.cells) for row in table)
    above = table[:start]
    if not _is_header(table[start]) or any(row.filled != [first] for row in above):
        return [], table
    return [row.cells[first].strip() for row in above], table[start:]


def _groups(rows: Sequence[_SheetRow], sheet: str) -> Iterator[Block]:
    """Yield blocks of rows, without columns that are empty in all of them."""
    used = sorted({at for row in rows for at in row.cells})
    if len(used) * len(rows) > MAX_TABLE_CELLS:
        # a diagonal of 16 384 cells has 268 million empty ones beside it
        lines = [f"{_letter(at)}{row.number}: {' '.join(row.cells[at].split())}" for row in rows for at in row.filled]
        yield Block("list", "\n".join(lines), cells=f"{sheet}{_range(used, rows[0], rows[-1])}")
        return
    texts = [[row.cells.get(at, "") for at in used] for row in rows]
    for first, last, text in row_groups(texts):
        yield Block("table", text, cells=f"{sheet}{_range(used, rows[first], rows[last])}")


def _range(used: Sequence[int], first: _SheetRow, last: _SheetRow) -> str:
    return f"{_letter(used[0])}{first.number}:{_letter(used[-1])}{last.number}"


def _letter(column: int) -> str:
    return str(get_column_letter(min(column + 1, _LAST_COLUMN)))


def _text(cell: Json, book: Any) -> str:
    """Return a cell's text as displayed by a spreadsheet program."""
    value = cell["value"]
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        code = _number_format(cell["style_id"], book)
        if not is_date_format(code):
            return show_number(value, code)
        is_duration = is_timedelta_format(code)
        try:
            moment = from_excel(value, book.epoch, timedelta=is_duration)
        except (OverflowError, ValueError):
            return plain_number(value)
        return plain_number(value) if moment is None else show_date(moment, code)
    if isinstance(value, datetime | date | time):
        code = _number_format(cell["style_id"], book)
        return show_date(value, code) if is_date_format(code) else iso_moment(value)
    return unescape(str(value))


def _number_format(style_id: Any, book: Any) -> str:
    styles = book._cell_styles
    if not isinstance(style_id, int) or not 0 <= style_id < len(styles):
        return "General"
    number = styles[style_id].numFmtId
    if number < 164:
        return str(BUILTIN_FORMATS.get(number, "General"))
    formats = book._number_formats
    return str(formats[number - 164]) if number - 164 < len(formats) else "General"
