"""Repair of truncated PDFs: a new page tree over the complete pages.

A PDF's catalogue, page tree and cross-reference table are usually at its end. Without them PDFium finds no page,
although most objects exist. `salvage` keeps the bytes, unpacks object streams, and appends a catalogue, a tree of all
page objects and a trailer. PDFium then finds the objects by scanning the file.
"""

import re
import zlib
from collections.abc import Iterator
from itertools import zip_longest

TAIL_BYTES = 2_048
"""Bytes at the end of a PDF that contain its end mark; some programs write more data after the mark."""

MAX_PAGES = 5_000
MAX_STREAMS = 20_000
MAX_UNPACKED = 64 * 2**20
"""Maximum number of bytes of all object streams together."""

_OBJECT = re.compile(rb"(?<![0-9])(\d{1,9})\s+(\d{1,5})\s+obj\b")
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_OBJECT_STREAM = re.compile(rb"/Type\s*/ObjStm\b")
_STREAM = re.compile(rb"stream\r?\n")
_ENCRYPTED = re.compile(rb"/Encrypt\b")


def is_cut_off(data: bytes) -> bool:
    """Return whether a PDF lacks its end mark."""
    return b"%%EOF" not in data[-TAIL_BYTES:] and b"startxref" not in data[-TAIL_BYTES:]


def salvage(data: bytes) -> bytes | None:
    """Return the PDF with an appended tree of its complete pages, or None if it has none or is encrypted."""
    if not data[:1024].lstrip().startswith(b"%PDF") or _ENCRYPTED.search(data):
        return None
    highest = 0
    pages: dict[int, None] = {}
    packed: list[bytes] = []
    for number, body in _objects(data):
        highest = max(highest, number)
        if _OBJECT_STREAM.search(body[:1024]) and len(packed) < MAX_STREAMS:
            packed.append(body)
        elif _PAGE.search(body.partition(b"stream")[0]):
            pages[number] = None
    unpacked = bytearray()
    for number, body in _unpack(packed):
        highest = max(highest, number)
        unpacked += b"\n%d 0 obj\n%s\nendobj" % (number, body)
        if _PAGE.search(body):
            pages[number] = None
    if not pages:
        return None
    kids = b" ".join(b"%d 0 R" % number for number in list(pages)[:MAX_PAGES])
    tree, catalogue = highest + 1, highest + 2
    count = min(len(pages), MAX_PAGES)
    end = b"\n%d 0 obj\n<</Type/Pages/Count %d/Kids[%s]/MediaBox[0 0 595 842]>>\nendobj" % (tree, count, kids)
    end += b"\n%d 0 obj\n<</Type/Catalog/Pages %d 0 R>>\nendobj" % (catalogue, tree)
    end += b"\ntrailer\n<</Size %d/Root %d 0 R>>\nstartxref\n0\n%%%%EOF\n" % (catalogue + 1, catalogue)
    return _without_half_object(data) + bytes(unpacked) + end


def _objects(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each complete object."""
    heads = list(_OBJECT.finditer(data))
    for match, following in zip_longest(heads, heads[1:]):
        body = data[match.end() : following.start() if following else len(data)]
        if b"endobj" in body:
            yield int(match[1]), body


def _without_half_object(data: bytes) -> bytes:
    """Return the data up to the end of its last complete object, so that PDFium finds an appended one."""
    end = data.rfind(b"endobj")
    return data[: end + len(b"endobj")] if end >= 0 else data


def _unpack(streams: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the objects in object streams that can be inflated."""
    left = MAX_UNPACKED
    for body in streams:
        start = _STREAM.search(body)
        first = re.search(rb"/First\s+(\d{1,9})", body)
        count = re.search(rb"/N\s+(\d{1,6})", body)
        if not start or not first or not count or left <= 0:
            continue
        try:
            content = zlib.decompressobj().decompress(body[start.end() :], left)
        except zlib.error:
            continue
        left -= len(content)
        offset = int(first[1])
        numbers = [int(number) for number in re.findall(rb"\d{1,9}", content[:offset])[: 2 * int(count[1])]]
        places = list(zip(numbers[::2], numbers[1::2], strict=False))
        ends = [*(offset + place for _, place in places[1:]), len(content)]
        for (number, place), end in zip(places, ends, strict=False):  # a damaged stream may list no object
            yield number, content[offset + place : end]
