"""XLSX, CSV and TSV: groups of whole rows below the repeated header, each with its cell range."""

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from pathlib import Path

import openpyxl
from openpyxl.utils import get_column_letter

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.package import check_package
from mcp_servers.retriever.formats.text import decode

_SNIFFED_CHARACTERS = 1 << 14
_DELIMITERS = ",;\t|"


def read_xlsx(path: Path, limits: ParseLimits) -> ParsedDocument:
    check_package(path, limits)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    blocks: list[Block] = []
    left = limits.max_characters
    for sheet in book.worksheets:
        rows: list[tuple[int, list[str]]] = []
        for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
            cells = [_text(value) for value in values]
            left -= sum(map(len, cells))
            if left < 0:
                raise DocumentError(
                    "DOCUMENT_TOO_LARGE", f"the sheets hold more than {limits.max_characters:,} characters"
                )
            rows.append((number, cells))
        groups = list(_groups(rows, f"{sheet.title}!"))
        if groups:
            blocks += [heading(sheet.title, 1), *groups]
    book.close()
    return ParsedDocument(tuple(blocks))


def read_csv(path: Path, limits: ParseLimits) -> ParsedDocument:
    text = decode(path.read_bytes())
    csv.field_size_limit(limits.max_characters)
    try:
        dialect: type[csv.Dialect] = csv.Sniffer().sniff(text[:_SNIFFED_CHARACTERS], _DELIMITERS)
    except csv.Error:
        dialect = csv.excel
    rows = enumerate(csv.reader(io.StringIO(text, newline=""), dialect), 1)
    return ParsedDocument(tuple(_groups(rows, "")))


def _groups(numbered: Iterable[tuple[int, list[str]]], sheet: str) -> Iterator[Block]:
    """Blocks of the rows that hold anything; `numbered` gives each row its number in the sheet."""
    rows = [(number, cells) for number, cells in numbered if any(cell.strip() for cell in cells)]
    if not rows:
        return
    used = max(at for _, cells in rows for at, cell in enumerate(cells, 1) if cell.strip())
    last_column = get_column_letter(used)
    for first, last, text in row_groups([cells[:used] for _, cells in rows]):
        yield Block("table", text, cells=f"{sheet}A{rows[first][0]}:{last_column}{rows[last][0]}")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    return (
        value.isoformat(" ")
        if isinstance(value, datetime)
        else value.isoformat()
        if isinstance(value, date)
        else str(value)
    )
