"""The extractive model in a turn: which tools it calls when, and what it answers from their results."""

from dataclasses import replace

import pytest

from agentic_rag.base.messages import Block, Message, ToolSpec, text_block, tool_result_block, user_message
from agentic_rag.models.extractive import decide
from agentic_rag.runtime.core.definition import Persona
from agentic_rag.runtime.core.prompt import bootstrap_prompt
from agentic_rag.runtime.core.request import turn_notes
from tests.extractive.agent import (
    PROMPT,
    TOOLS,
    Conversation,
    Tool,
    answering_tool,
    failing_tool,
    make_request,
    object_schema,
    search_result,
    text_of,
)

FILTERS = search_result(
    "guide.md › Filters",
    "Filters cannot be washed.",
    "Change the filters every six months.",
    "A set costs 34 pounds.",
)
ROLE = answering_tool("You are the guide.")
NO_MEMORY = answering_tool("This role has no memories yet.")
HITS = answering_tool(FILTERS)


def make_conversation(**tools: Tool) -> Conversation:
    """A conversation with all tools; some may be replaced."""
    default_tools = {
        "promptx_action": ROLE,
        "promptx_recall": NO_MEMORY,
        "promptx_remember": answering_tool("Saved 1 memory."),
        "search_documents": HITS,
    }
    return Conversation(default_tools | tools)


def cited_texts(blocks: list[Block]) -> list[str]:
    return [citation["cited_text"] for block in blocks for citation in block.get("citations", ())]


async def test_the_first_turn_activates_and_recalls_then_searches_then_answers_with_a_citation() -> None:
    conversation = make_conversation()
    answer = await conversation.ask("How often must I change the filters?")
    assert conversation.called == [["promptx_action", "promptx_recall"], ["search_documents"]]
    assert conversation.steps[0][0]["input"] == {"role": "guide"}
    assert conversation.steps[1][0]["input"] == {"query": "How often must I change the filters?"}
    assert cited_texts(answer) == ["Change the filters every six months."]
    assert answer[1]["citations"][0] == {
        "type": "search_result_location",
        "source": "doc_1",
        "title": "guide.md › Filters",
        "search_result_index": 0,
        "start_block_index": 1,
        "end_block_index": 2,
        "cited_text": "Change the filters every six months.",
    }


async def test_a_later_turn_recalls_and_searches_at_once_without_a_second_activation() -> None:
    conversation = make_conversation()
    await conversation.ask("How often must I change the filters?")
    await conversation.ask("What does a set of filters cost?")
    assert conversation.called[2:] == [["promptx_recall", "search_documents"]]


async def test_hit_numbers_continue_over_turns_and_only_the_newest_are_quoted() -> None:
    conversation = make_conversation()
    await conversation.ask("How often must I change the filters?")
    answer = await conversation.ask("What does a set of filters cost?")
    citation = answer[1]["citations"][0]
    assert (citation["search_result_index"], citation["start_block_index"], citation["end_block_index"]) == (1, 2, 3)


async def test_a_note_at_the_start_of_a_message_reactivates_the_role_once() -> None:
    conversation = make_conversation()
    await conversation.ask("How often must I change the filters?")
    note = '[note: the role "keeper" was edited; call promptx_action with role "keeper" again]'
    await conversation.ask(note, "What does a set of filters cost?")
    assert conversation.called[2:] == [["promptx_action", "promptx_recall"], ["search_documents"]]
    assert conversation.steps[2][0]["input"] == {"role": "keeper"}
    await conversation.ask("Can filters be washed?")
    assert conversation.called[4:] == [["promptx_recall", "search_documents"]]


async def test_a_note_in_the_questions_text_block_is_not_part_of_the_question() -> None:
    conversation = make_conversation()
    await conversation.ask("[note: the server x is not available now: down]\nHow often must I change the filters?")
    assert conversation.steps[1][0]["input"] == {"query": "How often must I change the filters?"}


@pytest.mark.parametrize(
    ("prompt", "role"),
    [
        (PROMPT, "guide"),
        ('对话开始时先激活角色：调用 promptx_action，role 为 "法务"，然后按其要求行事。', "法务"),
        ('Activate your role: promptx_action with role "a.b-c_1".', "a.b-c_1"),
    ],
)
def test_the_role_is_read_from_the_prompt_in_either_language(prompt: str, role: str) -> None:
    blocks = decide(make_request([user_message("hi")], system=(text_block(prompt),)))
    assert (blocks[0]["name"], blocks[0]["input"]) == ("promptx_action", {"role": role})


@pytest.mark.parametrize("language", ["auto", "zh-CN", "de"])
def test_the_role_is_found_in_the_runtimes_prompt(language: str) -> None:
    persona = Persona(name="“Demo” role", role="guide-1", language=language, components=('Say "hello".',))
    model_request = make_request([user_message("hi")], system=bootstrap_prompt(persona, list(TOOLS)))
    assert decide(model_request)[0]["input"] == {"role": "guide-1"}


def test_the_runtimes_note_of_an_edited_role_is_followed() -> None:
    messages: list[Message] = [user_message("hi")]
    first = decide(make_request(messages, ("promptx_action",)))
    messages += [
        {"role": "assistant", "content": first},
        {"role": "user", "content": [tool_result_block(first[0]["id"], [text_block("the role")])]},
        {"role": "assistant", "content": [text_block("Hello!")]},
        {"role": "user", "content": [*turn_notes({}, "guide"), text_block("hello")]},
    ]
    second = decide(make_request(messages, ("promptx_action",)))
    assert [block["name"] for block in second] == ["promptx_action"]


async def test_without_tools_the_model_answers_that_it_cannot_search() -> None:
    conversation = Conversation({})
    assert "no documents to search" in text_of(await conversation.ask("How often must I change the filters?"))
    assert conversation.steps == []


async def test_with_tool_choice_none_it_calls_nothing_and_still_answers() -> None:
    conversation = Conversation({"promptx_action": ROLE, "search_documents": HITS}, tool_choice={"type": "none"})
    assert text_of(await conversation.ask("How often must I change the filters?")).strip()
    assert conversation.steps == []


async def test_with_parallel_calls_disabled_it_makes_one_call_a_step() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    tools = {"promptx_action": ROLE, "promptx_recall": NO_MEMORY, "search_documents": HITS}
    conversation = Conversation(tools, tool_choice=choice)
    await conversation.ask("How often must I change the filters?")
    assert conversation.called == [["promptx_action"], ["promptx_recall"], ["search_documents"]]


def test_a_tool_that_requires_an_undeclared_argument_is_not_called() -> None:
    unusual_tool: ToolSpec = {
        "name": "search_documents",
        "description": "Search.",
        "input_schema": object_schema("query", "year", year={"type": "integer"}),
    }
    blocks = decide(replace(make_request([user_message("What does a filter cost?")]), tools=(unusual_tool,)))
    assert blocks[0]["type"] == "text"


async def test_failures_are_reported_plainly_and_the_turn_continues() -> None:
    conversation = make_conversation(
        promptx_action=failing_tool("Role 'guide' is not known.\nKnown: assistant"),
        promptx_recall=failing_tool("the memory is locked"),
    )
    answer = await conversation.ask("How often must I change the filters?")
    text = text_of(answer)
    assert "My role could not be activated: Role 'guide' is not known." in text
    assert "My memory could not be read: the memory is locked" in text
    assert cited_texts(answer) == ["Change the filters every six months."]


async def test_a_failed_search_is_not_reported_as_no_result() -> None:
    conversation = make_conversation(search_documents=failing_tool("the index is owned by process 12"))
    text = text_of(await conversation.ask("过滤网多久换一次？"))
    assert "未能查找文档：the index is owned by process 12" in text
    assert "没有找到" not in text


async def test_a_failed_activation_is_retried_only_in_the_next_turn() -> None:
    conversation = make_conversation(promptx_action=failing_tool("down"))
    await conversation.ask("How often must I change the filters?")
    await conversation.ask("What does a set of filters cost?")
    assert [step.count("promptx_action") for step in conversation.called] == [1, 0, 1, 0]


async def test_hits_that_do_not_answer_are_not_quoted() -> None:
    conversation = make_conversation(
        search_documents=answering_tool(search_result("guide.md", "Sheep graze on the hill behind the mill."))
    )
    answer = await conversation.ask("How often must I change the filters?")
    assert cited_texts(answer) == []
    assert "found nothing in the documents" in text_of(answer)


async def test_a_search_without_hits_is_declined_in_the_users_language() -> None:
    conversation = make_conversation(search_documents=answering_tool("Nothing in the documents matches."))
    assert text_of(await conversation.ask("保修期是几年？")).startswith("在文档中没有找到")


async def test_removed_sentences_are_never_quoted() -> None:
    conversation = make_conversation(
        search_documents=answering_tool(search_result("[removed]", "[removed]", "[removed]"))
    )
    assert cited_texts(await conversation.ask("What was removed?")) == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Hello!", "Hello"),
        ("你好", "您好"),
        ("Thank you very much", "welcome"),
        ("谢谢！", "不客气"),
        ("Who are you?", "no language model is configured"),
        ("你是谁？", "没有配置语言模型"),
        ("what can you do?", "ANTHROPIC_API_KEY"),
    ],
)
async def test_small_talk_is_answered_without_a_search(message: str, expected: str) -> None:
    conversation = make_conversation()
    assert expected in text_of(await conversation.ask(message))
    assert conversation.called == [["promptx_action", "promptx_recall"]]


async def test_a_follow_up_searches_with_the_words_of_the_question_before_it() -> None:
    conversation = make_conversation()
    await conversation.ask("How often must I change the filters?")
    await conversation.ask("and in winter?")
    assert conversation.steps[2][1]["input"] == {"query": "and in winter? change filters"}
    await conversation.ask("What does the warranty for the motor cover?")
    assert conversation.steps[3][1]["input"] == {"query": "What does the warranty for the motor cover?"}


async def test_a_row_of_a_table_is_quoted_with_the_header_of_the_table() -> None:
    table = search_result(
        "guide.md › Levels",
        "Level | Airflow | Sound",
        "1 Away | 60 m³/h | 17 dB(A)",
        "3 Boost | 230 m³/h | 31 dB(A)",
        rows=2,
    )
    answer = await make_conversation(search_documents=answering_tool(table)).ask("How loud is boost?")
    assert cited_texts(answer) == ["3 Boost | 230 m³/h | 31 dB(A)"]
    assert "> | Level | Airflow | Sound |\n> | --- | --- | --- |\n> | 3 Boost | 230 m³/h | 31 dB(A) |" in text_of(
        answer
    )


async def test_a_japanese_question_is_not_answered_in_chinese() -> None:
    passage = search_result("規程.md", "通勤手当は月額三万円を上限とする。")
    answer = await make_conversation(search_documents=answering_tool(passage)).ask("通勤手当の上限はいくらですか")
    assert text_of(answer).startswith("The documents say:")


async def test_a_question_in_the_words_of_a_header_quotes_the_row_and_not_the_header() -> None:
    rows = ("Region | Q1 plan | Q2 plan | Note", "South | 40 | 41 | late", "North | 50 | 51 | early")
    table = search_result("sales.xlsx", *rows, rows=2)
    answer = await make_conversation(search_documents=answering_tool(table)).ask("Q2 plan of the North region")
    assert cited_texts(answer) == [rows[2]]


async def test_the_steps_after_a_colon_are_quoted_with_it_in_one_citation() -> None:
    steps = ("To reset the unit:", "1. Open the flap.", "2. Press the blue key.", "The unit is white.")
    answer = await make_conversation(search_documents=answering_tool(search_result("guide.md", *steps))).ask(
        "How do I reset the unit?"
    )
    assert cited_texts(answer) == ["".join(steps[:3])]
    assert "\n> 1. Open the flap.\n> 2. Press the blue key." in text_of(answer)


async def test_a_passage_about_the_asked_model_precedes_one_about_another_model() -> None:
    hits = [
        search_result("Unit 900 manual", "The unit weighs 118 kilograms."),
        search_result("Unit 300 manual", "The unit weighs 41 kilograms."),
    ]
    answer = await make_conversation(search_documents=answering_tool(*hits)).ask("How much does the Unit 300 weigh?")
    assert cited_texts(answer)[0] == "The unit weighs 41 kilograms."


async def test_each_part_of_a_question_about_two_things_has_its_own_passage() -> None:
    hits = [
        search_result("fees.md", "Lost cards are replaced for 4 pounds.", "The desk opens at nine."),
        search_result("keys.md", "The lockers are cleaned in May.", "A lost key costs 22 pounds.", source="doc_2"),
    ]
    answer = await make_conversation(search_documents=answering_tool(*hits)).ask(
        "Who replaces lost cards, and what costs a lost key?"
    )
    assert {citation["source"] for block in answer for citation in block.get("citations", ())} == {"doc_1", "doc_2"}
    assert "22 pounds" in text_of(answer)
    assert "4 pounds" in text_of(answer)


async def test_passages_that_the_search_calls_weak_are_not_quoted() -> None:
    note = "Searched by words and meaning. Even the best match is weak (0.12): it may not answer the question."
    answer = await make_conversation(search_documents=answering_tool(note, FILTERS)).ask(
        "How often must I change the filters?"
    )
    assert cited_texts(answer) == []
    assert "found nothing in the documents" in text_of(answer)


async def test_three_passages_at_most_are_quoted_if_only_their_meaning_fits() -> None:
    note = "Searched by words and meaning. Best match 0.60 of 1."
    hits = [
        search_result(f"guide-{number}.md", "过滤网每六个月更换一次。", source=f"doc_{number}") for number in range(4)
    ]
    answer = await make_conversation(search_documents=answering_tool(note, *hits)).ask(
        "How often must I change the filters?"
    )
    assert len(cited_texts(answer)) == 3


async def test_a_summary_quotes_the_start_of_each_document_and_names_the_need_for_a_model() -> None:
    hits = [
        search_result("a.md", "Filters keep the air clean.", "They cost 34 pounds."),
        search_result("b.md", "Fans move the air.", "They are quiet.", source="doc_2"),
        search_result("b.md", "Fans need care.", source="doc_2"),
    ]
    answer = await make_conversation(search_documents=answering_tool(*hits)).ask(
        "Summarise what the guides say about air"
    )
    assert cited_texts(answer) == [
        "Filters keep the air clean.They cost 34 pounds.",
        "Fans move the air.They are quiet.",
    ]
    assert "A summary needs a language model" in text_of(answer)


async def test_an_answer_keeps_to_the_limit_of_tokens() -> None:
    sentences = [f"Filters of kind {number} are changed every {number} months." for number in range(2, 9)]
    hits = [search_result(f"Part {number}", sentence) for number, sentence in enumerate(sentences)]
    conversation = Conversation({"search_documents": answering_tool(*hits)}, max_tokens=60)
    answer = await conversation.ask("How often are the filters changed?")
    assert len(answer) == 1


def test_an_interrupted_question_before_the_new_one_is_not_answered() -> None:
    first = decide(make_request([user_message("What does a filter cost?")], ("search_documents",)))
    result = tool_result_block(first[0]["id"], [text_block("interrupted")], is_error=True)
    messages: list[Message] = [
        user_message("What does a filter cost?"),
        {"role": "assistant", "content": first},
        {"role": "user", "content": [result, text_block("How often must I change the filters?")]},
    ]
    blocks = decide(make_request(messages, ("search_documents",)))
    assert blocks[0]["input"]["query"] == "How often must I change the filters?"
    assert blocks[0]["id"] != first[0]["id"]


def find_notices(answers: list[list[Block]]) -> list[bool]:
    """Whether each answer explains how to configure a model."""
    providers = ("ANTHROPIC_API_KEY", "OpenAI", "Ollama")
    return [all(provider in text_of(answer) for provider in providers) for answer in answers]


async def test_the_notice_about_the_missing_model_is_in_the_first_answer_only() -> None:
    conversation = make_conversation()
    questions = ("How often must I change the filters?", "What does a set of filters cost?", "过滤网多久换一次？")
    assert find_notices([await conversation.ask(question) for question in questions]) == [True, False, False]


async def test_the_notice_is_in_the_language_of_the_first_question() -> None:
    answer = text_of(await make_conversation().ask("过滤网多久换一次？"))
    assert "没有配置语言模型" in answer
    assert "language model" not in answer


async def test_the_notice_is_not_repeated_after_the_conversation_was_summarized() -> None:
    conversation = make_conversation()
    conversation.messages.append(
        user_message("[summary of the earlier conversation]\nFacts:\n- Filters cost 34 pounds.")
    )
    conversation.messages.append({"role": "assistant", "content": [text_block("Noted.")]})
    assert find_notices([await conversation.ask("How often must I change the filters?")]) == [False]


async def test_a_question_about_the_model_is_answered_even_after_the_notice() -> None:
    conversation = make_conversation()
    await conversation.ask("How often must I change the filters?")
    assert find_notices([await conversation.ask("What can you do?")]) == [True]


async def test_the_role_writer_says_that_a_role_needs_a_model_and_does_not_search() -> None:
    prompt = text_block('Activate your role: promptx_action with role "nuwa".')
    conversation = Conversation({"promptx_action": ROLE, "search_documents": HITS}, system=(prompt,))
    answer = await conversation.ask("Write a role for a gardener.")
    assert "Writing a role needs a language model" in text_of(answer)
    assert find_notices([answer]) == [True]
    assert conversation.called == [["promptx_action"]]


async def test_rows_of_a_passage_found_by_meaning_stay_a_table() -> None:
    note = "Searched by words and meaning. Best match 0.60 of 1."
    rows = ("档位 | 风量 | 备注", "一档 |  | 静音", "二档 | 120 |")
    hit = search_result("说明.md", "风量如下。", *rows, rows=2)
    answer = text_of(
        await make_conversation(search_documents=answering_tool(note, hit)).ask("How strong is the airflow?")
    )
    table = "> | 档位 | 风量 | 备注 |\n> | --- | --- | --- |\n> | 一档 |  | 静音 |\n> | 二档 | 120 |  |"
    assert f"> 风量如下。\n>\n{table}" in answer


async def test_a_bar_in_a_cell_does_not_end_the_cell() -> None:
    hit = search_result("guide.md", "Key | Meaning", "a|b | either airflow", rows=1)
    answer = text_of(
        await make_conversation(search_documents=answering_tool(hit)).ask("Which key means either airflow?")
    )
    assert r"> | a\|b | either airflow |" in answer


async def test_a_comparison_quotes_a_sentence_about_each_thing() -> None:
    hits = [
        search_result("sheffield.md", "Sick pay starts at once.", "Sheffield staff have 27 days of leave."),
        search_result("shanghai.md", "Shanghai staff have 12 days of leave.", "Lunch is free.", source="doc_2"),
    ]
    answer = await make_conversation(search_documents=answering_tool(*hits)).ask(
        "Compare the leave in Sheffield and Shanghai."
    )
    assert "27 days" in text_of(answer)
    assert "12 days" in text_of(answer)
    assert len(cited_texts(answer)) == 2


async def test_a_second_passage_is_quoted_only_if_the_search_finds_it_as_relevant() -> None:
    def hit(number: int, score: float) -> Block:
        return search_result(f"{number}.md", f"过滤网每{number}个月更换一次。", score=score)

    note = "Searched by words and meaning. Best match 0.60 of 1."
    question = "How often must I change the filters?"
    far_answer = await make_conversation(search_documents=answering_tool(note, hit(3, 0.6), hit(6, 0.2))).ask(question)
    near_answer = await make_conversation(search_documents=answering_tool(note, hit(3, 0.6), hit(6, 0.55))).ask(
        question
    )
    assert (len(cited_texts(far_answer)), len(cited_texts(near_answer))) == (1, 2)


@pytest.mark.parametrize(
    "question",
    [
        "Is there a gym in Sheffield?",
        "Is it allowed to smoke in the cabin?",
        "Was kostet das Ticket nach Hexby?",
        "Gibt es ein Fitnessstudio in Hexby?",
        "Who repairs the motor?",
    ],
)
async def test_a_complete_question_is_not_searched_with_the_words_of_the_one_before(question: str) -> None:
    conversation = make_conversation()
    await conversation.ask("How often must I change the filters?")
    await conversation.ask(question)
    assert conversation.steps[-1][-1]["input"] == {"query": question}


@pytest.mark.parametrize("question", ["Is it cheaper there?", "Gilt das auch im Winter?", "Wie oft ist es im Winter?"])
async def test_a_follow_up_question_is_searched_with_the_words_of_the_one_before(question: str) -> None:
    conversation = make_conversation()
    await conversation.ask("How often must I change the filters?")
    await conversation.ask(question)
    assert conversation.steps[-1][-1]["input"] == {"query": f"{question} change filters"}


async def test_a_summary_without_hits_still_says_that_it_needs_a_model() -> None:
    conversation = make_conversation(search_documents=answering_tool("Nothing in the documents matches."))
    assert "A summary needs a language model" in text_of(await conversation.ask("Summarise the handbook."))


async def test_a_comparison_quotes_only_passages_with_the_asked_figure() -> None:
    hits = (
        search_result("manual.pdf › Silencers", "Put a silencer on each side.", "The noise stays below 33 decibels."),
        search_result(
            "guide.md › Brisa 300", "The Brisa 300 is a unit for houses.", "The Brisa 900 is a unit for schools."
        ),
    )
    conversation = make_conversation(search_documents=answering_tool("Searched by words and meaning.", *hits))
    assert cited_texts(await conversation.ask("Compare the noise of the Brisa 300 and the Brisa 900")) == [
        "Put a silencer on each side.The noise stays below 33 decibels."
    ]


async def test_the_sentence_with_the_asked_figure_is_quoted_before_one_with_more_words() -> None:
    hit = search_result(
        "deck.pptx › Dry dock",
        "The Sorrel Tide goes to the yard at Norham with her crew.",
        "Sorrel Tide follows in January.",
    )
    answer = await make_conversation(search_documents=answering_tool(hit)).ask(
        "When does the Sorrel Tide go to the yard?"
    )
    assert "Sorrel Tide follows in January." in "".join(cited_texts(answer))


NOISE_300 = search_result(
    "guide.md › Brisa 300", "Level | Air | Sound", "Home | 140 m³/h | 22 dB(A)", "Party | 300 m³/h | 38 dB(A)", rows=2
)
NOISE_900 = search_result("manual.md › Brisa 900", "The noise of the unit is 33 decibels.", source="doc_2")


async def test_a_comparison_quotes_the_figures_of_both_things_and_all_equal_rows() -> None:
    conversation = make_conversation(
        search_documents=answering_tool("Searched by words and meaning.", NOISE_300, NOISE_900)
    )
    answer = await conversation.ask("Compare the noise of the Brisa 300 and the Brisa 900")
    rows = "".join(row["text"] for row in NOISE_300["content"][1:])
    assert {*cited_texts(answer)} == {rows, NOISE_900["content"][0]["text"]}


@pytest.mark.parametrize(
    ("question", "part", "expected"),
    [
        (
            "Compare the noise of the Brisa 300 and the Brisa 700",
            "the noise of the Brisa 700",
            "I found nothing about this: the noise of the Brisa 700\n\nThe documents say:",
        ),
        ("比较微风700的噪声和Brisa 900的噪声", "微风700的噪声", "没有找到与此相关的内容：微风700的噪声"),
    ],
)
async def test_a_part_that_the_search_does_not_match_is_named_and_not_quoted(
    question: str, part: str, expected: str
) -> None:
    note = f'Searched by words and meaning. Best match 0.74 of 1. No passage matches this part: "{part}".'
    conversation = make_conversation(search_documents=answering_tool(note, NOISE_300, NOISE_900))
    answer = await conversation.ask(question)
    assert expected in text_of(answer)
    assert len(cited_texts(answer)) <= 2
    assert ("22 dB(A)" in text_of(answer)) == ("300" in question)


async def test_two_parts_may_be_answered_by_two_sentences_of_one_passage() -> None:
    hits = (
        search_result(
            "guide.md › Filters", "Change the filters every six months.", "A set of filters costs 34 pounds."
        ),
        search_result("guide.md › Fans", "The fans are cleaned every year.", score=0.3),
    )
    answer = await make_conversation(search_documents=answering_tool(*hits)).ask(
        "When do I change the filters, and what does a set of filters cost?"
    )
    assert cited_texts(answer) == ["Change the filters every six months.", "A set of filters costs 34 pounds."]


async def test_beside_a_complete_answer_no_quote_with_fewer_words_is_shown() -> None:
    hits = [
        search_result("policy.md", "Log splitters leave with a full tank.", score=0.5),
        search_result("prices.csv", "Item | Deposit", "Log splitter | 300 €", score=0.02, rows=1, source="doc_2"),
    ]
    answer = await make_conversation(search_documents=answering_tool(*hits)).ask(
        "What is the deposit for the log splitter?"
    )
    assert cited_texts(answer) == ["Log splitter | 300 €"]


@pytest.mark.parametrize(("score", "count"), [(0.17, 1), (0.05, 0)])
async def test_an_incomplete_answer_is_not_quoted_if_the_passage_lacks_the_code(score: float, count: int) -> None:
    hit = search_result("guide.md › Filters", "A set of two costs 34 pounds in the shop.", score=score)
    answer = await make_conversation(search_documents=answering_tool(hit)).ask("What does the unit 900 cost?")
    assert len(cited_texts(answer)) == count


async def test_a_passage_whose_last_sentence_answers_in_part_is_quoted_with_what_comes_before() -> None:
    sentences = (
        "Book through the portal.",
        "Paris | 185 euros",
        "During fairs more is allowed.",
        "Presents may be claimed.",
    )
    hit = search_result("travel.md › Hotels", *sentences, score=0.21)
    answer = await make_conversation(search_documents=answering_tool(hit)).ask("How do I claim a hotel bill?")
    assert cited_texts(answer) == ["".join(sentences)]


async def test_the_documents_that_a_summary_names_are_read_from_their_beginning() -> None:
    hits = [
        search_result("fees.md (passage 4 of 9)", "A lost key costs 22 pounds.", source="doc_2"),
        search_result("handbook.md (passage 3 of 9)", "Salaries are paid on the 27th."),
    ]
    start = search_result("handbook.md (passage 1 of 9)", "Welcome to Tarnbrook.", "We are 143 people.")
    conversation = Conversation({"search_documents": answering_tool(*hits), "read_document": answering_tool(start)})
    answer = await conversation.ask("Summarise the handbook")
    assert conversation.steps[1][0]["input"] == {"document": "doc_1"}
    assert cited_texts(answer) == ["Welcome to Tarnbrook.We are 143 people."]
