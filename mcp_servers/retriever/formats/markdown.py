"""Markdown (CommonMark with tables) to blocks, by markdown-it's tokens."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.formats.dates import latest_date
from mcp_servers.retriever.formats.html import html_blocks
from mcp_servers.retriever.formats.text import decode

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_DATE = re.compile(r"^(?:date|updated|modified|lastmod)[ \t]*:[ \t]*(\S{8,40})", re.MULTILINE | re.IGNORECASE)


def read_markdown(path: Path, limits: ParseLimits) -> ParsedDocument:
    source = decode(path.read_bytes())
    blocks: list[Block] = []
    date = None
    if front := _FRONT_MATTER.match(source):
        # To CommonMark it is a rule and a heading; to the author it is data.
        blocks.append(Block("code", front[1].strip()))
        source = source[front.end() :]
        date = latest_date(*_DATE.findall(front[1]))
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(source)
    blocks.extend(_blocks(tokens))
    return ParsedDocument(tuple(block for block in blocks if block.text.strip()), date=date)


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
            yield from (Block("table", text) for _, _, text in row_groups(_rows(tokens[index:end])))
        elif token.type in ("fence", "code_block"):
            yield Block("code", token.content.rstrip())
        elif token.type == "html_block":
            yield from html_blocks(token.content)
        elif token.type == "blockquote_open":
            yield from _blocks(tokens[index + 1 : end])
        index = end + 1


def _closing(tokens: Sequence[Token], index: int) -> int:
    """Index of the token that closes the one at `index`."""
    depth = 0
    for position in range(index, len(tokens)):
        depth += tokens[position].nesting
        if depth == 0:
            return position
    return len(tokens) - 1


def _list(tokens: Sequence[Token]) -> Iterator[Block]:
    """One block of a line for each item; code and tables inside a list stand on their own."""
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
    """The text a reader sees: no emphasis marks, links as their text, images as their description."""
    parts: list[str] = []
    for child in token.children or []:
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type == "image":
            parts.append(child.content)
    return "".join(parts).strip()
