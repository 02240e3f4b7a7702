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


def make_leg(**scores: float) -> list[Scored]:
    return [Scored(name, score) for name, score in sorted(scores.items(), key=lambda item: -item[1])]


def ids_of(candidates: list[Scored]) -> list[str]:
    return [candidate.chunk_id for candidate in candidates]


@given(LEGS, LEGS, METHODS)
def test_fusion_keeps_every_candidate_once_best_first(
    first_leg: list[Scored], second_leg: list[Scored], method: FusionMethod
) -> None:
    fused = fuse([Ranking(1.0, first_leg), Ranking(0.5, second_leg)], method)
    assert sorted(ids_of(fused)) == sorted({candidate.chunk_id for candidate in first_leg + second_leg})
    assert [candidate.score for candidate in fused] == sorted((candidate.score for candidate in fused), reverse=True)
    assert all(candidate.score >= 0 for candidate in fused)


@given(LEGS, LEGS, METHODS)
def test_a_leg_of_no_weight_changes_no_order(
    first_leg: list[Scored], second_leg: list[Scored], method: FusionMethod
) -> None:
    first_ids = {candidate.chunk_id for candidate in first_leg}
    assert [
        name for name in ids_of(fuse([Ranking(1.0, first_leg), Ranking(0.0, second_leg)], method)) if name in first_ids
    ] == ids_of(fuse([Ranking(1.0, first_leg)], method))


@pytest.mark.parametrize("method", ["dbsf", "rrf"])
def test_a_hit_of_both_legs_ranks_above_a_hit_of_one(method: FusionMethod) -> None:
    lexical, dense = make_leg(a=9, both=8, c=1, d=1), make_leg(x=0.9, both=0.8, y=0.1, z=0.1)
    assert ids_of(fuse([Ranking(1.0, lexical), Ranking(1.0, dense)], method))[0] == "both"


def test_a_hit_below_one_legs_limit_counts_with_its_score() -> None:
    lexical, dense = make_leg(a=9, b=8, c=2), make_leg(x=0.9, a=0.85, y=0.3)
    plain_order = fuse([Ranking(1.0, lexical), Ranking(1.0, dense)])
    completed_order = fuse([Ranking(1.0, lexical, make_leg(x=1.9)), Ranking(1.0, dense)])
    assert dict(completed_order)["x"] > dict(plain_order)["x"]
    assert dict(completed_order)["b"] == dict(plain_order)["b"]


def test_equal_scores_or_a_single_candidate_are_in_the_middle() -> None:
    assert fuse([Ranking(1.0, make_leg(a=3))]) == [Scored("a", 0.5)]
    assert {candidate.score for candidate in fuse([Ranking(1.0, make_leg(a=3, b=3))])} == {0.5}
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
    two_scripts = Calibration({"cjk": 2 * NO_TRUST - FULL_TRUST, "cyrillic": FULL_TRUST}, 0.3, 0.9, 100)
    assert dense_weight(two_scripts, "days of leave") == 0.0
    assert dense_weight(Calibration({}, 0.3, 0.9, 3), "days of leave") == UNMEASURED
    assert dense_weight(None, "days of leave") == UNMEASURED


def score_matrix(size: int, right: float, wrong: float) -> list[list[float]]:
    return [[right if column == row else wrong for column in range(size)] for row in range(size)]


def test_competence_is_the_share_of_bm25_hits_found_by_the_dense_leg() -> None:
    hits, guesses, misses = score_matrix(24, 1.0, 0.0), score_matrix(24, 0.5, 0.5), score_matrix(24, 0.0, 1.0)
    half_hits = [*hits[:12], *guesses[12:]]
    assert measured_competence(hits, hits) == 1.0
    assert measured_competence(hits, half_hits) == pytest.approx(0.5)
    assert measured_competence(hits, guesses) == 0.0
    assert measured_competence(hits, misses) == 0.0
    assert measured_competence(half_hits, hits) == 1.0
    assert measured_competence(guesses, hits) == 1.0, "words alone find nothing here"
    assert measured_competence(guesses, guesses) is None, "nothing can be told apart"
    assert measured_competence(score_matrix(2, 1.0, 0.0), score_matrix(2, 1.0, 0.0)) is None, "that may be luck"


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
