"""A passage as HTML for a web page: its paragraphs or its table, with the cited part marked. Pure.

No text of a document is treated as markup: every character is escaped. A sanitiser that allows a few elements checks
the result at the end.
"""

import html
from collections.abc import Callable, Iterator
from functools import cache

import nh3

from agentic_rag.documents.passages import Row, Table
from agentic_rag.documents.text_positions import Range
from mcp_servers.retriever.document import SEPARATOR

_TAGS = {"p", "br", "mark", "table", "thead", "tbody", "tr", "th", "td"}

Redact = Callable[[str], str]
"""Removes a domain's secrets from a text."""


def passage_html(text: str, cited: Range | None, redact: Redact) -> str:
    """Return a text as paragraphs; each paragraph with a part of the cited text marks that part with ``mark``."""
    if redact(text) != text:  # a redaction shifts all later offsets, so nothing can be marked
        text, cited = redact(text), None
    pieces: list[str] = []
    start = 0
    for paragraph in text.split(SEPARATOR):
        if paragraph.strip():
            pieces.append(f"<p>{_mark_in(paragraph, _inside(cited, start, len(paragraph)))}</p>")
        start += len(paragraph) + len(SEPARATOR)
    return _cleaner().clean("\n".join(pieces))


def table_html(table: Table, redact: Redact) -> str:
    """Return a table as HTML; the cells of cited rows are marked."""
    return _cleaner().clean("".join(_rows_html(table, redact)))


def _rows_html(table: Table, redact: Redact) -> Iterator[str]:
    yield "<table>"
    if table.header:
        yield f"<thead><tr>{''.join(f'<th>{html.escape(redact(cell))}</th>' for cell in table.header)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield _row_html(row, redact)
    yield "</tbody></table>"


def _row_html(row: Row, redact: Redact) -> str:
    cells = (html.escape(redact(cell)) for cell in row.cells)
    shown = (f"<mark>{cell}</mark>" if row.cited and cell else cell for cell in cells)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in shown)}</tr>"


def _inside(part: Range | None, start: int, length: int) -> Range | None:
    """Return the share of a part within the paragraph at ``start``, as offsets in the paragraph."""
    if part is None:
        return None
    first, last = max(part.start - start, 0), min(part.end - start, length)
    return Range(first, last) if first < last else None


def _mark_in(text: str, part: Range | None) -> str:
    if part is None:
        return _lines(text)
    before, cited, after = text[: part.start], text[part.start : part.end], text[part.end :]
    return f"{_lines(before)}<mark>{_lines(cited)}</mark>{_lines(after)}"


def _lines(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


@cache
def _cleaner() -> nh3.Cleaner:
    return nh3.Cleaner(tags=_TAGS, attributes={})
