"""HTML to blocks: headings, paragraphs, lists, tables and code as a reader sees them; no scripts, no markup."""

import re
from html.parser import HTMLParser
from pathlib import Path

from mcp_servers.retriever.document import Block, BlockKind, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.formats.text import decode

_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w-]{2,30})", re.IGNORECASE)
_SKIPPED = frozenset({"script", "style", "template", "noscript", "svg", "head"})
_INLINE = re.compile(
    "a|abbr|b|bdi|bdo|cite|code|em|font|i|kbd|mark|q|s|samp|small|span|strong|sub|sup|time|u|var|img|wbr|label"
)


def read_html(path: Path, limits: ParseLimits) -> ParsedDocument:
    data = path.read_bytes()
    builder = _Builder()
    builder.feed(_decode(data))
    builder.close()
    builder.flush()
    return ParsedDocument(tuple(builder.blocks))


def _decode(data: bytes) -> str:
    """The declared encoding if the text is valid in it, else what the bytes look like."""
    if declared := _CHARSET.search(data[:4096]):
        try:
            return decode(data.decode(declared[1].decode("ascii")).encode())
        except (LookupError, UnicodeDecodeError):
            pass
    return decode(data)


class _Builder(HTMLParser):
    """Collects blocks while the parser walks the tags; broken nesting ends a block early and loses no text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._text: list[str] = []
        self._skipping = 0
        self._heading = 0
        self._preformatted = 0
        self._lists = 0
        self._rows: list[list[str]] | None = None
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipping += 1
        elif tag == "br":
            self._text.append("\n")
        elif tag == "table" and self._rows is None:
            self.flush()
            self._rows = []
        elif self._rows is not None:
            if tag in ("tr", "td", "th"):
                self._end_cell()
                self._in_cell = tag != "tr"
            if tag == "tr" or not self._rows:
                self._rows.append([])
        elif not _INLINE.fullmatch(tag):
            self.flush()
            self._enter(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        elif self._rows is not None:
            if tag in ("td", "th", "tr"):
                self._end_cell()
            elif tag == "table":
                self._finish_table()
        elif not _INLINE.fullmatch(tag):
            self.flush()
            self._leave(tag)

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._text.append(data)

    def flush(self) -> None:
        """End the block that is open."""
        if self._rows is not None:
            self._finish_table()
        raw = "".join(self._text)
        self._text.clear()
        if not raw.strip():
            return
        if self._preformatted:
            self.blocks.append(Block("code", raw.strip("\n").rstrip()))
            return
        lines = (" ".join(line.split()) for line in raw.split("\n")) if "\n" in raw else (" ".join(raw.split()),)
        text = " ".join(line for line in lines if line)
        if self._heading:
            self.blocks.append(heading(text, self._heading))
        elif self._lists and self.blocks and self.blocks[-1].kind == "list":
            self.blocks[-1] = Block("list", f"{self.blocks[-1].text}\n- {text}")
        else:
            kind: BlockKind = "list" if self._lists else "prose"
            self.blocks.append(Block(kind, f"- {text}" if self._lists else text))

    def _enter(self, tag: str) -> None:
        if re.fullmatch("h[1-6]", tag):
            self._heading = int(tag[1])
        elif tag == "pre":
            self._preformatted += 1
        elif tag in ("ul", "ol"):
            self._lists += 1

    def _leave(self, tag: str) -> None:
        if re.fullmatch("h[1-6]", tag):
            self._heading = 0
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif tag in ("ul", "ol"):
            self._lists = max(0, self._lists - 1)

    def _end_cell(self) -> None:
        """Close the open cell, whose end tag is optional; text between cells (a caption) is a row of its own."""
        text = "".join(self._text)
        self._text.clear()
        if self._rows is not None and (self._in_cell or text.strip()):
            if not self._in_cell or not self._rows:
                self._rows.append([])
            self._rows[-1].append(text)
        self._in_cell = False

    def _finish_table(self) -> None:
        self._end_cell()
        rows = [row for row in self._rows or [] if any(cell.strip() for cell in row)]
        self._rows = None
        if rows:
            self.blocks.extend(Block("table", text) for _, _, text in row_groups(rows))
