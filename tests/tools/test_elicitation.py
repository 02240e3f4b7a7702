"""Servers' questions to people during a call, in both eras, with real servers: the form shown, the answer sent."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from agentic_rag.base.events import ToolStatus, WaitAction, WaitKind
from agentic_rag.base.json_form import Json
from agentic_rag.tools.base import Ask, Binding, CallOutcome, CallRequest, InputGiven, InputNeeded
from agentic_rag.tools.elicitation import Unfit, question_of
from agentic_rag.tools.exchange import Relay
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.live_questions import QUESTIONS
from agentic_rag.tools.toolset import ServerToolset, open_toolset
from tests.tools.servers.asking import STATE
from tests.tools.support import SERVERS, START, http_spec, open_hub, stdio_spec, text_of, tool
from tests.tools.test_http import Forgetful, OldEra, serve

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORM = {"mode": "form", "message": "Who are you?", "requestedSchema": NAME}
PAGE = {"mode": "url", "message": "Sign the contract.", "url": "https://sign.test/c?id=7", "elicitationId": "e7"}
NESTED = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}


def spec_of_asking(era: str) -> LaunchSpec:
    return stdio_spec(sys.executable, "-I", "-S", str(SERVERS / "asking.py"), era, name="desk")


async def run(
    toolset: ServerToolset, name: str, ask: Ask | None = None, given: InputGiven | None = None, **arguments: Any
) -> CallOutcome | InputNeeded:
    with anyio.fail_after(240):
        request = CallRequest("c1", tool(toolset, name), arguments, "", Binding(), given)
        return await toolset.call(request, 30, None, ask)


async def finish_call(toolset: ServerToolset, name: str, ask: Ask | None = None, **arguments: Any) -> Any:
    """Return the text of a successful tool call."""
    outcome = await run(toolset, name, ask, **arguments)
    assert isinstance(outcome, CallOutcome)
    assert outcome.status is ToolStatus.OK, text_of(outcome)
    return json.loads(text_of(outcome))


def accept(question: InputNeeded, **content: Any) -> InputGiven:
    """A person's answer, as loaded from the store."""
    return InputGiven(WaitAction.ACCEPT, content, json.loads(json.dumps(question.held)))


class Person:
    """Answers the questions of a call, and records them."""

    def __init__(self, action: WaitAction = WaitAction.ACCEPT, **content: Any) -> None:
        self.given = InputGiven(action, content)
        self.questions: list[InputNeeded] = []

    async def __call__(self, question: InputNeeded) -> InputGiven:
        self.questions.append(question)
        return self.given


class Absent:
    """Never answers. A question ends when its server withdraws it."""

    def __init__(self) -> None:
        self.is_asked = anyio.Event()
        self.ended: list[WaitAction] = []

    async def __call__(self, question: InputNeeded) -> InputGiven:
        self.is_asked.set()
        assert question.withdrawal is not None
        self.ended.append(await question.withdrawal.wait())
        return InputGiven(self.ended[-1])


# -- the newer era ----------------------------------------------------------------------------------------------------


async def test_requests_of_one_answer_are_asked_in_sequence_and_returned_together(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("new")], wait=START)
        params = [FORM, {"mode": "url", "message": "Sign.", "url": "https://sign.test/c"}]
        first_question = await run(toolset, "ask", params=params)
        assert isinstance(first_question, InputNeeded)
        assert (first_question.kind, first_question.message, first_question.schema) == (
            WaitKind.FORM,
            "Who are you?",
            NAME,
        )
        assert first_question.title == "The server 'desk' asks for input"
        second_question = await run(toolset, "ask", given=accept(first_question, name="Ann"), params=params)
        assert isinstance(second_question, InputNeeded)
        assert (second_question.kind, second_question.url) == (WaitKind.URL, "https://sign.test/c")
        assert "sign.test" in second_question.title
        outcome = await run(toolset, "ask", given=accept(second_question), params=params)
        assert isinstance(outcome, CallOutcome)
        assert json.loads(text_of(outcome)) == {
            "responses": {"q0": {"action": "accept", "content": {"name": "Ann"}}, "q1": {"action": "accept"}},
            "state": STATE,
        }


async def test_a_request_state_without_a_question_is_returned_at_once(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("new")], wait=START)
        assert await finish_call(toolset, "state_only") == {"responses": None, "state": STATE}


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("sample", [], "sampling/createMessage is not offered"),
        ("ask", [FORM, {**FORM, "requestedSchema": NESTED}], "no text, number, yes or no, or choice"),
        ("ask", [FORM] * 9, "9 things at once"),
        ("ask", [{**FORM, "message": "x" * 4_001}], "message is longer"),
    ],
)
async def test_a_form_that_cannot_be_shown_completely_is_declined_with_the_reason(
    tmp_path: Path, name: str, params: list[Json], words: str
) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("new")], wait=START)
        outcome = await run(toolset, name, params=params)
        assert isinstance(outcome, CallOutcome)
        assert outcome.status is ToolStatus.ERROR
        assert words in text_of(outcome)


# -- the older era ----------------------------------------------------------------------------------------------------


async def test_a_servers_question_during_a_call_is_answered_on_the_open_connection(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("old")], wait=START)
        person = Person(name="Ann")
        answers = await finish_call(toolset, "ask", person, params=[FORM, FORM])
        assert answers == [{"action": "accept", "content": {"name": "Ann"}}] * 2
        assert [question.schema for question in person.questions] == [NAME, NAME]
        for action, word in (
            (WaitAction.DECLINE, "decline"),
            (WaitAction.EXPIRE, "decline"),
            (WaitAction.CANCEL, "cancel"),
        ):
            assert await finish_call(toolset, "ask", Person(action), params=[FORM]) == [{"action": word}]


async def test_without_a_person_a_question_is_declined(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("old")], wait=START)
        assert await finish_call(toolset, "ask", params=[FORM]) == [{"action": "decline"}]


async def test_an_ambiguous_call_of_a_question_is_declined_and_the_model_learns_it(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("old")], wait=START)
        away, ben = Absent(), Person(name="Ben")
        async with anyio.create_task_group() as tasks:

            async def ask_page() -> None:
                outcome = await run(toolset, "ask", away, params=[PAGE])
                assert isinstance(outcome, CallOutcome)
                assert text_of(outcome).endswith('[{"action": "accept"}]')

            tasks.start_soon(ask_page)
            await away.is_asked.wait()
            outcome = await run(toolset, "ask", ben, params=[FORM])
            assert isinstance(outcome, CallOutcome)
            assert text_of(outcome).startswith("[desk asked the user a question while several of its calls ran")
            assert text_of(outcome).endswith('[{"action": "decline"}]')
            assert await finish_call(toolset, "page_done", id="e7") == "told"
        assert ben.questions == []
        assert away.ended == [WaitAction.ACCEPT]  # the server reported that the page is done


async def test_a_call_ends_if_the_server_forgot_the_session_before_the_persons_answer(tmp_path: Path) -> None:
    class Name(BaseModel):
        name: str

    server = MCPServer("desk")

    @server.tool()
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who are you?", Name)).action

    app = Forgetful(OldEra(server.streamable_http_app()))

    async def person(question: InputNeeded) -> InputGiven:
        app.forgotten |= app.sessions
        return InputGiven(WaitAction.ACCEPT, {"name": "Ann"})

    async with serve(app) as address, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [http_spec(f"{address}/mcp")], wait=START)
        request = CallRequest("c1", tool(toolset, "greet"), {}, "", Binding(admin=True))
        with anyio.fail_after(240):
            outcome = await toolset.call(request, 30, None, person)
        assert isinstance(outcome, CallOutcome)
        assert "the server ended the session" in text_of(outcome)


async def test_over_http_a_question_reaches_the_person_of_its_own_call(tmp_path: Path) -> None:
    class Name(BaseModel):
        name: str

    server = MCPServer("desk")

    @server.tool()
    async def greet(ctx: Context) -> str:
        """Ask for a name."""
        answer = await ctx.elicit("Who are you?", Name)
        return json.dumps(answer.model_dump(mode="json", include={"action", "data"}))

    async with serve(OldEra(server.streamable_http_app())) as address, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [http_spec(f"{address}/mcp")], wait=START)
        names = ("Ann", "Ben")
        meeting = Meeting(len(names))
        answers: dict[str, Any] = {}

        async def call_as(name: str) -> None:
            async def person(question: InputNeeded) -> InputGiven:
                await meeting.join()
                return InputGiven(WaitAction.ACCEPT, {"name": name})

            answers[name] = await finish_call(toolset, "greet", person)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(call_as, name)
        assert answers == {name: {"action": "accept", "data": {"name": name}} for name in names}


class Meeting:
    """Blocks all callers until the last one has arrived."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._all = anyio.Event()

    async def join(self) -> None:
        self._expected -= 1
        if self._expected == 0:
            self._all.set()
        await self._all.wait()


async def test_the_model_learns_that_a_form_was_not_shown(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("old")], wait=START)
        person = Person(name="Ann")
        far = {**PAGE, "url": "http://sign.test/"}
        outcome = await run(toolset, "ask", person, params=[far])
        assert isinstance(outcome, CallOutcome)
        assert [json.loads(block["text"]) for block in outcome.content[1:]] == [[{"action": "decline"}]]
        assert "neither https nor of this machine" in outcome.content[0]["text"]
        assert person.questions == []


async def test_one_call_can_ask_a_person_a_limited_number_of_times(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("old")], wait=START)
        person = Person(name="Ann")
        outcome = await run(toolset, "ask", person, params=[FORM] * (QUESTIONS + 3))
        assert isinstance(outcome, CallOutcome)
        assert len(person.questions) == QUESTIONS
        assert [block["text"].count("one call may ask") for block in outcome.content] == [1, 0]
        assert [answer["action"] for answer in json.loads(outcome.content[1]["text"])][-4:] == [
            "accept",
            *["decline"] * 3,
        ]


async def test_a_server_that_dies_withdraws_its_question(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("old")], wait=START)
        absent = Absent()
        outcome = await run(toolset, "leave", absent, params=[FORM])
        assert isinstance(outcome, CallOutcome)
        assert outcome.status is ToolStatus.ERROR
        assert absent.ended == [WaitAction.CANCEL]


async def test_an_error_that_requires_a_web_page_is_a_wait_with_an_end(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [spec_of_asking("old")], wait=START)
        question = await run(toolset, "need_page", id="e9")
        assert isinstance(question, InputNeeded)
        assert (question.kind, question.url, question.message) == (WaitKind.URL, "https://pay.test/a", "Pay first.")
        assert await finish_call(toolset, "page_done", id="e9") == "told"
        assert question.withdrawal is not None
        with anyio.fail_after(240):
            assert await question.withdrawal.wait() is WaitAction.ACCEPT
        outcome = await run(toolset, "need_page", given=accept(question), id="e9")
        assert isinstance(outcome, CallOutcome)
        assert json.loads(text_of(outcome)) == {"responses": None, "state": None}


async def test_a_calls_timeout_pauses_while_a_person_is_asked() -> None:
    with anyio.CancelScope() as scope:
        start = anyio.current_time()
        scope.deadline = start + 10
        relay = Relay(scope, 10, start + 100, None)
        relay.pause()
        relay.pause()
        await relay(1, None, None)
        assert scope.deadline == math.inf
        relay.go_on()
        assert scope.deadline == math.inf
        relay.go_on()
        assert start + 10 <= scope.deadline < math.inf


# -- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://sign.test/", "neither https"),
        ("ftp://sign.test/", "neither https"),
        ("javascript:alert(1)", "neither https"),
        ("https://ann:pw@sign.test/", "name or password"),
        ("https://sign.test%2eevil.test/", "another spelling"),
        ("https://", "neither https"),
        ("https://sign.test/\u202ecod.exe", "characters"),
        ("https://sign.test\\@evil.test/", "characters"),
        ("https://[::1", "cannot be read"),
        ("https://sign.test/" + "x" * 2_048, "too long"),
        (7, "none"),
    ],
)
def test_an_address_that_hides_its_target_is_not_shown(url: object, reason: str) -> None:
    unfit = question_of("desk", {"mode": "url", "message": "Open.", "url": url})
    assert isinstance(unfit, Unfit)
    assert reason in unfit.why


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/x", "http://localhost/x", "http://[::1]:9/x", "https://a.test"])
def test_an_address_is_shown_unchanged(url: str) -> None:
    question = question_of("desk", {"mode": "url", "message": "Open.", "url": url})
    assert isinstance(question, InputNeeded)
    assert (question.url, question.warning) == (url, None)


def test_a_lookalike_host_is_shown_as_it_is_resolved() -> None:
    question = question_of("desk", {"mode": "url", "message": "Open.", "url": "https://p\u0430ypal.test:8443/x?y=1#z"})
    assert isinstance(question, InputNeeded)
    assert question.url == "https://xn--pypal-4ve.test:8443/x?y=1#z"
    assert question.warning is not None
    assert "xn--pypal-4ve.test" in question.warning
    assert "xn--pypal-4ve.test" in question.title


@pytest.mark.parametrize(
    "field",
    [
        {"password": {"type": "string"}},
        {"apiKey": {"type": "string"}},
        {"x": {"type": "string", "title": "Credit card number"}},
        {"x": {"type": "string", "description": "Your access token."}},
        {"x": {"type": "string", "title": "Dein Passwort"}},
    ],
)
def test_a_form_that_asks_for_a_secret_is_shown_with_a_warning(field: Json) -> None:
    request = {**FORM, "requestedSchema": {"type": "object", "properties": field}}
    question = question_of("desk", request)
    assert isinstance(question, InputNeeded)
    assert question.warning is not None
    assert "'desk'" in question.warning
    plain_question = question_of("desk", FORM)
    assert isinstance(plain_question, InputNeeded)
    assert plain_question == replace(question, schema=NAME, warning=None)
