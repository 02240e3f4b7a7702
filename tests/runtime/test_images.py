"""Cached images and sizes equal freshly counted and hashed ones."""

from dataclasses import replace

from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.base.messages import text_block, user_message
from agentic_rag.runtime.core.calls import Policy
from agentic_rag.runtime.core.definition import MAX_KNOWN, Image, Images
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.window import TranscriptEntry, message_tokens
from agentic_rag.store.sessions import SessionLabels
from tests.runtime.harness import definition, info


def test_an_unchanged_definition_gives_the_same_prompt_image() -> None:
    images = Images()
    image = images.of(definition())
    assert images.of(definition()) is image
    assert image.id == Image.of(definition()).id
    assert image.content == definition().to_json()


def test_a_changed_definition_gives_another_image_and_so_does_the_one_before_it() -> None:
    images = Images()
    original, changed = definition(), definition(max_tokens=77)
    ids = [images.of(settings).id for settings in (original, changed, original)]
    assert ids == [Image.of(settings).id for settings in (original, changed, original)]
    assert ids[0] != ids[1]


def test_rules_in_another_order_give_the_same_image() -> None:
    deny_first = definition(tool_policy={"*": "deny", "fs__write": "allow"})
    allow_first = definition(tool_policy={"fs__write": "allow", "*": "deny"})
    assert Image.of(deny_first).id == Image.of(allow_first).id
    tool = info("fs__write")
    verdicts = [
        Policy(settings.tool_policy, effects_allowed=False).ruling(tool) for settings in (deny_first, allow_first)
    ]
    assert verdicts == [None, None]


def test_images_of_many_users_are_correct_beyond_the_cache_limit() -> None:
    images, base = Images(), definition()
    definitions = [replace(base, binding=replace(base.binding, user=f"user_{n}")) for n in range(MAX_KNOWN + 3)]
    ids = [images.of(settings).id for settings in definitions]
    assert len(set(ids)) == len(definitions)
    assert [images.of(settings).id for settings in definitions] == ids


def test_a_changed_message_is_counted_again() -> None:
    messages = [user_message("one"), user_message("two " * 50)]
    session = Transcript(
        SessionId("sess_1"),
        SessionLabels(),
        entries=[
            TranscriptEntry(seq, TurnId("turn_1"), 0, MessageId("msg_1"), message)
            for seq, message in enumerate(messages)
        ],
    )
    assert session.tokens(7) == 7 + sum(map(message_tokens, messages))
    session.rewrite(session.entries[0], [text_block("a longer note " * 20), *messages[0]["content"]])
    messages = session.window()
    assert session.tokens(7) == 7 + sum(map(message_tokens, messages))
    assert session.turn_sizes()[0].tokens == sum(map(message_tokens, messages))
