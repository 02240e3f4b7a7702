"""Check a pasted document of MCP servers: one row per entry, with all problems and their remedies.

Decides the state of each row, proposes changes, and tests startable entries concurrently within limits.
`PasteChecks.check` saves nothing; `PasteChecks.add` saves the rows that an admin accepts. The rules for entries are
elsewhere: their form in `agentic_rag.tools.entries.reading`, their secrets in the directory's settings, and permissions
in the launch policy.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import anyio

from agentic_rag.access.users import User
from agentic_rag.base.errors import AgenticRagError, CommandNotAllowed, InvalidInput, ServerReserved, problems_of
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import own_documents
from agentic_rag.directory.settings import MAX_ENTRIES, DomainSettings, misplaced_secrets, seal_values
from agentic_rag.domains.domains import Domains, Saved
from agentic_rag.domains.vault import Vault
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.entries.entry import HttpTarget, McpEntry, SealedValue, StdioTarget
from agentic_rag.tools.entries.placeholders import find_placeholders, names_before_path
from agentic_rag.tools.entries.reading import LOOKS_SECRET, InputField, Note, PastedRow, PastedRows, collect_entries
from agentic_rag.tools.launch.policy import LaunchPolicy, Review
from agentic_rag.tools.launch.spec import LaunchSpec, spec_of
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import McpPool
from agentic_rag.tools.status import ConnectionState, State

MAX_TESTED = 20
"""Maximum entries that one check starts; others are reported untested."""
CONCURRENT_TESTS = 4
TEST_SECONDS = 60.0
"""Time limit for the test of one entry, including the installation of its package."""
VALUE_CHARS = 200

_OUTSIDE = re.compile(
    r"[/~]|\\\\|[A-Za-z]:[\\/]|file:|%[A-Za-z]+%"
    r"|\$\{(?:workspaceFolder|workspaceFolderBasename|workspaceRoot|userHome|HOME|cwd|pathSeparator)\}"
)
"""Beginnings of arguments that name a folder of the author's machine."""
_PARENT = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)")
_OPTION = re.compile(r"--?[\w-]+=")
ALL_FILES = "."
"""The argument that stands for a domain's whole files folder."""
_SHOWN_KEYS = frozenset(
    ("command", "cmd", "args", "type", "transport", "transportType", "identity", "timeout", "timeoutMs")
) | frozenset(("timeoutSeconds", "enabled", "disabled", "stateful", "cwd", "envFile"))
"""Keys of an entry whose values contain no secrets, so problems may quote them."""


class RowStatus(StrEnum):
    """The state of an entry: ready, or the step that is still needed."""

    READY = "ready"
    NEEDS_SECRET = "needs_secret"
    NEEDS_APPROVAL = "needs_approval"
    NEEDS_SIGN_IN = "needs_sign_in"
    CHANGE_PROPOSED = "change_proposed"
    NOT_POSSIBLE = "not_possible"


@dataclass(frozen=True, slots=True)
class RowProblem:
    """One problem of an entry. ``value`` is the offending value, unless it may contain a secret."""

    path: str
    message: str
    value: Absent[str] = None


@dataclass(frozen=True, slots=True)
class NeededValue:
    """A placeholder without a value. ``kind`` is ``secret``, or ``variable`` if the text is public."""

    name: str
    kind: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class NeededApproval:
    """A command line that the launch catalogue does not allow. ``request`` is the path to request it with POST."""

    reason: str
    command: str
    request: str
    allow: str


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One entry of a pasted document.

    ``key`` is its pasted name, ``name`` the stored name. ``entry`` is the entry as it would be stored, with masked
    secrets; ``proposed`` is the same after the proposed change. ``saveable`` says that `PasteChecks.add` accepts the
    row. ``connection`` is the result of its test, None if it was not tested.
    """

    key: str
    name: str
    status: RowStatus
    reason: str = ""
    problems: tuple[RowProblem, ...] = ()
    needs: tuple[NeededValue, ...] = ()
    approval: NeededApproval | None = None
    entry: Json | None = None
    proposed: Json | None = None
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    connection: ConnectionState | None = None
    saveable: bool = False


@dataclass(frozen=True, slots=True)
class PasteCheck:
    """The rows of a document in order, and notes about the document as a whole."""

    rows: tuple[CheckedRow, ...]
    changes: tuple[Note, ...]
    warnings: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _AssessedRow:
    """A row before its test.

    ``entry`` is the entry that `PasteChecks.add` saves, with the proposed change, or None. ``spec`` is the server to
    test, None if it cannot be started now. ``review`` is the policy's review of a startable entry.
    """

    row: CheckedRow
    entry: McpEntry | None = field(default=None, repr=False)
    spec: LaunchSpec | None = field(default=None, repr=False)
    review: Review | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """The domain that a document is checked for. ``unsealed`` receives the pasted secrets."""

    record: DomainRecord
    settings: DomainSettings
    secrets: Mapping[str, str | None] = field(repr=False)
    inputs: tuple[InputField, ...]
    user: str
    policy: LaunchPolicy
    unsealed: dict[str, str] = field(default_factory=dict, repr=False)

    def assess(self, pasted: PastedRow) -> _AssessedRow:
        """Return a row without its test. Blocks to check programs and folders."""
        if pasted.entry is None:
            problems = tuple(_row_problem(problem, pasted) for problem in pasted.problems)
            row = CheckedRow(
                pasted.key,
                pasted.name,
                RowStatus.NOT_POSSIBLE,
                problems[0].message,
                problems,
                changes=pasted.changes,
                warnings=pasted.warnings,
            )
            return _AssessedRow(row)
        errors: list[AgenticRagError] = []
        proposals: list[RowProblem] = []
        entry = pasted.entry
        sealed_names = (
            self.settings.mcp_servers[entry.name].sealed_names if entry.name in self.settings.mcp_servers else ()
        )
        try:
            sealed = seal_values(entry, sealed_names, pasted.path, self.unsealed)
        except InvalidInput as exc:
            errors += problems_of(exc)
            # The row is refused. Masks in place of all values keep its secrets out of the answer.
            sealed = entry.with_values({(place, name): SealedValue() for place, name, _ in entry.values})
        errors += misplaced_secrets(pasted.path, entry, self.secrets)
        if isinstance(pasted.pasted, Mapping) and pasted.pasted.get("envFile"):
            message = "files of variables are not read here. Write each variable into env as ${NAME}, and set NAME as a"
            proposals.append(
                _problem(pasted, "envFile", f"{message} secret of this domain. The proposal leaves it out.")
            )
        changed, review, approval = sealed, None, None
        try:
            review = self._review(sealed)
            # A review puts a stand-in for each missing value, so it does not see that this one would be a folder.
            if self._names_foreign_folder(sealed):
                changed, better, outside = self._propose_folders(sealed, pasted)
                review, proposals = better or review, [*proposals, *outside]
        # A refused entry gets a second chance: the folders may be all that is wrong with it.
        except CommandNotAllowed as exc:
            changed, review, outside = self._propose_folders(sealed, pasted)
            proposals += outside
            if review is None and exc.request:
                approval = NeededApproval(exc.reason, exc.command, exc.request, exc.allow)
            elif review is None:
                errors.append(exc)
        except AgenticRagError as exc:
            changed, review, outside = self._propose_folders(sealed, pasted)
            proposals += outside
            if review is None:
                errors += problems_of(exc)
        needs = self._needs(_with_args(entry, changed))
        problems = (*(_row_problem(error, pasted) for error in errors), *proposals)
        status, reason = _status_of(errors, problems, proposals, approval, needs)
        to_save = None if errors else _with_args(entry, changed)
        row = CheckedRow(
            pasted.key,
            pasted.name,
            status,
            reason,
            problems,
            needs,
            approval,
            sealed.to_json(),
            changed.to_json() if proposals and not errors else None,
            saveable=to_save is not None and approval is None,
            changes=(*pasted.changes, *(Note(pasted.path, text) for text in (review.changes if review else ()))),
            warnings=pasted.warnings,
        )
        spec = None
        if status is RowStatus.READY and review is not None:
            final = replace(changed, target=review.target)
            spec = self._spec(final)
        return _AssessedRow(row, to_save, spec, review)

    def _spec(self, entry: McpEntry, *, draft: bool = False) -> LaunchSpec:
        return spec_of(
            entry.with_variables(self.settings.variables),
            domain=self.record.id,
            workspace=self.record.workspace,
            user="" if draft else self.user,
            secrets={**self.secrets, **self.unsealed},
            draft=draft,
        )

    def _review(self, entry: McpEntry) -> Review:
        return self.policy.review(self._spec(entry, draft=True))

    def _names_foreign_folder(self, entry: McpEntry) -> bool:
        """Return whether an argument begins with another client's folder variable, such as ``${workspaceFolder}``."""
        args = entry.target.args if isinstance(entry.target, StdioTarget) else ()
        placeholders = (
            placeholder
            for text in args
            if text.startswith("${") and _OUTSIDE.match(text)
            for placeholder in find_placeholders(text)
        )
        return any(placeholder.name not in self.settings.variables for placeholder in placeholders)

    def _propose_folders(self, entry: McpEntry, pasted: PastedRow) -> tuple[McpEntry, Review | None, list[RowProblem]]:
        """Return the entry with `ALL_FILES` in place of folders outside the domain's, if that may run."""
        if not isinstance(entry.target, StdioTarget):
            return entry, None, []
        unfit = self.policy.unfit_paths(self._spec(entry, draft=True))
        args = list(entry.target.args)
        outside = [at for at, text in enumerate(args) if at in unfit or _leads_out(text)]
        if not outside:
            return entry, None, []
        for at in outside:
            args[at] = f"{_prefix(args[at])}{ALL_FILES}"
        # Several folders become the same argument, which is passed once.
        distinct = [text for at, text in enumerate(args) if text != ALL_FILES or ALL_FILES not in args[:at]]
        changed = replace(entry, target=replace(entry.target, args=tuple(distinct)))
        try:
            review = self._review(changed)
        except AgenticRagError:
            return entry, None, []
        message = f'is outside this domain\'s files folder; the proposal is "{ALL_FILES}", the whole folder.'
        problems = [
            RowProblem(
                f"{pasted.path}.args.{at}", unfit.get(at) or f"{entry.target.args[at][:VALUE_CHARS]!r} {message}"
            )
            for at in outside
        ]
        return (
            changed,
            review,
            [
                replace(problem, value=entry.target.args[at][:VALUE_CHARS])
                for problem, at in zip(problems, outside, strict=True)
            ],
        )

    def _needs(self, entry: McpEntry) -> tuple[NeededValue, ...]:
        """Return the placeholders without a value or default."""
        defined = {*self.settings.variables, *self.secrets}
        public: set[str] = set()
        if isinstance(entry.target, HttpTarget):
            # A secret may not stand there (`misplaced_secrets`), so the missing value has to be a variable.
            public |= names_before_path(entry.target.url)
        else:
            public |= {placeholder.name for _, text in entry.open_texts for placeholder in find_placeholders(text)}
        texts = [text for _, text in entry.open_texts]
        texts += [value.text for _, _, value in entry.values if not isinstance(value, SealedValue)]
        names = dict.fromkeys(
            placeholder.name for text in texts for placeholder in find_placeholders(text) if placeholder.default is None
        )
        described = {input_field.name: input_field.description for input_field in self.inputs}
        return tuple(
            NeededValue(name, "variable" if name in public else "secret", described.get(name, ""))
            for name in names
            if name not in defined
        )


class PasteChecks:
    """Checks pasted documents, and adds the rows that an admin accepts."""

    def __init__(
        self,
        directory: Directory,
        domains: Domains,
        vault: Vault,
        pool: McpPool,
        lists: ToolLists,
        policy: LaunchPolicy,
        threads: DomainThreads,
    ) -> None:
        self._directory = directory
        self._domains = domains
        self._vault = vault
        self._pool = pool
        self._lists = lists
        self._policy = policy
        self._threads = threads

    async def check(self, user: User, domain_id: str, document: object) -> PasteCheck:
        """Return one row for each entry of a document, and test the entries that can start. Saves nothing.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the document is not readable or has no entry.
        """
        collected, place = await self._read(user, domain_id, document)
        assessed = await self._threads.read(domain_id, lambda: [place.assess(row) for row in collected.rows])
        # By position: the tests end in any order, and the answer has the order of the document.
        rows: dict[int, CheckedRow] = {at: item.row for at, item in enumerate(assessed)}
        waiting = [at for at, item in enumerate(assessed) if item.spec is not None]
        limiter = anyio.CapacityLimiter(CONCURRENT_TESTS)

        async def test(at: int, redaction: Redaction) -> None:
            async with limiter:
                rows[at] = await self._test(assessed[at], redaction)

        # The pasted secrets are not stored, so the domain's own redaction does not know them.
        with self._vault.redact.trying(domain_id, place.unsealed) as redaction:
            async with anyio.create_task_group() as tests:
                for at in waiting[:MAX_TESTED]:
                    tests.start_soon(test, at, redaction)
        for at in waiting[MAX_TESTED:]:
            rows[at] = replace(rows[at], reason=f"Not tested: one check starts at most {MAX_TESTED} servers.")
        return PasteCheck(tuple(rows[at] for at in range(len(rows))), collected.changes, collected.warnings)

    async def add(self, user: User, domain_id: str, document: object, accepted: Sequence[str]) -> Saved:
        """Save the accepted entries of a document with their proposed changes.

        ``accepted`` holds names of rows. Either all of them are saved or none.

        Raises:
            NotFound: there is no such domain.
            InvalidInput, ServerReserved, CommandNotAllowed: an entry cannot be saved.
        """
        collected, place = await self._read(user, domain_id, document)
        assessed = await self._threads.read(domain_id, lambda: [place.assess(row) for row in collected.rows])
        # Of two rows with one name, the first is the one that can be saved; the second has the problem.
        by_name = {item.row.name: item for item in reversed(assessed) if item.row.name}
        entries: Json = {}
        problems: list[AgenticRagError] = []
        for name in accepted:
            chosen = by_name.get(name)
            if chosen is None:
                known_names = ", ".join(by_name)[:VALUE_CHARS]
                problems.append(
                    InvalidInput("accept", f"the document has no server {name[:80]!r}; it has: {known_names}.")
                )
            elif chosen.entry is None or not chosen.row.saveable:
                problems.append(InvalidInput(f"mcpServers.{name}", chosen.row.reason or "this entry cannot be saved."))
            else:
                entries[name] = chosen.entry.to_json()
        if problems:
            raise problems[0].among(problems)
        return await self._domains.update(domain_id, settings={"mcpServers": entries}, replace_maps=False)

    async def _read(self, user: User, domain_id: str, document: object) -> tuple[PastedRows, _Place]:
        record = await self._directory.get(domain_id)
        settings = DomainSettings.model_validate(record.settings)
        collected = collect_entries(document, own=own_documents(record, settings))
        if not collected.rows:
            raise InvalidInput(
                "mcpServers", 'there is no server in this document; {"mcpServers": {"name": {…}}} is one.'
            )
        new = {row.name for row in collected.rows} - settings.mcp_servers.keys()
        if len(settings.mcp_servers) + len(new) > MAX_ENTRIES:
            raise InvalidInput("mcpServers", f"with these servers the domain has more than {MAX_ENTRIES}.")
        secrets = await self._vault.values(domain_id)
        return collected, _Place(record, settings, secrets, collected.inputs, user.id, self._policy)

    async def _test(self, assessed: _AssessedRow, redaction: Redaction) -> CheckedRow:
        """Return a row after the test of its entry."""
        row, spec = assessed.row, assessed.spec
        assert spec is not None
        if not spec.entry.enabled:
            return replace(row, reason="Not tested: this server is switched off.")
        state: ConnectionState | None = None
        try:
            with anyio.move_on_after(TEST_SECONDS):
                state = (await self._pool.trial(spec)).redact(redaction)
        except AgenticRagError as exc:
            state = ConnectionState(row.name, State.FAILED, reason=redaction(str(exc)))
        if state is None:
            package = assessed.review.uninstalled if assessed.review else None
            if package is not None:
                # In the background, so that a later check finds the package.
                self._policy.install(package)
                return replace(row, reason=f"Not tested: {package} is still being installed. Check again later.")
            state = ConnectionState(row.name, State.FAILED, reason=f"it was not ready after {TEST_SECONDS:g} s")
        if state.state is State.READY:
            self._lists.note_trial(spec, state)
            return replace(row, connection=state)
        if state.state is State.NEEDS_AUTH:
            return replace(row, status=RowStatus.NEEDS_SIGN_IN, reason=state.reason, connection=state)
        problem = RowProblem(f"mcpServers.{row.name}", state.reason or f"the test ended as {state.state}")
        return replace(
            row,
            status=RowStatus.NOT_POSSIBLE,
            reason=problem.message,
            problems=(*row.problems, problem),
            connection=state,
        )


def _status_of(
    errors: Collection[AgenticRagError],
    problems: Sequence[RowProblem],
    proposals: Sequence[RowProblem],
    approval: NeededApproval | None,
    needs: Sequence[NeededValue],
) -> tuple[RowStatus, str]:
    """Return the state of a row before its test: the first step that an admin has to take."""
    if errors:
        return RowStatus.NOT_POSSIBLE, problems[0].message
    if proposals:
        return RowStatus.CHANGE_PROPOSED, proposals[0].message
    if approval is not None:
        return RowStatus.NEEDS_APPROVAL, approval.reason
    if needs:
        names = ", ".join(f"{need.name} ({need.kind})" for need in needs)
        return RowStatus.NEEDS_SECRET, f"These have no value yet: {names}."
    return RowStatus.READY, ""


def _with_args(entry: McpEntry, changed: McpEntry) -> McpEntry:
    """Return the entry, with its unsealed secrets, but with the changed entry's arguments."""
    if isinstance(entry.target, StdioTarget) and isinstance(changed.target, StdioTarget):
        return replace(entry, target=replace(entry.target, args=changed.target.args))
    return entry


def _leads_out(text: str) -> bool:
    value = text[len(_prefix(text)) :]
    return _OUTSIDE.match(value) is not None or _PARENT.search(value) is not None


def _prefix(text: str) -> str:
    """Return the ``--option=`` prefix of an argument, or an empty text."""
    match = _OPTION.match(text[:200])
    return match[0] if match else ""


def _problem(pasted: PastedRow, key: str, message: str) -> RowProblem:
    return _row_problem(InvalidInput(f"{pasted.path}.{key}", message), pasted)


def _row_problem(error: AgenticRagError, pasted: PastedRow) -> RowProblem:
    """Return a problem for a row, with the offending value unless it may contain a secret."""
    path = str(getattr(error, "path", pasted.path)).replace("settings.mcpServers", "mcpServers", 1)
    message = str(error).removeprefix(f"{path}: ").removeprefix(f"settings.{path}: ")
    value: object = None
    keys = path.removeprefix(f"{pasted.path}.").split(".") if path.startswith(f"{pasted.path}.") else []
    if keys and keys[0] in _SHOWN_KEYS and isinstance(pasted.pasted, Mapping) and LOOKS_SECRET not in message:
        value = pasted.pasted.get(keys[0])
        if len(keys) == 2 and isinstance(value, list) and keys[1].isdigit() and int(keys[1]) < len(value):
            value = value[int(keys[1])]
    quotable = isinstance(value, str | int | float) and not isinstance(error, ServerReserved)
    return RowProblem(path, message, str(value)[:VALUE_CHARS] if quotable else None)
