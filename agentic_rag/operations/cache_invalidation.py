"""Invalidate this process's caches of domains, tools and users when another process changes the shared store.

Maps each signal to the caches it invalidates. Reloads that read the store run one after the other in the background.
Knows no turn: turns receive their own signals.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from agentic_rag.access.keys import Access
from agentic_rag.base.errors import NotFound
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.base.workers import Queue, attempt
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import enabled_hashes
from agentic_rag.domains.vault import Vault
from agentic_rag.store.signals import SignalKind, SignalRecord
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import McpPool

if TYPE_CHECKING:  # imports PostgreSQL's driver
    from agentic_rag.store.signal_feed import SignalFeed

Change = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)


class BudgetCache(Protocol):
    """This process's copy of the budgets."""

    async def refresh(self) -> None:
        """Reload the budgets."""
        ...

    def wake_waiting(self) -> None:
        """Wake the calls that wait for a budget."""
        ...


class Titles(Protocol):
    """Sends titles to the clients that follow conversations."""

    async def tell_stored(self, conversation_id: ConversationId, turn_id: TurnId) -> None:
        """Send a title that another process has stored."""
        ...


class ReplicaNews:
    """Subscribes to a feed of signals. `run` does the reloads."""

    def __init__(
        self,
        feed: "SignalFeed",
        directory: Directory,
        vault: Vault,
        access: Access,
        pool: McpPool,
        lists: ToolLists,
        budgets: BudgetCache,
        titles: Titles,
    ) -> None:
        self._directory = directory
        self._vault = vault
        self._access = access
        self._pool = pool
        self._lists = lists
        self._budgets = budgets
        self._titles = titles
        self._changed: Queue[Change] = Queue()
        feed.subscribe(SignalKind.DOMAIN, self._on_domain_changed)
        feed.subscribe(SignalKind.DOCUMENTS, lambda signal: directory.collection_changed(signal.subject))
        feed.subscribe(SignalKind.TOOLS, lambda signal: lists.forget(signal.subject))
        feed.subscribe(SignalKind.ACCESS, lambda _: self._changed.put(self._reload_access))
        feed.subscribe(SignalKind.BUDGETS, lambda _: self._changed.put(self._reload_budgets))
        feed.subscribe(SignalKind.TITLE, self._on_title)
        feed.subscribe(SignalKind.GAP, self._forget_all)

    def _on_domain_changed(self, signal: SignalRecord) -> None:
        self._directory.forget(signal.subject)
        self._vault.forget(signal.subject)
        self._changed.put(partial(self._reload_domain, signal.subject))

    def _on_title(self, signal: SignalRecord) -> None:
        notify = partial(self._titles.tell_stored, ConversationId(signal.subject), TurnId(signal.detail))
        self._changed.put(notify)

    def _forget_all(self, _: SignalRecord) -> None:
        self._directory.forget_all()
        self._lists.forget(None)
        for take in (partial(self._reload_domain, None), self._reload_access, self._reload_budgets):
            self._changed.put(take)

    async def run(self) -> None:
        """Run the queued reloads until cancelled."""
        while True:
            await attempt("reading what another server changed", await self._changed.get())

    async def _reload_access(self) -> None:
        await self._access.apply_changes()

    async def _reload_budgets(self) -> None:
        await self._budgets.refresh()
        self._budgets.wake_waiting()

    async def _reload_domain(self, domain_id: str | None) -> None:
        await self._vault.refresh(domain_id)
        changed = [domain.id for domain in await self._directory.list_all()] if domain_id is None else [domain_id]
        for changed_id in changed:
            try:
                await self._pool.servers_changed(changed_id, enabled_hashes(await self._directory.settings(changed_id)))
            except NotFound:  # deleted: also remove the stored data of its servers
                await self._pool.servers_changed(changed_id, None)
