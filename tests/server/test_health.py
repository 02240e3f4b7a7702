"""Health shows the recent failures of each part, and operators also see the reason."""

import sqlite3
from pathlib import Path

import anyio
import pytest

from agentic_rag.app.application import load_what_turns_need
from agentic_rag.base.errors import ModelError
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Step, say
from tests.access.tenants import make_key
from tests.server.rig import Json, Rig
from tests.waiting import pause

REFUSED = ModelError("http://10.1.2.3:9000 refused the key.", http_status=401, kind="authentication_error")
BAD = ModelError("messages.3: too many tools", http_status=400, kind="invalid_request_error")


async def health(rig: Rig, **headers: str) -> Json:
    report: Json = await rig.ok("GET", "/api/health", headers=headers)
    return report


async def test_a_model_without_an_answer_is_down_until_it_answers(tmp_path: Path) -> None:
    async with Rig(tmp_path, REFUSED, say("Hello.")) as rig:
        before = await health(rig)
        assert (before["status"], before["model"]) == ("ok", {"name": "scripted", "state": "ready"})
        conversation = await rig.conversation()
        await rig.say(conversation, "Hi")
        report = await health(rig)
        assert (report["status"], report["model"]["state"]) == ("down", "down")
        assert report["model"]["lastFailure"]["code"] == "authentication_error"
        assert report["model"]["reason"] == str(REFUSED)
        assert report["model"]["recently"] == {"calls": 1, "failures": 1}
        assert (await rig.ok("GET", "/api/ready")) == {"ready": True}, "what is stored can be read all the same"
        await rig.say(conversation, "Hi")
        report = await health(rig)
        assert report["model"]["state"] == "degraded", "half of its last calls failed"
        assert report["model"]["lastSuccess"] >= report["model"]["lastFailure"]["at"]


async def test_a_refused_request_does_not_mark_the_model_as_down(tmp_path: Path) -> None:
    async with Rig(tmp_path, BAD) as rig:
        await rig.say(await rig.conversation(), "Hi")
        assert (await health(rig))["model"]["state"] == "ready"


async def test_a_silent_model_times_out(tmp_path: Path) -> None:
    silent = anyio.Event()

    class Silent:
        name = "silent"

        async def aclose(self) -> None:
            silent.set()

        def stream(self, request: ModelRequest) -> "Silent":
            return self

        async def __aenter__(self) -> "Silent":
            return self

        async def __aexit__(self, *exc: object) -> None:
            pass

        def __aiter__(self) -> "Silent":
            return self

        async def __anext__(self) -> None:
            await silent.wait()

    async with Rig(tmp_path, instead=Silent(), model_idle_seconds=0.05) as rig:  # type: ignore[arg-type]
        await rig.say(await rig.conversation(), "Hi")
        report = await health(rig)
        assert (report["model"]["state"], report["model"]["lastFailure"]["code"]) == ("down", "GENERATION_TIMEOUT")


async def test_members_see_states_and_operators_reasons(tmp_path: Path) -> None:
    async with Rig(tmp_path, REFUSED, embedding="http://10.1.2.3:9/v1#tiny") as rig:
        rig.application.begin()
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", b"# Leave\n\nTwenty-five days.\n")
        assert document["status"] == "indexed"
        await rig.say(await rig.conversation(domain), "Hi")
        operator = f"Bearer {await make_key(rig, 'olga', 'operator')}"
        member = f"Bearer {await make_key(rig, 'mia', 'member', domain)}"
        operator_report = await health(rig, authorization=operator)
        assert "10.1.2.3" in operator_report["model"]["reason"]
        assert operator_report["disk"]["free"] > 0
        assert operator_report["queue"]["running"] == 0
        member_report = await health(rig, authorization=member)
        assert member_report["model"] == {"name": "scripted", "state": "down"}
        assert member_report["status"] == "down"
        assert "10.1.2.3" not in str(member_report)
        assert member_report["disk"] == {"state": "ready"}
        assert "queue" not in member_report


async def test_an_idle_store_is_still_probed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        before = (await health(rig))["store"].get("lastSuccess", "")
        await rig.application.services.health.probe()
        assert (await health(rig))["store"]["lastSuccess"] > before


class SlowClient(ScriptedModel):
    """A model whose client is loaded once ``let`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.let = anyio.Event()

    async def warm_up(self) -> None:
        await self.let.wait()


async def test_a_server_that_is_still_loading_is_not_ready(tmp_path: Path) -> None:
    model = SlowClient()
    async with Rig(tmp_path, instead=model) as rig:
        rig.application.begin()
        refusal = await rig.http.get("/api/ready")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "SERVER_STARTING")
        assert (await health(rig))["status"] == "ok"
        model.let.set()
        with anyio.fail_after(240):
            while (await rig.http.get("/api/ready")).status_code != 200:
                await pause()


async def test_slow_preloading_does_not_block_readiness(tmp_path: Path) -> None:
    model = SlowClient()
    async with Rig(tmp_path) as rig:
        health_state = rig.application.services.health
        health_state.begin_loading()
        await load_what_turns_need(model, rig.application.parts.pool, health_state, seconds=0.01)
        assert (await rig.ok("GET", "/api/ready")) == {"ready": True}


async def test_a_draining_server_is_not_ready(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await rig.application.drain(1)
        assert (await rig.refused("GET", "/api/ready"))[:2] == (503, "SERVER_STOPPING")


@pytest.mark.sqlite("locks the file")
async def test_health_reports_turns_waiting_for_the_store_and_their_end(tmp_path: Path) -> None:
    path = tmp_path / "data" / "agentic-rag.db"
    locks: list[sqlite3.Connection] = []

    def lock(request: ModelRequest) -> Step:
        locks.append(sqlite3.connect(path, isolation_level=None))
        locks[0].execute("BEGIN IMMEDIATE")
        return say("Hello.")

    async with Rig(tmp_path, lock) as rig:
        assert (await health(rig))["status"] == "ok"
        messages = f"/api/conversations/{await rig.conversation()}/messages"
        await rig.ok("POST", messages, {"content": "Hi"}, headers={"accept": "application/json"})
        with anyio.fail_after(240):
            while (report := await health(rig))["store"]["state"] == "ready":
                await pause()
        assert (report["status"], report["store"]["state"], report["store"]["mode"]) == (
            "degraded",
            "degraded",
            "stalled",
        )
        assert report["store"]["reason"]
        assert (await rig.refused("GET", "/api/ready"))[:2] == (503, "STORAGE_UNAVAILABLE")
        locks[0].close()
        with anyio.fail_after(240):
            while (report := await health(rig))["store"]["state"] == "degraded":
                await pause()
        assert (report["status"], report["store"]["state"]) == ("ok", "ready")
        assert "mode" not in report["store"]
        assert (await rig.ok("GET", "/api/ready")) == {"ready": True}


async def test_health_reports_a_disk_at_its_reserve(tmp_path: Path) -> None:
    async with Rig(tmp_path, disk_reserve=2**60) as rig:
        report = await health(rig)
        assert (report["status"], report["disk"]["state"], report["store"]["mode"]) == ("degraded", "degraded", "full")
        assert "less than the reserve" in report["disk"]["reason"]
