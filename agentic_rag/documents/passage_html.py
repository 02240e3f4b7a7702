"""A passage as HTML that a page may show: its paragraphs or its table, and the cited part marked. Pure.

Nothing of a document is markup here: every character of it is shown as the character it is, and a sanitiser that knows
a dozen elements goes over the whole at the end.
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
"""Takes a domain's secrets out of a text."""


def passage_html(text: str, cited: Range | None, redact: Redact) -> str:
    """Return a text as paragraphs; the cited part is a ``mark`` in each of them that has some of it."""
    if redact(text) != text:  # what is taken out moves everything behind it
        text, cited = redact(text), None
    pieces: list[str] = []
    start = 0
    for paragraph in text.split(SEPARATOR):
        if paragraph.strip():
            pieces.append(f"<p>{_mark_in(paragraph, _inside(cited, start, len(paragraph)))}</p>")
        start += len(paragraph) + len(SEPARATOR)
    return _cleaner().clean("\n".join(pieces))


def table_html(table: Table, redact: Redact) -> str:
    """Return a table; the cells of cited rows are marks."""
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
    """Return what of a part lies in the paragraph at ``start``, as offsets in that."""
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
