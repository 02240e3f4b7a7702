"""The embedded index's shards: small ones are compacted, large ones are not, and search results stay the same."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
import qdrant_edge as engine
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_servers.retriever.chunking import Chunk, TextSpan
from mcp_servers.retriever.edge_collections import EdgeCollections, Steps
from mcp_servers.retriever.edge_shard import SMALL, SMALL_BYTES
from mcp_servers.retriever.edge_store import ALWAYS_OPEN, MAX_OPEN, MAX_POINTS, too_many
from mcp_servers.retriever.errors import IndexDamaged
from mcp_servers.retriever.index import Dense, LegResults, Selection, split_name
from mcp_servers.retriever.process_index import open_process_index

FIELDS = {"document", "heading_path", "ordinal"}


def run_steps(steps: Steps) -> None:
    for _ in steps:
        pass


@contextmanager
def open_collections(folder: Path, max_open: int = MAX_OPEN) -> Iterator[EdgeCollections]:
    index = EdgeCollections(folder, max_open)
    try:
        yield index
    finally:
        index.close()


def chunk(document: str, ordinal: int, text: str = "pumps and valves") -> Chunk:
    number = hash_of(document) * 10_000 + ordinal + 1
    heading = "Even" if ordinal % 2 == 0 else "Odd"
    spans = (TextSpan(0, len(text)),)
    name = f"{document}.md"
    return Chunk(str(UUID(int=number)), document, name, ordinal, (heading,), None, None, text, 0, len(text), spans)


def hash_of(document: str) -> int:
    return int.from_bytes(document.encode())


def vectors(count: int, dimension: int = 8) -> Dense:
    numbers = random.Random(count)
    return Dense("e", [[numbers.uniform(-1, 1) for _ in range(dimension)] for _ in range(count)])


def indexed_fields(folder: Path, collection: str) -> set[str]:
    """Return the payload fields with an index in a closed folder. Opens the folder with the engine alone."""
    shard = engine.EdgeShard.load(str(folder / collection / "1"))
    fields = {*shard.info().payload_schema}
    shard.close()
    return fields


def storage_kind(folder: Path, collection: str) -> str:
    (segment,) = (folder / collection).rglob("segment.json")
    return "in advance" if "InRamChunkedMmap" in segment.read_text() else "when needed"


def convert_to_earlier_form(folder: Path, collection: str) -> None:
    """Convert a closed collection to the form of earlier versions."""
    shard = engine.EdgeShard.load(str(folder / collection / "1"))
    for field in ("document", "heading_path"):
        shard.update(engine.UpdateOperation.create_field_index(field, engine.PayloadSchemaType.Keyword))
    ranges = engine.IntegerIndexParams(lookup=False, range=True)
    shard.update(engine.UpdateOperation.create_field_index("ordinal", ranges))
    shard.close()
    (segment,) = (folder / collection).rglob("segment.json")
    segment.write_text(segment.read_text().replace('"ChunkedMmap"', '"InRamChunkedMmap"'))


def answers_of(index: EdgeCollections, collection: str) -> Sequence[object]:
    """Return the answers to all kinds of questions about a collection."""
    selections = [Selection(), Selection(document="a"), Selection(heading="Odd"), Selection(("a", "b"), heading="Even")]
    legs: list[LegResults] = [
        index.search_legs(collection, "pumps", vectors(1).vectors[0], selection, limit=10_000)
        for selection in selections
    ]
    hits = [
        ({(hit.chunk_id, round(hit.score, 4)) for hit in leg.lexical}, {hit.chunk_id for hit in leg.dense})
        for leg in legs
    ]
    return [
        hits,
        [index.document_names(collection, selection) for selection in selections],
        [index.count(collection, document) for document in (None, "a", "b", "c")],
        [index.chunks(collection, "a", offset, 7) for offset in (0, 3, 500)],
    ]


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc"), st.sampled_from([1, 40, SMALL, SMALL + 1])),
            st.tuples(st.just("delete"), st.sampled_from("abc"), st.just(0)),
            st.tuples(st.just("reopen"), st.just(""), st.just(0)),
        ),
        max_size=6,
    )
)
def test_searches_are_equal_with_and_without_the_indexes_of_a_collection(
    actions: list[tuple[str, str, int]],
) -> None:
    stored_chunks: dict[str, list[Chunk]] = {}
    with tempfile.TemporaryDirectory() as folder:
        index = EdgeCollections(Path(folder))
        try:
            for action, document, count in actions:
                if action == "add":
                    stored_chunks[document] = max(
                        [chunk(document, n) for n in range(count)], stored_chunks.get(document, []), key=len
                    )  # storing the same chunks again adds none
                    run_steps(index.upsert("law", [chunk(document, n) for n in range(count)], vectors(count)))
                elif action == "delete":
                    stored_chunks.pop(document, None)
                    run_steps(index.delete_document("law", document))
                else:
                    index.close()
                    index = EdgeCollections(Path(folder))
                assert index.count("law") == sum(map(len, stored_chunks.values()))
                for document_id in "abc":
                    chunks = stored_chunks.get(document_id, [])
                    assert index.count("law", document_id) == len(chunks)
                    assert index.chunks("law", document_id, 1, 5) == chunks[1:6]
                    selection = Selection((document_id,), heading="Odd")
                    assert index.document_names("law", selection) == ([f"{document_id}.md"] if len(chunks) > 1 else [])
                    legs = index.search_legs("law", "pumps", vectors(1).vectors[0], selection, limit=10_000)
                    odd_chunks = {stored_chunk.chunk_id for stored_chunk in chunks if stored_chunk.ordinal % 2}
                    assert {hit.chunk_id for hit in legs.lexical} == {hit.chunk_id for hit in legs.dense} == odd_chunks
        finally:
            index.close()


def test_a_collection_gets_indexes_only_after_it_has_grown(tmp_path: Path) -> None:
    chunks = [chunk("a", n) for n in range(SMALL + 1)]
    with open_collections(tmp_path) as index:
        run_steps(index.upsert("law", chunks[:SMALL]))
    assert indexed_fields(tmp_path, "law") == set()
    with open_collections(tmp_path) as index:
        run_steps(index.upsert("law", chunks[SMALL:]))
    assert indexed_fields(tmp_path, "law") == FIELDS
    with open_collections(tmp_path) as index:
        run_steps(index.delete_document("law", "a"))
        run_steps(index.upsert("law", chunks[:3]))
    with open_collections(tmp_path) as index:
        assert index.chunks("law", "a") == chunks[:3]
    assert indexed_fields(tmp_path, "law") == set()


def test_a_crash_during_index_creation_is_repaired_at_the_next_opening(tmp_path: Path) -> None:
    chunks = [chunk("a", n) for n in range(SMALL + 40)]
    with open_collections(tmp_path) as index:
        steps = index.upsert("law", chunks)
        while index.count("law") < len(chunks):
            next(steps)
        next(steps)  # one of the three indexes
    assert len(indexed_fields(tmp_path, "law")) == 1
    with open_collections(tmp_path) as index:
        assert index.count("law", "a") == len(chunks)
    assert indexed_fields(tmp_path, "law") == FIELDS


@pytest.mark.parametrize("count", [40, SMALL + 40])
def test_a_folder_of_an_earlier_version_opens_and_answers_as_before(tmp_path: Path, count: int) -> None:
    chunks = [*(chunk("a", n) for n in range(count)), *(chunk("b", n, "valves alone") for n in range(5))]
    with open_collections(tmp_path) as index:
        run_steps(index.upsert("law", chunks, vectors(len(chunks))))
        before = answers_of(index, "law")
    convert_to_earlier_form(tmp_path, "law")
    assert (storage_kind(tmp_path, "law"), indexed_fields(tmp_path, "law")) == ("in advance", FIELDS)
    for _ in range(2):
        with open_collections(tmp_path) as index:
            assert answers_of(index, "law") == before
    assert indexed_fields(tmp_path, "law") == (FIELDS if count > SMALL else set())
    assert storage_kind(tmp_path, "law") == "when needed"


def test_many_dense_vectors_are_prefetched(tmp_path: Path) -> None:
    dimension = 4_096
    count = 2 * SMALL_BYTES // dimension
    with open_collections(tmp_path) as index:
        run_steps(index.upsert("law", [chunk("a", n) for n in range(count)], vectors(count, dimension)))
        legs = index.search_legs("law", "pumps", vectors(1, dimension).vectors[0])
    with open_collections(tmp_path) as index:
        assert index.search_legs("law", "pumps", vectors(1, dimension).vectors[0]).dense == legs.dense
    assert storage_kind(tmp_path, "law") == "in advance"


def test_an_unreadable_index_description_is_left_to_the_engine(tmp_path: Path) -> None:
    with open_collections(tmp_path) as index:
        run_steps(index.upsert("bad", [chunk("a", 0)], vectors(1)))
        run_steps(index.upsert("good", [chunk("a", 0)], vectors(1)))
    (segment,) = (tmp_path / "bad").rglob("segment.json")
    segment.write_text('{"config": []}')
    with open_collections(tmp_path) as index:
        with pytest.raises(IndexDamaged):
            index.count("bad")
        assert index.count("good") == 1


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 3))
def test_collections_of_the_same_chunk_ids_never_answer_for_each_other(order: list[int], max_open: int) -> None:
    with tempfile.TemporaryDirectory() as folder, open_collections(Path(folder), max_open) as index:
        filled_numbers: set[int] = set()
        for number in order:
            text = f"word{number} belongs here"
            if number not in filled_numbers:
                run_steps(index.upsert(f"c{number}", [chunk("a", 0, text)], vectors(1)))
                filled_numbers.add(number)
            for other_number in {*order}:
                legs = index.search_legs(f"c{number}", f"word{other_number}")
                assert bool(legs.lexical) == (other_number == number)
            assert [stored_chunk.text for stored_chunk in index.chunks(f"c{number}", "a")] == [text]


def test_index_generations_are_separate_when_each_is_reopened(tmp_path: Path) -> None:
    with open_collections(tmp_path, max_open=1) as index:
        run_steps(index.upsert("law", [chunk("a", 0, "old words")], vectors(1)))
        meta = index.meta("law")
        assert meta is not None
        generation = index.rebuild("law", meta)
        run_steps(index.upsert(generation, [chunk("a", 0, "new words")], vectors(1)))
        assert [stored_chunk.text for stored_chunk in index.chunks("law", "a")] == ["old words"]
        index.swap("law", generation)
        assert [stored_chunk.text for stored_chunk in index.chunks("law", "a")] == ["new words"]
        assert index.roll_back("law")
        assert [stored_chunk.text for stored_chunk in index.chunks("law", "a")] == ["old words"]
        index.drop(split_name("law")[0])
    assert not (tmp_path / "law").exists()


@given(st.lists(st.integers(0, MAX_POINTS // 50), max_size=2 * ALWAYS_OPEN), st.integers(1, MAX_OPEN))
def test_few_large_collections_stay_open_or_many_small_ones(points: list[int], max_open: int) -> None:
    open_points = [*points]
    while too_many(open_points, max_open):
        open_points.pop(0)
    assert len(open_points) <= max_open
    if len(open_points) > ALWAYS_OPEN:
        assert sum(open_points) <= MAX_POINTS
    if open_points != points:  # not one more than necessary
        assert len(open_points) == max_open or len(open_points) >= ALWAYS_OPEN


def test_one_collection_beyond_the_open_limit_does_not_close_the_others_early(tmp_path: Path) -> None:
    def opening_time(collection: str) -> int:
        return (tmp_path / collection / "1" / "edge_config.json").stat().st_mtime_ns  # the engine writes it each time

    max_open, rounds = 6, 8
    names = [f"c{number}" for number in range(max_open + 1)]
    reopened_count = 0
    with open_collections(tmp_path, max_open) as index:
        for name in names:
            run_steps(index.upsert(name, [chunk("a", 0)]))
        for name in names * rounds:
            before = opening_time(name)
            assert index.search_legs(name, "pumps").lexical
            reopened_count += opening_time(name) != before
    assert 0 < reopened_count < 0.9 * len(names) * rounds


async def test_an_open_small_collection_holds_one_thread_and_little_memory(tmp_path: Path) -> None:
    def read_usage(pid: int | None) -> tuple[int, int]:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in status)
        return int(values["Threads"]), int(values["VmRSS"].split()[0])

    count = 6
    async with open_process_index(tmp_path) as index:
        await index.upsert("first", [chunk("a", 0)], vectors(1, 384))
        threads, kilobytes = read_usage(index.pid)
        for number in range(count):
            await index.upsert(f"c{number}", [chunk("a", n) for n in range(40)], vectors(40, 384))
            await index.search_legs(f"c{number}", "pumps", vectors(1, 384).vectors[0])
        threads_after, kilobytes_after = read_usage(index.pid)
    assert threads_after - threads == count
    assert kilobytes_after - kilobytes < count * 4_096  # 46 MB each before
