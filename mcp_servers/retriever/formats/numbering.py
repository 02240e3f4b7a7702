"""Automatic numbers of Word's lists, clauses and headings, computed from numbering.xml as Word shows them.

Source: ECMA-376 part 1, 17.9. Fonts of bullets and the alignment of numbers are ignored: every bullet is a hyphen.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from docx.oxml.ns import qn

from mcp_servers.retriever.formats.drawing import roman
from mcp_servers.retriever.formats.package import read_integer

_PLACE = re.compile(r"%([1-9])")
_ORDINALS = {1: "st", 2: "nd", 3: "rd"}
_CHINESE = "〇一二三四五六七八九"
_LEGAL_CHINESE = "零壹贰叁肆伍陆柒捌玖"
_STEMS = "甲乙丙丁戊己庚辛壬癸"
_BRANCHES = "子丑寅卯辰巳午未申酉戌亥"
_KANA = "アイウエオカキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワヲン"
_IROHA = "イロハニホヘトチリヌルヲワカヨタレソツネナラムウヰノオクヤマケフコエテアサキユメミシヱヒモセス"
_HANGUL = "가나다라마바사아자차카타파하"
_JAMO = "ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ"
_RUSSIAN = "абвгдежзиклмнопрстуфхцчшщэюя"
_LETTERS = {
    "ganada": _HANGUL,
    "chosung": _JAMO,
    "russianLower": _RUSSIAN,
    "russianUpper": _RUSSIAN.upper(),
    "aiueoFullWidth": _KANA,
    "aiueo": _KANA,
    "irohaFullWidth": _IROHA,
    "iroha": _IROHA,
    "ideographTraditional": _STEMS,
    "ideographZodiac": _BRANCHES,
    "hebrew2": "אבגדהוזחטיכלמנסעפצקרשת",
    "arabicAlpha": "أبتثجحخدذرزسشصضطظعغفقكلمنهوي",
}
_WORDS = (*("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),)
_ORDINAL_WORDS = (
    *("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
    *("eleventh", "twelfth"),
)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a numbering: its format, its text with placeholders such as ``%1``, its start and its restarts."""

    kind: str = "decimal"
    text: str = ""
    start: int = 1
    restarts_after: int | None = None
    is_legal: bool = False

    @property
    def is_bullet(self) -> bool:
        """Return whether the level shows a mark instead of a number."""
        return self.kind == "bullet"


@dataclass(slots=True)
class Numbering:
    """The numberings of a document. Call `number` exactly once for each paragraph, in order, because it counts."""

    levels: dict[str, dict[int, Level]] = field(default_factory=dict)
    """Levels by the id of a numbering (`w:numId`)."""
    lists: dict[str, str] = field(default_factory=dict)
    """The abstract numbering of each numbering; numberings with the same one share their counts."""
    starts: dict[str, dict[int, int]] = field(default_factory=dict)
    """Levels at which a numbering restarts, with their first number."""
    by_style: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Numbering and level for the paragraph styles that levels name."""
    _counts: dict[str, dict[int, int]] = field(default_factory=dict)
    _begun: set[tuple[str, int]] = field(default_factory=set)

    def level(self, ident: str, depth: int) -> Level | None:
        """Return a level of a numbering, or None if the document has no such numbering."""
        levels = self.levels.get(ident)
        return None if levels is None else levels.get(depth)

    def number(self, ident: str, depth: int) -> str:
        """Count a paragraph and return its displayed number, or "" for bullets and unknown numberings."""
        level = self.level(ident, depth)
        if level is None:
            return ""
        counts = self._counts.setdefault(self.lists.get(ident, ident), {})
        starts = self.starts.get(ident, {})
        if depth in starts and (ident, depth) not in self._begun:
            self._begun.add((ident, depth))
            counts[depth] = starts[depth]
        elif depth in counts:
            counts[depth] += 1
        else:
            counts[depth] = level.start
        for deeper in [other for other in counts if other > depth]:
            below = self.level(ident, deeper)
            limit = None if below is None else below.restarts_after
            if limit is None or depth < limit:
                del counts[deeper]
        for above in range(depth):  # a skipped level counts as started
            if above not in counts:
                missing = self.level(ident, above)
                counts[above] = missing.start if missing is not None else 1
        if level.is_bullet or (level.kind == "none" and "%" not in level.text):
            return "" if level.is_bullet else level.text.strip()

        def place(match: re.Match[str]) -> str:
            at = int(match[1]) - 1
            own = self.level(ident, at) or Level()
            kind = "decimal" if level.is_legal else own.kind
            return show_count(counts.get(at, own.start), kind)

        return _PLACE.sub(place, level.text).strip()


def read_numbering(root: Any) -> Numbering:
    """Return the numberings of a numbering part."""
    numbering = Numbering()
    abstract: dict[str, dict[int, Level]] = {}
    styles: dict[str, list[tuple[str, int]]] = {}
    style_links: dict[str, str] = {}
    linked: dict[str, str] = {}
    for element in root.iter(qn("w:abstractNum")):
        ident = element.get(qn("w:abstractNumId"), "")
        abstract[ident] = {}
        for child in element.iter(qn("w:lvl")):
            depth = read_integer(child.get(qn("w:ilvl")), 0)
            abstract[ident][depth] = _level(child)
            if style := _value(child, "w:pStyle"):
                styles.setdefault(ident, []).append((style, depth))
        if name := _value(element, "w:styleLink"):
            style_links[name] = ident
        if name := _value(element, "w:numStyleLink"):
            linked[ident] = name
    for element in root.iter(qn("w:num")):
        ident = element.get(qn("w:numId"), "")
        of = _value(element, "w:abstractNumId")
        of = style_links.get(linked.get(of, ""), of)
        levels = dict(abstract.get(of, {}))
        for override in element.iter(qn("w:lvlOverride")):
            depth = read_integer(override.get(qn("w:ilvl")), 0)
            if (own := override.find(qn("w:lvl"))) is not None:
                levels[depth] = _level(own)
            if start := _value(override, "w:startOverride"):
                numbering.starts.setdefault(ident, {})[depth] = read_integer(start, 1)
        numbering.levels[ident] = levels
        numbering.lists[ident] = of
        for style, depth in styles.get(of, ()):
            numbering.by_style.setdefault(style, (ident, depth))
    return numbering


def _level(element: Any) -> Level:
    restart = _value(element, "w:lvlRestart")
    legal = element.find(qn("w:isLgl"))
    return Level(
        kind=_value(element, "w:numFmt") or "decimal",
        text=_value(element, "w:lvlText"),
        start=read_integer(_value(element, "w:start"), 0 if element.find(qn("w:start")) is None else 1),
        restarts_after=read_integer(restart, 0) if restart else None,
        is_legal=legal is not None and legal.get(qn("w:val"), "1") not in ("0", "false", "off"),
    )


def _value(element: Any, name: str) -> str:
    child = element.find(qn(name))
    return "" if child is None else str(child.get(qn("w:val"), ""))


def show_count(number: int, kind: str) -> str:
    """Return a number in one of Word's number formats, or in digits for an unsupported format."""
    if kind in _LETTERS and number > 0:
        return _LETTERS[kind][(number - 1) % len(_LETTERS[kind])]
    if kind in _FORMATS:
        return _FORMATS[kind](number)
    return _chinese(number, _CHINESE.replace("〇", "零"), "十百千", elide=True) if "Counting" in kind else str(number)


def _letters(number: int) -> str:
    """Return a number as letters; after z comes aa, then bb."""
    return chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1) if 0 < number < 1_000 else str(number)


def _ordinal(number: int) -> str:
    return f"{number}{'th' if number // 10 % 10 == 1 else _ORDINALS.get(number % 10, 'th')}"


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number].capitalize() if 0 <= number < len(words) else str(number)


def _circle(number: int) -> str:
    return chr(0x2460 + number - 1) if 0 < number <= 20 else str(number)


def _digits(number: int) -> str:
    return "".join(_CHINESE[int(digit)] for digit in str(abs(number)))


def _legal(number: int) -> str:
    return _chinese(number, _LEGAL_CHINESE, "拾佰仟", elide=False)


def _chinese(number: int, digits: str, units: str, *, elide: bool) -> str:
    """Return a number from 1 to 9 999 in Chinese; with ``elide``, 10 to 19 begin with the ten."""
    if not 0 < number < 10_000:
        return str(number)
    text = ""
    for at, digit in enumerate(map(int, str(number))):
        place = len(str(number)) - at - 1
        if digit:
            text += digits[digit] + (units[place - 1] if place else "")
        elif not text.endswith(digits[0]) and number % 10**place:
            text += digits[0]
    return text[1:] if elide and 10 <= number < 20 else text


_FORMATS: dict[str, Callable[[int], str]] = {
    "lowerLetter": _letters,
    "upperLetter": lambda number: _letters(number).upper(),
    "lowerRoman": lambda number: roman(number).lower(),
    "upperRoman": roman,
    "decimalZero": "{:02d}".format,
    "ordinal": _ordinal,
    "cardinalText": lambda number: _word(_WORDS, number),
    "ordinalText": lambda number: _word(_ORDINAL_WORDS, number),
    **dict.fromkeys(("decimalEnclosedCircle", "decimalEnclosedCircleChinese"), _circle),
    "decimalEnclosedParen": "({})".format,
    "decimalEnclosedFullstop": "{}.".format,
    "numberInDash": "- {} -".format,
    **dict.fromkeys(
        ("decimalFullWidth", "decimalFullWidth2"),
        lambda number: "".join(chr(ord(digit) + 0xFEE0) for digit in str(abs(number))),
    ),
    **dict.fromkeys(("ideographDigital", "japaneseDigitalTenThousand", "taiwaneseDigital"), _digits),
    **dict.fromkeys(("chineseLegalSimplified", "japaneseLegal", "ideographLegalTraditional"), _legal),
    "none": lambda number: "",
}
