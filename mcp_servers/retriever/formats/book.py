"""EPUB to blocks: the chapters of a book in reading order, below its title."""

import posixpath
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lxml import etree

from mcp_servers.retriever.document import Block, Json, ParsedDocument, ParseLimits, heading
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.dates import latest_date
from mcp_servers.retriever.formats.html import decode_html, html_parts
from mcp_servers.retriever.formats.package import DAMAGED_MEMBER, open_zip, parse_xml

_NO_BOOK = "the file is not an EPUB book, or it is damaged"
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_FONT_ALGORITHMS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Algorithms that obfuscate only fonts, not text."""
_PAGES = ("application/xhtml+xml", "text/html", "image/svg+xml", "application/x-dtbook+xml", "text/x-oeb1-document")
_END_BYTES = 1_000
"""Bytes at the end of a chapter that contain the end of its page, also in UTF-16."""
MAX_CHAPTERS = 10_000


def read_epub(path: Path, limits: ParseLimits) -> ParsedDocument:
    with path.open("rb") as file, open_zip(file, limits, _NO_BOOK) as archive:
        try:
            return _read_book(archive)
        except (KeyError, etree.XMLSyntaxError, *DAMAGED_MEMBER) as exc:
            raise DocumentError("DOCUMENT_BROKEN", _NO_BOOK) from exc


def _read_book(archive: zipfile.ZipFile) -> ParsedDocument:
    root = parse_xml(archive.read(_CONTAINER))
    place = next((rootfile.get("full-path", "") for rootfile in root.iter("{*}rootfile")), "")
    inside = _inside("", place)
    if inside is None:
        raise DocumentError("DOCUMENT_BROKEN", _NO_BOOK)
    package = parse_xml(archive.read(inside))
    folder = posixpath.dirname(inside)
    encrypted = _encrypted_members(archive)
    manifest = {item.get("id", ""): item for item in package.iter("{*}item")}
    notes: list[str] = []
    labels = _labels(archive, manifest, folder)
    blocks: list[Block] = []
    for reference in list(package.iter("{*}itemref"))[:MAX_CHAPTERS]:
        item = manifest.get(reference.get("idref", ""))
        href = "" if item is None else item.get("href", "")
        name = None if item is None else _inside(folder, href)
        if name is None:
            notes.append(f"a chapter outside of the book was not read: {href[:80]!r}")
        elif name not in archive.NameToInfo:
            notes.append(f"a chapter is missing in the book: {name[:80]!r}")
        elif name in encrypted:
            raise DocumentError("DOCUMENT_ENCRYPTED", "the book is protected against copying")
        elif item is not None and item.get("media-type", _PAGES[0]) not in _PAGES:
            notes.append(f"a chapter of the kind {item.get('media-type', '')[:60]!r} was not read")
        else:
            page = _read_chapter(archive, name)
            notes += page.notes
            if page.blocks and name in labels and not any(block.kind == "heading" for block in page.blocks):
                blocks.append(heading(labels[name], 2))
            blocks += [replace(block, level=min(block.level + 1, 6) if block.level else 0) for block in page.blocks]
    pictures = sum(item.get("media-type", "").startswith("image/") for item in manifest.values())
    if pictures:
        notes.append(f"text in pictures was not read: {pictures} pictures")
    title = _first(package, "title")
    about = [heading(title, 1)] if title else []
    if creators := [words for creator in package.iter("{*}creator") if (words := _words(creator))]:
        about.append(Block("prose", f"By {', '.join(creators)}"))
    dates = [_words(element) for element in package.iter("{*}date")]
    dates += [_words(element) for element in package.iter("{*}meta") if element.get("property") == "dcterms:modified"]
    if not blocks:
        about = []  # a title without text is not a book
    return ParsedDocument((*about, *blocks), notes=tuple(dict.fromkeys(notes)), date=latest_date(*dates))


def _read_chapter(archive: zipfile.ZipFile, name: str) -> ParsedDocument:
    try:
        data = archive.read(name)
    except DAMAGED_MEMBER:
        return ParsedDocument((), notes=(f"a chapter is damaged and was not read: {name[:80]!r}",))
    page = html_parts(decode_html(data), is_chapter=True)
    if b"</html" in data[-_END_BYTES:].replace(b"\0", b"").lower() or not name.endswith(("html", "htm")):
        return page
    return replace(page, notes=(*page.notes, f"incomplete: the end of a chapter is missing: {name[:80]!r}"))


def _inside(folder: str, href: str) -> str | None:
    """Return the member of the archive at a relative address, or None for an address outside of the book."""
    parts = urlsplit(href)
    if parts.scheme or parts.netloc or not parts.path:
        return None
    name = posixpath.normpath(posixpath.join(folder, unquote(parts.path)))
    return None if name.startswith(("../", "/")) or name == ".." else name


def _encrypted_members(archive: zipfile.ZipFile) -> set[str]:
    if _ENCRYPTION not in archive.NameToInfo:
        return set()
    names = set()
    for data in parse_xml(archive.read(_ENCRYPTION)).iter("{*}EncryptedData"):
        method = next((element.get("Algorithm", "") for element in data.iter("{*}EncryptionMethod")), "")
        if method not in _FONT_ALGORITHMS:
            names |= {unquote(reference.get("URI", "")) for reference in data.iter("{*}CipherReference")}
    return names


def _labels(archive: zipfile.ZipFile, manifest: Json, folder: str) -> dict[str, str]:
    """Return the titles of chapters in the table of contents, by member."""
    labels: dict[str, str] = {}
    for item in manifest.values():
        # EPUB 3 marks its table of contents with ``nav``; EPUB 2 has an NCX file.
        is_contents = (
            "nav" in item.get("properties", "").split() or item.get("media-type") == "application/x-dtbncx+xml"
        )
        name = _inside(folder, item.get("href", "")) if is_contents else None
        if name is None or name not in archive.NameToInfo:
            continue
        try:
            root = parse_xml(archive.read(name))
        except (etree.XMLSyntaxError, *DAMAGED_MEMBER):
            continue
        for href, words in _entries(root):
            target = _inside(posixpath.dirname(name), href)
            if target is not None and words:
                labels.setdefault(target, words)
    return labels


def _entries(root: Any) -> Iterator[tuple[str, str]]:
    for link in root.iter("{*}a"):
        yield link.get("href", ""), _words(link)
    for point in root.iter("{*}navPoint"):
        content = point.find("{*}content")
        label = point.find("{*}navLabel")
        if content is not None and label is not None:
            yield content.get("src", ""), _words(label)


def _first(package: Any, name: str) -> str:
    return next((words for element in package.iter(f"{{*}}{name}") if (words := _words(element))), "")


def _words(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())
