"""Office files are zip packages of XML: what is checked before a library unpacks one."""

import re
import zipfile
from pathlib import Path

from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.dates import latest_date

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PROLOGUE_BYTES = 4096
_MAX_MEMBERS = 20_000
_CONTENT_TYPES = "[Content_Types].xml"
_NO_PACKAGE = "the file is not an Office document, or it is damaged"
_PROPERTIES = "docProps/core.xml"
_DATES = re.compile(r"<dcterms:(?:created|modified)\b[^<>]{0,200}>([^<]{0,40})<")


def check_package(path: Path, limits: ParseLimits) -> None:
    """Raises `DocumentError` for an encrypted file, one that is no package, and one that unpacks to too much or
    declares XML entities (Office never does; bombs do)."""
    with path.open("rb") as file:
        if file.read(len(_OLE)) == _OLE:
            message = "the file is protected by a password, or of an Office version before 2007"
            raise DocumentError("DOCUMENT_ENCRYPTED", message)
    try:
        with zipfile.ZipFile(path) as package:
            members = package.infolist()
            # A reader never gets more of a member than the size it declares, so the sum of those is a bound.
            if len(members) > _MAX_MEMBERS or sum(each.file_size for each in members) > limits.max_unpacked_bytes:
                raise DocumentError("DOCUMENT_TOO_LARGE", "the file unpacks to more than can be read")
            for each in members:
                if each.filename.endswith((".xml", ".rels")):
                    with package.open(each) as member:
                        _check_prologue(member.read(_PROLOGUE_BYTES))
            if _CONTENT_TYPES not in package.namelist():
                raise DocumentError("DOCUMENT_BROKEN", _NO_PACKAGE)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as exc:
        raise DocumentError("DOCUMENT_BROKEN", _NO_PACKAGE) from exc


def _check_prologue(start: bytes) -> None:
    # Without its zero bytes, UTF-16 shows the same declaration.
    if b"<!DOCTYPE" in start.replace(b"\0", b"").upper():
        raise DocumentError("DOCUMENT_BROKEN", "the file declares XML entities, which no Office program writes")


def package_date(path: Path) -> str | None:
    """Return the later of the dates that a package was made and changed, as its properties have them.

    `path` was checked by `check_package`.
    """
    with zipfile.ZipFile(path) as package:
        if _PROPERTIES not in package.namelist():
            return None
        with package.open(_PROPERTIES) as member:
            return latest_date(*_DATES.findall(member.read(_PROLOGUE_BYTES).decode(errors="ignore")))
