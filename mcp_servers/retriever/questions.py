"""Analysis of a question: its parts, and the codes that an answer must contain.

Both are read from the surface of the question, in any language: punctuation, conjunctions and digits. The module does
no I/O.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from mcp_servers.folding import fold_text
from mcp_servers.retriever.lexical import is_month, number_tokens, query_vector, split_elisions, token_id, whole_codes

MAX_PARTS = 3
"""Maximum number of parts of a question that are searched separately."""

MAX_PART = 500
"""Maximum number of characters of a question that is split: a longer text is no question."""

LEAST_NUMBER = 100
"""Smaller numbers are too frequent to identify a passage, so a passage without them may still be relevant."""

IDENTIFYING_DIGITS = 4
"""Minimum number of digits of a number that identifies a passage; 4 or 500 occur everywhere, 4101 does not."""

_LABELLED = re.compile(
    r"\b(?:fault|error|code|line|channel|room|gate|berth|page|table|figure|section|chapter|version|revision|model|lane"
    r"|track|platform|form|type|step|rule|notice|annex|fehler|störung|linie|kanal|raum|zimmer|tor|seite|tabelle"
    r"|abbildung|abschnitt|kapitel|fassung|spur|gleis|formular|parzelle|stufe|regel|anlage|anhang) (\d{1,2})\b"
)
"""A number that is the name of a thing, so that even a small one is required."""
_MODEL = re.compile(
    r"(?<=\S )([A-ZÄÖÜ][\w-]+) (\d{1,2})(?![\w%]|[.,:-]\d)"
    r"(?! (?i:days?|weeks?|months?|years?|hours?|minutes?|seconds?|times|people|persons?|percent|euros?|dollars?"
    r"|pounds?|crowns?|am|pm|o.clock|to|until|bis|uhr|mal|prozent|grad)\b| [A-ZÄÖÜ])"
)
"""A capitalised word and a number by which nothing is counted: "the Falcon 60", but not "Anna 3 days"."""
_ENDS = re.compile(r"(?<=[?？!！;；])\s*|(?<=。)")
_CONJUNCTION = re.compile(
    r"\s*[,，]?\s+(?:and|or|versus|vs\.?|und|oder|sowie|et|ou|y|e|o|compared (?:with|to)|in comparison (?:with|to)"
    r"|verglichen mit|im vergleich (?:mit|zu|zum|zur)|par rapport à|en comparaison (?:avec|de)|in confronto (?:a|con)"
    r"|rispetto a|comparad[oa] con|en comparación con)\s+"
    r"|\s*(?:以及|还是|还有|或者|[，、和与跟或])\s*",
    re.IGNORECASE,
)
_COMPARE = re.compile(
    r"(?:please |bitte |s'il vous plaît |por favor |per favore )?"
    r"(?:compare[rz]?|comparar?|compara|confronta(?:re|te)?|paragona(?:re)?|vergleichen? sie|vergleiche?)\s+(.+)",
    re.IGNORECASE | re.DOTALL,
)
_REQUEST = re.compile(r"^(?:请)?(?:比较|对比|比一比)(?:一下)?")
_COMPARED_WITH = re.compile(r"\s+(?:with|to|against|mit|avec|à|aux?|con)\s+", re.IGNORECASE)
"""A request to compare two things, and the word between them."""
_CHOICE = re.compile(
    r"(?P<asked>[^:,]{3,80}:|(?:which|what|who|welche\w*|was|wer|quel\w*|qui|qué|cuál\w*|quién|qual\w*|chi)\b[^:,]{3,80},)"
    r"\s+(?P<things>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
"""A question that comes before the things to choose from: "What costs more: a lost card or a lost key?"."""
_OF = r"(?:of|between|von|vom|des|zwischen|du|de|del|dello|della|dei|degli|delle|di|d|de l|dell|of the|von der|von dem)"
_ARTICLE = r"(?:the|an?|der|die|das|dem|den|des|einer?s?|l|le|la|les|il|lo|gli|i|el|los|las|une?|una|uno)"
_HEAD = re.compile(rf"(.+?\s{_OF}\s+(?:{_ARTICLE}\s+)?)\S.*", re.IGNORECASE | re.DOTALL)
"""A part that begins with what is asked of several things: "the noise of the Brisa 300" and "the Brisa 900"."""
_GENITIVE = re.compile(r"(.*?\b(?:der|die|das|den|dem)\s+[A-ZÄÖÜ]\w+\s+(?:der|des)\s+)[A-ZÄÖÜ]\S*.*", re.DOTALL)
"""The same with a German genitive: "das Gewicht der Aroma 6"."""
_ASKED_OF = re.compile(
    r"((?i:how|which|what|wie|welche\w*|was|combien|quel\w*|quanto|quant[aei]|qué|cuánt\w+)\b.*?\s)"
    rf"(?i:{_ARTICLE}\s+)?[A-ZÄÖÜ][\w-]*(?:\s+[A-ZÄÖÜ\d]\S*)*",
    re.DOTALL,
)
"""A question whose last words are a name or a noun with a capital letter: "How loud are the Brisa 300"."""
_SAME = re.compile(
    r"(?:that|those|das|dem|den|die|der|celui|celle|ceux|celles|quello|quella|quell|quelli|quelle|el|la|los|las|lo)\s+"
    rf"(?={_OF}\s|der\s|des\s)",
    re.IGNORECASE,
)
"""A word for what was asked before: "with that of the Brisa 900", "avec celui de"."""
_LEADING = re.compile(rf"(?:{_OF}\s+)?(?:{_ARTICLE}\s+)*", re.IGNORECASE)
_THING = re.compile(r"\S+(?:\s+\S+){0,3}\s*")
_POSSESSIVE = re.compile(r"(.+?['’]s)(\s+\S.*)", re.DOTALL)
"""A thing with its owner before it: "the Brisa 300's noise"."""
_ASKS = (
    r"is|are|does|do|did|can|may|must|has|have|how|what|which|who|when|where|why|ist|sind|hat|darf|kann|wie|was|wer|wann"
    r"|wo|warum|welche\w*|est|sont|qui|quand|où|comment|combien|quel\w*|è|chi|quando|dove|come|quanto|es|son|quién"
    r"|cuándo|dónde|cómo|cuánto"
)
_QUESTION = re.compile(rf"\b(?:{_ASKS})\b", re.IGNORECASE)
_LINK = re.compile(rf"\b(?:{_ASKS}|of|in|on|at|for|with|von|im|am|für|mit)\b", re.IGNORECASE)
"""Words that make a part more than a thing alone."""
_TAIL = re.compile(r"[^的]+(的[^的]+)")
_PREDICATE = re.compile(r"(.{1,10}?)((?:分别|各自|各|都|哪个|哪种|哪一|谁|相比|相差|有什么|有何).*)", re.DOTALL)
"""A Chinese part that is the last thing and what is asked of all: "微风900哪个更吵"."""
_LONGEST_THING = 10
"""Maximum number of characters of a thing in a Chinese part: "微风300"."""
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


def split_question(text: str) -> list[str]:
    """Return the parts of a question about several things, or an empty list for a question about one.

    A question is split after its sentences and at its conjunctions, and a request to compare also at "with". Each part
    must have two words, or one in a script without spaces. A question with more than `MAX_PARTS` parts is not split.
    """
    if len(text) > MAX_PART:
        return []
    text = " ".join(text.split())  # the search for a conjunction takes the cube of the length of a gap
    parts: list[str] = []
    for sentence in filter(None, map(str.strip, _ENDS.split(text))):
        parts += _split_sentence(sentence)
    parts = [part for part in parts if _says_something(part)]
    return parts if 1 < len(parts) <= MAX_PARTS else []


def _split_sentence(sentence: str) -> list[str]:
    """Return the parts of one sentence, or the sentence alone."""
    request = _COMPARE.fullmatch(sentence)
    wanted = request[1] if request else sentence
    pieces = [piece.strip() for piece in _CONJUNCTION.split(wanted)]
    if request and len(pieces) == 1:
        pieces = [piece.strip() for piece in _COMPARED_WITH.split(wanted)]
    if not request and (choice := _CHOICE.fullmatch(sentence)):
        things = [piece.strip() for piece in _CONJUNCTION.split(choice["things"])]
        if len(things) > 1 and not any(map(_QUESTION.search, things)):
            return [f"{choice['asked']} {thing}" for thing in things]
    shared = _share_attribute(pieces)
    # Without a request to compare, "and" may join two words of one thing: "terms and conditions".
    return shared if all(map(_says_something, shared if request else pieces)) else [sentence]


def _share_attribute(pieces: list[str]) -> list[str]:
    """Return parts that each name what is asked, if only the first one does, or in Chinese only the last one.

    "The noise of the Brisa 300" and "the Brisa 900" become questions for the noise of both.
    """
    first = split_elisions(pieces[0])
    if owned := _POSSESSIVE.fullmatch(first):
        return [
            pieces[0],
            *(piece + owned[2] if re.search(r"['’]s[?.!]?$", piece) else piece for piece in pieces[1:]),
        ]
    if head := _GENITIVE.fullmatch(first) or _HEAD.fullmatch(first) or _ASKED_OF.fullmatch(first):
        return [pieces[0], *(head[1] + _without_article(piece) if _is_thing(piece) else piece for piece in pieces[1:])]
    return _share_chinese_attribute(pieces)


def _share_chinese_attribute(pieces: list[str]) -> list[str]:
    """Return parts that each name what is asked: "微风300" and "微风900的噪声" become questions for both noises."""
    bare = [_REQUEST.sub("", piece) for piece in pieces]
    asked = _PREDICATE.fullmatch(bare[-1])
    if asked and (tail := _TAIL.fullmatch(bare[0])) and "的" not in asked[1]:
        return [*bare[:-1], asked[1] + tail[1]]
    shared = _TAIL.fullmatch(bare[-1])
    attribute = shared[1] if shared else asked[2] if asked else ""
    if attribute and all(len(piece) <= _LONGEST_THING and "的" not in piece for piece in bare[:-1]):
        return [*(piece + attribute for piece in bare[:-1]), bare[-1]]
    return pieces


def _without_article(piece: str) -> str:
    """Return a thing without the words before it that repeat what is asked: "dem der Aroma 9" becomes "Aroma 9"."""
    return _LEADING.sub("", _SAME.sub("", split_elisions(piece), count=1), count=1)


def _is_thing(piece: str) -> bool:
    """Return whether a part only names a thing, with at most four words and perhaps an article."""
    bare = _without_article(piece)
    return not _LINK.search(bare) and _THING.fullmatch(bare) is not None


def _says_something(part: str) -> bool:
    return len(query_vector(part).indices) >= (1 if _IDEOGRAPH.search(part) else 2)


class RequiredCode(NamedTuple):
    """A code, clause or larger number of a question. ``ids`` are its tokens, of which a passage needs one.

    ``identifies``: two passages rarely have it by chance, so that a passage with it is relevant in any language.
    """

    ids: frozenset[int]
    identifies: bool


@lru_cache(maxsize=256)
def required_codes(text: str) -> tuple[RequiredCode, ...]:
    """Return the codes, clauses and larger numbers of a question.

    A passage without any of them is unlikely to answer the question.
    """
    text = text[:MAX_PART]
    folded = fold_text(text)
    codes = set(whole_codes(folded))  # "trip 4101" is not a code
    labels = set(_LABELLED.findall(folded))
    labels.update(number.lstrip("0") for name, number in _MODEL.findall(text) if not is_month(fold_text(name)))
    required: list[RequiredCode] = []
    for token in dict.fromkeys(number_tokens(text, folded)):
        kind, value = token[0], token[1:]
        if kind == "§":
            required.append(RequiredCode(frozenset((token_id(token), token_id(f"#{value}"))), "." in value))
        elif (kind == "=" and value in codes) or (kind == "#" and (value in labels or _is_telling(value))):
            identifies = kind == "=" or len(value) >= IDENTIFYING_DIGITS
            required.append(RequiredCode(frozenset((token_id(token),)), identifies))
    return tuple(required)


def _is_telling(number: str) -> bool:
    """Return whether a number is rare enough to be required. A year mostly belongs to a date, which may omit it."""
    if number.isdigit():
        return int(number) >= LEAST_NUMBER and not 1900 <= int(number) <= 2100
    return ":" not in number
