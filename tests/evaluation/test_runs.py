"""Cases, retrieval runs, the gate and their REST, over the real application."""

import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.base.errors import StorageFull
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply, Scripted
from agentic_rag.testing.steps import Cite, say, use
from tests.server.rig import WAIT_SECONDS, Rig
from tests.waiting import pause

Json = dict[str, Any]

TOPICS = {
    "leave": "Full-time staff have 27 days of paid leave a year.",
    "filters": "Replace the filters of the Brisa 300 every six months.",
    "travel": "A private car is paid with 45 pence a mile.",
    "siphon": "Use the siphon with a ball valve from the box.",
    "quiet": "Quiet hours of the controller are from 22:00 to 06:30.",
    "laptop": "Report a stolen laptop within one hour on extension 4400.",
}
QUESTIONS = {
    "leave": "How many days of paid leave do full-time staff have?",
    "filters": "How often are the filters of the Brisa 300 replaced?",
    "travel": "How many pence a mile for a private car?",
    "siphon": "Which siphon comes from the box?",
    "quiet": "When are the quiet hours of the controller?",
    "laptop": "When do I report a stolen laptop?",
}


def case(topic: str, **expectations: Any) -> Json:
    cites = [{"document": f"{topic}.md", "section": topic, "text": TOPICS[topic]}]
    return {"questions": [QUESTIONS[topic]], "expect": {"cites": cites, **expectations}}


async def make_filled_domain(rig: Rig, *, cases: bool = True, **settings: Any) -> str:
    """Create a domain with a document and a case for each topic."""
    domain = await rig.domain(**settings)
    files = [("file", (f"{topic}.md", f"# {topic}\n\n{text}\n".encode())) for topic, text in TOPICS.items()]
    await rig.ok("POST", f"/api/domains/{domain}/documents", files=files)
    for topic in TOPICS if cases else ():
        await rig.ok("POST", f"/api/domains/{domain}/evaluation/cases", case(topic))
    await rig.taken_up(domain)
    return domain


async def run(rig: Rig, domain: str, **options: Any) -> Json:
    """Start a run and return it after its end."""
    base = f"/api/domains/{domain}/evaluation/runs"
    run_record = await rig.ok("POST", base, options)
    with anyio.fail_after(WAIT_SECONDS):
        while True:
            state: Json = await rig.ok("GET", f"{base}/{run_record['id']}")
            if state["state"] in ("done", "stopped", "failed"):
                return state
            await pause()


async def try_change(rig: Rig, domain: str, **change: Any) -> Json:
    """Try a change and return its draft after the decision."""
    base = f"/api/domains/{domain}/evaluation"
    draft = await rig.ok("POST", f"{base}/try", change)
    with anyio.fail_after(WAIT_SECONDS):
        while draft["state"] == "trying":
            await pause()
            draft = await rig.ok("GET", f"{base}/drafts/{draft['id']}")
    return dict(draft)


class FullDisk:
    """Refuses the next ``failure_count`` commits after a failpoint."""

    def __init__(self, place: str, failure_count: int) -> None:
        self._place = place
        self._is_full = False
        self._left = failure_count

    def __call__(self, name: str) -> None:
        self._is_full |= name == self._place
        if name == "commit.begin" and self._is_full and self._left:
            self._left -= 1
            raise StorageFull("it is full")


@pytest.mark.parametrize("place", ["evaluation.begun", "evaluation.stored"])
async def test_a_run_and_its_trial_end_once_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("agentic_rag.evaluation.runs.RETRY_SECONDS", 0.01)
    async with Rig(tmp_path, failpoint=FullDisk(place, 3)) as rig:
        domain = await make_filled_domain(rig)
        draft = await try_change(rig, domain, settings={"retrievalTopK": 4})
        assert draft["state"] == "passed"


async def test_a_run_judges_each_case_and_says_which_document_is_gone(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        base = f"/api/domains/{domain}/evaluation"
        case_without_document = {
            "questions": ["Who is my buddy?"],
            "expect": {"cites": [{"document": "first-days.md"}]},
        }
        wrong_case = {"questions": ["Which siphon is it?"], "expect": {"cites": [{"document": "leave.md"}]}}
        declined_case = {"questions": ["What does the CEO earn?"], "expect": {"declines": True}}
        for body in (case_without_document, wrong_case, declined_case):
            await rig.ok("POST", f"{base}/cases", body)
        run_record = await run(rig, domain, tier="retrieval")
        assert (run_record["state"], run_record["total"], run_record["done"]) == ("done", 9, 9)
        counts = {name: run_record[name] for name in ("passed", "failed", "gone", "unknown", "unchecked")}
        assert counts == {"passed": 6, "failed": 1, "gone": 1, "unknown": 0, "unchecked": 1}
        assert run_record["imageId"].startswith("img_")
        assert (await rig.ok("GET", f"/api/images/{run_record['imageId']}"))["id"] == run_record["imageId"]
        results = (await rig.ok("GET", f"{base}/runs/{run_record['id']}/results"))["items"]
        assert [result["outcome"] for result in results[:2]] == ["failed", "gone"]
        assert results[1]["reason"] == "first-days.md is not in this domain"
        assert results[0]["checks"][0]["kind"] == "finds"
        assert results[0]["observed"]["passages"][0]["document"] == "siphon.md"
        cases = (await rig.ok("GET", f"{base}/cases"))["items"]
        by_question = {row["questions"][0]: row["last"]["retrieval"]["outcome"] for row in cases}
        assert by_question["Who is my buddy?"] == "gone"
        summary = await rig.ok("GET", base)
        assert (summary["cases"]["active"], summary["retrieval"]["id"], summary["held"]) == (9, run_record["id"], 0)


async def test_cases_are_changed_versioned_and_restored(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig, cases=False)
        base = f"/api/domains/{domain}/evaluation/cases"
        created = await rig.ok("POST", base, case("leave"))
        assert (await rig.refused("POST", base, case("leave")))[:2] == (422, "VALIDATION_ERROR")
        changed_case = case("leave", contains=["27"])
        updated = await rig.ok("PUT", f"{base}/{created['id']}", {"case": changed_case, "version": 1})
        assert updated["version"] == 2
        assert (await rig.refused("PUT", f"{base}/{created['id']}", {"state": "off", "version": 1}))[
            1
        ] == "VERSION_CONFLICT"
        history = (await rig.ok("GET", f"/api/domains/{domain}/history?kind=case"))["items"]
        assert [change["subject"] for change in history] == [created["id"]] * 2
        await rig.ok("DELETE", f"{base}/{created['id']}")
        assert (await rig.ok("GET", base))["items"] == []
        await rig.ok("POST", f"/api/domains/{domain}/history/{history[1]['n']}/restore")
        restored = (await rig.ok("GET", base))["items"]
        assert [(row["id"], row["expect"]) for row in restored] == [(created["id"], case("leave")["expect"])]


async def test_a_csv_adds_cases_and_a_wrong_column_adds_none(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig, cases=False)
        base = f"/api/domains/{domain}/evaluation/cases"
        text = "question,document,text\nHow many days?,leave.md,27 days\nBroken,,\nHow often?,filters.md,six months\n"
        headers = {"content-type": "text/csv"}
        first_import = await rig.ok("POST", f"{base}/import", content=text.encode(), headers=headers)
        assert (
            first_import["added"],
            first_import["changed"],
            [problem["path"] for problem in first_import["problems"]],
        ) == (
            2,
            0,
            ["row 3.expect"],
        )
        second_import = await rig.ok("POST", f"{base}/import", content=text.encode(), headers=headers)
        assert (second_import["added"], second_import["changed"], second_import["same"]) == (0, 0, 2)
        status, code, message = await rig.refused(
            "POST", f"{base}/import", content=b"question,dokument\na,b\n", headers=headers
        )
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert "dokument" in message
        export = await rig.http.get(f"{base}?format=csv")
        assert export.headers["content-type"].startswith("text/csv")
        assert "How often?" in export.text


async def test_a_change_that_makes_searches_worse_is_held_and_can_be_applied_anyway(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        path = f"/api/domains/{domain}"
        status, code, message = await rig.refused("PATCH", path, {"settings": {"retrievalThreshold": 1}})
        assert (status, code) == (409, "CHANGE_HELD")
        assert "6 of 6 worse, none better (p = 0.016)" in message
        assert (await rig.ok("GET", path))["settings"]["retrievalThreshold"] == 0
        (draft,) = (await rig.ok("GET", f"{path}/evaluation/drafts"))["items"]
        assert (draft["state"], draft["label"]) == ("held", "retrievalThreshold 0.0 → 1.0")
        query = {"before": draft["beforeRun"], "after": draft["afterRun"]}
        comparison = await rig.ok("GET", f"{path}/evaluation/comparison", params=query)
        assert len(comparison["worse"]) == 6
        worse_case = comparison["worse"][0]
        assert (worse_case["before"][0]["outcome"], worse_case["after"][0]["outcome"]) == ("passed", "failed")
        assert "below the threshold" in worse_case["after"][0]["reason"]
        applied_draft = await rig.ok("POST", f"{path}/evaluation/drafts/{draft['id']}/apply")
        assert (applied_draft["state"], applied_draft["decidedBy"]) == ("applied", "local")
        assert (await rig.ok("GET", path))["settings"]["retrievalThreshold"] == 1
        rows = (await rig.ok("GET", "/api/audit?limit=20"))["items"]
        assert "evaluation.apply" in [row["action"] for row in rows]
        assert (await rig.refused("POST", f"{path}/evaluation/drafts/{draft['id']}/drop"))[0] == 422


async def test_a_domain_chooses_what_happens_to_a_worse_change(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig, evaluation={"gate": {"settings": "warn"}})
        path = f"/api/domains/{domain}"
        warned = await rig.ok("PATCH", path, {"settings": {"retrievalThreshold": 1}})
        assert "6 of 6 worse" in warned["warnings"][0]["text"]
        assert warned["settings"]["retrievalThreshold"] == 1
        await rig.ok("PATCH", path, {"settings": {"evaluation": {"gate": {"settings": "off"}}}})
        silent = await rig.ok("PATCH", path, {"settings": {"retrievalThreshold": 0.99}})
        assert silent["warnings"] == []


async def test_removing_a_cited_document_is_held_and_others_are_removed_at_once(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        uncited = await rig.upload(domain, "menu.md", b"# Menu\n\nSoup on Mondays.\n")
        documents = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        leave_id = next(document["id"] for document in documents if document["name"] == "leave.md")
        status, code, message = await rig.refused("DELETE", f"/api/domains/{domain}/documents/{leave_id}")
        assert (status, code) == (409, "CHANGE_HELD")
        assert "would lose the document" in message
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{uncited['id']}")
        assert len((await rig.ok("GET", f"/api/domains/{domain}/evaluation/drafts"))["items"]) == 1


async def test_harmless_changes_are_accepted(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        path = f"/api/domains/{domain}"
        record = await rig.ok(
            "PATCH", path, {"name": "Renamed", "settings": {"retrievalTopK": 8, "responseStyle": "concise"}}
        )
        assert (record["name"], record["warnings"]) == ("Renamed", [])
        assert (await try_change(rig, domain, settings={"retrievalTopK": 20}))["state"] == "passed"


@pytest.mark.sqlite("copies the files as a kill would leave them")
@pytest.mark.parametrize(
    "places",
    [
        pytest.param(("evaluation.stored",), id="stored"),
        pytest.param(
            ("evaluation.begun", "evaluation.ended"),
            id="others",
            marks=pytest.mark.nightly("a kill in the middle of a run happens every time"),
        ),
    ],
)
async def test_a_run_killed_at_any_step_resumes_and_judges_each_case_once(
    tmp_path: Path, places: tuple[str, ...]
) -> None:
    def copy_data(point: str) -> None:
        if point in places and not (tmp_path / point).exists():
            shutil.copytree(tmp_path / "data", tmp_path / point / "data")

    async with Rig(tmp_path, failpoint=copy_data) as rig:
        domain = await make_filled_domain(rig)
        run_id = (await run(rig, domain, tier="retrieval"))["id"]
    path = f"/api/domains/{domain}/evaluation/runs/{run_id}"
    for place in places:
        async with Rig(tmp_path / place) as rig:
            with anyio.fail_after(WAIT_SECONDS):
                while (run_record := await rig.ok("GET", path))["state"] != "done":
                    await pause()
            assert (run_record["passed"], run_record["done"]) == (6, 6)
            assert len((await rig.ok("GET", f"{path}/results"))["items"]) == 6


async def test_simultaneous_runs_all_complete(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        runs: list[Json] = []

        async def run_once() -> None:
            runs.append(await run(rig, domain, tier="retrieval"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(run_once)
        assert [(run_record["state"], run_record["passed"]) for run_record in runs] == [("done", 6)] * 3


async def test_answers_are_judged_by_their_citations_and_leave_no_conversation(tmp_path: Path) -> None:
    steps = [use("search_documents", query="days of paid leave"), say("You have 27 days.", Cite(0))]
    async with Rig(tmp_path, *steps) as rig:
        domain = await make_filled_domain(rig, cases=False)
        await rig.ok("POST", f"/api/domains/{domain}/evaluation/cases", case("leave", contains=["27 days"]))
        run_record = await run(rig, domain, tier="answers")
        (result,) = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/runs/{run_record['id']}/results"))["items"]
        assert (result["outcome"], result["reason"]) == ("passed", "")
        assert result["observed"]["answer"] == "You have 27 days."
        assert result["observed"]["tools"] == ["search_documents"]
        assert (await rig.ok("GET", "/api/conversations"))["items"] == []


@pytest.mark.parametrize("tier", ["retrieval", "answers"])
async def test_a_domain_without_cases_has_nothing_to_run(tmp_path: Path, tier: str) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/evaluation/runs"
        assert (await rig.refused("POST", path, {"tier": tier}))[:2] == (422, "VALIDATION_ERROR")


JUDGE = {"judge": {"helpful": "The answer lets the reader act."}, "judgeBatch": True}


def say_score(score: int) -> Scripted:
    return say(f'{{"scores": {{"helpful": {{"score": {score}, "reason": "Clear."}}}}}}')


async def run_in_batch(rig: Rig, *questions: str) -> str:
    """Run the answers of some questions in a domain whose judge uses a batch; return the run's path."""
    domain = await rig.domain(model="claude-haiku-5-5", evaluation=JUDGE)
    for question in questions:
        body = {"questions": [question], "expect": {"contains": ["27"]}}
        await rig.ok("POST", f"/api/domains/{domain}/evaluation/cases", body)
    run_record = await run(rig, domain, tier="answers")
    assert (run_record["state"], run_record["passed"], run_record["scoring"]) == ("done", len(questions), "planned")
    return f"/api/domains/{domain}/evaluation/runs/{run_record['id']}"


async def read_scores(rig: Rig, path: str) -> Json:
    """Return the score and the reason of each question."""
    results = (await rig.ok("GET", f"{path}/results"))["items"]
    return {
        result["question"]: tuple(result["observed"]["scores"]["helpful"].values())
        for result in results
        if "scores" in result["observed"]
    }


async def test_a_batch_scores_the_answers_of_a_run_and_says_why_one_has_no_score(tmp_path: Path) -> None:
    overload = Reply(say("-"), Fault(status=529, error_type="overloaded_error", message="Overloaded"))
    script = [*[say("27 days.")] * 3, say_score(4), overload]
    async with FakeMessagesAPI(*script) as api, Rig(tmp_path, instead=AnthropicModel(api.key, api.url)) as rig:
        path = await run_in_batch(rig, "One?", "Two?", "Three?")
        await rig.application.services.scoring.look()
        assert (await rig.ok("GET", path))["scoring"] == "waiting"
        await rig.application.services.scoring.look()
        assert await read_scores(rig, path) == {}
        api.end_batches(expired=1)
        await rig.application.services.scoring.look()
        assert (await rig.ok("GET", path))["scoring"] == "done"
        assert await read_scores(rig, path) == {
            "One?": (4, "Clear."),
            "Two?": (None, "the service refused the request: Overloaded"),
            "Three?": (None, "the batch expired before the service answered this request"),
        }
        (usage,) = (row for row in (await rig.ok("GET", "/api/usage?groupBy=agent"))["items"] if row["agent"])
        assert (usage["agent"], usage["calls"]) == ("(judge)", 1)
        assert usage["output"] > 0
    (batch,) = api.batches.values()
    assert len(batch.requests) == 3
    assert api.refused == []


async def test_stopping_a_run_whose_answers_are_scored_cancels_the_batch(tmp_path: Path) -> None:
    async with (
        FakeMessagesAPI(say("27 days.")) as api,
        Rig(tmp_path, instead=AnthropicModel(api.key, api.url)) as rig,
    ):
        path = await run_in_batch(rig, "One?")
        await rig.application.services.scoring.look()
        assert (await rig.ok("POST", f"{path}/stop"))["scoring"] == "stopping"
        await rig.application.services.scoring.look()
        assert [batch.canceled for batch in api.batches.values()] == [True]
        api.end_batches()
        await rig.application.services.scoring.look()
        assert (await rig.ok("GET", path))["scoring"] == "done"
        reason = "the batch was canceled before the service answered this request"
        assert await read_scores(rig, path) == {"One?": (None, reason)}


async def test_answers_are_scored_one_by_one_without_batches(tmp_path: Path) -> None:
    async with (
        FakeMessagesAPI(say("27 days."), say_score(5), batches_api=False) as api,
        Rig(tmp_path, instead=AnthropicModel(api.key, api.url)) as rig,
    ):
        path = await run_in_batch(rig, "One?")
        for _ in range(2):
            await rig.application.services.scoring.look()
        assert (await rig.ok("GET", path))["scoring"] == "done"
        assert await read_scores(rig, path) == {"One?": (5, "Clear.")}


@pytest.mark.sqlite("copies the files as a kill would leave them")
async def test_a_killed_server_continues_its_batch(tmp_path: Path) -> None:
    places = ("scoring.submitted", "scoring.stored")

    def copy_data(point: str) -> None:
        if point in places and not (tmp_path / point).exists():
            shutil.copytree(tmp_path / "data", tmp_path / point / "data")

    async with FakeMessagesAPI(say("27 days."), say_score(4)) as api:
        async with Rig(tmp_path, instead=AnthropicModel(api.key, api.url), failpoint=copy_data) as rig:
            path = await run_in_batch(rig, "One?")
            await rig.application.services.scoring.look()
            api.end_batches()
            await rig.application.services.scoring.look()
        for place in places:
            async with Rig(tmp_path / place, instead=AnthropicModel(api.key, api.url)) as rig:
                await rig.application.services.scoring.look()
                assert await read_scores(rig, path) == {"One?": (4, "Clear.")}
                assert (await rig.ok("GET", path))["scoring"] == "done"
                rows = (await rig.ok("GET", "/api/usage?groupBy=agent"))["items"]
                assert [row["calls"] for row in rows if row["agent"] == "(judge)"] == [1]
        assert len(api.batches) == 1
