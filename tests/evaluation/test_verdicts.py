"""Verdicts of answers and searches, the CSV form of cases, and the decision about a change: pure functions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import InvalidInput
from agentic_rag.directory.cases import CaseForm, Expectations, digest_of, read_csv, write_csv
from agentic_rag.evaluation.decisions import Decision, compare_runs, sign_test
from agentic_rag.evaluation.verdicts import (
    CaseOutcome,
    KnownDocuments,
    ResultSummary,
    SeenAnswer,
    SeenPassage,
    cells_overlap,
    judge_answer,
    judge_search,
    summarise,
)

LEAVE = SeenPassage("people.md", "Full-time staff have 27 days of paid leave a year.", ("Handbook", "Leave"), page=3)
PRICES = SeenPassage("prices.xlsx", "Brisa 900 | 1,250.00", (), cells="Rates!A2:D9")


def expect(**fields: Any) -> Expectations:
    return Expectations.model_validate(fields)


def judge(text: str, *citations: SeenPassage, tools: tuple[str, ...] = (), **expectations: Any) -> bool:
    answer = SeenAnswer(text, citations, tools, seconds=2.0, tokens=500)
    return judge_answer(expect(**expectations), answer).outcome is CaseOutcome.PASSED


@pytest.mark.parametrize(
    ("expected", "is_met"),
    [
        ({"document": "people.md"}, True),
        ({"document": "PEOPLE.md", "section": "leave"}, True),
        ({"document": "people.md", "page": 3, "text": "27 days of paid  leave"}, True),
        (
            {"document": "people.md", "text": "Staff have 27 days. Full-time staff have 27 days of paid leave a year."},
            True,
        ),
        ({"document": "people.md", "section": "Travel"}, False),
        ({"document": "people.md", "page": 4}, False),
        ({"document": "people.md", "text": "28 days"}, False),
        ({"document": "other.md"}, False),
        ({"document": "prices.xlsx", "cells": "Rates!B4"}, True),
        ({"document": "prices.xlsx", "cells": "Rates!B12"}, False),
    ],
)
def test_a_citation_is_the_expected_one_by_document_place_and_text(expected: dict[str, Any], is_met: bool) -> None:
    assert judge("You have 27 days.", LEAVE, PRICES, cites=[expected]) is is_met


def test_all_passages_are_needed_unless_any_is_enough() -> None:
    cites = [{"document": "people.md"}, {"document": "other.md"}]
    assert not judge("27 days", LEAVE, cites=cites)
    assert judge("27 days", LEAVE, cites=cites, need="any")


@pytest.mark.parametrize(
    ("cells", "other_cells", "overlap"),
    [
        ("A1", "A1", True),
        ("Rates!A2:D9", "Rates!D9:F12", True),
        ("Rates!A2:D9", "Costs!A2", False),
        ("'My Rates'!A2", "My Rates!A1:B5", True),
        ("A:C", "B700", True),
        ("2:9", "C10", False),
        ("AA1", "Z1:AB2", True),
    ],
)
def test_ranges_of_cells_overlap(cells: str, other_cells: str, overlap: bool) -> None:
    assert cells_overlap(cells, other_cells) is cells_overlap(other_cells, cells) is overlap


@pytest.mark.parametrize(
    ("text", "expected", "is_met"),
    [
        ("You have **29** days.", "29 days", True),
        ("It costs 1290 pounds.", "29", False),
        ("It costs 2.29 pounds.", "29", False),
        ("Ausschuss: 45 ％", "45 %", True),
        ("nothing here", ["27", "twenty-seven"], False),
        ("They have twenty-seven days.", ["27", "twenty-seven"], True),
        ("It moves 900 m³/h.", {"number": 900, "unit": "m³/h"}, True),
        ("It moves 900 m3/h at most.", {"number": 905, "unit": "m³/h", "tolerance": 5}, True),
        ("It moves 900 litres.", {"number": 900, "unit": "m³/h"}, False),
        ("It costs €1.250,50 in total.", {"number": 1250.5, "unit": "€"}, True),
        ("It costs 1,250.50 dollars.", {"number": 1250.5, "unit": "dollar"}, True),
        ("12 000 people came.", {"number": 12000}, True),
        ("Rooms 12 and 13.", {"number": 12}, True),
        ("Between 3-5 days.", {"number": 5}, True),
        ("It is −5 degrees.", {"number": -5}, True),
        ("4,5 kg", {"number": 4.5, "unit": "kg"}, True),
        ("45 kg", {"number": 4.5, "unit": "kg"}, False),
        ("年假27天", {"number": 27, "unit": "天"}, True),
    ],
)
def test_an_answer_contains_texts_and_numbers(text: str, expected: object, is_met: bool) -> None:
    assert judge(text, contains=[expected]) is is_met


@pytest.mark.parametrize(
    "text",
    [
        "I found nothing in the documents that answers this. Other words may find it.",
        "The documents don't mention what the CEO earns.",
        "I couldn't find any information about that.",
        "There is no information about this in the handbook.",
        "Dazu habe ich in den Dokumenten keine Angaben gefunden.",
        "Je n'ai trouvé aucune information à ce sujet.",
        "No encontré información sobre eso.",
        "在文档中没有找到能回答这个问题的内容，可以换个说法再问。",
        "資料には記載されていません。",
        "문서에서 찾을 수 없습니다.",
        "В документах нет информации об этом.",
    ],
)
def test_an_answer_without_citations_counts_as_declined(text: str) -> None:
    assert judge(text, declines=True)
    assert not judge(text, declines=False)
    assert not judge(text, LEAVE, declines=True)


def test_an_answer_that_claims_something_without_a_citation_does_not_decline() -> None:
    assert not judge("The CEO earns 200 000 pounds.", declines=True)
    assert judge("You have 27 days.", LEAVE, declines=False)


def test_tools_language_time_and_tokens_are_judged() -> None:
    assert judge("ok", tools=("search_documents",), calls=["search_*"], mustNotCall=["delegate"])
    assert not judge("ok", tools=("delegate",), mustNotCall=["delegate"])
    assert not judge("ok", calls=["search_documents"])
    assert judge("The days of leave are for all.", language="en")
    assert not judge("The days of leave are for all.", language="zh")
    assert judge("年假可以顺延到三月底。", language="zh-CN")
    assert not judge("年假可以顺延到三月底。", language="en")
    assert judge("27", language="en")
    assert judge("ok", maxSeconds=2, maxTokens=500)
    assert not judge("ok", maxSeconds=1)
    assert not judge("ok", maxTokens=499)
    assert not judge("It can be washed.", mustNotContain=["can be washed"])


def test_a_search_is_judged_by_the_rank_of_the_right_passage() -> None:
    hit = judge_search(expect(cites=[{"document": "people.md", "section": "Leave"}]), [PRICES, LEAVE])
    assert (hit.outcome, hit.rank) == (CaseOutcome.PASSED, 2)
    miss = judge_search(expect(cites=[{"document": "people.md", "section": "Travel"}]), [PRICES, LEAVE])
    assert (miss.outcome, miss.rank) == (CaseOutcome.FAILED, None)
    assert "people.md p. 3, Leave" in miss.checks[0].found
    assert judge_search(expect(declines=True), [LEAVE]).outcome is CaseOutcome.UNCHECKED


def test_a_case_whose_document_is_gone_is_not_failed() -> None:
    documents = KnownDocuments.of(["people.md"], ["late.md"])
    removed_verdict = documents.missing(expect(cites=[{"document": "old.md"}]))
    pending_verdict = documents.missing(expect(cites=[{"document": "late.md"}]))
    assert removed_verdict is not None
    assert (removed_verdict.outcome, removed_verdict.reason) == (CaseOutcome.GONE, "old.md is not in this domain")
    assert pending_verdict is not None
    assert pending_verdict.outcome is CaseOutcome.UNKNOWN
    cites = [{"document": "old.md"}, {"document": "people.md"}]
    assert documents.missing(expect(cites=cites, need="any")) is None


def test_repetitions_are_judged_by_their_majority() -> None:
    passed, failed = (CaseOutcome.PASSED, 1, ""), (CaseOutcome.FAILED, None, "x")
    unknown = (CaseOutcome.UNKNOWN, None, "the model is down")
    assert summarise([passed, passed, failed]).outcome is CaseOutcome.PASSED
    assert summarise([passed, failed]).outcome is CaseOutcome.FAILED
    assert summarise([unknown, passed]).outcome is CaseOutcome.PASSED
    assert summarise([unknown, unknown]).outcome is CaseOutcome.UNKNOWN


# Decisions


def summarise_outcomes(*outcomes: CaseOutcome, ranks: dict[int, int] | None = None) -> dict[str, ResultSummary]:
    return {
        f"case_{number}": ResultSummary(outcome, 0, 1, (ranks or {}).get(number, 1))
        for number, outcome in enumerate(outcomes)
    }


GOOD, BAD, GONE, UNKNOWN = CaseOutcome.PASSED, CaseOutcome.FAILED, CaseOutcome.GONE, CaseOutcome.UNKNOWN


def test_the_sign_test_is_exact() -> None:
    assert sign_test(3, 0) == 0.125
    assert sign_test(0, 0) == 1
    assert sign_test(2, 2) == pytest.approx(11 / 16)


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_sign_test_is_a_probability_that_falls_with_worse_cases(worse_count: int, better_count: int) -> None:
    assert 0 < sign_test(worse_count, better_count) <= 1
    assert sign_test(worse_count + 1, better_count) <= sign_test(worse_count, better_count)


@pytest.mark.parametrize(
    ("worse_count", "better_count", "varies", "decision"),
    [
        (0, 0, False, Decision.PASS),
        (0, 5, False, Decision.PASS),
        (1, 0, False, Decision.WARN),
        (1, 1, False, Decision.PASS),
        (2, 0, False, Decision.HOLD),
        (2, 0, True, Decision.WARN),
        (3, 0, True, Decision.HOLD),
        (3, 3, True, Decision.PASS),
        (10, 1, True, Decision.HOLD),
    ],
)
def test_a_change_is_decided_by_worse_and_better_cases(
    worse_count: int, better_count: int, varies: bool, decision: Decision
) -> None:
    same_count = 40 - worse_count - better_count
    before = summarise_outcomes(*[GOOD] * worse_count, *[BAD] * better_count, *[GOOD] * same_count)
    after = summarise_outcomes(*[BAD] * worse_count, *[GOOD] * better_count, *[GOOD] * same_count)
    comparison = compare_runs(before, after, varies=varies)
    assert comparison.decision is decision
    assert (len(comparison.worse), len(comparison.better), comparison.compared) == (worse_count, better_count, 40)


def test_the_cited_sentence_contains_the_numbers() -> None:
    comparison = compare_runs(
        summarise_outcomes(*[GOOD] * 40), summarise_outcomes(*[BAD] * 3, *[GOOD] * 37), varies=True
    )
    assert comparison.sentence == "3 of 40 worse, none better (p = 0.12)"


def test_lower_ranks_of_many_cases_are_warned_about() -> None:
    ranks = dict.fromkeys(range(10), 4)
    comparison = compare_runs(
        summarise_outcomes(*[GOOD] * 40), summarise_outcomes(*[GOOD] * 40, ranks=ranks), varies=False
    )
    assert (comparison.decision, comparison.rank_worse) == (Decision.WARN, 10)


def test_unknown_cases_are_never_worse_and_a_lost_document_is_if_the_change_removes_it() -> None:
    outage = compare_runs(summarise_outcomes(*[GOOD] * 5), summarise_outcomes(*[UNKNOWN] * 5), varies=True)
    assert (outage.decision, outage.worse, outage.unknown) == (Decision.WARN, (), 5)
    assert outage.sentence == "5 could not be judged"
    assert (
        compare_runs(summarise_outcomes(GOOD, GOOD), summarise_outcomes(GONE, GOOD), varies=False).decision
        is Decision.PASS
    )
    removal = compare_runs(
        summarise_outcomes(GOOD, GOOD), summarise_outcomes(GONE, GOOD), varies=False, removes_documents=True
    )
    assert (removal.decision, len(removal.worse)) == (Decision.HOLD, 1)


# CSV


def test_cases_are_imported_from_csv_and_bad_rows_listed() -> None:
    data = (
        "question;document;section;contains;declines;max seconds;must_not_contain\n"
        'How many days?;people.md;Leave;"29|twenty-nine; =27±1 days";;2,5;\n'
        "How many hours?;people.md;;;maybe;;\n"
        ";people.md;;;;;\n"
        "What does the CEO earn?;;;;yes;;salary; bonus\n"
        "What does the CEO earn?;;;;yes;;salary\n"
    ).replace("2,5", "2.5")
    imported = read_csv(data.encode("utf-8-sig"))
    assert [case.questions for case in imported.cases] == [("How many days?",), ("What does the CEO earn?",)]
    expectations = imported.cases[0].to_json()["expect"]
    assert expectations["contains"] == [["29", "twenty-nine"], {"number": 27, "tolerance": 1, "unit": "days"}]
    assert expectations["maxSeconds"] == 2.5
    assert [problem.path for problem in imported.problems] == ["row 3.declines", "row 4.questions", "row 5"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"question,dokument\na,b\n", "dokument"),
        (b"document,section\na,b\n", "'question' is missing"),
        (b"question,question\na,b\n", "listed twice"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"", "'question' is missing"),
    ],
)
def test_a_csv_with_a_wrong_column_is_refused_as_a_whole(data: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_csv(data)


def test_exported_cases_are_imported_as_the_same_cases() -> None:
    case = CaseForm.model_validate(
        {
            "questions": ["First?", "And then?"],
            "expect": {
                "cites": [{"document": "a,b.md", "page": 2, "text": 'He said "no"; twice'}],
                "contains": [["1", "one"], {"number": -3.5, "unit": "°C", "tolerance": 0.5}, "plain"],
                "calls": ["search_documents"],
                "language": "de",
                "maxTokens": 900,
            },
            "note": "why",
        }
    )
    imported = read_csv(write_csv([case]).encode())
    assert imported.problems == ()
    assert [imported_case.to_json() for imported_case in imported.cases] == [case.to_json()]


def test_a_case_needs_an_expectation_and_is_identified_by_its_questions() -> None:
    with pytest.raises(ValueError, match="at least one expectation"):
        CaseForm.model_validate({"questions": ["a"], "expect": {}})
    assert digest_of(["How  many?"]) == digest_of(["how many?"]) != digest_of(["how", "many?"])
