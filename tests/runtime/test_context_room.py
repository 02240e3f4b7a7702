"""Room for new content: the model sees each result before its removal, and old results are removed first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_rag.base.ids import SessionId
from agentic_rag.base.json_form import Json
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.testing.steps import Say, Step, Think, Use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import Bench, Services, bench, definition, kinds, ok, toolset
from tests.runtime.strict_model import NAME, StrictModel, results_of

STOP = 7
"""A size that represents a call during which the user interrupts."""

Steps = Sequence[Sequence[int]]
"""A turn: the sizes of its parallel calls' results, step by step."""


@dataclass
class Plan:
    """Drives a model through turns with unique results."""

    turns: Sequence[Steps]
    summarizes: bool = False
    """Whether it gives a summary on request."""
    remaining: list[Sequence[int]] = field(default_factory=list)
    results: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By call id: the result's text, and the number of requests before it."""
    model: StrictModel | None = None
    bench: Bench | None = None

    def answer(self, body: Json) -> Step:
        if asks_for_summary(body):
            return Step((Think("all"), Say('{"facts": ["Much was read."]}' if self.summarizes else "No.")))
        if not self.remaining or body.get("tool_choice") == {"type": "none"}:
            return Step((Think("enough"), Say("Answered.")))
        sizes = self.remaining.pop(0)
        return Step((Think("more"), *(Use("dump", {"query": str(size)}) for size in sizes)))

    async def dump(self, request: CallRequest) -> CallOutcome:
        assert self.model is not None
        assert self.bench is not None
        size = int(request.arguments["query"])
        if size == STOP:
            await self.bench.runtime.interrupt(SessionId("sess_test"))
        text = f"{request.id}: " + "word " * (size // 5)
        self.results[request.id] = text, len(self.model.requests)
        return ok(text)

    async def run(self, folder: Path, context_tokens: int) -> None:
        limits = Limits(max_steps=40, context_tokens=context_tokens)
        settings = definition(model=NAME, limits=limits)
        self.model = StrictModel(self.answer)
        async with bench(folder, self.model, services=Services(self.model, toolset(dump=self.dump))) as self.bench:
            for number, steps in enumerate(self.turns):
                self.remaining = list(steps)
                events = await self.bench.say(f"Question {number}?", definition=settings)
                assert kinds(events)[-1] in ("done", "interrupted"), events[-1]
            self.remaining = []
            assert kinds(await self.bench.say("The end?", definition=settings))[-1] == "done"


sizes = st.sampled_from([10, 600, 3_000, 9_000, 15_000]) | st.integers(10, 15_000)
steps = st.lists(sizes, min_size=1, max_size=4) | st.just([9_000, STOP])
turns = st.lists(st.lists(steps, max_size=6), min_size=1, max_size=4)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns, st.sampled_from([9_000, 16_000, 30_000]), st.booleans())
async def test_each_result_is_complete_in_the_next_request(
    plan: Sequence[Steps], context_tokens: int, summarizes: bool
) -> None:
    run = Plan(plan, summarizes)
    with TemporaryDirectory() as folder:
        await run.run(Path(folder), context_tokens)
    assert run.model is not None
    assert run.model.refused == [], "a thought did not fit, or a prompt was too long"
    for call_id, (text, request_count) in run.results.items():
        next_body = next(body for body in run.model.requests[request_count:] if not asks_for_summary(body))
        result_text = results_of(next_body)[call_id]
        assert result_text == text or result_text.startswith("interrupted"), "withheld from the model"


def asks_for_summary(body: Json) -> bool:
    return "Summarise the conversation" in str(body["messages"][-1]) + str(body.get("system"))


def omitted_results(body: Json) -> list[bool]:
    return [text.startswith("[result of ") for text in results_of(body).values()]


async def test_old_results_are_omitted_first_in_groups_and_the_newest_steps_stay(tmp_path: Path) -> None:
    run = Plan([[[9_000]] * 32])
    await run.run(tmp_path, 40_000)
    assert run.model is not None
    rewrites = 0
    for earlier, later in zip(run.model.requests, run.model.requests[1:], strict=False):
        omitted = omitted_results(later)
        assert omitted == sorted(omitted, reverse=True)
        assert not any(omitted[-3:]), "the newest steps stay while older ones can go"
        rewrites += omitted[: len(omitted_results(earlier))] != omitted_results(earlier)
    assert 2 <= rewrites <= 4
    assert run.model.cached_tokens / run.model.sent_tokens > 0.7, "the cache is of no use"
