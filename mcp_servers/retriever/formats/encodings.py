"""Detection of legacy text encodings by the frequency of the characters that each encoding yields.

The bytes are decoded in each encoding and the characters scored: characters that are frequent in the encoding's
languages raise the score, very rare ones lower it. A dozen characters are usually enough.
"""

import re
from collections.abc import Callable

_HIGH_RUNS = re.compile(rb"[\x80-\xff]+")
_GERMAN_PAIRS = re.compile(b"[\xe4\xf6\xfc]\xdf")
"""The only adjacent accents of a Latin script, as in "Größe"."""
_ALONE = 1.7
"""Mean length of runs of high bytes below which text is Latin: accents stand alone, other scripts form runs."""

_RANK_WEIGHT = 0.7
_LATIN_RANK_WEIGHT = 0.3
"""Difference of weight between the most and the least frequent letter, for other scripts and for Latin, whose accents
differ more between languages."""

_RUNS_OF_ACCENTS = 0.5
"""Factor on Latin scores if most high bytes are adjacent."""

_SPACED = 0.15
"""Bonus for Korean if the text has spaces between words; Chinese and Japanese have none."""

_HANGUL = range(0xB0, 0xC9)
"""First bytes of all Korean syllables, and of about half of the Chinese characters in a text."""
_HANGUL_ONLY = 0.3
"""Bonus for Korean if there are only such characters: words of a table have no endings that occur in `_COMMON`."""
_MANY = 24
"""Minimum number of high bytes for that bonus."""

_PAIRS = re.compile(rb"(?:[\xa1-\xa3\xb0-\xd7][\xa1-\xfe])+")
"""Frequent characters of Chinese, Japanese and Korean, two bytes each."""
_CHANCE = 6
"""Maximum number of high bytes that may form valid pairs by chance."""
_PAIRED = 0.75
"""Factor on single-byte scripts if all high bytes form pairs that are frequent two-byte characters."""

_LATIN = {
    "cp1252": "éèàäöüçï£áíóñ¿¡úêâôîûëßåæãõœøùìòÉÈÀÄÖÜÁÍÓÑÊÇÅØÆ’“”–—«»„…€§°·‘´\xa0•µ²³×½¼©®™",
    "cp1250": "áíéřěýčžšůúťňďłąęóśćżźńőűäöüăâșțîŘČŽŠÁÍÉĚŮŁŚŻÓÖÜ„”“–’\xa0•",
    "cp1254": "ıiğşüçöİŞÇÜÖĞâî’“”–\xa0•",
}
_OTHER_SCRIPTS = {
    "cp1251": "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъёїієґОЕАИНТСРВЛКМДП«»–—№“”\xa0",
    "koi8-r": "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъёОЕАИНТСРВЛКМДП\xa0",
    "cp1253": "αοιετσνηυρπκμλςίόάήέύώδγχθφβξζψΑΕΟΤΣΠ«»–’\xa0",
    "cp1255": "יוהלאתרשנמבקעדחכפגסטצזםןךץף–”“׳\xa0",
    "cp1256": "اليمنترهوبعدةفكسقحجشصأىخذطإضزئءثغظؤ،؛؟ًّ\xa0",
    "cp874": "านรอกเงคมยลวดทสตะปบ่้ีัิืแไใชพหผ์ุูึ็โขจณถธำศษซฐฟฉ",
}
_COMMON = frozenset(
    "的一是不了在人有我他这中大来上国个到说们为子和你地出也时年得就那要下以生会自去之过家学对可里后小心多天而能好都"
    "然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经面公同三已从两长知现這來國個說們為時會過對後發還沒"
    "開當無見經長現，。、：；！？（）「」《》“”이다는을를의에가은도고하지로한서인기사어리라시그해대수나습니있게자아"
)

Weigh = Callable[[int, int], float]
"""A function from the two bytes of a character to its weight."""


def guess(sample: bytes) -> str:
    """Return the most likely encoding of text that is not UTF-8; the sample may end inside a character."""
    runs = _HIGH_RUNS.findall(sample)
    high = sum(map(len, runs))
    latin = {name: _letters(sample, name, frequent, _LATIN_RANK_WEIGHT) for name, frequent in _LATIN.items()}
    wide = {name: _wide(sample, name, weigh) for name, weigh in _WIDE.items()}
    if has_lone_accents(sample):
        # In these encodings, the second byte of a character may be one of ASCII.
        latin |= {name: wide[name] for name in ("cp932", "cp950")}
        return max(latin, key=lambda name: latin[name])
    wide["cp949"] += _SPACED if sample.count(b" ") > high / 16 else 0.0
    hangul = sum(lead in _HANGUL for run in runs for lead in run[::2])
    wide["cp949"] += _HANGUL_ONLY if high >= _MANY and hangul * 2 == high else 0.0
    others = {name: _letters(sample, name, frequent, _RANK_WEIGHT) for name, frequent in _OTHER_SCRIPTS.items()}
    if high > _CHANCE and all(map(_PAIRS.fullmatch, runs)):
        others = {name: score * _PAIRED for name, score in others.items()}
    rare = {name: score * _RUNS_OF_ACCENTS for name, score in latin.items()}
    scores = {**wide, **others, **rare}  # the first of equal scores wins: Chinese is the most common
    return max(scores, key=lambda name: scores[name])


def has_lone_accents(line: bytes) -> bool:
    """Return whether the bytes beyond ASCII stand alone, as accents of Latin letters do."""
    runs = _HIGH_RUNS.findall(_GERMAN_PAIRS.sub(b"\xdf", line))
    return sum(map(len, runs)) < _ALONE * len(runs)


def _letters(sample: bytes, encoding: str, frequent: str, rank_weight: float) -> float:
    """Return the mean weight of the characters beyond ASCII, at most 1."""
    weights = {letter: 1 - rank_weight * rank / len(frequent) for rank, letter in enumerate(frequent)}
    letters = [char for char in sample.decode(encoding, "replace") if char > "\x7f"]
    return sum(weights.get(char, -0.5 if char == "\ufffd" else 0.0) for char in letters) / max(len(letters), 1)


def _wide(sample: bytes, encoding: str, weigh: Weigh) -> float:
    """Return the mean weight of the characters beyond ASCII; an invalid byte costs more than a valid character adds."""
    total, count = 0.0, 0
    for char in sample.decode(encoding, "replace"):
        if char <= "\x7f":
            continue
        count += 1
        data = b"" if char == "\ufffd" else char.encode(encoding)
        if char in _COMMON:
            total += 1
        elif len(data) == 2:
            total += weigh(data[0], data[1])
        else:
            total -= 2 if char == "\ufffd" else 0.2
    return total / max(count, 1)


def _gb(lead: int, trail: int) -> float:
    """Weigh a character of GB 18030: the first 3 755, sorted by sound, are common, the next rarer, the rest rarest."""
    if trail < 0xA1:
        return -0.5
    return 0.6 if 0xB0 <= lead <= 0xD7 or lead == 0xA3 else 0.2 if 0xD8 <= lead <= 0xF7 else 0.0


def _big5(lead: int, trail: int) -> float:
    return 0.6 if 0xA4 <= lead <= 0xC6 else 0.5 if lead in (0xA1, 0xA2, 0xA3) else 0.0


def _shift_jis(lead: int, trail: int) -> float:
    if lead in (0x82, 0x83):
        return 0.9
    return 0.6 if 0x87 <= lead <= 0x97 or lead == 0x81 else 0.0


def _euc_jp(lead: int, trail: int) -> float:
    if lead in (0xA4, 0xA5):
        return 0.9
    return 0.5 if 0xB0 <= lead <= 0xCF or lead in (0xA1, 0xA3) else 0.0


def _euc_kr(lead: int, trail: int) -> float:
    return 0.5 if 0xB0 <= lead <= 0xC8 or lead in (0xA1, 0xA3) else -0.3


_WIDE: dict[str, Weigh] = {
    "gb18030": _gb,
    "cp950": _big5,
    "cp932": _shift_jis,
    "euc_jp": _euc_jp,
    "cp949": _euc_kr,
}
