"""How well a sentence answers a question, by the words they share and the kind of answer it expects.

Owns the kinds of questions, what shows an answer of each kind, and the score of a sentence among others.
Deliberately knows no message, tool or citation, and no meaning.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentic_rag.models.extractive_words import numbered_things, terms

Kind = Literal["number", "frequency", "time", "money", "person", "place", "contact", "reason", "steps"]

_ASKED_FIRST = r"(?:^|[,.;:?!]|\b(?:and|but|so|or|until|by|since|from|me|know))\s*"
"""What stands before a "when" that asks; elsewhere it joins ("what do I do when …", "people who …")."""

_ASKS: Mapping[Kind, re.Pattern[str]] = {
    "money": re.compile(
        r"how (?:much (?:do|does|did|is|are|will|would|can|may)|expensive)|\bcosts?\b|\bprices?\b|\bfees?\b"
        r"|多少钱|费用|价格|价钱|收费|奖金|补贴|报销|几块|几元"
    ),
    "contact": re.compile(
        r"\b(?:phone|telephone|e-?mail|hotline|contact|call|number of)\b|电话(?:号码)?|邮箱|热线|联系|微信"
    ),
    "time": re.compile(
        rf"{_ASKED_FIRST}when\b|\b(?:(?:what|which) (?:date|day|time|year|month)|deadline|hours|until)\b"
        r"|什么时候|何时|几点|哪天|哪年|哪月|几月|几号|哪一天|时间|截止|日期"
    ),
    "frequency": re.compile(
        r"\bhow (?:often|frequently)\b|\bhow many times\b|多久.{0,6}一次|多长时间.{0,6}一次|频率|几次"
    ),
    "number": re.compile(
        r"\bhow (?:many|much|long|far|high|big|large|heavy|old|fast|quickly|soon|loud|wide|deep|thick|tall|warm|hot"
        r"|cold|short|small|late|early)\b|\b(?:distance|weight|size|limit|maximum|minimum|percentage|rate|temperature)\b"
        r"|多少|几|多久|多长|多大|多高|多远|多重|多快|多厚|多宽|最多|最少|至少"
    ),
    "person": re.compile(rf"{_ASKED_FIRST}who\b|\bwhom\b|{_ASKED_FIRST}whose\b|谁|哪位|负责人|联系人"),
    "place": re.compile(rf"{_ASKED_FIRST}where\b|哪里|哪儿|在哪|什么地方|地址"),
    "reason": re.compile(r"\bwhy\b|为什么|为何|原因"),
    "steps": re.compile(r"\bhow (?:do|can|should|to|does)\b|\bsteps?\b|怎么|如何|怎样|步骤"),
}

_NUMBER_WORDS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred|thousand"
    "|half|once|twice|daily|weekly|monthly|yearly|every"
)
_HANZI = "[一二两三四五六七八九十百千万半]+"
_HANZI_UNITS = (
    "年|个月|月|日|天|周|小时|分钟|秒|点|岁|元|块|米|厘米|毫米|公里|公斤|克|吨|升|度|次|位|人|名|台|间|套|页|成|倍|个"
    "|分贝|级"
)
_DATE_WORDS = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
    "|monday|tuesday|wednesday|thursday|friday|saturday|sunday"
)
_SHOWS: Mapping[Kind, re.Pattern[str]] = {
    "number": re.compile(rf"\d|\b(?:{_NUMBER_WORDS})\b|{_HANZI}(?:{_HANZI_UNITS})"),
    "frequency": re.compile(
        r"\b(?:every|each|once|twice|daily|weekly|monthly|quarterly|yearly|annually|times a|per)\b"
        r"|每(?:隔|年|月|周|天|日|季|次|学期|两|三|半|一|\d)|一次|一换"
    ),
    "money": re.compile(
        r"[$€£¥￥]\s?\d|\d[\d,.]*\s*(?:pounds?|pence|euros?|dollars?|cents?|yuan|usd|eur|gbp|rmb|per cent|%)"
        r"|\d+\s*(?:元|块|万|美元|英镑|欧元|%)|免费|半价|free of charge"
    ),
    "time": re.compile(
        rf"\d{{1,2}}[:：]\d{{2}}|\b(?:19|20)\d\d\b|\b(?:{_DATE_WORDS})s?\b|\b\d+(?:st|nd|rd|th)\b"
        rf"|\b(?:\d+|{_NUMBER_WORDS}|first|last|next|few|several)[\s-]+(?:\w+[\s-]+)?(?:day|week|month|year|hour|minute)s?\b"
        r"|\bo'clock\b|\b\d{1,2} ?[ap]m\b"
        rf"|(?:\d+|{_HANZI})[年月日天点号周]|星期|周[一二三四五六日末]|上午|下午|早上|晚上"
    ),
    "person": re.compile(
        r"经理|主任|先生|女士|负责|主管|总监|部门|团队|由|\b(?:manager|director|head|officer|team|by|lead)\b"
    ),
    "place": re.compile(
        r"路|号楼|楼|层|区|市|室|位于|\b(?:in|at|on|near|beside|under|above|behind|room|floor|street)\b"
    ),
    "contact": re.compile(r"@|\d[\d\s().-]{5,}\d|extension \d+|https?:|www\.|热线|公众号"),
    "reason": re.compile(
        r"因为|由于|以免|防止|避免|因此|所以|否则|为了"
        r"|\b(?:because|since|so that|otherwise|avoid|prevent|therefore)\b"
    ),
    "steps": re.compile(
        r"^\s*(?:\d+[.)、]|[-*•])\s|请|应|须|按|拨打|转发|提交|申请|不要"
        r"|\b(?:press|choose|turn|open|pull|push|send|call|ask|switch|hold|select|click)\b"
    ),
}

_MEASURES: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(asks), re.compile(shows))
    for asks, shows in (
        (r"\b(?:loud|noisy|noise|quiet)\b|噪声|噪音|多响", r"\bdb\b|decibel|分贝"),
        (r"\b(?:heavy|weighs?|weight)\b|多重|重量", r"\d\s*(?:kg|g|lbs?)\b|kilogram|\bgram|\btons?\b|公斤|千克|吨"),
        (r"\b(?:far|distance)\b|多远|距离", r"\d\s*(?:m|mm|cm|km)\b|metres?\b|meters?\b|miles?\b|\d米|公里"),
        (r"\b(?:temperature|hot|cold|warm)\b|温度|多少度", r"°|degrees?\b|度"),
        (
            r"\bhow (?:long|soon|quickly)\b|多久|多长时间",
            r"(?:second|minute|hour|day|week|month|year)s?\b|[天日周月年]|小时|分钟",
        ),
    )
)
"""What is measured, and the units it is measured in."""

_CODE = re.compile(r"(?=.*\d)(?=.*[a-z])[a-z0-9-]+")
"""An identifier, such as a part number: no other word is needed to know what is meant."""
_CODE_WEIGHT = 2

LEAD_LIMIT = 2
"""Sentences that are read with one that only names the subject."""

_FOOT = frozenset(terms("page pages 第页"))
CELLS = " | "
"""Stands between the cells of a table's row."""

_SHOWN_BONUS = 1.3
_MISSING_MALUS = 0.75
_UNIT_BONUS = 1.2
_OTHER_THING = 0.5
"""A passage about "Model 900" when the question names "Model 300"."""
_EMPTY = 0.2
"""A sentence that only repeats its title: a running head, a page foot."""
_TITLE_SHARE = 0.6
_BEFORE_SHARE = 0.3
_AFTER_SHARE = 0.1
_ASKED_SHARE = 0.6
"""Shares of a term's weight that count when it stands not in the sentence but in its title or beside it, or when
it names the kind of answer ("phone number") and the sentence shows one."""
_LOOSE = 0.4
"""A sentence without a term of its own must have this share of the question around it."""
_FLOOR = 0.18
_ENOUGH = 0.3
_FEW_TERMS = 2.0
"""Relevance: at least `_FLOOR` of the question is covered, and of its terms two, or `_ENOUGH` of their weight."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it is compared.

    ``kinds`` are the kinds of answer it expects, ``units`` what its answer is measured in, ``asking`` the terms
    that only say so ("price", "电话"), and ``things`` the numbered things it names: ``{"brisa": {"300"}}``.
    """

    terms: Mapping[str, float]
    kinds: frozenset[Kind]
    units: tuple[re.Pattern[str], ...]
    asking: frozenset[str]
    things: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Passage:
    """Sentences that follow each other, under one title."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rating:
    """``score`` orders sentences, 0 to about 2; ``relevant`` says whether to show one at all, ``shows`` whether it,
    or what it leads to, has the form of an answer."""

    score: float
    relevant: bool
    shows: bool


def understand(text: str, before: str = "") -> Question:
    """Return the question in ``text``; the terms of ``before`` (an earlier one it follows up) count half."""
    wanted = {term: weight / 2 for term, weight in terms(before, question=True).items()}
    wanted.update(terms(text, question=True))
    low = unicodedata.normalize("NFKC", text).lower()
    found = [(kind, match.group()) for kind, pattern in _ASKS.items() for match in pattern.finditer(low)]
    if any(kind in ("contact", "frequency") for kind, _ in found):
        # "What is the phone number" and "how often" ask for digits of one form, not for any number.
        found = [(kind, words) for kind, words in found if kind != "number"]
    return Question(
        terms=wanted,
        kinds=frozenset(kind for kind, _ in found),
        units=tuple(shows for asks, shows in _MEASURES if asks.search(low)),
        asking=frozenset(term for _, words in found for term in terms(words, question=True)),
        things=numbered_things(f"{before} {text}"),
    )


def rate(question: Question, passages: Sequence[Passage]) -> list[list[Rating]]:
    """Return the rating of each sentence of each passage; passages come best first.

    A rare term counts more than one that stands in many sentences. A term in the title or in a neighbouring
    sentence counts in part.
    """
    own = [[terms(sentence) for sentence in passage.sentences] for passage in passages]
    frequency = Counter(term for passage in own for each in passage for term in question.terms if term in each)
    count = sum(map(len, own))
    weights = {
        term: weight
        * math.log(1 + (count + 1) / (frequency[term] + 0.5))
        * (_CODE_WEIGHT if _CODE.fullmatch(term) else 1)
        for term, weight in question.terms.items()
    }
    result = []
    for rank, (passage, sentences) in enumerate(zip(passages, own, strict=True)):
        shown = [shows_answer(question, sentence) for sentence in passage.sentences]
        comparison = _Comparison(
            question, weights, passage, sentences, terms(passage.title), shown, numbered_things(passage.title)
        )
        near_top = 1 + 0.15 / (1 + rank)
        result.append([comparison.rating(index, near_top) for index in range(len(sentences))])
    return result


def is_lead(question: Question, sentence: str) -> bool:
    """Whether a sentence only names what was asked ("New: quiet hours."), so that the answer follows it."""
    return _only_names(question, terms(sentence)) and not shows_answer(question, sentence)


def _only_names(question: Question, own: Collection[str]) -> bool:
    return 0 < len(own) <= 12 and sum(term not in question.terms for term in own) <= len(own) / 3


def shows_answer(question: Question, sentence: str) -> bool:
    """Whether a sentence has the form of an answer: a number for "how many", a date for "when"."""
    low = sentence.lower()
    return any(_SHOWS[kind].search(low) for kind in question.kinds)


def table_header(sentences: Sequence[str], index: int) -> int:
    """Return the index of the header of the table that the sentence is a row of; its own when it is no row."""
    header = index
    while CELLS in sentences[index] and header > 0 and CELLS in sentences[header - 1]:
        header -= 1
    return header


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One passage beside a question; ``weights`` has each term's weight by rarity."""

    question: Question
    weights: Mapping[str, float]
    passage: Passage
    own: Sequence[Mapping[str, float]]
    title: Mapping[str, float]
    shown: Sequence[bool]
    named: Mapping[str, frozenset[str]]

    def rating(self, index: int, near_top: float) -> Rating:
        total = sum(self.weights.values())
        covered, found = self._covered(index)
        if not total or not covered:
            return Rating(0.0, False, False)
        share = covered / total
        relevant = share >= _FLOOR and (found >= _FEW_TERMS or share >= _ENOUGH)
        shows = self._shows(index)
        return Rating(share * self._form(index, shows) * near_top, relevant, shows)

    def _covered(self, index: int) -> tuple[float, float]:
        """The weight that is covered, and how many terms (a bigram with a particle is part of one) cover it."""
        around: list[tuple[Collection[str], float]] = [
            (self.title, _TITLE_SHARE),
            (self._before(index), _BEFORE_SHARE),
            (self.own[index + 1] if index + 1 < len(self.own) else (), _AFTER_SHARE),
        ]
        if self.shown[index]:
            around.insert(0, (self.question.asking, _ASKED_SHARE))
        mine = near = found = 0.0
        for term, weight in self.weights.items():
            share = next((share for place, share in around if term in place), 0.0)
            if term in self.own[index]:
                mine += weight
            else:
                near += weight * share
            if term in self.own[index] or share >= _ASKED_SHARE:
                found += _FEW_TERMS if _CODE.fullmatch(term) else self.question.terms[term]
        if not mine and near <= _LOOSE * sum(self.weights.values()):
            return 0.0, 0.0
        return mine + near, found

    def _before(self, index: int) -> Collection[str]:
        """Terms of the sentence before, or of the header of the table the sentence is a row of."""
        header = table_header(self.passage.sentences, index)
        if header != index:
            return self.own[header]
        return self.own[index - 1] if index else ()

    def _shows(self, index: int) -> bool:
        """Whether the sentence, or what it leads to, has the form of an answer."""
        if self.shown[index] or not _only_names(self.question, self.own[index]):
            return self.shown[index]
        return any(self.shown[index + 1 : index + 1 + LEAD_LIMIT])

    def _form(self, index: int, shows: bool) -> float:
        """How well the form fits: "how many" wants a number, and a numbered thing no other thing."""
        sentence = self.passage.sentences[index]
        factor = 1.0
        if self.question.kinds:
            factor = _SHOWN_BONUS if shows else _MISSING_MALUS
        if any(unit.search(sentence.lower()) for unit in self.question.units):
            factor *= _UNIT_BONUS
        if self.title and all(term in self.title or term.isdigit() or term in _FOOT for term in self.own[index]):
            factor *= _EMPTY
        here = numbered_things(sentence) if self.question.things else {}
        for word, numbers in self.question.things.items():
            others = here.get(word) or self.named.get(word)
            if others and not others & numbers:
                factor *= _OTHER_THING
        return factor
