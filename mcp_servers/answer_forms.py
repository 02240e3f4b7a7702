"""The form of answer that a question asks for, and whether a text contains such an answer.

"What does a parrot cost?" asks for an amount of money, so a text about parrots without an amount cannot answer it. The
module knows the forms that a text shows on its surface: numbers, and numbers of a unit. A question for a person, a
place or a reason has none of them. English, German and Chinese are read. Pure.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from mcp_servers.folding import fold

_NUMBER = (
    r"(?:\d+|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million"
    r"|half|quarter|third|dozen|none|no one|no|once|twice|both|ein(?:e[rnms]?|s)?|zwei|drei|vier|fünf|sechs|sieben|acht"
    r"|neun|elf|zwölf|viertel|drittel"
    r"|\w*(?:zehn|zwanzig|dreissig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig|hundert|tausend)"
    r"|kein(?:e[rnms]?)?)\b|[〇一二两三四五六七八九十百千万半])"
)
_MONTH = (
    r"january|february|march|april|may|june|july|august|september|october|november|december|januar|februar|märz|mai"
    r"|juni|juli|oktober|dezember"
)
_TIME = (
    r"\b(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|quarters?|nights?|mornings?|evenings?|noon|midnight"
    r"|sekunden?|minuten?|stunden?|tage?n?|wochen?|monate?n?|jahre?[ns]?|nacht|uhr|\w+days?|\w+tags?|spring|summer"
    r"|autumn|winter|christmas|weekends?|daily|weekly|monthly|yearly|always|never|once|until|after|before|immediately"
    r"|overnight|quartal\w*|o.clock|midday|q[1-4]|(?:mon|tue|tues|wed|thu|thur|thurs|fri|sat|sun)(?=[ –-])"
    r"|\d{1,2} ?(?:[ap]\.?m|h)|\d{1,2}\.\d{1,2}(?=\.(?!\d))"
    rf"|as soon as|sobald|bis|nach|vor|sofort|stündlich|täglich|wöchentlich|monatlich|jährlich|{_MONTH})\b"
    r"|\d:\d\d|\b(?:19|20)\d\d\b|\b\d{1,2}(?:st|nd|rd|th)\b|[秒分天日周月年岁季晚号点]|小时|钟头|星期|当场|立即|立刻|随时"
)
_MONEY = (
    r"[€$£¥₩₹₽₺元块镑円]|\b(?:crowns?|kronen?|kr|euros?|eur|usd|gbp|chf|sek|nok|dkk|pln|czk|huf|cad|aud|jpy|cny|inr|rub"
    r"|dollars?|pounds?|pence|rupees?|roubles?|yen"
    r"|(?<!per )cents?|yuan|rmb|francs?|franken)\b"
    r"|克朗|美分|\b\d+[.,]\d\d\b|\b(?:free|no charge|without (?:a )?(?:charge|ticket)|kostenlos|frei|umsonst|gratis)\b"
    r"|免费|不收"
)
_LENGTH = (
    r"\b\d[\d.,]* ?(?:m|cm|mm|km|ft|yd|mi|nmi?)\b|(?:met(?:re|er)|kilomet|centimet|millimet|zentimet)\w*"
    r"|\b(?:feet|foot|miles?|yards?|inch(?:es)?|fathoms?|zoll|meilen?)\b|\d ?[\"″'′]|米|公里|厘米"
)
_COST = r"costs?|prices?|fees?|fares?|charged?|charges|expensive|pay|pays|paid|surcharge|fine|rent|bills?"
_KOSTEN = r"kost\w*|zahl\w*|\w*preise?|\w*gebühr\w*|teuer|miete|betrag|beträge|rechnung"
_MUCH = (
    rf"much(?= (?:is|are|was|were|do|does|did|may|can|could|must|should|shall|will|would|has|have|of|for|to|more|less"
    rf"|money|{_COST})\b)"
)
"""The question for an amount of money; "how much delay" is another one."""
_AMOUNT = rf"{_COST}|earns?|salary|salaries|wages?"
_BETRAG = rf"{_KOSTEN}|verdien\w*|gehalt|gehälter|löhne?"
"""Words that ask for an amount of money. Not every amount stands for the words of income: a price is no salary."""


class AnswerForm(NamedTuple):
    """A kind of answer.

    ``asked`` matches questions for it, ``words`` the words of such a question that name the form, and ``held`` texts
    with such an answer. All of them match folded text.
    """

    name: str
    asked: re.Pattern[str]
    words: re.Pattern[str]
    held: re.Pattern[str]


_CELL = r"|\|\s*\d[\d ,.]*(?:\||$)"
"""A number alone in a cell, whose unit may stand in the header or above the table."""


def _form(name: str, asked: str, words: str, held: str) -> AnswerForm:
    return AnswerForm(name, re.compile(asked), re.compile(words), re.compile(held + _CELL, re.MULTILINE))


FORMS = (
    _form(
        "telephone",
        r"\b(?:tele)?phone numbers?\b|\b(?:(?:tele)?phone|hotline|extension) (?:of|for)\b"
        r"|\b(?:which|what) number\b.*\bcall\b"
        r"|\bwhich extension\b|(?:telefon|ruf)nummer|(?:kurz|durch)wahl|电话|手机号|分机|热线.*多少",
        r"(?:tele)?phones?|numbers?|extensions?|telefonnummer|rufnummer|\w+wahl|电话|手机|号码|电话号码|手机号",
        r"\d(?:[ ()/.-]{0,2}\d){2,}|\b(?:ext|extension|durchwahl|nebenstelle|dw)\b[ .:-]*\d|分机[ :：]?\d",
    ),
    _form(
        "share",
        r"\b(?:discount|percentage|per ?cent)\b|rabatt|ermäßigung|prozent|折扣|百分之|比例|打几折",
        r"discounts?|percentage|per|cents?|percent|rabatt|ermäßigung|prozent|折扣|比例",
        r"[%折成€$£]|per ?cent\b|prozent\b|百分之|分之|免费|\b(?:half|thirds?|quarters?|hälfte|drittel|viertel|free"
        r"|frei|eur|euros?|dollars?|pounds?|crowns?|kronen?)\b",
    ),
    _form(
        "temperature",
        r"\btemperatures?\b|\bhow (?:warm|hot|cold)\b|temperatur|wie (?:warm|kalt|heiss)|温度|多少度|几度",
        r"temperatures?|degrees?|temperatur|grad|温度",
        r"°|\b(?:degrees?|grad|celsius|fahrenheit|kelvin)\b|\b\d+ ?[cfk]\b|度",
    ),
    _form(
        "weight",
        r"\bhow heavy\b|\bhow much\b.*\bweighs?\b|\bweight of\b|wie schwer|gewicht|wie viel wieg|多重|重量",
        r"heavy|weighs?|weight|schwer|wiegt|wiegen|gewicht|重量",
        r"\b\d[\d.,]* ?(?:kg|g|mg|t|lbs?|oz)\b|kilo|\b(?:tons?|tonnes?|grams?|gramm|tonnen|pounds?|ounces?|pfund)\b"
        r"|公斤|千克|吨|克",
    ),
    _form(
        "loudness",
        r"\bhow (?:loud|noisy|quiet)\b|\b(?:noise|loudness)\b|wie (?:laut|leise)|lärm|lautstärke|geräusch"
        r"|噪声|噪音|分贝",
        r"loud|noisy|quiet|noise|loudness|laut|leise|lärm|lautstärke|geräusch|噪声|噪音|分贝",
        r"\bdb\b|decibel|dezibel|分贝",
    ),
    _form(
        "length",
        r"\bhow (?:deep|tall|wide|thick)\b|\b(?:depth|height|width|distance)\b"
        r"|wie (?:tief|breit|dick)\b|tiefe|breite|abstand|多深|多宽|多远|高度|宽度|距离",
        r"deep|tall|wide|thick|depth|height|width|distance|tief\w*|breit\w*|abstand|高度|宽度|距离",
        _LENGTH,
    ),
    # Fees, taxes and pressures are high, too, and pumps and downloads fast.
    _form(
        "size",
        r"\bhow (?:high|fast)\b|wie (?:hoch|schnell)\b|höhe\b|多高|多快",
        r"high|fast|hoch|schnell|höhe",
        rf"{_NUMBER}|{_TIME}|{_LENGTH}|{_MONEY}",
    ),
    _form(
        "time",
        r"\bwhen (?:is|are|was|were|do|does|did|will|can|must|may|should|has|have)\b|\buntil when\b|\bwhat time\b"
        r"|\b(?:what|which) (?:days?|date|month|year)\b|\bwann\b|welche[rnms]? (?:tag|monat|jahr|zeit|uhrzeit)"
        r"|什么时候|何时|哪天|几号|几点|几月|哪年",
        r"times?|days?|dates?|months?|years?|tag|monat|jahr|zeit|uhrzeit|时间|日期",
        _TIME,
    ),
    _form(
        "frequency",
        r"\bhow often\b|wie oft\b|多久.{0,6}[一几]次|多久.{0,2}换",
        r"often|oft",
        r"\b(?:every|each|once|twice|times|per|jede\w*|alle|mal|pro|intervals?|intervall\w*|\w+ly|\w+lich)\b|[每次]|一[年月周天]",
    ),
    _form(
        "duration",
        r"\bhow (?:long|far|soon|quickly)\b|\blength\b|\bhow many (?:second|minute|hour|day|week|month|year)s?\b"
        r"|wie (?:lange?|weit)\b|wie ?viele (?:sekunden|minuten|stunden|tage|wochen|monate|jahre)\b"
        r"|多久|多长时间|[几多少]个?(?:天|小时|分钟|年|月|星期|周|日)",
        r"long|length|far|soon|quickly|(?:second|minute|hour|day|week|month|year)s?|lange?|weit|sekunden"
        r"|minuten|stunden|tage|wochen|monate|jahre|天|小时|分钟|时间",
        rf"{_TIME}|{_LENGTH}",
    ),
    _form(
        "money",
        rf"\bhow (?:{_MUCH}|expensive)\b[^,;?]*\b(?:{_AMOUNT})\b|\b(?:what|which)\b[^,;?]*\b(?:{_AMOUNT})\b"
        r"|\bhow expensive\b"
        r"|\bhow much (?:do|can|will|may|does|could) \w+ (?:get|receive|claim|spend)\b"
        rf"|\bprices?\b(?! list)|\bcosts? of\b|\b(?:was|wie ?viel|wie teuer|welche[rsnm]?)\b[^,;?]*\b(?:{_BETRAG})"
        r"|\bpreis\b|多少(?:钱|元|克朗|块)|价格|单价|租金|月租|怎么收费|罚多少|费用是",
        rf"{_COST}|{_KOSTEN}|much|钱|价格|单价|租金|月租|费用|收费",
        _MONEY,
    ),
    _form("number", r"\bhow (?:many|much)\b|\bwie ?viele?n?\b|[几多]少|几[个位名间台人张次级]", r"(?!)", _NUMBER),
)
"""The known forms; the first one whose pattern matches is asked for."""


@lru_cache(maxsize=1024)
def asked_form(question: str) -> AnswerForm | None:
    """Return the form that a question asks for, or None."""
    text = fold(question).text
    return next((form for form in FORMS if form.asked.search(text)), None)


def has_form(text: str, form: AnswerForm | None) -> bool:
    """Return whether a text contains an answer of a form. Every text does if no form is asked for."""
    return form is None or _has_form(text, form)


@lru_cache(maxsize=8192)
def _has_form(text: str, form: AnswerForm) -> bool:
    return form.held.search(fold(text).text) is not None
