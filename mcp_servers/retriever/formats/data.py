"""JSON and XML as lines of code with all of their characters.

The module adds line breaks to files without any, and decodes character references. No file is parsed into a tree, so
depth and entities cost nothing, and a broken file loses no text.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.formats.html import decode_html
from mcp_servers.retriever.formats.text import decode

LONG_LINE = 1_000
"""Length of a line from which it is broken up: such a line was written by a program."""
MAX_INDENTATION = 20

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s"{}\[\],:]++|"')
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"')
_BETWEEN_TAGS = re.compile(r">\s*<")
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,31});")
_MARKUP = ("&lt;", "&#60;", "&#x3c;")


def read_json(path: Path, limits: ParseLimits) -> ParsedDocument:
    text = decode(path.read_bytes())
    if any(len(line) > LONG_LINE for line in text.split("\n")):
        text = "\n".join(_json_lines(text))
    if _ESCAPE.search(text):
        text = _JSON_STRING.sub(_readable, text)
    return _code(text)


def _json_lines(text: str) -> Iterator[str]:
    """Yield a line for each value of a JSON text, indented by its depth."""
    depth = 0
    line: list[str] = []
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token in "}]":
            if line:
                yield "".join(line)
            depth = max(0, depth - 1)
            line = ["  " * min(depth, MAX_INDENTATION), token]
        elif token == ",":
            yield "".join([*line, token])
            line = []
        else:
            line += [token] if line else ["  " * min(depth, MAX_INDENTATION), token]
            if token == ":":
                line.append(" ")
            elif token in "{[":
                yield "".join(line)
                line, depth = [], depth + 1
    if line:
        yield "".join(line)


def _readable(match: re.Match[str]) -> str:
    """Return a JSON string with its escaped characters decoded, to be read and searched."""
    try:
        return json.dumps(json.loads(match[0]), ensure_ascii=False)
    except ValueError:
        return match[0]


def read_xml(path: Path, limits: ParseLimits) -> ParsedDocument:
    text = decode_html(path.read_bytes())
    if any(len(line) > LONG_LINE for line in text.split("\n")):
        text = _BETWEEN_TAGS.sub(">\n<", text)
    return _code(_REFERENCE.sub(_character, text))


def _character(match: re.Match[str]) -> str:
    """Return the character of a reference; `<` stays a reference, to distinguish markup and text."""
    return match[0] if match[0].lower() in _MARKUP else html.unescape(match[0])


def _code(text: str) -> ParsedDocument:
    lines = [line.rstrip() for line in text.split("\n")]
    return ParsedDocument((Block("code", "\n".join(lines).strip("\n")),))
