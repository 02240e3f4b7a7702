"""Characters of symbol fonts as Unicode: Word's check boxes, ticks and arrows, and the Greek of the font Symbol.

The tables contain only characters with a meaning in text, no ornaments.
"""

SYMBOL_FONTS = frozenset(
    {"Wingdings", "Wingdings 2", "Wingdings 3", "Symbol", "Webdings", "Zapf Dingbats", "ZapfDingbats"}
)
"""Fonts whose characters differ from the Unicode characters of their codes."""

_WINGDINGS = {
    **{
        0x28: "☎",
        0x29: "✆",
        0x2A: "✉",
        0x36: "⌛",
        0x3A: "💻",
        0x3F: "✍",
        0x43: "👍",
        0x44: "👎",
        0x4A: "☺",
        0x4B: "😐",
    },
    **{0x4C: "☹", 0x4D: "💣", 0x4E: "☠", 0x54: "❄", 0x6C: "●", 0x6D: "❍", 0x6E: "■", 0x6F: "☐", 0x70: "☐", 0x71: "❑"},
    **{0x72: "❒", 0x73: "⬧", 0x74: "◆", 0x75: "◆", 0x76: "❖", 0x77: "◆", 0x78: "☒", 0x80: "⓪", 0x8B: "⓿"},
    **{0x81 + at: chr(0x2460 + at) for at in range(10)},
    **{0x8C + at: chr(0x2776 + at) for at in range(10)},
    **{0x9F: "•", 0xA0: "▪", 0xA1: "○", 0xA2: "○", 0xA3: "○", 0xA4: "◉", 0xA5: "◎", 0xA7: "▪", 0xA8: "☐", 0xAB: "★"},
    **{0xD5: "⌫", 0xD6: "⌦", 0xD8: "➢", 0xDC: "➲", 0xDF: "←", 0xE0: "→", 0xE1: "↑", 0xE2: "↓", 0xE8: "➔", 0xE7: "←"},
    **{0xE9: "↑", 0xEA: "↓", 0xEF: "⇦", 0xF0: "⇨", 0xF1: "⇧", 0xF2: "⇩", 0xF3: "⇔", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒"},
    **{0xFE: "☑", 0xA6: "○", 0x4F: "⚐", 0x52: "☼", 0x21: "✏", 0x22: "✂", 0x26: "📖", 0x2C: "📪", 0x30: "📁", 0xF4: "⇕"},
}
_WINGDINGS_2 = {
    **{0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: "☑", 0x53: "☒", 0x54: "☒", 0x55: "⮽", 0x56: "🛇", 0x57: "⦸", 0xA2: "■"},
    **{0xA3: "☐", 0x97: "●", 0x98: "●", 0x99: "○", 0x9A: "○", 0x9F: "◉", 0x27: "📰", 0x3D: "✎", 0xAE: "◆"},
    **{0x6A + at: chr(0x2460 + at) for at in range(10)},
    **{0x75 + at: chr(0x2776 + at) for at in range(10)},
}
_WINGDINGS_3 = {
    **{0x66: "←", 0x67: "→", 0x68: "↑", 0x69: "↓", 0x6A: "↖", 0x6B: "↗", 0x6C: "↙", 0x6D: "↘", 0x6E: "↔", 0x6F: "↕"},
    **{0x70: "▲", 0x71: "▼", 0x72: "△", 0x73: "▽", 0x74: "◀", 0x75: "▶", 0x7D: "▶", 0x84: "◀", 0xA7: "▪"},
}
_WEBDINGS = {
    **{0x61: "✓", 0x72: "✗", 0x63: "☐", 0x67: "■", 0x6E: "●", 0x3C: "⏏", 0x33: "◀", 0x34: "▶", 0x35: "▲", 0x36: "▼"},
    **{0x69: "ℹ", 0x78: "⊗", 0x9D: "👁", 0xC5: "📞", 0x73: "❓", 0x56: "🏨", 0x9A: "🏠", 0xA5: "🔍"},
}
_ZAPF = {code: chr(0x2700 + code - 0x20) for code in range(0x21, 0x7F)} | {0x6E: "■", 0x6F: "❏", 0x6C: "●", 0x71: "❑"}
_SYMBOL_ROWS = (
    (0x41, "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"),
    (0xA1, "ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…|—↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑"),
)
_SYMBOL = {start + at: char for start, row in _SYMBOL_ROWS for at, char in enumerate(row)} | {
    **{0x22: "∀", 0x24: "∃", 0x27: "∋", 0x2A: "∗", 0x2D: "−", 0x40: "≅", 0xF1: "〉", 0xF2: "∫"},
}
_TABLES = {
    "Wingdings": _WINGDINGS,
    "Wingdings 2": _WINGDINGS_2,
    "Wingdings 3": _WINGDINGS_3,
    "Webdings": _WEBDINGS,
    "Zapf Dingbats": _ZAPF,
    "ZapfDingbats": _ZAPF,
    "Symbol": _SYMBOL,
}


def symbol_text(font: str, code: int) -> str:
    """Return the Unicode text of a character of a font, or "" if there is none.

    Word writes these characters at U+F000 to U+F0FF; in other fonts, the code is the Unicode character.
    """
    private = 0xF000 <= code <= 0xF0FF
    if font not in _TABLES:
        # symbols of unknown fonts have private codes without a general meaning
        return "" if 0xE000 <= code <= 0xF8FF or code > 0x10FFFF else chr(code)
    low = code - 0xF000 if private else code
    if low > 0xFF:
        return chr(code)
    text = _TABLES[font].get(low)
    if text is None and font == "Symbol" and 0x20 <= low < 0x7F:
        return chr(low)
    return text or (" " if low in (0x20, 0xA0) else "")
