"""Embedders: the local one with a real (tiny) ONNX model, the HTTP one against a real ASGI endpoint, and settings."""

import gzip
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mcp_servers.retriever.embedders import DEFAULT_MODEL, make_embedder
from mcp_servers.retriever.errors import EmbedderFailed, ModelMissing
from mcp_servers.retriever.fast_embedder import FastEmbedder, FastReranker
from mcp_servers.retriever.http_embedder import ANSWER_BYTES, ATTEMPTS, MAX_REASON, HttpEmbedder

from .tiny_model import DIMENSION, write_model


def cosine(a_vector: list[float], b_vector: list[float]) -> float:
    return sum(a * b for a, b in zip(a_vector, b_vector, strict=True)) / math.hypot(*a_vector) / math.hypot(*b_vector)


async def test_a_model_folder_gives_vectors_in_the_order_of_the_texts(tmp_path: Path) -> None:
    embedder = FastEmbedder(write_model(tmp_path / "tiny"), tmp_path)
    texts = ["doctor " * 30, "car", "holiday days", *["pump"] * 20]
    vectors = await embedder.embed_documents(texts)
    assert [len(vector) for vector in vectors] == [DIMENSION] * len(texts)
    assert cosine(vectors[1], await embedder.embed_query("automobile")) == pytest.approx(1.0, abs=1e-5)
    assert cosine(vectors[0], vectors[1]) < 0.5
    assert embedder.name == "local:tiny"
    await embedder.aclose()


def test_a_local_model_reports_no_usage_to_its_runtimes_maker(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path; from mcp_servers.retriever.fast_embedder import FastEmbedder; "
        "folder = Path(sys.argv[1]); asyncio.run(FastEmbedder(folder, folder.parent).embed_query('car'))"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script, str(write_model(tmp_path / "tiny"))]
    subprocess.run(command, env=environment, check=True, timeout=240)
    # With reports, onnxruntime stores an id of the machine and its database of events here.
    assert list(home.rglob("*")) == []


async def test_a_missing_folder_or_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="nowhere"):
        await FastEmbedder(tmp_path / "nowhere", tmp_path).embed_query("x")
    with pytest.raises(ModelMissing, match="MiniLM"):
        await FastEmbedder(DEFAULT_MODEL, tmp_path).load()
    with pytest.raises(ModelMissing, match="ms-marco"):
        await FastReranker("Xenova/ms-marco-MiniLM-L-6-v2", tmp_path).rerank("a", ["b"])


async def test_fetching_a_local_model_loads_it_and_reports_progress(tmp_path: Path) -> None:
    embedder = FastEmbedder(write_model(tmp_path / "local"), tmp_path)
    reports: list[tuple[int, int]] = []
    await embedder.fetch(lambda fetched, expected: reports.append((fetched, expected)))
    assert len(await embedder.embed_query("car")) == DIMENSION


def open_endpoint(*answers: Response | dict[str, Any], key: str = "key") -> tuple[HttpEmbedder, list[dict[str, Any]]]:
    """An embedder whose endpoint returns one answer after the other, then vectors; also the bodies it received."""
    bodies: list[dict[str, Any]] = []
    remaining = list(answers)

    async def embeddings(request: Request) -> Response:
        bodies.append({**await request.json(), "key": request.headers.get("authorization")})
        if remaining:
            answer = remaining.pop(0)
            return answer if isinstance(answer, Response) else JSONResponse(answer)
        rows = [{"index": number, "embedding": [float(number), 1.0]} for number, _ in enumerate(bodies[-1]["input"])]
        return JSONResponse({"data": rows[::-1]})

    app = Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"])])
    return HttpEmbedder("http://host/v1/", "m", key, httpx2.ASGITransport(app=app), retry_seconds=0.0), bodies


async def test_an_http_endpoint_is_asked_in_batches_and_answers_in_any_order() -> None:
    embedder, bodies = open_endpoint()
    vectors = await embedder.embed_documents([f"text {number}" for number in range(70)])
    assert [len(body["input"]) for body in bodies] == [64, 6]
    assert vectors[1] == [1.0, 1.0]
    assert vectors[69] == [5.0, 1.0]
    assert bodies[0]["model"] == "m"
    assert bodies[0]["key"] == "Bearer key"
    assert embedder.name == "http:m"
    await embedder.aclose()


async def test_a_busy_endpoint_is_retried() -> None:
    embedder, bodies = open_endpoint(PlainTextResponse("busy", 503), PlainTextResponse("slow down", 429))
    assert await embedder.embed_query("x") == [0.0, 1.0]
    assert len(bodies) == ATTEMPTS
    await embedder.aclose()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (PlainTextResponse("no such model", 404), "status 404: no such model"),
        (PlainTextResponse("hello"), "not JSON"),
        (PlainTextResponse("[" * 100_000), "not JSON"),
        ({"vectors": []}, "have the shape"),
        ({"data": []}, "0 vectors for 1 texts"),
        ({"data": [{"index": 0, "embedding": []}]}, "1 vectors for 1 texts"),
        ({"data": [{"index": 0, "embedding": [10**400]}]}, "have the shape"),
    ],
)
async def test_an_unusable_answer_is_a_typed_failure(answer: Response | dict[str, Any], reason: str) -> None:
    embedder, _ = open_endpoint(answer)
    with pytest.raises(EmbedderFailed, match=reason) as exc_info:
        await embedder.embed_query("x")
    assert "key" not in str(exc_info.value)
    await embedder.aclose()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e39", "1e30", "9" * 300, '"nan"'])
async def test_a_number_too_large_for_the_index_is_a_typed_error(number: str) -> None:
    """The index stores 32-bit numbers and divides by the square root of their summed squares."""
    body = f'{{"data": [{{"index": 0, "embedding": [0.5, {number}]}}]}}'
    embedder, _ = open_endpoint(Response(body, media_type="application/json"))
    with pytest.raises(EmbedderFailed, match=r"'http:m' failed: .* that is not a usable number"):
        await embedder.embed_documents(["x"])
    assert await embedder.embed_query("x") == [0.0, 1.0]
    await embedder.aclose()


@pytest.mark.parametrize("filler", ["", "x" * 180, "x" * 10_000])
@pytest.mark.parametrize("echo", ['Bearer emb/secret"1', '{"error": "Bearer emb/secret\\"1"}', "?key=emb%2Fsecret%221"])
async def test_an_error_that_repeats_the_key_is_redacted(filler: str, echo: str) -> None:
    embedder, bodies = open_endpoint(PlainTextResponse(f"{filler} refused:\n\x1b[31m {echo}", 401), key='emb/secret"1')
    with pytest.raises(EmbedderFailed, match="status 401: ") as exc_info:
        await embedder.embed_query("x")
    assert bodies[0]["key"] == 'Bearer emb/secret"1'
    reason = exc_info.value.reason
    assert "emb" not in reason
    assert "secret" not in reason
    assert reason.isprintable()
    assert len(reason) <= len("status 401: ") + MAX_REASON
    await embedder.aclose()


@pytest.mark.parametrize("status", [200, 400])
async def test_an_endless_answer_is_refused_by_its_unpacked_size(status: int) -> None:
    """40 KB of gzip that unpack to 40 MB of JSON white space, and as many that unpack to an error."""
    compressed = gzip.compress(b" " * (ANSWER_BYTES + 8 * 2**20))
    embedder, bodies = open_endpoint(Response(compressed, status, {"Content-Encoding": "gzip"}, "application/json"))
    with pytest.raises(EmbedderFailed, match="longer than"):
        await embedder.embed_query("x")
    assert len(bodies) == 1
    assert await embedder.embed_query("x") == [0.0, 1.0]
    await embedder.aclose()


async def test_vectors_of_different_dimensions_in_one_answer_are_refused() -> None:
    rows = [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]
    embedder, _ = open_endpoint({"data": rows})
    with pytest.raises(EmbedderFailed, match="different dimensions"):
        await embedder.embed_documents(["a", "b"])
    await embedder.aclose()


def test_a_setting_names_the_embedder(tmp_path: Path) -> None:
    names = {
        "": f"fastembed:{DEFAULT_MODEL}",
        "fastembed:BAAI/bge-small-zh-v1.5": "fastembed:BAAI/bge-small-zh-v1.5",
        "/models/minilm": "local:minilm",
        "https://host/v1#text-embedding-3": "http:text-embedding-3",
    }
    for setting, name in names.items():
        embedder = make_embedder(setting, tmp_path)
        assert embedder is not None
        assert embedder.name == name
    assert make_embedder("none", tmp_path) is None
    with pytest.raises(ValueError, match="not an embedder"):
        make_embedder("gpt", tmp_path)
