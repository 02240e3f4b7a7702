"""Formulas of Office files (OMML) and OpenDocument (MathML) as one line of text: `(a+b)/2`, `10⁻⁶`, `√(x)`.

Without their signs, the parts of a fraction or a power would read as one number. The parts are found by their names:
ISO/IEC 29500-1, part 22.1 (OMML), and https://www.w3.org/TR/MathML3/.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp_servers.retriever.formats.text import to_superscript

MAX_DEPTH = 64
"""Levels of parts in each other from which a formula is read as the text of its parts."""
_UNREAD = frozenset({"annotation", "annotation-xml", "delText", "instrText"})
_INVISIBLE = re.compile("[\u2061-\u2064]")
_RAISED = re.compile("[0-9+()-]*[0-9][0-9+()-]*")
_ONE_TERM = re.compile(r"[^\W\d_]?|\d[\d.,]*|\([^()]*\)")


def formula_text(element: Any, depth: int = 0) -> str:
    """Return the text of a formula or a part of it."""
    name = _name(element)
    if not name or name in _UNREAD or name.endswith("Pr"):
        return ""
    if len(element) == 0:
        return _INVISIBLE.sub("", " ".join((element.text or "").split()))
    parts = [] if depth >= MAX_DEPTH else [child for child in element if (part := _name(child)) and part[-2:] != "Pr"]
    if not parts:
        return "".join(element.itertext()).strip()
    texts = [formula_text(part, depth + 1) for part in parts]
    if name in _BY_NAME:
        by_name = {_name(part): text for part, text in zip(parts, texts, strict=True)}
        return _BY_NAME[name](element, by_name, texts)
    if name in _BY_PLACE and len(texts) >= _BY_PLACE[name][0]:
        return _BY_PLACE[name][1](texts)
    return "".join(texts)


def _name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2] if isinstance(element.tag, str) else ""


def _term(text: str) -> str:
    return text if _ONE_TERM.fullmatch(text) else f"({text})"


def _fraction(above: str, below: str) -> str:
    return f"{_term(above)}/{_term(below)}"


def _scripts(base: str, below: str, above: str) -> str:
    """Return a term with a lower and an upper index, each of which may be empty."""
    above = above.replace("\u2212", "-")
    upper = to_superscript(above) if _RAISED.fullmatch(above) else f"^{_term(above)}" if above else ""
    return f"{base}{f'_{_term(below)}' if below else ''}{upper}"


def _value(element: Any, name: str, default: str) -> str:
    """Return the character of a property of an OMML element: a bracket, a separator or an operator."""
    properties = next((child for child in element if _name(child).endswith("Pr")), None)
    found = None if properties is None else next((child for child in properties if _name(child) == name), None)
    values = [] if found is None else list(found.values())
    return str(values[0])[:1] if values else default


_ByName = Callable[[Any, Mapping[str, str], Sequence[str]], str]


def _join_delimited(element: Any, parts: Mapping[str, str], texts: Sequence[str]) -> str:
    between = _value(element, "sepChr", ",")
    return f"{_value(element, 'begChr', '(')}{between.join(texts)}{_value(element, 'endChr', ')')}"


def _operator(element: Any, parts: Mapping[str, str], texts: Sequence[str]) -> str:
    sign = _scripts(_value(element, "chr", "∫"), parts.get("sub", ""), parts.get("sup", ""))
    return f"{sign} {parts.get('e', '')}"


def _root(element: Any, parts: Mapping[str, str], texts: Sequence[str]) -> str:
    return f"{to_superscript(parts.get('deg', ''))}√{_in_brackets(parts.get('e', ''))}"


def _in_brackets(text: str) -> str:
    return f"({text})"


_BY_NAME: Mapping[str, _ByName] = {
    "f": lambda element, parts, texts: _fraction(parts.get("num", ""), parts.get("den", "")),
    **dict.fromkeys(
        ("sSup", "sSub", "sSubSup", "sPre"),
        lambda element, parts, texts: _scripts(parts.get("e", ""), parts.get("sub", ""), parts.get("sup", "")),
    ),
    "limLow": lambda element, parts, texts: _scripts(parts.get("e", ""), parts.get("lim", ""), ""),
    "limUpp": lambda element, parts, texts: _scripts(parts.get("e", ""), "", parts.get("lim", "")),
    "func": lambda element, parts, texts: f"{parts.get('fName', '')} {parts.get('e', '')}",
    "rad": _root,
    "d": _join_delimited,
    "nary": _operator,
    "m": lambda element, parts, texts: f"({'; '.join(texts)})",
    "mr": lambda element, parts, texts: ", ".join(texts),
    "eqArr": lambda element, parts, texts: "; ".join(texts),
}
"""Elements of OMML, whose parts have names."""

_BY_PLACE: Mapping[str, tuple[int, Callable[[Sequence[str]], str]]] = {
    "mfrac": (2, lambda texts: _fraction(texts[0], texts[1])),
    **dict.fromkeys(("msup", "mover"), (2, lambda texts: _scripts(texts[0], "", texts[1]))),
    **dict.fromkeys(("msub", "munder"), (2, lambda texts: _scripts(texts[0], texts[1], ""))),
    **dict.fromkeys(("msubsup", "munderover"), (3, lambda texts: _scripts(texts[0], texts[1], texts[2]))),
    "msqrt": (1, lambda texts: f"√{_in_brackets(''.join(texts))}"),
    "mroot": (2, lambda texts: f"{to_superscript(texts[1])}√{_in_brackets(texts[0])}"),
    "mfenced": (1, lambda texts: _in_brackets(", ".join(texts))),
    "mtable": (1, lambda texts: _in_brackets("; ".join(texts))),
    "mtr": (1, ", ".join),
}
"""Elements of MathML, whose parts have an order: the smallest number of parts, and the function of their texts."""
