"""DOCX to blocks: headings by their style, lists and tables in order."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import docx
from docx.table import Table
from docx.text.paragraph import Paragraph

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.formats.package import check_package

_HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)


def read_docx(path: Path, limits: ParseLimits) -> ParsedDocument:
    check_package(path, limits)
    document = docx.Document(str(path))
    return ParsedDocument(tuple(_joined_lists(_blocks(document.iter_inner_content()))))


def _blocks(content: Iterable[Paragraph | Table]) -> Iterator[Block]:
    for item in content:
        if isinstance(item, Table):
            rows = [row for row in _rows(item) if any(cell.strip() for cell in row)]
            if rows:
                yield from (Block("table", text) for _, _, text in row_groups(rows))
        elif text := item.text.strip():
            style = (item.style.name if item.style is not None else None) or ""
            if found := _HEADING.fullmatch(style):
                # "Title" is the level above: a document's parts stand below its name.
                yield heading(text, int(found[1]) + 1)
            elif style == "Title":
                yield heading(text, 1)
            elif style.startswith("List") or (item._p.pPr is not None and item._p.pPr.numPr is not None):
                yield Block("list", f"- {' '.join(text.split())}")
            else:
                yield Block("prose", text)


def _joined_lists(blocks: Iterable[Block]) -> Iterator[Block]:
    for is_list, run in groupby(blocks, key=lambda block: block.kind == "list"):
        if is_list:
            yield Block("list", "\n".join(block.text for block in run))
        else:
            yield from run


def _rows(table: Table) -> Iterator[list[str]]:
    for row in table.rows:
        # A merged cell is listed once for each column it covers.
        yield [cell.text for _, (cell, *_) in ((key, list(same)) for key, same in groupby(row.cells, lambda c: c._tc))]
