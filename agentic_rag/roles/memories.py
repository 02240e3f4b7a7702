"""Browse, delete, export and import memories for their owner.

Decides whose memory a caller gets, the same as in the caller's turns, and merges a domain's roles into one list.
`mcp_servers.promptx` implements memories. Knows no request.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentic_rag.access.document_views import DocumentReader, DocumentViews
from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, InvalidInput, NotFound, QuotaExceeded, StorageFull
from agentic_rag.base.threads import DomainThreads
from agentic_rag.domains.definitions import Definitions
from agentic_rag.roles.effective_prompt import definition_now
from mcp_servers.promptx.errors import (
    BadEngram,
    BadRecall,
    BadRoleId,
    BadScope,
    MemoryFull,
    MemoryUnavailable,
    NotYours,
    UnknownMemory,
)
from mcp_servers.promptx.ledger import Engram, Which
from mcp_servers.promptx.memory import SHELF, Memory, MemoryCache, Recollection, memory_folder
from mcp_servers.promptx.new_engrams import NewEngram
from mcp_servers.safe_files import Folder

REMEMBERED_STRENGTH = 0.7
"""Strength of a memory that a program saves for a person."""
SHARED = "The memories of this domain are shared: only its admin may change them."


@dataclass(frozen=True, slots=True)
class MemoryOwner:
    """The memories of a ``user`` or of the whole ``domain`` in a workspace. ``shelf`` stores them."""

    workspace: Path
    scope: str
    user: str
    shelf: MemoryCache = SHELF
    hidden: frozenset[str] = frozenset()
    """Turns whose memories the reader must not see."""

    def folder(self, role: str) -> Folder:
        return memory_folder(self.workspace, self.scope, self.user, role)

    def memory(self, role: str) -> Memory:
        return self.shelf.memory(self.folder(role))

    def visible(self, role: str) -> AbstractContextManager[Memory]:
        """Open the part of the role's memory that the reader may see."""
        return self.shelf.visible(self.folder(role), self.hidden)

    def has(self, role: str) -> bool:
        """Return whether the role has a memory."""
        return self.shelf.has(self.folder(role))

    def roles(self) -> tuple[str, ...]:
        """Return the ids of the roles with a memory."""
        return tuple(self.shelf.roles(self.folder("any").parent))


@dataclass(frozen=True, slots=True)
class EngramPage:
    """A page of memories, newest first, each with its role. ``total`` counts all matches."""

    scope: str
    roles: tuple[str, ...]
    """Ids of the roles with a memory."""
    total: int
    items: tuple[tuple[str, Engram], ...]


@dataclass(frozen=True, slots=True)
class Export:
    """A whole memory, oldest first, and the recall count of each cue."""

    role: str
    scope: str
    engrams: tuple[Engram, ...]
    frequencies: dict[str, int]


class Memories:
    """The memories of all domains. Each method raises `WorkspaceUnavailable` if the workspace does not answer."""

    def __init__(
        self,
        definitions: Definitions,
        views: DocumentViews,
        limit: int,
        threads: DomainThreads,
        shelf: MemoryCache,
    ) -> None:
        """Create the service. ``limit`` is the maximum of one user and role; ``shelf`` stores the memories.

        ``views`` decides which memories come from documents that a reader must not see.
        """
        self._views = views
        self._definitions = definitions
        self._limit = limit
        self._threads = threads
        self._shelf = shelf

    async def browse(
        self,
        user: User,
        domain_id: str,
        *,
        role: str | None,
        q: str,
        offset: int,
        limit: int,
        which: Which = "current",
    ) -> EngramPage:
        """Return a page of the memories of one role or of all roles. ``q`` searches contents and keywords.

        ``which`` selects current, replaced or proposed memories, or all.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the role id is not valid.
            StorageFull: the memory cannot be read now.
        """
        place = await self._place(user, domain_id)

        def work() -> EngramPage:
            role_ids = place.roles()
            pages = []
            for role_id in [role] if role else role_ids:
                with place.visible(role_id) as memory:
                    # Any role may have all the newest memories, so each is asked for the whole range; the merged list
                    # is cut below.
                    pages.append((role_id, memory.browse(0, offset + limit, q, which)))
            items = [(name, engram) for name, page in pages for engram in page.engrams]
            items.sort(key=lambda item: item[1].created_at, reverse=True)  # a stable sort keeps each role's order
            total = sum(page.total for _, page in pages)
            return EngramPage(place.scope, role_ids, total, tuple(items[offset : offset + limit]))

        with _own_errors():
            return await self._threads.read(str(place.workspace), work)

    async def recall(
        self, user: User, domain_id: str, role: str, query: str | Sequence[str] | None, mode: str
    ) -> Recollection:
        """Show which memories a role would recall, with the cues and steps. No recall is counted.

        ``query`` is a text, a list of cues, or None for the strongest memories.

        Raises:
            NotFound: there is no such domain, or the role has no memory.
            InvalidInput: the role id or the query is not valid.
            StorageFull: the memory cannot be read now.
        """
        place = await self._place(user, domain_id)

        def work() -> Recollection | None:
            if not place.has(role):
                return None
            with place.visible(role) as memory:
                return memory.recall(query, mode, time.time_ns() // 1_000_000, counted=False)

        with _own_errors():
            recollection = await self._threads.read(str(place.workspace), work)
        if recollection is None:
            raise NotFound("memory", role)
        return recollection

    async def delete(self, user: User, domain_id: str, memory_id: str, *, role: str | None = None) -> None:
        """Delete one memory and the memories it replaced, including their bytes on disk.

        Raises:
            NotFound: there is no such domain, or this user has no such memory.
            Forbidden: the domain's memories are shared, and the user is neither its admin nor the memory's author.
            StorageFull: the memory cannot be written now.
        """
        place = await self._place(user, domain_id)

        own_only = place.scope == "domain" and not user.administers(domain_id)

        def work() -> None:
            names = [role] if role else place.roles()
            memories = [place.memory(role_id) for role_id in names if place.has(role_id)]
            memory = next((candidate for candidate in memories if candidate.fetch([memory_id])), None)
            # A memory from a document that the user may not see looks like one that does not exist.
            if memory is None or not place.hidden.isdisjoint(engram.turn for engram in memory.fetch([memory_id])):
                raise UnknownMemory(memory_id)
            memory.forget(memory_id, user.id, own_only=own_only)

        with _own_errors():
            await self._threads.run(str(place.workspace), work)

    async def export(self, user: User, domain_id: str, role: str, *, unlabelled: bool = False) -> Export:
        """Return all memories of a role that the user may see.

        ``unlabelled``: only those that everyone in the domain may see, for a file that leaves the server.

        Raises:
            NotFound: there is no such domain, or the role has no memory.
            InvalidInput: the role id is not valid.
            StorageFull: the memory cannot be read now.
        """
        place = await self._place(user, domain_id)
        if unlabelled:
            place = replace(place, hidden=place.hidden | await self._views.labelled_turns(domain_id))

        def work() -> Export | None:
            if not place.has(role):
                return None
            with place.visible(role) as memory:
                return Export(role, place.scope, tuple(memory.export()), memory.frequencies())

        with _own_errors():
            export = await self._threads.read(str(place.workspace), work)
        if export is None:
            raise NotFound("memory", role)
        return export

    async def add(
        self, user: User, domain_id: str, role: str, engrams: Sequence[Engram], frequencies: Mapping[str, int]
    ) -> int:
        """Add validated engrams in one transaction; existing ids are unchanged. Returns the number of new ones.

        Raises:
            NotFound: there is no such domain.
            Forbidden: the domain's memories are shared, and the user is not its admin.
            InvalidInput: the role id is not valid.
            StorageFull: the memory cannot be written now.
        """
        place = await self._place(user, domain_id)
        self._check_write(user, domain_id, place)

        def work() -> int:
            memory = place.memory(role)
            added = memory.add([replace(engram, author=user.id) for engram in engrams], frequencies, self._limit)
            if frequencies:
                memory.save()  # unlike engrams, counts are stored only in the network
            else:
                memory.save_if_behind()
            return added

        with _own_errors():
            return await self._threads.run(str(place.workspace), work)

    async def remember(self, user: User, domain_id: str, content: str, keywords: Sequence[str]) -> tuple[str, bool]:
        """Save one memory for the domain's role, as its model does in a turn of the user.

        Returns the role, and False if the same memory is stored already.

        Raises:
            NotFound: there is no such domain.
            Forbidden: the domain's memories are shared, and the user is not its admin.
            InvalidInput: the content or the keywords are not valid.
            QuotaExceeded: the memory is full.
            StorageFull: the memory cannot be written now.
        """
        binding = (await definition_now(self._definitions, user, domain_id)).binding
        place = MemoryOwner(Path(binding.workspace), binding.scope, user.id, self._shelf)
        self._check_write(user, domain_id, place)
        new = NewEngram(content, "\n".join(keywords), REMEMBERED_STRENGTH, "ATOMIC")

        def work() -> bool:
            at = time.time_ns() // 1_000_000
            done = place.memory(binding.role).remember([new], at, author=user.id, limit=self._limit)
            return bool(done.saved)

        with _own_errors():
            return binding.role, await self._threads.run(str(place.workspace), work)

    async def erase(self, workspace: Path, user_id: str) -> None:
        """Remove a user's memories from a workspace: the private ones, and those that the user saved in shared ones.

        Raises:
            StorageFull: a memory cannot be written now.
        """
        own = MemoryOwner(workspace, "user", user_id, self._shelf)
        shared = MemoryOwner(workspace, "domain", user_id, self._shelf)

        def work() -> None:
            # All roles at once: the private memories of a user are one folder.
            self._shelf.remove(own.folder("any").parent)
            for role in shared.roles():
                memory = shared.memory(role)
                own_ids = [engram.id for engram in memory.export() if engram.author == user_id]
                if own_ids:
                    memory.delete(own_ids)

        with _own_errors():
            await self._threads.run(str(workspace), work)

    async def _place(self, user: User, domain_id: str) -> MemoryOwner:
        binding = (await definition_now(self._definitions, user, domain_id)).binding
        reader = DocumentReader(user.id, user.key_id, trusted=user.reads_every_document(domain_id))
        hidden = await self._views.hidden_turns(reader, domain_id)
        return MemoryOwner(Path(binding.workspace), binding.scope, user.id, self._shelf, hidden)

    def _check_write(self, user: User, domain_id: str, place: MemoryOwner) -> None:
        if place.scope == "domain" and not user.administers(domain_id):
            raise Forbidden(SHARED)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Translate errors of `mcp_servers.promptx` into errors of this server."""
    try:
        yield
    except (BadRecall, BadRoleId, BadScope) as exc:
        raise InvalidInput(exc.field, str(exc)) from exc
    except BadEngram as exc:
        raise InvalidInput("arguments", exc.reason) from exc
    except UnknownMemory as exc:
        raise NotFound("memory", exc.engram_id) from exc
    except NotYours as exc:
        raise Forbidden(SHARED) from exc
    except MemoryFull as exc:
        raise QuotaExceeded("memories of one role", exc.limit, "AGENTIC_RAG_QUOTA_MEMORIES") from exc
    except MemoryUnavailable as exc:
        raise StorageFull(str(exc)) from exc
