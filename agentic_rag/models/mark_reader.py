"""An incremental reader for citation marks in text.

Owns the syntax of marks and the places without marks: code and links. The prompt asks models for ``[[2]]``, but they
also write ``[2]``, ``【2】``, ``【2†source】``, lists and ranges (``[1, 2]``, ``[[1-3]]``). Pure; knows no passage.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_ITEM = r"\d{1,3}(?: ?[-–—] ?\d{1,3})?"
_LIST = rf"{_ITEM}(?: ?[,;，、；] ?{_ITEM}){{0,19}}"
_MARK = (
    rf"[ \t]{{0,8}}(?:\[\[(?P<double>{_LIST})\]\](?!\()"
    rf"|(?<!\[)\[(?P<single>{_LIST})\](?![(\]])"
    rf"|【(?P<lens>{_LIST})(?:†[^】\n]{{0,60}})?】)"
)
_PROSE: Final = re.compile(rf"(?P<mark>{_MARK})|(?P<run>`+|~{{3,}})|(?P<line>\n)")
_RUNS: Final = re.compile(r"(?P<run>`+|~+)|(?P<line>\n)")
_OPEN: Final = re.compile(
    r"(?:[ \t]{0,8}(?:(?:\[\[?|【)[\d ,;，、；–—-]{0,240}(?:†[^】\n]{0,60})?(?:\]{1,2}|】)?)?|`{1,200}|~{1,200})\Z"
)
"""The end of a text that the next piece may complete to a mark or to a longer run."""
_INDENT: Final = re.compile(r"[\s>*+\-\d.)]*")
"""The characters allowed before a fence on its line: a fence may be inside a list or a quotation."""
_RANGE: Final = re.compile(r"(\d+)(?: ?[-–—] ?(\d+))?")
MOST: Final = 20
"""Most passages in one range. A longer range is not a mark."""
FENCE: Final = 3


@dataclass(frozen=True, slots=True)
class Mark:
    """A citation mark: its passage numbers and its original text.

    ``sure``: the form is unambiguous. A single bracket such as ``[3]`` may mean something else if the request has no
    passages.
    """

    numbers: tuple[int, ...]
    text: str
    sure: bool


Part = str | Mark


class MarkReader:
    """Reads one text in pieces. Any division into pieces gives the same marks between the same words."""

    def __init__(self) -> None:
        self._pending = ""
        self._code = ""  # the run that closes the open code, empty in prose
        self._fenced = False
        self._indent = True  # this line has only a fence's indent so far
        self._blank = False  # this line is blank so far, and a line came before
        self._opening = False  # still on the line of the opening fence

    def feed(self, text: str) -> Iterator[Part]:
        """Yield the marks and words that are certain. The last characters may wait for the next piece."""
        text = self._pending + text
        open_end = _OPEN.search(text)
        end = open_end.start() if open_end else len(text)
        self._pending = text[end:]
        yield from self._read(text, end)

    def end(self) -> Iterator[Part]:
        """Yield the rest. The reader must not be used afterwards."""
        rest, self._pending = self._pending, ""
        yield from self._read(rest, len(rest))

    def _read(self, text: str, end: int) -> Iterator[Part]:
        yielded = position = 0  # the words between the two are not yielded yet
        while match := (_RUNS if self._code else _PROSE).search(text, position, end):
            self._pass(text[position : match.start()])
            position = match.end()
            if match["run"]:
                self._take_run(match["run"])
            elif match["line"]:
                self._take_line()
            else:
                self._indent = self._blank = False
                mark = _mark_of(match)
                if mark is not None:
                    if match.start() > yielded:
                        yield text[yielded : match.start()]
                    yield mark
                    yielded = position
        self._pass(text[position:end])
        if end > yielded:
            yield text[yielded:end]

    def _pass(self, text: str) -> None:
        """Update the state of the current line after some of its words."""
        if text and (self._indent or self._blank):
            self._indent = self._indent and _INDENT.fullmatch(text) is not None
            self._blank = self._blank and text.isspace()

    def _take_line(self) -> None:
        if self._blank and self._code and not self._fenced:  # inline code ends with its paragraph at the latest
            self._code = ""
        self._indent, self._blank, self._opening = True, True, False

    def _take_run(self, run: str) -> None:
        at_start, self._indent, self._blank = self._indent, False, False
        if not self._code and run[0] == "~" and not at_start:  # tildes open code only as a fence
            return
        if not self._code:
            self._fenced = self._opening = at_start and len(run) >= FENCE
            self._code = run
        elif self._fenced and not self._opening:
            if at_start and run[0] == self._code[0] and len(run) >= len(self._code):
                self._code = ""
        elif run == self._code:  # also inline code that looked like a fence
            self._code = ""


def _mark_of(match: re.Match[str]) -> Mark | None:
    single = match["single"]
    numbers: list[int] = []
    for item in _RANGE.finditer(single or match["double"] or match["lens"]):
        first, last = int(item[1]), int(item[2] or item[1])
        if not first <= last < first + MOST:
            return None
        numbers += range(first, last + 1)
    if single and 0 in numbers:  # passages count from 1, so this is an index or an interval
        return None
    return Mark(tuple(dict.fromkeys(numbers)), match["mark"], sure=not single)
