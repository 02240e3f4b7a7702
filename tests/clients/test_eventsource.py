"""The published `eventsource` package: the behaviour of a browser's `EventSource` after a disconnect."""

from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say, use
from tests.node import run_client
from tests.server.rig import Rig, types_of
from tests.ws.serving import serving

AS_JSON = {"accept": "application/json"}
ENDS = ("done", "error", "interrupted")
SENT_BEFORE_A_CUT = (2, 5, 3)
"""Number of events of each connection but the last."""


class Cutting:
    """A proxy that cuts the first connections to a turn's events, and tells clients to reconnect immediately.

    ``asked_after``: the ``Last-Event-ID`` of each connection. The last one releases the stalled step.
    """

    def __init__(self, app: ASGIApp, stalled: Stalled) -> None:
        self._app = app
        self._stalled = stalled
        self.asked_after: list[str | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/events"):
            await self._app(scope, receive, send)
            return
        number, frames_sent = len(self.asked_after), 0
        last = dict(scope["headers"]).get(b"last-event-id")
        self.asked_after.append(last and last.decode())
        frame_limit = SENT_BEFORE_A_CUT[number] if number < len(SENT_BEFORE_A_CUT) else None
        if frame_limit is None:
            self._stalled.until.set()

        async def forward(message: Message) -> None:
            nonlocal frames_sent
            if message.get("body"):
                message = {**message, "body": b"retry: 10\n\n" + message["body"]}
                frames_sent += 1
            await send(message)
            if frames_sent == frame_limit:
                raise ConnectionResetError("cut")

        await self._app(scope, receive, forward)


async def test_a_client_disconnected_in_mid_answer_gets_every_event_once(tmp_path: Path) -> None:
    text = "This answer has some words, of which the last ones are late."
    slow = Stalled(say(text), 5)
    async with Rig(tmp_path, use("promptx_discover"), slow) as rig:
        proxy = Cutting(rig.application.app, slow)
        async with serving(proxy) as address:
            conversation = await rig.conversation()
            path = f"/api/conversations/{conversation}/messages"
            turn = await rig.ok("POST", path, {"content": "Go"}, headers=AS_JSON)
            events = f"/api/turns/{turn['id']}/events"
            kinds = ("turn_started", "iteration_start", "tool_call_started", "tool_call_arguments", "tool_call")
            more = ("tool_progress", "retrieval", "tool_result", "text", "title", "notice")
            event_names = ",".join((*kinds, *more, *ENDS))
            output: list[Any] = await run_client(
                "eventsource.mjs", f"http://{address}{events}", event_names, ",".join(ENDS)
            )
            stream = await rig.ok("GET", f"/api/turns/{turn['id']}/stream")
    *received, last = output
    assert [item["event"] for item in received] == stream
    assert "".join(event["text"] for event in stream if event["type"] == "text") == text
    assert types_of(stream)[-1] == "done"
    ids = [item["id"] for item in received]
    cuts = [sum(SENT_BEFORE_A_CUT[: n + 1]) for n in range(len(SENT_BEFORE_A_CUT))]
    assert proxy.asked_after == [None, *(ids[cut - 1] for cut in cuts)]
    assert stream[cuts[-1] - 1]["type"] == "text"
    assert last == {"opened": len(SENT_BEFORE_A_CUT) + 1}
