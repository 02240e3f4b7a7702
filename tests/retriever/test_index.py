"""One conformance suite for all index implementations, and tests of the embedded one's files and owner."""

import math
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.errors import IndexClosed, IndexMismatch, IndexOwned, IndexUnavailable, UnknownDocument
from mcp_servers.retriever.fusion import fuse_legs
from mcp_servers.retriever.index import (
    MAX_NAMES,
    Calibration,
    CandidateLimit,
    CollectionMeta,
    Dense,
    Index,
    LegResults,
    Selection,
)
from mcp_servers.retriever.lexical import query_vector
from mcp_servers.retriever.process_index import open_process_index
from mcp_servers.retriever.retrieval import Retriever

from .corpus import handbook, long_section, rules

OPEN = Callable[[], Any]


@asynccontextmanager
async def open_embedded(tmp_path: Path) -> AsyncIterator[Index]:
    async with aclosing(EdgeIndex(tmp_path / "index")) as index:
        yield index


@asynccontextmanager
async def open_in_process(tmp_path: Path) -> AsyncIterator[Index]:
    async with open_process_index(tmp_path / "index") as index:
        yield index


@asynccontextmanager
async def open_on_server(location: str, **options: Any) -> AsyncIterator[Index]:
    from qdrant_client import AsyncQdrantClient

    from mcp_servers.retriever.server_index import ServerIndex

    client = (
        AsyncQdrantClient(":memory:")
        if location == ":memory:"
        else AsyncQdrantClient(url=location, timeout=30, **options)
    )
    async with aclosing(ServerIndex(client)) as index:
        yield index


@asynccontextmanager
async def open_over_http(_: Path) -> AsyncIterator[Index]:
    """The index on a server, over the real client and a socket."""
    from .qdrant_shim import Shim, serving

    async with serving(Shim()) as url, open_on_server(url, check_compatibility=False) as index:
        yield index


_IN_PROCESS = pytest.mark.nightly("the embedded index, and ingestion through the index process, are tested every time")


@pytest.fixture(params=["embedded", pytest.param("process", marks=_IN_PROCESS), "memory", "http", "server"])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Index]:
    url = os.environ.get("QDRANT_URL", "")
    if request.param == "server" and not url:
        pytest.skip("QDRANT_URL is not set: the conformance suite does not run against a real Qdrant server")
    open_local = {"embedded": open_embedded, "process": open_in_process, "http": open_over_http}.get(request.param)
    async with open_local(tmp_path) if open_local else open_on_server(url or ":memory:") as index:
        yield index


@pytest.fixture
def name() -> str:
    return f"domain_{uuid4().hex[:8]}"


# The local client warns about each requested payload index; a real server creates them.
pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")


def vectors(count: int, dimension: int = 4) -> list[list[float]]:
    return [[1.0 if column == number % dimension else 0.1 for column in range(dimension)] for number in range(count)]


async def test_a_stored_chunk_is_read_unchanged(index: Index, name: str) -> None:
    chunks = [replace(chunk, page=3, cells="Sheet!A1:B2", context="About leave.") for chunk in handbook()]
    await index.upsert(name, chunks)
    assert await index.chunks(name, "doc-en") == chunks
    assert await index.get(name, [chunks[1].chunk_id, str(uuid4())]) == {chunks[1].chunk_id: chunks[1]}
    await index.drop(name)


async def test_storing_the_same_chunks_again_creates_no_duplicates(index: Index, name: str) -> None:
    await index.upsert(name, handbook())
    await index.upsert(name, handbook())
    assert await index.count(name) == len(handbook())
    await index.drop(name)


async def test_a_chinese_question_finds_the_chinese_chunk_and_an_english_one_the_english(
    index: Index, name: str
) -> None:
    await index.upsert(name, [*handbook(), *rules()])
    chinese = await index.search_legs(name, "年假有多少天？")
    english = await index.search_legs(name, "how many days of annual leave")
    assert chinese.lexical[0].chunk_id == rules()[0].chunk_id
    assert english.lexical[0].chunk_id == handbook()[0].chunk_id
    assert not chinese.dense
    await index.drop(name)


async def test_a_chunk_equal_to_the_question_has_the_self_score(index: Index, name: str) -> None:
    chunk = replace(handbook()[0], heading_path=())
    await index.upsert(name, [chunk, *rules()])
    legs = await index.search_legs(name, chunk.text)
    # A question counts a repeated word once, a chunk counts every occurrence.
    assert legs.lexical[0].score == pytest.approx(legs.self_score, rel=0.1)
    assert (await index.search_legs(name, "zebra")).self_score > 0
    await index.drop(name)


async def test_a_context_line_joins_a_stored_chunk_and_brings_no_deleted_one_back(index: Index, name: str) -> None:
    first, second, *rest = [*handbook(), *rules()]
    with_context = [replace(chunk, context="The vacation allowance of zebra keepers.") for chunk in (first, second)]
    await index.upsert(name, with_context, known_only=True)
    assert await index.count(name) == 0
    await index.upsert(name, [first, *rest])
    assert not (await index.search_legs(name, "zebra")).lexical
    await index.upsert(name, with_context, known_only=True)
    assert await index.get(name, [first.chunk_id, second.chunk_id]) == {first.chunk_id: with_context[0]}
    assert [hit.chunk_id for hit in (await index.search_legs(name, "zebra")).lexical] == [first.chunk_id]
    await index.upsert(name, [first], known_only=True)
    assert not (await index.search_legs(name, "zebra")).lexical
    await index.drop(name)


async def test_deleting_a_document_removes_its_chunks_only(index: Index, name: str) -> None:
    await index.upsert(name, [*handbook(), *rules()])
    await index.delete_document(name, "doc-en")
    assert await index.count(name, "doc-en") == 0
    assert await index.count(name) == len(rules())
    assert not (await index.search_legs(name, "annual leave")).lexical
    await index.drop(name)


async def test_a_long_document_is_deleted_completely(index: Index, name: str) -> None:
    await index.upsert(name, [*long_section(300), *rules()])
    assert len(await index.document_names(name, Selection())) == 2
    await index.delete_document(name, "doc-long")
    assert (await index.count(name), await index.count(name, "doc-long")) == (len(rules()), 0)
    assert await index.document_names(name, Selection()) == [rules()[0].document_name]
    await index.upsert(name, [replace(chunk, document_name="renamed.TXT") for chunk in long_section(150)[:3]])
    assert await index.document_names(name, Selection(type="txt")) == ["renamed.TXT"]
    assert await index.count(name, "doc-long") == 3
    await index.drop(name)


async def test_document_names_are_found_by_a_part_in_a_collection_of_more_than_one_answer(
    index: Index, name: str
) -> None:
    chunk = rules()[0]
    names = [f"Note {number:04}.md" for number in range(MAX_NAMES + 5)]
    chunks = [
        replace(chunk, chunk_id=str(uuid4()), document_id=f"d{number}", document_name=document_name)
        for number, document_name in enumerate(names)
    ]
    await index.upsert(name, chunks)
    assert len(await index.document_names(name, Selection())) == MAX_NAMES
    assert await index.document_names(name, Selection(), "note 1004") == names[-1:]
    assert await index.document_names(name, Selection(type="pdf"), "note 1004") == []
    assert (await Retriever(index).search(name, chunk.text, 1, document="1004")).hits[0].document_name == names[-1]
    with pytest.raises(UnknownDocument, match=r"Note 0000\.md; Note 0001\.md"):
        await Retriever(index).search(name, chunk.text, 1, document="1005")
    await index.drop(name)


async def test_a_chunk_is_found_under_each_of_its_headings(index: Index, name: str) -> None:
    chunks = [replace(handbook()[0], heading_path=("Part one", "Leave", "Annual")), handbook()[1]]
    await index.upsert(name, chunks)
    for heading in chunks[0].heading_path:
        legs = await index.search_legs(name, "annual leave", selection=Selection(heading=heading))
        assert [hit.chunk_id for hit in legs.lexical] == [chunks[0].chunk_id]
        assert await index.document_names(name, Selection(heading=heading)) == [chunks[0].document_name]
    assert await index.get(name, [chunks[0].chunk_id]) == {chunks[0].chunk_id: chunks[0]}
    await index.drop(name)


async def test_chunks_are_read_in_pages_by_ordinal(index: Index, name: str) -> None:
    chunks = long_section(150)
    await index.upsert(name, chunks)
    first, rest = await index.chunks(name, "doc-long", 0, 3), await index.chunks(name, "doc-long", 3, 1000)
    assert first + rest == chunks
    assert await index.chunks(name, "doc-long", 0, 0) == []
    await index.drop(name)


async def test_existing_returns_the_stored_ids(index: Index, name: str) -> None:
    stored_ids = {chunk.chunk_id for chunk in handbook()}
    await index.upsert(name, handbook())
    assert await index.existing(name, [*stored_ids, str(uuid4())]) == stored_ids
    assert await index.existing(name, []) == set()
    await index.drop(name)


async def test_a_missing_collection_reads_as_empty(index: Index, name: str) -> None:
    assert await index.count(name) == 0
    assert await index.chunks(name, "d") == []
    assert await index.existing(name, [str(uuid4())]) == set()
    assert (await index.search_legs(name, "anything", [1.0, 0.0])).lexical == ()
    assert await index.document_names(name, Selection()) == []
    assert await index.without_dense(name, 5) == []
    assert await index.sample(name, 5) == []
    assert await index.meta(name) is None
    assert not await index.roll_back(name)
    await index.delete_document(name, "d")
    await index.drop(name)


SELECTIONS = [
    (Selection(document_ids=("doc-en",)), 1),
    (Selection(document_ids=("doc-zh", "doc-x")), 0),
    (Selection(document_ids=()), 0),
    (Selection(document="handbook.md"), 1),
    (Selection(document="doc-en"), 1),
    (Selection(document="规定.md"), 0),
    (Selection(type="md"), 1),
    (Selection(type="pdf"), 0),
    (Selection(heading="Annual leave"), 1),
    (Selection(heading="Sick leave"), 0),
    (Selection(document_ids=("doc-en",), document="规定.md"), 0),
]


async def test_a_selection_limits_both_legs(index: Index, name: str) -> None:
    await index.upsert(name, [*handbook(), *rules()], Dense("e", vectors(4)))
    for selection, hit_count in SELECTIONS:
        legs = await index.search_legs(name, "unused expire", vectors(1)[0], selection)
        assert len(legs.lexical) == hit_count, selection
        assert {hit.chunk_id for hit in legs.dense} >= {hit.chunk_id for hit in legs.lexical}, selection
        chunks_by_id = await index.get(name, [hit.chunk_id for hit in legs.dense])
        names = set(await index.document_names(name, selection))
        assert names == {chunk.document_name for chunk in chunks_by_id.values()}, selection
    await index.drop(name)


async def test_dense_vectors_can_join_later_and_are_searched_then(index: Index, name: str) -> None:
    chunks = handbook()
    await index.upsert(name, chunks)
    assert {chunk.chunk_id for chunk in await index.without_dense(name, 10)} == {chunk.chunk_id for chunk in chunks}
    await index.add_dense(name, [chunks[0].chunk_id, str(uuid4())], Dense("e", vectors(2)))
    assert await index.without_dense(name, 10) == chunks[1:]
    legs = await index.search_legs(name, "leave", vectors(1)[0])
    assert [hit.chunk_id for hit in legs.dense] == [chunks[0].chunk_id]
    assert legs.dense[0].score == pytest.approx(1.0, abs=0.01)
    ((sampled_chunk, (vector,)),) = await index.sample(name, 10)
    assert sampled_chunk == chunks[0]
    assert sum(number * number for number in vector) == pytest.approx(1.0, abs=0.02)
    await index.drop(name)


async def test_equal_documents_give_the_same_sample_under_any_ids(index: Index, name: str) -> None:
    samples = []
    for collection in (name, f"{name}_b"):
        chunks = [*handbook(), *rules()]
        chunks = [
            replace(chunk, chunk_id=str(uuid4()), document_id=f"{collection}{chunk.document_id}") for chunk in chunks
        ]
        await index.upsert(collection, chunks, Dense("e", vectors(4)))
        sample = await index.sample(collection, 2)
        samples.append(
            sorted(
                (chunk.text, [[round(number, 2) for number in vector] for vector in stored_vectors])
                for chunk, stored_vectors in sample
            )
        )
        await index.drop(collection)
    assert len(samples[0]) == 2
    assert samples[0] == samples[1]


async def test_each_leg_scores_hits_found_only_by_the_other(index: Index, name: str) -> None:
    chunks = [*handbook(), *rules()]
    await index.upsert(name, chunks, Dense("e", vectors(4)))
    full_legs = await index.search_legs(name, "leave", vectors(1)[0])
    cut_legs = await index.search_legs(name, "leave", vectors(3)[2], limit=1)
    (lexical,), (dense,) = cut_legs.lexical, cut_legs.dense
    assert (lexical.chunk_id, dense.chunk_id) == (full_legs.lexical[0].chunk_id, chunks[2].chunk_id)
    assert cut_legs.lexical_rest == ()
    assert [hit.chunk_id for hit in cut_legs.dense_rest] == [lexical.chunk_id]
    assert 0 < cut_legs.dense_rest[0].score < dense.score
    await index.drop(name)


async def test_vectors_of_another_embedder_or_dimension_are_refused(index: Index, name: str) -> None:
    await index.upsert(name, handbook(), Dense("one", vectors(2)))
    with pytest.raises(IndexMismatch, match="embedder 'one', not 'other'"):
        await index.upsert(name, rules(), Dense("other", vectors(2)))
    with pytest.raises(IndexMismatch, match="dimension 4, not 8"):
        await index.add_dense(name, [handbook()[0].chunk_id], Dense("one", vectors(1, 8)))
    assert (await index.search_legs(name, "leave", vectors(1, 8)[0])).dense == ()
    await index.drop(name)


async def test_the_collection_records_its_embedder_and_versions(index: Index, name: str) -> None:
    await index.upsert(name, handbook(), Dense("one", vectors(2)))
    calibration = Calibration({"latin": 0.9}, 0.2, 0.8, 2, (0.5, 0.25, 0.0, -0.125))
    await index.set_calibration(name, calibration)
    meta = await index.meta(name)
    assert meta == CollectionMeta(embedder="one", dimension=4, calibration=calibration)
    await index.drop(name)


async def test_a_new_index_is_built_beside_the_live_one_swapped_in_and_rolled_back(index: Index, name: str) -> None:
    await index.upsert(name, handbook(), Dense("old", vectors(2)))
    generation = await index.rebuild(name, CollectionMeta(embedder="new", dimension=8))
    await index.upsert(generation, rules(), Dense("new", vectors(2, 8)))
    assert (await index.count(name, "doc-en"), await index.count(generation, "doc-en")) == (2, 0)
    await index.swap(name, generation)
    assert (await index.count(name, "doc-en"), await index.count(name, "doc-zh")) == (0, 2)
    meta = await index.meta(name)
    assert meta is not None
    assert meta.embedder == "new"
    assert await index.roll_back(name)
    assert await index.count(name, "doc-en") == 2
    assert await index.roll_back(name)
    assert await index.count(name, "doc-zh") == 2
    await index.drop(name)
    assert await index.count(name) == 0


async def test_a_third_index_generation_leaves_only_itself_and_its_predecessor(index: Index, name: str) -> None:
    await index.upsert(name, handbook())
    for chunks in (rules(), long_section(20)):
        generation = await index.rebuild(name, CollectionMeta())
        await index.upsert(generation, chunks)
        await index.swap(name, generation)
    assert await index.roll_back(name)
    assert await index.count(name) == await index.count(name, "doc-zh") == 2
    assert await index.count(f"{name}@1") == 0
    await index.drop(name)


async def test_a_name_that_could_be_a_path_is_refused(index: Index) -> None:
    for bad_name in ("../other", "", "a/b", "a@b", "a" * 200, ".."):
        with pytest.raises(ValueError, match="collection name"):
            await index.count(bad_name)


async def test_a_closed_index_says_so_and_closes_twice(index: Index, name: str) -> None:
    await index.aclose()
    await index.aclose()
    with pytest.raises(IndexClosed, match="closed"):
        await index.count(name)


async def test_searches_and_writes_can_run_in_parallel(index: Index, name: str) -> None:
    chunks = long_section(300)
    hit_counts: list[int] = []

    async def search() -> None:
        hit_counts.append(len((await index.search_legs(name, "pumps and valves")).lexical))

    async with anyio.create_task_group() as tasks:
        for chunk in chunks:
            tasks.start_soon(index.upsert, name, [chunk])
            tasks.start_soon(search)
    assert await index.count(name) == len(chunks)
    assert len(hit_counts) == len(chunks)
    await index.drop(name)


async def test_stored_chunks_exist_after_reopening(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as index:
        await index.upsert("law", handbook(), Dense("e", vectors(2)))
    async with open_embedded(tmp_path) as index:
        assert await index.chunks("law", "doc-en") == handbook()
        assert len((await index.search_legs("law", "leave", vectors(1)[0])).dense) == 2


async def test_a_second_owner_sees_the_first_until_it_releases_the_folder(tmp_path: Path) -> None:
    async with open_embedded(tmp_path):
        with pytest.raises(IndexOwned, match=f"in use by process {os.getpid()}"):
            EdgeIndex(tmp_path / "index")
    async with open_embedded(tmp_path):
        pass


async def test_acknowledged_points_survive_a_killed_process(tmp_path: Path) -> None:
    script = """
import os, sys, anyio
from pathlib import Path
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.index import Dense
from tests.retriever.corpus import handbook

async def main():
    index = EdgeIndex(Path(sys.argv[1]))
    await index.upsert("law", handbook(), Dense("e", [[1.0, 0.0], [0.0, 1.0]]))
    os.kill(os.getpid(), 9)

anyio.run(main)
"""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", script, str(tmp_path / "index")]
    process = await anyio.run_process(command, env={"PYTHONPATH": root}, check=False)
    assert process.returncode == -9
    async with open_embedded(tmp_path) as index:
        assert await index.chunks("law", "doc-en") == handbook()
        assert len((await index.search_legs("law", "leave", [1.0, 0.0])).dense) == 2


async def test_more_collections_than_the_open_limit_keep_their_chunks(tmp_path: Path) -> None:
    async with aclosing(EdgeIndex(tmp_path / "index", max_open=4)) as index:
        for number in range(7):
            await index.upsert(f"c{number}", handbook()[: 1 + number % 2])
        assert [await index.count(f"c{number}") for number in range(4)] == [1, 2, 1, 2]


async def test_documents_of_an_earlier_process_are_found_by_id_name_and_suffix(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as index:
        await index.upsert("law", [*handbook(), *rules()])
    async with open_embedded(tmp_path) as index:
        assert await index.count("law") == len(handbook()) + len(rules())
        assert await index.count("law", "doc-en") == len(handbook())
        assert await index.document_names("law", Selection(document="handbook.md")) == ["handbook.md"]
        await index.delete_document("law", "doc-en")
        assert await index.document_names("law", Selection(type="md")) == ["规定.md"]


async def test_a_collection_stays_unchanged_when_its_record_cannot_be_written(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as index:
        await index.upsert("law", handbook())
        generation = await index.rebuild("law", CollectionMeta())
        await index.upsert(generation, rules())
        obstacle = tmp_path / "index" / "law" / "pointer.new"
        obstacle.mkdir()
        with pytest.raises(IndexUnavailable, match="record a collection"):
            await index.swap("law", generation)
        assert await index.count("law", "doc-en") == len(handbook())
        obstacle.rmdir()
        await index.swap("law", generation)
        assert await index.count("law", "doc-zh") == len(rules())


async def test_a_collection_left_incomplete_by_a_crash_is_rebuilt(tmp_path: Path) -> None:
    debris = tmp_path / "index" / "law" / "1"
    debris.mkdir(parents=True)
    (debris / "garbage").write_text("x")
    async with open_embedded(tmp_path) as index:
        assert await index.count("law") == 0
        await index.upsert("law", handbook())
        assert await index.count("law") == 2


async def test_a_damaged_shard_is_an_index_fault_and_others_still_work(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as index:
        await index.upsert("bad", handbook())
        await index.upsert("good", handbook())
    for file in (tmp_path / "index" / "bad" / "1").rglob("*.json"):
        file.write_text("not json")
    async with open_embedded(tmp_path) as index:
        with pytest.raises(IndexUnavailable, match="open a collection"):
            await index.count("bad")
        assert await index.count("good") == 2


async def test_a_quarantine_replaces_only_that_of_the_same_collection(tmp_path: Path) -> None:
    for name in ("law-2", "law"):
        async with open_embedded(tmp_path) as index:
            await index.upsert(name, handbook())
        for file in (tmp_path / "index" / name / "1").rglob("*.json"):
            file.write_text("not json")
        async with open_embedded(tmp_path) as index:
            with pytest.raises(IndexUnavailable, match="open a collection"):
                await index.count(name)
    assert len(list((tmp_path / "index").glob("*/law-*"))) == 2


async def test_a_token_weighs_more_the_fewer_chunks_contain_it(tmp_path: Path) -> None:
    texts = [f"pump {'valve' if number < 2 else 'hose'}" for number in range(12)]
    chunks = [
        replace(handbook()[0], chunk_id=str(uuid4()), ordinal=number, text=text, heading_path=())
        for number, text in enumerate(texts)
    ]
    async with open_embedded(tmp_path) as index:
        await index.upsert("law", chunks)
        for question in ("hose pump", "zebra valve pump"):  # the weights of the first question are cached
            weights = (await index.search_legs("law", question)).tokens
    assert [weights[query_vector(word).indices[0]] for word in ("pump", "valve", "zebra")] == pytest.approx(
        [math.log((12 - count + 0.5) / (count + 0.5) + 1) for count in (12, 2, 0)], rel=1e-5
    )


async def test_the_index_process_sends_what_the_embedded_index_finds(tmp_path: Path) -> None:
    # Texts of different lengths, because the order of equal scores is not fixed.
    chunks = [
        replace(chunk, page=3, text=chunk.text + " hose" * number, context="About pumps.")
        for number, chunk in enumerate(long_section(60))
    ]
    legs: list[LegResults] = []
    for number, kind in enumerate((open_embedded, open_in_process)):
        async with kind(tmp_path / str(number)) as index:
            await index.upsert("law", chunks, Dense("e", vectors(len(chunks), 16)))
            lead = CandidateLimit("dbsf", 1.0, 2, 1)
            legs.append(await index.search_legs("law", "sentence number 7", vectors(4, 16)[3], lead=lead))
    assert legs[0] == legs[1]
    assert list(legs[0].fused) == fuse_legs(replace(legs[0], fused=()), lead)
    assert {chunk.chunk_id: chunk for chunk in legs[0].chunks}.items() <= {
        chunk.chunk_id: chunk for chunk in chunks
    }.items()
    assert {candidate.chunk_id for candidate in legs[0].fused[:2]} <= {chunk.chunk_id for chunk in legs[0].chunks}


async def test_lexical_vectors_made_elsewhere_give_the_same_scores(tmp_path: Path) -> None:
    from mcp_servers.retriever.index import searchable_text
    from mcp_servers.retriever.lexical import document_vectors

    chunks: list[Chunk] = [*handbook(), *rules()]
    async with open_embedded(tmp_path) as index:
        await index.upsert("here", chunks)
        await index.upsert("elsewhere", chunks, lexical=document_vectors(map(searchable_text, chunks)))
        assert await index.search_legs("here", "paid leave") == await index.search_legs("elsewhere", "paid leave")
