"""Images: definitions frozen under the hash of their content.

Owns storing one once. Knows neither how the hash is made nor what a definition holds.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, select, text

from agentic_rag.store.clock import now
from agentic_rag.store.rows import Prepared
from agentic_rag.store.tables import Image, table

_images = table(Image)
_PUT = Prepared(
    text(  # both databases know this clause; SQLAlchemy has it per dialect only
        "INSERT INTO images (id, domain_id, definition, created_at) VALUES (:id, :domain_id, :definition, :created_at)"
        " ON CONFLICT (id) DO NOTHING"
    ).bindparams(bindparam("definition", type_=_images.c.definition.type)),
    ("id", "domain_id", "definition", "created_at"),
)


def put(conn: Connection, image_id: str, domain_id: str, definition: Mapping[str, Any]) -> None:
    """Store a definition under its hash; one that is there stays as it is."""
    row = {"id": image_id, "domain_id": domain_id, "definition": dict(definition), "created_at": now()}
    _PUT.run(conn, row)


def domain_of(conn: Connection, image_id: str) -> str:
    """Return the domain of a definition, empty when there is none."""
    found: str | None = conn.execute(select(_images.c.domain_id).where(_images.c.id == image_id)).scalar()
    return found or ""


def get(conn: Connection, image_id: str) -> dict[str, Any] | None:
    """Return the definition, None when there is none."""
    found: dict[str, Any] | None = conn.execute(select(_images.c.definition).where(_images.c.id == image_id)).scalar()
    return found
