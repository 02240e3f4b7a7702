"""Searches from question to hits, on a real embedded index and a real (tiny) model."""

import math
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_servers.retriever.calibration import NO_TRUST, UNMEASURED
from mcp_servers.retriever.chunking import Chunk, chunk_document
from mcp_servers.retriever.document import Block, ParsedDocument
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.embedding import Embedder
from mcp_servers.retriever.errors import EmbedderFailed, UnknownDocument
from mcp_servers.retriever.fast_embedder import FastEmbedder
from mcp_servers.retriever.hits import Retrieval
from mcp_servers.retriever.index import Dense, Index, searchable_text
from mcp_servers.retriever.retrieval import MAX_JOINED, Retriever

from .corpus import handbook, long_section, rules
from .tiny_model import write_model

NAME = "domain_test"


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[EdgeIndex]:
    async with aclosing(EdgeIndex(tmp_path / "index")) as index:
        yield index


@pytest.fixture
def embedder(tmp_path: Path) -> FastEmbedder:
    return FastEmbedder(write_model(tmp_path / "tiny"), tmp_path)


def paragraphs(document: str, *texts: str) -> list[Chunk]:
    """Sections with one text each."""
    blocks = [
        block
        for number, text in enumerate(texts)
        for block in (Block("heading", f"§{number}", 1), Block("prose", text))
    ]
    return chunk_document(ParsedDocument(tuple(blocks)), document, f"{document}.md")


async def fill(index: Index, chunks: Sequence[Chunk], embedder: Embedder) -> None:
    vectors = await embedder.embed_documents([searchable_text(chunk) for chunk in chunks])
    await index.upsert(NAME, chunks, Dense(embedder.name, vectors))


async def test_a_question_finds_the_passage_with_its_sentences_and_place(index: EdgeIndex) -> None:
    chunks = [*handbook(), *rules()]
    await index.upsert(NAME, chunks)
    retrieval = await Retriever(index).search(NAME, "When do unused days expire?", 3)
    hit = retrieval.hits[0]
    assert (hit.document_id, hit.document_name) == ("doc-en", "handbook.md")
    assert hit.heading_path == ("Handbook", "Annual leave")
    assert [sentence.text for sentence in hit.sentences][1] == "Unused days expire on 31 March."
    assert all(chunks[0].text[sentence.start : sentence.end] == sentence.text for sentence in hit.sentences)
    assert retrieval.mode == "lexical"
    assert retrieval.note is None


async def test_nothing_found_is_a_retrieval_without_hits(index: EdgeIndex) -> None:
    await index.upsert(NAME, handbook())
    assert (await Retriever(index).search(NAME, "zebra", 3)).hits == ()
    assert (await Retriever(index).search("domain_none", "leave", 3)).hits == ()
    assert (await Retriever(index).search(NAME, "the of and", 3)).hits == ()


async def test_adjacent_passages_of_a_section_are_one_hit_without_overlap(index: EdgeIndex) -> None:
    chunks = long_section(120)
    await index.upsert(NAME, chunks)
    retrieval = await Retriever(index).search(NAME, "pumps valves pressure", 3)
    assert len(retrieval.hits) < len(chunks)
    for hit in retrieval.hits:
        numbers = [int(sentence.text.split()[2]) for sentence in hit.sentences]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert len({sentence.chunk_id for sentence in hit.sentences}) <= MAX_JOINED


async def test_adjacent_passages_on_another_page_stay_separate_hits(index: EdgeIndex) -> None:
    first, second, *_ = long_section(60)
    await index.upsert(NAME, [replace(first, page=1), replace(second, page=2)])
    retrieval = await Retriever(index).search(NAME, "pumps valves pressure", 5)
    assert sorted(hit.page or 0 for hit in retrieval.hits) == [1, 2]


async def test_relevance_is_high_for_a_full_match_and_the_threshold_cuts_on_it(index: EdgeIndex) -> None:
    chunks = paragraphs("d", "Blue whales sing at night.", "Whales eat krill.", "Nothing else matters here at all.")
    await index.upsert(NAME, chunks)
    retriever = Retriever(index)
    full = await retriever.search(NAME, "blue whales sing at night", 5)
    assert full.hits[0].relevance_score > 0.8 > full.hits[1].relevance_score > 0
    assert len((await retriever.search(NAME, "blue whales sing at night", 5, threshold=0.8)).hits) == 1
    unknown_words = await retriever.search(NAME, "whales in quantum gravity simulations", 5)
    assert unknown_words.hits[0].relevance_score < 0.4


async def test_only_visible_documents_are_searched(index: EdgeIndex) -> None:
    await index.upsert(NAME, [*paragraphs("a", "Shared text."), *paragraphs("b", "Shared text.")])
    retriever = Retriever(index)
    assert {hit.document_id for hit in (await retriever.search(NAME, "shared", 5)).hits} == {"a", "b"}
    assert {hit.document_id for hit in (await retriever.search(NAME, "shared", 5, 0.0, ["b"])).hits} == {"b"}
    assert (await retriever.search(NAME, "shared", 5, 0.0, [])).hits == ()
    with pytest.raises(UnknownDocument, match=r"Documents: b\.md"):
        await retriever.search(NAME, "shared", 5, 0.0, ["b"], "a.md")


async def test_a_document_can_be_named_by_id_name_or_unique_part(index: EdgeIndex) -> None:
    await index.upsert(NAME, [*paragraphs("alpha", "Shared text."), *paragraphs("alphabet", "Shared text.")])
    retriever = Retriever(index)
    for document in ("alpha", "alpha.md", "ALPHABET"):
        (hit,) = (await retriever.search(NAME, "shared", 5, document=document)).hits
        assert hit.document_id == document.lower().removesuffix(".md")
    with pytest.raises(UnknownDocument, match=r"alpha\.md; alphabet\.md"):
        await retriever.search(NAME, "shared", 5, document="alp")


async def test_type_and_heading_narrow_a_search(index: EdgeIndex) -> None:
    await index.upsert(NAME, handbook())
    retriever = Retriever(index)
    assert (await retriever.search(NAME, "leave", 5, file_type="md", heading="Sick leave")).hits[0].heading_path[
        -1
    ] == "Sick leave"
    assert (await retriever.search(NAME, "leave", 5, file_type="pdf")).hits == ()


async def test_the_dense_leg_finds_passages_without_a_shared_word(index: EdgeIndex, embedder: FastEmbedder) -> None:
    chunks = paragraphs("d", "The automobile needs oil.", "See a physician.", "Use the valve.", "Call the motor shop.")
    await fill(index, chunks, embedder)
    assert (await Retriever(index).search(NAME, "car", 2)).hits == ()
    retrieval = await Retriever(index, embedder).search(NAME, "car", 2)
    assert retrieval.mode == "hybrid"
    assert retrieval.hits[0].sentences[0].text == "The automobile needs oil."
    best_candidate = retrieval.candidates[0]
    assert best_candidate.lexical is None
    assert (best_candidate.lexical_rank, best_candidate.dense_rank, best_candidate.fused_rank, best_candidate.hit) == (
        None,
        1,
        1,
        1,
    )
    assert best_candidate.dense == pytest.approx(max(candidate.dense or 0 for candidate in retrieval.candidates))


async def test_a_leg_that_does_not_know_the_script_has_no_vote(index: EdgeIndex, embedder: FastEmbedder) -> None:
    characters = [chr(0x4E00 + 37 * number) for number in range(24)]
    chinese = paragraphs("zh", *(f"运费由，{character}，{character}，{character}，承担。" for character in characters))
    await fill(index, [*chinese, *handbook()], embedder)
    retriever = Retriever(index, embedder)
    calibration = await retriever.calibrate(NAME)
    assert calibration is not None
    assert calibration.competence["cjk"] < NO_TRUST
    for question in (f"{characters[3]}的运费", "谁承担"):
        hybrid = await retriever.search(NAME, question, 5)
        lexical = await Retriever(index).search(NAME, question, 5)
        assert hybrid.hits == lexical.hits
        assert hybrid.dense_weight == 0
        assert "cjk" in (hybrid.note or "")


class Numbers:
    """An embedder that understands one thing: words that end in the same number have the same meaning."""

    name = "numbers"

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.vector(text) for text in texts]

    async def embed_query(self, text: str) -> list[float]:
        return self.vector(text)

    async def aclose(self) -> None:
        pass

    def vector(self, text: str) -> list[float]:
        numbers = [int(number) for number in re.findall(r"[a-z](\d+)", text)]
        return [0.01 + numbers.count(number) for number in range(SUBJECTS)]


class Noise(Numbers):
    """An embedder that understands nothing but recognises every text it has seen."""

    name = "noise"

    def vector(self, text: str) -> list[float]:
        dice = random.Random(text)
        return [dice.gauss() for _ in range(SUBJECTS)]


SUBJECTS = 24


async def test_notes_of_one_sentence_distinguish_meaning_from_word_overlap(index: EdgeIndex) -> None:
    notes = [f"gamma{n} alpha{n} gamma{n} beta{n} gamma{n} delta{n}" for n in range(SUBJECTS)]
    parsed = [ParsedDocument((Block("prose", note),)) for note in notes]
    chunks = [
        chunk
        for position, document in enumerate(parsed)
        for chunk in chunk_document(document, f"d{position}", f"{position}.txt")
    ]
    assert [chunk.text for chunk in chunks] == notes
    weights: dict[str, float] = {}
    for number, embedder in enumerate((Numbers(), Noise())):
        name = f"{NAME}_{number}"
        await index.upsert(name, chunks, Dense(embedder.name, await embedder.embed_documents(notes)))
        hybrid = await Retriever(index, embedder).search(name, "omega7 gamma7", 3)
        weights[embedder.name] = hybrid.dense_weight
        assert hybrid.hits[0].document_id == "d7"
    assert weights == {"numbers": 1.0, "noise": 0.0}


async def test_the_dense_leg_has_half_its_weight_without_enough_measurements(
    index: EdgeIndex, embedder: FastEmbedder
) -> None:
    await fill(index, handbook(), embedder)
    retrieval = await Retriever(index, embedder).search(NAME, "vacation", 2)
    assert retrieval.dense_weight == UNMEASURED
    assert retrieval.hits[0].heading_path[-1] == "Annual leave"


async def test_calibration_is_measured_once_and_again_when_the_collection_has_doubled(
    index: EdgeIndex, embedder: FastEmbedder
) -> None:
    await fill(index, handbook(), embedder)
    retriever = Retriever(index, embedder)
    first = await retriever.calibrate(NAME)
    assert first is not None
    assert first.points == 2
    assert await retriever.calibrate(NAME) == first
    await fill(index, rules(), embedder)
    second = await retriever.calibrate(NAME)
    assert second is not None
    assert second.points == 4
    assert await Retriever(index).calibrate(NAME) is None


async def test_equal_passages_have_the_same_order_in_two_indexes_of_the_same_documents(tmp_path: Path) -> None:
    names = ["west.md", "north.md", "east.md", "south.md"] * 3
    orders: list[list[tuple[str, int]]] = []
    for seed in (1, 2):
        documents = [(f"{seed}-{number}", f"{number % 3}-{name}") for number, name in enumerate(names)]
        random.Random(seed).shuffle(documents)
        async with aclosing(EdgeIndex(tmp_path / str(seed))) as index:
            for document, name in documents:
                blocks = [Block("heading", "Parking", 1), Block("prose", "The car park closes at nine.")] * 2
                await index.upsert(NAME, chunk_document(ParsedDocument(tuple(blocks)), document, name))
            retrieval = await Retriever(index).search(NAME, "When does the car park close?", 10)
            orders.append([(hit.document_name, hit.passage) for hit in retrieval.hits])
    assert orders[0] == orders[1]
    assert orders[0] == sorted(orders[0])


class AngleEmbedder:
    """Maps a text to the direction, in degrees, that its last word names."""

    name = "angles"

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        angles = [math.radians(float(numbers[-1])) for text in texts if (numbers := re.findall(r"\d+", text) or ["0"])]
        return [[math.cos(angle), math.sin(angle)] for angle in angles]

    async def embed_query(self, text: str) -> list[float]:
        return (await self.embed_documents([text]))[0]

    async def aclose(self) -> None: ...


async def test_the_subject_that_all_passages_share_does_not_decide(index: EdgeIndex) -> None:
    angles = (0, 1, 2, 3, 60)
    chunks = [
        paragraph for number, angle in enumerate(angles) for paragraph in paragraphs(f"d{number}", f"text {angle}")
    ]
    await fill(index, chunks, AngleEmbedder())
    questions = "question 30", "question 31"  # nearer to 3 than to 60 only before the subtraction
    for question in questions:
        retrieval = await Retriever(index, AngleEmbedder()).search(NAME, question, 5)
        dense = {candidate.chunk_id: candidate.dense or 0.0 for candidate in retrieval.candidates}
        best_id = max(dense, key=lambda chunk_id: dense[chunk_id])
        assert best_id == chunks[-1].chunk_id


async def test_a_model_of_another_dimension_leaves_the_search_by_words(index: EdgeIndex) -> None:
    class Longer(AngleEmbedder):
        async def embed_query(self, text: str) -> list[float]:
            return [1.0, 0.0, 0.0]

    await fill(index, [*handbook(), *rules()], AngleEmbedder())
    await Retriever(index, AngleEmbedder()).calibrate(NAME)
    retrieval = await Retriever(index, Longer()).search(NAME, "When do unused days expire?", 3)
    assert retrieval.mode == "lexical"
    assert retrieval.hits[0].heading_path[-1] == "Annual leave"


async def test_a_chunk_without_words_does_not_stop_the_calibration(index: EdgeIndex, embedder: FastEmbedder) -> None:
    await fill(index, [replace(chunk, text="", sentences=()) for chunk in handbook()], embedder)
    calibration = await Retriever(index, embedder).calibrate(NAME)
    assert calibration is not None
    assert calibration.points == len(handbook())


class Failing:
    """An embedder whose endpoint is down."""

    name = "local:tiny"

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        raise EmbedderFailed(self.name, "no answer")

    async def embed_query(self, text: str) -> list[float]:
        raise EmbedderFailed(self.name, "no answer")

    async def aclose(self) -> None:
        pass


async def test_a_failing_embedder_costs_only_the_dense_leg(index: EdgeIndex, embedder: FastEmbedder) -> None:
    await fill(index, handbook(), embedder)
    retrieval = await Retriever(index, Failing()).search(NAME, "annual leave", 2)
    assert retrieval.hits
    assert (retrieval.mode, retrieval.note) == ("lexical", "embedder 'local:tiny' failed: no answer")


async def test_vectors_of_another_embedder_are_not_changed(index: EdgeIndex, embedder: FastEmbedder) -> None:
    await index.upsert(NAME, handbook(), Dense("other", [[1.0, 0.0], [0.0, 1.0]]))
    retrieval = await Retriever(index, embedder).search(NAME, "annual leave", 2)
    assert retrieval.mode == "lexical"


class Grown(Failing):
    """The embedder that filled the collection, after its operator put another model behind its name."""

    async def embed_query(self, text: str) -> list[float]:
        return [1.0] * 1000


async def test_vectors_of_another_dimension_cost_the_dense_leg_not_the_search(
    index: EdgeIndex, embedder: FastEmbedder
) -> None:
    await fill(index, handbook(), embedder)
    retrieval = await Retriever(index, Grown()).search(NAME, "annual leave", 2)
    assert retrieval.hits
    assert retrieval.mode == "lexical"
    assert "dimension" in (retrieval.note or "")
    await Retriever(index, embedder).calibrate(NAME)
    assert (await Retriever(index, Grown()).search(NAME, "annual leave", 2)).mode == "lexical"


class Backwards:
    """A reranker that prefers the shortest text, or fails."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        if self.fails:
            raise EmbedderFailed("reranker", "out of order")
        return [-len(text) for text in texts]


async def test_a_reranker_orders_the_hits_and_its_failure_does_not(index: EdgeIndex) -> None:
    await index.upsert(NAME, paragraphs("d", "Whale, whale, whale and again the whale.", "A whale.", "Krill."))
    plain_result = await Retriever(index).search(NAME, "whale", 2)
    reranked_result = await Retriever(index, reranker=Backwards()).search(NAME, "whale", 2)
    failed_result = await Retriever(index, reranker=Backwards(fails=True)).search(NAME, "whale", 2)
    assert reranked_result.hits == plain_result.hits[::-1]
    assert failed_result.hits == plain_result.hits
    assert failed_result.note == "embedder 'reranker' failed: out of order"


async def test_every_retrieval_has_its_candidates(index: EdgeIndex, embedder: FastEmbedder) -> None:
    retrievals: list[Retrieval] = []
    await fill(index, handbook(), embedder)
    for fusion in ("dbsf", "rrf"):
        retriever = Retriever(index, embedder, fusion="rrf" if fusion == "rrf" else "dbsf")
        retrievals.append(await retriever.search(NAME, "paid leave", 1))
    assert len({retrieval.retrieval_id for retrieval in retrievals}) == 2
    for retrieval in retrievals:
        assert {candidate.chunk_id for candidate in retrieval.candidates} == {chunk.chunk_id for chunk in handbook()}
        assert retrieval.candidates[0].lexical is not None
        assert retrieval.candidates[0].dense is not None
        assert retrieval.took_ms > 0


BUSES = ("On a bus, the price for a bicycle is 9 crowns in any season.", "The driver sells tickets.")
FERRIES = ("Cabins on a ferry sleep two people.", "On a ferry, the price for a bicycle is 4 crowns in any season.")


async def test_the_passages_for_a_part_of_a_question_match_the_whole_question(index: EdgeIndex) -> None:
    await index.upsert(NAME, [*paragraphs("buses", *BUSES), *paragraphs("ferries", *FERRIES)])
    question = "How many people sleep in cabins of a ferry, and how much is a bicycle in crowns?"
    retrieval = await Retriever(index).search(NAME, question, 2)
    assert [hit.sentences[0].text for hit in retrieval.hits] == [*FERRIES]


async def test_a_passage_that_answers_one_part_of_a_question_is_as_relevant_as_for_that_part(index: EdgeIndex) -> None:
    await index.upsert(NAME, [*paragraphs("buses", *BUSES), *paragraphs("ferries", *FERRIES)])
    part = "How many people sleep in cabins of a ferry?"
    part_result, whole_result = [
        await Retriever(index).search(NAME, question, 3) for question in (part, f"{part} Who repairs the bent anchors?")
    ]
    assert part_result.hits[0].sentences[0].text == whole_result.hits[0].sentences[0].text == FERRIES[0]
    assert whole_result.hits[0].relevance_score == pytest.approx(part_result.hits[0].relevance_score)
