"""Short events in SQLite files: the common prefix of a turn's events is left out, and event groups have one list."""

from struct import Struct

import orjson
from alembic import op
from sqlalchemy import text

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_LENGTH = Struct(">I")


def upgrade() -> None:
    conn = op.get_bind()
    # records that a crash has left
    for group, payload in conn.execute(text("SELECT id, payload FROM run_groups")).all():
        conn.execute(
            text("UPDATE run_groups SET payload = :payload WHERE id = :id"), {"id": group, "payload": _repack(payload)}
        )


def _repack(payload: bytes) -> bytes:
    """Convert a record with separately packed events of each turn to one with all events packed together."""
    at = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    heads, lengths, events = [], list[int](), list[bytes]()
    for turn_id, last, first, size in orjson.loads(payload[_LENGTH.size : at]):
        count = last + 1 - first
        table = Struct(f">{count}I")
        heads.append((turn_id, first, count))
        lengths += table.unpack_from(payload, at)
        events.append(payload[at + table.size : at + size])
        at += size
    packed = orjson.dumps(heads)
    return b"".join((_LENGTH.pack(len(packed)), packed, Struct(f">{len(lengths)}I").pack(*lengths), *events))
