"""Payloads: results stored as files because they are too large for the transcript.

This module owns the link between a ``ref`` and its session, and the folder with one file per ref. The file is written
before the record. A crash between the two can leave a file without a record, which the doctor finds.
"""

import hashlib
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import BinaryIO

import anyio.to_thread
from sqlalchemy import Connection, delete, select

from agentic_rag.base.errors import StorageFull
from agentic_rag.base.ids import SessionId
from agentic_rag.base.messages import KeptImage
from agentic_rag.store import sessions
from agentic_rag.store.clock import now
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record
from agentic_rag.store.statements import in_parts


class PayloadRecord(Record, table=True):
    """A result too large for the transcript; its bytes are in a file of the data folder named ``ref``."""

    __tablename__ = "payloads"
    part_of = "session"

    ref: Key[str]
    session_id: Indexed[SessionId]
    media_type: str
    size: int
    """Size in bytes."""
    sha256: str
    created_at: str


PAYLOADS = PayloadRecord.__table__
_payloads = PAYLOADS.c
_REF = re.compile(r"ref_[0-9a-z]{26}")


def record_of(ref: str, session_id: SessionId, media_type: str, data: bytes) -> PayloadRecord:
    """Return the record of a new payload."""
    return PayloadRecord(
        ref=ref,
        session_id=session_id,
        media_type=media_type,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        created_at=now(),
    )


def record_of_image(image: KeptImage, session_id: SessionId) -> PayloadRecord:
    """Return the record of an image that a user sends."""
    return PayloadRecord(
        ref=image.ref,
        session_id=session_id,
        media_type=image.media_type,
        size=image.size,
        sha256=image.sha256,
        created_at=now(),
    )


def put(conn: Connection, payload: PayloadRecord) -> None:
    """Store the record of a file that is already written.

    Raises:
        IntegrityError: the ref is taken.
    """
    payload.insert(conn)


def put_images(conn: Connection, images: Iterable[KeptImage], session_id: SessionId) -> None:
    """Store the images of a message as payloads of its session."""
    for image in images:
        put(conn, record_of_image(image, session_id))


def get(conn: Connection, session_id: SessionId, ref: str) -> PayloadRecord | None:
    """Return the session's payload, or None if this session has no payload with that ref."""
    return PayloadRecord.first(conn, select(PAYLOADS).where(_payloads.ref == ref, _payloads.session_id == session_id))


def session_of(conn: Connection, ref: str) -> SessionId | None:
    """Return the session that a payload belongs to, or None if there is no such payload."""
    return conn.execute(select(_payloads.session_id).where(_payloads.ref == ref)).scalar()


def refs_of(conn: Connection, session_id: SessionId) -> list[str]:
    """Return the refs of a session and of its delegates' sessions. Call this before the sessions are deleted."""
    own = list(conn.execute(select(_payloads.ref).where(_payloads.session_id == session_id)).scalars())
    return own + [ref for child in sessions.children(conn, session_id) for ref in refs_of(conn, child)]


def all_refs(conn: Connection) -> set[str]:
    """Return every ref."""
    return set(conn.execute(select(_payloads.ref)).scalars())


def all_hashes(conn: Connection) -> dict[str, str]:
    """Return the SHA-256 of every payload by its ref."""
    return {row.ref: row.sha256 for row in conn.execute(select(_payloads.ref, _payloads.sha256))}


def hashes_of(conn: Connection, refs: Collection[str]) -> dict[str, str]:
    """Return the SHA-256 of the existing payloads among ``refs``, by ref."""
    query = select(_payloads.ref, _payloads.sha256).where(_payloads.ref.in_(refs))
    return {row.ref: row.sha256 for row in conn.execute(query)}


def forget(conn: Connection, refs: Iterable[str]) -> None:
    """Delete records whose files are gone."""
    for part in in_parts(refs):
        conn.execute(delete(PAYLOADS).where(_payloads.ref.in_(part)))


class PayloadFiles:
    """A folder of payloads, created with the first payload."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def write(self, ref: str, data: bytes) -> None:
        """Write a payload durably (fsync), before its record is stored.

        Raises:
            StorageFull: the folder cannot be written; nothing was stored.
        """
        await anyio.to_thread.run_sync(self._write, ref, data)

    async def read(self, ref: str, sha256: str) -> bytes | None:
        """Return a payload; None if its file is missing, unreadable, or does not match its checksum."""
        return await anyio.to_thread.run_sync(self._read, ref, sha256)

    async def start_reading(self, ref: str) -> BinaryIO | None:
        """Open a payload to read it in parts; None if its file is missing or unreadable."""
        return await anyio.to_thread.run_sync(self._open, ref)

    def hash(self, ref: str) -> str | None:
        """Return the SHA-256 of a payload; None if the file is missing or unreadable. Blocks."""
        try:
            with self._path(ref).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError):
            return None

    def path_of(self, ref: str) -> Path:
        """Return the path of a payload, to be named in a message.

        Raises:
            ValueError: the text is no ref.
        """
        return self._path(ref)

    async def remove(self, refs: Iterable[str]) -> None:
        """Remove files whose records are gone; the doctor finds those that cannot be removed."""
        await anyio.to_thread.run_sync(self._remove, list(refs))

    def list_refs(self) -> set[str]:
        """Return the refs of all files."""
        try:
            return {entry.name for entry in os.scandir(self._folder) if _REF.fullmatch(entry.name)}
        except OSError:
            return set()

    def _write(self, ref: str, data: bytes) -> None:
        path = self._path(ref)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # The record names the file, and a new name survives a power loss only once its folder is synced.
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as exc:
            self._remove([ref])
            raise StorageFull(exc.strerror or "unknown reason") from exc

    def _read(self, ref: str, sha256: str) -> bytes | None:
        try:
            data = self._path(ref).read_bytes()
        except (OSError, ValueError):
            return None
        return data if hashlib.sha256(data).hexdigest() == sha256 else None

    def _open(self, ref: str) -> BinaryIO | None:
        try:
            return self._path(ref).open("rb")
        except (OSError, ValueError):
            return None

    def _remove(self, refs: list[str]) -> None:
        for ref in refs:
            try:
                self._path(ref).unlink(missing_ok=True)
            except OSError:
                continue

    def _path(self, ref: str) -> Path:
        if not _REF.fullmatch(ref):  # a model or a server may request any text: only valid refs become paths
            raise ValueError(f"not a ref: {ref!r}")
        return self._folder / ref
