"""The tool lists of users' servers over time: stored while a server is down, compared with the accepted list.

Owns which list counts in a turn. Knows no database: the functions to load and save are passed in.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from agentic_rag.base.errors import ToolsChanged
from agentic_rag.base.redaction import Redactor
from agentic_rag.tools.fingerprints import Tool, ToolList, fingerprint_of_waiting, from_json, to_json
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.listing import clean, clean_description, clean_title
from agentic_rag.tools.status import ConnectionState, ListedTool, PendingTools, WaitingTool

if TYPE_CHECKING:  # takes 0.3 s to import
    import mcp_types as types

Key = tuple[str, str, str]
"""Domain, server, and the user of an ``identity: user`` entry (else empty)."""

Load = Callable[[Key], Awaitable[ToolList | None]]
Save = Callable[[Mapping[Key, ToolList], object], Awaitable[None]]
"""Stores lists in one transaction, with a note of the acting person (None: a server listed its tools again)."""
LoadDomain = Callable[[str], Awaitable[Mapping[Key, ToolList]]]
MAX_TRIALS = 256
"""Maximum number of tested servers whose tools are remembered."""


@dataclass(slots=True)
class _Cached:
    """The last comparison: the stored list, its shown tools, and the server's answer that it came from."""

    stored: ToolList
    tools: "tuple[types.Tool, ...]"
    changed: frozenset[str]
    listed: "tuple[types.Tool, ...] | None" = None


class ToolLists:
    """The stored lists of all domains, with the data a turn needs cached in memory. One for the life of the process."""

    def __init__(
        self,
        load: Load,
        save: Save,
        load_domain: LoadDomain,
        redactor: Redactor | None = None,
    ) -> None:
        """Store the collaborators. ``redactor`` removes a domain's secrets from its lists, which a server may leak."""
        self._load = load
        self._save = save
        self._load_domain = load_domain
        self._redactor = redactor or Redactor()
        self._cache: dict[Key, _Cached] = {}
        self._tried: OrderedDict[Key, tuple[ListedTool, ...]] = OrderedDict()
        """The tools that a test found, by domain, server and `McpEntry.hash`, oldest first."""
        self._writing = anyio.Lock()
        """Held from reading a stored list to writing it: a concurrent acceptance would be overwritten."""

    async def current(
        self, spec: LaunchSpec, listed: "tuple[types.Tool, ...] | None"
    ) -> "tuple[tuple[types.Tool, ...], frozenset[str]]":
        """Return the accepted tools of a server for a turn, and the names of those that may not run.

        ``listed`` is the server's current list, or None while the server is down: then the stored list counts.
        Accepting an entry accepts the first list under it. A tool that changed since then is returned in its accepted
        form and may not run. A new tool, or one that is listed twice, is left out.
        """
        key = (spec.domain, spec.name, spec.owner)
        entry = spec.entry.hash()
        cached = self._cache.get(key)
        # The usual case, without the lock: the connection's list is the same object until the server lists again.
        if cached is not None and cached.stored.entry == entry and cached.listed is listed:
            return cached.tools, cached.changed
        async with self._writing:
            cached = self._cache.get(key)  # another turn may have compared the list meanwhile
            if cached is None:
                stored = await self._load(key)
                cached = None if stored is None else _read_list(stored)
            # The admin has changed the entry, which may be another server now: its first list counts as accepted.
            if cached is not None and cached.stored.entry != entry:
                cached = None
            if listed is None:
                if cached is None:
                    return (), frozenset()
            elif cached is None or cached.listed is not listed:
                cached = await self._compare(key, entry, cached, listed)
            self._cache[key] = cached
            return cached.tools, cached.changed

    def note_trial(self, spec: LaunchSpec, state: ConnectionState) -> None:
        """Remember the tools that a test of an entry found, without the secrets of its domain."""
        self._tried[spec.domain, spec.name, spec.entry.hash()] = state.tools
        if len(self._tried) > MAX_TRIALS:
            self._tried.popitem(last=False)

    async def list_expected(self, spec: LaunchSpec) -> "tuple[tuple[types.Tool, ...], frozenset[str]]":
        """Return what `current` returns of a server that is down. Before its first use, a test's tools count."""
        tools, changed = await self.current(spec, None)
        tried = self._tried.get((spec.domain, spec.name, spec.entry.hash()), ())
        if tools or not tried:
            return tools, changed
        forms = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in tried
        ]
        return from_json(forms), frozenset()

    def forget(self, domain: str | None) -> None:
        """Drop the cache of a domain, because another process changed its lists; None drops all domains."""
        for key in [key for key in self._cache if domain in (None, key[0])]:
            del self._cache[key]

    async def pending(self, domain: str, entries: Mapping[str, str]) -> dict[str, PendingTools]:
        """Return the tools that an admin of one domain has to review, by server.

        ``entries`` are the current servers, each with its `McpEntry.hash`. Lists of other entries are ignored.
        """
        lists = await self._load_domain(domain)
        return {server: _pending(_of_server(lists, server, entry)) for server, entry in entries.items()}

    async def accept(self, domain: str, server: str, entry: str, reviewed: str, note: object = None) -> tuple[str, ...]:
        """Accept the waiting tools of a server under an entry, as the admin saw them; return their names.

        ``reviewed`` is `PendingTools.fingerprint`. ``note`` is stored in the same transaction.

        Raises:
            ToolsChanged: Other tools are waiting now; nothing is accepted.
        """
        async with self._writing:
            lists = _of_server(await self._load_domain(domain), server, entry)
            pending = _pending(lists)
            # The server may have listed other tools since the admin's page was loaded.
            if pending.fingerprint != reviewed:
                raise ToolsChanged(server)
            accepted = {key: stored.accept() for key, stored in lists.items() if stored.waiting}
            await self._save(accepted, note)
            for key in accepted:
                self._cache.pop(key, None)
        return pending.names

    async def _compare(self, key: Key, entry: str, cached: _Cached | None, listed: "tuple[types.Tool, ...]") -> _Cached:
        # Redacted before it is stored, since a server may write its key into a description.
        tools = tuple(map(self._redactor.of(key[0]).json, to_json(listed)))
        stored = ToolList.first(entry, tools) if cached is None else replace(cached.stored, tools=tools)
        if cached is None or cached.stored.tools != tools:
            await self._save({key: stored}, None)
        return _read_list(stored, listed)


def _read_list(stored: ToolList, listed: "tuple[types.Tool, ...] | None" = None) -> _Cached:
    changed = frozenset(str(new["name"]) for old, new in stored.waiting if old is not None)
    return _Cached(stored, from_json(stored.shown), changed, listed)


def _of_server(lists: Mapping[Key, ToolList], server: str, entry: str) -> dict[Key, ToolList]:
    return {key: stored for key, stored in lists.items() if key[1] == server and stored.entry == entry}


def _pending(lists: Mapping[Key, ToolList]) -> PendingTools:
    by_user = {user: stored for (_, _, user), stored in lists.items()}
    waiting = tuple(
        WaitingTool(str(new["name"]), user, None if old is None else _describe_listed(old), _describe_listed(new))
        for user, stored in sorted(by_user.items())
        for old, new in stored.waiting
    )
    doubled = {name for stored in by_user.values() for name in stored.doubled}
    return PendingTools(waiting, tuple(sorted(doubled)), fingerprint_of_waiting(by_user))


def _describe_listed(tool: Tool) -> ListedTool:
    title = clean_title(str(tool.get("title") or ""))
    described = clean_description(tool.get("description") or "")
    return ListedTool(clean(str(tool["name"])), described, tool["inputSchema"], title)
