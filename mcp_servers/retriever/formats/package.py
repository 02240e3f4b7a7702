"""Zip packages: Office files, OpenDocument files and books, checked before a library unpacks or parses them.

The module enforces the limits of a package, repairs files that Office reads but our libraries do not (Strict Open XML,
relations to missing or damaged parts, parts without a type), and writes notes on parts that no reader reads.
"""

import io
import posixpath
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lxml import etree

from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.dates import latest_date

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
DAMAGED_MEMBER = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError)
"""Exceptions of `zipfile` for a member that cannot be unpacked, or whose checksum is wrong."""
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_PROLOGUE_BYTES = 4096
_MAX_MEMBERS = 20_000
_CONTENT_TYPES = "[Content_Types].xml"
NO_OFFICE_FILE = "the file is not an Office document, or it is damaged"
_PROPERTIES = "docProps/core.xml"
_DATES = re.compile(r"<dcterms:(?:created|modified)\b[^<>]{0,200}>([^<]{0,40})<")

_COPY_BYTES = 1 << 20
MAX_NAMED = 5
"""Maximum number of damaged parts named in one note."""
_ESSENTIAL = re.compile(
    r"\[Content_Types\]\.xml|_rels/\.rels|(?:word|xl|ppt)/_rels/(?:document|workbook|presentation)\d*\.xml\.rels"
    r"|word/document\d*\.xml|xl/(?:workbook|styles|sharedStrings)\.xml|ppt/presentation\.xml",
    re.IGNORECASE,
)
"""Parts without which there is no text, or cells would be read wrong: a date would be a number."""

_SHEET = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData/></worksheet>'
_SLIDE = (
    b'<p:%s xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"><p:cSld><p:spTree><p:nvGrpSpPr>'
    b'<p:cNvPr id="1" name=""/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/></p:spTree></p:cSld></p:%s>'
)
_EMPTY_PARTS = (
    (re.compile(r"xl/worksheets/[^/]+\.xml"), _SHEET),
    (re.compile(r"ppt/slides/[^/]+\.xml"), _SLIDE % (b"sld", b"sld")),
    (re.compile(r"ppt/slideLayouts/[^/]+\.xml"), _SLIDE % (b"sldLayout", b"sldLayout")),
    (re.compile(r"ppt/slideMasters/[^/]+\.xml"), _SLIDE % (b"sldMaster", b"sldMaster")),
)
"""Empty parts that stand in for damaged ones, so that the other sheets and slides keep their places."""

_STRICT = b"http://purl.oclc.org/ooxml/"
_STRICT_NAMESPACE = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/([\w/]+)")
_TRANSITIONAL_NAMES = {
    b"extendedProperties": b"extended-properties",
    b"customProperties": b"custom-properties",
    b"relationships/extendedProperties": b"relationships/extended-properties",
    b"relationships/customProperties": b"relationships/custom-properties",
}
"""Names that Strict Open XML spells differently, besides the path segment ``2006`` that its addresses lack."""

_MACHINERY = re.compile(
    r"\[Content_Types\]\.xml|_rels/|.*/_rels/|docProps/|customXml/itemProps|.*/theme/|.*/(?:styles|stylesWithEffects"
    r"|settings|webSettings|fontTable|numbering|people|presProps|viewProps|tableStyles|calcChain|metadata|commentsIds"
    r"|commentsExtended|commentsExtensible|commentAuthors|authors|presentation|workbook|volatileDependencies)\d*\.xml"
    r"|.*/(?:slideMasters|slideLayouts|notesMasters|handoutMasters|persons|printerSettings|ctrlProps|tables|tags"
    r"|diagrams/(?:colors|quickStyle|layout|drawing))[/\d]|META-INF/|mimetype|meta\.xml|settings\.xml|manifest\.rdf"
    r"|Configurations2/|Thumbnails/|xl/drawings/commentsDrawing\d*\.vml|xl/(?:pivotTables|pivotCache|queryTables|connections|richData|slicers|slicerCaches)"
)
"""Parts with the style or the behaviour of a document, not with its text."""

_KINDS = (
    (re.compile(r"glossary/"), "building blocks of the template"),
    (re.compile(r"customXml/"), "attached XML data"),
    (re.compile(r"comments|threadedComments"), "comments"),
    (re.compile(r"externalLinks/"), "values of linked workbooks"),
    (re.compile(r"chart|/embeddings/.*chart"), "charts"),
    (re.compile(r"diagrams/"), "SmartArt"),
    (re.compile(r"drawing"), "drawings"),
    (re.compile(r"header|footer"), "headers and footers"),
    (re.compile(r"worksheets|dialogsheets|macrosheets|slides/|notesSlides/"), "hidden or unused sheets and slides"),
)
_PICTURE = re.compile(r".*\.(?:png|jpe?g|gif|bmp|tiff?|emf|wmf|svg|webp|heic|wdp)", re.IGNORECASE)
_EMBEDDED = re.compile(r".*/(?:embeddings|activeX)/|Object ?\d+/?|ObjectReplacements/", re.IGNORECASE)
_MEDIA = re.compile(r".*\.(?:mp3|mp4|m4a|m4v|wav|wma|wmv|mov|avi|mpe?g)", re.IGNORECASE)
_CODE = re.compile(r".*vbaProject\.bin|.*vbaData\.xml|Basic/", re.IGNORECASE)

_PARSER_OPTIONS = {"resolve_entities": False, "no_network": True, "load_dtd": False}
_PARSER = etree.XMLParser(**_PARSER_OPTIONS, huge_tree=False)


def parse_xml(data: bytes) -> Any:
    """Return the root element of an XML part; entities are never resolved."""
    return etree.fromstring(data, _PARSER)


def read_integer(text: str | None, default: int) -> int:
    """Return the integer of an attribute, or ``default`` if the text is none or has more than nine digits.

    A number without a limit could stop the reader: Python refuses to convert more than 4 300 digits, and a level or a
    count of a billion would be a loop of as many steps.
    """
    return int(text) if text is not None and _INTEGER.fullmatch(text) else default


@dataclass(frozen=True, slots=True)
class OfficeFile:
    """A checked Office file. ``repaired`` is a copy to read instead; ``notes`` name the parts missing in the file."""

    path: Path
    repaired: bytes | None = None
    notes: tuple[str, ...] = ()

    def open(self) -> BinaryIO:
        """Return a stream of the file for a library."""
        return self.path.open("rb") if self.repaired is None else io.BytesIO(self.repaired)


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of a part: the last word of its type, and the name of the other part or an address outside."""

    kind: str
    target: str
    is_external: bool


class Parts:
    """The parts of an open package, and a record of the parts that were read.

    ``embedded`` are files whose content another part repeats, such as a chart's workbook. ``notes`` name broken parts.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._relations: dict[str, dict[str, Relation]] = {}
        self.read: set[str] = set()
        self.embedded: set[str] = set()
        self.notes: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._archive.NameToInfo

    def relations(self, part: str) -> dict[str, Relation]:
        """Return the relations of a part by their ids."""
        if part not in self._relations:
            folder, name = posixpath.split(part)
            rels = posixpath.join(folder, "_rels", f"{name}.rels")
            self._relations[part] = dict(_relations(self._archive.read(rels), folder)) if rels in self else {}
        return self._relations[part]

    def related_parts(self, part: str, kind: str) -> Iterator[str]:
        """Yield the names of the parts to which a part has relations of one kind."""
        for relation in self.relations(part).values():
            if relation.kind == kind and not relation.is_external and relation.target in self:
                yield relation.target

    def mark_read(self, *names: str) -> None:
        """Mark parts as read by a library or the caller, so that no note names them."""
        self.read.update(names)

    def bytes(self, name: str) -> bytes | None:
        """Return the content of a part, or None if there is none."""
        if name not in self:
            return None
        self.read.add(name)
        return self._archive.read(name)

    def xml(self, name: str) -> Any:
        """Return the root of a part, or add a note and return None if the part is missing or broken."""
        try:
            data = self.bytes(name)
            return None if data is None else parse_xml(data)
        except (etree.XMLSyntaxError, *DAMAGED_MEMBER):
            self.notes.append(f"the part {name[:80]} is broken and was not read")
            return None


def _relations(data: bytes, folder: str) -> Iterator[tuple[str, Relation]]:
    for element in parse_xml(data):
        target, kind = element.get("Target", ""), element.get("Type", "").rsplit("/", 1)[-1]
        is_external = element.get("TargetMode") == "External"
        if not is_external:
            target = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
        yield element.get("Id", ""), Relation(kind, target, is_external)


def open_office(path: Path, limits: ParseLimits) -> OfficeFile:
    """Check an Office file and return it in a form that a library can open.

    A Strict Open XML file, one with relations to parts that it lacks, and one with damaged parts is opened as a
    repaired copy in memory. The copy leaves out the damaged parts, because a part with a wrong checksum may hold wrong
    values, and has empty sheets and slides in place of damaged and missing ones.

    Raises:
        DocumentError: see `check_package`; or a part is damaged that the others depend on.
    """
    check_package(path, limits)
    with path.open("rb") as file, zipfile.ZipFile(file) as package:
        damaged = sorted(_find_damaged(package))
        if essential := next(filter(_ESSENTIAL.fullmatch, damaged), None):
            raise DocumentError("DOCUMENT_BROKEN", f"its part {essential[:80]} is damaged")
        whole = set(package.namelist()) - set(damaged)
        missing_parts = sorted(
            {name for rels in whole if rels.endswith(".rels") for name in _targets(package, rels)} - whole
        )
        empty = {name: part for name in missing_parts for pattern, part in _EMPTY_PARTS if pattern.fullmatch(name)}
        names = whole | set(empty)
        damaged = sorted({*damaged, *empty})
        is_strict = any(_STRICT in package.read(name) for name in names if name.endswith(".rels"))
        dangling = {
            name: missing
            for name in names
            if name.endswith(".rels") and (missing := _find_dangling(package, name, names))
        }
        untyped = _untyped_endings(package)
        if not is_strict and not dangling and not untyped and not damaged:
            return OfficeFile(path)
        copy = io.BytesIO()
        with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as repaired:
            for name in sorted(names):
                data = empty[name] if name in empty else package.read(name)
                if name in dangling:
                    data = _remove_relations(data, dangling[name])
                if name == _CONTENT_TYPES and untyped:
                    data = _add_types(data, untyped)
                if is_strict and name.endswith((".xml", ".rels", ".vml")):
                    data = _STRICT_NAMESPACE.sub(_name_namespace, data)
                repaired.writestr(name, data)
    count = sum(map(len, dangling.values())) - (len(damaged) - len(empty))
    notes = [f"parts that the file refers to are missing in it: {count}"] if count > 0 else []
    if damaged:
        shown = ", ".join(name[:80] for name in damaged[:MAX_NAMED])
        more = f" and {len(damaged) - MAX_NAMED} more" if len(damaged) > MAX_NAMED else ""
        notes.append(f"incomplete: damaged parts of the file were not read: {shown}{more}")
    return OfficeFile(path, copy.getvalue(), tuple(notes))


class _NoTree:
    """A target of the XML parser that builds nothing."""

    def close(self) -> None:
        return None


def _find_damaged(package: zipfile.ZipFile) -> Iterator[str]:
    """Yield the names of members that cannot be unpacked, and of XML parts that are not well-formed."""
    for member in package.infolist():
        is_xml = member.filename.endswith((".xml", ".rels"))
        checker = etree.XMLParser(target=_NoTree(), **_PARSER_OPTIONS, huge_tree=True) if is_xml else None
        try:
            with package.open(member) as stream:
                while data := stream.read(_COPY_BYTES):
                    if checker is not None:
                        checker.feed(data)
            if checker is not None:
                checker.close()
        except (etree.XMLSyntaxError, *DAMAGED_MEMBER):
            yield member.filename


def _find_dangling(package: zipfile.ZipFile, rels: str, names: Collection[str]) -> list[str]:
    """Return the ids of relations whose part is not among ``names``."""
    return [ident for name, idents in _targets(package, rels).items() if name not in names for ident in idents]


def _targets(package: zipfile.ZipFile, rels: str) -> dict[str, list[str]]:
    """Return the names of the parts to which a part has relations, each with the ids of these relations."""
    folder = posixpath.dirname(posixpath.dirname(rels))
    targets: dict[str, list[str]] = {}
    for relation in parse_xml(package.read(rels)):
        target = relation.get("Target", "")
        if relation.get("TargetMode") != "External" and not target.startswith("#"):
            place = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            targets.setdefault(place, []).append(relation.get("Id", ""))
    return targets


def _untyped_endings(package: zipfile.ZipFile) -> set[str]:
    """Return the endings of parts without a content type, which make a library reject the whole file."""
    types = parse_xml(package.read(_CONTENT_TYPES))
    endings = {element.get("Extension", "").lower() for element in types}
    named = {element.get("PartName", "").lstrip("/").lower() for element in types}
    untyped = set()
    for name in package.namelist():
        ending = posixpath.splitext(name)[1][1:].lower()
        if ending and ending not in endings and name.lower() not in named:
            untyped.add(ending)
    return untyped


def _add_types(data: bytes, endings: Collection[str]) -> bytes:
    root = parse_xml(data)
    for ending in sorted(endings):
        child = etree.SubElement(root, etree.QName(root, "Default").text)
        child.set("Extension", ending)
        child.set("ContentType", "application/octet-stream")
    return bytes(etree.tostring(root, xml_declaration=True, encoding="UTF-8", standalone=True))


def _remove_relations(data: bytes, ids: Collection[str]) -> bytes:
    root = parse_xml(data)
    for relation in list(root):
        if relation.get("Id", "") in ids:
            root.remove(relation)
    return bytes(etree.tostring(root, xml_declaration=True, encoding="UTF-8", standalone=True))


def _name_namespace(match: re.Match[bytes]) -> bytes:
    name = _TRANSITIONAL_NAMES.get(match[2], match[2])
    return b"http://schemas.openxmlformats.org/" + match[1] + b"/2006/" + name


def check_package(path: Path, limits: ParseLimits) -> None:
    """Check an Office file before a library unpacks it.

    Raises:
        DocumentError: the file is encrypted, is no Office file, unpacks to too much, or declares XML entities, which
            Office never does.
    """
    with path.open("rb") as file:
        # Office encrypts a package inside an OLE file, which is also the form of its older versions.
        if file.read(len(_OLE)) == _OLE:
            message = "the file is protected by a password, or of an Office version before 2007"
            raise DocumentError("DOCUMENT_ENCRYPTED", message)
    with path.open("rb") as file, open_zip(file, limits, NO_OFFICE_FILE) as package:
        if _CONTENT_TYPES not in package.namelist():
            raise DocumentError("DOCUMENT_BROKEN", NO_OFFICE_FILE)
        check_prologues(package, (".xml", ".rels", ".vml"))


def open_zip(file: BinaryIO, limits: ParseLimits, refusal: str) -> zipfile.ZipFile:
    """Return an open zip file whose members unpack to no more than the limits allow.

    Raises:
        DocumentError: the file is not a complete zip file (``refusal`` is the message), or unpacks to too much.
    """
    try:
        package = zipfile.ZipFile(file)
        members = package.infolist()
        # A reader never gets more of a member than its declared size, so the sum of the sizes is a limit.
        if len(members) > _MAX_MEMBERS or sum(member.file_size for member in members) > limits.max_unpacked_bytes:
            package.close()
            raise DocumentError("DOCUMENT_TOO_LARGE", "the file unpacks to more than can be read")
        if any(member.flag_bits & 1 for member in members):
            package.close()
            raise DocumentError("DOCUMENT_ENCRYPTED", "the file is protected by a password")
        return package
    except (*DAMAGED_MEMBER, RuntimeError) as exc:
        raise DocumentError("DOCUMENT_BROKEN", refusal) from exc


def check_prologues(package: zipfile.ZipFile, endings: tuple[str, ...]) -> None:
    """Check that no XML member declares entities.

    Raises:
        DocumentError: a member declares entities, or cannot be unpacked.
    """
    try:
        for info in package.infolist():
            if info.filename.endswith(endings):
                with suppress(*DAMAGED_MEMBER), package.open(info) as member:
                    _check_prologue(member.read(_PROLOGUE_BYTES))
    except RuntimeError as exc:
        raise DocumentError("DOCUMENT_BROKEN", NO_OFFICE_FILE) from exc


def _check_prologue(start: bytes) -> None:
    # In UTF-16, the declaration has the same bytes apart from the zero bytes.
    if b"<!DOCTYPE" in start.replace(b"\0", b"").upper():
        raise DocumentError("DOCUMENT_BROKEN", "the file declares XML entities, which no Office program writes")


def package_date(path: Path) -> str | None:
    """Return the later of the creation and modification dates in a package's properties.

    The caller has checked `path` with `check_package`.
    """
    with path.open("rb") as file, zipfile.ZipFile(file) as package:
        if _PROPERTIES not in package.namelist():
            return None
        with suppress(*DAMAGED_MEMBER), package.open(_PROPERTIES) as member:
            return latest_date(*_DATES.findall(member.read(_PROLOGUE_BYTES).decode(errors="ignore")))
    return None


def unread_parts(path: Path, parts: Parts) -> Iterator[str]:
    """Yield notes on the parts of a package that its reader did not read: XML with text, pictures, embedded files."""
    yield from dict.fromkeys(parts.notes)
    kinds: Counter[str] = Counter()
    others: Counter[str] = Counter()
    with path.open("rb") as file, zipfile.ZipFile(file) as package:
        for member in package.infolist():
            name = member.filename
            if name in parts.read or name in parts.embedded or name.endswith("/") or not member.file_size:
                continue
            if _PICTURE.fullmatch(name):
                others["text in pictures was not read: {} pictures"] += "thumbnail" not in name.lower()
            elif _MEDIA.fullmatch(name):
                others["sound and film were not read: {} files"] += 1
            elif _CODE.fullmatch(name):
                others["macros were not read: {} files"] += 1
            elif _EMBEDDED.match(name):
                others["embedded objects were not read: {}"] += 1
            elif not _MACHINERY.match(name) and name.endswith((".xml", ".vml")):
                kind = next((kind for pattern, kind in _KINDS if pattern.search(name)), f"the part {name[:80]}")
                with suppress(*DAMAGED_MEMBER):  # `open_office` has named damaged parts
                    kinds[kind] += _count_texts(package.read(member))
    yield from (note.format(count) for note, count in others.items() if count)
    yield from (f"{kind} were not read: {count} texts" for kind, count in kinds.items() if count)


def _count_texts(data: bytes) -> int:
    try:
        return sum(
            1 for element in parse_xml(data).iter() if isinstance(element.tag, str) and (element.text or "").strip()
        )
    except etree.XMLSyntaxError:
        return 1
