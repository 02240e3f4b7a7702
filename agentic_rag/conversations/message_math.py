r"""Mathematics in a message: LaTeX between ``$`` or ``\(``, ``\[`` and ``$$`` becomes MathML. Pure.

latex2mathml parses the LaTeX. Its own serialiser undoes the escaping of text, so this module writes the elements
itself: only elements and attributes of MathML Core, every text escaped. A formula that cannot be converted, is too long
or defines macros (which could expand without limit) is shown as its source.
"""

import html
import re
from collections.abc import Iterator
from typing import Final
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

MAX_FORMULA: Final = 2_000
"""Maximum characters of one formula."""
MAX_LINES: Final = 60
"""Maximum lines of one formula."""
MAX_FORMULAS: Final = 16_000
"""Maximum characters of all formulas of a text."""
MAX_DEPTH: Final = 40
"""Maximum depth of braces and environments."""

ELEMENTS: Final = {
    *("math", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mprescripts", "mroot"),
    *("mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder"),
    *("munderover", "none"),
}
_CHILDREN: Final = {
    **dict.fromkeys(("mfrac", "mover", "mroot", "msub", "msup", "munder"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
"""How many children an element must have."""
_LENGTH = re.compile(r"[+-]?\d{0,2}(?:\.\d{1,3})?(?:em|ex|px|pt|mu|%)?", re.ASCII)
_FLAG = re.compile(r"true|false|[0-3]|[+-][0-2]", re.ASCII)
_WORD = re.compile(r"[a-z-]{1,24}(?: [a-z-]{1,24}){0,20}", re.ASCII)
ATTRIBUTES: Final = {
    "display": re.compile("inline|block"),
    **dict.fromkeys(("accent", "accentunder", "displaystyle", "fence", "largeop", "movablelimits"), _FLAG),
    **dict.fromkeys(("scriptlevel", "separator", "stretchy", "symmetric"), _FLAG),
    **dict.fromkeys(("depth", "height", "linethickness", "lspace", "maxsize", "minsize", "rspace"), _LENGTH),
    **dict.fromkeys(("voffset", "width"), _LENGTH),
    **dict.fromkeys(("columnalign", "mathvariant"), _WORD),
}
"""The attributes that are written, with the values that they may have."""

_UPRIGHT = re.compile(r"\\(?:mathrm|mathup)\s*\{([a-zA-Z ]+)\}")
"""Matches upright letters: the library forgets that a single one is upright."""
_MACRO = re.compile(r"\\(?:re|provide)?newcommand|\\[gex]?def(?![a-z])|\\(?:let|DeclareMathOperator)(?![a-z])")
_DEPTH = re.compile(r"\\[\\{}]|[{}]|\\(?:begin|end|left|right)(?![a-zA-Z])")
_OPENS = {"{", r"\begin", r"\left"}
_CLOSES = {"}", r"\end", r"\right"}
_DELIMITERS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)", "$": "$"}
FORMULAS_LEFT: Final = "formula characters left"


def formula_html(latex: str, *, display: bool, block: bool) -> str:
    """Return a formula as MathML, or its source as code.

    Args:
        latex: without the delimiters.
        display: as a displayed formula, with tall operators.
        block: as a paragraph of its own.
    """
    latex = latex.strip()
    try:
        # Macros could expand without end, and deep braces exhaust the library's recursion.
        if len(latex) > MAX_FORMULA or _MACRO.search(latex) or _depth_of(latex) > MAX_DEPTH:
            return _source(latex, block=block)
        upright = _UPRIGHT.sub(r"\\text{\1}", latex)
        tree = Converter(display="block" if display else "inline").convert_to_element(upright)
        _space_functions(tree)
        markup = "".join(_write(tree, display=display))
    except Exception:  # the library raises errors of many kinds for LaTeX that it does not understand
        return _source(latex, block=block)
    return f'<div class="formula">{markup}</div>\n' if block else markup


def _depth_of(latex: str) -> int:
    depth = deepest = 0
    for token in _DEPTH.findall(latex):
        depth += (token in _OPENS) - (token in _CLOSES)
        deepest = max(deepest, depth)
    return deepest


def _source(latex: str, *, block: bool) -> str:
    code = html.escape(latex)
    return f'<pre><code class="language-latex">{code}</code></pre>\n' if block else f"<code>{code}</code>"


def _space_functions(tree: Element) -> None:
    """Put a thin space between the name of a function and its neighbours, as TeX does: "2 sin t", not "2sint".

    The library writes a name as an identifier, to which MathML gives no space. Operators have their own space.
    """
    for parent in [*tree.iter()]:
        if parent.tag in _CHILDREN:
            continue
        children = [*parent]
        for number in range(len(children) - 1, 0, -1):
            pair = children[number - 1 : number + 1]
            if any(map(_is_function, pair)) and all(child.tag != "mo" for child in pair):
                parent.insert(number, Element("mspace", width="0.167em"))


def _is_function(element: Element) -> bool:
    if element.tag in ("msub", "msup", "msubsup") and len(element):
        return _is_function(element[0])
    text = element.text or ""
    return element.tag == "mi" and len(text) > 1 and text.isascii() and text.isalpha()


def _has_limit(element: Element) -> bool:
    """Return whether an element is an operator such as "lim" or "max" with an index."""
    return element.tag == "msub" and len(element) > 0 and element[0].tag == "mo" and (element[0].text or "").isalpha()


def _write(element: Element, *, display: bool) -> Iterator[str]:
    """Write an element of the library's tree. Its texts contain character references, which are resolved once.

    In a displayed formula, the index of "lim" is below it. The library always writes it beside.
    """
    tag = "munder" if display and _has_limit(element) else element.tag
    is_known = element.tag in ELEMENTS
    # The library builds incomplete elements for incomplete LaTeX, which browsers show as errors.
    if len(element) != _CHILDREN.get(element.tag, len(element)):
        raise ValueError(f"{element.tag} has {len(element)} parts")
    if is_known:
        yield f"<{tag}"
        for name, value in element.attrib.items():
            allowed = ATTRIBUTES.get(name)
            if allowed is not None and allowed.fullmatch(value):
                yield f' {name}="{value}"'
        yield ">"
    if element.text:
        yield html.escape(html.unescape(element.text))
    for child in element:
        yield from _write(child, display=display)
        if child.tail:
            yield html.escape(html.unescape(child.tail))
    if is_known:
        yield f"</{tag}>"


def add_formulas(parser: MarkdownIt, mark: re.Pattern[str]) -> None:
    """Let a parser recognise formulas.

    Args:
        mark: matches the marks of citations, which may stand inside a formula. They are moved behind it.
    """

    def block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        return _parse_block(state, start, end, silent, mark)

    parser.inline.ruler.before("escape", "formula", _parse_inline)
    interrupted = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("fence", "formula_block", block, {"alt": interrupted})


def _parse_inline(state: StateInline, silent: bool) -> bool:
    source, at = state.src, state.pos
    opening = source[at : at + 2] if source[at : at + 2] in _DELIMITERS else source[at : at + 1]
    if opening not in _DELIMITERS:
        return False
    start, closing = at + len(opening), _DELIMITERS[opening]
    # Within the limit only: a text of many openings without an end would cost quadratic time.
    end = source.find(closing, start, start + MAX_FORMULA + len(closing))
    while end > 0 and source[end - 1] == "\\" and closing.startswith("$"):
        end = source.find(closing, end + 1, start + MAX_FORMULA + len(closing))
    after = end + len(closing)
    if end < 0 or not source[start:end].strip() or "\n\n" in source[start:end]:
        return False
    if opening == "$" and not _is_dollar_formula(source, at, end):
        return False
    if opening == r"\[" and source.startswith("(", after):  # an escaped bracket in a link
        return False
    if not silent:
        token = state.push("formula", "math", 0)
        token.content = source[start:end]
        token.markup = opening
    state.pos = after
    return True


def _is_dollar_formula(source: str, at: int, end: int) -> bool:
    """Return whether dollars enclose a formula. Amounts such as "$5 and $7" and "US$5" do not."""
    return not (
        source[at + 1].isspace()
        or source[end - 1].isspace()
        or source[end + 1 : end + 2].isdigit()
        or (at > 0 and source[at - 1].isalnum() and source[at - 1].isascii())
    )


def _parse_block(state: StateBlock, start: int, end: int, silent: bool, mark: re.Pattern[str]) -> bool:
    if state.is_code_block(start):
        return False
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    closing = _DELIMITERS.get(first[:2]) if first[:2] in ("$$", r"\[") else None
    if closing is None:
        return False
    lines, size, line = list[str](), 0, start
    text = first[2:]
    while True:
        bare = mark.sub("", text).rstrip()
        if bare.endswith(closing):
            lines.append(text)
            break
        # Text behind the end, an empty line or a second beginning: this is prose with the same characters.
        if closing in text or (line > start and (not bare or bare.startswith(first[:2]))):
            return False
        lines.append(text)
        size += len(text)
        line += 1
        if size > MAX_FORMULA or line >= min(end, start + MAX_LINES) or state.sCount[line] < state.blkIndent:
            return False
        text = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]
    content = "\n".join(lines)
    cut = content.rindex(closing)
    if not mark.sub("", content[:cut]).strip():
        return False
    if not silent:
        token = state.push("formula", "math", 0)
        token.block = True
        token.content = content[:cut] + content[cut + len(closing) :]
        token.markup = first[:2]
        token.map = [start, line + 1]
        state.line = line + 1
    return True
