"""Tokenizer for HTML: tags and text of any page, however broken, in linear time.

The tokenizer finds the ends of tags, their attributes and raw text, but does not know the meaning of elements. Like a
browser, it treats anything that is not a tag as text, and an unclosed comment, declaration or tag affects nothing else.
The standard library's parser takes quadratic time: it searches the rest of the page for the end of each unclosed tag.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
_ATTRIBUTE = re.compile(r"""[\s/]*([^\s/>][^\s/>=]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]*)))?""")
_TAG_END = re.compile(r"[\s/]*>")
_RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
"""Elements with raw text as their content, and the pattern of their end tag."""


@dataclass(frozen=True, slots=True)
class StartTag:
    """A start tag. ``name`` and attribute names are lower case; an attribute without a value is None."""

    name: str
    attributes: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndTag:
    """An end tag; ``name`` is lower case."""

    name: str


Token = StartTag | EndTag | str
"""A tag or a piece of text, whose character references are resolved. Adjacent text may come in several pieces."""


def tokens(source: str) -> Iterator[Token]:
    """Yield the tags and texts of a page in order, without comments and declarations."""
    comments = True
    at = 0
    while (begin := source.find("<", at)) >= 0:
        if begin > at:
            yield _resolve_references(source[at:begin])
        following = source[begin + 1 : begin + 2]
        if comments and source.startswith("<!--", begin):
            end = source.find("-->", begin + 2)
            comments = end >= 0  # no comment ends after this point: stop searching
            at = end + 3 if comments else begin
        elif following in ("!", "?") or (following == "/" and not _NAME.match(source, begin + 2)):
            end = source.find(">", begin)
            if end < 0:
                at = begin
                break
            at = end + 1
        elif (name := _NAME.match(source, begin + 1 + (following == "/"))) is None:
            yield "<"
            at = begin + 1
        elif (tag := _tag(source, name)) is None:
            at = begin
            break
        else:
            attributes, at = tag
            yield EndTag(name[0].lower()) if following == "/" else StartTag(name[0].lower(), attributes)
            if following != "/" and name[0].lower() in _RAW:
                last = _RAW[name[0].lower()].search(source, at)
                yield source[at : last.start() if last else len(source)]
                at = last.start() if last else len(source)
    yield _resolve_references(source[at:])


def _tag(source: str, name: re.Match[str]) -> tuple[dict[str, str | None], int] | None:
    """Return a tag's attributes and the offset of its end, or None if the tag is unclosed."""
    attributes: dict[str, str | None] = {}
    at = name.end()
    while (end := _TAG_END.match(source, at)) is None:
        attribute = _ATTRIBUTE.match(source, at)
        if attribute is None:
            return None
        values = (attribute[2], attribute[3], attribute[4])
        value = next((alternative for alternative in values if alternative is not None), None)
        attributes[attribute[1].lower()] = None if value is None else _resolve_references(value)
        at = attribute.end()
    return attributes, end.end()


def _resolve_references(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a number with thousands of digits
        return text
