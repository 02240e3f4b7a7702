"""A question that its server withdraws: while the turn is in memory, after its suspension, and too late."""

from pathlib import Path

import anyio
import pytest

from agentic_rag.base.events import WaitAction, WaitKind
from agentic_rag.store.turns import TurnStatus
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import say, use
from agentic_rag.tools.base import CallOutcome, CallRequest, InputNeeded, Withdrawal
from tests.runtime.harness import Bench, bench, definition, kinds, ok, toolset
from tests.runtime.test_waits import answer, fields_of, open_waits, read_events, wait_for_suspension
from tests.waiting import pause


class Page:
    """A tool that requires opening a page, and whose server may report that it was opened."""

    def __init__(self) -> None:
        self.withdrawal = Withdrawal()

    async def __call__(self, request: CallRequest) -> CallOutcome | InputNeeded:
        if request.given is None:
            url = "https://pay.test/"
            return InputNeeded(WaitKind.URL, "srv asks", "Pay.", url=url, held={}, withdrawal=self.withdrawal)
        return ok(f"after {request.given.action.value}")


async def wait_until_ended(b: Bench, turn_id: str) -> None:
    """Run the runtime's maintenance of waits until a turn has ended."""
    with anyio.fail_after(240):
        while (await b.turn(turn_id)).status is not TurnStatus.DONE:
            await b.runtime.check_waits()
            await pause()


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("action", [WaitAction.ACCEPT, WaitAction.CANCEL])
async def test_a_turn_continues_when_the_server_reports_completion(
    tmp_path: Path, suspended: bool, action: WaitAction
) -> None:
    page = Page()
    async with (
        ScriptedModel(use("pay", query="x"), say("Done.")) as model,
        bench(tmp_path, model, toolset(pay=page)) as b,
    ):
        accepted = await b.send("Pay.", definition(has_person=True))
        await open_waits(b)
        if suspended:
            await wait_for_suspension(b, accepted)
        page.withdrawal.end(action)
        page.withdrawal.end(WaitAction.DECLINE)  # the first answer counts
        await wait_until_ended(b, accepted.turn_id)
        events = await read_events(b, accepted)
    assert kinds(events)[-1] == "done"
    assert [(input_answer["action"], input_answer["by"]) for input_answer in fields_of(events, "input_answered")] == [
        (action.value, "")
    ]
    content = fields_of(events, "tool_result")[0]["content"]
    assert content == "after accept" if action is WaitAction.ACCEPT else "was cancelled" in content


async def test_the_first_persons_decision_stands(tmp_path: Path) -> None:
    page = Page()
    async with (
        ScriptedModel(use("pay", query="x"), say("Done.")) as model,
        bench(tmp_path, model, toolset(pay=page)) as b,
    ):
        accepted = await b.send("Pay.", definition(has_person=True))
        (wait,) = await open_waits(b)
        await wait_for_suspension(b, accepted)
        await answer(b, wait, WaitAction.DECLINE)
        page.withdrawal.end(WaitAction.ACCEPT)
        await wait_until_ended(b, accepted.turn_id)
        events = await read_events(b, accepted)
    assert [input_answer["action"] for input_answer in fields_of(events, "input_answered")] == ["decline"]
    assert "declined" in fields_of(events, "tool_result")[0]["content"]
