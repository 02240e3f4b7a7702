"""Secrets in what a server shows people and models besides its results: names, and addresses to open."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentic_rag.base.events import ToolStatus, WaitAction, WaitKind
from agentic_rag.base.redaction import Redaction
from agentic_rag.domains.turn_tools import GuardedTools
from agentic_rag.tools.base import Ask, CallOutcome, CallRequest, InputGiven, InputNeeded, ProgressSink, ToolInfo

SECRET = "sk-planted-0123456789"


@dataclass(frozen=True)
class _Listed:
    """The tools of one server; a `Toolset`."""

    tools: tuple[ToolInfo, ...]
    notices: tuple[tuple[str, str], ...] = ()
    missing: Mapping[str, bool] = field(default_factory=dict)
    fresh: bool = True
    question: InputNeeded | None = None
    answers: list[InputGiven] = field(default_factory=list)

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        if self.question is not None and ask is None:
            return self.question
        if self.question is not None and ask is not None:
            self.answers.append(await ask(self.question))
        return CallOutcome(ToolStatus.OK, ())

    async def cancel_task(self, server: str, task: str) -> None:
        pass


def _tool(name: str) -> ToolInfo:
    schema = {"type": "object", "properties": {SECRET: {"type": "string"}}, "required": [SECRET]}
    return ToolInfo(f"theirs__{name}", name, "theirs", "user", "Does something.", schema)


def test_a_tool_or_argument_named_like_a_secret_is_hidden() -> None:
    redact = Redaction()
    redact.add("API_TOKEN", SECRET)
    tools = GuardedTools(_Listed((_tool("fetch"), _tool(SECRET))), redact).tools
    assert [tool.remote_name for tool in tools] == ["fetch"]
    assert list(tools[0].input_schema["properties"]) == ["[secret API_TOKEN]"]
    assert SECRET not in str(tools)


async def test_an_address_with_a_secret_is_shown_to_no_person() -> None:
    redact = Redaction()
    redact.add("API_TOKEN", SECRET)
    shown: list[InputNeeded] = []

    async def ask(needed: InputNeeded) -> InputGiven:
        shown.append(needed)
        return InputGiven(WaitAction.ACCEPT)

    request = CallRequest("call_1", _tool("fetch"), {})
    for url, is_shown in ((f"https://pay.example/?key={SECRET}", False), ("https://pay.example/?key=1", True)):
        question = InputNeeded(WaitKind.URL, "Open a page", "Pay.", url=url, warning=f"It may be {SECRET}.example.")
        listed = _Listed((_tool("fetch"),), question=question)
        guarded = GuardedTools(listed, redact)
        outcome = await guarded.call(request, 240)
        await guarded.call(request, 240, ask=ask)
        assert isinstance(outcome, InputNeeded) is is_shown
        assert SECRET not in str(outcome)
        assert listed.answers == [InputGiven(WaitAction.ACCEPT if is_shown else WaitAction.DECLINE)]
    assert len(shown) == 1
    assert SECRET not in str(shown)
