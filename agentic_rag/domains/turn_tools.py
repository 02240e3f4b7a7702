"""The tools of a turn, from its definition: our own servers and the domain's, with the vault's rules around them.

Makes launch specs from a definition's entries, caches the toolsets of turns that use our own servers only, and keeps
secrets out of calls, results and questions. The pool connects to the servers.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import anyio.to_thread

from agentic_rag.base.events import ToolStatus, WaitAction
from agentic_rag.base.messages import Block, text_block
from agentic_rag.base.redaction import Redaction
from agentic_rag.domains.vault import Vault
from agentic_rag.runtime.core.calls import SECRET_IN_ARGUMENTS
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.results import encode_structured
from agentic_rag.tools.base import (
    Ask,
    CallOutcome,
    CallRequest,
    InputGiven,
    InputNeeded,
    ProgressSink,
    SystemServer,
    ToolInfo,
    Toolset,
)
from agentic_rag.tools.launch.spec import LaunchSpec, Secrets, spec_of
from agentic_rag.tools.listing import SHOWN_TOOLS
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import McpPool

MAX_CACHED = 256
"""Maximum number of domains whose toolsets of our own servers are cached."""

SECRET_IN_ADDRESS = (
    "The server asked the user to open an address that holds a secret of this domain. The address was not shown."
)


class TurnTools:
    """Opens the tools of turns, and lists those of a turn that has not begun."""

    def __init__(self, pool: McpPool, lists: ToolLists, vault: Vault) -> None:
        self._pool = pool
        self._lists = lists
        self._vault = vault
        self._own: OrderedDict[str, tuple[tuple[SystemServer, ...], Toolset]] = OrderedDict()
        """Toolsets without users' servers by domain, least recently used first."""

    async def open(self, definition: Definition) -> Toolset:
        """Start the servers of a definition and return the tools of a turn.

        Secrets are read now, and only for users' servers. An entry with missing values fails with the reason; the
        others continue. If a turn uses only our own servers and their lists have not changed, the toolset of the
        domain's last turn is returned.
        """
        await self._pool.wait_loaded()
        if not definition.entries and (cached := self._find_own(definition)) is not None:
            return cached
        from agentic_rag.tools.toolset import open_toolset  # imports the MCP library, which the pool has loaded

        # Our own servers get no secrets, and a turn without others should not wait for the store.
        secrets = await self._vault.values(definition.domain_id) if definition.entries else {}
        servers: list[SystemServer | LaunchSpec] = [*definition.system, *_specs(definition, secrets)]
        opened = await open_toolset(self._pool, servers, lists=self._lists)
        toolset = guard_tools(opened, definition, self._vault.redact.of(definition.domain_id))
        if not definition.entries:
            self._own[definition.domain_id] = definition.system, toolset
            if len(self._own) > MAX_CACHED:
                self._own.popitem(last=False)
        return toolset

    async def known_tools(self, definition: Definition) -> Sequence[ToolInfo]:
        """Return the known tools of a turn without starting users' servers."""
        await self._pool.wait_loaded()
        from agentic_rag.tools.toolset import list_known_tools

        return await list_known_tools(self._pool, definition.system, _specs(definition, {}), self._lists)

    def _find_own(self, definition: Definition) -> Toolset | None:
        """Return the cached toolset of our own servers for a domain, or None if it is outdated."""
        system, toolset = self._own.get(definition.domain_id, ((), None))
        if toolset is None or system != definition.system or not toolset.fresh:
            return None
        self._own.move_to_end(definition.domain_id)
        return toolset


def _specs(definition: Definition, secrets: Secrets) -> list[LaunchSpec]:
    return [
        spec_of(
            entry,
            domain=definition.domain_id,
            workspace=definition.binding.workspace,
            user=definition.binding.user,
            secrets=secrets,
        )
        for entry in definition.entries
    ]


class GuardedTools:
    """A turn's tools with the vault's rules around them; a `Toolset` around another one.

    Three rules apply. A call whose arguments contain a secret of its domain is denied, whatever the policy says.
    Secrets are redacted from all results. Tools that an admin excluded (``excluded``: server and tool) are not offered.
    ``timeouts`` holds each entry's own timeout in seconds by server.
    """

    def __init__(
        self,
        inner: Toolset,
        redact: Redaction,
        excluded: frozenset[tuple[str, str]] = frozenset(),
        timeouts: Mapping[str, float] | None = None,
    ) -> None:
        self.inner = inner
        self.redact = redact
        self.timeouts = timeouts
        self._offered = tuple(tool for tool in inner.tools if (tool.server, tool.remote_name) not in excluded)
        self._shown: tuple[int, tuple[ToolInfo, ...]] = (-1, ())
        """The redaction's version, and the tools as redacted with it."""

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        """The inner tools with redacted descriptions. A tool with a secret in its name is hidden."""
        version = self.redact.version
        if self._shown[0] != version:
            redacted = (_redact_tool(tool, self.redact) for tool in self._offered)
            self._shown = version, tuple(tool for tool in redacted if tool is not None)
        return self._shown[1]

    @property
    def notices(self) -> tuple[tuple[str, str], ...]:
        """The inner notices, redacted."""
        return tuple((server, self.redact(reason)) for server, reason in self.inner.notices)

    @property
    def missing(self) -> Mapping[str, bool]:
        """Return `missing` of the inner tools."""
        return self.inner.missing

    @property
    def fresh(self) -> bool:
        """Return `fresh` of the inner tools."""
        return self.inner.fresh

    async def cancel_task(self, server: str, task: str) -> None:
        """Ask a server to stop a task; see `Toolset.cancel_task`."""
        await self.inner.cancel_task(server, task)

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        """Run one call; see `Toolset.call`."""
        if self.redact.found_in(request.arguments):
            return CallOutcome(ToolStatus.DENIED, (text_block(SECRET_IN_ARGUMENTS),))

        async def pass_on(done: float, total: float | None, message: str | None) -> None:
            assert progress is not None
            await progress(done, total, None if message is None else self.redact(message))

        timeout = (self.timeouts or {}).get(request.tool.server, timeout)

        async def ask_redacted(needed: InputNeeded) -> InputGiven:
            assert ask is not None
            if self.redact.found_in(needed.url):
                return InputGiven(WaitAction.DECLINE)
            return await ask(self._redact_needed(needed))

        sink, asker = pass_on if progress is not None else None, ask_redacted if ask is not None else None
        outcome = await self.inner.call(request, timeout, sink, asker)
        if isinstance(outcome, InputNeeded):
            # An address without its secret would lead elsewhere, so the question is not asked.
            if self.redact.found_in(outcome.url):
                return CallOutcome(ToolStatus.ERROR, (text_block(SECRET_IN_ADDRESS),))
            return self._redact_needed(outcome)
        redact = partial(self._redact_outcome, outcome, user=request.tool.origin == "user")
        return await anyio.to_thread.run_sync(redact) if outcome.large else redact()

    def _redact_outcome(self, outcome: CallOutcome, *, user: bool) -> CallOutcome:
        """Return an outcome without secrets. The structured content of a large one is encoded here, off the event loop.

        ``user``: a user's server answered. Such a server also chooses the member names; those of ours are fixed.
        """
        structured = (self.redact.members if user else self.redact.json)(outcome.structured)
        encoded = encode_structured(structured) if outcome.large and user else None
        if encoded is None and outcome.large and user:
            structured = None  # nested too deep to be stored
        content = tuple(self._block(block) for block in outcome.content)
        return replace(outcome, content=content, structured=structured, encoded=encoded)

    def _redact_needed(self, needed: InputNeeded) -> InputNeeded:
        schema = needed.schema if needed.schema is None else self.redact.json(needed.schema)
        title, message = self.redact(needed.title), self.redact(needed.message)
        warning = needed.warning if needed.warning is None else self.redact(needed.warning)
        return replace(needed, title=title, message=message, schema=schema, warning=warning)

    def _block(self, block: Block) -> Block:
        return {**block, "text": self.redact(block["text"])} if block["type"] == "text" else block


_SHOWN: dict[tuple[int, int], tuple[ToolInfo, Redaction, int, ToolInfo | None]] = {}
"""Cache of redacted tools, by the identities of tool and redaction, which stay the same from turn to turn."""


def _redact_tool(tool: ToolInfo, redact: Redaction) -> ToolInfo | None:
    if redact.idle:
        return tool
    key = id(tool), id(redact)
    cached = _SHOWN.get(key)
    if cached is not None and cached[0] is tool and cached[1] is redact and cached[2] == redact.version:
        return cached[3]
    redacted: ToolInfo | None
    if tool.origin != "user":
        redacted = replace(tool, description=redact(tool.description), input_schema=redact.json(tool.input_schema))
    elif redact.found_in(tool.name):
        redacted = None
    else:
        redacted = replace(tool, description=redact(tool.description), input_schema=redact.members(tool.input_schema))
    if len(_SHOWN) >= SHOWN_TOOLS:
        _SHOWN.clear()
    _SHOWN[key] = tool, redact, redact.version, redacted
    return redacted


def guard_tools(inner: Toolset, definition: Definition, redact: Redaction) -> GuardedTools:
    """Return a turn's tools with the rules of its definition."""
    excluded = frozenset((entry.name, tool) for entry in definition.entries for tool in entry.exclude)
    timeouts = {entry.name: entry.timeout_ms / 1000 for entry in definition.entries if entry.timeout_ms is not None}
    return GuardedTools(inner, redact, excluded, timeouts)
