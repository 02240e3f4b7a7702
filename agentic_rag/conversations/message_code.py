"""Highlight the code of a message: text in, escaped HTML with a few classes out. Pure.

Pygments splits the code into tokens. Seven classes are enough for a theme: ``hl-k`` keywords, ``hl-s`` strings,
``hl-n`` numbers, ``hl-f`` functions and types, ``hl-c`` comments, ``hl-i`` inserted and ``hl-d`` deleted lines.
Only the languages in `LANGUAGES` are highlighted, and only blocks of a size for which their lexers are fast. Other code
is escaped and keeps its line ends.
"""

import html
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from pygments.lexers import get_lexer_by_name
from pygments.token import (
    Comment,
    Generic,
    Keyword,
    Literal,
    Name,
    Number,
    Operator,
    String,
    _TokenType,
)

MAX_HIGHLIGHTED: Final = 8_000
"""Maximum characters of a code block with colours.

Some regular expressions of the lexers take quadratic time for long lines or many empty ones, so these have no colours
either.
"""
_MAX_OF_SLOW: Final = {"java": 1_500}
"""Maximum characters for lexers that take quadratic time for ordinary text."""
_TOO_SLOW = re.compile(r"[^\n]{401}|(?:[^\S\n]*\n){20}")

_LEXERS: Final = (
    "bash",
    "c",
    "cpp",
    "css",
    "dart",
    "diff",
    "docker",
    "go",
    "graphql",
    "html",
    "http",
    "ini",
    "java",
    "javascript",
    "json",
    "jsx",
    "kotlin",
    "lua",
    "make",
    "nginx",
    "perl",
    "php",
    "powershell",
    "protobuf",
    "python",
    "r",
    "ruby",
    "rust",
    "scala",
    "scss",
    "sql",
    "swift",
    "terraform",
    "toml",
    "tsx",
    "typescript",
    "xml",
    "yaml",
)
LANGUAGES: Final = {
    **{name: name for name in _LEXERS},
    **{"c++": "cpp", "h": "c", "golang": "go", "js": "javascript", "mjs": "javascript"},
    **{"ts": "typescript", "py": "python", "python3": "python", "rb": "ruby", "rs": "rust", "kt": "kotlin"},
    **{"sh": "bash", "shell": "bash", "zsh": "bash", "console": "console", "ps1": "powershell", "patch": "diff"},
    **{"dockerfile": "docker", "makefile": "make", "jsonc": "json", "json5": "json", "yml": "yaml", "conf": "ini"},
    **{"hcl": "terraform", "tf": "terraform", "htm": "html", "svg": "xml", "proto": "protobuf", "pl": "perl"},
}
"""The names that models write behind a fence, with Pygments' name of the lexer."""

_CLASSES: Final = (
    (Comment.Preproc, "hl-k"),
    (Comment, "hl-c"),
    (Generic.Inserted, "hl-i"),
    (Generic.Deleted, "hl-d"),
    (Generic.Heading, "hl-k"),
    (Generic.Subheading, "hl-k"),
    (Generic.Output, ""),
    (Keyword, "hl-k"),
    (Operator.Word, "hl-k"),
    (Name.Tag, "hl-k"),
    (Name.Attribute, "hl-f"),
    (Name.Builtin, "hl-f"),
    (Name.Class, "hl-f"),
    (Name.Decorator, "hl-f"),
    (Name.Function, "hl-f"),
    (Number, "hl-n"),
    (Literal.Date, "hl-n"),
    (String, "hl-s"),
)


def highlight(code: str, language: str, write: Callable[[str, int], str]) -> str:
    """Return code as escaped HTML with spans.

    Args:
        code: the text of the block.
        language: the first word behind the fence, in any case.
        write: returns the HTML of a piece of the code that starts at an offset. It escapes the piece.
    """
    name = LANGUAGES.get(language.lower())
    if name is None or len(code) > _MAX_OF_SLOW.get(name, MAX_HIGHLIGHTED) or _TOO_SLOW.search(code):
        return write(code, 0)
    pieces: list[str] = []
    for text, start, kind in _merge_pieces(code, name):
        escaped = write(text, start)
        pieces.append(f'<span class="{kind}">{escaped}</span>' if kind else escaped)
    return "".join(pieces)


def escape_piece(text: str, _start: int) -> str:
    """Escape a piece of code: the `write` of code without marks."""
    return html.escape(text)


def _merge_pieces(code: str, name: str) -> Iterator[tuple[str, int, str]]:
    """Yield pieces of code with their offset and class; neighbours of one class are one piece."""
    start, end, kind = 0, 0, ""
    for at, token, value in _lexer(name).get_tokens_unprocessed(code):
        if at < end or not value:  # a lexer that goes back would repeat text
            continue
        css_class = _class_of(token)
        # Most lexers do not mark a call of a function.
        if not css_class and token in Name and code.startswith("(", at + len(value)):
            css_class = "hl-f"
        if css_class != kind or at != end:
            if end > start:
                yield code[start:end], start, kind
            if at > end:
                yield code[end:at], end, ""
            start, kind = at, css_class
        end = at + len(value)
    if end > start:
        yield code[start:end], start, kind
    if end < len(code):
        yield code[end:], end, ""


@cache
def _class_of(token: _TokenType) -> str:
    return next((kind for group, kind in _CLASSES if token in group), "")


@cache
def _lexer(name: str) -> Any:
    return get_lexer_by_name(name, stripnl=False, ensurenl=False)
