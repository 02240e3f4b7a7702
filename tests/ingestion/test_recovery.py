"""A damaged or lost index is reported, set aside and rebuilt from the documents, also on a full disk."""

import os
import resource
import shutil
import signal
from itertools import count
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.json_form import Json
from agentic_rag.base.workers import FairQueue
from agentic_rag.testing.steps import Step, Use, say
from mcp_servers.retriever.errors import IndexDamaged, IndexUnavailable
from mcp_servers.retriever.index_supervisor import Death, Deaths
from mcp_servers.retriever.process_index import ProcessIndex, open_process_index
from tests.ingestion.test_crash import text_of
from tests.retriever.corpus import handbook
from tests.server.rig import Rig
from tests.waiting import pause

LEAVE = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"
CARS = b"# Cars\n\nThe car park is open to visitors after six.\n"
SECONDS = 240


def cut_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scribble_over(path: Path) -> None:
    path.write_bytes(b"\xff\x00 neither JSON nor anything else " * 8)


def cut_pointer(collection: Path) -> None:
    cut_file(collection / "pointer.json")


def scribble_over_pointer(collection: Path) -> None:
    scribble_over(collection / "pointer.json")


def replace_pointer_kind(collection: Path) -> None:
    (collection / "pointer.json").write_text('{"live": "one", "metas": [1]}')


def cut_segments(collection: Path) -> None:
    for path in collection.rglob("segment.json"):
        cut_file(path)


def empty_places(collection: Path) -> None:
    for path in collection.rglob("payload_storage/tracker.dat"):
        path.write_bytes(b"")


def empty_flags(collection: Path) -> None:
    """The engine panics at this damage."""
    for path in collection.rglob("vector_storage-bm25/deleted/status.dat"):
        path.write_bytes(b"")


def empty_ids(collection: Path) -> None:
    """The engine opens this damage silently, with fewer points."""
    for path in collection.rglob("mutable_id_tracker.mappings"):
        path.write_bytes(b"")
    shutil.rmtree(next(collection.rglob("wal")), ignore_errors=True)


def remove_generation(collection: Path) -> None:
    shutil.rmtree(collection / "1")


def remove_all(collection: Path) -> None:
    shutil.rmtree(collection)


UNREADABLE = (
    cut_pointer,
    scribble_over_pointer,
    replace_pointer_kind,
    cut_segments,
    empty_places,
    empty_flags,
    remove_generation,
)


async def upload_two_documents(folder: Path) -> str:
    async with Rig(folder) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", LEAVE)
        await rig.upload(domain, "cars.md", CARS)
        return domain


async def find(rig: Rig, domain: str, query: str) -> Json:
    answer: Json = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query, "threshold": 0})
    return answer


async def search_until_found(rig: Rig, domain: str, query: str) -> Json:
    """Search until something is found. Before that, no search may claim that nothing matches."""
    with anyio.fail_after(SECONDS):
        checks = count()
        while True:
            response = await rig.http.post(
                f"/api/domains/{domain}/documents/search", json={"query": query, "threshold": 0}
            )
            if response.status_code == 503:
                assert response.json()["error"]["code"] == "INDEX_UNAVAILABLE"
                await pause(next(checks))
                continue
            answer: Json = response.json()
            if answer["hits"]:
                return answer
            assert "being rebuilt" in answer["incomplete"]
            await pause(next(checks))


async def test_damaged_indexes_are_rebuilt_from_the_documents_while_serving(tmp_path: Path) -> None:
    damages = (cut_pointer, cut_segments, empty_ids, remove_all)
    async with Rig(tmp_path) as rig:
        domains = [await rig.domain() for _ in damages]
        for domain in domains:
            await rig.upload(domain, "leave.md", LEAVE)
            await rig.upload(domain, "cars.md", CARS)
    for domain, damage in zip(domains, damages, strict=True):
        damage(tmp_path / "data" / "index" / f"domain_{domain}")
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        for domain in domains:
            await search_until_found(rig, domain, "paid leave")
            await search_until_found(rig, domain, "car park")
            for item in (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]:
                assert (await rig.settled(domain, item["id"]))["status"] == "indexed"
            with anyio.fail_after(SECONDS):
                checks = count()
                while "incomplete" in (answer := await find(rig, domain, "paid leave")):
                    await pause(next(checks))
            assert len(answer["hits"]) == 1
            assert "rebuilding" not in await rig.ok("GET", f"/api/domains/{domain}/reindex")


async def test_damaged_files_are_renamed_and_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    async with open_process_index(folder) as index:
        for damage in UNREADABLE:
            await index.upsert(damage.__name__, handbook())
    for damage in UNREADABLE:
        damage(folder / damage.__name__)
    async with open_process_index(folder) as index:
        for damage in UNREADABLE:
            name = damage.__name__
            with pytest.raises(IndexDamaged) as exc_info:
                await index.search_legs(name, "annual leave")
            (place,) = (folder / ".damaged").glob(f"{name}-*")
            assert exc_info.value.place == str(place)
            assert await index.count(name) == 0
            await index.upsert(name, handbook())
            assert (await index.search_legs(name, "annual leave")).lexical


async def test_a_lost_index_is_reported_by_every_search_and_to_the_admin(tmp_path: Path) -> None:
    domain = await upload_two_documents(tmp_path)
    remove_all(tmp_path / "data" / "index" / f"domain_{domain}")
    search_step = Step((Use("search_documents", {"query": "paid leave"}),))
    async with Rig(tmp_path, search_step, say("I could not look it up.")) as rig:
        knowledge = rig.application.services.documents.knowledge
        assert "0 of 2 documents" in (await find(rig, domain, "paid leave"))["incomplete"]
        events = await rig.say(await rig.conversation(domain), "How many days of leave?")
        (tool_result,) = [event["content"] for event in events if event["type"] == "tool_result"]
        assert tool_result.startswith("The index of these documents was lost and is being rebuilt: 0 of 2 documents")
        lost_documents = await knowledge.lost.find(domain)
        async with knowledge.ingestion.pause(domain):
            assert await knowledge.recovery.recover(domain) == 2
            assert "0 of 2 documents" in (await find(rig, domain, "paid leave"))["incomplete"]
            requeued = [
                await knowledge.ingestion.requeue(document.id, expected=document) for document in lost_documents
            ]
            assert requeued == [False, False], "what is on its way already is not begun anew by another look"
            state = await rig.ok("GET", f"/api/domains/{domain}/reindex")
            assert state["rebuilding"] == {"done": 0, "of": 2}
            health = await rig.ok("GET", "/api/health")
            assert (health["index"]["state"], health["index"]["mode"]) == ("degraded", "rebuilding")
            assert health["index"]["rebuilding"] == [{"domain": domain, "done": 0, "of": 2}]
        await search_until_found(rig, domain, "paid leave")
        await search_until_found(rig, domain, "car park")


async def test_an_index_process_killed_during_ingestion_loses_no_document(tmp_path: Path) -> None:
    kills: list[int] = []

    def failpoint(name: str) -> None:
        if name in ("ingest.batch", "ingest.upserted") and len(kills) < 2:
            index = rig.application.services.documents.knowledge.index
            assert isinstance(index, ProcessIndex)
            if index.pid is not None and index.pid not in kills:
                kills.append(index.pid)
                os.kill(index.pid, signal.SIGKILL)

    async with Rig(tmp_path, failpoint=failpoint) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", text_of(20))
        assert len(kills) == 2
        assert (document["status"], document["chunkCount"]) == ("indexed", 20)
        index = rig.application.services.documents.knowledge.index
        assert await index.count(f"domain_{domain}") == 20


async def open_write_end(pipe: Path) -> int:
    """Return a writing end of ``pipe`` once a process waits for its data."""
    with anyio.fail_after(SECONDS):
        while True:
            try:
                return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # no process reads
                await pause()


async def test_a_collection_that_crashed_two_processes_is_set_aside(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("other", handbook())
        (tmp_path / "index" / "law").mkdir()
        pipe = tmp_path / "index" / "law" / "pointer.json"
        os.mkfifo(pipe)

        async def search() -> None:
            with pytest.raises(IndexUnavailable, match="SIGBUS while it was to search"):
                await index.search_legs("law", "annual leave")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(search)
            for _ in range(2):
                writer = await open_write_end(pipe)
                pid = index.pid
                assert pid is not None
                os.kill(pid, signal.SIGBUS)
                os.close(writer)
                while index.pid == pid:
                    await pause()
        assert await index.count("other") == len(handbook())
        (place,) = (tmp_path / "index" / ".damaged").iterdir()
        assert place.name.startswith("law-")
        await index.upsert("law", handbook())
        assert (await index.search_legs("law", "annual leave")).lexical


def suspect_of(*deaths: tuple[str, bool, float]) -> str | None:
    recorder = Deaths()
    for collection, was_killed, second in deaths:
        recorder.note(Death(collection, was_killed, second))
    return recorder.take_suspect()


def test_a_collection_of_repeated_deaths_is_the_suspect() -> None:
    assert suspect_of(("law", False, 0), ("law", False, 9_000)) == "law"
    assert suspect_of(("law", False, 0), ("law@2", False, 1)) == "law@2", "generations of one collection"
    assert suspect_of(("law", False, 0), ("tax", False, 1)) is None
    assert suspect_of(("", False, 0), ("", False, 1)) is None, "it did nothing"
    assert suspect_of(("law", False, 0), ("law", True, 1)) is None, "somebody ended it"
    kills = [("law", True, number * 60.0) for number in range(5)]
    assert suspect_of(*kills) == "law", "for want of memory, each time over this one"
    assert suspect_of(*kills[:4]) is None
    assert suspect_of(*kills[:4], ("law", True, 601.0)) is None, "not in a row"
    assert suspect_of(*kills[:4], ("tax", True, 241.0)) is None
    assert suspect_of(*kills[:4], ("", True, 241.0)) is None


def test_a_suspect_is_named_once() -> None:
    recorder = Deaths()
    for _ in range(2):
        recorder.note(Death("law", False, 0))
    assert (recorder.take_suspect(), recorder.take_suspect()) == ("law", None)


async def test_a_full_disk_is_not_reported_as_damage(tmp_path: Path) -> None:
    async with open_process_index(tmp_path / "index") as index:
        await index.upsert("law", handbook())
        assert index.pid is not None
        before = resource.prlimit(index.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(index.pid, resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(IndexUnavailable):
            await index.upsert("new", handbook())
        assert await index.count("law") == len(handbook())
        resource.prlimit(index.pid, resource.RLIMIT_FSIZE, before)
        await index.upsert("new", handbook())
        assert not (tmp_path / "index" / ".damaged").exists()


async def test_uploads_stop_at_the_disks_reserve(tmp_path: Path) -> None:
    domain = await upload_two_documents(tmp_path)
    async with Rig(tmp_path, disk_reserve=2**60) as rig:
        path = f"/api/domains/{domain}/documents"
        refusal = await rig.refused("POST", path, files={"f": ("more.md", b"# More\n\nMore text.\n")})
        assert refusal[:2] == (507, "STORAGE_FULL")
        assert "reserve" in refusal[2]
        assert len((await rig.ok("GET", path))["items"]) == 2
        assert (await find(rig, domain, "paid leave"))["hits"], "searches go on"
        (rig.settings.workspaces / domain / "documents" / "by hand.md").write_bytes(b"# Hand\n\nPut there by hand.\n")
        await rig.ok("POST", f"{path}/rescan")
        (item,) = [document for document in (await rig.ok("GET", path))["items"] if document["name"] == "by hand.md"]
        refused_document = await rig.settled(domain, item["id"])
        assert (refused_document["status"], refused_document["error"]["code"]) == ("failed", "STORAGE_FULL")


async def test_one_domains_uploads_do_not_delay_anothers(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        large_domain, small_domain = await rig.domain(), await rig.domain()
        path = f"/api/domains/{large_domain}/documents"
        files = [("file", (f"{number}.md", text_of(40 + number))) for number in range(48)]
        answer = await rig.ok("POST", path, files=files)
        assert (await rig.upload(small_domain, "leave.md", LEAVE))["status"] == "indexed"
        items = (await rig.ok("GET", path))["items"]
        queued = [item for item in items if item["status"] == "queued"]
        assert len(queued) >= 2, "the small one did not wait for what came before it"
        for document in answer["items"]:
            assert (await rig.settled(large_domain, document["id"]))["status"] == "indexed"


async def test_owners_alternate_within_their_share_of_threads() -> None:
    queue: FairQueue[str] = FairQueue(2)
    for item in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        queue.put(item[0], item)
    assert [await queue.get() for _ in range(5)] == ["a1", "b1", "c1", "a2", "b2"]
    with anyio.move_on_after(0) as scope:
        await queue.get()
    assert scope.cancelled_caught, "two of a are at work, and nothing of another waits"
    queue.release("a")
    assert await queue.get() == "a3"
