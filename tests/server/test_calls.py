"""Calls that store nothing: the remains of a kill, a refusal or a slow clean-up vanish without help."""

from pathlib import Path

import anyio
import pytest

from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import ConversationFull, MessageTooLong, NotFound
from agentic_rag.conversations.exchanges import Exchange
from agentic_rag.operations.calls import Calls, FullQuestion
from agentic_rag.store import images, prompts
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.server.rig import Rig


def calls_of(rig: Rig) -> Calls:
    services = rig.application.services
    return Calls(services.conversations, services.deletion, services.waits)


async def count(rig: Rig, *tables: str) -> list[int]:
    def read(conn):  # type: ignore[no-untyped-def]
        return [conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() for table in tables]

    return list(await rig.application.database.read(read))


@pytest.mark.sqlite("whoever had it is dead")
async def test_a_server_stopped_in_a_call_leaves_no_reservation_at_its_next_start(tmp_path: Path) -> None:
    slow = Stalled(say("This takes long."), 3)
    async with Rig(tmp_path, slow) as rig:
        await calls_of(rig).ask(LOCAL, await rig.domain(), FullQuestion("Go", (Exchange("Was", "Is"),)))
        with anyio.fail_after(240):
            await slow.reached.wait()
        assert await count(rig, "conversations", "turns", "messages") == [1, 2, 3]
    async with Rig(tmp_path) as rig:
        assert await count(rig, "conversations", "sessions", "turns", "messages", "run_events") == [0] * 5


async def test_an_abandoned_unstored_call_is_removed_once_idle(tmp_path: Path) -> None:
    slow = Stalled(say("This takes long."), 3)
    async with Rig(tmp_path, say("Read by nobody."), slow) as rig:
        domain, deletion = await rig.domain(), rig.application.services.deletion
        old, running = [await calls_of(rig).ask(LOCAL, domain, FullQuestion(text)) for text in ("Old", "Running")]
        used_conversation = await rig.conversation(domain)
        with anyio.fail_after(240):
            await slow.reached.wait()
            async for _ in rig.application.services.conversations.events(old.turn_id):
                pass
        await deletion.end_left_calls()
        assert await count(rig, "conversations") == [3]

        def age(conn):  # type: ignore[no-untyped-def]
            conn.exec_driver_sql("UPDATE conversations SET updated_at = '2020-01-01T00:00:00.000Z'")

        await rig.application.database.write(age)
        await deletion.end_left_calls()
        services = rig.application.services
        with pytest.raises(NotFound):
            await services.conversations.get(LOCAL, old.conversation.id)
        assert (await services.conversations.get(LOCAL, running.conversation.id)).transient
        assert [item["id"] for item in (await rig.ok("GET", "/api/conversations"))["items"]] == [used_conversation]
        await deletion.end_call(running.conversation)
        assert await count(rig, "conversations", "sessions") == [1, 1]


async def test_a_refused_question_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path, quota_conversations=1) as rig:
        domain, calls = await rig.domain(), calls_of(rig)
        with pytest.raises(MessageTooLong):
            await calls.ask(LOCAL, domain, FullQuestion("x" * 10_001), keep=True)
        with pytest.raises(ConversationFull):
            await calls.ask(LOCAL, domain, FullQuestion("Go", [Exchange("Was", "Is")] * 500))
        assert await count(rig, "conversations", "sessions", "turns", "messages") == [0, 0, 0, 0]


async def test_unreferenced_prompts_and_definitions_are_deleted(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One."), say("Two.")) as rig:
        domain, calls = await rig.domain(), calls_of(rig)
        await rig.say(await rig.conversation(domain), "Keep this")
        call = await calls.ask(LOCAL, domain, FullQuestion("Go", wishes="Rhyme."))
        async for _ in calls.events(call):
            pass
        assert await count(rig, "images", "prompts") == [2, 2]
        forgotten = [
            await rig.application.database.write(lambda conn: noun.prune(conn, "9999"))  # noqa: B023
            for noun in (images, prompts)
        ]
        assert forgotten == [1, 1]
        assert await count(rig, "images", "prompts", "conversations") == [1, 1, 1]
