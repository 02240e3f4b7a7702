"""Images: the definitions that turns ran on, stored unchanged under the hash of their content.

Equal definitions are stored once. Callers compute the hash, and this module does not read the definition.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, text

from agentic_rag.store.clock import now
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record
from agentic_rag.store.statements import Prepared, parameter
from agentic_rag.store.turns import TURNS


class ImageRecord(Record, table=True):
    """A definition that turns ran on. Its id is the hash of its content, and it never changes."""

    __tablename__ = "images"
    part_of = "domain"

    id: Key[str]
    domain_id: Indexed[str]
    definition: dict[str, Any]
    created_at: str


IMAGES = ImageRecord.__table__
_images = IMAGES.c
_THERE = Prepared(select(_images.id).where(_images.id == parameter(_images.id)))
_PUT = Prepared(
    text(  # both databases support this clause; SQLAlchemy offers it only per dialect
        f"INSERT INTO images ({', '.join(ImageRecord.names)})"
        f" VALUES ({', '.join(f':{name}' for name in ImageRecord.names)})"
        " ON CONFLICT (id) DO NOTHING"
    ).bindparams(*(bindparam(name, type_=_images[name].type) for name in ImageRecord.names))
)


def is_there(conn: Connection, image_id: str) -> bool:
    """Return whether a definition is stored."""
    return _THERE.first(conn, id=image_id) is not None


def put(conn: Connection, image_id: str, domain_id: str, definition: Mapping[str, Any]) -> None:
    """Store a definition under its hash, if it is not stored yet."""
    _PUT.run(conn, id=image_id, domain_id=domain_id, definition=dict(definition), created_at=now())


def domain_of(conn: Connection, image_id: str) -> str:
    """Return the domain of a definition, or an empty text if there is no such definition."""
    domain_id: str | None = conn.execute(select(_images.domain_id).where(_images.id == image_id)).scalar()
    return domain_id or ""


def record(conn: Connection, image_id: str) -> ImageRecord | None:
    """Return the definition with its domain and time, or None."""
    return ImageRecord.first(conn, select(IMAGES).where(_images.id == image_id))


def get(conn: Connection, image_id: str) -> dict[str, Any] | None:
    """Return the definition, or None."""
    definition: dict[str, Any] | None = conn.execute(select(_images.definition).where(_images.id == image_id)).scalar()
    return definition


def prune(conn: Connection, made_before: str) -> int:
    """Delete the definitions created before ``made_before`` that no turn used; return their number."""
    old = (_images.created_at < made_before, _images.id.not_in(select(TURNS.c.image_id)))
    return conn.execute(delete(IMAGES).where(*old)).rowcount


def forget_of_user(conn: Connection, user_id: str) -> None:
    """Delete the definitions that were created for a user and that no turn used."""
    unused = select(_images.id, _images.definition).where(_images.id.not_in(select(TURNS.c.image_id)))
    for image_id, definition in conn.execute(unused).all():
        if definition.get("binding", {}).get("user") == user_id:
            conn.execute(delete(IMAGES).where(_images.id == image_id))
