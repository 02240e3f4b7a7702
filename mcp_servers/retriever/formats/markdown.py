"""Markdown reader (CommonMark with tables) on the tokens of markdown-it."""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.utils import EnvType

from mcp_servers.retriever.document import Block, Json, ParsedDocument, ParseLimits, blocks_of_table, full_rows, heading
from mcp_servers.retriever.formats.dates import latest_date
from mcp_servers.retriever.formats.html import html_blocks
from mcp_servers.retriever.formats.text import decode, to_superscript, with_address

_FRONT_MATTER = re.compile(
    r"\A\s*(?:(?P<yaml>---)[ \t]*(?:yaml|yml)?|(?P<toml>\+\+\+)[ \t]*(?:toml)?|(?P<json>;;;)[ \t]*(?:json)?)[ \t]*\n"
    r"(?P<data>(?:.*\n)*?)(?:(?(yaml)(?:---|\.\.\.)|(?(toml)\+\+\+|;;;)))[ \t]*(?:\n|\Z)"
)
"""Front matter of site generators: YAML, TOML or JSON, between lines that may end in blanks."""
_KEY = re.compile(r"\s*(?:#|[\"'{\[}\]-]|[\w\u00a0-\uffff][^\n:=]{0,80}[:=])")
"""Start of a line of data; front matter without such a line is a rule with text below."""
_DATE = re.compile(
    r"^[ \t]*[\"']?(?:date|created|published|updated|modified|lastmod|last_modified)[\"']?[ \t]*[:=][ \t]*(\S{8,40})",
    re.MULTILINE | re.IGNORECASE,
)
_HTML_LINK = re.compile(r"<a\s[^<>]*?href\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))", re.IGNORECASE)


def read_markdown(path: Path, limits: ParseLimits) -> ParsedDocument:
    source = decode(path.read_bytes())
    blocks: list[Block] = []
    date = None
    front = _FRONT_MATTER.match(source)
    if front and (not front["data"].strip() or _KEY.match(front["data"])):
        # CommonMark reads front matter as a rule and a heading.
        blocks.append(Block("code", front["data"].strip()))
        source = source[front.end() :]
        date = latest_date(*_DATE.findall(front["data"]))
    environment: dict[str, Any] = {}
    blocks.extend(markdown_blocks(source, environment))
    if unused := _unused_references(environment, "\n".join(block.text for block in blocks)):
        blocks.append(Block("list", "\n".join(unused)))
    return ParsedDocument(tuple(block for block in blocks if block.text.strip()), date=date)


def markdown_blocks(source: str, environment: EnvType | None = None) -> Iterator[Block]:
    """Yield the blocks of a Markdown text. ``environment`` receives its link definitions."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    yield from _blocks(parser.parse(source, {} if environment is None else environment))


def _unused_references(environment: Json, text: str) -> list[str]:
    """Return the definitions of links (`[name]: address`) that no link uses, as lines."""
    lines = []
    for name, reference in environment.get("references", {}).items():
        address, title = reference.get("href", ""), reference.get("title", "")
        if unescape_address(address) not in text:
            lines.append(f"{name.lower()}: {unescape_address(address)}{f' ({title})' if title else ''}")
    return lines


def unescape_address(address: str) -> str:
    """Undo the percent-encoding of an address by markdown-it, so that other scripts are readable."""
    plain = unquote(address)
    return address if any(char.isspace() or char in "()\ufffd" for char in plain) else plain


def _blocks(tokens: Sequence[Token]) -> Iterator[Block]:
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = _closing(tokens, index)
        if token.type == "heading_open":
            yield heading(_inline(tokens[index + 1]), int(token.tag[1]))
        elif token.type == "paragraph_open":
            yield Block("prose", _inline(tokens[index + 1]))
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            yield from _list(tokens[index : end + 1])
        elif token.type == "table_open":
            yield from blocks_of_table(full_rows(_rows(tokens[index:end])))
        elif token.type in ("fence", "code_block"):
            yield Block("code", token.content.rstrip())
        elif token.type == "html_block":
            yield from html_blocks(token.content)
        elif token.type == "blockquote_open":
            yield from _blocks(tokens[index + 1 : end])
        index = end + 1


def _closing(tokens: Sequence[Token], index: int) -> int:
    """Return the index of the token that closes the one at `index`."""
    depth = 0
    for position in range(index, len(tokens)):
        depth += tokens[position].nesting
        if depth == 0:
            return position
    return len(tokens) - 1


def _list(tokens: Sequence[Token]) -> Iterator[Block]:
    """Yield one block with a line for each item; code and tables inside a list become separate blocks."""
    lines: list[str] = []
    ordered: list[bool] = []
    mark = ""
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.type in ("bullet_list_open", "ordered_list_open"):
            ordered.append(token.type == "ordered_list_open")
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            ordered.pop()
        elif token.type == "list_item_open":
            mark = f"{token.info}{token.markup} " if ordered[-1] else "- "
        elif token.type == "inline":
            indentation = "  " * (len(ordered) - 1 if mark else len(ordered))
            lines.append(indentation + mark + " ".join(_inline(token).split("\n")))
            mark = ""
        elif token.type in ("fence", "code_block", "html_block", "table_open"):
            if lines:
                yield Block("list", "\n".join(lines))
                lines = []
            end = _closing(tokens, index)
            yield from _blocks(tokens[index : end + 1])
            index = end
        index += 1
    if lines:
        yield Block("list", "\n".join(lines))


def _rows(tokens: Sequence[Token]) -> list[list[str]]:
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_inline(token))
    return rows


def _inline(token: Token) -> str:
    """Return the visible text with the address of each link and the description of each image."""
    text = _InlineText()
    for child in token.children or []:
        text.add(child)
    return text.finish()


class _InlineText:
    """Collects the text of a paragraph, heading or cell from its tokens."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._open: list[tuple[Callable[[str], str], int]] = []
        """Open links and raised texts: the function that completes the text of each, and where it begins."""

    def add(self, child: Token) -> None:
        if child.type in ("text", "code_inline", "image"):
            self._parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            self._parts.append("\n")
        elif child.type == "link_open":
            self._begin_link(unescape_address(str(child.attrs.get("href", ""))))
        elif child.type == "link_close":
            self._close()
        elif child.type == "html_inline":
            self._add_html(child.content)

    def _add_html(self, tag: str) -> None:
        name = tag.lower()
        if link := _HTML_LINK.match(tag):
            self._begin_link(html.unescape(link[1] or link[2] or link[3] or ""))
        elif name.startswith("<sup"):
            self._open.append((to_superscript, len(self._parts)))
        elif name.startswith(("</a", "</sup")):
            self._close()
        elif name.startswith("<br"):
            self._parts.append("\n")
        else:
            self._parts += [block.text for block in html_blocks(tag)]

    def _begin_link(self, address: str) -> None:
        self._open.append((partial(with_address, address=address), len(self._parts)))

    def _close(self) -> None:
        if self._open:
            complete, start = self._open.pop()
            self._parts[start:] = [complete("".join(self._parts[start:]))]

    def finish(self) -> str:
        """Return the text after the last token."""
        while self._open:
            self._close()
        return "".join(self._parts).strip()
