"""The words of a text that tell its subject, in English, German and Chinese. Pure.

Words are compared by their stems, codes also by their parts, and Chinese by pairs of ideographs.
"""

import itertools
import re
from functools import lru_cache

from py_rust_stemmers import SnowballStemmer

from mcp_servers.folding import fold

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
CJK_RUN = re.compile(rf"[{CJK}]+")
_TOKEN = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’.,:/-][^\W_{CJK}]+)*")
_ENGLISH, _GERMAN = SnowballStemmer("english"), SnowballStemmer("german")
_STOP_WORDS = """
    a about all am an and any are as at be been being but by can could did do does doing done for from get gets got
    had has have having he her hers him his how i if in into is it its just may me might must my no not of off on or our
    per please shall she should so some such than that the their them then there these they this those to too us use
    very was we were what when where which who whom whose why will with would you your yours much many long often also
    tell say says said know need want like happen happens mean means give find let der die das den dem des ein eine
    einer und oder ist sind wird werden wie was wer wo wann welche welcher welches darf kann muss man im am zu zum
    zur von für auf mit bei viel viele sie es er ich wir wenn dann sich nicht noch nur lange
"""
_STOP = frozenset(_STOP_WORDS.split())
_PARTICLES = re.compile(
    "请问|告诉我|什么时候|为什么|怎么办|怎么样|是多少|有多少|多少|什么|怎么|怎样|如何|哪些|哪个|哪里|哪儿|多久|多长|何时|谁|哪|几"
    "|我们|你们|他们|可以|能否|是否|是不是|有没有|应该|需要|一下|还是|或者|如果|关于|[吗呢吧啊请的了是在和与把被就都也我你他她它有]"
)
_LIGHT = frozenset(
    "一不个为也了些人会但你来做到去及又吗呢和在多大她它对就很您我把或所才把时是最有次没的着能被要让该说跟过还这那都与于之其而且后前上下里中以从"
)


@lru_cache(maxsize=4096)
def terms(text: str) -> frozenset[str]:
    """Return the comparable terms of a text: stems, codes and the parts of codes, and pairs of ideographs."""
    comparable: set[str] = set()
    for word in content_words(fold(text).text):
        if CJK_RUN.match(word):
            comparable.update(map("".join, itertools.pairwise(word)) if len(word) > 1 else [word])
        else:
            comparable.add(stem(word.removesuffix("'s")))
            has_digit = any(map(str.isdigit, word))
            comparable.update(part for part in re.split(r"[.,:/-]", word) if has_digit and len(part) > 1)
    return frozenset(comparable)


def stem(word: str) -> str:
    """Return the stem that most inflections of an English or German word share."""
    return _GERMAN.stem_word(_ENGLISH.stem_word(word)) if word.isalpha() else word


def content_words(text: str) -> list[str]:
    """Return the significant words of a text in order, without duplicates: words, and CJK runs between particles."""
    words: dict[str, None] = {}
    for token in _TOKEN.findall(text):
        if CJK_RUN.match(token):
            words |= dict.fromkeys(piece for piece in _PARTICLES.split(token) if len(piece) > 1)
        elif token.lower() not in _STOP and (len(token) > 1 or token.isdigit()):
            words[token] = None
    return list(words)


_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")


def language_of(text: str) -> str:
    """Return ``zh`` if at least a third of the letters are Chinese (one character is about a word), else ``en``.

    Japanese mixes Chinese characters with its own letters, and is no Chinese.
    """
    if _KANA.search(text):
        return "en"
    wide = sum(map(len, CJK_RUN.findall(text)))
    return "zh" if wide and wide * 3 >= len(re.findall(r"[^\W\d_]", text)) else "en"


def is_stop_word(word: str) -> bool:
    """Whether a folded word, or a pair of CJK characters, tells nothing about a text's subject."""
    return word in _STOP or all(character in _LIGHT for character in word)
