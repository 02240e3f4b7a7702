"""What a question names, and how much of it a passage holds. Pure.

A near miss is a passage about nearly the same: it holds most words of the question, and not the one that matters ("the
price of a cat" beside the price of a dog). Shares of words do not tell the two apart, so the words are weighed by what
they do in the question: things that it names (nouns, names) count fully, other words (mostly verbs and adjectives
behind a verb) less, and words that only ask not at all. Which is which is read from the surface: capitals in German,
determiners and prepositions before a word in the other languages, the length of a word in Chinese.

A word is held in any inflection and, in languages that write compounds, also inside a compound. Words say nothing of a
passage in another language or script: for such a passage there is no coverage, and its meaning decides alone.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from py_rust_stemmers import SnowballStemmer

from mcp_servers.folding import fold
from mcp_servers.retriever.lexical import is_asking, language_of, word_ids

OTHER_WORD = 0.4
"""What a word counts that is no thing which the question names."""

MOST_WORDS_READ = 60
"""Words of a question that are weighed."""

RARE = 0.75
"""What a thing counts at least, relative to the rarest word of the question, for a passage to lack it: a word that
stands in many passages is part of what they are all about."""

SHORTEST_STEM, SHORTEST_PART = 3, 5
"""Letters of a stem that is looked for at the start of words, and of one that is looked for inside them too."""

LONGEST_ENDING = 3
"""Letters of an ending that makes another word of the same root ("north", "northern")."""

LANGUAGE_SAMPLE = 400
"""Characters of a passage that tell its language."""

ENOUGH_COMPARABLE = 0.5
"""Share of a question's weight whose words a passage could hold, from which its words say something."""

_STEMMERS = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
}
_COMPOUNDS = frozenset({"de", "nl"})
_LEADS = {
    "en": """a an the this that these those my your our his her its their each every any some no of in on at for from
    with without about into per as during after before between under over""",
    "fr": """le la les l un une des du de d au aux ce cet cette ces mon ma mes notre nos leur leurs son sa ses
    dans sur sous avec sans pour par""",
    "es": """el la los las un una unos unas del de al este esta estos mi mis nuestro su sus en con sin para por""",
    "it": """il lo la i gli le un uno una del della dei delle al alla nel nella questo questa nostro suo sua
    di a in con senza per""",
    "pt": """o a os as um uma do da dos das no na nos nas de em este esta meu nosso seu sua com sem para por""",
    "nl": """de het een dit deze die onze mijn van in op aan bij met voor tot uit over onder door
    zonder""",
}  # fmt: skip
"""Words that stand before a noun, and before an adjective and a noun."""
_DIRECT_LEADS = {
    "en": "which what whose many much",
    "fr": "quel quelle quels quelles combien",
    "es": "qué cuál cuánto cuánta cuántos cuántas",
    "it": "quale quali quanto quanta quanti quante",
    "pt": "qual quais quanto quanta quantos quantas",
    "nl": "welk welke hoeveel",
}
"""Words that ask for the noun behind them; a second word behind them is mostly a verb ("which ship replaces")."""
_MEASURES = {
    "en": """day days week weeks month months year years hour hours minute minutes second seconds time times crown
    crowns euro euros dollar dollars pound pounds percent cent cents metre metres meter meters kilometre kilometres
    mile miles kilo kilos gram grams litre litres liter liters degree degrees people person persons kind type sort""",
    "de": """tag tage tagen woche wochen monat monate monaten jahr jahre jahren stunde stunden minute minuten sekunde
    sekunden uhr mal kronen euro dollar prozent cent meter metern kilometer kilo gramm liter grad leute personen art
    kosten kostet viel""",
}  # fmt: skip
"""Units, which a question names to say in what it wants the answer."""
_ATTRIBUTES = {
    "en": """number numbers name names price prices cost costs fee fees charge charges amount amounts value date dates
    distance length width height depth weight size age duration period limit limits maximum minimum requirement
    requirements rule rules default reason reasons purpose difference address place location colour color way""",
    "de": """nummer nummern name namen preis preise gebühr gebühren betrag beträge wert datum abstand länge breite höhe
    tiefe gewicht größe alter dauer frist grenze höchstens regel regeln grund gründe zweck unterschied adresse ort
    farbe anzahl""",
    "zh": """号码 数字 名字 名称 价格 价钱 费用 金额 数值 日期 距离 长度 宽度 高度 深度 重量 尺寸 大小 年龄 期限 时长
    限制 上限 下限 要求 条件 规则 原因 目的 区别 地址 地点 位置 颜色 办法 方法 情况 方面 以后 以前 之后 之前""",
}
"""Names of what the answer is: a passage that gives a distance need not say "distance"."""
_ALTERNATIVES = frozenset({"or", "oder", "ou"})
"""Of two things that a question offers, one is enough."""
_SIZES = {"en": frozenset({"how"}), "de": frozenset({"wie"}), "nl": frozenset({"hoe"})}
"""The word behind these belongs to the asking ("how deep", "wie schwer")."""
_WORD = re.compile(r"[^\W\d_\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+(?:['’-][^\W\d_\u2e80-\u9fff]+)*|[^\w\s]|\d+")
_RUN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]+")
_IDEOGRAPH = re.compile(r"[\u3400-\u9fff]")
_LONGEST_WORD = 4
"""Characters of an ideographic word."""
_UMLAUTS = str.maketrans("äöü", "aou")


class Term(NamedTuple):
    """A word of a question: its ids among the tokens, what it counts, and what a text has to hold of it.

    ``stem`` is None for a word that only its token tells. ``is_thing``: the question names it. ``is_ideographic``: the
    script; a passage without a character of it cannot hold the word.
    """

    ids: frozenset[int]
    weight: float
    stem: str | None
    is_thing: bool
    is_ideographic: bool


class Coverage(NamedTuple):
    """How a passage in the question's language fits its words.

    ``held``: the share of the question's weight that it holds, 0..1. ``lacking``: the share of the heaviest thing that
    it does not hold.
    """

    held: float
    lacking: float


class Question(NamedTuple):
    """A question that passages are compared with."""

    language: str | None
    terms: tuple[Term, ...]

    def weigh(self, rarities: Mapping[int, float]) -> tuple[float, ...]:
        """Return what each term counts; ``rarities`` is the inverse document frequency of each token."""
        return tuple(term.weight * max(rarities.get(index, 0.0) for index in term.ids) for term in self.terms)

    def coverage(self, text: str, matched: Collection[int], weights: Sequence[float]) -> Coverage | None:
        """Return how a passage covers the question; None for one in another language or script.

        ``text`` includes headings and the document's name. ``matched`` are the tokens of the question that the index
        knows the passage to hold, ``weights`` those of the terms (`weigh`).
        """
        passage = _read_passage(text)
        comparable = held = lacking = 0.0
        rare = RARE * max(weights, default=0.0)
        for term, weight in zip(self.terms, weights, strict=True):
            if term.is_ideographic != passage.is_ideographic and term.stem is not None and not passage.is_mixed:
                continue
            comparable += weight
            if not term.ids.isdisjoint(matched) or _holds(passage.text, term, self.language):
                held += weight
            elif term.is_thing and weight >= rare:
                lacking = max(lacking, weight)
        languages = {self.language, passage.language} - {None}
        if not comparable or comparable < ENOUGH_COMPARABLE * sum(weights) or len(languages) > 1:
            return None
        return Coverage(held / comparable, lacking / comparable)


class _PassageText(NamedTuple):
    text: str
    language: str | None
    is_ideographic: bool
    is_mixed: bool


@lru_cache(maxsize=2048)
def _read_passage(text: str) -> _PassageText:
    """Return a passage as words are looked for in it."""
    language = language_of(fold(text[-LANGUAGE_SAMPLE:]).text)
    ideographs = len(_IDEOGRAPH.findall(text))
    letters = sum(map(str.isalpha, text)) - ideographs
    is_mixed = ideographs > 0 and letters > 0 and 0.1 < ideographs * 4 / (ideographs * 4 + letters) < 0.9
    return _PassageText(text.casefold().translate(_UMLAUTS), language, ideographs * 4 > letters, is_mixed)


def _holds(text: str, term: Term, language: str | None) -> bool:
    """Whether a text has a word in any form."""
    if term.stem is None:
        return False
    if term.is_ideographic:
        return term.stem in text
    if language in _COMPOUNDS and len(term.stem) >= SHORTEST_PART and term.stem in text:
        return True
    root = term.stem[:-LONGEST_ENDING] if len(term.stem) >= SHORTEST_PART + LONGEST_ENDING else None
    return _begins_word(text, term.stem) or (root is not None and _begins_word(text, root, whole=True))


def _begins_word(text: str, stem: str, *, whole: bool = False) -> bool:
    """Whether a word of the text begins with the stem; ``whole``: is the stem."""
    at = text.find(stem)
    while at >= 0:
        end = at + len(stem)
        if not text[at - 1 : at].isalnum() and not (whole and text[end : end + 1].isalnum()):
            return True
        at = text.find(stem, at + 1)
    return False


@lru_cache(maxsize=256)
def read_question(text: str, tokens: frozenset[int]) -> Question:
    """Return the words of a question; ``tokens`` are its tokens in the index, without words that only ask."""
    language = language_of(fold(text).text)
    terms = [*_latin_terms(text, tokens, language), *_ideographic_terms(text, tokens)]
    known = frozenset().union(*(term.ids for term in terms))
    terms += [Term(frozenset((index,)), 1.0, None, False, False) for index in tokens - known]
    return Question(language, tuple(terms[:MOST_WORDS_READ]))


def _latin_terms(text: str, tokens: frozenset[int], language: str | None) -> Iterator[Term]:
    words = _WORD.findall(text)
    folded = [fold(word).text for word in words]
    asks = [is_asking(word, language or "en") or not word[:1].isalpha() for word in folded]
    has_sentence = any(is_asking(word, language or "en") for word in folded)
    for at, word in enumerate(words[: MOST_WORDS_READ * 4]):
        ids = tokens.intersection(word_ids(folded[at]))
        if asks[at] or not ids:
            continue
        behind_size = at > 0 and folded[at - 1] in _SIZES.get(language or "", ())
        is_alternative = not _ALTERNATIVES.isdisjoint(folded[max(at - 2, 0) : at + 2])
        is_answer = folded[at] in _words_of(_MEASURES, language) or folded[at] in _words_of(_ATTRIBUTES, language)
        if is_answer or is_alternative or behind_size:
            is_thing = False
        elif not has_sentence or language == "de":
            is_thing = not has_sentence or word[0].isupper()
        else:
            is_thing = (at > 0 and word[0].isupper()) or _is_led(folded, asks, at, language or "en")
        yield Term(ids, 1.0 if is_thing else OTHER_WORD, _stem(folded[at], language), is_thing, False)


def _is_led(words: list[str], asks: list[bool], at: int, language: str) -> bool:
    """Whether a determiner or a preposition stands before a word, with one other word between them at most."""
    if at > 0 and words[at - 1] in _words_of(_DIRECT_LEADS, language):
        return True
    before = at - 2 if at > 0 and not asks[at - 1] else at - 1
    return before >= 0 and words[before] in _words_of(_LEADS, language)


def _ideographic_terms(text: str, tokens: frozenset[int]) -> Iterator[Term]:
    """Yield the words that the engine's segmenter finds: each piece of the text that is one token of the question."""
    found: dict[int, str] = {}
    for run in _RUN.findall(fold(text).text):
        for start in range(len(run)):
            for end in range(start + 1, min(start + _LONGEST_WORD, len(run)) + 1):
                ids = word_ids(run[start:end])
                if len(ids) == 1 and ids[0] in tokens:
                    found.setdefault(ids[0], run[start:end])
    for index, word in found.items():
        is_thing = len(word) > 1 and word[0] not in "几每" and word not in _words_of(_ATTRIBUTES, "zh")
        yield Term(frozenset((index,)), 1.0 if is_thing else OTHER_WORD, word, is_thing, True)


def _words_of(lists: Mapping[str, str], language: str | None) -> frozenset[str]:
    """Return the words of a language from one of the lists above."""
    return _folded_words(lists.get(language or "", ""))


@cache
def _folded_words(words: str) -> frozenset[str]:
    return frozenset(fold(words).text.split())


def _stem(word: str, language: str | None) -> str | None:
    """Return the beginning that the forms of a word share."""
    if language is None or language not in _STEMMERS:
        return word if len(word) >= SHORTEST_STEM else None
    stem = _stemmer(language).stem_word(word).translate(_UMLAUTS)
    return stem if len(stem) >= SHORTEST_STEM else None


@cache
def _stemmer(language: str) -> SnowballStemmer:
    return SnowballStemmer(_STEMMERS[language])
