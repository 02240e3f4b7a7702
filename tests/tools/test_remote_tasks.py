"""Calls that an MCP server runs as tasks (SEP-2663). The server follows the specification strictly, over stdio."""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.base.events import ToolStatus, WaitAction
from agentic_rag.testing.steps import say, use
from agentic_rag.tools.base import Binding, CallOutcome, CallRequest, InputGiven, InputNeeded, RemoteTask
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.remote_tasks import POLL_SECONDS, read_task
from agentic_rag.tools.toolset import ServerToolset, open_toolset
from tests.server.rig import Rig
from tests.tools.support import SERVERS, START, open_hub, stdio_spec, text_of, tool
from tests.waiting import pause


def spec_of_tasks() -> LaunchSpec:
    return stdio_spec(sys.executable, "-I", "-S", str(SERVERS / "tasks.py"), name="shop")


class Caller:
    """Calls tools of a toolset, and records their tasks and progress."""

    def __init__(self, toolset: ServerToolset) -> None:
        self.toolset = toolset
        self.tasks: list[RemoteTask] = []
        self.progress: list[str | None] = []

    async def run(
        self, name: str, *, given: InputGiven | None = None, task: str = "", timeout: float = 30, **arguments: Any
    ) -> CallOutcome | InputNeeded:
        info = tool(self.toolset, f"shop__{name}")
        request = CallRequest("c", info, arguments, "", Binding(), given, task, self._note)
        with anyio.fail_after(240):
            return await self.toolset.call(request, timeout, self._hear)

    async def finish(self, name: str, **options: Any) -> Any:
        outcome = await self.run(name, **options)
        assert isinstance(outcome, CallOutcome)
        assert outcome.status is ToolStatus.OK, text_of(outcome)
        return json.loads(text_of(outcome))

    async def fail(self, name: str, **options: Any) -> str:
        outcome = await self.run(name, **options)
        assert isinstance(outcome, CallOutcome)
        assert outcome.status is ToolStatus.ERROR
        return text_of(outcome)

    async def _note(self, task: RemoteTask) -> None:
        self.tasks.append(task)

    async def _hear(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message)


@asynccontextmanager
async def open_caller(folder: Path) -> AsyncGenerator[Caller]:
    async with open_hub(folder) as hub:
        yield Caller(await open_toolset(hub, [spec_of_tasks()], wait=START))


async def test_a_long_call_is_followed_to_its_result_and_reports_progress(tmp_path: Path) -> None:
    async with open_caller(tmp_path) as caller:
        assert await caller.finish("build", polls=3) == {"built by": ["build"], "answers": {}}
        assert caller.progress[0] == "step 0"
        assert "step 2" in caller.progress
        assert len(caller.tasks) == 1


async def test_the_result_of_a_known_task_is_fetched_without_a_second_call(tmp_path: Path) -> None:
    async with open_caller(tmp_path) as caller:
        await caller.finish("build", polls=2)
        second_result = await caller.finish("build", task=caller.tasks[0].id, polls=2)
        assert second_result["built by"] == ["build"]
        assert "there is no such task" in await caller.fail("build", task="unknown")


async def test_a_task_survives_the_loss_of_its_server(tmp_path: Path) -> None:
    async with open_caller(tmp_path) as caller:
        assert (await caller.finish("lose"))["built by"] == ["lose"]


async def test_questions_of_a_task_are_answered_in_sequence(tmp_path: Path) -> None:
    async with open_caller(tmp_path) as caller:
        question, person_answer = await caller.run("form"), None
        for number, message in enumerate(("Which name?", "Which colour?")):
            assert isinstance(question, InputNeeded)
            assert question.message == message
            held_state = json.loads(json.dumps(question.held))  # as stored with the wait
            person_answer = InputGiven(WaitAction.ACCEPT, {"name": f"answer {number}"}, held_state)
            question = await caller.run("form", given=person_answer, task=caller.tasks[0].id)
        assert isinstance(question, CallOutcome)
        answers = json.loads(text_of(question))["answers"]
        assert {key: answer["content"]["name"] for key, answer in answers.items()} == {
            "name": "answer 0",
            "colour": "answer 1",
        }
        assert len({task.id for task in caller.tasks}) == 1


async def test_a_task_that_fails_or_cannot_be_read_is_an_error_with_its_reason(tmp_path: Path) -> None:
    async with open_caller(tmp_path) as caller:
        assert await caller.fail("break") == "the belt broke"
        assert "the task has no id" in await caller.fail("nameless")


def test_an_interval_beyond_every_float_is_no_interval() -> None:
    assert read_task({"taskId": "t", "status": "working", "pollIntervalMs": 10**400}).poll == POLL_SECONDS


async def test_a_task_is_cancelled_on_request(tmp_path: Path) -> None:
    async with open_caller(tmp_path) as caller:
        texts: list[str] = []

        async def run() -> None:
            texts.append(await caller.fail("never"))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not caller.tasks:
                await pause()
            await caller.tasks[0].cancel()
        assert texts == ["The server cancelled its task. as you wish"]
        assert (await caller.finish("report"))["cancelled"] == ["never"]


@pytest.mark.slow(reason="a server process and two turns")
async def test_an_interrupted_turn_cancels_the_task_of_its_call(tmp_path: Path) -> None:
    steps = (use("shop__never"), use("shop__report"), say("That is all."))
    async with Rig(tmp_path, *steps, any_command=True) as rig:
        entry = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "tasks.py")]}
        domain = await rig.domain(mcpServers={"shop": entry}, toolPolicy={"*": "allow"})
        path = f"/api/conversations/{await rig.conversation(domain)}"
        turn = await rig.ok("POST", f"{path}/messages", {"content": "Go."}, headers={"accept": "application/json"})
        query = "SELECT task FROM tool_calls WHERE task <> ''"
        with anyio.fail_after(60):
            while not await rig.application.database.read(lambda conn: conn.exec_driver_sql(query).all()):
                await pause()
        assert await rig.ok("POST", f"{path}/interrupt", {"turnId": turn["id"]}) == {"interrupted": True}
        events = await rig.say(path.rsplit("/", 1)[1], "What was cancelled?")
        (result,) = [event for event in events if event["type"] == "tool_result"]
        assert json.loads(result["content"])["cancelled"] == ["never"]


@pytest.mark.slow(reason="a server process, two starts of the application")
async def test_declining_a_question_after_a_restart_cancels_the_task_that_asked(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "tasks.py")]}
    async with Rig(tmp_path, use("shop__form"), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"shop": entry}, toolPolicy={"*": "allow"})
        path = f"/api/conversations/{await rig.conversation(domain)}"
        await rig.ok("POST", f"{path}/messages", {"content": "Go."}, headers={"accept": "application/json"})
        with anyio.fail_after(60):
            while not (waits := (await rig.ok("GET", "/api/waits?state=open"))["items"]):
                await pause()
    steps = (say("Then not."), use("shop__report"), say("That is all."))
    async with Rig(tmp_path, *steps, any_command=True) as rig:
        await rig.ok("POST", f"/api/waits/{waits[0]['id']}", {"action": "decline"})
        with anyio.fail_after(60):
            while (await rig.ok("GET", path))["turn"] is not None:
                await pause()
        events = await rig.say(path.rsplit("/", 1)[1], "What was cancelled?")
        (result,) = [event for event in events if event["type"] == "tool_result"]
        assert json.loads(result["content"])["cancelled"] == ["form"]
