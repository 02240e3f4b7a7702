"""Fusion of two ranked lists, and the calibration of the dense one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.retriever.calibration import (
    FULL_TRUST,
    NO_TRUST,
    UNMEASURED,
    dense_relevance,
    dense_weight,
    is_stale,
    measured_competence,
    script,
    split,
)
from mcp_servers.retriever.fusion import Ranking, fuse
from mcp_servers.retriever.index import Calibration, FusionMethod, Scored

LEGS = st.lists(st.floats(-10, 10, allow_nan=False), max_size=20).map(
    lambda scores: [Scored(str(at), score) for at, score in enumerate(sorted(scores, reverse=True))]
)
METHODS = st.sampled_from(["dbsf", "rrf"])


def leg(**scores: float) -> list[Scored]:
    return [Scored(name, score) for name, score in sorted(scores.items(), key=lambda item: -item[1])]


def order(fused: list[Scored]) -> list[str]:
    return [each.chunk_id for each in fused]


@given(LEGS, LEGS, METHODS)
def test_fusion_keeps_every_candidate_once_best_first(
    one: list[Scored], other: list[Scored], method: FusionMethod
) -> None:
    fused = fuse([Ranking(1.0, one), Ranking(0.5, other)], method)
    assert sorted(order(fused)) == sorted({each.chunk_id for each in one + other})
    assert [each.score for each in fused] == sorted((each.score for each in fused), reverse=True)
    assert all(each.score >= 0 for each in fused)


@given(LEGS, LEGS, METHODS)
def test_a_leg_of_no_weight_changes_no_order(one: list[Scored], other: list[Scored], method: FusionMethod) -> None:
    known = {each.chunk_id for each in one}
    assert [name for name in order(fuse([Ranking(1.0, one), Ranking(0.0, other)], method)) if name in known] == order(
        fuse([Ranking(1.0, one)], method)
    )


@pytest.mark.parametrize("method", ["dbsf", "rrf"])
def test_a_hit_of_both_legs_ranks_above_a_hit_of_one(method: FusionMethod) -> None:
    lexical, dense = leg(a=9, both=8, c=1, d=1), leg(x=0.9, both=0.8, y=0.1, z=0.1)
    assert order(fuse([Ranking(1.0, lexical), Ranking(1.0, dense)], method))[0] == "both"


def test_a_hit_below_one_legs_limit_counts_with_its_score() -> None:
    lexical, dense = leg(a=9, b=8, c=2), leg(x=0.9, a=0.85, y=0.3)
    plain = fuse([Ranking(1.0, lexical), Ranking(1.0, dense)])
    completed = fuse([Ranking(1.0, lexical, leg(x=1.9)), Ranking(1.0, dense)])
    assert dict(completed)["x"] > dict(plain)["x"]
    assert dict(completed)["b"] == dict(plain)["b"]


def test_equal_scores_or_a_single_candidate_are_in_the_middle() -> None:
    assert fuse([Ranking(1.0, leg(a=3))]) == [Scored("a", 0.5)]
    assert {each.score for each in fuse([Ranking(1.0, leg(a=3, b=3))])} == {0.5}
    assert fuse([Ranking(1.0, []), Ranking(1.0, [])]) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("What is leave?", "latin"),
        ("年假有多少天", "cjk"),
        ("iPhone 的保修期", "cjk"),
        ("使用 kubernetes configuration templates", "latin"),
        ("Сколько дней отпуска", "cyrillic"),
        ("كم يوما", "arabic"),
        ("छुट्टी कितने दिन", "indic"),
        ("12 / 34", "other"),
    ],
)
def test_the_script_of_a_question_is_its_most_used_one(text: str, name: str) -> None:
    assert script(text) == name


def test_the_dense_leg_is_weighted_by_its_competence_in_the_questions_script() -> None:
    halfway = (FULL_TRUST + NO_TRUST) / 2
    calibration = Calibration({"latin": 0.95, "cjk": 0.31, "cyrillic": halfway}, 0.3, 0.9, 100)
    assert dense_weight(calibration, "days of leave") == 1.0
    assert dense_weight(calibration, "年假有多少天") == 0.0
    assert dense_weight(calibration, "Сколько дней") == pytest.approx(0.5)


def test_an_unmeasured_script_counts_like_the_measured_ones() -> None:
    assert dense_weight(Calibration({"cjk": 0.31}, 0.3, 0.9, 100), "days of leave") == 0.0
    assert dense_weight(Calibration({"cjk": 0.95}, 0.3, 0.9, 100), "days of leave") == 1.0
    both = Calibration({"cjk": 2 * NO_TRUST - FULL_TRUST, "cyrillic": FULL_TRUST}, 0.3, 0.9, 100)
    assert dense_weight(both, "days of leave") == 0.0
    assert dense_weight(Calibration({}, 0.3, 0.9, 3), "days of leave") == UNMEASURED
    assert dense_weight(None, "days of leave") == UNMEASURED


def identity(size: int, right: float, wrong: float) -> list[list[float]]:
    return [[right if at == own else wrong for at in range(size)] for own in range(size)]


def test_competence_is_the_share_of_bm25_hits_found_by_the_dense_leg() -> None:
    found, guessed, missed = identity(24, 1.0, 0.0), identity(24, 0.5, 0.5), identity(24, 0.0, 1.0)
    half = [*found[:12], *guessed[12:]]
    assert measured_competence(found, found) == 1.0
    assert measured_competence(found, half) == pytest.approx(0.5)
    assert measured_competence(found, guessed) == 0.0
    assert measured_competence(found, missed) == 0.0
    assert measured_competence(half, found) == 1.0
    assert measured_competence(guessed, found) == 1.0, "words alone find nothing here"
    assert measured_competence(guessed, guessed) is None, "nothing can be told apart"
    assert measured_competence(identity(2, 1.0, 0.0), identity(2, 1.0, 0.0)) is None, "that may be luck"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("员工每年享有十五天带薪年假", ("有十", "员工每年享 五天带薪年假")),
        ("One two three four five six.", ("three", "One two   four five six.")),
        ("iPhone 的保修期", ("保", "iPhone 的 修期")),
        ("Two words", ("Two", "  words")),
        ("word", None),
        ("。", None),
    ],
)
def test_a_question_and_its_expected_passage_share_no_text(text: str, parts: tuple[str, str] | None) -> None:
    assert split(text) == parts


def test_cosines_become_relevance_between_noise_and_match() -> None:
    calibration = Calibration({}, 0.25, 0.75, 100)
    assert [dense_relevance(calibration, cosine) for cosine in (0.1, 0.25, 0.5, 0.9)] == [0.0, 0.0, 0.5, 1.0]
    assert dense_relevance(Calibration({}, 0.5, 0.5, 1), 0.4) == 0.4


def test_a_collection_is_measured_again_when_it_has_doubled() -> None:
    assert is_stale(None, 1)
    assert not is_stale(Calibration({}, 0, 1, 100), 199)
    assert is_stale(Calibration({}, 0, 1, 100), 200)
    assert [is_stale(Calibration({}, 0, 1, 100), points, exactly=True) for points in (99, 100, 101)] == [
        True,
        False,
        True,
    ]
