"""Annotations of PDF pages: form fields, links, comments and attachments.

Every annotation yields a text or is counted by its kind as unread, so that no content is dropped silently.
"""

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pypdfium2
import pypdfium2.raw as pdfium

MAX_ANNOTATIONS = 5_000
"""Maximum number of annotations of one page."""

MAX_TEXT = 20_000
"""Maximum number of characters of a field, a comment or an address."""

MAX_FILES = 50
"""Maximum number of embedded files that are named."""

Rectangle = tuple[float, float, float, float]
"""Left, bottom, right and top in the page's own units."""

_KINDS = {
    "CIRCLE": "circles",
    "CARET": "carets",
    "HIGHLIGHT": "highlights",
    "INK": "ink drawings",
    "LINE": "lines",
    "MOVIE": "movies",
    "POLYGON": "polygons",
    "POLYLINE": "polylines",
    "POPUP": "pop-up windows",
    "REDACT": "redaction marks",
    "RICHMEDIA": "rich media",
    "SCREEN": "screens",
    "SOUND": "sounds",
    "SQUARE": "squares",
    "SQUIGGLY": "squiggly lines",
    "STAMP": "stamps",
    "STRIKEOUT": "strikethroughs",
    "TEXT": "empty comments",
    "FREETEXT": "empty text boxes",
    "THREED": "3-D views",
    "TRAPNET": "trap networks",
    "UNDERLINE": "underlines",
    "WATERMARK": "watermarks",
    "PRINTERMARK": "printer's marks",
}
_NAMES = {getattr(pdfium, f"FPDF_ANNOT_{name}", None): shown for name, shown in _KINDS.items()}

_COMMENTED = "comment"


@dataclass(slots=True)
class PageAnnotations:
    """Annotations of a page: links and fields with their positions, comments in order, and unread parts."""

    links: list[tuple[Rectangle, str]] = field(default_factory=list)
    fields: list[tuple[Rectangle, str, str]] = field(default_factory=list)
    """Rectangle, name and value of each filled or ticked field."""
    comments: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)


def names_of_attachments(document: pypdfium2.PdfDocument) -> list[str]:
    """Return the names of the files embedded in a PDF."""
    count = pdfium.FPDFDoc_GetAttachmentCount(document.raw)
    names = []
    for at in range(min(count, MAX_FILES)):
        attachment = pdfium.FPDFDoc_GetAttachment(document.raw, at)
        names.append(_wide(partial(pdfium.FPDFAttachment_GetName, attachment)) or "unnamed")
    return names + ([f"{count - MAX_FILES} more"] if count > MAX_FILES else [])


def read_marks(document: pypdfium2.PdfDocument, page: pypdfium2.PdfPage) -> PageAnnotations:
    """Return the annotations of a page."""
    marks = PageAnnotations()
    count = pdfium.FPDFPage_GetAnnotCount(page.raw)
    if count > MAX_ANNOTATIONS:
        marks.unread["annotations beyond the limit of a page"] += count - MAX_ANNOTATIONS
    for index in range(min(count, MAX_ANNOTATIONS)):
        annotation = pdfium.FPDFPage_GetAnnot(page.raw, index)
        if not annotation:
            marks.unread["annotations that cannot be read"] += 1
            continue
        try:
            _read_annotation(document, annotation, marks)
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)
    return marks


def _read_annotation(document: pypdfium2.PdfDocument, annotation: object, marks: PageAnnotations) -> None:
    kind = pdfium.FPDFAnnot_GetSubtype(annotation)
    if kind == pdfium.FPDF_ANNOT_LINK:
        _read_link(document, annotation, marks)
    elif kind == pdfium.FPDF_ANNOT_WIDGET:
        _read_field(document, annotation, marks)
    elif kind == pdfium.FPDF_ANNOT_FILEATTACHMENT:
        name = _wide(
            lambda buffer, size: pdfium.FPDFAttachment_GetName(
                pdfium.FPDFAnnot_GetFileAttachment(annotation), buffer, size
            )
        )
        marks.files.append(name or _value(annotation, b"Contents") or "unnamed")
        _add_comment(annotation, marks)
    elif not _add_comment(annotation, marks):
        shown = _NAMES.get(kind, "of other kinds")
        marks.unread[f"annotations without text ({shown})"] += 1


def _add_comment(annotation: object, marks: PageAnnotations) -> bool:
    """Add an annotation's text with its author; return whether it has a text."""
    text = _value(annotation, b"Contents")
    if not text:
        return False
    author = _value(annotation, b"T")
    marks.comments.append(f"[{_COMMENTED}{f' by {author}' if author else ''}] {text}")
    return True


def _read_link(document: pypdfium2.PdfDocument, annotation: object, marks: PageAnnotations) -> None:
    link = pdfium.FPDFAnnot_GetLink(annotation)
    action = pdfium.FPDFLink_GetAction(link) if link else None
    kind = pdfium.FPDFAction_GetType(action) if action else 0
    rectangle = _rectangle(annotation)
    if kind == pdfium.PDFACTION_URI:
        address = _narrow(lambda buffer, size: pdfium.FPDFAction_GetURIPath(document.raw, action, buffer, size))
        if address and rectangle:
            marks.links.append((rectangle, address))
            return
    if kind in (pdfium.PDFACTION_REMOTEGOTO, pdfium.PDFACTION_LAUNCH):
        path = _narrow(lambda buffer, size: pdfium.FPDFAction_GetFilePath(action, buffer, size))
        if path and rectangle:
            marks.links.append((rectangle, path))
            return
    if kind == pdfium.PDFACTION_GOTO or (link and pdfium.FPDFLink_GetDest(document.raw, link)):
        marks.unread["links within the document"] += 1
        return
    marks.unread["links without an address"] += 1


def _read_field(document: pypdfium2.PdfDocument, annotation: object, marks: PageAnnotations) -> None:
    form = document.formenv.raw if document.formenv else None
    rectangle = _rectangle(annotation)
    if form is None or rectangle is None:
        marks.unread["form fields that cannot be read"] += 1
        return
    kind = pdfium.FPDFAnnot_GetFormFieldType(form, annotation)
    # The alternate name is written for people, the other one for programs.
    name = _wide(lambda buffer, size: pdfium.FPDFAnnot_GetFormFieldAlternateName(form, annotation, buffer, size))
    name = name or _wide(lambda buffer, size: pdfium.FPDFAnnot_GetFormFieldName(form, annotation, buffer, size))
    if kind in (pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON):
        mark = "[x]" if pdfium.FPDFAnnot_IsChecked(form, annotation) else "[ ]"
        marks.fields.append((rectangle, name, mark))
        return
    if kind == pdfium.FPDF_FORMFIELD_PUSHBUTTON:
        marks.unread["form buttons"] += 1
        return
    if kind == pdfium.FPDF_FORMFIELD_SIGNATURE:
        marks.unread["signature fields"] += 1
        return
    value = _wide(lambda buffer, size: pdfium.FPDFAnnot_GetFormFieldValue(form, annotation, buffer, size))
    if kind in (pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX):
        value = _selected_options(form, annotation) or value
    value = " ".join(value.split())
    if value:
        marks.fields.append((rectangle, name, value))
    else:
        marks.unread["empty form fields"] += 1


def _selected_options(form: object, annotation: object) -> str:
    """Return the labels of the chosen options: a value is often a code that the page does not show."""
    count = min(pdfium.FPDFAnnot_GetOptionCount(form, annotation), MAX_ANNOTATIONS)
    labels = [
        _wide(partial(pdfium.FPDFAnnot_GetOptionLabel, form, annotation, at))
        for at in range(max(count, 0))
        if pdfium.FPDFAnnot_IsOptionSelected(form, annotation, at)
    ]
    return ", ".join(filter(None, labels))


def _rectangle(annotation: object) -> Rectangle | None:
    box = pdfium.FS_RECTF()
    if not pdfium.FPDFAnnot_GetRect(annotation, box):
        return None
    left, right = sorted((box.left, box.right))
    bottom, top = sorted((box.bottom, box.top))
    return left, bottom, right, top


def _value(annotation: object, key: bytes) -> str:
    text = _wide(lambda buffer, size: pdfium.FPDFAnnot_GetStringValue(annotation, key, buffer, size))
    return " ".join(text.split())


def _wide(get: Callable[[object, int], int]) -> str:
    """Return the UTF-16 text that a PDFium function writes, at most `MAX_TEXT` characters."""
    size = get(None, 0)
    if size <= 2:  # nothing but the NUL at the end
        return ""
    buffer = (ctypes.c_char * size)()
    if size % 2 or get(ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size) > size:
        return ""
    return bytes(buffer).decode("utf-16-le", "replace").partition("\0")[0][:MAX_TEXT]


def _narrow(get: Callable[[object, int], int]) -> str:
    """Return the byte string that a PDFium function writes as text, at most `MAX_TEXT` characters."""
    size = get(None, 0)
    if size <= 1:
        return ""
    buffer = ctypes.create_string_buffer(size)
    get(buffer, size)
    return buffer.raw.partition(b"\0")[0].decode("utf-8", "replace")[:MAX_TEXT].strip()
