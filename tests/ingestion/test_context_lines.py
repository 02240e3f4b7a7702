"""Context lines: the domain's model writes them, searches use them, and nobody sees them."""

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.documents.line_writer import MAX_LINE, clean_line
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.store.clock import now
from agentic_rag.store.context_lines import LINES
from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply, Scripted
from agentic_rag.testing.steps import Step, say
from tests.retriever.qdrant_shim import Shim
from tests.retriever.qdrant_shim import serving as qdrant_serving
from tests.retriever.tiny_model import write_model
from tests.server.rig import Json, Rig

MODEL = "claude-haiku-5-5"
HANDBOOK = b"""# Staff handbook

## Time off

Full-time staff have 27 days a year.

## Lateness

Call your lead before nine.

## Kit

Report a stolen laptop within one hour.
"""
WRITTEN = {
    "27 days": "Staff handbook, time off: the annual vacation allowance.",
    "before nine": "Staff handbook, lateness: phoning in when delayed.",
    "stolen laptop": "Staff handbook, kit: theft of equipment.",
}


def asked_passage(body: Json) -> str:
    """Return the text of the passage that a request asks about."""
    return str(body["messages"][-1]["content"][-1]["text"])


def answer_with_line(body: Json) -> Step:
    """Answer a request for a context line."""
    passage = asked_passage(body)
    return say(next(line for words, line in WRITTEN.items() if words in passage))


def one_by_one(*script: Scripted, then: Scripted = answer_with_line) -> FakeMessagesAPI:
    return FakeMessagesAPI(*script, then=then, batches_api=False)


def make_rig(folder: Path, api: FakeMessagesAPI, **settings: object) -> Rig:
    return Rig(folder, instead=AnthropicModel(api.key, api.url), **settings)  # type: ignore[arg-type]


async def process_lines(rig: Rig) -> None:
    await rig.application.parts.knowledge.lines.look()


async def upload_handbook(rig: Rig, **settings: object) -> tuple[str, str]:
    """Create a domain with context lines and one document; return their ids."""
    domain = await rig.domain(model=MODEL, **{"contextLines": True, **settings})
    document = await rig.upload(domain, "handbook.md", HANDBOOK)
    assert document["status"] == "indexed"
    return domain, str(document["id"])


async def search_texts(rig: Rig, domain: str, query: str) -> list[str]:
    """Return the texts of the passages that a search returns."""
    hits = (await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query}))["hits"]
    return [" ".join(sentence["text"] for sentence in hit["sentences"]) for hit in hits]


async def read_progress(rig: Rig, domain: str, document: str) -> Json:
    line_counts: Json = (await rig.ok("GET", f"/api/domains/{domain}/documents/{document}")).get("contextLines", {})
    return line_counts


def calls_by_agent(rows: Json) -> dict[str, int]:
    return {row["agent"]: row["calls"] for row in rows["items"]}


async def test_a_question_in_other_words_is_found_by_the_context_line_and_answered_with_the_passage(
    tmp_path: Path,
) -> None:
    async with one_by_one() as api, make_rig(tmp_path, api) as rig:
        domain, document = await upload_handbook(rig, contextLines=False)
        path = f"/api/domains/{domain}"
        before = (await rig.ok("GET", f"{path}/documents/{document}/chunks"))["items"]
        await process_lines(rig)
        assert (await search_texts(rig, domain, "vacation allowance"), await read_progress(rig, domain, document)) == (
            [],
            {},
        )
        await rig.ok("PATCH", path, {"settings": {"contextLines": True}})
        assert (await read_progress(rig, domain, document))["of"] == 3
        assert await search_texts(rig, domain, "stolen laptop"), "a document is searchable without its lines"
        await process_lines(rig)
        assert await search_texts(rig, domain, "vacation allowance") == ["Full-time staff have 27 days a year."]
        assert await read_progress(rig, domain, document) == {"made": 3, "failed": 0, "of": 3}
        assert (await rig.ok("GET", f"{path}/documents/{document}/chunks"))["items"] == before
        places = str([await rig.ok("GET", f"{path}/chunks/{chunk['chunkId']}/place") for chunk in before])
        assert "vacation" not in places
        assert calls_by_agent(await rig.ok("GET", "/api/usage?groupBy=agent")) == {"(context)": 3}
        first_request, *later_requests = api.requests
        assert "Report a stolen laptop" in str(first_request["messages"][0]), "the model reads the document"
        assert all(request["messages"][:2] == first_request["messages"][:2] for request in later_requests), (
            "a shared prefix is cached"
        )
        assert "cache_control" in first_request["messages"][0]["content"][-1]
        assert not any(request.get("tools") for request in api.requests)
        await process_lines(rig)
        assert len(api.requests) == 3, "a line is paid once"


async def end_retry_delay(rig: Rig) -> None:
    """Wait for the end of the delay after a failure."""
    await rig.application.database.write(lambda conn: conn.execute(sa.update(LINES).values(retry_at="")))


async def test_a_bad_answer_costs_one_line_which_is_requested_later(tmp_path: Path) -> None:
    """The other passages get their lines, and the document stays searchable."""
    answers: list[Scripted] = [
        say("  "),
        Step((), stop_reason="refusal"),
        Reply(say("-"), Fault(status=400, message="The passage is odd.")),
        say("Pumps:\n\n" + "\n".join(f"line {n} about hydraulics" for n in range(10))),
        say("hydrology " * 1_000),
    ]
    sections = "".join(f"## Part {n}\n\nThe valve {n} closes.\n\n" for n in range(5))
    async with one_by_one(*answers, then=say("Valves of the station.")) as api, make_rig(tmp_path, api) as rig:
        domain = await rig.domain(model=MODEL, contextLines=True)
        document = await rig.upload(domain, "pumps.md", f"# Pumps\n\n{sections}".encode())
        await process_lines(rig)
        line_counts = await read_progress(rig, domain, document["id"])
        assert (line_counts["made"], line_counts["failed"], line_counts["of"]) == (2, 3, 5)
        assert (
            len(await search_texts(rig, domain, "hydraulics")) == len(await search_texts(rig, domain, "hydrology")) == 1
        )
        assert len(await search_texts(rig, domain, "valve closes")) > 0
        lines = await rig.application.database.read(
            lambda conn: conn.execute(sa.select(LINES.c.line, LINES.c.failure, LINES.c.retry_at)).all()
        )
        assert max(len(line) for line, _, _ in lines) <= MAX_LINE
        assert not any("\n" in line for line, _, _ in lines)
        assert all(bool(failure) == (retry_at > now()) for _, failure, retry_at in lines), "a failed line waits"
        assert sorted(failure.rpartition(": ")[2] for _, failure, _ in lines if failure) == [
            "The passage is odd.",
            "the model declined to write it",
            "the model returned no text",
        ]
        await end_retry_delay(rig)
        await process_lines(rig)
        line_counts = await read_progress(rig, domain, document["id"])
        assert line_counts == {"made": 4, "failed": 1, "of": 5, "reason": "the model declined to write it"}, (
            "it refuses again"
        )
        assert len(api.requests) == 8


async def test_a_model_that_is_down_is_not_called_for_every_passage(tmp_path: Path) -> None:
    sections = "".join(f"## Part {n}\n\nThe valve {n} closes.\n\n" for n in range(40))
    server_error = Reply(say("-"), Fault(status=500, message="Out of order."))
    async with one_by_one(then=server_error) as api, make_rig(tmp_path, api) as rig:
        domain = await rig.domain(model=MODEL, contextLines=True)
        document = await rig.upload(domain, "pumps.md", f"# Pumps\n\n{sections}".encode())
        await process_lines(rig)
        assert 3 <= len(api.requests) < 20
        line_counts = await read_progress(rig, domain, document["id"])
        assert (line_counts["made"], line_counts["of"]) == (0, 40)
        assert "Out of order." in line_counts["reason"]
        assert len(await search_texts(rig, domain, "valve closes")) > 0


async def test_context_lines_follow_document_index_and_setting_without_a_second_payment(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    async with one_by_one() as api, make_rig(tmp_path, api, embedding=model) as rig:
        rig.application.begin()
        domain, document = await upload_handbook(rig)
        await rig.dense(domain, document)
        await process_lines(rig)
        path = f"/api/domains/{domain}"
        assert (await rig.dense(domain, document))["contextLines"]["made"] == 3
        await rig.ok("POST", f"{path}/reindex", {})
        assert (await rig.reindexed(domain))["state"] == "ready"
        assert "Full-time staff have 27 days a year." in await search_texts(rig, domain, "vacation allowance")
        new_text = HANDBOOK.replace(b"within one hour", b"within two hours")
        files = {"file": ("handbook.md", new_text)}
        await rig.ok("POST", f"{path}/documents?replace=true", files=files)
        await rig.settled(domain, document)
        await process_lines(rig)
        passages = [asked_passage(request) for request in api.requests]
        assert len(passages) == 4
        assert "within two hours" in passages[3]
        assert await read_progress(rig, domain, document) == {"made": 3, "failed": 0, "of": 3}
        await rig.ok("PATCH", path, {"settings": {"contextLines": False}})
        await process_lines(rig)
        assert [await lines_in_index(rig, domain), await read_progress(rig, domain, document)] == [[""] * 3, {}]
        await rig.ok("PATCH", path, {"settings": {"contextLines": True}})
        await process_lines(rig)
        assert sorted(await lines_in_index(rig, domain)) == sorted(WRITTEN.values())
        assert len(api.requests) == 4
        await rig.ok("DELETE", f"{path}/documents/{document}")
        assert await rig.application.database.read(_count) == 0


async def test_a_bundle_carries_context_lines_and_cleans_imported_ones(tmp_path: Path) -> None:
    async with one_by_one() as api, make_rig(tmp_path, api) as rig:
        domain, _ = await upload_handbook(rig)
        await process_lines(rig)
        bundle = (await rig.http.get(f"/api/domains/{domain}/bundle")).content
        dirty_bundle = _edit_lines(
            bundle, lambda text: text.replace("theft of equipment", "theft\\u0000\\n\\u202eof equipment")
        )
        headers = {"content-type": "application/zip"}
        imported = (await rig.ok("POST", "/api/bundles", content=dirty_bundle, headers=headers))["domainId"]
        await rig.taken_up(imported)
        await process_lines(rig)
        assert sorted(await lines_in_index(rig, imported)) == sorted(WRITTEN.values())
        assert len(api.requests) == 3
        assert (await rig.http.get(f"/api/domains/{imported}/bundle")).content == bundle
        broken_bundle = _edit_lines(bundle, lambda text: text.replace('"line"', '"lines"'))
        refusal = await rig.refused("POST", "/api/bundles", content=broken_bundle, headers=headers)
        assert refusal[:2] == (422, "BUNDLE_DAMAGED")


def _edit_lines(bundle: bytes, edit: Callable[[str], str]) -> bytes:
    """Return a bundle with edited context lines and a matching manifest."""
    name = "context-lines.json"
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    members[name] = edit(members[name].decode()).encode()
    manifest = json.loads(members["bundle.json"])
    for file in manifest["files"]:
        if file["path"] == name:
            file.update(size=len(members[name]), sha256=hashlib.sha256(members[name]).hexdigest())
    members["bundle.json"] = json.dumps(manifest).encode()
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    return output.getvalue()


async def lines_in_index(rig: Rig, domain: str) -> list[str]:
    """Return the context lines of all passages in the index."""
    (document,) = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
    index = rig.application.parts.knowledge.index
    return [chunk.context for chunk in await index.chunks(f"domain_{domain}", document["id"])]


def _count(conn: Connection) -> int:
    return conn.execute(sa.select(sa.func.count()).select_from(LINES)).scalar_one()


@pytest.mark.sqlite("copies the files as a kill would leave them")
async def test_a_batch_writes_the_lines_and_a_kill_causes_no_second_payment(tmp_path: Path) -> None:
    places = ("context.submitted", "context.collected")

    def copy_data(point: str) -> None:
        if point in places and not (tmp_path / point).exists():
            shutil.copytree(tmp_path / "data", tmp_path / point / "data")

    async with FakeMessagesAPI(then=answer_with_line) as api:
        async with make_rig(tmp_path, api, failpoint=copy_data) as rig:
            domain, document = await upload_handbook(rig)
            await process_lines(rig)
            assert await read_progress(rig, domain, document) == {"made": 0, "failed": 0, "of": 3}
            assert await search_texts(rig, domain, "vacation allowance") == []
            api.end_batches(expired=1)
            await process_lines(rig)
            line_counts = await read_progress(rig, domain, document)
            reason = "the batch expired before the service answered this request"
            assert line_counts == {"made": 2, "failed": 1, "of": 3, "reason": reason}
        for place in places:
            async with make_rig(tmp_path / place, api) as rig:
                await process_lines(rig)
                assert (await read_progress(rig, domain, document))["made"] == 2
                assert calls_by_agent(await rig.ok("GET", "/api/usage?groupBy=agent")) == {"(context)": 2}
        (batch,) = api.batches.values()
        assert len(batch.requests) == 3
        assert api.refused == []


@pytest.mark.sqlite("copies the files as a kill would leave them")
async def test_a_kill_between_two_calls_loses_no_line(tmp_path: Path) -> None:
    def copy_data(point: str) -> None:
        if point == "context.asked" and not (tmp_path / "killed").exists():
            shutil.copytree(tmp_path / "data", tmp_path / "killed" / "data")

    async with one_by_one() as api:
        async with make_rig(tmp_path, api, failpoint=copy_data) as rig:
            domain, _ = await upload_handbook(rig)
            await process_lines(rig)
        async with make_rig(tmp_path / "killed", api) as rig:
            await process_lines(rig)
            assert sorted(await lines_in_index(rig, domain)) == sorted(WRITTEN.values())
            assert len(api.requests) == 3 + 2


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
async def test_a_qdrant_server_finds_a_passage_by_its_line(tmp_path: Path) -> None:
    async with qdrant_serving(Shim()) as url, one_by_one() as api, make_rig(tmp_path, api, qdrant_url=url) as rig:
        domain, document = await upload_handbook(rig)
        assert await search_texts(rig, domain, "vacation allowance") == []
        await process_lines(rig)
        assert await search_texts(rig, domain, "vacation allowance") == ["Full-time staff have 27 days a year."]
        assert (await read_progress(rig, domain, document))["made"] == 3


async def test_a_budget_that_is_used_up_holds_lines_back_until_it_has_room(tmp_path: Path) -> None:
    async with one_by_one() as api, make_rig(tmp_path, api) as rig:
        domain, document = await upload_handbook(rig)
        budget = {"scope": "domain", "subject": domain, "unit": "tokens", "period": "day", "hard": "10"}
        created = await rig.ok("PUT", "/api/budgets", budget)
        await process_lines(rig)
        assert len(api.requests) <= 1, "the first call uses the budget up"
        assert (await read_progress(rig, domain, document))["made"] <= 1
        assert await search_texts(rig, domain, "stolen laptop"), "a document is searchable without its lines"
        await rig.ok("DELETE", f"/api/budgets/{created['id']}")
        await end_retry_delay(rig)
        await process_lines(rig)
        assert (await read_progress(rig, domain, document))["made"] == 3


async def test_turning_context_lines_off_cancels_their_batch(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=answer_with_line) as api, make_rig(tmp_path, api) as rig:
        domain, document = await upload_handbook(rig)
        await process_lines(rig)
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"contextLines": False}})
        await process_lines(rig)
        (batch,) = api.batches.values()
        assert batch.canceled
        api.end_batches()
        await process_lines(rig)
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"contextLines": True}})
        assert await read_progress(rig, domain, document) == {"made": 0, "failed": 0, "of": 3}
        await process_lines(rig)
        assert len(api.batches) == 2, "the cancelled requests are made again at once"


async def add_case(rig: Rig) -> tuple[str, str]:
    """Create a domain with one case that uses other words than its document; return its path and the document's id."""
    domain, document = await upload_handbook(rig, contextLines=False)
    path = f"/api/domains/{domain}"
    cites = [{"document": "handbook.md", "section": "Time off", "text": "27 days"}]
    case = {"questions": ["How large is the annual vacation allowance?"], "expect": {"cites": cites}}
    await rig.ok("POST", f"{path}/evaluation/cases", case)
    await rig.ok("PATCH", path, {"settings": {"contextLines": True}})
    await process_lines(rig)
    assert await read_progress(rig, domain, document) == {"made": 3, "failed": 0, "of": 3}
    return path, domain


async def test_context_lines_that_help_a_case_go_live_after_the_comparison(tmp_path: Path) -> None:
    async with one_by_one() as api, make_rig(tmp_path, api) as rig:
        path, domain = await add_case(rig)
        assert (await rig.reindexed(domain))["state"] == "ready"
        assert await search_texts(rig, domain, "vacation allowance") == ["Full-time staff have 27 days a year."]
        (draft,) = (await rig.ok("GET", f"{path}/evaluation/drafts"))["items"]
        assert (draft["label"], draft["state"]) == ("context lines", "passed")
        assert draft["decision"]["sentence"] == "none of 1 worse, 1 better"


async def test_context_lines_that_help_no_case_are_held_until_an_admin_applies_them(tmp_path: Path) -> None:
    async with one_by_one(then=say("A page of a booklet.")) as api, make_rig(tmp_path, api) as rig:
        path, domain = await add_case(rig)
        state = await rig.reindexed(domain)
        assert state["state"] == "failed"
        assert "the context lines made no case better" in state["reason"]
        assert await search_texts(rig, domain, "booklet") == []
        await process_lines(rig)
        (draft,) = (await rig.ok("GET", f"{path}/evaluation/drafts"))["items"]
        assert draft["state"] == "held"
        await rig.ok("POST", f"{path}/evaluation/drafts/{draft['id']}/apply")
        assert (await rig.reindexed(domain))["state"] == "ready"
        assert len(await search_texts(rig, domain, "booklet")) > 0


async def test_context_lines_need_a_language_model(tmp_path: Path) -> None:
    async with Rig(tmp_path, scripted=False, model="extractive") as rig:
        domain = await rig.domain()
        refusal = await rig.refused("PATCH", f"/api/domains/{domain}", {"settings": {"contextLines": True}})
        assert refusal == (
            422,
            "VALIDATION_ERROR",
            "settings.contextLines: there is no language model to write the lines.",
        )


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("\u201cStaff handbook, leave.\u201d\n", "Staff handbook, leave."),
        ("one\r\ntwo\x00\x1b[31m\u202ethree\u2066", "one two [31mthree"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("\u5458\u5de5\u624b\u518c" * 90, "\u5458\u5de5\u624b\u518c" * 75),
        ("...\n---", ""),
    ],
)
def test_an_answer_becomes_one_line_of_bounded_length(answer: str, line: str) -> None:
    assert clean_line(answer) == line
