"""The tool lists of users' servers over time: kept while a server is down, compared with what was accepted.

Owns which list counts in a turn. Knows no database: it is given how to load and save.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import anyio
import mcp_types as types

from agentic_rag.redaction import Redactor
from agentic_rag.tools.fingerprints import ToolList, fingerprints, from_json, to_json
from agentic_rag.tools.launch.spec import LaunchSpec

Key = tuple[str, str, str]
"""Domain, server, and the user of an ``identity: user`` entry (else empty)."""

Load = Callable[[Key], Awaitable[ToolList | None]]
Save = Callable[[Key, ToolList], Awaitable[None]]
LoadDomain = Callable[[str], Awaitable[Mapping[Key, ToolList]]]


@dataclass(slots=True)
class _Known:
    """What was last compared: the stored list, the tools of it, and from which answer of the server it came."""

    stored: ToolList
    tools: tuple[types.Tool, ...]
    changed: frozenset[str]
    listed: tuple[types.Tool, ...] | None = None


class ToolLists:
    """The stored lists of all domains, with what a turn needs kept in memory. One for the life of the process."""

    def __init__(
        self,
        load: Load,
        save: Save,
        load_domain: LoadDomain,
        redactor: Redactor | None = None,
    ) -> None:
        """``redactor``: takes a domain's secrets out of its lists, since a server may tell of one."""
        self._load = load
        self._save = save
        self._load_domain = load_domain
        self._redactor = redactor or Redactor()
        self._known: dict[Key, _Known] = {}
        self._writing = anyio.Lock()
        """Held from reading a stored list to writing it: an acceptance in between would be overwritten."""

    async def current(
        self, spec: LaunchSpec, listed: tuple[types.Tool, ...] | None
    ) -> tuple[tuple[types.Tool, ...], frozenset[str]]:
        """Return the tools of a server for a turn, and the names of those that may not run until accepted.

        ``listed`` is what it listed now; None when it is down: then the stored list stands. The first list under
        an entry is accepted with the entry.
        """
        key = (spec.domain, spec.name, spec.owner)
        entry = spec.entry.hash()
        known = self._known.get(key)
        if known is not None and known.stored.entry == entry and known.listed is listed:
            return known.tools, known.changed
        async with self._writing:
            known = self._known.get(key)
            if known is None:
                stored = await self._load(key)
                known = None if stored is None else _read_list(stored)
            if known is not None and known.stored.entry != entry:
                known = None
            if listed is None:
                if known is None:
                    return (), frozenset()
            elif known is None or known.listed is not listed:
                known = await self._compare(key, entry, known, listed)
            self._known[key] = known
            return known.tools, known.changed

    async def pending(self, domain: str, entries: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Return server → names of tools that wait to be accepted, for one domain.

        ``entries``: the servers there are, each with its `McpEntry.hash`; a list of another entry says nothing.
        """
        found: dict[str, set[str]] = {}
        for (_, server, _), stored in (await self._load_domain(domain)).items():
            if stored.entry == entries.get(server):
                found.setdefault(server, set()).update(stored.changed)
        return {server: tuple(sorted(names)) for server, names in found.items() if names}

    async def accept(self, domain: str, server: str, entry: str) -> tuple[str, ...]:
        """Accept the tools of a server as they were last listed under an entry; return the names that were waiting."""
        waiting: set[str] = set()
        async with self._writing:
            for key, stored in (await self._load_domain(domain)).items():
                if key[1] == server and stored.entry == entry:
                    waiting.update(stored.changed)
                    await self._save(key, replace(stored, accepted=fingerprints(stored.tools)))
                    self._known.pop(key, None)
        return tuple(sorted(waiting))

    async def _compare(self, key: Key, entry: str, known: _Known | None, listed: tuple[types.Tool, ...]) -> _Known:
        tools = tuple(map(self._redactor.of(key[0]).json, to_json(listed)))
        if known is None:
            stored = ToolList(entry, tools, fingerprints(tools))
        else:
            stored = replace(known.stored, tools=tools)
        if known is None or known.stored.tools != tools:
            await self._save(key, stored)
        return _Known(stored, listed, frozenset(stored.changed), listed)


def _read_list(stored: ToolList) -> _Known:
    return _Known(stored, from_json(stored.tools), frozenset(stored.changed))
