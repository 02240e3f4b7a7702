"""A turn as a durable stream: replayed, dropped, resumed and followed by that protocol's own client."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.server.doors import durable_streams
from agentic_rag.server.doors.durable_streams import next_cursor, offset_of
from agentic_rag.testing.scripted import Broken, Stalled
from agentic_rag.testing.steps import say, use
from tests.clients.live import delegated
from tests.node import run_client
from tests.server.rig import Json, Rig
from tests.server.rig import events_of as parse_events
from tests.waiting import pause
from tests.ws.serving import serving

AS_JSON = {"accept": "application/json"}


async def begin(rig: Rig) -> tuple[str, str]:
    """Send a message; return its turn's id and the path of its stream."""
    conversation = await rig.conversation()
    turn = await rig.ok("POST", f"/api/conversations/{conversation}/messages", {"content": "Go"}, headers=AS_JSON)
    return turn["id"], f"/api/turns/{turn['id']}/stream"


async def events_of(rig: Rig, turn: str) -> list[Json]:
    return parse_events((await rig.http.get(f"/api/turns/{turn}/events")).text)


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_the_stock_client_drops_resumes_and_tails_to_the_end(tmp_path: Path, mode: str) -> None:
    slow = Stalled(say("This takes a while, and then it ends."), 3)
    async with Rig(tmp_path, use("promptx_discover"), slow) as rig, serving(rig.application.app) as address:
        turn, path = await begin(rig)
        with anyio.fail_after(240):
            await slow.reached.wait()
        url = f"http://{address}{path}"
        (first_read,) = await run_client("durable_streams.mjs", "catch-up", url, "-1", "false")
        first: Any = first_read
        assert not first["closed"]
        tailed: list[Any] = []

        async def tail() -> None:
            tailed.extend(await run_client("durable_streams.mjs", "tail", url, first["offset"], mode))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tail)
            slow.until.set()
        events = await events_of(rig, turn)
        assert [*first["items"], *tailed[0]["items"]] == events
        (second_read,) = await run_client("durable_streams.mjs", "catch-up", url, "-1", "false")
        assert (second_read["items"], second_read["closed"]) == (events, True)  # type: ignore[index]


async def test_an_answer_has_its_end_offset_and_whether_more_will_follow(tmp_path: Path) -> None:
    slow = Stalled(say("This takes long."), 3)
    async with Rig(tmp_path, slow) as rig:
        turn, path = await begin(rig)
        with anyio.fail_after(240):
            await slow.reached.wait()
        first_response = await rig.http.get(path)
        while first_response.json()[-1]["type"] != "text":
            await pause()
            first_response = await rig.http.get(path)
        tail = first_response.headers["stream-next-offset"]
        assert tail == offset_of(first_response.json()[-1]["seq"])
        assert (first_response.headers["stream-up-to-date"], first_response.headers.get("stream-closed")) == (
            "true",
            None,
        )
        assert (await rig.http.get(path, headers={"if-none-match": first_response.headers["etag"]})).status_code == 304
        assert (await rig.http.head(path)).headers["stream-next-offset"] == tail
        now = await rig.http.get(path, params={"offset": "now"})
        assert (now.json(), now.headers["stream-next-offset"]) == ([], tail)
        empty = await rig.http.get(path, params={"offset": tail})
        assert (empty.json(), empty.headers["stream-next-offset"]) == ([], tail)
        slow.until.set()
        live_response = await rig.http.get(path, params={"offset": tail, "live": "sse"})
        assert '"streamClosed":true' in live_response.text.splitlines()[-2]
        complete_response = await rig.http.get(path)
        assert [*first_response.json()] == complete_response.json()[: len(first_response.json())]
        assert complete_response.headers["stream-closed"] == "true"
        assert complete_response.json() == await events_of(rig, turn)
        at_end = {"offset": complete_response.headers["stream-next-offset"], "live": "long-poll"}
        response_at_end = await rig.http.get(path, params=at_end)
        assert (response_at_end.status_code, response_at_end.headers["stream-closed"]) == (204, "true")
        assert response_at_end.headers["stream-cursor"].isdecimal()


async def test_delegates_resets_and_interrupts_are_read_like_in_the_native_dialect(tmp_path: Path) -> None:
    slow = Stalled(say("This takes long."), 3)
    half = Broken(say("Half an answer."), 4)
    async with Rig(tmp_path, *delegated()[:3], half, slow) as rig:
        domain = await rig.domain(subRoleIds=["researcher", "assistant"])
        conversation = await rig.conversation(domain)
        messages = f"/api/conversations/{conversation}/messages"
        turn = (await rig.ok("POST", messages, {"content": "Go"}, headers=AS_JSON))["id"]
        with anyio.fail_after(240):
            await slow.reached.wait()
        await rig.ok("POST", f"/api/conversations/{conversation}/interrupt", {})
        events = await events_of(rig, turn)
        assert {event.get("agent") for event in events} == {None, "researcher", "assistant"}
        assert {"step_reset", "interrupted"} <= {event["type"] for event in events}
        response = await rig.http.get(f"/api/turns/{turn}/stream", params={"offset": "-1"})
        assert response.json() == events
        assert response.headers["stream-closed"] == "true"


async def test_a_client_that_reads_nothing_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_streams, "SEND_SECONDS", 0.05)
    async with Rig(tmp_path, say("Hi.")) as rig:
        _, path = await begin(rig)
        sent: list[Any] = []
        received = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return received.pop() if received else await anyio.sleep_forever()

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                await anyio.sleep_forever()

        scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path}
        scope |= {"raw_path": path.encode(), "query_string": b"offset=-1&live=sse", "root_path": "", "state": {}}
        scope |= {"headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", None)}
        with anyio.fail_after(240):
            await rig.application.app(scope, receive, send)
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        assert sent[-1]["more_body"]


async def test_wrong_offsets_and_modes_are_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hi.")) as rig:
        _, path = await begin(rig)
        for query in ("offset=1", "offset=-2", "offset=", "offset=9999999999999999", "offset=0000000000000001,2"):
            assert (await rig.refused("GET", f"{path}?{query}"))[:2] == (400, "VALIDATION_ERROR")
        assert (await rig.refused("GET", f"{path}?live=sse"))[:2] == (400, "VALIDATION_ERROR")
        assert (await rig.refused("GET", f"{path}?offset=-1&live=tail"))[:2] == (400, "VALIDATION_ERROR")
        assert (await rig.refused("GET", "/api/turns/turn_x/stream"))[:2] == (404, "TURN_NOT_FOUND")


def test_a_cursor_only_grows() -> None:
    first = int(next_cursor(None, 1_800_000_000.0))
    assert int(next_cursor(str(first), 1_800_000_000.0)) > first
    assert next_cursor("nonsense", 1_800_000_000.0) == next_cursor(str(first - 1), 1_800_000_000.0) == str(first)
