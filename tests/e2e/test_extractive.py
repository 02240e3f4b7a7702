"""The first five minutes of a newcomer: no key, no network, a cited answer over WebSocket."""

import json
from pathlib import Path

from tests.e2e.serving import BY_MEANING, serving, serving_without_demo, text_of

QUESTIONS = Path(__file__).parent.parent / "demo_questions.jsonl"


async def test_the_demo_answers_its_questions_with_the_right_passages(tmp_path: Path) -> None:
    questions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    assert len(questions) == 20
    failed_questions = []
    with serving(tmp_path / "data", **BY_MEANING) as server:
        await server.wait_until_indexed(by_meaning=True)
        for question in questions:
            async with server.chat(await server.conversation()) as chat:
                events = await chat.say(question["question"])
            tools = [event["toolName"] for event in events if event["type"] == "tool_call"]
            assert tools == ["promptx_action", "promptx_recall", "search_documents"]
            assert events[-1]["type"] == "done"
            assert events[-1]["model"] == "extractive"
            right = any(
                reference["documentName"] == question["document"]
                and question["passage"] in reference["citedText"]
                and question.get("page") in (None, reference.get("page"))
                for reference in events[-1]["references"]
            )
            if not right:
                failed_questions.append(question["question"])
    assert len(failed_questions) <= 2, failed_questions


async def test_a_statement_is_remembered_in_the_next_conversation_and_after_a_restart(tmp_path: Path) -> None:
    with serving_without_demo(tmp_path / "data") as server:
        domain = await server.domain()
        async with server.chat(await server.conversation(domain)) as chat:
            events = await chat.say("Remember that my unit has the serial number TB-7731.")
        assert "promptx_remember" in [event.get("toolName") for event in events if event["type"] == "tool_call"]
    with serving(tmp_path / "data") as server:
        async with server.chat(await server.conversation(domain)) as chat:
            events = await chat.say("What is the serial number of my unit?")
        assert "TB-7731" in text_of(events)
        recalled_events = [event for event in events if event["type"] == "retrieval" and event["source"] == "memory"]
        assert recalled_events


async def test_bad_frames_and_ids_are_answered_and_the_socket_stays_open(tmp_path: Path) -> None:
    with serving_without_demo(tmp_path / "data") as server:
        conversation = await server.conversation(await server.domain())
        async with server.chat(conversation) as chat:
            cases = [
                ("{nonsense", "VALIDATION_ERROR"),
                ('{"type":"dance"}', "VALIDATION_ERROR"),
                (f'{{"type":"message","conversationId":"{conversation}","content":"  "}}', "MESSAGE_CONTENT_REQUIRED"),
                (
                    json.dumps({"type": "message", "conversationId": conversation, "content": "x" * 10_001}),
                    "MESSAGE_TOO_LONG",
                ),
                ('{"type":"message","conversationId":"conv_nope","content":"x"}', "CONVERSATION_NOT_FOUND"),
            ]
            for frame, code in cases:
                await chat.socket.send(frame)
                answer = await chat.frame()
                assert (answer["type"], answer["code"]) == ("error", code)
                assert "turnId" not in answer
            assert (await chat.say("Hello"))[-1]["type"] == "done"
