"""The relevance of a passage: a probability that rises with the evidence for it."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.retriever.coverage import Coverage
from mcp_servers.retriever.relevance import Match, probabilities

SHARES = st.floats(0, 1)
MATCHES = st.lists(
    st.builds(
        Match,
        SHARES,
        st.none() | SHARES,
        st.sampled_from(["a", "b", "c", "d", "e", None]),
        st.integers(0, 3),
        lacks_code=st.booleans(),
        has_code=st.booleans(),
        coverage=st.none() | st.builds(Coverage, SHARES, SHARES),
    ),
    max_size=12,
)


@given(MATCHES, SHARES)
def test_every_match_gets_a_probability(matches: list[Match], weight: float) -> None:
    scores = probabilities(matches, weight)
    assert len(scores) == len(matches)
    assert all(0 < score < 1 for score in scores)


@given(MATCHES.filter(bool), SHARES, SHARES, SHARES, SHARES, SHARES)
def test_relevance_is_monotonic_in_matched_words_and_similarity(
    matches: list[Match], match_share: float, closeness: float, held_share: float, lacking_share: float, weight: float
) -> None:
    first = matches[0]
    improved = first._replace(share=max(first.share, match_share))
    if first.closeness is not None:
        improved = improved._replace(closeness=max(first.closeness, closeness))
    if first.coverage is not None:
        coverage = first.coverage
        improved = improved._replace(
            coverage=Coverage(max(coverage.held, held_share), min(coverage.lacking, lacking_share))
        )
    before, after = (probabilities([match, *matches[1:]], weight)[0] for match in (first, improved))
    assert after >= before - 1e-12


def test_a_passage_with_a_distinct_score_is_more_relevant_than_one_among_equals() -> None:
    distinct = [Match(0.4, None, "a")] + [Match(0.1, None, name) for name in "bcde"]
    equals = [Match(0.4, None, name) for name in "abcde"]
    assert probabilities(distinct)[0] > 0.7 > 0.4 > probabilities(equals)[0]


def test_adjacent_passages_of_one_document_do_not_compete() -> None:
    weak_matches = [Match(0.1, None, name) for name in "bcde"]
    single, adjacent = (
        [Match(0.4, None, "a"), *weak_matches],
        [Match(0.4, None, "a"), Match(0.4, None, "a"), *weak_matches],
    )
    assert probabilities(single)[0] == probabilities(adjacent)[0]


def test_in_a_collection_of_one_document_its_sections_are_compared() -> None:
    sections = [Match(0.15, None, "a", number) for number in range(5)]
    assert probabilities(sections)[0] < 0.3


def test_closeness_is_weighted_by_the_dense_legs_competence() -> None:
    matches = [Match(0.2, 0.9, "a"), *(Match(0.2, 0.1, name) for name in "bcde")]
    scores = [probabilities(matches, weight)[0] for weight in (0.0, 0.5, 1.0)]
    assert scores == sorted(scores)
    assert scores[0] < 0.3 < 0.7 < scores[2]


def test_a_passage_without_the_asked_thing_is_much_less_relevant() -> None:
    answer = [Match(0.6, 0.4, "a", coverage=Coverage(0.9, 0.0))]
    near_miss = [Match(0.6, 0.4, "a", coverage=Coverage(0.5, 0.5))]
    assert probabilities(near_miss, 1.0)[0] < 0.2 < 0.7 < probabilities(answer, 1.0)[0]


def test_a_passage_without_the_asked_form_of_answer_is_much_less_relevant() -> None:
    answer = Match(0.6, 0.4, "a", coverage=Coverage(0.9, 0.0))
    for weight in (0.0, 1.0):
        able, unable = (probabilities([answer._replace(lacks_form=lacks)], weight)[0] for lacks in (False, True))
        assert unable < able
    assert unable < 0.2 < 0.7 < able


def test_similarity_alone_makes_a_paraphrase_relevant() -> None:
    matches = [Match(0.0, 0.6, "a", coverage=Coverage(0.0, 0.3)), Match(0.2, 0.1, "b", coverage=Coverage(0.3, 0.3))]
    assert probabilities(matches, 1.0)[0] > 0.4 > 0.1 > probabilities(matches, 1.0)[1]


def test_a_passage_in_another_language_ranks_below_one_with_the_questions_words() -> None:
    match = Match(0.0, 0.4, "a")
    score_alone = probabilities([match], 1.0)[0]
    score_beside = probabilities([match, Match(0.5, 0.3, "b", coverage=Coverage(0.9, 0.1))], 1.0)[0]
    assert score_beside < score_alone / 2


def test_a_passage_in_another_language_that_is_close_by_chance_is_weak() -> None:
    chance, match = (probabilities([Match(0.0, closeness, "a")], 1.0)[0] for closeness in (0.12, 0.3))
    assert chance < 0.1 < 0.2 < match


def test_a_missing_name_counts_against_a_passage_in_another_script() -> None:
    passage = Match(0.0, 0.4, "a")
    assert probabilities([passage._replace(lacks_name=True)], 1.0)[0] < probabilities([passage], 1.0)[0] / 1.5


def test_a_row_in_another_language_with_the_code_of_the_question_is_relevant() -> None:
    row = Match(0.2, 0.1, "a", has_code=True)
    assert probabilities([row], 1.0)[0] >= 0.5
    assert probabilities([row._replace(has_code=False, lacks_code=True)], 1.0)[0] <= 0.05
