"""Checks the size of a zip's list of files before a reader loads all of it into memory.

Owns the parsing of the end of the file, by the same rules as `zipfile`, which trusts the size stated there; and the
errors by which `zipfile` reports a damaged file. Blocks.
"""

import lzma
import os
import zipfile
import zlib
from pathlib import Path

UNREADABLE = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""Errors of `zipfile` for a file that is no zip, is damaged, or uses what Python cannot read."""

MAX_DIRECTORY_BYTES = 4 << 20
"""Maximum size of the list: tens of thousands of files."""

_END, _LOCATOR = b"PK\x05\x06", b"PK\x06\x07"
_END_BYTES, _LOCATOR_BYTES, _COMMENT_BYTES = 22, 20, 1 << 16


def check_directory(path: Path) -> None:
    """Refuse a zip whose list of files is too large to be read.

    Raises:
        ValueError: The list is too large, or there is none.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _COMMENT_BYTES - _END_BYTES - _LOCATOR_BYTES))
        tail = file.read()
    last = tail[-_END_BYTES:]
    if last[:4] == _END and last[-2:] == b"\0\0":
        at = len(tail) - len(last)
    else:
        at = tail.rfind(_END)
    found = tail[at : at + _END_BYTES]
    if at < 0 or len(found) < _END_BYTES:
        raise ValueError("it has no end of a zip")
    large = tail[max(0, at - _LOCATOR_BYTES) :].startswith(_LOCATOR)
    if large or int.from_bytes(found[12:16], "little") > MAX_DIRECTORY_BYTES:
        raise ValueError("its list of files is too large")
