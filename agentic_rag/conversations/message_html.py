"""Render a message's Markdown with its citations as sanitised HTML for a web page. Pure.

Decides which elements, attributes and addresses of a model's or user's text remain, and where citation marks go. The
result contains no scripts, loads nothing from other servers and cannot clobber names in the page. Links send no
referrer. Rendering time grows linearly with the text (``tests/server``).

Besides CommonMark: tables, strikethrough, task lists, footnotes, definition lists, formulas (``message_math``) and
highlighted code (``message_code``). A page turns some of it into more: ``pre > code.language-mermaid`` into a diagram,
``sup.footnote`` into a link to the ``li`` with the same ``data-note``.
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
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.footnote import footnote_plugin

from agentic_rag.base.events import Reference
from agentic_rag.conversations.message_code import escape_piece, highlight
from agentic_rag.conversations.message_math import (
    ATTRIBUTES,
    ELEMENTS,
    FORMULAS_LEFT,
    MAX_FORMULAS,
    add_formulas,
    formula_html,
)
from agentic_rag.conversations.shown_messages import ShownCitation

MAX_RENDERED: Final = 65_536
"""Maximum characters; a longer text is shown unrendered."""

MOST_CELLS: Final = 10_000
"""Maximum table cells of a text.

Markdown rows may omit cells, which the rendered table still has, so a short text could become a large table. Tables
beyond the limit are shown unrendered.
"""

_OPEN, _CLOSE = "\U00012473", "\U00012474"
"""Enclose the number of a citation while the text is rendered.

They are punctuation, because the character after an emphasis decides whether Markdown accepts it, and they come from
cuneiform, a script that no message uses.
"""
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_MARK_OR_ENCODED = re.compile(f"{_OPEN}\\d+{_CLOSE}|%F0%92%91%B3\\d+%F0%92%91%B4")
_ENTITY_MARK = re.compile(r"&#(?:x0*1247[34]|0*7486[78]);", re.IGNORECASE)
"""Matches a character reference of a mark's characters: Markdown would resolve it into one."""
_NO_WORDS = re.compile(r"(?:[\s`~=\-*_>#|:+$]|\\[\[\]])*")
"""Matches a Markdown line that only formats other lines; a mark would change its meaning."""

_OWN_PICTURE = re.compile(r"/api/(?:payloads|conversations|domains|images)(?:/[\w.~-]+)+", re.ASCII)
_LANGUAGE = re.compile(r"language-[\w+#.-]{1,40}", re.ASCII)
_ALIGNMENT = re.compile(r"text-align: ?(left|right|center)")
_TASK = re.compile(r"\[([ xX])\][ \t\n]+")
_TAGS = {
    *("a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "li", "ol", "p", "pre"),
    *("s", "strong", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    *("dd", "div", "dl", "dt", "section", "span"),
    *ELEMENTS,
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title"},
    "code": {"class"},
    "div": {"class"},
    "li": {"class", "data-note"},
    "ol": {"start"},
    "section": {"class"},
    "span": {"class"},
    "sup": {"class", "title", "data-number", "data-document", "data-chunk", "data-note"},
    "td": {"style"},
    "th": {"style"},
    **{name: set(ATTRIBUTES) for name in ELEMENTS},
}
_CLASSES = {
    "div": re.compile("formula"),
    "li": re.compile("task|task done"),
    "section": re.compile("footnotes"),
    "span": re.compile("hl-[kfnscid]|box"),
    "sup": re.compile("citation|footnote"),
}


def to_html(
    text: str, citations: Sequence[ShownCitation] = (), references: Sequence[Reference] = (), *, breaks: bool = False
) -> str:
    """Return a message's text as sanitised HTML.

    Each citation becomes a ``sup`` of class ``citation`` after the cited words, with ``data-number``, ``data-document``
    and ``data-chunk``. A citation without a place there is appended.

    Args:
        breaks: keep line ends as line breaks, as people expect of their own messages.
    """
    by_number = {reference.number: reference for reference in references}
    text = _ENTITY_MARK.sub("\ufffd", text.replace(_OPEN, "\ufffd").replace(_CLOSE, "\ufffd"))
    resolved = [citation for citation in citations if citation.number in by_number]
    rendered = (
        _render(text, resolved, breaks=breaks) if len(text) <= MAX_RENDERED else f"<pre>{html.escape(text)}</pre>"
    )
    # The renderer may drop text with a mark in it, such as the definition of a link.
    placed = {int(number) for number in _MARK.findall(rendered)}
    unplaced = sorted({citation.number for citation in resolved} - placed)
    if unplaced:
        rendered += f"<p>{''.join(map(_mark, unplaced))}</p>\n"
    # Cleaned last, so that nothing that was inserted escapes the rules.
    return _cleaner().clean(_MARK.sub(lambda match: _to_sup(by_number.get(int(match[1]))), rendered))


def _render(text: str, citations: Sequence[ShownCitation], *, breaks: bool) -> str:
    parts: list[str] = []
    at = 0
    for citation in sorted(citations, key=lambda item: item.end):
        place = _place_before(text, at, citation.end)
        parts += text[at:place], _mark(citation.number)
        at = place
    # A cell takes at least two characters in Markdown, unless the row omits it.
    cells = min(MOST_CELLS, len(text) // 2 + 100)
    remaining = {_CELLS_LEFT: cells, FORMULAS_LEFT: MAX_FORMULAS}
    return str(_parser(breaks).render("".join([*parts, text[at:]]), remaining))


def _place_before(text: str, start: int, end: int) -> int:
    """Return the place of a citation's mark: after the last words before its end, on their line."""
    while end > start:
        line = max(start, text.rfind("\n", start, end) + 1)
        place = line + len(text[line:end].rstrip(" \t\r|"))
        if not _NO_WORDS.fullmatch(text, line, place):
            return place
        end = line - 1
    return start


def _mark(number: int) -> str:
    return f"{_OPEN}{number}{_CLOSE}"


def _to_sup(reference: Reference | None) -> str:
    if reference is None:
        return ""
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
    """The library's renderer, extended.

    An external picture is replaced by its alternative text, and attributes contain no citation marks.
    """

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        if _OWN_PICTURE.fullmatch(str(tokens[idx].attrs.get("src", ""))):
            return super().image(tokens, idx, options, env)
        return html.escape(self.renderInlineAsText(tokens[idx].children or [], options, env))

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render code with colours. The marks of citations inside stay where they are."""
        # Only the first word names a language. Models also write titles and line numbers there.
        words = _MARK.sub("", tokens[idx].info).split(maxsplit=1)
        language = words[0] if words else ""
        class_attribute = f' class="language-{html.escape(language)}"' if language else ""
        return f"<pre><code{class_attribute}>{_highlight(tokens[idx].content, language)}</code></pre>\n"

    def formula(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render a formula, and the marks of citations in it behind it."""
        token = tokens[idx]
        marks = "".join(_mark(int(number)) for number in _MARK.findall(token.content))
        latex = _MARK.sub("", token.content)
        # Counted over the whole text: many short formulas would take as long as a huge one.
        env[FORMULAS_LEFT] -= len(latex)
        if env[FORMULAS_LEFT] < 0:
            return f"<code>{html.escape(latex)}</code>{marks}"
        markup = formula_html(latex, display=token.markup in ("$$", r"\["), block=token.block)
        return f"{markup}{f'<p>{marks}</p>' if marks and token.block else marks}"

    def footnote_ref(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render a reference to a footnote. The page makes a link of it, as names in a page are the page's."""
        number = int(tokens[idx].meta["id"]) + 1
        return f'<sup class="footnote" data-note="{number}">{number}</sup>'

    def footnote_block_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Open the list of footnotes."""
        return '<section class="footnotes"><ol>\n'

    def footnote_block_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Close the list of footnotes."""
        return "</ol></section>\n"

    def footnote_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Open a footnote."""
        return f'<li data-note="{int(tokens[idx].meta["id"]) + 1}">'

    def footnote_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Close a footnote."""
        return "</li>\n"

    def footnote_anchor(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Write no way back: the page adds it."""
        return ""

    def task_box(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render the box of a task as a character, which readers of any kind know."""
        return f'<span class="box">{"☑" if tokens[idx].content == "done" else "☐"}</span> '

    @staticmethod
    def renderAttrs(token: Token) -> str:  # the library's name
        token.attrs = {
            name: _MARK_OR_ENCODED.sub("", value) if isinstance(value, str) else value
            for name, value in token.attrs.items()
        }
        return RendererHTML.renderAttrs(token)


def _highlight(code: str, language: str) -> str:
    """Return code as HTML with spans. Citation marks are removed before the highlighting, and inserted after it."""
    if _OPEN not in code:
        return highlight(code, language, escape_piece)
    bare, marks, copied_to = "", list[tuple[int, str]](), 0
    for match in _MARK.finditer(code):
        bare += code[copied_to : match.start()]
        marks.append((len(bare), match[0]))
        copied_to = match.end()
    bare += code[copied_to:]
    # The next mark is taken from the end of the list.
    marks.reverse()

    def write(text: str, start: int) -> str:
        pieces: list[str] = []
        at = start
        while marks and marks[-1][0] <= start + len(text):
            place, mark = marks.pop()
            pieces += html.escape(bare[at:place]), mark
            at = place
        return "".join([*pieces, html.escape(bare[at : start + len(text)])])

    return highlight(bare, language, write)


def _mark_tasks(state: StateCore) -> None:
    """Turn ``[ ]`` and ``[x]`` at the start of list items into boxes."""
    for at, token in enumerate(state.tokens[2:], 2):
        item = state.tokens[at - 2]
        if token.type != "inline" or item.type != "list_item_open" or not token.children:
            continue
        first = token.children[0]
        match = _TASK.match(token.content)
        if match is None or first.type != "text" or not first.content.startswith(match[0].strip()):
            continue
        is_done = match[1] != " "
        first.content = first.content[3:].lstrip()
        box = Token("task_box", "", 0)
        box.content = "done" if is_done else "open"
        token.children.insert(0, box)
        item.attrSet("class", "task done" if is_done else "task")


_CELLS_LEFT = "cells left"


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table like the library, limited to the remaining number of cells."""
    columns = state.getLines(start, start + 1, state.blkIndent, False).count("|") + 1
    # The number of columns is that of the header, and every row gets as many cells.
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
    parser.use(footnote_plugin, inline=False).use(deflist_plugin)
    for name in ("footnote_ref", "footnote_block_open", "footnote_block_close", "footnote_open", "footnote_close"):
        parser.add_render_rule(name, getattr(_Renderer, name))
    parser.add_render_rule("footnote_anchor", _Renderer.footnote_anchor)
    add_formulas(parser, _MARK)
    parser.core.ruler.after("inline", "tasks", _mark_tasks)
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
    """Return the value of an allowed attribute, or None to drop it."""
    match tag, name:
        case "img", "src":
            # A path with ``..`` would lead to any address of this server, with the reader's cookie.
            fits = _OWN_PICTURE.fullmatch(value) is not None and "/.." not in value
        case "a", "href":
            fits = "://" in value or value.lower().startswith("mailto:")  # the base of a relative address is unknown
        case "code", "class":
            fits = _LANGUAGE.fullmatch(value) is not None
        case _, "class":
            fits = _CLASSES[tag].fullmatch(value) is not None
        case _, "data-note":
            fits = value.isascii() and value.isdigit()
        case _, "style":
            fits = _ALIGNMENT.fullmatch(value) is not None
        case _:
            fits = True
    return value if fits else None
