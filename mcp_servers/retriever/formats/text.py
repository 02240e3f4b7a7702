"""Plain text in any encoding; also where every reader of text files gets its characters from."""

import re
from collections.abc import Iterator
from pathlib import Path

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError

# UTF-32 before UTF-16: its mark begins with the other's.
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_MULTIBYTE = ("gb18030", "big5", "shift_jis", "euc_jp", "euc_kr")
_COMMON = re.compile(
    "[的一是不了在人有我他这中大来上国个到说们为子和你地出也时年得就那要下以生会自去之过家学对可里后小心多天而能好都"
    "然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经面公同三已从两长知现這來國個說們為時會過對後發還沒"
    "開當無見經長現，。、\u3040-\u30ff이다는을를의에가은도고하지로한서인기사어리라시그해대수나습니있게자아]"
)
_HIGH_RUNS = re.compile(rb"[\x80-\xff]+")
_CYRILLIC_BYTES = re.compile(rb"[\xc0-\xff]")

SAMPLE_BYTES = 1 << 16
"""How much of a file the guess at its encoding looks at."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def read_text(path: Path, limits: ParseLimits) -> ParsedDocument:
    return ParsedDocument(tuple(Block("prose", paragraph) for paragraph in paragraphs(decode(path.read_bytes()))))


def paragraphs(text: str) -> Iterator[str]:
    """Pieces between blank lines, without the white space around them."""
    for piece in re.split(r"\n[ \t]*(?:\n[ \t]*)+", text):
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
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode(_guess(data[:SAMPLE_BYTES]), "replace")


def _guess(sample: bytes) -> str:
    """The likeliest legacy encoding of text that is not UTF-8.

    Accented letters of the West stand alone between ASCII ones; Cyrillic and CJK bytes come in runs. Among CJK
    encodings the right one is that which yields the most of the most common characters.
    """
    runs = _HIGH_RUNS.findall(sample)
    high = sum(map(len, runs))
    if high < 1.7 * len(runs):
        return "cp1252"
    shares: dict[str, float] = {}
    for encoding in _MULTIBYTE:
        text = sample.decode(encoding, "replace")
        wrong = text.count("\ufffd")
        # The sample may end inside a character; more than that is the wrong encoding.
        if wrong <= 1 + len(sample) // 2_000:
            shares[encoding] = len(_COMMON.findall(text)) / (len(text) or 1)
    best = max(shares, key=lambda encoding: shares[encoding], default="")
    if best and shares[best] > 0.04:
        return best
    if "gb18030" in shares:  # too short to tell by its characters, and by far the most frequent of these
        return "gb18030"
    return "cp1251" if len(_CYRILLIC_BYTES.findall(sample)) > 0.8 * high else "cp1252"
