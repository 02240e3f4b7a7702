"""A message as HTML that a page may show: Markdown rendered, sanitised, with its citations. Pure.

Owns which elements, attributes and addresses are left of what a model or a user wrote, and where a citation's mark
stands. Nothing in the result runs, loads anything from elsewhere, or takes a name in the page around it; a link says
nothing of where it was followed from. The time it takes grows with the text and not faster (``tests/server``).
"""

import html
import re
from collections.abc import Sequence
from functools import cache
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, table
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from agentic_rag.conversations.shown_messages import Citation
from agentic_rag.events import Reference

MAX_RENDERED: Final = 65_536
"""Characters; a longer text is shown as it was written."""

MOST_CELLS: Final = 10_000
"""Of the tables of a text. A row may leave cells out that its table then has all the same: a short text could be a
large table. What is beyond is shown as it was written."""

_OPEN, _CLOSE = "\U00012473", "\U00012474"
"""Stand around the number of a citation while the text is rendered. Punctuation, since what follows the end of an
emphasis decides whether it is one; of a script in which nobody has written for two thousand years."""
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_MARK_OR_ENCODED = re.compile(f"{_OPEN}\\d+{_CLOSE}|%F0%92%91%B3\\d+%F0%92%91%B4")
_NO_WORDS = re.compile(r"[\s`~=\-*_>#|:+]*")
"""A line of Markdown that says how other lines are meant; a mark would change that."""

_OWN_PICTURE = re.compile(r"/api/(?:payloads|conversations|domains|images)(?:/[\w.~-]+)+", re.ASCII)
_LANGUAGE = re.compile(r"language-[\w+#.-]{1,40}", re.ASCII)
_ALIGNMENT = re.compile(r"text-align: ?(left|right|center)")
_TAGS = {
    *("a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "li", "ol", "p", "pre"),
    *("s", "strong", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title"},
    "code": {"class"},
    "ol": {"start"},
    "sup": {"class", "title", "data-number", "data-document", "data-chunk"},
    "td": {"style"},
    "th": {"style"},
}


def to_html(
    text: str, citations: Sequence[Citation] = (), references: Sequence[Reference] = (), *, breaks: bool = False
) -> str:
    """Return a message's text as sanitised HTML.

    Each citation is a ``sup`` with the class ``citation`` after what it stands behind, with ``data-number``,
    ``data-document`` and ``data-chunk``; one that has no place there stands at the end.

    Args:
        breaks: a line end is one in the result, too, as in what people write.
    """
    known = {each.number: each for each in references}
    text = text.replace(_OPEN, "\ufffd").replace(_CLOSE, "\ufffd")
    wanted = [each for each in citations if each.number in known]
    rendered = _render(text, wanted, breaks=breaks) if len(text) <= MAX_RENDERED else f"<pre>{html.escape(text)}</pre>"
    placed = {int(number) for number in _MARK.findall(rendered)}
    left = sorted({each.number for each in wanted} - placed)
    if left:
        rendered += f"<p>{''.join(map(_mark, left))}</p>\n"
    return _cleaner().clean(_MARK.sub(lambda found: _to_sup(known[int(found[1])]), rendered))


def _render(text: str, citations: Sequence[Citation], *, breaks: bool) -> str:
    parts: list[str] = []
    at = 0
    for each in sorted(citations, key=lambda each: each.end):
        place = _place_before(text, at, each.end)
        parts += text[at:place], _mark(each.number)
        at = place
    cells = min(MOST_CELLS, len(text) // 2 + 100)
    return str(_parser(breaks).render("".join([*parts, text[at:]]), {_CELLS_LEFT: cells}))


def _place_before(text: str, start: int, end: int) -> int:
    """Return where the mark of a citation stands: after the last words before its end, on their line."""
    while end > start:
        line = max(start, text.rfind("\n", start, end) + 1)
        place = line + len(text[line:end].rstrip(" \t\r|"))
        if not _NO_WORDS.fullmatch(text, line, place):
            return place
        end = line - 1
    return start


def _mark(number: int) -> str:
    return f"{_OPEN}{number}{_CLOSE}"


def _to_sup(reference: Reference) -> str:
    about = {
        "class": "citation",
        "title": reference.document_name,
        "data-number": str(reference.number),
        "data-document": reference.document_id,
        "data-chunk": reference.chunk_id,
    }
    fields = " ".join(f'{name}="{html.escape(value)}"' for name, value in about.items())
    return f"<sup {fields}>[{reference.number}]</sup>"


class _Renderer(RendererHTML):
    """As the library's, but for pictures of elsewhere, which are their words alone, and marks, which are text only."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        if _OWN_PICTURE.fullmatch(str(tokens[idx].attrs.get("src", ""))):
            return super().image(tokens, idx, options, env)
        return html.escape(self.renderInlineAsText(tokens[idx].children or [], options, env))

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        tokens[idx].info = _MARK.sub("", tokens[idx].info)
        return super().fence(tokens, idx, options, env)

    @staticmethod
    def renderAttrs(token: Token) -> str:  # the library's own name
        token.attrs = {
            name: _MARK_OR_ENCODED.sub("", value) if isinstance(value, str) else value
            for name, value in token.attrs.items()
        }
        return RendererHTML.renderAttrs(token)


_CELLS_LEFT = "cells left"


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take a table, as the library does, as far as cells are left for it."""
    columns = state.getLines(start, start + 1, state.blkIndent, False).count("|") + 1
    rows = state.env[_CELLS_LEFT] // columns
    if rows < 2 or not table(state, start, min(end, start + 1 + rows), silent):
        return False
    if not silent:
        state.env[_CELLS_LEFT] -= columns * (state.line - start)
    return True


@cache
def _parser(breaks: bool) -> MarkdownIt:
    options = {"html": False, "linkify": False, "breaks": breaks, "maxNesting": 20}
    parser = MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable(["table", "strikethrough"])
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    return parser


@cache
def _cleaner() -> nh3.Cleaner:
    return nh3.Cleaner(
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=_filter_attribute,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


def _filter_attribute(tag: str, name: str, value: str) -> str | None:
    """Return the value an attribute keeps, None to drop it."""
    match tag, name:
        case "img", "src":
            fits = _OWN_PICTURE.fullmatch(value) is not None and "/.." not in value
        case "a", "href":
            fits = "://" in value or value.lower().startswith("mailto:")  # no page knows what a relative one is of
        case "code", "class":
            fits = _LANGUAGE.fullmatch(value) is not None
        case "sup", "class":
            fits = value == "citation"
        case _, "style":
            fits = _ALIGNMENT.fullmatch(value) is not None
        case _:
            fits = True
    return value if fits else None
