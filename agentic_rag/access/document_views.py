"""Which documents of a domain a reader may see.

Every read of documents takes a `DocumentView`, so that a new door cannot forget the labels. `DocumentViews` is the only
maker of restricted views: it looks up the domain's rules, the reader's groups and the documents' labels at each call,
so that a change of rights counts from the next request or tool call.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from agentic_rag.access.rights import groups_of, user_of
from agentic_rag.access.users import LOCAL, User
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Json
from agentic_rag.directory.document_labels import LabelRules
from agentic_rag.store import documents, domains, keys, provenance, users
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
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


MOST_DOMAINS: Final = 1_000
"""Maximum number of domains whose labels are cached."""
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
    def of_call(cls, bound: Json) -> "DocumentReader":
        """Return the reader of a tool call. ``bound`` has the members of the call's `Binding`.

        Without a user, the reader sees only documents without labels.
        """
        user, key = bound.get("user"), bound.get("key")
        return cls(
            user if isinstance(user, str) else "",
            key if isinstance(key, str) else "",
            trusted=bound.get("trusted") is True,
        )


@dataclass(frozen=True, slots=True)
class _Labels:
    """The labels of a domain's documents at one time. ``sets``: the documents with exactly these labels."""

    domain_version: int
    label_version: int
    rules: LabelRules
    sets: Mapping[frozenset[str], frozenset[DocumentId]]
    views: dict[frozenset[str], DocumentView]
    """The views that were made, by the held labels that matter."""

    def view(self, reader_labels: frozenset[str]) -> DocumentView:
        """Return the view of a reader who holds some labels."""
        all_labels = frozenset().union(*self.sets, *self.rules.folders.values())
        mattering = reader_labels & all_labels
        if mattering == all_labels:
            return EVERY_DOCUMENT  # without ids, so that documents added later are visible, too
        if mattering not in self.views:
            visible = (ids for labels, ids in self.sets.items() if labels <= mattering)
            self.views[mattering] = DocumentView(frozenset[DocumentId]().union(*visible))
        return self.views[mattering]


class DocumentViews:
    """Makes the views of all domains' readers.

    The labels of a domain's documents are cached until the domain or a label changes. Each call compares the versions
    in the store, so that no change is missed, whichever process made it.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._labels: OrderedDict[str, _Labels] = OrderedDict()

    async def of(self, user: User, domain_id: str) -> DocumentView:
        """Return the view of a caller, whose rights were checked for this request. Admins see every document."""
        if user.reads_every_document(domain_id):
            return EVERY_DOCUMENT
        return await self.of_reader(DocumentReader(user.id, user.key_id), domain_id)

    async def of_reader(self, reader: DocumentReader, domain_id: str) -> DocumentView:
        """Return the present view of a reader. A revoked key and a disabled user hold no labels."""
        return await self._db.read(lambda conn: self.read(conn, reader, domain_id))

    async def hidden_turns(self, reader: DocumentReader, domain_id: str) -> frozenset[str]:
        """Return the turns whose memories may come from documents that the reader may not see."""
        return await self._db.read(lambda conn: _turns_outside(conn, domain_id, self.read(conn, reader, domain_id)))

    async def labelled_turns(self, domain_id: str) -> frozenset[str]:
        """Return the turns whose memories may come from documents that not everyone in the domain may see."""
        return await self._db.read(lambda conn: _turns_outside(conn, domain_id, self._view(conn, domain_id, frozenset)))

    def read(self, conn: Connection, reader: DocumentReader, domain_id: str) -> DocumentView:
        """Return the present view of a reader, inside a transaction."""
        if reader.trusted and (reader.user_id, reader.key_id) == (LOCAL.id, LOCAL.key_id):
            return EVERY_DOCUMENT
        record = users.get(conn, reader.user_id)
        if record is None and reader.trusted:
            return EVERY_DOCUMENT
        key = keys.get(conn, reader.key_id) if reader.key_id else None
        lost_key = bool(reader.key_id) and (key is None or key.revoked_at is not None or key.user_id != reader.user_id)
        if record is None or record.state is not UserState.ACTIVE or lost_key:
            return self._view(conn, domain_id, frozenset)
        if user_of(record, key).administers(domain_id):
            return EVERY_DOCUMENT
        return self._view(conn, domain_id, lambda: groups_of(record, key))

    def _view(self, conn: Connection, domain_id: str, groups: Callable[[], Collection[str]]) -> DocumentView:
        """Return the view of the members of some groups."""
        domain, version = domains.get(conn, domain_id), documents.label_version(conn, domain_id)
        if domain is None:  # deleted meanwhile
            return DocumentView(frozenset())
        labels = self._labels.get(domain_id)
        if labels is None or (labels.domain_version, labels.label_version) != (domain.version, version):
            labels = _read_labels(conn, domain, version)
            self._labels[domain_id] = labels
            while len(self._labels) > MOST_DOMAINS:
                self._labels.popitem(last=False)
        return labels.view(labels.rules.held_by(groups()))


def _read_labels(conn: Connection, domain: DomainRecord, version: int) -> _Labels:
    rules = LabelRules.of_settings(domain.settings)
    sets: dict[frozenset[str], set[DocumentId]] = {}
    if rules.folders or documents.has_labels(conn, domain.id):
        for document in documents.list_labelled(conn, domain.id):
            sets.setdefault(rules.labels_of(document.path, document.labels), set()).add(document.id)
    frozen = {labels: frozenset(ids) for labels, ids in sets.items()}
    return _Labels(domain.version, version, rules, frozen, {})


def _turns_outside(conn: Connection, domain_id: str, view: DocumentView) -> frozenset[str]:
    """Return the turns whose memories may come from documents that a view does not show."""
    if view.visible is None:
        return frozenset()
    sources = provenance.sources_of(conn, domain_id)
    return frozenset(source.turn_id for source in sources if not view.visible.issuperset(source.document_ids))
