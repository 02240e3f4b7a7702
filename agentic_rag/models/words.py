"""Words for models that compare texts: the language of a text, its content words and its comparable terms.

Owns tokens, stop words, a crude English stemmer, character pairs for Chinese, Japanese and Korean, and what questions,
answers of a kind, follow-ups and small talk look like. Pure; knows no message and no meaning: everything here compares
characters.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

Language = Literal["zh", "en"]
Kind = Literal["contact", "frequency", "number", "steps"]
"""Of an answer; "number" stands for dates, times and sums too."""
SmallTalk = Literal["greeting", "thanks", "about"]

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(rf"[{CJK}]+")
_TOKEN = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’.,:/-][^\W_{CJK}]+)*")

_STOP_WORDS = """
a about all am an and any are as at be been being but by can could did do does doing done for from get gets got had has
have having he her hers him his how i if in into is it its just may me might must my no not of off on or our ours per
please shall she should so some such tell than that the their them then there these they this those to too us use very
was we were what when where which who whom whose why will with would yes you your yours much many long often also say
says know need want like happen happens mean means give find let there's it's i'm don't doesn't what's i've we've i'd
you're can't isn't aren't
"""
_STOP = frozenset(_STOP_WORDS.split())
_ASKING = re.compile(
    "请问|请告诉我|告诉我|什么时候|为什么|怎么办|怎么样|是多少|有多少|多少|什么|怎么|怎样|如何|哪些|哪个|哪里|哪儿|多久|多长"
    "|何时|谁|哪|几|我们|你们|他们|可以|能否|是否|是不是|有没有|应该|需要|一下|还是|或者|如果|关于|吗|呢|吧|啊|请|的|了"
)
"""What a Chinese question is asked with: cut out, so that no bigram reaches across it."""

_BETWEEN = re.compile(rf"{_ASKING.pattern}|[是在和与把被就都也我你他她它有]")
"""Where a Chinese run is cut into words, for want of a dictionary."""

_PARTICLES = frozenset(
    "一不个为也了些人会但你来做到去及又吗呢和在多大她它对就很您我把或所才把时是最有次没的着能被要让该说跟过还这那都与于之其而且后前上"
    "下里中以从"
)
"""Characters that say little on their own: a bigram with one of them weighs less, one of two is dropped."""

_PARTICLE_WEIGHT = 0.3


def is_stop_word(word: str) -> bool:
    """Whether a folded word, or a pair of CJK characters, says nothing of what a text is about."""
    return word in _STOP or all(character in _PARTICLES for character in word)


_SUFFIXES = (("ations", ""), ("ation", ""), ("ments", ""), ("ment", ""), ("ings", ""), ("ing", ""), ("ied", "y"),
             ("ies", "y"), ("sses", "ss"), ("ed", ""), ("ly", ""), ("es", "e"), ("s", ""))  # fmt: skip

ASKS: Mapping[Kind, re.Pattern[str]] = {
    "contact": re.compile(
        r"\b(?:phone|telephone|e-?mail|hotline|contact|call|number of)\b|电话(?:号码)?|邮箱|热线|联系|微信"
    ),
    "frequency": re.compile(
        r"\bhow (?:often|frequently)\b|\bhow many times\b|多久.{0,6}一次|多长时间.{0,6}一次|频率|几次"
    ),
    "number": re.compile(
        r"\bhow (?:many|much|long|far|high|big|large|heavy|old|fast|quickly|soon|loud|wide|deep|thick|tall|warm|hot"
        r"|cold|expensive|small|short|late|early)\b"
        r"|(?:^|[,.;:?!]|\b(?:and|but|so|or|until|by|since|from|me|know)) *when\b"
        r"|\b(?:(?:what|which) (?:date|day|time|year|month)|deadline|hours|until|costs?|prices?|fees?|distance|weight"
        r"|size|limit|maximum|minimum|percentage|rate|temperature)\b"
        r"|多少(?:钱)?|几|多[久长大高远重快厚宽]|最多|最少|至少|什么时候|何时|哪[天年月]|时间|截止|日期|费用|价格|价钱|收费"
        r"|奖金|补贴|报销"
    ),
    "steps": re.compile(r"\bhow (?:do|can|should|to|does)\b|\bsteps?\b|怎么|如何|怎样|步骤"),
}
"""What a question says when it expects an answer of a kind."""

SHOWS: Mapping[Kind, re.Pattern[str]] = {
    "contact": re.compile(r"@|\d[\d\s().-]{5,}\d|extension \d+|https?:|www\.|热线|公众号"),
    "frequency": re.compile(
        r"\b(?:every|each|once|twice|daily|weekly|monthly|quarterly|yearly|annually|times a|per)\b"
        r"|每(?:隔|年|月|周|天|日|季|次|学期|两|三|半|一|\d)|一次|一换"
    ),
    "number": re.compile(
        r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred"
        r"|thousand|half|once|twice|free of charge)\b|免费|半价|星期|[上下]午|早上|晚上"
        r"|[一二两三四五六七八九十百千万半]+(?:年|个|月|日|天|周|小时|分钟|秒|点|岁|元|块|米|厘米|毫米|公里|公斤|克|吨|升|度|次|位|人"
        r"|名|台|间|套|页|成|倍|分贝|级)"
    ),
    "steps": re.compile(
        r"^\s*(?:\d+[.)、]|[-*•])\s|请|应|须|按|拨打|转发|提交|申请|不要"
        r"|\b(?:press|choose|turn|open|pull|push|send|call|ask|switch|hold|select|click)\b"
    ),
}
"""What such an answer shows."""


SMALL_TALK: Mapping[SmallTalk, re.Pattern[str]] = {
    "greeting": re.compile(
        r"(?:hi|hello|hey|good (?:morning|afternoon|evening|day)|greetings"
        r"|你好|您好|嗨|哈喽|大家好|早上好|下午好|晚上好|早)"
        r"(?: there| everyone| all)?[\s!,.。！，~～呀啊]*",
        re.IGNORECASE,
    ),
    "thanks": re.compile(
        r"(?:many )?(?:thanks|thank you|thx|cheers|谢谢|多谢|感谢)"
        r"(?: (?:a lot|so much|very much|you))?(?:你|您|了)?[\s!,.。！，~～]*",
        re.IGNORECASE,
    ),
    "about": re.compile(
        r"(?:(?:hi|hello|hey)[\s,!.]+)?(?:(?:who|what) are you(?: exactly)?|what(?:'s| is) your name|what can you do"
        r"(?: for me)?|how do you work|(?:please )?introduce yourself|tell me about yourself|are you (?:an? |really )?"
        r"(?:ai|human|robot|bot|person|chatbot|claude|chatgpt|gpt|llm|language model)|which (?:model|llm) are you"
        r"|(?:你好[，,！!\s]*)?(?:请问)?[你您](?:是谁|是什么|叫什么(?:名字)?|能做什么|能干什么|会做什么|会什么|可以做什么"
        r"|怎么工作|是人吗|是机器人吗|是(?:ai|claude|gpt|chatgpt|大?语言模型|什么模型)吗?)|(?:请)?(?:介绍一下)?你?自我介绍(?:一下)?"
        r"|(?:请)?介绍一下你自己)[\s?？。.!！]*",
        re.IGNORECASE,
    ),
}
"""What a message says that asks for nothing, as a whole."""

OPENER = re.compile(
    r"\s*(?:and|but|so|or|also|then|what about|how about)\b|\s*(?:那么?|还有|以及|另外|它|他|她|这个|那个|这些|那些)"
    r"|.*(?:呢)[？?。\s]*$",
    re.IGNORECASE | re.DOTALL,
)
POINTER = re.compile(r"\b(?:it|its|that|this|they|them|those|these|one|there)\b|它|这个|那个|这样|那样", re.IGNORECASE)
"""What a question says that hangs on the one before it: its head, and words that point back."""

_HOW_MANY = re.compile(r"\bhow many (\w+)")


def language_of(text: str) -> Language:
    """Return ``zh`` when a third of the letters or more are Chinese (one stands for a word), else ``en``."""
    wide = sum(map(len, _RUN.findall(text)))
    return "zh" if wide and wide * 3 >= len(re.findall(r"[^\W\d_]", text)) else "en"


def is_cjk(character: str) -> bool:
    """Whether a character is written without spaces around it: an ideograph, kana, hangul or their punctuation."""
    return bool(_RUN.match(character)) or "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uffef"


def content_words(text: str) -> list[str]:
    """Return the words that carry a text, in order, once each: Latin words, and Chinese runs between particles."""
    words: dict[str, None] = {}
    for token in _TOKEN.findall(unicodedata.normalize("NFKC", text)):
        if _RUN.match(token):
            words.update((piece, None) for piece in _BETWEEN.split(token) if len(piece) > 1)
        elif token.lower() not in _STOP and (len(token) > 1 or token.isdigit()):
            words[token] = None
    return list(words)


def terms(text: str, *, question: bool = False) -> dict[str, float]:
    """Return the comparable terms of a text with their weights: stems, and pairs of Chinese characters.

    A pair with a particle weighs less. With ``question`` the words a question is asked with are left out; stop words
    always are.
    """
    weights: dict[str, float] = {}
    for token in _TOKEN.findall(unicodedata.normalize("NFKC", text).lower()):
        if _RUN.match(token):
            for run in _ASKING.split(token) if question else [token]:
                weights.update(_pairs(run))
        elif token not in _STOP:
            # Of a compound (air-tight, 10:30, e.g.) also its parts.
            whole = token.replace(",", "").replace("’", "'").removesuffix("'s")
            parts = [] if whole.isalpha() else re.split(r"[.,:/-]", whole)
            parts = [part for part in parts if part not in _STOP and len(part) > 1]
            weights.update((stem(part), 1.0) for part in [whole, *parts])
    return weights


def _pairs(run: str) -> Iterator[tuple[str, float]]:
    if len(run) == 1 and run not in _PARTICLES:
        yield run, _PARTICLE_WEIGHT
    for pair in map("".join, itertools.pairwise(run)):
        particles = sum(character in _PARTICLES for character in pair)
        if particles < 2:
            yield pair, _PARTICLE_WEIGHT if particles else 1.0


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Return a crude stem of an English word, the same for most of its inflections; other words mostly stay."""
    if len(word) < 4 or not word.isalpha() or not word.isascii():
        return word
    for suffix, instead in _SUFFIXES:
        if word.endswith(suffix) and not word.endswith(("ss", "us", "is")) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] in "ey" else word


def counted_things(question: str) -> frozenset[str]:
    """Return the terms a question in lower case asks the number of: those of "days" in "how many days"."""
    return frozenset(term for match in _HOW_MANY.finditer(question) for term in terms(match[1], question=True))


def numbered_things(text: str) -> dict[str, frozenset[str]]:
    """Return the words that a number follows directly, with their numbers: Brisa 300, version 4.1, 微风900."""
    things: dict[str, frozenset[str]] = {}
    for word, number in itertools.pairwise(_TOKEN.findall(unicodedata.normalize("NFKC", text).lower())):
        if number[0].isdigit() and not word[0].isdigit() and word not in _STOP:
            name = word[-2:] if _RUN.match(word) else word
            things[name] = things.get(name, frozenset()) | {number}
    return things
