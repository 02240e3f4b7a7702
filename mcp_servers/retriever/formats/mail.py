"""Reader of mail (.eml) and saved web pages (.mht): the message, then its attachments, read by their formats.

The module chooses between the plain and the web form of a mail, decodes headers and bodies with a wrong encoding, and
limits the depth and the size of attachments. Attachments that are not read get a note.
"""

import email
import email.policy
import io
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from email.header import decode_header
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePath
from typing import cast

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats import format_of
from mcp_servers.retriever.formats.html import html_parts
from mcp_servers.retriever.formats.text import decode, decode_as, paragraphs

MAX_DEPTH = 2
"""Levels of nested files that are read: an attachment, and an attachment of an attached mail."""
MAX_ATTACHMENTS = 100
"""Maximum number of attachments read of one mail."""
MAX_PARTS = 5_000
"""Maximum number of parts read of one mail."""
MAX_NAME = 120

_SHOWN_HEADERS = ("From", "To", "Cc", "Date")
_WORD = re.compile(r"\w+")
_OTHER_FORM = 0.85
"""Share of the words of the plain form that the web form of a mail must have to be read instead."""

_depth: ContextVar[int] = ContextVar("depth", default=0)


@dataclass(slots=True)
class _MailContents:
    """The contents of a mail: its text in two forms, the attached files, and notes."""

    plain: list[str] = field(default_factory=list)
    pages: list[tuple[bytes, str]] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: int = 0
    count: int = 0


def read_eml(path: Path, limits: ParseLimits) -> ParsedDocument:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.compat32)
    contents = _MailContents()
    _collect(message, contents)
    subject = _header(message, "Subject") or "Mail without a subject"
    facts = [f"- {name}: {text}" for name in _SHOWN_HEADERS if (text := _header(message, name))]
    blocks = [heading(subject, 1)]
    blocks += [Block("list", "\n".join(facts))] if facts else []
    body = list(_body(contents))
    if not body and _is_encrypted(message):
        raise DocumentError("DOCUMENT_ENCRYPTED", "the mail is encrypted: save its text and attach it instead")
    return _with_files([*blocks, *body], contents, limits, _date(message))


def read_mht(path: Path, limits: ParseLimits) -> ParsedDocument:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.compat32)
    contents = _MailContents()
    _collect(message, contents, is_page=True)
    blocks: list[Block] = []
    for data, charset in contents.pages:
        page = html_parts(decode_as(data, charset))
        blocks += page.blocks
        contents.notes += page.notes
    blocks += [Block("prose", paragraph) for text in contents.plain for paragraph in paragraphs(text)]
    if source := _header(message, "Snapshot-Content-Location"):
        blocks.append(Block("prose", f"Saved from {source}"))
    return _with_files(blocks, contents, limits, _date(message))


def _collect(message: "Message[str, str]", contents: _MailContents, *, is_page: bool = False) -> None:
    """Sort the parts of a message by kind. An attached mail is a file with its own parts."""
    stack: list[Message[str, str]] = [message]
    while stack:
        part = stack.pop()
        contents.count += 1
        if contents.count > MAX_PARTS:
            contents.notes.append(f"the mail has more than {MAX_PARTS} parts; the rest was not read")
            return
        kind = part.get_content_type()
        payload = cast("list[Message[str, str]] | str", part.get_payload())
        if kind == "message/rfc822" and part is not message and isinstance(payload, list):
            name = _file_name(part) or f"{_header(payload[0], 'Subject') or 'attached mail'}"[:MAX_NAME]
            data = b"".join(inner.as_bytes() for inner in payload)
            contents.files.append((name if name.lower().endswith(".eml") else f"{name}.eml", data))
        elif isinstance(payload, list):
            stack += reversed(payload)  # so that the parts leave the stack in the order of the mail
        else:
            _take(part, kind, contents, is_page)


def _take(part: "Message[str, str]", kind: str, contents: _MailContents, is_page: bool) -> None:
    data = part.get_payload(decode=True)
    data = data if isinstance(data, bytes) else b""
    name = _file_name(part)
    is_attached = part.get_content_disposition() == "attachment" or (name and not is_page)
    charset = str(part.get_content_charset() or "")
    if kind == "text/html" and not is_attached:
        contents.pages.append((data, charset))
    elif kind == "text/plain" and not is_attached:
        contents.plain.append(decode_as(data, charset) if data.strip() else "")
    elif kind.startswith("image/") and (is_page or part.get_content_disposition() != "attachment"):
        contents.pictures += 1
    elif is_page:
        if kind.startswith(("text/css", "text/javascript", "application/javascript", "font/", "application/x-font")):
            return
        contents.notes.append(f"a part of the page was not read: {kind[:60]}")
    elif kind in ("application/pkcs7-signature", "application/pgp-signature"):
        return
    elif data:
        contents.files.append((name or _name_for(kind), data))


def _name_for(kind: str) -> str:
    """Return a name for an attachment without one, with the ending that selects its reader."""
    endings = {"text/calendar": ".ics", "text/csv": ".csv", "text/html": ".html", "application/pdf": ".pdf"}
    return f"attachment{endings.get(kind, '.txt' if kind.startswith('text/') else '')}"


def _body(contents: _MailContents) -> Iterator[Block]:
    """Yield the text of a mail: its web form with tables and links, unless the plain form has more words."""
    plain = [Block("prose", paragraph) for text in contents.plain for paragraph in paragraphs(text)]
    if not contents.pages:
        yield from plain
        return
    pages = [html_parts(decode_as(data, charset)) for data, charset in contents.pages]
    blocks = [block for page in pages for block in page.blocks]
    web_words = set(_words(blocks))
    words = set(_words(plain))
    if len(words & web_words) >= _OTHER_FORM * len(words):
        contents.notes += [note for page in pages for note in page.notes]
        yield from blocks
    else:
        yield from plain
        if missing := web_words - words:
            contents.notes.append(f"the mail has a web form with other words, which was not read: {len(missing)} words")


def _words(blocks: list[Block]) -> Iterator[str]:
    for block in blocks:
        yield from (word.casefold() for word in _WORD.findall(block.text))


def _with_files(blocks: list[Block], contents: _MailContents, limits: ParseLimits, date: str | None) -> ParsedDocument:
    """Return a document with the blocks of each attachment below a heading."""
    notes = [*contents.notes]
    if contents.pictures:
        notes.append(f"text in pictures was not read: {contents.pictures} pictures")
    left = limits.max_unpacked_bytes
    room = limits.max_characters - sum(len(block.text) for block in blocks)
    for number, (name, data) in enumerate(contents.files):
        shown = " ".join(name.split())[:MAX_NAME]
        if number == MAX_ATTACHMENTS:
            notes.append(f"only the first {MAX_ATTACHMENTS} of {len(contents.files)} attachments were read")
            break
        left -= len(data)
        try:
            if left < 0:
                raise DocumentError("DOCUMENT_TOO_LARGE", "the attachments together are too large")
            parsed = read_part(name, data, limits)
            room -= sum(len(block.text) for block in parsed.blocks)
            if room < 0:
                raise DocumentError("DOCUMENT_TOO_LARGE", "the attachments together hold too much text")
        except DocumentError as exc:
            notes.append(f"the attachment {shown!r} was not read: {exc}")
            continue
        blocks.append(heading(f"Attachment: {shown}", 1))
        blocks += [
            replace(block, level=min(block.level + 1, 6) if block.level else 0, page=None) for block in parsed.blocks
        ]
        notes += [f"{shown}: {note}" for note in parsed.notes]
    return ParsedDocument(tuple(blocks), notes=tuple(notes), date=date)


def read_part(name: str, data: bytes, limits: ParseLimits) -> ParsedDocument:
    """Read a file within another file, with the reader of its ending.

    Raises:
        DocumentError: the file is not supported, cannot be read, or is nested too deeply.
    """
    depth = _depth.get()
    if depth >= MAX_DEPTH:
        raise DocumentError("DOCUMENT_UNSUPPORTED", f"files are read {MAX_DEPTH} levels deep in each other")
    file_format = format_of(_plain_name(name))
    if file_format.extension:
        raise DocumentError(
            "DOCUMENT_UNSUPPORTED", f"{file_format.extension} reads whole files only: upload this one itself"
        )
    read = file_format.load()
    if not data.strip():
        raise DocumentError("DOCUMENT_EMPTY", "the file is empty")
    token = _depth.set(depth + 1)
    try:
        return read(cast(Path, _MemoryFile(data)), limits)
    except (DocumentError, MemoryError):
        raise
    except Exception as exc:  # one broken attachment must not fail the mail
        raise DocumentError("DOCUMENT_BROKEN", "it is damaged") from exc
    finally:
        _depth.reset(token)


def _plain_name(name: str) -> str:
    return PurePath(name.replace("\\", "/").replace("\0", "")).name.strip()


@dataclass(frozen=True, slots=True)
class _MemoryFile:
    """Bytes with the two methods of a path that our readers use: a reading process may not write a file."""

    data: bytes

    def read_bytes(self) -> bytes:
        return self.data

    def open(self, mode: str = "rb") -> io.BytesIO:
        return io.BytesIO(self.data)


def _file_name(part: "Message[str, str]") -> str:
    """Return the decoded name of an attached file, or "" if it has none."""
    name = part.get_filename()
    return "" if name is None else _decode_words(str(name)).strip()


def _header(message: "Message[str, str]", name: str) -> str:
    """Return a header as a person reads it, on one line; empty if there is none."""
    # `Message.get` loses the bytes of a header without a declared encoding
    value = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
    return " ".join(_decode_words(str(value)).split())


def _decode_words(text: str) -> str:
    """Decode the encoded words of a header, and its bytes without a declared encoding."""
    if any("\udc80" <= char <= "\udcff" for char in text):
        return decode(text.encode("utf-8", "surrogateescape"))
    try:
        pieces = decode_header(text)
    except (email.errors.HeaderParseError, ValueError):
        return text
    return "".join(
        piece if isinstance(piece, str) else decode_as(piece, charset or "") if piece.strip() else piece.decode("ascii")
        for piece, charset in pieces
    )


def _is_encrypted(message: "Message[str, str]") -> bool:
    kinds = {part.get_content_type() for part in message.walk()}
    return bool(kinds & {"multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime"})


def _date(message: "Message[str, str]") -> str | None:
    try:
        return parsedate_to_datetime(str(message.get("Date", ""))).date().isoformat()
    except (TypeError, ValueError, OverflowError):  # the parser lets numbers of any size through
        return None
