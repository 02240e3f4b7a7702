"""The definition of an agent: a value that the business layer builds from a domain's settings.

Owns the shape, its JSON form, and the hash of its image. A turn records the id of the image it ran on, so that a
resumed turn runs on the settings it began with, and a reader can tell which settings gave an answer. Knows no database,
no HTTP and no MCP client.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from agentic_rag.base.json_form import Absent, Json, from_json, to_json
from agentic_rag.tools.base import Binding, SystemServer, Verdict
from agentic_rag.tools.entries.entry import McpEntry


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one turn; times in seconds."""

    max_steps: int = 12
    turn_timeout: float = 600
    tool_timeout: float = 60
    context_tokens: int = 100_000
    context_messages: int | None = None
    turn_tokens: Absent[int] = None
    """Tokens of all model calls after which the turn makes no further call."""


@dataclass(frozen=True, slots=True)
class SkillLine:
    """The name and description of a skill for the prompt."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class ClientFunction:
    """A function that the client's program runs for the model. ``parameters``: JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Persona:
    """The values from which the bootstrap prompt is written."""

    name: str
    """The domain's name."""
    role: str
    """Id of the role to activate."""
    language: str = "auto"
    """BCP 47 tag, or ``auto``: the user's language."""
    style: Literal["detailed", "concise"] = "detailed"
    tone: Literal["formal", "friendly"] = "friendly"
    expertise: str = ""
    components: tuple[str, ...] = ()
    """Texts of the workspace's prompt components, in order."""
    asker: str = ""
    """For a delegate: id of the role that handed it the task."""
    skills: tuple[SkillLine, ...] = ()
    """The workspace's skills, by name."""


@dataclass(frozen=True, slots=True)
class Definition:
    """All settings of a turn.

    ``system``: our own servers. ``entries``: the user's servers, without secret values and with unresolved
    placeholders. ``tool_policy``: glob of tool names as the model sees them → verdict; see `calls.Policy`.
    ``effects_allowed_by_default``: tools that the policy does not name may have effects (a single user on loopback).
    ``has_person``: a person follows the conversation and can be asked. Otherwise calls that need a person are declined.
    """

    domain_id: str
    persona: Persona
    model: str
    max_tokens: int
    system: tuple[SystemServer, ...] = ()
    entries: tuple[McpEntry, ...] = ()
    temperature: float | None = None
    thinking: Literal["off", "auto"] = "auto"
    effort: str | None = None
    fallback_models: tuple[str, ...] = ()
    """Models to ask in this order if ``model`` refuses to answer or its service accepts no more requests."""
    limits: Limits = field(default_factory=Limits)
    binding: Binding = field(default_factory=Binding)
    tool_policy: Mapping[str, Verdict] = field(default_factory=dict)
    effects_allowed_by_default: bool = False
    has_person: bool = False
    ask_user: bool = False
    """Whether the model may ask the user a question during a turn."""
    role_lines: Mapping[str, str] = field(default_factory=dict)
    """One-line descriptions from the files of the roles that may be delegated to, by role id."""
    denies_effects: Absent[bool] = None
    """True: the policy does not matter, and every tool that may have effects is denied. For turns of an evaluation."""
    functions: Absent[tuple[ClientFunction, ...]] = None
    """Functions of the client's program, for this turn only."""
    function_choice: Absent[str] = None
    """The function that the client wants to be called first, or ``required`` for any of them."""
    untrusted: Absent[str] = None
    """Who wrote a part of the message that counts as text written by others, for example a webhook's sender."""
    collection_note: str = ""
    """Facts about the collection for the description of `search_documents`: count class, languages, expertise."""

    def to_json(self) -> Json:
        """Return the JSON form (`from_json` reverses it)."""
        entries = {entry.name: entry.to_json() for entry in self.entries}
        value: Json = to_json(replace(self, entries=()))
        return value | {"entries": entries}

    @classmethod
    def from_json(cls, value: Json) -> "Definition":
        """Rebuild a definition from its JSON form.

        Raises:
            TypeError, KeyError, ValueError: the value is no definition, or has a version that this program cannot run.
        """
        entries = tuple(McpEntry.from_json(name, entry) for name, entry in value["entries"].items())
        return replace(from_json(cls, value | {"entries": []}), entries=entries)


MAX_KNOWN = 256
"""Images in the cache of `Images`; there is one per domain and user."""


@dataclass(frozen=True, slots=True)
class Image:
    """A frozen definition.

    ``id``: ``img_`` and the first 32 hex digits of the SHA-256 of ``content`` as canonical JSON.
    """

    id: str
    definition: Definition
    content: Json

    @classmethod
    def of(cls, definition: Definition) -> "Image":
        """Freeze a definition."""
        content = definition.to_json()
        canonical = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        return cls(f"img_{hashlib.sha256(canonical).hexdigest()[:32]}", definition, content)


class Images:
    """A cache of recent images. A definition that equals that of its user's last turn is not hashed again."""

    def __init__(self) -> None:
        self._images: OrderedDict[tuple[str, str], Image] = OrderedDict()

    def of(self, definition: Definition) -> Image:
        """Freeze a definition."""
        key = (definition.domain_id, definition.binding.user)
        image = self._images.get(key)
        if image is None or (image.definition is not definition and image.definition != definition):
            image = self._images[key] = Image.of(definition)
        self._images.move_to_end(key)
        if len(self._images) > MAX_KNOWN:
            self._images.popitem(last=False)
        return image
