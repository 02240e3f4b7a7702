"""Tags and text of an HTML page, however broken, in one walk whose time grows with the page alone.

Owns where a tag begins and ends, its attributes, and what is raw text. Knows no element's meaning. As a browser reads:
what is no tag is text, and a comment, declaration or tag that never ends spoils no more than itself. The standard
library's parser looks for the end of each unclosed one anew, up to the end of the page.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
_ATTRIBUTE = re.compile(r"""[\s/]*([^\s/>][^\s/>=]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]*)))?""")
_TAG_END = re.compile(r"[\s/]*>")
_RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
"""Elements whose content is text, whatever it looks like, by how it ends."""


@dataclass(frozen=True, slots=True)
class StartTag:
    """``name`` and attribute names are in small letters; an attribute without a value has None."""

    name: str
    attributes: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndTag:
    """``name`` is in small letters."""

    name: str


Token = StartTag | EndTag | str
"""Text comes with its character references resolved, and in any number of pieces."""


def tokens(source: str) -> Iterator[Token]:
    """Yield what a page consists of, in order; comments and declarations are left out."""
    comments = True
    at = 0
    while (begin := source.find("<", at)) >= 0:
        if begin > at:
            yield _resolve_references(source[at:begin])
        following = source[begin + 1 : begin + 2]
        if comments and source.startswith("<!--", begin):
            end = source.find("-->", begin + 2)
            comments = end >= 0  # none ends any more: nobody looks again
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
    """Return a tag's attributes and where it ends; None when it never does."""
    attributes: dict[str, str | None] = {}
    at = name.end()
    while (end := _TAG_END.match(source, at)) is None:
        attribute = _ATTRIBUTE.match(source, at)
        if attribute is None:
            return None
        values = (attribute[2], attribute[3], attribute[4])
        value = next((each for each in values if each is not None), None)
        attributes[attribute[1].lower()] = None if value is None else _resolve_references(value)
        at = attribute.end()
    return attributes, end.end()


def _resolve_references(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a number with thousands of digits
        return text
