"""The settings of a domain: keys, types, defaults, and the rules by which a change is merged.

Owns `DomainSettings` and the effect of a change on MCP entries and their secrets: values to seal and names to drop.
Knows no record and no vault. Only settings that an admin has set are stored, so that the others follow the operator's
defaults.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, StringConstraints, field_validator

from agentic_rag.base.errors import AgenticRagError, CommandNotAllowed, InvalidInput, problems_of, raise_first
from agentic_rag.base.forms import Form, check_form, require_shape
from agentic_rag.base.json_form import Json
from agentic_rag.directory.document_labels import MAX_RULES, FolderPattern, Group, Labels
from agentic_rag.models.profiles import Effort, profile_of, refusal_of
from agentic_rag.tools.base import Verdict
from agentic_rag.tools.entries.entry import HttpTarget, McpEntry, SealedValue, SecretValue, Value, sealed_name
from agentic_rag.tools.entries.placeholders import NAME, find_placeholders, names_before_path
from agentic_rag.tools.entries.reading import Note, Pasted, collect_entries
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.spec import Secrets, secret_in_host, spec_of

MAP_KEYS = frozenset({"mcpServers", "variables", "toolPolicy", "groupLabels", "folderLabels"})
"""Settings that are maps: PUT replaces them, PATCH merges them by name."""
MAX_ENTRIES = 100
"""Maximum number of entries in each map."""

VariableName = Annotated[
    str, require_shape(NAME, "a name has letters, digits and _, at most 64, and does not begin with a digit")
]
"""The name of a variable or a secret, as placeholders use it."""

Starter = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)]
"""A question that a new conversation offers."""

Text = Annotated[str, StringConstraints(max_length=8_000)]


def _read_stored(value: Mapping[str, McpEntry | Json]) -> dict[str, McpEntry]:
    return {
        name: entry if isinstance(entry, McpEntry) else McpEntry.from_json(name, entry) for name, entry in value.items()
    }


def _write_stored(entries: Mapping[str, McpEntry]) -> Json:
    return {name: entry.to_json() for name, entry in entries.items()}


Entries = Annotated[dict[str, McpEntry], PlainValidator(_read_stored), PlainSerializer(_write_stored)]
"""Stored MCP entries by name. `change_entries` reads the entries of a client."""

ToolGlob = Annotated[
    str,
    require_shape(
        r"[A-Za-z0-9_*?\[\]-]{1,64}", "a tool's name, or a pattern of one with *, ? and [], at most 64 characters"
    ),
]
GrantName = Literal["member", "author", "admin"]
"""A user's grant in a domain, as tool rules name it."""
ToolRule = Verdict | Annotated[dict[GrantName, Verdict], Field(min_length=1)]
"""The rule for a tool: one verdict for all users, or one for each grant. A grant without a verdict has no rule."""
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MAX_FALLBACKS = 8
MAX_CHOICES = 20
RoleId = Annotated[
    str,
    require_shape(r"\w[\w.-]{0,63}", "a role's id has letters, digits, _, - and ., and begins with a letter or digit"),
]
Language = Annotated[
    str,
    require_shape(
        r"auto|[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,4}",
        'a language code such as "en", "zh" or "pt-BR" is expected, or "auto"',
    ),
]
Reranker = Annotated[
    str,
    require_shape(
        r"[A-Za-z0-9][\w./-]{0,199}", "the name of a model is expected, such as jinaai/jina-reranker-v1-tiny-en"
    ),
]


class MemorySettings(Form):
    """When the server proposes memories from conversations.

    ``extract``: "off", "after-turn" (once a conversation is idle), or a number of turns from 1 to 100.
    ``calls_per_day``: maximum number of model calls for this, for each user.
    """

    extract: Literal["off", "after-turn"] | int = "off"
    calls_per_day: int = Field(50, ge=1, le=1_000)

    @field_validator("extract", mode="before")
    @classmethod
    def _says_when(cls, value: object) -> object:
        counts = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100
        if not counts and value not in ("off", "after-turn"):
            raise ValueError('"off", "after-turn" (once a conversation rests) or a number of turns from 1 to 100')
        return value

    @property
    def every(self) -> int | None:
        """Number of turns after which memories are proposed. 0: once the conversation is idle. None: never."""
        return self.extract if isinstance(self.extract, int) else {"off": None, "after-turn": 0}[self.extract]


ChangeKind = Literal["settings", "prompt", "roles", "model", "reranker", "embedder", "reindex", "removal"]
"""Kinds of changes that can be tried before they count."""
GateMode = Literal["off", "warn", "hold"]
DEFAULT_MODES: Mapping[ChangeKind, GateMode] = {
    "settings": "hold",
    "prompt": "hold",
    "roles": "hold",
    "model": "hold",
    "reranker": "hold",
    "embedder": "hold",
    "reindex": "hold",
    "removal": "hold",
}


MAX_CRITERIA = 3
"""Criteria of a domain's judge."""
CriterionName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]
CriterionText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)]


class EvaluationSettings(Form):
    """How evaluation cases guard changes. A domain without active cases is not affected.

    ``gate`` says per kind of change whether a change that makes cases worse is held, only warned about, or not tried.
    ``answers``: also try changes with whole turns, where a search cannot show their effect; this costs model calls, and
    such a change is applied once its trial has passed. ``nightly``: the hour (UTC) of a daily answers run.
    ``repeats``: how often an answers run asks each case. ``max_tokens`` bounds one answers run. ``judge``: criteria by
    name, by which a model scores each answer of an answers run; no verdict depends on them. ``judge_model``: the model
    that scores, by default the domain's. ``judge_batch``: score the answers of a finished run in one batch of the
    model's service, which is cheaper and may take up to 24 hours.
    """

    gate: dict[ChangeKind, GateMode] = Field(default_factory=dict)
    answers: bool = False
    nightly: int | None = Field(None, ge=0, le=23)
    repeats: int = Field(1, ge=1, le=9)
    max_tokens: int | None = Field(2_000_000, ge=1_000, le=1_000_000_000)
    judge: Annotated[dict[CriterionName, CriterionText], Field(max_length=MAX_CRITERIA)] = Field(default_factory=dict)
    judge_model: ModelName | None = None
    judge_batch: bool = False

    def mode_of(self, kind: ChangeKind) -> GateMode:
        """Return what happens to a change of this kind that makes cases worse."""
        return self.gate.get(kind, DEFAULT_MODES[kind])


class ScanSettings(Form):
    """How scanned pages are read.

    ``reader``: "ocr" (the extra ``ocr`` of this server) or "model" (the domain's model gets an image of each page, at
    the cost of a model call). ``pages``: maximum number of pages of one document that the model reads.
    """

    reader: Literal["ocr", "model"] = "ocr"
    pages: int = Field(50, ge=1, le=1_000)


class DomainSettings(Form):
    """All settings of a domain with their defaults. None means the operator's default."""

    response_style: Literal["detailed", "concise"] = "detailed"
    tone: Literal["formal", "friendly"] = "friendly"
    language: Language = "auto"
    expertise: Annotated[str, StringConstraints(max_length=2_000)] = ""
    model: ModelName | None = None
    max_tokens: int = Field(4096, ge=1, le=128_000)
    """Maximum tokens of an answer. Thinking does not count."""
    temperature: float | None = Field(None, ge=0, le=2)
    thinking: Literal["auto", "off"] | None = None
    effort: Effort | None = None
    fallback_model: ModelName | Annotated[tuple[ModelName, ...], Field(max_length=MAX_FALLBACKS)] | None = None
    """Models that answer if the model refuses, or if its service accepts no more requests. They are tried in order."""
    allowed_models: tuple[ModelName, ...] = Field((), max_length=MAX_CHOICES)
    """Models that a user may choose for a conversation, besides ``model``. Empty: there is no choice."""
    retrieval_top_k: int = Field(5, ge=1, le=50)
    retrieval_threshold: float = Field(0, ge=0, le=1)
    """Minimum probability that a passage is relevant. Of passages with a score of 0.7, about seven in ten are."""
    retrieval_tokens: int | None = Field(None, ge=100, le=100_000)
    """Approximate maximum tokens of the passages of one search. The best passage is always included."""
    retrieval_fusion: Literal["dbsf", "rrf"] = "dbsf"
    retrieval_prefer_newer: bool = False
    """Whether passages of an older version of a document come after those of its newer versions."""
    scans: ScanSettings = Field(default_factory=ScanSettings)
    context_lines: bool = False
    """Whether the model writes one line of context about each passage, which searches find but nobody is shown."""
    reranker: Reranker | None = None
    """Name of a fastembed cross-encoder, which must be on the server's machine."""
    primary_role_id: RoleId = "assistant"
    adopt_role: bool = False
    """Whether the role ``{id}-domain`` becomes primary once it is written. Used for the role of a new domain."""
    sub_role_ids: tuple[RoleId, ...] = Field((), max_length=20)
    mcp_servers: Entries = Field(default_factory=dict)
    variables: dict[VariableName, Text] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    tool_policy: dict[ToolGlob, ToolRule] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    mcp_apps: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=64)], ...] = Field(
        (), max_length=MAX_ENTRIES
    )
    """MCP servers whose apps people may open below their tool calls. Empty: none."""
    max_steps: int = Field(12, ge=1, le=100)
    turn_timeout_seconds: float = Field(600, ge=1, le=86_400)
    tool_timeout_seconds: float = Field(60, ge=1, le=3_600)
    context_tokens: int = Field(100_000, ge=4_000, le=2_000_000)
    context_messages: int | None = Field(None, ge=2, le=10_000)
    ask_user: bool = False
    """Whether the model may ask the user a question during a turn and wait for the answer."""
    starters: tuple[Starter, ...] | None = Field(None, max_length=6)
    """Questions that a new conversation offers. None: drafted from the documents' headings. Empty: none."""
    answer_links: Literal["open", "sign-in", "off"] = "open"
    """Whether a link in a notification answers a wait: at once, after a sign-in, or not at all."""
    keep_conversations_days: int | None = Field(None, ge=1, le=36_500)
    """Days after its last activity when a conversation is removed. None: never."""
    memory_scope: Literal["user", "domain"] | None = None
    memory: MemorySettings = Field(default_factory=MemorySettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    group_labels: dict[Group, Labels] = Field(default_factory=dict, max_length=MAX_RULES)
    """Labels that the members of a group hold, by the group's name. Admins of the domain hold all labels."""
    folder_labels: dict[FolderPattern, Labels] = Field(default_factory=dict, max_length=MAX_RULES)
    """Labels of all documents below a path of the documents folder, or whose path matches a pattern with ``*``."""

    @property
    def fallback_models(self) -> tuple[str, ...] | None:
        """``fallback_model`` as a tuple, or None if it is not set."""
        return (self.fallback_model,) if isinstance(self.fallback_model, str) else self.fallback_model

    def rules_for(self, grant: GrantName) -> dict[str, Verdict]:
        """Return the rules of ``tool_policy`` for users with a grant, by name or pattern."""
        rules = {glob: rule if isinstance(rule, str) else rule.get(grant) for glob, rule in self.tool_policy.items()}
        return {glob: verdict for glob, verdict in rules.items() if verdict is not None}

    def to_json(self) -> Json:
        """Return the settings that were set explicitly, in the stored form."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


_JSON_NAMES = {
    key: str(field.alias) for name, field in DomainSettings.model_fields.items() for key in (name, str(field.alias))
}
"""JSON name by JSON name and by Python name, so that error texts show one form."""


@dataclass(frozen=True, slots=True)
class MergedSettings:
    """Settings after a change. ``secrets``: values to seal, by name; ``dropped``: names of sealed values to remove.

    ``changes`` and ``warnings`` are notes for the admin. ``wanted``: packages that the new settings need installed.
    """

    settings: DomainSettings
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    dropped: tuple[str, ...] = ()
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    wanted: tuple[Package, ...] = ()


def merge_settings(
    stored: Json,
    change: Pasted,
    policy: LaunchPolicy,
    *,
    domain: str,
    workspace: str,
    replace_maps: bool,
    own: Json | None = None,
    secrets: Secrets | None = None,
    default_model: str = "",
    withheld: dict[str, CommandNotAllowed] | None = None,
) -> MergedSettings:
    """Return the settings after a change. An absent key keeps its value; ``null`` resets it to the default.

    Blocks, because the launch policy checks program files.

    Args:
        stored: the result of `DomainSettings.to_json`.
        change: the change from a client, in camelCase or snake_case.
        policy: decides whether an entry may be stored, and in which form.
        replace_maps: PUT replaces each map it names; PATCH merges it by name, ``null`` deletes an entry.
        own: the system and built-in servers in the form of a GET. Such an entry is ignored if sent back unchanged.
        secrets: the domain's secrets, by name.
        default_model: the model of settings that name none. Empty if there is no language model.
        withheld: collects the refusals of entries that the catalogue does not allow. These entries are then stored
            switched off.

    Raises:
        InvalidInput: a value is invalid; the error names its path.
        ServerReserved: an entry uses the name of a system or built-in server.
        CommandNotAllowed: the catalogue does not allow an entry, and ``withheld`` is None.

    The raised error is the first problem of the change, and its details list all problems.
    """
    before = DomainSettings.model_validate(stored)
    values = {key: value for key, value in stored.items() if key != "mcpServers"}
    entries: EntriesChange | None = None
    problems: list[AgenticRagError] = []
    for key, value in change.items():
        name = _JSON_NAMES.get(key)
        if name is None:
            problems.append(InvalidInput(f"settings.{key}", "this key is not known."))
        elif name == "mcpServers":
            try:
                entries = collect_change(before.mcp_servers, value, own, replaces=replace_maps or value is None)
                problems += entries.problems
            except InvalidInput as exc:  # of the map as a whole
                problems += problems_of(exc)
        elif value is None:
            values.pop(name, None)  # unset, so that a later default applies
        elif name in MAP_KEYS and not replace_maps and isinstance(value, Mapping):
            members = {**values.get(name, {}), **value}
            values[name] = {entry: item for entry, item in members.items() if item is not None}
        else:
            values[name] = value
    settings = _read_settings(values, problems)
    problems += _check_together(settings, default_model)
    if entries is None:
        raise_first(problems)
        # Without entries the field stays unset, so that `to_json` does not store it.
        unchanged = {"mcp_servers": before.mcp_servers} if before.mcp_servers else {}
        return MergedSettings(settings.model_copy(update=unchanged))
    place = _Place(policy, domain, workspace, settings.variables, secrets or {}, entries.secrets, withheld)
    merged = place.admit_all(settings, before, entries, problems)
    raise_first(problems)
    return merged


def _read_settings(values: Json, problems: list[AgenticRagError]) -> DomainSettings:
    """Return the settings without their invalid keys, and append the problems of those to ``problems``."""
    settings, setting_problems = check_form(DomainSettings, values, "settings")
    if settings is not None:
        return settings
    problems += setting_problems
    broken = {_JSON_NAMES.get(problem.path.split(".")[1]) for problem in setting_problems if "." in problem.path}
    # Without the broken keys, so that the checks of several keys together find their problems in the same answer.
    rest, _ = check_form(DomainSettings, {key: value for key, value in values.items() if key not in broken}, "settings")
    return rest or DomainSettings()


def _check_together(settings: DomainSettings, default_model: str) -> list[InvalidInput]:
    """Return a problem for each setting that contradicts the domain's model or its memory scope."""
    problems: list[InvalidInput] = []
    model = settings.model or default_model
    refusal = refusal_of(model, effort=settings.effort) if model else None
    if refusal is not None:
        problems.append(InvalidInput(f"settings.{refusal[0]}", refusal[1]))
    if settings.memory_scope == "domain" and settings.memory.every is not None:
        reason = 'what one user said is not remembered for all (memoryScope "domain"); set memoryScope "user".'
        problems.append(InvalidInput("settings.memory.extract", reason))
    if settings.scans.reader == "model" and not (model and profile_of(model).images):
        reason = f'the model {model!r} cannot see images; set reader "ocr".' if model else "there is no language model."
        problems.append(InvalidInput("settings.scans.reader", reason))
    if settings.context_lines and not model:
        problems.append(InvalidInput("settings.contextLines", "there is no language model to write the lines."))
    return problems


@dataclass(frozen=True, slots=True)
class _AdmittedEntry:
    """A new entry in its stored form, with its notes and the packages that it needs."""

    entry: McpEntry
    changes: list[Note]
    warnings: list[Note]
    wanted: list[Package]


@dataclass(frozen=True, slots=True)
class _Place:
    """The domain, its variables and secrets, and the launch policy that admits new entries."""

    policy: LaunchPolicy
    domain: str
    workspace: str
    variables: Mapping[str, str]
    secrets: Secrets
    unsealed: Mapping[str, str]
    withheld: dict[str, CommandNotAllowed] | None

    def admit_all(
        self,
        settings: DomainSettings,
        before: DomainSettings,
        change: "EntriesChange",
        problems: list[AgenticRagError],
    ) -> MergedSettings:
        """Return the settings with the changed entries. Entries that are stored unchanged are not checked again.

        The problems of rejected entries are appended to ``problems``, and the caller raises the first of them.
        """
        new: dict[str, _AdmittedEntry] = {}
        for name, entry in change.entries.items():
            if entry != before.mcp_servers.get(name):
                try:
                    new[name] = self.admit_or_withhold(entry)
                except (InvalidInput, CommandNotAllowed) as exc:
                    problems += problems_of(exc)
        entries = {name: new[name].entry if name in new else entry for name, entry in change.entries.items()}
        admitted = new.values()
        return MergedSettings(
            settings.model_copy(update={"mcp_servers": entries}),
            change.secrets,
            change.dropped,
            (*change.changes, *(note for item in admitted for note in item.changes)),
            (*change.warnings, *(note for item in admitted for note in item.warnings)),
            tuple(package for item in admitted for package in item.wanted),
        )

    def admit_or_withhold(self, entry: McpEntry) -> "_AdmittedEntry":
        """Return an entry in its stored form.

        If the catalogue does not allow the entry and ``withheld`` is a dictionary, the entry is switched off and the
        refusal is stored there.
        """
        try:
            return self.admit(entry)
        except CommandNotAllowed as exc:
            if self.withheld is None:
                raise
            self.withheld[entry.name] = exc
            return _AdmittedEntry(replace(entry, enabled=False), [], [], [])

    def admit(self, entry: McpEntry) -> "_AdmittedEntry":
        """Return an entry in its stored form, with notes about its changes and warnings for the admin."""
        path = f"settings.mcpServers.{entry.name}"
        warnings = _check_placeholders(path, entry, self.variables, self.secrets)
        spec = spec_of(
            entry.with_variables(self.variables),
            domain=self.domain,
            workspace=self.workspace,
            secrets={**self.secrets, **self.unsealed},
            path="settings.mcpServers",
            draft=True,
        )
        review = self.policy.review(spec)
        uninstalled = [review.uninstalled] if review.uninstalled is not None and entry.enabled else []
        warnings += [Note(path, self.policy.advise(review, saving=True)) for _ in uninstalled]
        changes = [Note(path, change) for change in review.changes]
        return _AdmittedEntry(replace(entry, target=review.target), changes, warnings, uninstalled)


def _check_placeholders(path: str, entry: McpEntry, variables: Collection[str], secrets: Collection[str]) -> list[Note]:
    """Refuse secrets where every process could read them, and return a note for each placeholder without a value."""
    raise_first(misplaced_secrets(path, entry, secrets))
    unset = sorted(entry.placeholder_names - set(variables) - set(secrets))
    return [
        Note(path, f"${{{name}}} has no value yet: set the variable or the secret {name} of this domain.")
        for name in unset
    ]


def misplaced_secrets(path: str, entry: McpEntry, secrets: Collection[str]) -> list[InvalidInput]:
    """Return a problem for each secret in a command line or in the host of an address. ``path``: path of the entry."""
    if isinstance(entry.target, HttpTarget):
        names = sorted(names_before_path(entry.target.url) & set(secrets))
        return [InvalidInput(f"{path}.url", secret_in_host(name)) for name in names]
    return [
        InvalidInput(f"{path}.{place}", f"${{{placeholder.name}}} is a secret; secrets stand in env and headers only.")
        for place, text in entry.open_texts
        for placeholder in find_placeholders(text)
        if placeholder.name in secrets
    ]


@dataclass(frozen=True, slots=True)
class EntriesChange:
    """A changed map of entries. ``secrets``: values to seal, by name; ``dropped``: names of sealed values to remove.

    ``problems``: the problems of the rejected entries.
    """

    entries: dict[str, McpEntry]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    dropped: tuple[str, ...] = ()
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    problems: tuple[AgenticRagError, ...] = ()


def change_entries(
    before: Mapping[str, McpEntry],
    document: object,
    own: Json | None,
    *,
    replaces: bool,
    path: str = "settings.mcpServers",
) -> EntriesChange:
    """Return the entries after a change; see `collect_change`.

    Raises:
        InvalidInput: an entry is invalid; the error names its path.
        ServerReserved: an entry uses the name of a system or built-in server.
    """
    changed = collect_change(before, document, own, replaces=replaces, path=path)
    raise_first(changed.problems)
    return changed


def collect_change(
    before: Mapping[str, McpEntry],
    document: object,
    own: Json | None,
    *,
    replaces: bool,
    path: str = "settings.mcpServers",
) -> EntriesChange:
    """Return the valid entries after a change, and the problems of the invalid ones.

    Args:
        before: the stored entries.
        document: the map from the client; None means no servers.
        own: the system and built-in servers in the form of a GET. Such an entry is ignored if sent back unchanged.
        replaces: whether the document replaces the stored map. Otherwise it is merged by name, and ``null`` deletes an
            entry.

    Raises:
        InvalidInput: the document as a whole is invalid.
    """
    pasted = collect_entries({} if document is None else document, path, own=own, deletes=not replaces)
    entries = {} if replaces else {name: entry for name, entry in before.items() if name not in pasted.deleted}
    secrets: dict[str, str] = {}
    problems: list[AgenticRagError] = []
    for row in pasted.rows:
        problems += row.problems
        if row.entry is None:
            continue
        sealed_names = before[row.name].sealed_names if row.name in before else frozenset[str]()
        try:
            entries[row.name] = seal_values(row.entry, sealed_names, f"{path}.{row.name}", secrets)
        except InvalidInput as exc:
            problems += problems_of(exc)
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(path, f"{len(entries)} servers; at most {MAX_ENTRIES} are possible.")
    sealed_before = frozenset().union(*(entry.sealed_names for entry in before.values()))
    sealed = frozenset().union(*(entry.sealed_names for entry in entries.values()))
    changes = (*pasted.changes, *(note for row in pasted.rows for note in row.changes))
    warnings = (*pasted.warnings, *(note for row in pasted.rows for note in row.warnings))
    dropped = tuple(sorted(sealed_before - sealed))
    return EntriesChange(entries, secrets, dropped, changes, warnings, tuple(problems))


def seal_values(entry: McpEntry, sealed_names: Collection[str], path: str, secrets: dict[str, str]) -> McpEntry:
    """Return an entry without its secret values, and add these to ``secrets``.

    ``sealed_names``: names of the values that are sealed already.

    Raises:
        InvalidInput: a mask stands for a value that is not stored.
    """
    values: dict[tuple[str, str], Value] = {}
    problems: list[InvalidInput] = []
    for place, name, value in entry.values:
        values[place, name] = value
        if isinstance(value, SecretValue):
            secrets[sealed_name(entry.name, place, name)] = value.text
            values[place, name] = SealedValue()
        elif isinstance(value, SealedValue):
            if sealed_name(entry.name, place, name) not in sealed_names:
                problem = "no value is stored to be kept; give the value."
                problems.append(InvalidInput(f"{path}.{place}.{name}", problem))
            values[place, name] = SealedValue()
    raise_first(problems)
    return entry.with_values(values)
