"""The pure core of memory: keywords, network, centres, spreading, ranking, mindmap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.promptx.network import (
    MAX_MAP_NODES,
    MODES,
    TYPE_QUOTA,
    Network,
    Trace,
    choose_centres,
    collect,
    keywords,
    mindmap,
    object_order,
    rank,
    spread,
)

from .conftest import PATIENT

WORDS = st.sampled_from(["mind", "a", "b", "c", "d", "10", "9", "合同", "期限", "e", "f", "g", "h"])
SCHEMAS = st.lists(st.lists(WORDS, min_size=2, max_size=6), max_size=30)


def network_of(schemas: list[list[str]]) -> Network:
    network = Network()
    for number, words in enumerate(schemas):
        network.learn(f"{number:03}", words, 1_000_000 + number, 0.5)
    return network


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("a b  c", ["a", "b", "c"]),
        ("long cue - b - c d", ["long cue", "b", "c d"]),
        ("one line\n two - lines \r\n\n", ["one line", "two - lines"]),
        ("tab\tstays together", ["tab\tstays", "together"]),
        ("   ", []),
    ],
)
def test_a_schema_is_split_by_the_strongest_separator_it_contains(schema: str, expected: list[str]) -> None:
    assert keywords(schema) == expected


def test_integer_like_keys_come_first_in_ascending_order_like_in_javascript() -> None:
    words = ["b", "10", "007", "9", "-1", "4294967294", "4294967295", "1.5", "0", "٣", "a", "9" * 5_000]
    ordered = ["0", "9", "10", "4294967294", "b", "007", "-1", "4294967295", "1.5", "٣", "a", "9" * 5_000]
    assert object_order(words) == ordered


def test_an_edge_has_the_weight_of_the_newest_engram_and_keeps_its_position() -> None:
    network = Network()
    network.learn("1", ["a", "b", "c"], 1000, 0.5)
    network.learn("2", ["a", "d"], 2000, 1.0)
    network.learn("3", ["a", "b"], 3000, 0.0)
    assert network.edges["a"] == {"b": 3000 * 0.8, "d": 2000.0}
    assert list(network.edges["a"]) == ["b", "d"]
    assert network.edges["b"] == {"c": 1000 * 0.9 * 0.5}
    assert [network.engrams_of(word) for word in "abcde"] == [["1", "2", "3"], ["1", "3"], ["1"], ["2"], []]


def test_the_word_with_most_edges_is_the_centre_and_the_first_wins_a_tie() -> None:
    network = network_of([["b", "a"], ["b", "c"], ["d", "a"], ["d", "c"], ["a", "c"]])
    assert choose_centres(network, "x a d b") == (["d"], None)


def test_a_list_makes_every_known_word_a_centre() -> None:
    network = network_of([["a", "b"], ["c", "d"]])
    assert choose_centres(network, ["d", "x", "a"]) == (["d", "a"], None)
    assert choose_centres(network, ["x"]) == (["a", "c"], "dmn")


def test_a_cue_without_edges_falls_back_to_the_hubs_and_is_marked() -> None:
    network = network_of([["a", "b"]])
    assert choose_centres(network, "b") == (["a"], "dmn")


def test_an_unsegmented_sentence_finds_the_longest_cues_it_contains() -> None:
    network = network_of([["合同", "期限"], ["合同期限", "违约金"], ["违约", "金"]])
    assert choose_centres(network, "请问合同期限和违约金是什么") == (["合同期限", "违约金"], "contained")


@pytest.mark.parametrize("query", [None, "null"])
def test_a_recall_never_starts_at_the_fifteen_largest_hubs(query: str | None) -> None:
    network = network_of([["7", "a"], *([f"w{n:02}", "x"] for n in range(20)), ["w19", "y"]])
    assert choose_centres(network, query) == (["w19", "7", *(f"w{n:02}" for n in range(13))], None)


@PATIENT
@given(SCHEMAS, st.sampled_from(sorted(MODES)), st.one_of(st.none(), WORDS, st.lists(WORDS, max_size=4)))
def test_activated_cues_are_known_connected_and_drawn_once(
    schemas: list[list[str]], mode: str, query: str | list[str] | None
) -> None:
    network = network_of(schemas)
    centres, _ = choose_centres(network, query)
    mind = spread(network, centres, MODES[mode])
    assert mind.activated[0] == "mind"
    assert set(mind.activated) - {"mind"} <= set(network.edges)
    connected_words = {"mind"}
    for edge in mind.edges:
        assert edge.source in connected_words
        connected_words.add(edge.target)
    assert connected_words == set(mind.activated)
    lines = mindmap(mind)
    map_words = [line.strip() for line in lines[2:]]
    assert len(map_words) == len(set(map_words)) < MAX_MAP_NODES
    assert set(map_words) <= set(mind.activated)


def test_a_map_stops_at_a_hundred_nodes_and_at_the_sixth_level() -> None:
    wide_network = network_of([[f"w{n}", f"x{n}"] for n in range(300)])
    mind = spread(wide_network, [f"w{n}" for n in range(300)], MODES["balanced"])
    assert len(mindmap(mind)) == MAX_MAP_NODES + 1
    chain_network = network_of([[f"w{n}", f"w{n + 1}"] for n in range(12)])
    mind = spread(chain_network, ["w0"], MODES["creative"])
    assert mindmap(mind)[-1] == "              w5"


@PATIENT
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.tuples(st.sampled_from(["ATOMIC", "LINK", "PATTERN"]), st.floats(0, 1), st.integers(0, 10**13)),
    ),
    st.integers(1, 80),
)
def test_ranking_returns_each_engram_once_and_respects_limit_and_quotas(traces: dict[str, Trace], limit: int) -> None:
    chosen = rank(dict.fromkeys(traces, 1), traces, limit, 10**12)
    assert len(chosen) == len(set(chosen)) == min(limit, len(traces))
    for kind, quota in TYPE_QUOTA.items():
        others_left = any(traces[key][0] != kind for key in traces.keys() - set(chosen))
        if sum(traces[key][0] == kind for key in chosen) > quota:
            assert not others_left or len(chosen) == limit


def test_the_first_cue_that_has_an_engram_decides_its_depth() -> None:
    network = network_of([["a", "b"], ["b", "c"]])
    mind = spread(network, ["a"], MODES["creative"])
    assert collect(network, mind) == {"000": 1, "001": mind.depth["b"]}
