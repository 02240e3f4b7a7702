"""Numbers, dates and durations as a spreadsheet program shows them, by the number format of their cell.

Source: ECMA-376 part 1, 18.8.31 (numFmt). Features that depend on the viewer's system (colours, column widths, the
names of months in other languages) are left out; formats that depend on the viewer's locale give ISO dates.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache

_DIGITS = 15
"""Significant digits of a number that a spreadsheet program shows: 0.1 + 0.2 is 0.3."""
MAX_FORMAT = 255
"""Characters of a number format; a spreadsheet program allows no more."""

_TOKEN = re.compile(
    r"""(?P<quoted>"[^"]*"?)|\\(?P<escaped>.)|_(?P<blank>.)|\*(?P<fill>.)|\[(?P<bracket>[^\]]*)\]"""
    r"|(?P<ampm>AM/PM|A/P|上午/下午)|(?P<general>General|G/通用格式)|(?P<exponent>E[+-])"
    r"|(?P<digits>[0#?]+)|(?P<date>y+|m+|d+|h+|s+|b+|e+|a{3,4}|g+)|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_ELAPSED = re.compile(r"h+|m+|s+", re.IGNORECASE)
_CONDITION = re.compile(r"(<=|>=|<>|<|>|=)\s*(-?[\d.]+)")
_CURRENCY = re.compile(r"\$([^-\]]*)(?:-[0-9A-Fa-f,]*)?")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"),
    "December",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_CHINESE_DAYS = "一二三四五六日"
_LOCALE = re.compile(r"\$[^-\]]*-(?:[0-9A-Fa-f]*?)([0-9A-Fa-f]{1,4})")
_LOCALE_NAMES = {
    0x05: (
        "ledna února března dubna května června července srpna září října listopadu prosince",
        "pondělí úterý středa čtvrtek pátek sobota neděle",
    ),
    0x06: (
        "januar februar marts april maj juni juli august september oktober november december",
        "mandag tirsdag onsdag torsdag fredag lørdag søndag",
    ),
    0x07: (
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    ),
    0x0A: (
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "lunes martes miércoles jueves viernes sábado domingo",
    ),
    0x0B: (
        "tammikuu helmikuu maaliskuu huhtikuu toukokuu kesäkuu heinäkuu elokuu syyskuu lokakuu marraskuu joulukuu",
        "maanantai tiistai keskiviikko torstai perjantai lauantai sunnuntai",
    ),
    0x0C: (
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "lundi mardi mercredi jeudi vendredi samedi dimanche",
    ),
    0x10: (
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    ),
    0x13: (
        "januari februari maart april mei juni juli augustus september oktober november december",
        "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
    ),
    0x14: (
        "januar februar mars april mai juni juli august september oktober november desember",
        "mandag tirsdag onsdag torsdag fredag lørdag søndag",
    ),
    0x15: (
        "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia",
        "poniedziałek wtorek środa czwartek piątek sobota niedziela",
    ),
    0x16: (
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo",
    ),
    0x19: (
        "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
        "понедельник вторник среда четверг пятница суббота воскресенье",
    ),
    0x1D: (
        "januari februari mars april maj juni juli augusti september oktober november december",
        "måndag tisdag onsdag torsdag fredag lördag söndag",
    ),
    0x04: (
        "一月 二月 三月 四月 五月 六月 七月 八月 九月 十月 十一月 十二月",
        "星期一 星期二 星期三 星期四 星期五 星期六 星期日",
    ),
    0x11: (
        "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月",
        "月曜日 火曜日 水曜日 木曜日 金曜日 土曜日 日曜日",
    ),
}
"""Names of months and days by the primary language (the low ten bits) of a format's locale, such as ``[$-407]``."""

LOCALE_DATES = frozenset({"mm-dd-yy", "m/d/yy h:mm", "m/d/yyyy h:mm", "m/d/yyyy", "mm/dd/yy"})
"""Built-in formats whose order of day and month depends on the viewer's country, so they are shown as ISO dates."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


@lru_cache(maxsize=512)
def _sections(code: str) -> tuple[tuple[_Token, ...], ...]:
    sections: list[list[_Token]] = [[]]
    for match in _TOKEN.finditer(code[:MAX_FORMAT]):
        kind, text = str(match.lastgroup), match[match.lastgroup or 0]
        if kind == "other" and text == ";":
            sections.append([])
        else:
            sections[-1].append(_Token(kind, text.strip('"') if kind == "quoted" else text))
    return tuple(map(tuple, sections))


def show_number(value: float | int, code: str) -> str:
    """Return a number as its format shows it."""
    if value != value or value in (float("inf"), float("-inf")):  # only NaN differs from itself
        return str(value)
    section, shown = _choose(value, _sections(code))
    if not section:
        # an empty section hides the number; a search must still find it
        return plain_number(value)
    if any(token.kind == "date" for token in section):
        return plain_number(value)
    text = _format(shown, section)
    return text if any(char.isdigit() for char in text) or not _places(section) else plain_number(value)


def plain_number(value: float | int) -> str:
    """Return a number in the format General."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 10**_DIGITS):
        return str(int(value))
    return f"{value:.{_DIGITS}g}".replace("e", "E")


def _choose(value: float | int, sections: tuple[tuple[_Token, ...], ...]) -> tuple[tuple[_Token, ...], float | int]:
    """Return the section of a format for a value, and the value without the sign that the section shows."""
    for section in sections:
        for token in section:
            if token.kind == "bracket" and (condition := _CONDITION.fullmatch(token.text.strip())):
                limit, sign = float(condition[2]), condition[1]
                if (
                    (sign == "<" and value < limit)
                    or (sign == "<=" and value <= limit)
                    or (sign == ">" and value > limit)
                    or (sign == ">=" and value >= limit)
                    or (sign == "=" and value == limit)
                    or (sign == "<>" and value != limit)
                ):
                    return section, value
    numbers = sections[:3]  # the fourth is for texts
    if any(token.kind == "bracket" and _CONDITION.fullmatch(token.text.strip()) for token in numbers[0]):
        return numbers[-1], value
    if value < 0 and len(numbers) > 1:
        return numbers[1], -value
    if value == 0 and len(numbers) > 2:
        return numbers[2], value
    return numbers[0], value


def _places(section: tuple[_Token, ...]) -> int:
    return sum(token.kind in ("digits", "general") for token in section)


def _format(value: float | int, section: tuple[_Token, ...]) -> str:
    if any(token.kind == "general" for token in section):
        return "".join(plain_number(value) if token.kind == "general" else _literal(token) for token in section).strip()
    if not any(token.kind == "digits" for token in section):
        return "".join(map(_literal, section)).strip() or plain_number(value)
    if any(token.kind == "other" and token.text == "/" for token in section):
        return _fraction(value, section)
    return _decimal(value, section)


def _fraction(value: float | int, section: tuple[_Token, ...]) -> str:
    """Return a number as a whole and a fraction, such as `2 3/8`; exact decimals if the format has another form."""
    slash = next(at for at, token in enumerate(section) if token.text == "/")
    after = section[slash + 1] if slash + 1 < len(section) else None
    places = [token for token in section[:slash] if token.kind == "digits"]
    fixed = "".join(token.text for token in section[slash + 1 :] if token.text.isdigit() or token.kind == "digits")
    if after is None or not places or not fixed or len(fixed) > 4:
        return plain_number(value)
    exact = Fraction(Decimal(repr(abs(value))))
    if fixed.strip("0#?").isdigit() and fixed.isdigit():  # a given denominator, such as # ??/16
        lower = int(fixed)
        upper = int(exact * lower + Fraction(1, 2))
    else:
        nearest = exact.limit_denominator(10 ** len(fixed) - 1)
        upper, lower = nearest.numerator, nearest.denominator
    whole, rest = divmod(upper, lower) if len(places) > 1 else (0, upper)
    sign = "-" if value < 0 and upper else ""
    if not rest:
        return f"{sign}{whole}"
    return f"{sign}{f'{whole} ' if whole else ''}{rest}/{lower}"


def _decimal(value: float | int, section: tuple[_Token, ...]) -> str:
    first = next(at for at, token in enumerate(section) if token.kind == "digits")
    last = max(at for at, token in enumerate(section) if token.kind == "digits")
    point = next(
        (at for at, token in enumerate(section) if token.kind == "other" and token.text == "." and at >= first - 1),
        None,
    )
    exponent = next((at for at, token in enumerate(section) if token.kind == "exponent"), None)
    end = last if exponent is None else exponent
    whole = "".join(t.text for t in section[: end + 1 if point is None else point] if t.kind == "digits")
    after = "" if point is None else "".join(t.text for t in section[point : end + 1] if t.kind == "digits")
    commas = [at for at, token in enumerate(section) if token.kind == "other" and token.text == ","]
    groups = any(first < at < (last if point is None else point) and at != last + 1 for at in commas)
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    number = +number  # rounds to the precision of the context, however many digits the file has
    scale = 0
    at = (point if point is not None else last) + (0 if point is not None else 1)
    before = point - 1 if point is not None else None
    if before is not None and before in commas:
        while before in commas:
            scale, before = scale + 1, before - 1
    else:
        at = last + 1
        while at in commas:
            scale, at = scale + 1, at + 1
    number = number.scaleb(-3 * scale)
    number = number.scaleb(2 * sum(token.kind == "other" and token.text in "%％" for token in section))
    if exponent is not None:
        return _scientific(number, section, after)
    try:
        rounded = number.quantize(Decimal(1).scaleb(-len(after)), ROUND_HALF_UP)
    except InvalidOperation:
        return plain_number(value)
    sign = "-" if rounded < 0 else ""
    integer, _, decimals = f"{abs(rounded):f}".partition(".")
    optional = len(after) - len(after.rstrip("#?"))
    while optional and decimals.endswith("0"):
        decimals, optional = decimals[:-1], optional - 1
    least = len(whole) - len(whole.lstrip("#?"))
    integer = ("" if integer == "0" else integer).rjust(len(whole) - least, "0")
    if groups:
        integer = f"{int(integer or 0):,}".rjust(len(integer), "0") if integer else ""
    return _assemble(section, sign, integer, decimals, point, end)


def _assemble(section: tuple[_Token, ...], sign: str, integer: str, decimals: str, point: int | None, end: int) -> str:
    """Put the digits of a number between the texts of its format.

    Texts between digits, as in 000-00-0000, divide the integer part from its right end.
    """
    places = [at for at, t in enumerate(section[: end + 1 if point is None else point]) if t.kind == "digits"]
    pieces: dict[int, str] = {}
    rest = integer
    divided = bool(places) and any(
        section[at].text != "," and _literal(section[at]) for at in range(places[0], places[-1])
    )
    if divided and "," not in integer:
        for at in reversed(places[1:]):
            size = len(section[at].text)
            rest, pieces[at] = rest[:-size] if size < len(rest) else "", rest[-size:]
    if places:
        pieces[places[0]] = rest
    shown: list[str] = []
    done = False
    for at, token in enumerate(section):
        if token.kind == "digits":
            if point is not None and at > point:
                shown.append("" if done else decimals)
                done = True
            else:
                shown.append(pieces.get(at, ""))
        elif token.kind == "other" and token.text == "." and at == point:
            shown.append("." if decimals else "")
        elif token.kind == "other" and token.text == ",":
            continue
        else:
            shown.append(_literal(token))
    return sign + "".join(shown).strip()


def _scientific(number: Decimal, section: tuple[_Token, ...], after: str) -> str:
    mark = next(token.text for token in section if token.kind == "exponent")
    mantissa, _, power = f"{number:.{len(after)}E}".partition("E")
    size = int(power)
    sign = "-" if size < 0 else "+" if mark.endswith("+") else ""
    return f"{mantissa}E{sign}{abs(size):02d}"


def _literal(token: _Token) -> str:
    if token.kind in ("quoted", "escaped"):
        return token.text
    if token.kind == "blank":
        return " "
    if token.kind == "bracket":
        currency = _CURRENCY.fullmatch(token.text)
        return currency[1] if currency else ""
    if token.kind in ("fill", "digits", "exponent", "general"):
        return ""
    return "" if token.text == "@" else token.text


def show_date(value: datetime | date | time | timedelta, code: str) -> str:
    """Return a date, a time of day or a duration as its format shows it."""
    section = _sections(code)[0]
    if isinstance(value, timedelta):
        return _duration(value, section)
    if code.lower() in LOCALE_DATES and "h" not in code and isinstance(value, datetime):
        return value.date().isoformat()
    if code.lower() in LOCALE_DATES or not any(token.kind == "date" for token in section):
        return iso_moment(value)
    return _moment(value, section)


def iso_moment(value: datetime | date | time) -> str:
    """Return a date or time in ISO 8601, without a time of day for a plain date."""
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "seconds")
    return value.isoformat()


def _duration(value: timedelta, section: tuple[_Token, ...]) -> str:
    """Return a duration in its format: in `[h]:mm:ss`, h counts all hours, and mm:ss is the rest."""
    tenths = round(value.total_seconds() * 10)
    sign, tenths = ("-", -tenths) if tenths < 0 else ("", tenths)
    seconds = (tenths + 5) // 10
    kinds = [
        (token.text[:1].lower(), len(token.text), token.kind == "bracket")
        for token in section
        if token.kind == "date" or (token.kind == "bracket" and _ELAPSED.fullmatch(token.text))
    ]
    has_seconds = any(letter == "s" for letter, _, _ in kinds)
    minutes = seconds // 60 if has_seconds else (seconds + 30) // 60
    totals = {"h": minutes // 60, "m": minutes, "s": seconds}
    rests = {"d": minutes // 1440, "h": minutes // 60 % 24, "m": minutes % 60, "s": seconds % 60}
    shown: list[str] = []
    for token in section:
        letter = token.text[:1].lower()
        if token.kind == "bracket" and _ELAPSED.fullmatch(token.text):
            shown.append(str(totals[letter]).rjust(len(token.text), "0"))
        elif token.kind == "date" and letter in rests:
            shown.append(str(rests[letter]).rjust(len(token.text), "0"))
        elif token.kind == "digits":
            shown.append("0" * len(token.text))
        elif token.kind != "bracket":
            shown.append(_literal(token))
    return sign + "".join(shown).strip()


def _moment(value: datetime | date | time, section: tuple[_Token, ...]) -> str:
    moment = value if isinstance(value, datetime) else _full(value)
    months, days = _names_of(section)
    half_day = any(token.kind == "ampm" for token in section)
    shown: list[str] = []
    before = ""
    for at, token in enumerate(section):
        if token.kind == "date":
            letter = token.text[0].lower()
            # m is minutes after hours or before seconds
            if letter == "m" and len(token.text) < 3:
                following = next((t.text[0].lower() for t in section[at + 1 :] if t.kind == "date"), "")
                letter = "n" if before == "h" or following == "s" else "m"
            shown.append(_part(moment, letter, len(token.text), half_day, months, days))
            before = letter
        elif token.kind == "ampm":
            names = ("上午", "下午") if token.text.startswith("上") else ("AM", "PM")
            shown.append(names[moment.hour >= 12])
        elif token.kind == "digits":
            shown.append(f"{moment.microsecond:06d}"[: len(token.text)])
        else:
            shown.append(_literal(token))
    return "".join(shown).strip()


def _full(value: date | time) -> datetime:
    return datetime.combine(date(1900, 1, 1), value) if isinstance(value, time) else datetime.combine(value, time())


def _names_of(section: tuple[_Token, ...]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of months and days in the language of a format; English if it names none that is known."""
    for token in section:
        if token.kind == "bracket" and (locale := _LOCALE.match(token.text)):
            names = _LOCALE_NAMES.get(int(locale[1], 16) & 0x3FF)
            if names is not None:
                return names[0].split(), names[1].split()
    return _MONTHS, _DAYS


def _part(moment: datetime, letter: str, size: int, half_day: bool, months: Sequence[str], days: Sequence[str]) -> str:
    if letter in ("y", "e", "b"):
        return f"{moment.year % 100:02d}" if letter == "y" and size <= 2 else f"{moment.year:04d}"
    if letter == "m" and size >= 3:
        name = months[moment.month - 1]
        return name[:3] if size == 3 else name[:1] if size == 5 else name
    if letter == "d" and size >= 3:
        name = days[moment.weekday()]
        return name[:3] if size == 3 else name
    if letter == "a":
        return ("星期" if size == 4 else "") + _CHINESE_DAYS[moment.weekday()]
    if letter == "g":
        return ""
    hour = (moment.hour % 12 or 12) if half_day else moment.hour
    number = {"m": moment.month, "d": moment.day, "h": hour, "n": moment.minute, "s": moment.second}[letter]
    return f"{number:02d}" if size >= 2 else str(number)
