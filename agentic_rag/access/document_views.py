"""Which documents of a domain a reader may see.

Every read of documents takes a `DocumentView`, so that a new door cannot forget the labels. `DocumentViews` is the only
maker of restricted views: it reads the domain's rules, the reader's current groups and the documents' labels in one
transaction, so that a change of rights counts from the next request or tool call.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from agentic_rag.access.rights import groups_of, user_of
from agentic_rag.access.users import LOCAL, User
from agentic_rag.base.ids import DocumentId
from agentic_rag.directory.document_labels import LabelRules
from agentic_rag.store import documents, domains, keys, provenance, users
from agentic_rag.store.database import Database
from agentic_rag.store.users import UserState


@dataclass(frozen=True, slots=True)
class DocumentView:
    """The documents that a reader may see. ``visible``: their ids, or None for all documents of the domain.

    A document that is added after the view was made is not visible in a view with ids.
    """

    visible: frozenset[DocumentId] | None = None

    def shows(self, document_id: str) -> bool:
        """Return whether the reader may see the document."""
        return self.visible is None or document_id in self.visible

    def within(self, scope: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return the ids in ``scope`` that are visible; None for all documents of the domain."""
        if self.visible is None:
            return None if scope is None else tuple(scope)
        return tuple(sorted(self.visible if scope is None else self.visible.intersection(scope)))


EVERY_DOCUMENT: Final = DocumentView()
"""The view of a domain's admins, and of the server's own work."""


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """The reader of a tool call, bound by the host. The rights are looked up at each call.

    ``trusted``: the reader administered the domain when the turn began. This decides only for readers without a record,
    such as the local user and evaluation runs.
    """

    user_id: str
    key_id: str = ""
    trusted: bool = False

    @classmethod
    def of_call(cls, bound: Mapping[str, Any]) -> "DocumentReader":
        """Return the reader of a tool call. ``bound`` has the members of the call's `Binding`.

        Without a user, the reader sees only documents without labels.
        """
        user, key = bound.get("user"), bound.get("key")
        return cls(
            user if isinstance(user, str) else "",
            key if isinstance(key, str) else "",
            trusted=bound.get("trusted") is True,
        )


class DocumentViews:
    """Makes the views of all domains' readers."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def of(self, user: User, domain_id: str) -> DocumentView:
        """Return the view of a caller, whose rights were checked for this request. Admins see every document."""
        if user.reads_every_document(domain_id):
            return EVERY_DOCUMENT
        return await self.of_reader(DocumentReader(user.id, user.key_id), domain_id)

    async def of_reader(self, reader: DocumentReader, domain_id: str) -> DocumentView:
        """Return the present view of a reader. A revoked key and a disabled user hold no labels."""
        return await self._db.read(lambda conn: view_of(conn, reader, domain_id))

    async def hidden_turns(self, reader: DocumentReader, domain_id: str) -> frozenset[str]:
        """Return the turns whose memories may come from documents that the reader may not see."""

        def read(conn: Connection) -> frozenset[str]:
            view = view_of(conn, reader, domain_id)
            if view.visible is None:
                return frozenset()
            sources = provenance.sources_of(conn, domain_id)
            return frozenset(each.turn_id for each in sources if not view.visible.issuperset(each.document_ids))

        return await self._db.read(read)

    async def labelled_turns(self, domain_id: str) -> frozenset[str]:
        """Return the turns whose memories may come from documents that not everyone in the domain may see."""

        def read(conn: Connection) -> frozenset[str]:
            view = _view(conn, domain_id, frozenset)
            if view.visible is None:
                return frozenset()
            sources = provenance.sources_of(conn, domain_id)
            return frozenset(each.turn_id for each in sources if not view.visible.issuperset(each.document_ids))

        return await self._db.read(read)


def view_of(conn: Connection, reader: DocumentReader, domain_id: str) -> DocumentView:
    """Return the present view of a reader, inside a transaction."""
    if reader.trusted and (reader.user_id, reader.key_id) == (LOCAL.id, LOCAL.key_id):
        return EVERY_DOCUMENT
    record = users.get(conn, reader.user_id)
    if record is None and reader.trusted:
        return EVERY_DOCUMENT
    key = keys.get(conn, reader.key_id) if reader.key_id else None
    lost_key = bool(reader.key_id) and (key is None or key.revoked_at is not None or key.user_id != reader.user_id)
    if record is None or record.state is not UserState.ACTIVE or lost_key:
        return _view(conn, domain_id, frozenset)
    if user_of(record, key).administers(domain_id):
        return EVERY_DOCUMENT
    return _view(conn, domain_id, lambda: groups_of(record, key))


def _view(conn: Connection, domain_id: str, groups: Callable[[], Collection[str]]) -> DocumentView:
    """Return the view of the members of some groups."""
    domain = domains.get(conn, domain_id)
    if domain is None:
        return DocumentView(frozenset())
    rules = LabelRules.of_settings(domain.settings)
    if not rules.folders and not documents.has_labels(conn, domain_id):
        return EVERY_DOCUMENT
    held = rules.held_by(groups())
    listed = documents.list_labelled(conn, domain_id)
    shown = frozenset(each.id for each in listed if rules.labels_of(each.path, each.labels) <= held)
    holds_all = len(shown) == len(listed) and all(held.issuperset(given) for given in rules.folders.values())
    return EVERY_DOCUMENT if holds_all else DocumentView(shown)
