"""BM25 vectors of texts and questions, used for every index implementation.

Words come from the multilingual tokenizer of the Qdrant engine, which segments Chinese offline. That tokenizer drops
digits and splits codes, so this module creates the tokens with numbers (`number_tokens`). All text is folded
first (`folding`). Inverse document frequency is not part of the weights: the index applies it at query time.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

import qdrant_edge

from mcp_servers.folding import FOLD_VERSION, CharacterTable, fold_text

TOKENIZER = f"multilingual+numbers-2+fold-{FOLD_VERSION}"
"""Recorded with each collection: vectors of another tokenizer would not match, so such a collection is re-indexed."""

MAX_QUERY_TOKENS = 128
"""Maximum number of tokens of a question, each of which the index looks up."""

K1, B, AVERAGE_LENGTH = 1.2, 0.75, 256
"""Parameters of BM25; the engine's defaults."""

_OWN_IDS = 0x80000000
"""Bit in the ids of the tokens of `number_tokens`; the engine's ids are below it."""


class Sparse(NamedTuple):
    """A sparse vector: token ids (32-bit hashes) and their weights, of one length."""

    indices: list[int]
    values: list[float]


@cache
def _model() -> qdrant_edge.Bm25:
    return qdrant_edge.Bm25(qdrant_edge.Bm25Config(tokenizer=qdrant_edge.TokenizerType.Multilingual))


def document_vectors(texts: Iterable[str]) -> list[Sparse]:
    """Return the term-frequency weights of texts (k=1.2, b=0.75, average length 256 tokens).

    Takes about 0.5 ms of CPU for a chunk in English, 1.5 ms in Chinese, with the interpreter lock held: keep batches
    small in a server process.
    """
    return [_document_vector(text) for text in texts]


def _document_vector(text: str) -> Sparse:
    text = _without_surrogates(text)
    folded = fold_text(text)
    words = _model().embed_document(folded)
    numbers = Counter(number_tokens(text, folded))
    if not numbers:
        return Sparse(words.indices, words.values)
    # The engine has normalised its weights by the words alone. The numbers count as part of the length, too.
    length = len(words.indices) + sum(numbers.values())
    norm = K1 * (1 - B + B * length / AVERAGE_LENGTH)
    indices, values = list(words.indices), list(words.values)
    for token, count in numbers.items():
        indices.append(token_id(token))
        values.append(count * (K1 + 1) / (count + norm))
    return _unique(indices, values)


def query_vector(text: str) -> Sparse:
    """Return a vector with weight 1 for each distinct token of a question.

    Question words ("how many", "wie viele", "多少") are left out. The vector is empty if the text has no other word.
    """
    text = _without_surrogates(text)
    folded = fold_text(text)
    asking = _asking_ids(language_of(folded) or "en")
    word_tokens = [token for token in _model().embed_query(folded).indices if token not in asking]
    number_ids = [token_id(token) for token in dict.fromkeys(number_tokens(text, folded))]
    # Numbers first: a question with too many tokens loses words instead.
    indices = list(dict.fromkeys([*number_ids, *word_tokens]))[:MAX_QUERY_TOKENS]
    return Sparse(indices, [1.0] * len(indices))


def has_ideographs(text: str) -> bool:
    """Return whether a text has Chinese characters, for which the tokenizer loads its dictionary."""
    return not text.isascii() and _IDEOGRAPH.search(text) is not None


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which broken files and clients send and the engine refuses."""
    return text.encode("utf-8", "replace").decode()


def self_score(weights: Iterable[float]) -> float:
    """Return the BM25 score of a text that equals the question; ``weights`` are those of the question's tokens."""
    weights = list(weights)
    return sum(weights) * (K1 + 1) / (1 + K1 * (1 - B + B * len(weights) / AVERAGE_LENGTH))


def token_id(token: str) -> int:
    """Return the id of a token from `number_tokens`."""
    return _OWN_IDS | (zlib.crc32(token.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF)


def _unique(indices: list[int], values: list[float]) -> Sparse:
    """Remove duplicate ids, since the engine refuses them and two tokens may have the same hash."""
    weight_of: dict[int, float] = {}
    for token, value in zip(indices, values, strict=True):
        weight_of[token] = max(value, weight_of.get(token, 0.0))
    return Sparse(list(weight_of), list(weight_of.values()))


# Tokens with numbers. The first character is the kind of the token:
#   =hx4471b    a code, without its separators        #4471  #12.3  #10:15    a number or a time
#   @2031-06-21 @06-21   a date, with and without year      §5.2    a clause        %22.5    a percentage

_WORD = r"[^\W\d_\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]"
_CODE = re.compile(rf"(?:(?<![^\W_])|(?<=[\u2e80-\u9fff]))(?:\d|{_WORD})+(?:[-/._:](?:\d|{_WORD})+)*")
_SPACED_CODE = re.compile(rf"(?<![^\W_])({_WORD}{{1,3}})[ .:#-]{{1,2}}(\d{{2,}})(?:[ -]({_WORD})(?![^\W_]))?")
_IN_GROUPS = re.compile(
    r"(?<![^\W_])(?<![.,])(?!\d\d? \d\d? (?:19|20)\d\d(?!\d))"
    r"[a-z]{0,3}\d{1,4}(?: \d{2,5}){2,9}(?: \d{1,4})?(?![^\W_]|[.,]\d)"
)
"""A code in groups of digits, such as a bank account, a card or a telephone number."""
LEAST_GROUPED_DIGITS = 8
_NUMBER = re.compile(
    r"(?<!\d)(?<!\d[.,:])(?:(?P<grouped>\d{1,3}(?:[,.' ]\d{3})+(?:[.,]\d{1,2})?)|(?P<time>\d{1,2}:\d\d)"
    r"|(?P<plain>\d+(?:[.,]\d+)*))"
    r"(?![\d:]|[.,]\d)(?P<percent>[  ]?(?:%|percent\b|per cent\b|prozent\b|pour cent\b|por ciento\b|per cento\b))?"
)
_CLAUSE = re.compile(
    r"(?:§{1,2}|\b(?:clause|section|sec\.?|article|art\.?|paragraph|para\.?|rule|ziffer|abschnitt|absatz|abs\.?|artikel"
    r"|punkt|kapitel|chapter|nr\.?|no\.?))[  ]?(\d+(?:\.\d+)*)|第[  ]?(\d+(?:\.\d+)*)[  ]?[条款章节節條]"
)
_LINE_NUMBER = re.compile(r"^[ \t]*[(（]?(\d{1,3}(?:\.\d{1,3})+)[.)）]?(?=\s)", re.MULTILINE)
_MONTHS = (
    "january januar janvier enero gennaio janeiro januari jan|february februar février febrero febbraio fevereiro"
    " februari feb|march märz mars marzo março maart mar mrz|april avril abril aprile apr|may mai mayo maggio maio mei"
    "|june juni juin junio giugno junho jun|july juli juillet julio luglio julho jul|august août agosto augustus aug"
    "|september septembre septiembre settembre setembro sept sep"
    "|october oktober octobre octubre ottobre outubro oct okt"
    "|november novembre noviembre novembro nov|december dezember décembre diciembre dicembre dezembro dec dez"
)
_MONTH = {fold_text(name): month for month, row in enumerate(_MONTHS.split("|"), 1) for name in row.split()}
_OF_YEAR = r"(?:,? (?:de )?(?P<y>\d{4})\b)?"
_NAMES = "|".join(sorted(map(re.escape, _MONTH), key=len, reverse=True))
_ANY_MONTH = re.compile("|".join(sorted({name[:3] for name in _MONTH})))
_DIGITS, _MONTH_SIGN = re.compile(r"\d[-/.]\d"), re.compile("月")
_DATES = (
    (re.compile(r"(?<!\d)(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"), _DIGITS),
    (re.compile(r"(?<!\d)(?P<d>\d{1,2})[./](?P<m>\d{1,2})[./](?P<y>\d{4})(?!\d)"), _DIGITS),
    (
        re.compile(rf"(?<!\d)(?P<d>\d{{1,2}})(?:st|nd|rd|th|er|\.)? (?:of |de )?(?P<n>{_NAMES})\b\.?{_OF_YEAR}"),
        _ANY_MONTH,
    ),
    (re.compile(rf"\b(?P<n>{_NAMES})\b\.? (?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:){_OF_YEAR}"), _ANY_MONTH),
    (re.compile(r"(?:(?P<y>\d{4}) ?年 ?)?(?<!\d)(?P<m>\d{1,2}) ?月 ?(?P<d>\d{1,2}) ?[日号]"), _MONTH_SIGN),
)
"""Patterns of dates, each with a cheap test whether a text can contain such a date."""
_IDEOGRAPH = re.compile(r"[\u3400-\u9fff]")
_LATIN = re.compile(r"[^\W\d_\u2e80-\u9fff\uac00-\ud7af]+")
_LATIN_WORDS = CharacterTable(lambda character: character if _LATIN.match(character) else " ")
_CHINESE_NUMBER = re.compile(r"[〇零一二两三四五六七八九十百千万]+")
_CHINESE_DIGITS = {"〇": 0, "零": 0, "两": 2, **{digit: value for value, digit in enumerate("一二三四五六七八九", 1)}}
_CHINESE_UNITS = {"十": 10, "百": 100, "千": 1000}


def number_tokens(text: str, folded: str) -> Iterator[str]:
    """Yield the tokens of a text with numbers: codes whole and in parts, numbers, dates, clauses, percentages.

    ``folded`` is ``fold_text(text)``; line starts are only known in ``text``.
    """
    if not any(map(str.isdigit, folded)) and not _CHINESE_NUMBER.search(folded):
        return
    in_digits = _CHINESE_NUMBER.sub(_in_digits, folded)
    yield from _code_tokens(folded)
    for match in _NUMBER.finditer(in_digits):
        if match["time"]:
            yield "#" + match["time"].zfill(5)
            continue
        number = _plain_number(match["grouped"] or match["plain"], grouped=match["grouped"] is not None)
        yield "#" + number
        if match["percent"]:
            yield "%" + number
    for match in _CLAUSE.finditer(in_digits):
        yield "§" + (match[1] or match[2])
    for match in _LINE_NUMBER.finditer(text):
        yield "§" + fold_text(match[1])
    for pattern, hint in _DATES:
        for match in pattern.finditer(in_digits) if hint.search(in_digits) else ():
            yield from _date_tokens(match)


def whole_codes(folded: str) -> Iterator[str]:
    """Yield the words of letters and digits of a folded text, without their separators."""
    for match in _CODE.finditer(folded):
        code = match[0]
        if any(map(str.isdigit, code)) and any(map(str.isalpha, code)):
            yield re.sub(r"[-/._:]", "", code)


def _code_tokens(folded: str) -> Iterator[str]:
    """Yield the codes of a folded text: `HX-4471-B`, `hx4471b` and `HX 4471 B` give the same token.

    So do `DE89 3704 0044 0532 0130 00` and `DE89370400440532013000`.
    """
    for match in _CODE.finditer(folded):
        for part in re.split(r"[-/._:]", match[0]):
            if any(map(str.isdigit, part)) and not part.isdigit():
                yield "=" + part
    for code in whole_codes(folded):
        yield "=" + code
    for match in _IN_GROUPS.finditer(folded):
        joined = match[0].replace(" ", "")
        if sum(map(str.isdigit, joined)) >= LEAST_GROUPED_DIGITS:
            yield f"{'#' if joined.isdigit() else '='}{joined.lstrip('0')}"
    for match in _SPACED_CODE.finditer(folded):
        letters, number, suffix = match.groups()
        if letters in _MONTH or any(letters in _words(language) for language in _BEFORE_NUMBERS):
            continue  # "on 21 June" is not a code
        yield f"={letters}{number}"
        if suffix:
            yield f"={letters}{number}{suffix}"


def _plain_number(number: str, *, grouped: bool) -> str:
    """Normalise a number: `1 460`, `1,460` and `1.460` become 1460, `12,3` becomes 12.3, `5.2.1` stays."""
    if grouped:
        whole = re.fullmatch(r"([\d,.' ]*?\d{3})(?:[.,](\d{1,2}))?", number)
        if whole:
            return re.sub(r"\D", "", whole[1]) + (f".{whole[2]}" if whole[2] else "")
    number = number.replace(",", ".")
    return number.lstrip("0") or "0" if number.isdigit() else number


def _date_tokens(match: re.Match[str]) -> Iterator[str]:
    groups = match.groupdict()
    month = _MONTH[groups["n"]] if groups.get("n") else int(groups["m"])
    day = int(groups["d"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return
    yield f"@{month:02}-{day:02}"
    if groups["y"]:
        yield f"@{groups['y']}-{month:02}-{day:02}"


def _in_digits(match: re.Match[str]) -> str:
    """Return a Chinese number in digits; a character that is more likely part of a word stays."""
    number = match[0]
    if len(number) == 1:
        after, before = match.string[match.end() : match.end() + 1], match.string[match.start() - 1 : match.start()]
        # 四月一日 and 第三条 contain numbers. 一 in 一般 is not a number.
        is_digit = number in _CHINESE_DIGITS or number == "十"
        if not is_digit or not (before == "第" or (after and after in "月日号条款章节")):
            return number
    if not any(unit in number for unit in "十百千万"):
        return "".join(str(_CHINESE_DIGITS[digit]) for digit in number)
    # 三千二百万五十: the units below 万 sum up to a section, and 万 multiplies it. A unit without a digit counts once.
    total = section = digit = 0
    for character in number:
        if character in _CHINESE_DIGITS:
            digit = _CHINESE_DIGITS[character]
        elif character == "万":
            total, section, digit = (total + section + digit or 1) * 10_000, 0, 0
        else:
            section, digit = section + (digit or 1) * _CHINESE_UNITS[character], 0
    return str(total + section + digit)


# Question words. They are removed only from questions: in documents they have little weight, but they are half the
# words of a question, and a passage without them answers just as well.

_ASKING = {
    "en": """how what when where which who whom whose why many much long often far do does did done is are was were be
    may must can could should shall will would have has had get gets give given i we you he she it they me us him her
    them my our your his its their there any some someone somebody instead also please tell say says said mean means
    happen happens need needs from up until than at by of on in to for with about within during after before as and or
    if so this that these those the an a not no most least one ones kind cannot can't don't doesn't else ever still yet
    just only too well while whether because other another among both""",
    "de": """wie was wann wo welche welcher welches welchen welchem wer wen wem wessen warum weshalb wozu wohin woher
    womit wieviel viel viele vielen ist sind war waren sein wird werden wurde darf dürfen muss müssen kann können soll
    sollen will hat haben hatte der die das den dem des ein eine einer eines einem einen und oder aber nicht kein keine
    keinen keiner es er sie wir ihr ich du man sich mein meine unser unsere uns mich mir ihm ihn ihnen ihre ihren seine
    in im an am auf aus bei beim bis mit nach von vom vor zu zum zur für über um unter durch ohne gegen ab als wenn ob
    daß dass so auch noch nur schon dort hier da diese dieser dieses lange oft höchstens mindestens bitte gibt geben
    lautet bedeutet kommt""",
    "fr": """comment que quoi quand où quel quelle quels quelles qui pourquoi combien est sont était être le la les un
    une des du de d l et ou mais pas ne ce cet cette ces il elle on nous vous ils elles je tu se sa son ses leur leurs
    mon ma mes notre nos à au aux en dans sur sous avec sans pour par peut doit faut faire a ont y""",
    "es": """cómo qué cuándo dónde cuál cuáles quién quiénes por cuánto cuánta cuántos cuántas es son era ser está el la
    los las un una unos unas y o pero no se su sus mi mis nuestro este esta estos de del al a en con sin para puede debe
    hay que lo le""",
    "it": """come che cosa quando dove qual quale quali chi perché quanto quanta quanti quante è sono era essere il lo
    la i gli le un una uno e o ma non si suo sua mio nostro questo questa di del della dei delle a al alla in nel nella
    con senza per può deve ci""",
    "pt": """como que quando onde qual quais quem por quanto quanta quantos quantas é são era ser está o a os as um uma
    e ou mas não se seu sua meu nosso este esta de do da dos das em no na nos nas com sem para pode deve há""",
    "nl": """hoe wat wanneer waar welke welk wie waarom hoeveel is zijn was waren wordt worden mag moet kan kunnen zal
    het de een en of maar niet geen er ze wij we ik je u zich mijn ons onze in op aan bij met na van voor te tot uit
    over onder door zonder als dat die dit deze ook nog""",
    "ca": """com què quan on quin quina quins quines qui perquè quant quanta quants quantes és són era ser està el la
    els les un una uns unes i o però no es seu seva meu nostre aquest aquesta de del dels al als a en amb sense per pot
    ha hi ho que cal""",
    "zh": """什么 怎么 怎样 如何 哪些 哪个 哪里 哪儿 多少 多久 多长 多大 多高 多远 何时 谁 几 吗 呢 吧 啊 的 了 是
    在 和 与 把 被 就 都 也 我 你 他 她 它 们 我们 你们 他们 请 请问 可以 能 可 不可 是否 应该 应 该 需要
    要 有 没有 会 将 时候 什 么 哪 怎 多 少 个 到 从 给 对 于 为 由 时 最 至少 最多 最长 规定 不 这 那 还
    再 一 下 上 里 后 前 去 来 让 分别 各自""",
}  # fmt: skip


_BEFORE_NUMBERS = tuple(language for language in _ASKING if language != "ca")
"""Languages whose question words begin no code. Catalan would make "HO 12" a number, and change the stored tokens."""

_ELIDED = {
    "fr": "l d c j m n s t qu jusqu lorsqu puisqu quoiqu presqu",
    "it": "l d c m s t v un dell dall nell sull all dov cos com quell quest bell sant nessun ciascun",
    "ca": "l d m n s t",
}
"""Words that lose their last vowel before another vowel and get an apostrophe: "l'école", "dell'azienda", "qu'il". They
count only with their apostrophe, because "all" and "s" are also English."""

_ELISION = re.compile(
    rf"\b({'|'.join(sorted({*' '.join(_ELIDED.values()).split()}))})['\u2019](?=[^\W\d_])", re.IGNORECASE
)


def split_elisions(text: str) -> str:
    """Replace the apostrophe after each elided word by a space: "l'école" becomes "l école".

    The apostrophes of "don't" and "CEO's" stay, because they follow other words.
    """
    return _ELISION.sub(r"\1 ", text)


@cache
def _words(language: str) -> frozenset[str]:
    return frozenset(fold_text(_ASKING[language]).split())


@cache
def _languages_of_words() -> dict[str, list[str]]:
    """Return the languages of each question word, without Chinese."""
    languages: dict[str, list[str]] = {}
    for name in _ASKING:
        for word in _words(name) if name != "zh" else ():
            languages.setdefault(word, []).append(name)
    return languages


@cache
def _asking_ids(language: str) -> frozenset[int]:
    """Return the engine's ids of the question words of a language."""
    model = _model()
    words = _words(language).union(_ELIDED.get(language, "").split())
    return frozenset(index for word in words for index in model.embed_query(word).indices)


def is_asking(word: str, language: str) -> bool:
    """Return whether a folded word is a question word of the language, or an elided one ("dell'")."""
    return word in _words(language) or word in _ELIDED.get(language, "").split()


def is_month(word: str) -> bool:
    """Return whether a folded word is the name of a month."""
    return word in _MONTH


def word_ids(word: str) -> list[int]:
    """Return the ids of the tokens of a folded word."""
    return _model().embed_query(_without_surrogates(word)).indices


@lru_cache(maxsize=4096)
def language_of(folded: str) -> str | None:
    """Return the language whose question words are most frequent, or Chinese if many characters are ideographs.

    Returns None if no word decides, as in a code or a row of names.
    """
    ideographs = 0 if folded.isascii() else len(_IDEOGRAPH.findall(folded))
    words = folded.translate(_LATIN_WORDS).split()  # six times faster than the pattern
    if ideographs and ideographs >= len(words):
        return "zh"
    counts = dict.fromkeys((name for name in _ASKING if name != "zh"), 0)
    languages = _languages_of_words()
    for word in words:
        for name in languages.get(word, ()):
            counts[name] += 1
    for word in _ELISION.findall(folded) if "'" in folded else ():
        for name, elided in _ELIDED.items():
            counts[name] += word in elided.split() and word not in _words(name)
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None
