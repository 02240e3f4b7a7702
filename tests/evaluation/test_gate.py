"""Trials with whole answers, a held re-index, feedback, bundles and the command line."""

import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
import orjson
import pytest

from agentic_rag.base.errors import ModelError, SearchUnavailable, StorageUnavailable
from agentic_rag.commands import evaluate
from agentic_rag.commands.client import ServerClient
from agentic_rag.directory.collection import collection_of
from agentic_rag.evaluation.reindex_gate import ReindexGate
from agentic_rag.models.base import ModelRequest
from agentic_rag.store import evaluation
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.evaluation import DraftRecord, DraftState
from agentic_rag.testing.steps import Cite, Step, say, use
from tests.evaluation.test_runs import QUESTIONS, TOPICS, FullDisk, case, make_filled_domain, run, try_change
from tests.server.rig import WAIT_SECONDS, Rig
from tests.store.conftest import needs_postgresql, postgresql_url
from tests.store.test_leases import store
from tests.waiting import pause

__all__ = ["postgresql_url", "store"]
Json = dict[str, Any]


class Answering:
    """A scripted model that searches, then cites the first passage, or answers without one if its prompt says so."""

    def __call__(self, request: ModelRequest) -> Step:
        message = str(request.messages[-1])
        if "tool_result" in message:
            return say("Nobody knows.") if "Never cite" in str(request.system) else say("See the handbook.", Cite(0))
        return use("search_documents", query=next(question for question in QUESTIONS.values() if question in message))


async def test_a_worse_prompt_is_evaluated_with_answers_and_a_harmless_one_applied(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[Answering()] * 96) as rig:
        domain = await make_filled_domain(rig, evaluation={"answers": True})
        path = f"/api/domains/{domain}"
        prompt = f"{path}/prompt-components/tone.md"
        status, code, _ = await rig.refused("PUT", prompt, {"content": "Never cite anything.\n"})
        assert (status, code) == (409, "CHANGE_ON_TRIAL")
        drafts = await wait_for_decisions(rig, domain, 1)
        assert (drafts[0]["state"], drafts[0]["decision"]["compared"]) == ("held", 6)
        assert len(drafts[0]["decision"]["worse"]) == 6
        assert (await rig.ok("GET", f"{path}/prompt-components"))["items"] == []
        assert (await rig.refused("PUT", prompt, {"content": "Be kind.\n"}))[1] == "CHANGE_ON_TRIAL"
        drafts = await wait_for_decisions(rig, domain, 2)
        assert drafts[0]["state"] == "applied"
        (component,) = (await rig.ok("GET", f"{path}/prompt-components"))["items"]
        assert component["content"] == "Be kind.\n"


async def test_a_passed_change_is_applied_once_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentic_rag.evaluation.runs.RETRY_SECONDS", 0.01)
    async with Rig(tmp_path, *[Answering()] * 24, failpoint=FullDisk("evaluation.decided", 3)) as rig:
        domain = await make_filled_domain(rig, evaluation={"answers": True})
        path = f"/api/domains/{domain}/prompt-components"
        assert (await rig.refused("PUT", f"{path}/tone.md", {"content": "Be kind.\n"}))[1] == "CHANGE_ON_TRIAL"
        (draft,) = await wait_for_decisions(rig, domain, 1)
        assert draft["state"] == "applied"
        assert [component["content"] for component in (await rig.ok("GET", path))["items"]] == ["Be kind.\n"]


@pytest.mark.sqlite("copies the files as a kill would leave them")
async def test_a_change_that_passed_before_a_kill_is_applied_at_the_next_start(tmp_path: Path) -> None:
    def copy_data(point: str) -> None:
        if point == "evaluation.decided":
            shutil.copytree(tmp_path / "data", tmp_path / "killed" / "data")

    async with Rig(tmp_path, *[Answering()] * 24, failpoint=copy_data) as rig:
        domain = await make_filled_domain(rig, evaluation={"answers": True})
        path = f"/api/domains/{domain}/prompt-components"
        assert (await rig.refused("PUT", f"{path}/tone.md", {"content": "Be kind.\n"}))[1] == "CHANGE_ON_TRIAL"
        await wait_for_decisions(rig, domain, 1)
    async with Rig(tmp_path / "killed") as rig:
        (draft,) = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/drafts"))["items"]
        assert (draft["state"], draft["decision"]["compared"]) == ("applied", 6)
        assert [component["content"] for component in (await rig.ok("GET", path))["items"]] == ["Be kind.\n"]


async def store_passed_draft(rig: Rig, domain: str, change: Json) -> str:
    """Store a change that has just passed its trial and is still to be applied."""
    draft = DraftRecord(
        id=new_id("draft"),
        domain_id=domain,
        kind="prompts",
        label="tone.md",
        change=change,
        author="local",
        state=DraftState.PASSED,
        then_apply=True,
        created_at=now(),
        updated_at=now(),
    )
    await rig.application.database.write(lambda conn: evaluation.insert_draft(conn, draft))
    return draft.id


async def test_a_change_that_no_program_understands_does_not_prevent_the_start(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await store_passed_draft(rig, domain, {"ofAnotherVersion": True})
    async with Rig(tmp_path) as rig:
        (draft,) = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/drafts"))["items"]
        assert draft["state"] == "failed"
        assert "internal error" in draft["decision"]["sentence"]


@needs_postgresql
async def test_a_change_is_applied_by_the_server_that_decided_about_it(tmp_path: Path, store: str) -> None:
    async with Rig(tmp_path, database_url=store) as rig:
        domain, gate = await rig.domain(), rig.application.services.gate
        draft_id = await store_passed_draft(rig, domain, {"components": {"tone.md": "Be kind.\n"}})
        assert await gate._decide_ended(domain, draft_id) is None
        await gate.settle_abandoned()
        assert (await gate.draft(domain, draft_id)).state is DraftState.PASSED, "its server may be applying it now"
        await gate.settle_abandoned(silent=0.0)
        assert (await gate.draft(domain, draft_id)).state is DraftState.APPLIED


async def test_a_change_whose_trial_fails_is_held_or_applied_with_a_warning(tmp_path: Path) -> None:
    def fail(point: str) -> None:
        if point == "evaluation.begun":
            raise SearchUnavailable("the index restarts")

    async with Rig(tmp_path, failpoint=fail) as rig:
        domain = await make_filled_domain(rig)
        path = f"/api/domains/{domain}"
        for mode in ("hold", "warn"):
            change = {"settings": {"evaluation": {"gate": {"settings": mode}}}}
            await rig.ok("PATCH", path, change)
            response = await rig.http.patch(path, json={"settings": {"retrievalTopK": 4}})
            settings = (await rig.ok("GET", path))["settings"]
            if mode == "hold":
                assert (response.status_code, response.json()["error"]["code"]) == (409, "CHANGE_HELD")
                assert "the index restarts" in response.text
                assert settings["retrievalTopK"] != 4
            else:
                (warning,) = response.json()["warnings"]
                assert "the index restarts" in str(warning)
                assert settings["retrievalTopK"] == 4


async def wait_for_decisions(rig: Rig, domain: str, count: int) -> list[Json]:
    """Return the drafts once all are decided, newest first."""
    with anyio.fail_after(WAIT_SECONDS):
        while True:
            drafts = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/drafts"))["items"]
            is_pending = any(
                draft["state"] == "trying" or (draft["state"] == "passed" and draft["thenApply"]) for draft in drafts
            )
            if len(drafts) == count and not is_pending:
                return list(drafts)
            await pause()


async def test_a_model_that_is_down_makes_cases_unknown_and_not_worse(tmp_path: Path) -> None:
    outage = [ModelError("The service is down.", http_status=401, kind="authentication_error")] * 2
    async with Rig(tmp_path, *outage) as rig:
        domain = await make_filled_domain(rig, cases=False)
        base = f"/api/domains/{domain}/evaluation"
        await rig.ok("POST", f"{base}/cases", case("leave"))
        draft = await try_change(rig, domain, settings={"responseStyle": "concise"}, tier="answers")
        assert (draft["state"], draft["decision"]["worse"]) == ("warned", [])
        assert draft["decision"]["sentence"] == "1 could not be judged"
        results = (await rig.ok("GET", f"{base}/runs/{draft['afterRun']}/results"))["items"]
        assert results[0]["outcome"] == "unknown"


async def test_a_judge_scores_answers_beside_their_verdict(tmp_path: Path) -> None:
    messages: list[str] = []

    def judge(request: ModelRequest) -> Step:
        messages.append(str(request.messages[-1]))
        return say(
            'Scores: {"scores": {"helpful": {"score": 4, "reason": "It names the days."}, "kind": {"score": 9}}}'
        )

    async with Rig(tmp_path, *[Answering()] * 2, judge, *[Answering()] * 2, say("I cannot say.")) as rig:
        criteria = {"helpful": "The reader can act.", "kind": "It is friendly."}
        domain = await make_filled_domain(rig, cases=False, evaluation={"judge": criteria})
        base = f"/api/domains/{domain}/evaluation"
        await rig.ok("POST", f"{base}/cases", case("leave"))
        for expected in ({"score": 4, "reason": "It names the days."}, None):
            run_record = await run(rig, domain, tier="answers")
            (result,) = (await rig.ok("GET", f"{base}/runs/{run_record['id']}/results"))["items"]
            unscored = {"score": None, "reason": "the judge gave no score from 1 to 5"}
            assert result["observed"]["scores"] == {"helpful": expected or unscored, "kind": unscored}
            assert (result["outcome"], run_record["passed"]) == ("passed", 1)
        assert "The reader can act." in messages[0]
        assert "See the handbook." in messages[0]
        assert (await rig.ok("GET", "/api/conversations"))["items"] == []
        path = f"/api/domains/{domain}"
        too_many = {str(number): "Fine." for number in range(4)}
        refusal = await rig.refused("PATCH", path, {"settings": {"evaluation": {"judge": too_many}}})
        assert refusal[:2] == (422, "VALIDATION_ERROR")


async def test_a_run_ends_at_its_budget_and_keeps_the_cases_of_a_stopped_run(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[Answering()] * 2) as rig:
        domain = await make_filled_domain(rig)
        run_record = await run(rig, domain, tier="answers", maxTokens=1)
        assert (run_record["state"], run_record["done"], run_record["passed"]) == ("stopped", 1, 1)
        assert "budget of 1 tokens" in run_record["reason"]


class LostStore:
    """A search whose store does not answer."""

    index = None

    async def probe(self, *_: object, **__: object) -> None:
        raise StorageUnavailable("the connection was lost")


async def test_a_store_that_does_not_answer_during_a_comparison_is_named(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        gate = ReindexGate(rig.application.database, rig.application.parts.directory)
        with pytest.raises(StorageUnavailable, match="the connection was lost"):
            await gate.refusal(LostStore(), domain, f"{collection_of(domain)}@2", adds_lines=False)  # type: ignore[arg-type]


async def test_a_rebuilt_index_in_which_cases_fail_does_not_become_live(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        folder = rig.settings.workspaces / domain / "documents"
        hook = {"name": "hook", "url": "https://hooks.invalid/", "events": ["evaluation.finished"]}
        endpoint = (await rig.ok("POST", f"/api/domains/{domain}/endpoints", hook))["id"]
        texts = {path: path.read_text() for path in folder.iterdir()}
        for path in texts:  # other content under the same names: the live index still has the right documents
            path.write_text("# Nothing\n\nThese words answer no question.\n")
        await rig.ok("POST", f"/api/domains/{domain}/reindex", {})
        state = await rig.reindexed(domain)
        assert state["state"] == "failed"
        assert "held by evaluation: 6 of 6 worse" in state["reason"]
        deliveries = (await rig.ok("GET", f"/api/domains/{domain}/endpoints/{endpoint}/deliveries"))["items"]
        assert [delivery["kind"] for delivery in deliveries] == ["evaluation.finished"] * 2
        assert (await run(rig, domain, tier="retrieval"))["passed"] == 6
        (draft,) = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/drafts"))["items"]
        assert (draft["kind"], draft["state"]) == ("reindex", "held")


async def test_feedback_drafts_cases_that_a_bundle_carries_once_confirmed(tmp_path: Path) -> None:
    answer = [use("search_documents", query="days of paid leave"), say("You have 27 days.", Cite(0))]
    async with Rig(tmp_path, *answer) as rig:
        domain = await make_filled_domain(rig, cases=False)
        base = f"/api/domains/{domain}/evaluation/cases"
        conversation = await rig.conversation(domain)
        turn = (await rig.say(conversation, QUESTIONS["leave"]))[0]
        path = f"/api/conversations/{conversation}/messages/{turn['messageId']}/feedback"
        await rig.ok("PUT", path, {"rating": "down", "reason": "And part-time staff?"})
        (draft,) = (await rig.ok("GET", f"{base}?state=draft"))["items"]
        assert draft["source"]["answer"] == "You have 27 days."
        assert draft["source"]["passages"][0]["document"] == "leave.md"
        assert (await rig.refused("PUT", f"{base}/{draft['id']}", {"state": "active"}))[0] == 422
        await rig.ok("PUT", path, {"rating": None})
        assert (await rig.ok("GET", base))["items"] == []
        await rig.ok("PUT", path, {"rating": "up"})
        (draft,) = (await rig.ok("GET", base))["items"]
        await rig.ok("PUT", f"{base}/{draft['id']}", {"state": "active"})
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        (confirmed,) = (await rig.ok("GET", base))["items"]
        assert (confirmed["state"], confirmed["expect"]["cites"][0]["document"]) == ("active", "leave.md")
        bundle = (await rig.http.get(f"/api/domains/{domain}/bundle")).content
        headers = {"content-type": "application/zip"}
        report = await rig.ok("POST", "/api/bundles", content=bundle, headers=headers)
        imported_base = f"/api/domains/{report['domainId']}/evaluation/cases"
        (imported_case,) = (await rig.ok("GET", imported_base))["items"]
        assert (imported_case["questions"], imported_case["expect"]) == (confirmed["questions"], confirmed["expect"])
        assert "case" in [difference["kind"] for difference in report["differences"]]


async def test_the_evaluation_command_has_exit_codes_and_writes_junit(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await make_filled_domain(rig)
        base = f"/api/domains/{domain}/evaluation"
        client, junit = ServerClient(rig.http), tmp_path / "cases.xml"
        assert await evaluate.run_cases(client, base, {}, domain, junit) == 0
        wrong_case = {
            "questions": ["Which siphon <&\ufffe> is it?"],  # XML has no U+FFFE
            "expect": {"cites": [{"document": "leave.md"}]},
        }
        await rig.ok("POST", f"{base}/cases", wrong_case)
        case_without_document = {"questions": ["Who is my buddy?"], "expect": {"cites": [{"document": "gone.md"}]}}
        await rig.ok("POST", f"{base}/cases", case_without_document)
        assert await evaluate.run_cases(client, base, {}, domain, junit) == 1
        suite = ElementTree.parse(junit).getroot()[0]
        assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
            "tests": "8",
            "failures": "1",
            "errors": "0",
            "skipped": "1",
        }
        threshold = {"settings": {"retrievalThreshold": 1}}
        assert await evaluate.try_change(client, base, threshold, domain, junit) == 1
        assert await evaluate.try_change(client, base, {"settings": {"retrievalTopK": 9}}, domain, None) == 0
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["retrievalTopK"] == 5


@pytest.mark.parametrize("body", [{"settings": {"mcpServers": {}}}, {"removes": ["none.md"]}, {"settings": {"no": 1}}])
async def test_a_change_that_cannot_be_tried_gives_the_reason(tmp_path: Path, body: Json) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        assert (await rig.refused("POST", f"/api/domains/{domain}/evaluation/try", body))[0] in (404, 422)


async def test_the_model_suggests_cases_with_quotes_from_their_passages(tmp_path: Path) -> None:
    def propose(request: ModelRequest) -> Step:
        message = str(request.messages[-1])
        quote = next(text for text in TOPICS.values() if text in message)
        number = message[: message.index(quote)].count("\\n\\n[") or 1
        cases = [
            {"passage": number, "question": "What does the handbook say?", "quote": quote},
            {"passage": number, "question": "Invented?", "quote": "words that stand nowhere"},
            {"passage": 99, "question": "Where?", "quote": quote},
        ]
        return say(f"```json\n{orjson.dumps({'cases': cases}).decode()}\n```")

    async with Rig(tmp_path, propose) as rig:
        domain = await make_filled_domain(rig, cases=False)
        base = f"/api/domains/{domain}/evaluation/cases"
        (suggestion,) = (await rig.ok("POST", f"{base}/suggest", {"count": 1}))["items"]
        assert (suggestion["state"], suggestion["origin"]) == ("draft", "suggested")
        assert suggestion["expect"]["cites"][0]["text"] in TOPICS.values()
        assert (await rig.ok("GET", "/api/conversations"))["items"] == []


async def test_without_a_language_model_no_case_is_suggested(tmp_path: Path) -> None:
    async with Rig(tmp_path, scripted=False) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/evaluation/cases/suggest"
        assert "language model" in (await rig.refused("POST", path, {}))[2]
