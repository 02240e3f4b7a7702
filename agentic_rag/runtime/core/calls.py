"""Planning of the tool calls in an assistant message: which may run, and why others are refused. Pure.

Owns the refusals: unknown tools, broken or invalid arguments, arguments that contained a secret, calls that the
domain's policy denies, and tools that changed since the admin accepted them. A text that the model read can ask for
anything; only the policy grants rights. `sources_of` lists the untrusted texts that a person sees before approving.
Knows no turn and no MCP.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from agentic_rag.base.events import Answerer, Source, ToolStatus
from agentic_rag.base.messages import (
    BROKEN_INPUT,
    CALLED,
    OTHERS,
    SECRET,
    Block,
    Message,
    Passage,
    text_block,
    tool_uses,
)
from agentic_rag.runtime.core.arguments import fit_arguments
from agentic_rag.runtime.core.deferred_tools import unwrap_call
from agentic_rag.runtime.core.model_tools import argument_names, own_arguments
from agentic_rag.tools.base import CallOutcome, ToolInfo, Verdict
from agentic_rag.tools.listing import exposed_name
from agentic_rag.tools.status import describe_missing
from agentic_rag.tools.system import AGENT, BY_NAME, CALL_TOOL, CLIENT, DELEGATE, FIND_TOOLS, RECALL

OVERRULED = (
    "Texts of others were read since your message; the domain's pattern for this tool does not cover calls after that."
)
SECRET_IN_ARGUMENTS = "Denied: the arguments hold a secret of this domain. Servers get them from its settings only."

_WILD = re.compile(r"\[\]?[^\]]*\]|[*?]")
"""The wildcards of a glob; the rest of its characters are literal."""


class DenialReason(StrEnum):
    """The reason of a denial, for the audit log and for the model."""

    CHANGED = "changed"
    POLICY = "toolPolicy"
    SHARED_MEMORY = "shared-memory"
    OTHERS_TEXT = "others-text"
    SECRET = "secret"
    NOBODY = "nobody-to-ask"
    DECLINED = "declined"


@dataclass(frozen=True, slots=True)
class Denial:
    """The denial of a call. ``text``: the explanation for the model, which names the setting."""

    because: DenialReason
    text: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that a person must approve before it runs.

    ``warning``: the reason for asking at this point, if there is a special one. ``ask_again``: an earlier approval for
    the rest of the conversation does not count, because the call may have effects and the turn has read text written by
    others.
    """

    answerer: Answerer
    warning: str | None = None
    ask_again: bool = False


_RANKS: Mapping[Verdict, int] = {"allow": 0, "ask": 1, "ask-admin": 2, "deny": 3}
"""Precedence of the verdicts: among equally specific patterns the highest decides."""

NOBODY_TO_ASK = (
    "Declined: {tool!r} needs the approval of {who}, and no person can be asked here. A conversation that a person "
    "follows (the page, a chat client) can ask for it, or an admin can allow it. Go on without."
)

DENIED_EFFECTS = "Denied: {tool!r} may have effects, and this turn belongs to an evaluation. Go on without."


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that decide which calls may run. ``rules``: glob of tool names as the model sees them → verdict.

    The most specific matching pattern decides: the tool's own name, else the pattern with the most literal characters.
    Among equals, ``deny`` beats ``ask-admin``, which beats ``ask``, which beats ``allow``. The order of the rules does
    not matter, because a JSON object has none.

    Once a turn has read text written by others, a pattern's ``allow`` no longer covers tools with effects: an
    instruction in that text could use them, and the author of the pattern did not have this tool in mind. A rule for
    the tool's own name still allows them. An approval for the rest of the conversation counts like a pattern.

    ``effects_allowed``: True for a single user on loopback. Then our own tools that no rule names may have effects, and
    tools of users' servers run if they declare themselves read-only. Both hold only while ``alone`` returns True: the
    first API key ends them, also for turns that were accepted before. Any other tool of a user's server needs the
    approval of the conversation's owner. ``shared_memory``: remembering counts as an effect, because all users of the
    domain read the memories. ``has_person``: a person can be asked. Otherwise calls that need an approval are declined.
    ``denies_effects``: tools with effects never run, and nothing is remembered.
    """

    rules: Mapping[str, Verdict] = field(default_factory=dict)
    effects_allowed: bool = True
    shared_memory: bool = False
    alone: Callable[[], bool] = lambda: True
    has_person: bool = False
    denies_effects: bool = False

    def denies(self, server: str, tool: str) -> bool:
        """Return whether the rules deny a tool of a user's server."""
        return self._verdict_on(exposed_name(server, tool), f"{server}__{tool}") == "deny"

    def ruling(self, tool: ToolInfo, *, others: bool = False) -> Denial | Approval | None:
        """Return the denial of a tool or the approval it needs. Returns None if the tool may run.

        ``others``: text written by others was read since the user's message.
        """
        ruling = self._ruling(tool, others=others)
        if isinstance(ruling, Approval) and not self.has_person:
            answerer = "the user" if ruling.answerer is Answerer.OWNER else "an admin of the domain"
            return Denial(DenialReason.NOBODY, NOBODY_TO_ASK.format(tool=tool.name, who=answerer))
        return ruling

    def _ruling(self, tool: ToolInfo, *, others: bool) -> Denial | Approval | None:
        """Return the ruling on a tool as if a person could be asked.

        ``others``: the turn has read text written by others. Then a pattern of the policy, such as ``files__*``, no
        longer allows tools with effects: a person is asked.
        """
        if tool.server == CLIENT:  # the client's own program runs it, and may refuse
            return None
        # Before any rule: an `allow` was given for the tool as it was accepted.
        if tool.changed:
            return Denial(
                DenialReason.CHANGED,
                f"Denied: the tool {tool.name!r} has changed since its server was accepted. An admin can look at the "
                f"change (GET /api/domains/{{id}}/mcp-servers/{tool.server}/pending) and accept it (POST "
                f"/api/domains/{{id}}/mcp-servers/{tool.server}/accept). Go on without.",
            )
        effects = self._has_effects(tool)
        if self.denies_effects and (effects or (tool.name in BY_NAME and BY_NAME[tool.name].shared_effects)):
            return Denial(DenialReason.POLICY, DENIED_EFFECTS.format(tool=tool.name))
        verdict = self._verdict(tool, patterns_allow=not (others and effects))
        if verdict == "allow" or (verdict is None and (not effects or self._is_harmless_here(tool))):
            return None
        if verdict in ("ask", "ask-admin"):
            if tool.server == AGENT:  # its own tools read data that the model has, or ask the user
                return None
            return Approval(Answerer.OWNER if verdict == "ask" else Answerer.ADMIN, ask_again=others and effects)
        # Asked again with patterns: a pattern would have allowed the tool if no text of others had been read.
        overruled = others and effects and self._verdict(tool) == "allow"
        if verdict == "deny" and not overruled:
            return Denial(
                DenialReason.POLICY, f"Denied by this domain's setting toolPolicy for {tool.name!r}. Go on without."
            )
        if tool.origin == "user" and self.has_person:
            return Approval(Answerer.OWNER, OVERRULED if overruled else None, ask_again=others and effects)
        return self._denial_of_effects(tool, overruled=overruled)

    def _is_harmless_here(self, tool: ToolInfo) -> bool:
        """Return whether a tool may run without approval because only a single user has access.

        Of a user's server only tools declared read-only qualify; any other needs approval at its first use.
        """
        if not (self.effects_allowed and self.alone()):
            return False
        return tool.origin != "user" or tool.claims_read_only

    def _denial_of_effects(self, tool: ToolInfo, *, overruled: bool) -> Denial:
        """Return the denial of a tool with effects that no rule covers.

        ``overruled``: only a pattern allowed the tool.
        """
        rule = f'An admin can add {{"{tool.name}": "allow"}} to the setting toolPolicy. Go on without.'
        if overruled:
            return Denial(
                DenialReason.OTHERS_TEXT,
                f"Denied (others-text): {tool.name!r} may have effects, and this turn has read texts of others, which "
                f"no pattern of this domain's setting toolPolicy covers; a rule for the tool's own name does. {rule}",
            )
        if tool.name in BY_NAME and BY_NAME[tool.name].shared_effects:
            return Denial(
                DenialReason.SHARED_MEMORY,
                f"Denied (shared-memory): all users of this domain share its memories, and its setting toolPolicy does "
                f"not allow {tool.name!r}. {rule}",
            )
        return Denial(
            DenialReason.POLICY,
            f"Denied: {tool.name!r} may have effects, and this domain's setting toolPolicy does not allow it. {rule}",
        )

    def _has_effects(self, tool: ToolInfo) -> bool:
        if tool.origin == "user":
            return not tool.read_only
        builtin = BY_NAME.get(tool.name)
        return builtin is not None and (builtin.effects or (builtin.shared_effects and self.shared_memory))

    def _verdict(self, tool: ToolInfo, *, patterns_allow: bool = True) -> Verdict | None:
        """Return the verdict of the rules on a tool, None without a rule. ``patterns_allow``: patterns may allow too.

        An ``allow`` must match the name that the model sees. Any other verdict may also match ``{server}__{tool}``,
        although the model sees another name where that one is ambiguous: see `listing.exposed_name`.
        """
        plain = f"{tool.server}__{tool.remote_name}" if tool.origin == "user" else tool.name
        return self._verdict_on(tool.name, plain, patterns_allow=patterns_allow)

    def _verdict_on(self, name: str, plain: str, *, patterns_allow: bool = True) -> Verdict | None:
        matching = []
        for glob, verdict in self.rules.items():
            # See `_verdict`: a permission must be exact, a prohibition may be wide.
            names = (name,) if verdict == "allow" else (name, plain)
            exact = glob in names
            if not exact and verdict == "allow" and not patterns_allow:
                continue
            if exact or any(fnmatchcase(candidate, glob) for candidate in names):
                matching.append((exact, len(_WILD.sub("", glob)), _RANKS[verdict], verdict))
        # The tuples compare in the order of precedence that the class describes.
        return max(matching)[-1] if matching else None


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call of the model, checked against the policy.

    ``refusal``: the outcome of a call that must not run, else None. ``approval``: a person must approve the call before
    it runs.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    tool: ToolInfo | None
    refusal: CallOutcome | None = None
    because: DenialReason | None = None
    """The reason of a refusal that is a denial."""
    approval: Approval | None = None

    @property
    def server(self) -> str:
        return self.tool.server if self.tool else ""

    @property
    def repeatable(self) -> bool:
        """Whether the call may run again after a crash interrupted it."""
        return self.tool is not None and (self.tool.read_only or self.tool.idempotent)

    @property
    def delegates(self) -> bool:
        """Whether a delegate does the work.

        Such a call takes as long as a turn, and running it again resumes the delegate.
        """
        return self.tool is not None and self.tool.origin == "system" and self.tool.name == DELEGATE.name


NONE_MISSING: Mapping[str, bool] = {}


def find_missing_server(block: Block, tools: Mapping[str, ToolInfo], missing: Collection[str]) -> str:
    """Return the server of a called tool if the server cannot be called and its tool is not known; else "".

    ``missing``: the servers that cannot be called.
    """
    called = unwrap_call(block) if CALL_TOOL.name in tools else block
    name = str(called.get(CALLED, called["name"]))
    if name in tools:
        return ""
    return max((server for server in missing if name.startswith(f"{server}__")), key=len, default="")


def plan_call(
    block: Block,
    tools: Mapping[str, ToolInfo],
    policy: Policy,
    *,
    others: bool = False,
    missing: Mapping[str, bool] = NONE_MISSING,
) -> PlannedCall:
    """Return the plan for a ``tool_use`` block.

    ``tools``: by the name that the model sees. ``others``: text written by others was read since the user's message.
    ``missing``: the servers that cannot be called; True for one that is still starting.
    """
    server = find_missing_server(block, tools, missing)
    block = unwrap_call(block) if CALL_TOOL.name in tools else block
    # A block that still names its tool in `CALLED` could not be unwrapped: that tool is not known.
    tool = None if CALLED in block else tools.get(block["name"])
    refusal: CallOutcome | None = None
    because: DenialReason | None = None
    ruling = None if tool is None else policy.ruling(tool, others=others)
    arguments, problem = block["input"], None
    if tool is not None and BROKEN_INPUT not in block:
        arguments = own_arguments(tool, arguments)
        names = {own: shown_name for shown_name, own in argument_names(tool).items()}
        arguments, problem = fit_arguments(tool.input_schema, arguments, user=tool.origin == "user", names=names)
    if tool is None and server:
        refusal = error_outcome(describe_missing(server, starting=missing[server]))
    elif tool is None:
        name = block.get(CALLED, block["name"])
        listed = [name for name in tools if name in BY_NAME] if FIND_TOOLS.name in tools else list(tools)
        search_hint = f"; {FIND_TOOLS.name} finds others" if len(listed) < len(tools) else ""
        refusal = error_outcome(
            f"There is no tool {name!r}. The tools are: {', '.join(listed) or 'none'}{search_hint}."
        )
    # The order decides the model's error message: a denial must not depend on whether the arguments fit.
    elif SECRET in block:
        refusal, because = CallOutcome(ToolStatus.DENIED, (text_block(SECRET_IN_ARGUMENTS),)), DenialReason.SECRET
    elif BROKEN_INPUT in block:
        refusal = error_outcome(f"The arguments are not a JSON object: {block[BROKEN_INPUT][:200]!r}")
    elif isinstance(ruling, Denial):
        refusal, because = CallOutcome(ToolStatus.DENIED, (text_block(ruling.text),)), ruling.because
    elif problem is not None:
        refusal = error_outcome(f"The arguments do not fit the tool: {problem}")
    elif tool.name == CALL_TOOL.name:
        refusal = error_outcome(f"There is no tool {tool.name!r} to be called by {tool.name}: name another.")
    approval = ruling if isinstance(ruling, Approval) and refusal is None else None
    return PlannedCall(block["id"], block["name"], arguments, tool, refusal, because, approval)


def error_outcome(text: str) -> CallOutcome:
    """Return an error outcome with a text for the model."""
    return CallOutcome(ToolStatus.ERROR, (text_block(text),))


def stop_outcome(by_user: bool, begun: bool = True) -> CallOutcome:
    """Return the outcome of a call that the end of its turn cut off.

    ``begun``: the call ran. Otherwise it waited for a person.
    """
    outcome = "the outcome is unknown" if begun else "it did not run"
    if by_user:
        return CallOutcome(ToolStatus.INTERRUPTED, (text_block(f"interrupted by the user; {outcome}"),))
    return error_outcome(f"not finished: the turn ended while this {'ran' if begun else 'waited'}; {outcome}")


MAX_SOURCES = 40
"""Most sources in the list; the first ones found are listed."""


def sources_of(messages: Iterable[Sequence[Message]], tools: Iterable[ToolInfo]) -> tuple[Source, ...]:
    """Return the untrusted sources in the messages of some agents, and the servers whose tool descriptions were read.

    Documents are listed by their names, memories and results by their tool, delegates by the tool of their call.
    ``messages``: one sequence per agent.
    """
    sources: dict[Source, None] = {}
    for agent_messages in messages:
        called = {use["id"]: use["name"] for message in agent_messages for use in tool_uses(message["content"])}
        for message in agent_messages:
            for block in message["content"]:
                if block["type"] == "tool_result":
                    sources |= dict.fromkeys(_in_result(block, called.get(block["tool_use_id"], "")))
    described = sorted({tool.server for tool in tools if tool.origin == "user"})
    sources |= dict.fromkeys(Source("description", server) for server in described)
    return tuple(sources)[:MAX_SOURCES]


def _in_result(block: Block, tool: str) -> list[Source]:
    passages = [Passage.of(part) for part in block["content"] if part["type"] == "search_result"]
    documents = [Source("document", passage.document_name) for passage in passages if passage is not None]
    if tool == RECALL.name:
        return [*documents, Source("memory", tool)]
    if tool == DELEGATE.name and OTHERS in block:
        return [*documents, Source(DELEGATE.name, tool)]
    return [*documents, Source("tool", tool)] if OTHERS in block and not documents else documents
