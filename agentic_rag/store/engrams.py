"""Queries and changes of a role's memories in PostgreSQL, one transaction each.

The tables are `agentic_rag.store.memories`'s. A memory is named by its domain's workspace, as PromptX names its
memories by a folder. Each writer of a memory locks that memory's row, so that writers run one after the other. Recall
is in ``mcp_servers/promptx``.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select

from agentic_rag.base.errors import NotFound
from agentic_rag.store import memories
from agentic_rag.store.columns import BigInt
from agentic_rag.store.domains import DOMAINS
from agentic_rag.store.memories import ENGRAM_CUES, ENGRAMS, MEMORIES, EngramCueRecord, EngramRecord, MemoryRecord
from agentic_rag.store.statements import in_parts

_domains, _memories, _engrams, _cues = DOMAINS.c, MEMORIES.c, ENGRAMS.c, ENGRAM_CUES.c


@dataclass(frozen=True, slots=True)
class MemoryName:
    """The name of a role's memory in the domain with that workspace. ``user_id``: empty for the domain's own memory."""

    workspace: str
    user_id: str
    role: str

    @property
    def id(self) -> ScalarSelect[Any]:
        """The memory's id as a subquery; NULL if there is no such memory."""
        query = sa.select(_memories.id).join(DOMAINS, _domains.id == _memories.domain_id)
        return query.where(
            _domains.workspace == self.workspace, _memories.user_id == self.user_id, _memories.role == self.role
        ).scalar_subquery()


@dataclass(frozen=True, slots=True)
class EngramInsert:
    """A new engram and the keywords that lead to it. `insert` sets its memory and number."""

    record: EngramRecord
    words: tuple[str, ...]


class EngramLesson(NamedTuple):
    """The columns of `EngramRecord` that a memory network learns from."""

    created_ms: int
    number: int
    id: str
    cues: str
    type: str
    strength: float
    replaced_by: str


class TooMany(Exception):
    """The memory would exceed its limit of engrams."""


class NewerNumber(Exception):
    """The memory has engrams that the caller did not know."""


class CannotReplace(Exception):
    """The engram to replace does not exist or was already replaced.

    ``index`` is the position of the new engram. ``by`` is the id of the earlier replacement, or empty.
    """

    def __init__(self, index: int, by: str) -> None:
        super().__init__(index, by)
        self.index = index
        self.by = by


def domain_id_of(conn: Connection, workspace: str) -> str:
    """Return the domain of a workspace and lock it against deletion in this transaction.

    Raises:
        NotFound: no domain has this workspace.
    """
    query = sa.select(_domains.id).where(_domains.workspace == workspace).order_by(_domains.id).limit(1)
    domain_id: str | None = conn.execute(query.with_for_update(read=True)).scalar()
    if domain_id is None:
        raise NotFound("domain", workspace)
    return domain_id


def insert(
    conn: Connection, name: MemoryName, new: Sequence[EngramInsert], limit: int | None, after: int | None = None
) -> int:
    """Store engrams, each replacing the one that it names, if any; return the number of new ones.

    Engrams whose id already exists are unchanged.

    Raises:
        NotFound: no domain has this workspace.
        TooMany: the memory would hold more than ``limit`` engrams.
        NewerNumber: the memory has an engram with a greater number than ``after``.
    """
    # The lock on the memory's row makes the check and the insertion one step for all servers.
    memory = memories.take(conn, domain_id_of(conn, name.workspace), name.user_id, name.role)
    newest = _newest(conn, memory.id)
    if after is not None and newest > after:
        raise NewerNumber
    by_id = {engram.record.id: engram for engram in new}
    existing = _ids_among(conn, memory.id, list(by_id))
    added = [
        EngramInsert(engram.record.replace(memory_id=memory.id, number=BigInt(newest + place)), engram.words)
        for place, engram in enumerate(
            (engram for engram in by_id.values() if engram.record.id not in existing), start=1
        )
    ]
    if not added:
        return 0
    if limit is not None and count(conn, memory.id) + len(added) > limit:
        raise TooMany
    conn.execute(sa.insert(ENGRAMS), [engram.record.column_values() for engram in added])
    cues = [
        EngramCueRecord(memory_id=memory.id, word=word, engram_id=engram.record.id)
        for engram in added
        if not engram.record.replaced_by
        for word in dict.fromkeys(engram.words)
    ]
    if cues:
        conn.execute(sa.insert(ENGRAM_CUES), [cue.column_values() for cue in cues])
    return len(added)


def newest(conn: Connection, name: MemoryName) -> int:
    """Return the number of the newest engram, or 0."""
    return _newest(conn, name.id)


def _newest(conn: Connection, memory_id: str | ScalarSelect[Any]) -> int:
    query = sa.select(sa.func.coalesce(sa.func.max(_engrams.number), 0)).where(_engrams.memory_id == memory_id)
    return int(conn.execute(query).scalar_one())


def supersede(conn: Connection, name: MemoryName, new: Sequence[EngramRecord]) -> None:
    """Remove the keywords of the engrams that new ones replace, in the transaction that stored the new ones.

    Raises:
        CannotReplace: the engram to replace does not exist or was already replaced.
    """
    for index, engram in enumerate(new):
        if not engram.replaces:
            continue
        where = (_engrams.memory_id == name.id, _engrams.id == engram.replaces)
        before = conn.execute(sa.select(_engrams.replaced_by).where(*where)).scalar()
        if before is None or before:
            raise CannotReplace(index, before or "")
        conn.execute(sa.update(ENGRAMS).where(*where).values(replaced_by=engram.id))
        conn.execute(sa.delete(ENGRAM_CUES).where(_cues.memory_id == name.id, _cues.engram_id == engram.replaces))


def _ids_among(conn: Connection, memory_id: str, ids: Sequence[str]) -> set[str]:
    existing: set[str] = set()
    for part in in_parts(ids):
        query = sa.select(_engrams.id).where(_engrams.memory_id == memory_id, _engrams.id.in_(part))
        existing.update(conn.scalars(query))
    return existing


def delete(conn: Connection, name: MemoryName, ids: Sequence[str]) -> int:
    """Delete engrams and return their number. Waits for deletions by other servers."""
    memory_id = conn.execute(sa.select(_memories.id).where(_memories.id == name.id).with_for_update()).scalar()
    removed = 0
    if memory_id is not None:
        for part in in_parts(ids):
            conn.execute(sa.delete(ENGRAM_CUES).where(_cues.memory_id == memory_id, _cues.engram_id.in_(part)))
            deletion = sa.delete(ENGRAMS).where(_engrams.memory_id == memory_id, _engrams.id.in_(part))
            removed += conn.execute(deletion).rowcount
    return removed


def add_counts(conn: Connection, name: MemoryName, new: Mapping[str, int], known_words: Set[str], upto: int) -> None:
    """Add recalls to a memory's counts.

    ``known_words`` are the cues of the engrams up to number ``upto``. Counts of other cues are dropped, unless newer
    engrams may have them.
    """
    memory = MemoryRecord.first(conn, sa.select(MEMORIES).where(_memories.id == name.id).with_for_update())
    if memory is None:
        return
    counts = dict(memory.counts)
    for word, number in new.items():
        counts[word] = counts.get(word, 0) + number
    if _newest(conn, memory.id) <= upto:
        counts = {word: number for word, number in counts.items() if word in known_words}
    memories.put_counts(conn, memory.id, counts)


def counts(conn: Connection, name: MemoryName) -> dict[str, int] | None:
    """Return the number of recalls of each cue, or None if there is no such memory."""
    stored_counts: dict[str, int] | None = conn.execute(
        sa.select(_memories.counts).where(_memories.id == name.id)
    ).scalar()
    return stored_counts


def roles(conn: Connection, workspace: str, user_id: str) -> list[str]:
    """Return the sorted ids of the roles that have a memory of a user (or the domain's own)."""
    query = sa.select(_memories.role).join(DOMAINS, _domains.id == _memories.domain_id)
    of_user = query.where(_domains.workspace == workspace, _memories.user_id == user_id)
    return sorted(conn.scalars(of_user))


def count(conn: Connection, memory_id: str) -> int:
    """Return the number of engrams of a memory."""
    query = sa.select(sa.func.count()).select_from(ENGRAMS).where(_engrams.memory_id == memory_id)
    return int(conn.execute(query).scalar_one())


def tip(conn: Connection, name: MemoryName) -> tuple[int, str, int] | None:
    """Return the newest engram's number, its id and the number of engrams, or None if there are none."""
    many = sa.select(sa.func.count()).select_from(ENGRAMS).where(_engrams.memory_id == name.id).scalar_subquery()
    newest = sa.select(_engrams.number, _engrams.id, many).where(_engrams.memory_id == name.id)
    row = conn.execute(newest.order_by(_engrams.number.desc()).limit(1)).first()
    return None if row is None else (row[0], row[1], row[2])


def has(conn: Connection, name: MemoryName, number: int, engram_id: str) -> bool:
    """Return whether the engram with this id has that number."""
    where = (_engrams.memory_id == name.id, _engrams.number == number, _engrams.id == engram_id)
    return conn.execute(sa.select(_engrams.id).where(*where)).first() is not None


def count_between(conn: Connection, name: MemoryName, after: int, upto: int) -> int:
    """Return the number of engrams numbered above ``after`` and up to ``upto``."""
    query = sa.select(sa.func.count()).select_from(ENGRAMS).where(*_between(name, after, upto))
    return int(conn.execute(query).scalar_one())


def _between(name: MemoryName, after: int, upto: int) -> tuple[ColumnElement[bool], ...]:
    return (_engrams.memory_id == name.id, _engrams.number > after, _engrams.number <= upto)


def lessons(
    conn: Connection, name: MemoryName, after: int, upto: int, since: tuple[int, int] | None, most: int
) -> list[EngramLesson]:
    """Return the learnable columns of up to ``most`` engrams numbered above ``after`` and up to ``upto``, oldest first.

    ``since`` is the time and number of the engram before the first.
    """
    query = sa.select(*(_engrams[field] for field in EngramLesson._fields)).where(*_between(name, after, upto))
    if since is not None:
        query = query.where(sa.tuple_(_engrams.created_ms, _engrams.number) > sa.tuple_(*since))
    rows = conn.execute(query.order_by(_engrams.created_ms, _engrams.number).limit(most))
    return [EngramLesson(*row) for row in rows]


def replaced_between(conn: Connection, name: MemoryName, after: int, upto: int) -> list[EngramRecord]:
    """Return the engrams that were replaced by engrams numbered above ``after`` and up to ``upto``."""
    newer = sa.select(_engrams.replaces).where(*_between(name, after, upto), _engrams.replaces != "")
    query = sa.select(ENGRAMS).where(_engrams.memory_id == name.id, _engrams.id.in_(newer))
    return EngramRecord.all(conn, query.order_by(_engrams.number))


def list_after(conn: Connection, name: MemoryName, after: int, most: int) -> list[EngramRecord]:
    """Return at most ``most`` engrams with numbers above ``after``, in their order."""
    query = sa.select(ENGRAMS).where(_engrams.memory_id == name.id, _engrams.number > after)
    return EngramRecord.all(conn, query.order_by(_engrams.number).limit(most))


def near(conn: Connection, name: MemoryName, words: Sequence[str], sharing: int, newest: int) -> list[EngramRecord]:
    """Return unreplaced engrams: the ``newest`` ones, and the ``sharing`` ones with the most keywords in common."""
    with_words = (
        sa.select(_cues.engram_id)
        .where(_cues.memory_id == name.id, _cues.word.in_(words))
        .group_by(_cues.engram_id)
        .order_by(sa.func.count().desc(), sa.collate(_cues.engram_id, "C"))
        .limit(sharing)
    )
    last = sa.select(_engrams.id).where(_engrams.memory_id == name.id).order_by(_engrams.number.desc()).limit(newest)
    either = sa.or_(
        _engrams.id.in_(sa.select(with_words.subquery().c.engram_id)), _engrams.id.in_(sa.select(last.subquery().c.id))
    )
    query = sa.select(ENGRAMS).where(_engrams.memory_id == name.id, _engrams.replaced_by == "", either)
    return EngramRecord.all(conn, query.order_by(_engrams.number))


def fetch(conn: Connection, name: MemoryName, ids: Sequence[str]) -> list[EngramRecord]:
    """Return engrams by id, unordered."""
    records: list[EngramRecord] = []
    for part in in_parts(ids):
        records += EngramRecord.all(
            conn, sa.select(ENGRAMS).where(_engrams.memory_id == name.id, _engrams.id.in_(part))
        )
    return records


def strongest(conn: Connection, name: MemoryName, most: int) -> list[EngramRecord]:
    """Return the strongest unreplaced engrams; among equals, the newest come first."""
    query = sa.select(ENGRAMS).where(_engrams.memory_id == name.id, _engrams.replaced_by == "")
    order = (_engrams.strength.desc(), _engrams.created_ms.desc(), _engrams.number.desc())
    return EngramRecord.all(conn, query.order_by(*order).limit(most))


def page(
    conn: Connection, name: MemoryName, text: str, which: str, offset: int, most: int
) -> tuple[int, list[EngramRecord]]:
    """Return the total and one page, newest first, of the engrams whose content or keywords contain ``text``.

    ASCII letters match in either case. ``which`` is ``current``, ``replaced``, ``proposed`` or ``all``.
    """
    query = _which(sa.select(ENGRAMS).where(_engrams.memory_id == name.id), which)
    if text:
        lowered = text.translate(str.maketrans(ascii_uppercase, ascii_lowercase))
        query = query.where(
            sa.or_(*(sa.func.strpos(_lower(column), lowered) > 0 for column in (_engrams.content, _engrams.cues)))
        )
    total = conn.execute(sa.select(sa.func.count()).select_from(query.subquery())).scalar_one()
    newest = query.order_by(_engrams.created_ms.desc(), _engrams.number.desc())
    return int(total), EngramRecord.all(conn, newest.offset(offset).limit(most))


def _lower(column: ColumnElement[str]) -> ColumnElement[str]:
    return sa.func.translate(column, ascii_uppercase, ascii_lowercase)


def _which(query: Select[Any], which: str) -> Select[Any]:
    if which == "all":
        return query
    if which == "replaced":
        return query.where(_engrams.replaced_by != "")
    query = query.where(_engrams.replaced_by == "")
    return query.where(_engrams.proposed) if which == "proposed" else query


def all_of(conn: Connection, name: MemoryName) -> list[EngramRecord]:
    """Return every engram, oldest first."""
    query = sa.select(ENGRAMS).where(_engrams.memory_id == name.id)
    return EngramRecord.all(conn, query.order_by(_engrams.created_ms, _engrams.number))
