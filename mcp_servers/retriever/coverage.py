"""The words of a question by their role, and the share of them that a passage contains.

A near miss is a passage about a similar subject: it has most words of the question, but not the important one (the
price of a dog, for the question about "the price of a cat"). Shares of words do not tell the two apart, so words are
weighed by their role in the question. Things that the question names (nouns, names) count fully, other words (mostly
verbs and adjectives after a verb) less, and question words not at all. The role is read from the surface: capitals in
German, determiners and prepositions before a word in the other languages, the length of a word in Chinese.

A passage contains a word if it has any inflection of it or, in languages with compounds, a compound with it. Words are
no evidence for a passage in another language or script: such a passage has no coverage, and only its meaning decides.
The module does no I/O.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import repeat
from typing import NamedTuple

from py_rust_stemmers import SnowballStemmer

from mcp_servers.answer_forms import AnswerForm, asked_form, has_form
from mcp_servers.folding import CharacterTable, fold_text
from mcp_servers.retriever.lexical import is_asking, is_month, language_of, split_elisions, word_ids

OTHER_WORD = 0.4
"""Weight of a word that is not a thing; a thing has weight 1."""

NAME, MODIFIER, HEAD = 2.0, 0.5, 1.5
"""Factors of a missing name, which has no synonym, of a missing word before the thing ("annual leave"), and of the last
word of a Chinese thing, which names what is asked ("采购委员会*主任*")."""

MOST_WORDS_READ = 60
"""Maximum number of words of a question that are weighed."""

RARE = 0.75
"""Lowest weight, relative to the rarest word of the question, at which a missing thing counts as lacking: a word that
occurs in many passages belongs to the subject of them all."""

SHORTEST_STEM, SHORTEST_PART = 2, 5
"""Minimum number of letters of a stem, and of one that is also matched inside compounds or with another ending."""

LONGEST_ENDING = 3
"""Maximum number of letters of an ending that forms another word from the same root ("north", "northern")."""

LETTERS_OF_AN_IDEOGRAPH = 4
"""Number of letters that one ideograph stands for when the scripts of a passage are compared."""

LANGUAGE_SAMPLE = 400
"""Characters of a passage from which its language is detected."""

ENOUGH_COMPARABLE = 0.5
"""Smallest share of a question's weight whose words a passage in its script could contain, for a coverage at all."""

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
    "it": """il lo la i gli le l un uno una del della dei delle dell al alla all nel nella nell sull dall questo questa
    nostro suo sua di d a in con senza per""",
    "ca": """el la els les l un una uns unes del dels de d al als aquest aquesta meu nostre seu seva en amb sense
    per""",
    "pt": """o a os as um uma do da dos das no na nos nas de em este esta meu nosso seu sua com sem para por""",
    "nl": """de het een dit deze die onze mijn van in op aan bij met voor tot uit over onder door
    zonder""",
}  # fmt: skip
"""Words before a noun, or before an adjective and a noun."""
_DIRECT_LEADS = {
    "en": "which what whose many much",
    "fr": "quel quelle quels quelles combien",
    "es": "qué cuál cuánto cuánta cuántos cuántas",
    "it": "quale quali quanto quanta quanti quante",
    "ca": "quin quina quins quines quant quanta quants quantes",
    "pt": "qual quais quanto quanta quantos quantas",
    "nl": "welk welke hoeveel",
}
"""Words that ask for the noun after them; a second word after them is mostly a verb ("which ship replaces")."""
_MEASURES = {
    "en": """day days week weeks month months year years hour hours minute minutes second seconds time times crown
    crowns euro euros dollar dollars pound pounds percent cent cents metre metres meter meters kilometre kilometres
    mile miles kilo kilos gram grams litre litres liter liters degree degrees people person persons kind type sort""",
    "de": """tag tage tagen woche wochen monat monate monaten jahr jahre jahren stunde stunden minute minuten sekunde
    sekunden uhr mal kronen euro dollar prozent cent meter metern kilometer kilo gramm liter grad leute personen art
    kosten kostet viel""",
}  # fmt: skip
"""Units, which name the form of the answer."""
_ATTRIBUTES = {
    "en": """number numbers name names amount amounts rate rates sum total value size age period limit limits maximum
    minimum requirement requirements rule rules default reason reasons purpose difference address place location colour
    color way""",
    "de": """nummer nummern name namen summe satz wert größe alter frist grenze höchstens regel regeln grund gründe
    zweck unterschied adresse ort farbe anzahl""",
    "zh": """号码 数字 名字 名称 金额 数值 尺寸 大小 年龄 期限 时长 限制 上限 下限 要求 条件 规则 原因 目的 区别
    地址 地点 位置 颜色 办法 方法 情况 方面 以后 以前 之后 之前""",
}
"""Names of the property that is asked for: a passage that gives a distance need not say "distance"."""
_SUBJECTS = frozenset({"i", "we", "you", "they", "he", "she", "one"})
"""Words that a verb follows in an English question."""
_ALTERNATIVES = frozenset({"or", "oder", "ou"})
"""Words between alternatives, of which a passage needs only one."""
_SIZES = {"en": frozenset({"how"}), "de": frozenset({"wie"}), "nl": frozenset({"hoe"})}
"""Words whose next word is part of the question phrase ("how deep", "wie schwer")."""
_WORD = re.compile(r"[^\W\d_\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+(?:['’-][^\W\d_\u2e80-\u9fff]+)*|[^\w\s]|\d+")
_LETTERS = re.compile(r"[^\W\d_\u3040-\u9fff]+(?:-[^\W\d_\u3040-\u9fff]+)*")
_LETTERS_AND_HYPHENS = CharacterTable(
    lambda character: character if character == "-" or _LETTERS.match(character) else " "
)
_RUN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]+")
_IDEOGRAPH = re.compile(r"[\u3400-\u9fff]")
_LONGEST_WORD = 4
"""Maximum number of characters of an ideographic word."""
_AFTER_Z = chr(ord("z") + 1)
_UMLAUTS = str.maketrans("äöü", "aou")


class Term(NamedTuple):
    """A word of a question: its token ids, its weight, and the stem that a text must contain.

    ``stem`` is None for a word that only its tokens identify. ``is_thing`` marks a thing that the question names,
    ``is_name`` a proper name or an abbreviation, and ``is_modifier`` a word before a thing that belongs to it.
    ``is_ideographic`` is the script; a passage without characters of that script cannot contain the word.
    ``form`` is the form of answer that the word asks for ("price"): every passage with such an answer has the word.
    """

    ids: frozenset[int]
    weight: float
    stem: str | None
    is_thing: bool
    is_ideographic: bool
    is_name: bool = False
    is_modifier: bool = False
    form: AnswerForm | None = None

    @property
    def loss(self) -> float:
        """The share of its weight that a passage without the word loses, 0..1."""
        if self.is_name:
            return NAME
        if self.is_modifier:
            return MODIFIER
        return HEAD if self.is_ideographic else 1.0


class Coverage(NamedTuple):
    """The coverage of a question's words by a passage in the same language.

    ``held`` is the share of the question's weight in the passage, 0..1. ``lacking`` is the share of the heaviest thing
    that the passage lacks.
    """

    held: float
    lacking: float


class PreparedQuestion(NamedTuple):
    """A question, prepared for the comparison with passages."""

    language: str | None
    terms: tuple[Term, ...]
    form: AnswerForm | None = None

    def weigh(self, rarities: Mapping[int, float]) -> tuple[float, ...]:
        """Return the weight of each term; ``rarities`` is the inverse document frequency of each token."""
        return tuple(term.weight * max(rarities.get(index, 0.0) for index in term.ids) for term in self.terms)

    def missing_name(self, held: Collection[Collection[int]]) -> bool:
        """Return whether the question has a name that is in none of the passages; ``held`` are their tokens."""
        names = [term.ids for term in self.terms if term.is_name]
        return any(all(ids.isdisjoint(tokens) for tokens in held) for ids in names)

    def coverage(
        self, text: str, matched: Collection[int], weights: Sequence[float], headings: str = ""
    ) -> Coverage | None:
        """Return how a passage covers the question, or None for a passage in another language or script.

        ``text`` includes ``headings`` and the document's name. ``matched`` are the tokens of the question that the
        passage has according to the index, and ``weights`` the weights of the terms (`weigh`).
        """
        passage = _read_passage(text, self.language)
        comparable = held = lacking = 0.0  # sums of weights; `lacking` is a maximum
        rare = RARE * max(weights, default=0.0)
        for previous, term, weight in zip((None, *self.terms), self.terms, weights, strict=False):
            # A Chinese passage says nothing about a Latin word, and the other way round. A code has the same tokens in
            # both scripts.
            if term.is_ideographic != passage.is_ideographic and term.stem is not None and not passage.is_mixed:
                continue
            comparable += weight
            if term.form:
                held += weight * has_form(text, term.form)
            elif not term.ids.isdisjoint(matched) or _holds(passage, term, self.language):
                held += weight
            elif term.is_thing and weight >= rare:
                # A passage under the heading "Hotels" may answer a question about a hotel bill without the word "bill".
                is_about = (
                    previous is not None
                    and previous.is_modifier
                    and _holds(_read_passage(headings, self.language), previous, self.language)
                )
                lacking = max(lacking, weight * (MODIFIER * term.loss if is_about else term.loss))
        languages = {self.language, passage.language} - {None}  # an unknown language is no other language
        if not comparable or comparable < ENOUGH_COMPARABLE * sum(weights) or len(languages) > 1:
            return None
        return Coverage(held / comparable, min(lacking / comparable, 1.0))


class _PassageText:
    """A passage, prepared for a question in a language. Its words are only read for a word that the index misses."""

    def __init__(self, text: str, language: str | None) -> None:
        self._source = text
        self._question_language = language
        self._stems: dict[str, frozenset[str]] = {}
        # The end of the passage, because its beginning may be headings and the document's name in another language.
        self.language = language_of(fold_text(text[-LANGUAGE_SAMPLE:]))
        ideographs = 0 if text.isascii() else len(_IDEOGRAPH.findall(text))
        letters = sum(map(str.isalpha, text)) - ideographs if ideographs else 0
        ideographic = ideographs * LETTERS_OF_AN_IDEOGRAPH
        self.is_ideographic = ideographic > letters
        self.is_mixed = letters > 0 and 0.1 < ideographic / (ideographic + letters) < 0.9

    @cached_property
    def _folded(self) -> str:
        return fold_text(self._source)

    @cached_property
    def text(self) -> str:
        """The folded text without umlauts."""
        return self._folded if self._folded.isascii() else self._folded.translate(_UMLAUTS)

    @cached_property
    def _words(self) -> list[str]:
        """The words, and the parts of words with hyphens, sorted."""
        words = _hyphenated_words(self._folded)
        if "-" in self._folded:
            words.update(*(word.split("-") for word in words if "-" in word))
        return sorted(words)

    def stems(self, initial: str) -> frozenset[str]:
        """Return the stems of the words, at least of those whose stem begins with a letter.

        No stemmer changes the first letter of a word, except that it may remove an accent.
        """
        if initial not in self._stems:
            words = self._words
            first, after = bisect_left(words, initial), bisect_left(words, chr(ord(initial) + 1))
            accented = bisect_left(words, _AFTER_Z)  # words whose first letter may have an accent
            words = [*words[first : min(after, accented)], *words[accented:]]
            self._stems[initial] = frozenset(filter(None, map(_stem, words, repeat(self._question_language))))
        return self._stems[initial]


def _hyphenated_words(folded: str) -> set[str]:
    """Return the words of a folded text; a hyphen between letters joins them to one word."""
    words = {*folded.translate(_LETTERS_AND_HYPHENS).split()}  # six times faster than the pattern
    if "-" not in folded:
        return words
    joined = {word for word in words if "-" in word}
    return (words - joined).union(*map(_LETTERS.findall, joined))


@lru_cache(maxsize=2048)
def _read_passage(text: str, language: str | None) -> _PassageText:
    return _PassageText(text, language)


def _holds(passage: _PassageText, term: Term, language: str | None) -> bool:
    """Return whether a passage contains a word in any form."""
    stem = term.stem
    if stem is None:
        return False
    if term.is_ideographic:
        return stem in passage.text
    stems = passage.stems(stem[0])
    if stem in stems or (language in _COMPOUNDS and len(stem) >= SHORTEST_PART and stem in passage.text):
        return True
    return len(stem) >= SHORTEST_PART and _has_other_ending(stem, stems)


def _has_other_ending(stem: str, stems: Collection[str]) -> bool:
    """Return whether one of the stems differs only in an ending that forms another word ("north", "northern").

    Both stems have at least `SHORTEST_PART` letters, and one begins with the other.
    """
    shortest, longest = max(SHORTEST_PART, len(stem) - LONGEST_ENDING), len(stem) + LONGEST_ENDING
    return any(
        shortest <= len(candidate) <= longest and (stem.startswith(candidate) or candidate.startswith(stem))
        for candidate in stems
    )


@lru_cache(maxsize=256)
def read_question(text: str, tokens: frozenset[int]) -> PreparedQuestion:
    """Return the words of a question; ``tokens`` are its tokens in the index, without question words."""
    language = language_of(fold_text(text))
    form = asked_form(text)
    terms = [*_latin_terms(text, tokens, language, form), *_ideographic_terms(text, tokens, form)]
    # The remaining tokens are codes, numbers and words of scripts that neither function reads.
    tokens_of_terms = frozenset().union(*(term.ids for term in terms))
    terms += [Term(frozenset((token,)), 1.0, None, False, False) for token in tokens - tokens_of_terms]
    return PreparedQuestion(language, tuple(terms[:MOST_WORDS_READ]), form)


def _latin_terms(text: str, tokens: frozenset[int], language: str | None, form: AnswerForm | None) -> Iterator[Term]:
    words = _WORD.findall(split_elisions(text))
    folded = [fold_text(word) for word in words]
    # Question words and punctuation both end a group of words that belong together.
    is_boundary = [is_asking(word, language or "en") or not word[:1].isalpha() for word in folded]
    has_sentence = any(is_asking(word, language or "en") for word in folded)
    capitals = sum(word[0].isupper() for word in words)
    has_names = has_sentence and language != "de" and capitals <= len(words) / 2  # not in a title with Capital Letters
    for position, word in enumerate(words[: MOST_WORDS_READ * 4]):
        folded_word = folded[position]
        ids = tokens.intersection(word_ids(folded_word))
        if is_boundary[position] or not ids:
            continue
        follows_size = position > 0 and folded[position - 1] in _SIZES.get(language or "", ())
        is_alternative = not _ALTERNATIVES.isdisjoint(folded[max(position - 2, 0) : position + 2])
        asks_form = form is not None and form.words.fullmatch(folded_word) is not None
        names_answer = folded_word in _words_of(_MEASURES, language) or folded_word in _words_of(_ATTRIBUTES, language)
        # A capital says nothing about the first word of a sentence.
        is_capitalised = position > 0 and word[0].isupper()
        if asks_form or names_answer or is_alternative or follows_size:
            is_thing = False
        elif not has_sentence:
            is_thing = True
        elif language == "de":
            is_thing = word[0].isupper()
        else:
            is_thing = is_capitalised or _is_led(folded, is_boundary, position, language or "en")
        is_name = has_names and is_capitalised and len(word) > 1 and not is_month(folded_word)
        weight = 1.0 if is_thing else OTHER_WORD
        # In English a noun before a noun belongs to it. Other languages put the thing first or write one word.
        is_modifier = is_thing and language == "en" and position + 1 < len(words) and not is_boundary[position + 1]
        stem = _stem(folded_word, language)
        yield Term(ids, weight, stem, is_thing, False, is_name, is_modifier, form if asks_form else None)


def _is_led(words: list[str], is_boundary: list[bool], position: int, language: str) -> bool:
    """Return whether a determiner or preposition precedes a word, with at most one other word between the two."""
    if position > 0 and words[position - 1] in _words_of(_DIRECT_LEADS, language):
        return True
    before = position - 2 if position > 0 and not is_boundary[position - 1] else position - 1
    if before >= 0 and words[before] in _words_of(_LEADS, language):
        return True
    return language == "en" and _is_object(words, is_boundary, position)


def _is_object(words: list[str], is_boundary: list[bool], position: int) -> bool:
    """Return whether an English word without a determiner is the object of a verb: "how do I bake sourdough bread"."""
    first = position
    while first > 0 and not is_boundary[first - 1]:
        first -= 1
    # The word at `first` is the verb. An adverb ("quickly") may follow it, too.
    return 0 < first < position and words[first - 1] in _SUBJECTS and not words[position].endswith("ly")


def _ideographic_terms(text: str, tokens: frozenset[int], form: AnswerForm | None) -> Iterator[Term]:
    """Yield the words that the engine's segmenter finds: each piece of the text that is a single token."""
    word_of_token: dict[int, str] = {}
    modifiers: set[int] = set()
    for run in _RUN.findall(fold_text(text)):
        word_at_start: dict[int, str] = {}
        token_at_end: dict[int, int] = {}
        for start in range(len(run)):
            for end in range(start + 1, min(start + _LONGEST_WORD, len(run)) + 1):
                ids = word_ids(run[start:end])
                if len(ids) == 1 and ids[0] in tokens:
                    word_of_token.setdefault(ids[0], run[start:end])
                    # The longest word of a start, and the shortest of an end, remain.
                    word_at_start[start], token_at_end[end] = run[start:end], ids[0]
        modifiers.update(
            token for end, token in token_at_end.items() if _is_ideographic_thing(word_at_start.get(end, ""))
        )
    for token, word in word_of_token.items():
        asks_form = form is not None and form.words.fullmatch(word) is not None
        is_thing = _is_ideographic_thing(word) and not asks_form
        weight = 1.0 if is_thing else OTHER_WORD
        is_modifier = is_thing and token in modifiers
        own_form = form if asks_form else None
        yield Term(frozenset((token,)), weight, word, is_thing, True, is_modifier=is_modifier, form=own_form)


def _is_ideographic_thing(word: str) -> bool:
    # 几 ("how many") and 每 ("each") begin a quantity.
    return len(word) > 1 and word[0] not in "几每" and word not in _words_of(_ATTRIBUTES, "zh")


def _words_of(lists: Mapping[str, str], language: str | None) -> frozenset[str]:
    """Return the words of a language from one of the lists above."""
    return _folded_words(lists.get(language or "", ""))


@cache
def _folded_words(words: str) -> frozenset[str]:
    return frozenset(fold_text(words).split())


@lru_cache(maxsize=2**16)
def _stem(word: str, language: str | None) -> str | None:
    """Return the stem that the forms of a word share, or None if it is too short."""
    if language is None or language not in _STEMMERS:
        return word if len(word) >= SHORTEST_STEM else None
    stem = _stemmer(language).stem_word(word).translate(_UMLAUTS)
    return stem if len(stem) >= SHORTEST_STEM else None


@cache
def _stemmer(language: str) -> SnowballStemmer:
    return SnowballStemmer(_STEMMERS[language])
