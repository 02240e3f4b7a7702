"""Reader of plain text in any encoding, and the decoding of bytes for all readers of text files."""

import re
from collections.abc import Iterator
from pathlib import Path

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.encodings import guess, has_lone_accents

# UTF-32 before UTF-16, because its mark begins with that of UTF-16.
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_ISO_2022_JP = re.compile(rb"\x1b\$[@B]")
_GOOD_TO_BAD = 2
"""Minimum number of valid UTF-8 characters beyond ASCII for each invalid byte; other encodings never have as many."""

_NO_CHANCE = 3
"""Characters beyond ASCII of a line that are valid UTF-8 by chance no more: two are, as in 联通 in GBK."""

SAMPLE_BYTES = 1 << 16
"""Bytes of a file that the detection of its encoding reads."""

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_BREAKS = re.compile(r"\r\n|[\r\v\x1c-\x1e\x85\u2028\u2029]")
"""Control characters that end a line: Word and PowerPoint write a soft line break as U+000B."""
_SPACES = re.compile(r"[\x07\x1f]")
"""Control characters between two fields."""
_CONTROL = re.compile(r"[\x00-\x06\x08\x0e-\x1b\x7f]")
_FOLD = re.compile(r"\n[ \t]")
_ESCAPED = re.compile(r"\\([,;\\nN])")
"""Continued lines and escaped characters of calendars and address books: RFC 5545, sections 3.1 and 3.3.11."""
MAX_ADDRESS = 2_000
"""Maximum number of characters of a link's address."""


_SUPERSCRIPTS = str.maketrans("0123456789+-()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾")


def to_superscript(text: str) -> str:
    """Return text that stands raised on the page, with superscript characters for digits.

    Without them, a price of 45 with the mark of footnote 1 reads 451.
    """
    return text.translate(_SUPERSCRIPTS) if any(character.isdecimal() for character in text) else text


def strike_out(text: str) -> str:
    """Return text that the page shows struck out, marked as in Markdown: it is no longer valid."""
    words = text.strip()
    return text.replace(words, f"~~{words}~~") if words else text


def read_text(path: Path, limits: ParseLimits) -> ParsedDocument:
    text = decode(path.read_bytes())
    return ParsedDocument(tuple(Block("prose", paragraph) for paragraph in paragraphs(text)), notes=notes_on(text))


def notes_on(text: str) -> tuple[str, ...]:
    """Return a note on characters that could not be decoded."""
    count = text.count("\ufffd")
    return (f"characters that could not be decoded: {count}",) if count else ()


def read_lines(path: Path, limits: ParseLimits) -> ParsedDocument:
    """Read source code, settings and logs: each line is a unit."""
    text = decode(path.read_bytes())
    if text.startswith(("BEGIN:VCALENDAR", "BEGIN:VCARD")):
        text = _ESCAPED.sub(lambda match: match[1] if match[1] in ",;\\" else " ", _FOLD.sub("", text))
    return ParsedDocument((Block("code", text.strip("\n").rstrip()),), notes=notes_on(text))


def with_address(text: str, address: str | None) -> str:
    """Append a link's address in brackets to its text, unless the text is the address or the link has no target."""
    address = " ".join((address or "").split())[:MAX_ADDRESS]
    if not address or address.startswith("#") or address.lower().startswith(("javascript:", "data:", "cid:", "about:")):
        return text
    bare = re.sub(r"^(?:mailto:|tel:|https?://)|/$", "", address, flags=re.IGNORECASE)
    if bare in text or address in text:
        return text
    words = text.rstrip()
    shown = address.removeprefix("mailto:") if address.lower().startswith("mailto:") else address
    return f"{words} ({shown}){text[len(words) :]}" if words else f"{text}{shown}"


def paragraphs(text: str) -> Iterator[str]:
    """Yield the pieces between blank lines, without the white space around them."""
    for piece in re.split(r"\n[ \t]*+(?:\n[ \t]*+)++", text):
        if stripped := piece.strip():
            yield stripped


def decode(data: bytes) -> str:
    r"""Decode bytes to text with `\n` line ends and no control characters.

    A byte order mark decides the encoding, else valid UTF-8, else detection. Raises `DocumentError` for binary data.
    """
    text = _SPACES.sub(" ", _BREAKS.sub("\n", _decode(data)).replace("\f", "\n\n"))
    # A few stray control characters are typing errors; many mean a binary file with the name of a text file.
    controls = len(_CONTROL.findall(text))
    if controls > len(text) // 100 + 4:
        raise DocumentError("DOCUMENT_BROKEN", "the file is not text, despite its name")
    return _CONTROL.sub("", text)


_BROWSERS_CODECS = {
    **dict.fromkeys(("iso-8859-1", "latin1", "latin-1"), "cp1252"),
    **dict.fromkeys(("gb2312", "gb_2312-80", "gbk", "x-gbk", "cp936"), "gb18030"),
    **dict.fromkeys(("ks_c_5601-1987", "euc-kr"), "cp949"),
    **dict.fromkeys(("shift_jis", "shift-jis", "x-sjis"), "cp932"),
}
"""Encodings that browsers and mail programs use for these declared ones, as authors expect."""


def decode_as(data: bytes, charset: str) -> str:
    """Decode bytes in the declared encoding if they are valid in it, else in a detected encoding."""
    name = charset.strip().strip("\"'").lower()
    try:
        return decode(data.decode(_BROWSERS_CODECS.get(name, name)).encode()) if name else decode(data)
    except (LookupError, UnicodeError, ValueError):
        return decode(data)


def _decode(data: bytes) -> str:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    if wide := _unmarked_utf16(data[:SAMPLE_BYTES]):
        return data.decode(wide, "replace")
    if _ISO_2022_JP.search(data[:SAMPLE_BYTES]):
        return data.decode("iso2022_jp", "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    # A truncated file, or two concatenated ones: lose a few bytes, not the whole text.
    bad = text.count("\ufffd")
    if len(_BEYOND_ASCII.findall(text)) - bad >= _GOOD_TO_BAD * bad or _has_utf8_lines(data, bad):
        return _decode_lines(data)
    return data.decode(guess(data[:SAMPLE_BYTES]), "replace")


def _has_utf8_lines(data: bytes, bad: int) -> bool:
    """Return whether whole lines of a file are UTF-8, although others are not (``bad`` bytes are invalid)."""
    characters = 0
    for line in data.split(b"\n"):
        try:
            count = len(_BEYOND_ASCII.findall(line.decode("utf-8")))
        except UnicodeDecodeError:
            continue
        characters += count if count >= _NO_CHANCE else 0
    return characters * 4 >= bad and characters > 0


def _decode_lines(data: bytes) -> str:
    """Decode a file with lines in UTF-8; detect one encoding for its other Latin lines, and one for the rest."""
    lines = data.split(b"\n")
    texts = [line.decode("utf-8", "replace") for line in lines]
    other = [
        at
        for at, text in enumerate(texts)
        if (bad := text.count("\ufffd")) and len(_BEYOND_ASCII.findall(text)) - bad < _GOOD_TO_BAD * bad
    ]
    if other == [len(lines) - 1] and texts[-1].count("\ufffd") == 1 and texts[-1].endswith("\ufffd"):
        return "\n".join(texts)  # truncated inside a character
    latin = [at for at in other if has_lone_accents(lines[at])]
    for group in (latin, [at for at in other if at not in set(latin)]):
        encoding = guess(b"\n".join(lines[at] for at in group)[:SAMPLE_BYTES])
        for at in group:
            texts[at] = lines[at].decode(encoding, "replace")
    return "\n".join(texts)


def _unmarked_utf16(sample: bytes) -> str | None:
    """Detect UTF-16 without a mark by the zero byte of ASCII characters; return None for text without any."""
    sample = sample[: len(sample) // 2 * 2]
    zeros = sample[::2].count(0), sample[1::2].count(0)
    if max(zeros) * 4 > len(sample) / 2 and min(zeros) * 8 < max(zeros):
        return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    return None
