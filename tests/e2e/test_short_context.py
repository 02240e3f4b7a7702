"""Whole turns in a context of 8 000 tokens: activate, search and answer with a citation, repeatedly."""

import json
from pathlib import Path

from agentic_rag.base.json_form import Json
from agentic_rag.testing.chat_problems import ChatRules
from agentic_rag.testing.fake_api import FakeMessagesAPI, FakeService
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.steps import Step, Use, say, use
from tests.server.rig import Rig

WINDOW = 8_000
FACT = "The pump in the cellar holds 31 litres of water."
SUMMARY = {"facts": ["They spoke of pumps."], "decisions": [], "open_questions": [], "wishes": ["its volume"]}


def since_question(body: Json) -> list[str]:
    """Return the results after the user's last message."""
    tool_results: list[str] = []
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [str(block["content"]) for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "tool":
            results = [message["content"]]
        tool_results = [*tool_results, *results] if results or message["role"] != "user" else []
    return tool_results


def passage_of_fact(body: Json) -> str | None:
    """Return the number of the first passage with the fact."""
    before, fact, _ = str(body["messages"]).partition(FACT)
    return before.rpartition("[")[2].partition("]")[0] if fact else None


def answer_request(body: Json) -> Step:
    """Activate, recall and search in parallel, read on in the document, and answer from the passage with the fact."""
    messages = body["messages"]
    if "Summarise the conversation" in str([messages[0], messages[-1], body.get("system")]):
        return say(json.dumps(SUMMARY))
    steps_left = 4 - len(since_question(body))
    if steps_left > 0 and body.get("tool_choice") not in ("none", {"type": "none"}):
        role, recall = Use("promptx_action", {"role": "assistant"}), Use("promptx_recall", {"query": "pump"})
        search = Use("search_documents", {"query": "How many litres of water holds the pump in the cellar?"})
        return Step((role, recall, search)) if steps_left > 1 else use("read_document", document="pumps.md")
    number = passage_of_fact(body)
    return say(f"The pump holds 31 litres [[{number}]]." if number else "I found nothing.")


async def test_small_questions_are_answered_with_a_citation_within_8000_tokens(tmp_path: Path) -> None:
    chat = FakeChatAPI(then=answer_request, key=None, rules=ChatRules(context_window=WINDOW))
    messages = FakeMessagesAPI(then=answer_request, key=None, context_window=WINDOW)
    async with chat, messages:
        file = tmp_path / "providers.toml"
        profile = f"profiles = {{ m = {{ context_window = {WINDOW} }} }}"
        file.write_text(
            f'default = "chat:m"\n[providers.chat]\nkind = "openai"\nbase_url = "{chat.base_url}"\n{profile}\n'
            f'[providers.messages]\nkind = "anthropic"\nbase_url = "{messages.url}"\n{profile}\n'
        )
        async with Rig(tmp_path, scripted=False, providers=file) as rig:
            parts = [f"# Part {n}\n\n" + f"Pump {n} stands in room {n}, built {1900 + n}. " * 40 for n in range(20)]
            manual = "\n\n".join([f"# Pumps\n\n{FACT}", *parts]).encode()
            for api, model in ((chat, "chat:m"), (messages, "messages:m")):
                await check_turns(rig, api, model, manual)
    assert (chat.refused, messages.refused) == ([], []), "a request did not fit"


async def check_turns(rig: Rig, api: FakeService, model: str, manual: bytes) -> None:
    domain = await rig.domain(model=model)
    await rig.upload(domain, "pumps.md", manual)
    conversation = await rig.conversation(domain)
    for _ in range(4):
        calls_before = len(api.calls)
        events = await rig.say(conversation, "How much water does the pump in the cellar hold?")
        assert events[-1]["type"] == "done", events[-1]
        assert [reference["citedText"].strip() for reference in events[-1]["references"]] == [FACT]
        assert len(api.calls) - calls_before <= 6, "it turns in circles"
