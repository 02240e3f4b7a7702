"""Plain text in any encoding; also where every reader of text files gets its characters from."""

import re
from collections.abc import Iterator
from pathlib import Path

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.encodings import guess

# UTF-32 before UTF-16: its mark begins with the other's.
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_ISO_2022_JP = re.compile(rb"\x1b\$[@B]")
_GOOD_TO_BAD = 2
"""Characters beyond ASCII that are valid UTF-8, for each byte that is not: no other encoding has as many by chance."""

SAMPLE_BYTES = 1 << 16
"""How much of a file the guess at its encoding looks at."""

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def read_text(path: Path, limits: ParseLimits) -> ParsedDocument:
    return ParsedDocument(tuple(Block("prose", paragraph) for paragraph in paragraphs(decode(path.read_bytes()))))


def paragraphs(text: str) -> Iterator[str]:
    """Pieces between blank lines, without the white space around them."""
    for piece in re.split(r"\n[ \t]*+(?:\n[ \t]*+)++", text):
        if stripped := piece.strip():
            yield stripped


def decode(data: bytes) -> str:
    """Bytes to text with `\\n` line ends and no control characters.

    A byte order mark decides, else valid UTF-8, else a guess from the bytes. Raises `DocumentError` for binary data.
    """
    text = _decode(data).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    # A few stray control characters are typing accidents; many are a binary file with a text file's name.
    controls = len(_CONTROL.findall(text))
    if controls > len(text) // 100 + 4:
        raise DocumentError("DOCUMENT_BROKEN", "the file is not text, whatever its name says")
    return _CONTROL.sub("", text)


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
    # A file that was cut, or two that were put together: a few bytes are lost, not all of the text.
    bad = text.count("\ufffd")
    if len(_BEYOND_ASCII.findall(text)) - bad >= _GOOD_TO_BAD * bad:
        return text
    return data.decode(guess(data[:SAMPLE_BYTES]), "replace")


def _unmarked_utf16(sample: bytes) -> str | None:
    """UTF-16 without its mark, seen by the zero in each character of ASCII; None for text that has none of those."""
    sample = sample[: len(sample) // 2 * 2]
    zeros = sample[::2].count(0), sample[1::2].count(0)
    if max(zeros) * 4 > len(sample) / 2 and min(zeros) * 8 < max(zeros):
        return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    return None
