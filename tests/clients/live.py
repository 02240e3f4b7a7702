"""A live server for stock clients, with a domain that has a document, and a scripted model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from agentic_rag.base.messages import plain_text
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import Broken, Plain, Scripted, Stalled
from agentic_rag.testing.steps import Cite, Step, Use, say, use
from tests.server.rig import Rig
from tests.ws.serving import serving

FOUND: tuple[Scripted, ...] = (use("search_documents", query="paid leave"), say("You get 25 days.", Cite(0)))
"""Steps that search for a question and answer it with a citation."""
BROKEN: tuple[Scripted, ...] = (Broken(say("First words here and on"), 4), say("Other words."))
HANDBOOK = b"# Leave\n\nEvery employee gets 25 days of paid leave.\n"


def delegated() -> tuple[Scripted, ...]:
    """Return the steps of an answer with two parallel delegates."""
    tasks = {"researcher": "One", "assistant": "Two"}
    ask = Step(tuple(Use("delegate", {"role": role, "task": task}) for role, task in tasks.items()))
    answers: dict[str, Plain] = {"One": say("First."), "Two": say("Second.")}

    def by_task(request: ModelRequest) -> Plain:
        return answers[plain_text(request.messages[0]["content"]).split()[0]]

    return (ask, by_task, by_task, say("Both have answered."))


@dataclass(frozen=True)
class Live:
    """A served rig. ``address`` is the server's ``http://…`` address."""

    rig: Rig
    address: str
    domain: str


@asynccontextmanager
async def live(folder: Path, *steps: Scripted) -> AsyncIterator[Live]:
    """Serve a rig. ``POST /go-on`` releases the stalled steps."""
    stalled_steps = [step for step in steps if isinstance(step, Stalled)]
    async with Rig(folder, *steps) as rig:
        domain = await rig.domain(subRoleIds=["researcher", "assistant"])
        await rig.upload(domain, "handbook.md", HANDBOOK)
        async with serving(_with_release(rig.application.app, stalled_steps)) as address:
            yield Live(rig, f"http://{address}", domain)


def _with_release(app: ASGIApp, stalled_steps: list[Stalled]) -> ASGIApp:
    async def release(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/go-on":
            await app(scope, receive, send)
            return
        for step in stalled_steps:
            if step.reached.is_set():
                step.until.set()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return release
