"""Memories as their owner sees them: browsing, deleting, taking out and bringing in.

Owns whose memory a caller gets (the same as in a turn of his) and the merging of a domain's roles into one list.
What a memory is, on disk and in recall, is `mcp_servers.promptx`'s. Knows no request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread

from agentic_rag.access.users import User
from agentic_rag.domains.definitions import Definitions
from agentic_rag.errors import Forbidden, InvalidInput, NotFound, StorageFull
from agentic_rag.roles.effective_prompt import definition_now
from mcp_servers.promptx.errors import BadRoleId, BadScope, MemoryUnavailable
from mcp_servers.promptx.ids import ID
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.live import SHELF
from mcp_servers.promptx.memory import Memory, engram_json, memory_folder

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Whose memories: those of a ``user`` or of the whole ``domain``, in a workspace."""

    workspace: Path
    scope: str
    user: str

    def memory(self, role: str) -> Memory:
        return Memory(memory_folder(self.workspace, self.scope, self.user, role))


@dataclass(frozen=True, slots=True)
class MemoryPage:
    """Part of what there is, newest first, each with its role; ``total`` counts all that match."""

    scope: str
    roles: tuple[str, ...]
    """Roles that have memories here."""
    total: int
    items: tuple[tuple[str, Engram], ...]


@dataclass(frozen=True, slots=True)
class Export:
    """A whole memory, oldest first, and how often each cue was recalled."""

    role: str
    scope: str
    engrams: tuple[dict[str, Any], ...]
    frequencies: dict[str, int]


class Memories:
    """The memories of all domains."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions

    async def browse(
        self, user: User, domain_id: str, *, role: str | None, q: str, offset: int, limit: int
    ) -> MemoryPage:
        """Return a page of one role's memories, or of all roles'; ``q`` is part of the content or a keyword.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the role is no id.
            StorageFull: the memory cannot be read now.
        """
        place = await self._place(user, domain_id)

        def work() -> MemoryPage:
            known = _roles(place)
            found = [(each, place.memory(each).browse(0, offset + limit, q)) for each in ([role] if role else known)]
            items = [(name, engram) for name, page in found for engram in page.engrams]
            items.sort(key=lambda item: item[1].timestamp, reverse=True)  # stable: a role's order stays
            total = sum(page.total for _, page in found)
            return MemoryPage(place.scope, known, total, tuple(items[offset : offset + limit]))

        return await _run(work)

    async def delete(self, user: User, domain_id: str, memory_id: str, *, role: str | None = None) -> None:
        """Forget one memory, its bytes too.

        Raises:
            NotFound: there is no such domain, or no such memory of this user.
            Forbidden: the domain's memories are shared, and the user is not its admin.
            StorageFull: the memory cannot be written now.
        """
        place = await self._place(user, domain_id)
        self._check_write(user, domain_id, place)

        def work() -> bool:
            names = [role] if role else _roles(place)
            return any(place.memory(each).delete([memory_id]) for each in names if place.memory(each).exists)

        if not await _run(work):
            raise NotFound("memory", memory_id)

    async def export(self, user: User, domain_id: str, role: str) -> Export:
        """Return all memories of a role.

        Raises:
            NotFound: there is no such domain, or the role has no memory.
            InvalidInput: the role is no id.
            StorageFull: the memory cannot be read now.
        """
        place = await self._place(user, domain_id)

        def work() -> Export | None:
            memory = place.memory(role)
            if not memory.exists:
                return None
            live = SHELF.folder(memory.folder)
            with live.lock:
                frequencies = dict(live.network().frequency)
            return Export(role, place.scope, tuple(memory.export()), frequencies)

        found = await _run(work)
        if found is None:
            raise NotFound("memory", role)
        return found

    async def bring_in(
        self, user: User, domain_id: str, role: str, engrams: Sequence[Engram], frequencies: Mapping[str, int]
    ) -> int:
        """Add checked engrams in one transaction; ids already there are left as they are. Return how many came.

        Raises:
            NotFound: there is no such domain.
            Forbidden: the domain's memories are shared, and the user is not its admin.
            InvalidInput: the role is no id.
            StorageFull: the memory cannot be written now.
        """
        place = await self._place(user, domain_id)
        self._check_write(user, domain_id, place)

        def work() -> int:
            live = SHELF.folder(place.memory(role).folder)
            added = live.insert(engrams)
            if frequencies:
                live.merge_frequencies(frequencies)
            SHELF.soil(live)
            return added

        return await _run(work)

    async def _place(self, user: User, domain_id: str) -> Place:
        bound = (await definition_now(self._definitions, user, domain_id)).bound
        return Place(Path(bound["workspace"]), bound["scope"], user.id)

    def _check_write(self, user: User, domain_id: str, place: Place) -> None:
        if place.scope == "domain" and not user.administers(domain_id):
            raise Forbidden("The memories of this domain are shared: only its admin may change them.")


def memory_view(role: str, engram: Engram) -> dict[str, Any]:
    """Return a memory's fields with its role; ``createdAt`` in milliseconds."""
    return {"role": role, **engram_json(engram)}


def _roles(place: Place) -> tuple[str, ...]:
    """Roles with a memory, by id; a link could lead out of the workspace and does not count."""
    folder = place.memory("any").folder.parent
    if not folder.is_dir():
        return ()
    named = (each for each in folder.iterdir() if ID.match(each.name) and not each.is_symlink())
    return tuple(sorted(each.name for each in named if Memory(each).exists))


async def _run(work: Callable[[], T]) -> T:
    """Do blocking work in a thread; errors of the package become ours."""
    try:
        return await anyio.to_thread.run_sync(work)
    except (BadRoleId, BadScope) as exc:
        raise InvalidInput(exc.field, str(exc)) from exc
    except MemoryUnavailable as exc:
        raise StorageFull(str(exc)) from exc
