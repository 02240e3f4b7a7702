"""Words for the extractive model: the language of a text, its content words and its comparable terms.

Owns tokens, stop words, a crude English stemmer and character bigrams for Chinese, Japanese and Korean.
Deliberately knows no question, sentence or message, and no meaning: everything here compares characters.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

Language = Literal["zh", "en"]

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(rf"[{_CJK}]+")
_TOKEN = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+(?:['’.,:/-][^\W_{_CJK}]+)*")
_LETTER = re.compile(r"[^\W\d_]")

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


def language_of(text: str) -> Language:
    """Return ``zh`` when a third of the letters or more are Chinese (one stands for a word), else ``en``."""
    wide = sum(len(run) for run in _RUN.findall(text))
    return "zh" if wide and wide * 3 >= len(_LETTER.findall(text)) else "en"


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
    """Return the comparable terms of a text with their weights (1, less for a bigram with a particle).

    With ``question`` the words a question is asked with are left out; stop words always are.
    """
    found: dict[str, float] = {}
    for token in _TOKEN.findall(unicodedata.normalize("NFKC", text).lower()):
        if _RUN.match(token):
            runs = _ASKING.split(token) if question else [token]
            for run in runs:
                found.update(_bigrams(run))
        elif token not in _STOP:
            found.update(dict.fromkeys(_latin(token), 1.0))
    return found


def _bigrams(run: str) -> dict[str, float]:
    if len(run) == 1:
        return {} if run in _PARTICLES else {run: _PARTICLE_WEIGHT}
    weights = {}
    for pair in (run[index : index + 2] for index in range(len(run) - 1)):
        particles = sum(character in _PARTICLES for character in pair)
        if particles < 2:
            weights[pair] = _PARTICLE_WEIGHT if particles else 1.0
    return weights


def _latin(token: str) -> Iterable[str]:
    """The stem of a word; of a compound (air-tight, 10:30, e.g.) also its parts."""
    whole = token.replace(",", "").replace("’", "'").removesuffix("'s")
    yield stem(whole)
    if whole.isalpha():
        return
    for part in re.split(r"[.,:/-]", whole):
        if part != whole and part not in _STOP and len(part) > 1:
            yield stem(part)


_SUFFIXES = (("ations", ""), ("ation", ""), ("ments", ""), ("ment", ""), ("ings", ""), ("ing", ""), ("ied", "y"),
             ("ies", "y"), ("sses", "ss"), ("ed", ""), ("ly", ""), ("es", "e"), ("s", ""))  # fmt: skip


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


def numbered_things(text: str) -> dict[str, frozenset[str]]:
    """Return the words that a number follows directly, with their numbers: Brisa 300, version 4.1, 微风900."""
    things: dict[str, frozenset[str]] = {}
    tokens = _TOKEN.findall(unicodedata.normalize("NFKC", text).lower())
    for word, number in itertools.pairwise(tokens):
        if number[0].isdigit() and not word[0].isdigit() and word not in _STOP:
            name = word[-2:] if _RUN.match(word) else word
            things[name] = things.get(name, frozenset()) | {number}
    return things
