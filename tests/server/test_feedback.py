"""Feedback on answers, and texts rendered for a page."""

from pathlib import Path

import anyio

from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, say
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig


async def test_an_answer_has_one_rating_that_can_be_changed_and_removed(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes."), say("No.")) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        turn_started = (await rig.say(conversation, "Hi"))[0]
        path = f"/api/conversations/{conversation}/messages/{turn_started['messageId']}/feedback"
        for rating, reason in (("up", ""), ("down", "It names no source.")):
            feedback = await rig.ok("PUT", path, {"rating": rating, "reason": reason})
            assert (feedback["rating"], feedback["reason"]) == (rating, reason)
        own = (await rig.ok("GET", f"/api/conversations/{conversation}/feedback"))["items"]
        assert [(entry["messageId"], entry["rating"]) for entry in own] == [(turn_started["messageId"], "down")]
        domain_feedback = (await rig.ok("GET", f"/api/domains/{domain}/feedback?limit=1"))["items"]
        assert [(entry["userId"], entry["reason"]) for entry in domain_feedback] == [("local", "It names no source.")]
        assert (await rig.ok("PUT", path, {"rating": None}))["rating"] is None
        assert (await rig.ok("GET", f"/api/conversations/{conversation}/feedback"))["items"] == []
        question = path.replace(turn_started["messageId"], turn_started["userMessageId"])
        assert (await rig.refused("PUT", question, {"rating": "up"}))[:2] == (422, "VALIDATION_ERROR")
        assert (await rig.refused("PUT", path, {"rating": "great"}))[0] == 422
        await rig.ok("PUT", path, {"rating": "up"})
        rows = (await rig.ok("GET", "/api/audit?limit=50"))["items"]
        assert [row["target"] for row in rows if row["action"] == "feedback.give"] == [turn_started["messageId"]] * 4
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        assert (await rig.ok("GET", f"/api/domains/{domain}/feedback"))["items"] == []
        other_conversation = await rig.conversation(domain)
        other_message = (await rig.say(other_conversation, "Hi"))[0]["messageId"]
        key = await make_key(rig, "eve", "member", domain)
        stranger = f"/api/conversations/{other_conversation}/messages/{other_message}/feedback"
        answer = await rig.http.put(stranger, json={"rating": "up"}, headers=bearer(key))
        assert answer.status_code == 404


async def test_texts_are_rendered_like_messages(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        mark = {"end": 9, "number": 2, "documentId": "doc_1", "documentName": '"><b>', "chunkId": "c1"}
        texts = [
            {"text": "**Leave** is <script>alert(1)</script> 25 days.", "citations": [mark]},
            {"text": "one\ntwo", "breaks": True},
        ]
        first_text, second_text = (await rig.ok("POST", "/api/render", {"texts": texts}))["items"]
        assert '<strong>Leave</strong><sup class="citation"' in first_text["html"]
        assert 'data-number="2"' in first_text["html"]
        assert "<script>" not in first_text["html"]
        assert "<b>" not in first_text["html"]
        assert second_text["html"] == "<p>one<br>\ntwo</p>\n"
        too_long = {"texts": [{"text": "x" * 60_000}] * 3}
        status, code, message = await rig.refused("POST", "/api/render", too_long)
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert "131072 characters" in message
        too_many = [{"text": "x"}] * 51
        assert (await rig.refused("POST", "/api/render", {"texts": too_many}))[:2] == (422, "VALIDATION_ERROR")


async def test_an_answer_with_calls_has_its_text_in_parts_between_them(tmp_path: Path) -> None:
    steps = (
        Step((Think("Look."), Say("I look it up.\n"), Use("search_documents", {"query": "leave"}))),
        Step((Say("  "), Use("search_documents", {"query": "leave days"}))),
        Step((Say("There are "), Say("**25** days", (Cite(0),)), Say(" a year."))),
    )
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days of leave a year.")
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "How many?")
        path = f"/api/conversations/{conversation}/messages?format=html"
        question, answer = (await rig.ok("GET", path))["items"]
        assert "parts" not in question
        blocks = [answer["blocks"][part["block"]] for part in answer["parts"]]
        assert [block["text"] for block in blocks] == ["I look it up.\n", "There are "]
        first_part, last_part = (part["html"] for part in answer["parts"])
        assert first_part == "<p>I look it up.</p>\n"
        assert "There are <strong>25</strong> days<sup" in last_part
        assert first_part + last_part == answer["html"]
        turn = answer["turnId"]
        calls = await rig.ok("GET", f"/api/conversations/{conversation}/tool-calls?turnId={turn}")
        assert [item["arguments"]["query"] for item in calls["items"]] == ["leave", "leave days"]
        assert (await rig.ok("GET", f"/api/conversations/{conversation}/tool-calls?turnId=nope"))["items"] == []


async def test_two_users_rate_answers_to_the_same_question_at_once(tmp_path: Path) -> None:
    """Several servers would store the same drafted case: `TEST_DATABASE=postgresql` runs their transactions at once."""
    rounds = 5
    async with Rig(tmp_path, *[say("It is 27.")] * (2 * rounds)) as rig:
        domain = await rig.domain()
        for number in range(rounds):
            paths = []
            for _ in range(2):
                conversation = await rig.conversation(domain)
                turn = (await rig.say(conversation, f"How many days in year {number}?"))[0]
                paths.append(f"/api/conversations/{conversation}/messages/{turn['messageId']}/feedback")
            async with anyio.create_task_group() as tasks:
                for path in paths:
                    tasks.start_soon(rig.ok, "PUT", path, {"rating": "down", "reason": "No."})
        cases = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/cases?state=draft"))["items"]
        assert len(cases) == rounds
