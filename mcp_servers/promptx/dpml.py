"""DPML, the markup of role files: parse, find references, render.

Pure: the module reads no file and knows no folder, clock or ``async``. Callers supply the texts of references. The
parser is lenient wherever a model can still use the text; `lint` informs the author.

Source: PromptX's DPML (`<role>` with `<personality> <principle> <knowledge>`, `@!protocol://id` references).
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile, takewhile
from textwrap import dedent
from typing import Final, Literal

from mcp_servers.promptx.ids import ID

Kind = Literal["role", "thought", "execution", "knowledge", "manual"]
Resources = Literal["personality", "principle", "knowledge", "all"]

KINDS: Final[tuple[Kind, ...]] = ("role", "thought", "execution", "knowledge", "manual")
SECTIONS: Final = ("personality", "principle", "knowledge")
"""The parts of a role, in the order they are rendered."""
CHILDREN: Final = (
    *("exploration", "reasoning", "challenge", "plan"),
    *("constraint", "rule", "guideline", "process", "criteria"),
)
"""The parts of a thought and of an execution."""
MAX_FILE_BYTES: Final = 128 * 1024
"""Maximum size of a file. A longer one costs time at every activation, and no model follows so much text."""
MAX_CHARS: Final = 1_000_000
"""Maximum characters that are inlined in one role."""
SUMMARY: Final = 200
"""Maximum characters of a role's summary in a list for models."""
KEPT_RESOURCES: Final = 256
"""Number of files whose inlined form is cached."""

_REFERENCE: Final = re.compile(r"@([!?]?)([A-Za-z][A-Za-z0-9+-]*)://([\w./\\%:~-]*)")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s|(?<=[。！？])")
TAG: Final = re.compile(r"<(/?)([A-Za-z][\w-]*)((?:\s[^<>]*|/)?)>")
_MARKUP: Final = re.compile(
    r"<[^<>]*>|[*_`#<>]|^[\s\-+]+"
)  # no tag extends over a "<": else each search would run to the end
_FENCE: Final = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
_NOT_LINE_END: Final = re.compile(r"[^\n]")
_BLANKS: Final = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")


@dataclass(frozen=True, slots=True)
class ResourceReference:
    """A reference such as `@!thought://id` at `start:end` of a text.

    `force` is '!', '?' or ''. `target` is the text after `://`.
    """

    force: str
    protocol: str
    target: str
    start: int
    end: int

    @property
    def candidates(self) -> tuple[str, ...]:
        """The ids that the reference may mean, best first.

        A full stop, or Chinese text without a space, may follow the id.
        """
        trimmed = self.target.rstrip(".-")
        ascii_part = re.match(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.target)
        ids = (self.target, trimmed, ascii_part.group() if ascii_part else trimmed)
        return tuple(dict.fromkeys(candidate for candidate in ids if ID.match(candidate)))


@dataclass(frozen=True, slots=True)
class Element:
    """A tag pair: opening tag at `at`, inner text at `start:end`, following text at `after`."""

    name: str
    at: int
    start: int
    end: int
    after: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. `body` is the element that is named after the file's kind."""

    kind: Kind
    text: str
    body: Element | None
    sections: tuple[Element, ...]

    @property
    def complete(self) -> bool:
        """Whether the file's own tag is opened and closed."""
        return self.body is not None and self.body.closed


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text for a model, the inlined references as (kind, id), and one warning line per missing reference."""

    text: str
    inlined: tuple[tuple[Kind, str], ...]
    missing: tuple[str, ...]


Lookup = Callable[[Kind, str], str | None]
"""A function from (kind, id) to the text of that file, or to None if there is none."""


def normalise(text: str) -> str:
    r"""Return the text with line ends as `\n` and without a byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column of an offset, both from 1."""
    before = text.count("\n", 0, offset)
    return before + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def references(text: str) -> Iterator[ResourceReference]:
    """Yield the references of a text in order, except those in comments."""
    for match in _REFERENCE.finditer(blank_comments(text)):
        yield ResourceReference(match[1], match[2].lower(), match[3], match.start(), match.end())


def blank_comments(text: str) -> str:
    """Return the text with blanks in place of HTML comments, so that offsets and lines stay the same.

    A comment in a code block is an example, and a comment that never ends is text. Both stay.
    """
    if "<!--" not in text:
        return text
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    code = [(starts[first], starts[last + 1]) for first, last in code_blocks(lines)]
    pieces: list[str] = []
    at = 0
    search = 0
    while (begin := text.find("<!--", search)) >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        search = end + 3
        block = bisect_right(code, (begin, len(text))) - 1
        if block >= 0 and begin < code[block][1]:
            search = code[block][1]
            continue
        if text[begin - 1 : begin] == "`":
            continue
        pieces += [text[at:begin], _NOT_LINE_END.sub(" ", text[begin : end + 3])]
        at = end + 3
    return "".join([*pieces, text[at:]])


def code_blocks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each fenced block, in order. A fence without a closing fence opens no block.

    The function passes over the lines twice, for any number of fences. The first pass, from the end, finds the longest
    closing fence after each line, so that the second pass never searches for a missing one.
    """
    fences = [_FENCE.match(line) for line in lines]
    longest_after: list[tuple[int, int]] = []
    ticks = tildes = 0
    for fence in reversed(fences):
        longest_after.append((ticks, tildes))
        if fence is not None and not fence[2].strip(" \t"):
            ticks, tildes = (
                (max(ticks, len(fence[1])), tildes) if fence[1][0] == "`" else (ticks, max(tildes, len(fence[1])))
            )
    longest_after.reverse()
    number = 0
    while number < len(lines):
        fence = fences[number]
        first, number = number, number + 1
        if fence is None or longest_after[first]["`~".index(fence[1][0])] < len(fence[1]):
            continue
        if fence[1][0] == "`" and "`" in fence[2]:  # ```code``` within a line
            continue
        while not _closes(fences[number], fence[1]):
            number += 1
        yield first, number
        number += 1


def _closes(fence: re.Match[str] | None, opening: str) -> bool:
    return fence is not None and fence[1].startswith(opening) and not fence[2].strip(" \t")


def parse(kind: Kind, text: str) -> Document:
    """Find the file's own tag and, in a role, its sections. Never fails; `lint` reports oddities.

    Comments are ignored: the document's text has blanks in their place.
    """
    text = blank_comments(text)
    body = next(_elements(text, (kind,), 0, len(text)), None)
    sections: tuple[Element, ...] = ()
    if kind == "role" and body is not None:
        sections = tuple(_elements(text, SECTIONS, body.start, body.end))
    return Document(kind, text, body, sections)


def tag_name(tag: re.Match[str]) -> str:
    return tag[2].lower()


def _is_empty_tag(tag: re.Match[str]) -> bool:
    return tag[3].rstrip().endswith("/")


def tag_pairs(tags: Sequence[re.Match[str]]) -> dict[int, int]:
    """Return the closing tag of each opening tag, as indexes into `tags`. Tags of each name nest separately."""
    opened: dict[str, list[int]] = {}
    pairs: dict[int, int] = {}
    for number, tag in enumerate(tags):
        if _is_empty_tag(tag):
            pairs[number] = number
        elif not tag[1]:
            opened.setdefault(tag_name(tag), []).append(number)
        elif waiting := opened.get(tag_name(tag)):
            pairs[waiting.pop()] = number
    return pairs


def _elements(text: str, names: Sequence[str], start: int, end: int) -> Iterator[Element]:
    """Yield the top-level elements with one of `names` (in any case) between two offsets."""
    tags = [tag for tag in TAG.finditer(text, start, end) if tag_name(tag) in names]
    pairs = tag_pairs(tags)
    # A text that only mentions `<role>` unbalances the nesting. Then the last closing tag counts.
    last = {tag_name(tag): number for number, tag in enumerate(tags) if tag[1]}
    number = 0
    while number < len(tags):
        tag = tags[number]
        closing = pairs.get(number, last.get(tag_name(tag), -1))
        if tag[1]:
            number += 1
        elif closing >= number:
            stop = tag.end() if closing == number else tags[closing].start()
            yield Element(tag_name(tag), tag.start(), tag.end(), stop, tags[closing].end(), True)
            number = closing + 1
        else:  # an unclosed element ends at its next sibling, so that the siblings are found
            number += 1
            while number < len(tags) and (tags[number][1] or tag_name(tags[number]) == tag_name(tag)):
                number += 1
            stop = tags[number].start() if number < len(tags) else end
            yield Element(tag_name(tag), tag.start(), tag.end(), stop, stop, False)


def inner(document: Document) -> str:
    """Return the text inside the file's own tag, or the whole text if there is no such tag."""
    if document.body is None:
        return document.text
    return document.text[document.body.start : document.body.end]


def render(document: Document, resources: Resources, lookup: Lookup) -> Rendered:
    """Render a role: its sections in PromptX's order, references inlined in place, once and not recursively."""
    inlined = _Inlined()
    missing: dict[str, None] = {}
    parts: list[str] = []
    for name in SECTIONS if resources == "all" else (resources,):
        texts = [document.text[part.start : part.end] for part in document.sections if part.name == name]
        bodies = [_inline(_headings(text, CHILDREN), lookup, inlined, missing) for text in texts]
        if filled := [body for body in bodies if body]:
            parts.append("\n\n".join([f"# {name}", *filled]))
    return Rendered("\n\n".join(parts), tuple(inlined.files), tuple(missing))


@dataclass(slots=True)
class _Inlined:
    """The inlined files so far, in order, and the number of characters, repetitions included."""

    files: dict[tuple[Kind, str], None] = field(default_factory=dict)
    chars: int = 0


def _inline(text: str, lookup: Lookup, inlined: _Inlined, missing: dict[str, None]) -> str:
    pieces: list[str] = []
    at = 0
    for reference in references(text):
        target = resolve(reference, lookup)
        if target and inlined.chars + len(target[2]) > MAX_CHARS:
            target = None  # one large file, inlined many times
        if target is None and reference.protocol not in (*KINDS, "file"):
            continue  # another program's protocol, such as @tool://, which the model may know
        pieces.append(text[at : reference.start])
        if target is None:
            at = reference.end
            line = missing_line(text[reference.start : reference.end])
            missing[line] = None
            pieces.append(f"\n\n{line}\n\n")
            continue
        kind, key, content = target
        at = reference.start + text[reference.start : reference.end].index("://") + 3 + len(key)
        inlined.files[kind, key] = None
        inlined.chars += len(content)
        pieces.append(f"\n\n## {kind}: {key}\n\n{_resource(kind, content)}\n\n")
    pieces.append(text[at:])
    return _BLANKS.sub("\n\n", "".join(pieces)).strip()


@lru_cache(KEPT_RESOURCES)
def _resource(kind: Kind, content: str) -> str:
    """Return the inlined form of a file."""
    return _headings(inner(parse(kind, content)), SECTIONS if kind == "role" else CHILDREN)


def resolve(reference: ResourceReference, lookup: Lookup) -> tuple[Kind, str, str] | None:
    """Return the kind, id and text of a reference's file, or None if there is none."""
    for kind in KINDS:
        if kind == reference.protocol:
            for key in reference.candidates:
                if (content := lookup(kind, key)) is not None:
                    return kind, key, content
    return None


def missing_line(reference: str) -> str:
    """Return the line that replaces a reference to a missing file."""
    return f"> Not available: {reference.replace('@', '', 1).lstrip('!?')}"


def _headings(text: str, names: Sequence[str], nesting: int = 3) -> str:
    """Return text without its common indent and with known child tags as `###` headings. Other tags stay."""
    pieces: list[str] = []
    at = 0
    for child in _elements(text, names, 0, len(text)) if nesting else ():
        pieces.append(_flush_left(text[at : child.at]))
        pieces.append(f"### {child.name}\n\n{_headings(text[child.start : child.end], names, nesting - 1)}".rstrip())
        at = child.after
    pieces.append(_flush_left(text[at:]))
    return "\n\n".join(piece for piece in pieces if piece)


def _flush_left(text: str) -> str:
    return dedent(text.strip("\n")).strip()


def title(text: str) -> str:
    """Return a role's title as one plain line: its first heading, else its first line."""
    document = parse("role", text)
    first = document.sections[0] if document.sections else document.body
    lines = (document.text[first.start : first.end] if first else document.text).splitlines()
    plain = [_MARKUP.sub("", _REFERENCE.sub("", line)).strip() for line in lines]
    heading = next(
        (
            plain_line
            for line, plain_line in zip(lines, plain, strict=True)
            if plain_line and line.lstrip().startswith("#")
        ),
        "",
    )
    return (heading or next(filter(None, plain), ""))[:120]


def summary(text: str) -> str:
    """Return a role's title and first sentence in a line of at most `SUMMARY` characters."""
    document, heading = parse("role", text), title(text)
    first = document.sections[0] if document.sections else document.body
    lines = (document.text[first.start : first.end] if first else document.text).splitlines()
    plain = [_MARKUP.sub("", _REFERENCE.sub("", line)).strip() for line in lines]
    after = dropwhile(lambda line: not line, plain[plain.index(heading) + 1 :] if heading in plain else [])
    sentence = _SENTENCE.split(" ".join(takewhile(bool, after)), maxsplit=1)[0]
    line = " ".join(f"{heading}: {sentence}".split()).removesuffix(":")
    return line if len(line) <= SUMMARY else line[: SUMMARY - 1] + "…"
