"""REST routes for document sources. This module defines the answers; ``sources`` decides the rules."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from agentic_rag.access.users import User
from agentic_rag.base.errors import LimitReached, SourceExists
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Absent
from agentic_rag.directory.source_forms import ADDRESS_CHARS, SourceChange, SourceForm
from agentic_rag.server.replies import Items, Part, Redacted, answer, answer_from
from agentic_rag.server.routing import route
from agentic_rag.sources.sources import ShownSource, Sources
from agentic_rag.store.sources import SourceItemRecord, SourceKind, SourceState

SOURCES = "/api/domains/{domain}/sources"
SOURCE = f"{SOURCES}/{{source}}"


class ItemQuery(Form):
    """A page of items by address: those after ``after``. ``failed``: only those with an error."""

    after: Annotated[str, StringConstraints(max_length=ADDRESS_CHARS)] = ""
    limit: int = Field(100, ge=1, le=1_000)
    failed: bool = False


class SourceDeletionQuery(Form):
    """What happens to the documents of a source that is deleted."""

    documents: Literal["keep", "delete"]


@answer()
class RunCountsAnswer:
    """What a run did; see ``RunCounts``."""

    listed: int
    unchanged: int
    fetched: int
    changed: int
    failed: int
    missing: int
    removed: int


@answer()
class SourceProblem:
    """The error that ended the last run."""

    code: str
    message: str


@answer(kw_only=True)
class DocumentSource:
    """A source of documents, with the state of its last run.

    One of ``mcp``, ``folder`` and ``website`` is present. ``filesFolder`` is its folder in the documents folder.
    ``items`` counts its items, and ``failedItems`` those that could not be read. ``notes`` say what the last run left
    out. ``requested``: a run begins soon.
    """

    id: str
    name: str
    kind: SourceKind
    mcp: Absent[Mapping[str, Any]] = None
    folder: Absent[Mapping[str, Any]] = None
    website: Absent[Mapping[str, Any]] = None
    files_folder: str
    labels: Sequence[str]
    exclude: Sequence[str]
    interval_minutes: int
    grace_hours: int
    max_items: int
    enabled: bool
    owner_id: str
    state: SourceState
    requested: bool
    items: int
    failed_items: int
    counts: RunCountsAnswer
    notes: Sequence[str]
    problem: Absent[SourceProblem] = None
    next_at: str | None
    started_at: str | None
    ended_at: str | None
    created_at: str
    updated_at: str


@answer(kw_only=True)
class ListedItem:
    """An item of a source. ``missingSince`` is the time of the first complete list without it."""

    uri: str
    name: str
    document_id: Absent[str] = None
    version: str
    error: Absent[SourceProblem] = None
    seen_at: str
    missing_since: Absent[str] = None


class SourceRoutes:
    """Sources of documents."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    @route("GET", SOURCES)
    async def list(self, domain: str) -> Redacted[Items[DocumentSource]]:
        """List the sources of a domain by name."""
        return Redacted(domain, Items([_show(source) for source in await self._sources.list_of(domain)]))

    @route("POST", SOURCES, status=201, errors=[LimitReached, SourceExists])
    async def create(self, user: User, domain: str, body: SourceForm) -> Redacted[DocumentSource]:
        """Create a source. Its first run begins within seconds."""
        return Redacted(domain, _show(await self._sources.create(user, domain, body)))

    @route("GET", SOURCE)
    async def get(self, domain: str, source: str) -> Redacted[DocumentSource]:
        """Show a source."""
        return Redacted(domain, _show(await self._sources.get(domain, source)))

    @route("PATCH", SOURCE, errors=[SourceExists])
    async def change(self, user: User, domain: str, source: str, body: SourceChange) -> Redacted[DocumentSource]:
        """Change a source, and the labels of its documents at once. The caller becomes its owner."""
        return Redacted(domain, _show(await self._sources.change(user, domain, source, body)))

    @route("DELETE", SOURCE)
    async def delete(self, domain: str, source: str, query: SourceDeletionQuery) -> None:
        """Delete a source. Its documents stay, or are removed within seconds."""
        await self._sources.delete(domain, source, keep_documents=query.documents == "keep")

    @route("POST", f"{SOURCE}/run", status=202)
    async def run(self, domain: str, source: str) -> Redacted[DocumentSource]:
        """Run a source now, in addition to its interval."""
        return Redacted(domain, _show(await self._sources.run_now(domain, source)))

    @route("GET", f"{SOURCE}/items")
    async def items(self, domain: str, source: str, query: ItemQuery) -> Redacted[Part[ListedItem]]:
        """List the items of a source by address."""
        items = await self._sources.items(domain, source, query.after, query.limit + 1, failed=query.failed)
        return Redacted(domain, Part([_show_item(item) for item in items[: query.limit]], len(items) > query.limit))


def _show(shown: ShownSource) -> DocumentSource:
    record = shown.record
    problem = SourceProblem(record.problem_code, record.problem) if record.problem_code else None
    return answer_from(
        DocumentSource,
        record,
        mcp=record.config if record.kind is SourceKind.MCP else None,
        folder=record.config if record.kind is SourceKind.FOLDER else None,
        website=record.config if record.kind is SourceKind.WEBSITE else None,
        files_folder=record.folder,
        items=shown.items,
        failed_items=shown.failed,
        counts=answer_from(RunCountsAnswer, record.counts),
        problem=problem,
    )


def _show_item(item: SourceItemRecord) -> ListedItem:
    error = SourceProblem(item.error_code, item.error) if item.error_code else None
    return answer_from(ListedItem, item, document_id=item.document_id or None, error=error)
