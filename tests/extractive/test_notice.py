"""The notice about the missing language model, as clients of the server receive it."""

from pathlib import Path

import pytest

from tests.server.rig import Rig

NOTES = (
    "# Leave\n\nFull-time staff have 27 days of leave a year.\n\n# Laptops\n\nReport a stolen laptop within one hour.\n"
)


@pytest.mark.parametrize(
    ("questions", "notice"),
    [
        (
            ("How many days of leave do I have?", "When must I report a stolen laptop?"),
            "no language model is configured",
        ),
        pytest.param(
            ("年假有几天？", "When must I report a stolen laptop?"),
            "没有配置语言模型",
            marks=pytest.mark.nightly("test_conversation.py checks the Chinese notice every time"),
        ),
    ],
)
async def test_every_client_gets_the_notice_once_in_the_first_answer(
    tmp_path: Path, questions: tuple[str, str], notice: str
) -> None:
    async with Rig(tmp_path, scripted=False) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "notes.md", NOTES.encode())
        await rig.settled(domain, document["id"])
        conversation = await rig.conversation(domain)
        turns = [await rig.say(conversation, question) for question in questions]
        assert [event for events in turns for event in events if event["type"] == "notice"] == []
        streamed_texts = ["".join(event["text"] for event in events if event["type"] == "text") for events in turns]
        assert [text.count(notice) for text in streamed_texts] == [1, 0]
        assert all(provider in streamed_texts[0] for provider in ("ANTHROPIC_API_KEY", "OpenAI", "Ollama"))
        assert "one hour" in streamed_texts[1]
        messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        answers = [message for message in messages if message["role"] == "assistant"]
        assert sorted(message["content"].count(notice) for message in answers) == [0, 1]
