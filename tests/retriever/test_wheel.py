"""The embedder of the wheel, windows, and questions of several parts: meaning across languages without a download."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_servers.retriever import wheel_embedder
from mcp_servers.retriever.chunking import Chunk, TextSpan
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.embedders import make_embedder
from mcp_servers.retriever.errors import EmbedderFailed
from mcp_servers.retriever.questions import required_codes, split_question
from mcp_servers.retriever.retrieval import Retriever
from mcp_servers.retriever.sentences import split_sentences
from mcp_servers.retriever.wheel_embedder import BATCH, NAME, TOKEN_LIMIT, WheelEmbedder
from mcp_servers.retriever.windows import WIDTH_PER_TOKEN, chunk_windows, embed_chunks, width
from tests.waiting import pause

FACTS = (
    "Dogs are kept on a lead no longer than two metres.",
    "Feuerwerk wird überhaupt nicht befördert.",
    "夜航补贴每航次六十八元。",
    "Lost umbrellas are kept for ten weeks at the terminal.",
    "The engine is overhauled every four years.",
)
FILLER = "The office answers letters on weekdays and sends a copy to the archive. " * 12


def make_chunk(number: int, text: str, heading: str = "") -> Chunk:
    spans = tuple(TextSpan(*span) for span in split_sentences(text))
    path = (heading,) if heading else ()
    name = f"d{number}"
    return Chunk(f"00000000-0000-0000-0000-{number:012}", name, name, 0, path, None, None, text, 0, len(text), spans)


@pytest.fixture
async def embedder() -> AsyncIterator[WheelEmbedder]:
    async with aclosing(WheelEmbedder()) as wheel:
        yield wheel


@pytest.fixture
async def retriever(tmp_path: Path, embedder: WheelEmbedder) -> AsyncIterator[Retriever]:
    async with aclosing(EdgeIndex(tmp_path)) as index:
        chunks = [make_chunk(number, fact) for number, fact in enumerate(FACTS)]
        chunks.append(make_chunk(9, FILLER + "Skippers report fog to the coastguard. " + FILLER))
        await index.upsert("c", chunks, await embed_chunks(embedder, chunks))
        yield Retriever(index, embedder)


async def test_a_question_in_another_language_or_other_words_is_found(retriever: Retriever) -> None:
    answers = {
        "May fireworks be carried?": "d1",
        "Wie lang darf die Leine eines Hundes sein?": "d0",
        "How much is the allowance for a night voyage?": "d2",
        "Whom does a captain tell when it is misty?": "d9",
    }
    for question, document in answers.items():
        retrieval = await retriever.search("c", question, 2)
        assert retrieval.mode == "hybrid"
        assert document in [hit.document_id for hit in retrieval.hits], question


async def test_a_setting_chooses_the_wheel(tmp_path: Path) -> None:
    wheel = make_embedder("wheel", tmp_path)
    assert wheel is not None
    assert wheel.name == NAME


async def test_any_text_has_a_vector_and_a_dead_embedder_process_is_restarted(embedder: WheelEmbedder) -> None:
    vectors = await embedder.embed_documents(["", " ", "\x00", "\ud800", "字" * 20_000, "x"])
    assert {len(vector) for vector in vectors} == {512}
    await embedder.aclose()
    assert len(await embedder.embed_query("again")) == 512


@pytest.mark.slow("starts the embedder's process twice")
async def test_a_process_that_hangs_fails_its_requests_and_is_replaced(
    embedder: WheelEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await embedder.load()
    stopped = embedder.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(wheel_embedder, "ANSWER_SECONDS", 0.5)
    failures: list[str] = []

    async def expect_failure(embed: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(EmbedderFailed) as failure:
            await embed()
        failures.append(failure.value.reason)

    async with anyio.create_task_group() as tasks:
        # Together far more than a pipe holds, so that a write has to wait for the process.
        tasks.start_soon(expect_failure, partial(embedder.embed_documents, ["字" * 4_000] * BATCH))
        tasks.start_soon(expect_failure, partial(embedder.embed_query, "Where is the key?"))
    assert len(failures) == 2
    assert "no answer within 0.5 s" in failures
    monkeypatch.setattr(wheel_embedder, "ANSWER_SECONDS", 240)
    assert len(await embedder.embed_query("again")) == 512
    assert embedder.pid not in (None, stopped)


async def test_a_process_that_took_part_of_a_request_gets_no_other_request(
    embedder: WheelEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start(["sleep", "600"], **options))
    monkeypatch.setattr(wheel_embedder, "ANSWER_SECONDS", 0.2)
    with pytest.raises(EmbedderFailed, match="no answer"):
        await embedder.embed_query("Where is the key?")
    assert embedder.pid is not None  # it may still be loading its model
    with pytest.raises(EmbedderFailed, match="no answer"):
        await embedder.embed_documents(["字" * 4_000] * BATCH)
    assert embedder.pid is None


async def test_a_process_that_reads_no_more_requests_is_replaced(
    embedder: WheelEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, command = subprocess.Popen, ["sh", "-c", "exec <&-; exec sleep 600"]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: start(command, **options))
    with pytest.raises(EmbedderFailed) as failure:  # more than the pipe takes, so it is still written then
        await embedder.embed_documents(["字" * 4_000] * BATCH)
    assert failure.value.reason == "its process ended (status -9)"
    assert embedder.pid is None


@pytest.mark.slow("starts the embedder's process twice")
async def test_no_request_waits_for_a_process_that_was_killed(embedder: WheelEmbedder) -> None:
    await embedder.load()
    stopped = embedder.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    reasons: list[str] = []

    async def ask() -> None:
        try:
            await embedder.embed_query("Where is the key?")
        except EmbedderFailed as failure:
            reasons.append(failure.reason)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
        await pause()  # most of the requests are sent now; one that is not goes to the next process
        os.kill(stopped, signal.SIGKILL)
        tasks.start_soon(ask)
    assert set(reasons) <= {"its process ended (status -9)"}
    assert len(await embedder.embed_query("again")) == 512


def test_windows_cover_a_long_chunk_and_none_is_longer_than_the_embedder_reads() -> None:
    for text in (FILLER, "无标点" * 400, "word " * 300, "夜航补贴每航次六十八元。" * 60):
        windows = chunk_windows(make_chunk(1, text, "A heading"), TOKEN_LIMIT)
        assert len(windows) > 1
        assert all(width(window) <= TOKEN_LIMIT * WIDTH_PER_TOKEN + 8 for window in windows)
        assert all(window.startswith("A heading\n") for window in windows)
        assert text.strip()[-10:] in windows[-1]
    assert chunk_windows(make_chunk(1, FILLER), None) == [FILLER]
    assert chunk_windows(make_chunk(1, "short"), TOKEN_LIMIT) == ["short"]
    with_context = replace(make_chunk(1, FILLER, "A heading"), context="About vacation.")
    text_windows = chunk_windows(replace(with_context, context=""), TOKEN_LIMIT)
    assert chunk_windows(with_context, TOKEN_LIMIT) == [*text_windows, "About vacation."], (
        "a line takes no room from the text"
    )


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("What does the island card cost, and how long is a ten-trip card valid?", 2),
        ("毛毯和沙袋分别存放在哪里？", 2),
        ("Compare the deposit of a bicycle with the deposit of a boat.", 2),
        ("Vergleichen Sie die Gebühr der Inselkarte mit der Gebühr der Zehnerkarte.", 2),
        ("What does a lost card cost compared with a damaged book?", 2),
        ("May I travel with my dog to the island?", 0),
        ("What does the island card cost?", 0),
        ("terms and conditions", 0),
        ("and or and or", 0),
        ("a, b and " * 2_000, 0),
        (f"What does a lost card cost{' ' * 400}and what does a damaged book cost?", 2),
    ],
)
def test_a_question_about_two_things_has_two_parts(question: str, parts: int) -> None:
    assert len(split_question(question)) == parts


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        (
            "Compare the noise of the Brisa 300 and the Brisa 900",
            ["the noise of the Brisa 300", "the noise of the Brisa 900"],
        ),
        ("Vergleiche den Preis von Linie 4 und von Linie 7", ["den Preis von Linie 4", "den Preis von Linie 7"]),
        ("Vergleiche das Gewicht der Aroma 6 mit der Aroma 9", ["das Gewicht der Aroma 6", "das Gewicht der Aroma 9"]),
        ("Vergleiche den Preis der Aroma 6 mit dem der Aroma 9", ["den Preis der Aroma 6", "den Preis der Aroma 9"]),
        (
            "Compare le bruit de la Brisa 3 avec celui de la Brisa 9",
            ["le bruit de la Brisa 3", "le bruit de la Brisa 9"],
        ),
        (
            "Confronta il peso della Brisa 3 con quello della Brisa 9",
            ["il peso della Brisa 3", "il peso della Brisa 9"],
        ),
        ("Compara el ruido de la Brisa 3 y el de la Brisa 9", ["el ruido de la Brisa 3", "el ruido de la Brisa 9"]),
        ("Compare the Brisa 3's noise with the Brisa 9's", ["the Brisa 3's noise", "the Brisa 9's noise"]),
        ("How loud are the Brisa 3 and the Brisa 9?", ["How loud are the Brisa 3", "How loud are Brisa 9?"]),
        (
            "What costs more: a lost pass or a lost card?",
            ["What costs more: a lost pass", "What costs more: a lost card?"],
        ),
        ("微风300的噪声和微风900相比怎么样？", ["微风300的噪声", "微风900的噪声"]),
        ("毛毯和沙袋分别存放在哪里？", ["毛毯分别存放在哪里？", "沙袋分别存放在哪里？"]),
        ("比较微风300和微风900的噪声", ["微风300的噪声", "微风900的噪声"]),
        (
            "Who runs the desk of the harbour, and who leads the drill?",
            ["Who runs the desk of the harbour", "who leads the drill?"],
        ),
    ],
)
def test_an_attribute_of_several_things_is_searched_for_each(question: str, parts: list[str]) -> None:
    assert split_question(question) == parts


@pytest.mark.parametrize(
    ("question", "identifies"),
    [
        ("What is the price of HX-4471-B?", True),
        ("When does trip 4101 leave?", True),
        ("What does § 5.2 say?", True),
        ("Where does line 4 stop?", False),
        ("Is the Brisa 500 repaired?", False),
        ("How loud is the Falcon 60?", False),
        ("Wie schwer ist die Aroma 12?", False),
    ],
)
def test_a_small_number_is_required_but_identifies_no_passage(question: str, identifies: bool) -> None:
    codes = required_codes(question)
    assert codes
    assert any(code.identifies for code in codes) is identifies


@pytest.mark.parametrize(
    "question",
    ["How many days has Anna 3 weeks before?", "Is it open on May 5?", "Kostet ein Kind 6 Euro?", "Am Montag 9 Uhr?"],
)
def test_a_number_by_which_something_is_counted_is_not_required(question: str) -> None:
    assert required_codes(question) == ()


async def test_a_search_reports_the_part_without_a_match(tmp_path: Path, embedder: WheelEmbedder) -> None:
    async with aclosing(EdgeIndex(tmp_path)) as index:
        chunks = [
            make_chunk(1, "The noise of the Falcon 20 lathe is 71 dB."),
            make_chunk(2, "The noise of the Falcon 40 lathe is 78 dB."),
            *(
                make_chunk(week, f"The Falcon lathe is greased by the hall master in week {week}.")
                for week in (3, 5, 7)
            ),
        ]
        await index.upsert("c", chunks, await embed_chunks(embedder, chunks))
        retriever = Retriever(index, embedder)
        english = await retriever.search("c", "Compare the noise of the Falcon 20 and the Falcon 60.", 5)
        assert english.unmatched == ("the noise of the Falcon 60",)
        assert english.hits[0].document_id == "d1"
        german = await retriever.search("c", "Vergleiche den Lärm der Falcon 60 mit dem der Falcon 20", 5)
        assert german.unmatched == ("den Lärm der Falcon 60",)
        for question in ("Compare the noise of the Falcon 20 and the Falcon 40.", "Falcon 60 and Falcon 80"):
            assert (await retriever.search("c", question, 5)).unmatched == ()


async def test_a_passage_in_the_language_of_the_question_has_a_place_among_the_first(
    tmp_path: Path, embedder: WheelEmbedder
) -> None:
    async with aclosing(EdgeIndex(tmp_path)) as index:
        german_chunks = [
            make_chunk(number, f"Wo darf ich meinen Hund an der Leine {number} führen?") for number in range(1, 9)
        ]
        chunks = [
            *german_chunks,
            make_chunk(20, "The gate of the yard is shut at night, and the key is with the guard."),
        ]
        await index.upsert("c", chunks, await embed_chunks(embedder, chunks))
        retrieval = await Retriever(index, embedder).search("c", "Where may my dog go?", 5)
        assert "d20" in [hit.document_id for hit in retrieval.hits]


async def test_one_document_does_not_fill_all_hits_of_a_comparison(tmp_path: Path, embedder: WheelEmbedder) -> None:
    async with aclosing(EdgeIndex(tmp_path)) as index:
        card_chunks = [
            make_chunk(number, f"Ten-trip card rule {number}: the card is valid on line {number}.")
            for number in range(1, 9)
        ]
        chunks = [*card_chunks, make_chunk(20, "Die Inselkarte kostet 1 460 Kronen im Jahr.")]
        await index.upsert("c", chunks, await embed_chunks(embedder, chunks))
        retrieval = await Retriever(index, embedder).search(
            "c", "What does the Inselkarte cost, and where is the ten-trip card valid?", 3
        )
        names = [hit.document_id for hit in retrieval.hits]
        assert "d20" in names
        assert len(names) == 3
