"""Read the command line that an admin wants allowed, from a pasted document, a saved entry or a bundle.

Defines the accepted forms. Makes no requests and stores nothing: a secret in a pasted variable is not stored, and an
argument that contains one is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentic_rag.base.errors import CommandNotAllowed, InvalidInput, NotFound
from agentic_rag.base.redaction import Redaction
from agentic_rag.directory.server_map import own_documents
from agentic_rag.directory.settings import DomainSettings, change_entries
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.entries.entry import McpEntry, StdioTarget, Value
from agentic_rag.tools.entries.placeholders import find_placeholders
from agentic_rag.tools.entries.reading import read_entries
from agentic_rag.tools.entries.server_json import ServerDescription, is_server_json, read_server_json
from agentic_rag.tools.launch.bundles import Bundle
from agentic_rag.tools.launch.catalogue import LineRefusal
from agentic_rag.tools.launch.requests import PackageLine, ProgramLine, plan_line
from agentic_rag.tools.launch.spec import Secrets

_ENTRY_KEYS = frozenset({"command", "cmd", "url", "serverUrl", "httpUrl"})


@dataclass(frozen=True, slots=True)
class LaunchProposal:
    """One command line as requested, without values.

    ``env`` holds the names of its variables, ``secrets`` those that are secret. ``kinds`` maps known placeholders to
    their slots. ``values`` holds secrets from the document by their vault names; they are not stored.
    """

    server: str
    command: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    secrets: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        """The entry's path in messages."""
        return f"mcpServers.{self.server}"

    def plan(self) -> PackageLine | ProgramLine:
        """Return the package or program that has to be bound.

        Raises:
            CommandNotAllowed: the line cannot be bound to a hash; the error says how to change it.
        """
        plan = plan_line(self.command, self.args, self.env)
        if isinstance(plan, LineRefusal):
            raise CommandNotAllowed(f"{self.path}.{plan.place}", plan.reason)
        return plan

    def check_secrets(self, secrets: Secrets, redaction: Redaction) -> None:
        """Refuse a line that contains or names a secret, because processes and operators can read command lines.

        Raises:
            InvalidInput: names the argument.
        """
        for index, text in enumerate((self.command, *self.args), -1):
            place = f"{self.path}.{'command' if index < 0 else f'args.{index}'}"
            if any(placeholder.name in secrets for placeholder in find_placeholders(text)) or redaction(text) != text:
                raise InvalidInput(place, "this is a secret of the domain; secrets stand in env, never in args.")


def read_proposal(record: DomainRecord, settings: DomainSettings, name: str, document: object) -> LaunchProposal:
    """Return the command line in a document for a server name. An empty document means the saved entry.

    The document is an entry, a map of entries, or a ``server.json`` of the MCP registry.

    Raises:
        InvalidInput, ServerReserved, NotFound: names the part that cannot be requested.
    """
    described: ServerDescription | None = None
    if isinstance(document, Mapping) and is_server_json(document):
        described = read_server_json(document, "server.json")
        document = {name: next(iter(described.entries.values()))}
    elif not document:
        if name not in settings.mcp_servers:
            raise NotFound("mcp_server", name)
        document = {name: settings.mcp_servers[name].to_json()}
    elif isinstance(document, Mapping) and _ENTRY_KEYS & set(document):
        document = {name: dict(document)}
    else:
        document = {name: _only(document, name)}
    change = change_entries(settings.mcp_servers, document, own_documents(record, settings), replaces=True)
    entry = next(iter(change.entries.values()))
    if not isinstance(entry.target, StdioTarget):
        raise InvalidInput(f"mcpServers.{entry.name}.url", "an address is not asked for: test the entry, or save it.")
    target: StdioTarget[Value] = entry.target
    return LaunchProposal(
        entry.name,
        target.command,
        target.args,
        tuple(sorted(target.env)),
        tuple(described.secrets) if described else tuple(_secret_names(entry, change.secrets)),
        described.kinds if described else {},
        change.secrets,
    )


def proposal_of(bundle: Bundle, server: str) -> LaunchProposal:
    """Return the command line of a bundle."""
    facts = bundle.facts
    line = f"{facts.name}@{facts.version}"
    return LaunchProposal(server, "mcpb", (line, *bundle.args), tuple(sorted(bundle.env)), bundle.secrets, bundle.kinds)


def _only(document: object, name: str) -> object:
    """Return the entry of this name in a map, or its only entry."""
    entries = read_entries(document).entries
    if name not in entries and len(entries) != 1:
        raise InvalidInput(
            "mcpServers", f"one entry is expected, or one under the name {name!r}; there are {len(entries)}."
        )
    entry = entries.get(name) or next(iter(entries.values()))
    return entry.to_json()


def _secret_names(entry: McpEntry, secrets: Mapping[str, str]) -> list[str]:
    return sorted(name for place, name, _ in entry.values if f"{entry.name}.{place}.{name}" in secrets)
