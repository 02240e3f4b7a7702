"""Lint for role files: findings with their positions and corrections.

Pure, like `dpml`. A role author has no other debugger, so every leniency of the parser is a finding here. An `error`
means that the author surely meant something else. The role is still activated if it has usable text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, Literal

from mcp_servers.promptx.dpml import (
    CHILDREN,
    KINDS,
    SECTIONS,
    TAG,
    Document,
    Kind,
    Lookup,
    code_blocks,
    parse,
    position,
    references,
    resolve,
    tag_name,
    tag_pairs,
)

Severity = Literal["error", "warning", "info"]

LONG_CHARS: Final = 32_000
"""Maximum characters of a file without a finding. A longer file fills the context of every turn."""
MAX_FINDINGS: Final = 100
"""Maximum number of findings of one file."""
LONGEST_TYPO: Final = 24
"""Maximum characters of a tag name that is treated as a typing error."""

KEPT_TEXTS: Final = 256
"""Number of files whose findings are cached, so that an unchanged file is not examined again."""

_CODE_SPAN: Final = re.compile(r"`[^`\n]+`")


@dataclass(frozen=True, slots=True)
class Finding:
    """One lint result. `line` and `column` count from 1, columns in characters."""

    file: str
    line: int
    column: int
    severity: Severity
    code: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity} {self.code}: {self.message} ({self.hint})"


_Found = tuple[int, Severity, str, str, str]
"""Offset, severity, code, message, hint."""


def lint(kind: Kind, text: str, file: str, lookup: Lookup) -> list[Finding]:
    """Return the first `MAX_FINDINGS` findings of one file, ordered by position."""
    findings = _examine(kind, text)
    if kind == "role":
        # One finding for each place and code: the lint of the text may have reported a reference already.
        leading = {(at, code): (at, severity, code, message, hint) for at, severity, code, message, hint in findings}
        for item in _lint_references(text, lookup):
            leading.setdefault((item[0], item[2]), item)
        findings = tuple(leading.values())
    ordered = sorted(findings, key=lambda item: item[0])[:MAX_FINDINGS]
    return [
        Finding(file, *position(text, at), severity, code, message, hint)
        for at, severity, code, message, hint in ordered
    ]


@lru_cache(KEPT_TEXTS)
def _examine(kind: Kind, text: str) -> tuple[_Found, ...]:
    """Return the findings that depend on the text alone, so not those of missing referenced files."""
    document = parse(kind, text)
    by_place: dict[tuple[int, str], _Found] = {}
    for item in (*_lint_body(document), *_lint_tags(document), *_lint_nested(document)):
        by_place.setdefault((item[0], item[2]), item)
    return tuple(sorted(by_place.values(), key=lambda item: item[0])[:MAX_FINDINGS])


def _lint_body(document: Document) -> Iterator[_Found]:
    kind, text, body = document.kind, document.text, document.body
    if len(text) > LONG_CHARS:
        hint = "move rarely needed text to documents that the role can search"
        yield 0, "warning", "long", f"the file has {len(text)} characters and fills the context of every turn", hint
    if body is None:
        severity: Severity = "error" if kind == "role" else "warning"
        yield 0, severity, "no-tag", f"there is no <{kind}> tag", f"put everything between <{kind}> and </{kind}>"
        return
    if not body.closed:
        yield body.at, "error", "unclosed", f"<{kind}> is never closed", f"end the file with </{kind}>"
    if kind != "role":
        return
    if not document.sections:
        hint = "add at least one of " + ", ".join(f"<{name}>" for name in SECTIONS)
        yield body.at, "error", "no-section", "the role has no section, so it says nothing", hint
    at, section_names = body.start, set[str]()
    for section in document.sections:
        yield from _lint_outside(text, at, section.at)
        if section.name in section_names:
            hint = "merge the two; PromptX reads only one"
            yield section.at, "warning", "repeated-section", f"<{section.name}> appears again", hint
        section_names.add(section.name)
        at = section.after
    yield from _lint_outside(text, at, body.end)


def _lint_outside(text: str, start: int, end: int) -> Iterator[_Found]:
    outside = text[start:end]
    if stripped := outside.lstrip():
        at = start + len(outside) - len(stripped)
        yield at, "warning", "outside", "text outside the sections is ignored", "move it into a section"


def _without_code(text: str) -> str:
    """Return the text with blanks in place of code, because tags in code are examples. Offsets stay valid."""
    lines = text.split("\n")
    at = 0
    for first, last in code_blocks(lines):
        lines[at:first] = map(_without_spans, lines[at:first])
        lines[first : last + 1] = (" " * len(line) for line in lines[first : last + 1])
        at = last + 1
    lines[at:] = map(_without_spans, lines[at:])
    return "\n".join(lines)


def _without_spans(line: str) -> str:
    return _CODE_SPAN.sub(lambda code: " " * len(code.group()), line)


def _lint_tags(document: Document) -> Iterator[_Found]:
    text = _without_code(document.text)
    known_names = (document.kind, *SECTIONS, *CHILDREN) if document.kind == "role" else (document.kind, *CHILDREN)
    tags = list(TAG.finditer(text))
    known_tags = [tag for tag in tags if tag_name(tag) in known_names]
    pairs = tag_pairs(known_tags)
    closings = set(pairs.values())
    for number, tag in enumerate(known_tags):
        name = tag_name(tag)
        if tag[1]:
            if number not in closings:
                yield tag.start(), "warning", "stray", f"</{name}> closes nothing", "remove it or open the tag before"
            continue
        if tag[3].strip(" /\t\n"):
            hint = f"write <{name}>; PromptX drops a section whose tag has attributes"
            yield tag.start(), "warning", "attributes", f"<{name}> carries attributes, they are ignored", hint
        if tag[2] != name:
            hint = f"write <{name}>; PromptX may drop it otherwise"
            yield tag.start(), "warning", "case", f"<{tag[2]}> is not in lower case", hint
        if number not in pairs:
            yield tag.start(), "error", "unclosed", f"<{name}> is never closed", f"add </{name}> where it ends"
        elif not document.text[tag.end() : known_tags[pairs[number]].start()].strip():
            yield tag.start(), "warning", "empty", f"<{name}> is empty", "write something in it or remove it"
    yield from _lint_unknown([tag for tag in tags if tag_name(tag) not in known_names], known_names)


def _lint_unknown(tags: Sequence[re.Match[str]], known_names: Sequence[str]) -> Iterator[_Found]:
    names: set[str] = set()
    for tag in tags:
        name = tag_name(tag)
        if name in names:
            continue
        names.add(name)
        if len(names) > MAX_FINDINGS:  # comparing names is expensive, and no more findings are reported
            return
        close = get_close_matches(name, known_names, 1, 0.8) if len(name) <= LONGEST_TYPO else ()
        if close:
            yield tag.start(), "error", "unknown-tag", f"<{name}> is not a tag of DPML", f"did you mean <{close[0]}>?"
        else:
            hint = "it is passed on as text; put it in backquotes if it is an example"
            yield tag.start(), "info", "unknown-tag", f"<{name}> is not a tag of DPML", hint


def _lint_nested(document: Document) -> Iterator[_Found]:
    if document.kind == "role":
        return
    for reference in references(_without_code(document.text)):
        hint = "references are followed one level; name the file in the role itself"
        message = f"a reference inside a {document.kind} file is not followed"
        yield reference.start, "info", "nested-reference", message, hint


def _lint_references(text: str, lookup: Lookup) -> Iterator[_Found]:
    for reference in references(text):
        at, reference_text = reference.start, text[reference.start : reference.end]
        if reference.protocol == "file" or (reference.protocol in KINDS and not reference.candidates):
            hint = "put the text into a file such as NAME.knowledge.md and write @!knowledge://NAME"
            yield at, "error", "bad-reference", f"{reference_text} is refused: paths and files cannot be read", hint
        elif reference.protocol not in KINDS:
            hint = f"known protocols: {', '.join(KINDS)}"
            yield at, "info", "unknown-protocol", f"{reference_text} is passed on as text", hint
        elif resolve(reference, lookup) is None:
            severity: Severity = "warning" if reference.force == "?" else "error"
            hint = f"create {reference.candidates[-1]}.{reference.protocol}.md or correct the id"
            yield at, severity, "missing-reference", f"{reference_text} leads nowhere", hint
