"""The search playground: which leg found a passage, how it was weighted, and whether the model sees it."""

from pathlib import Path

import pytest

from tests.ingestion.test_traces import read_retrieval
from tests.retriever.tiny_reranker import write_reranker
from tests.server.rig import Json, Rig

TEXT = b"""# Leave

Paid leave is twenty-five days a year.

# Travel

Travel is by train. Leave early.

# Gold

The gold reserve is for paid rescue.

# Fire

The extinguisher hangs beside the door.
"""


async def search(rig: Rig, domain: str, query: str, **settings: object) -> Json:
    answer: Json = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query, **settings})
    return answer


async def test_a_search_shows_the_weights_of_each_passage_and_whether_the_model_sees_it(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        answer = await search(rig, domain, "paid leave", topK=1, fusion="rrf")
        assert (answer["threshold"], answer["topK"], answer["fusion"], answer["reranked"]) == (0, 1, "rrf", False)
        candidates = answer["candidates"]
        assert [candidate["fusedRank"] for candidate in candidates] == list(range(1, len(candidates) + 1))
        assert [candidate["lexicalRank"] for candidate in candidates] == [1, 2, 3][: len(candidates)]
        assert all("denseRank" not in candidate and candidate["dense"] is None for candidate in candidates)
        assert [candidate.get("hit") for candidate in candidates] == [1] + [None] * (len(candidates) - 1)
        assert candidates[0]["headingPath"] == ["Leave"]
        assert candidates[0]["snippet"].startswith("Paid leave")
        assert all(candidate["aboveThreshold"] for candidate in candidates)
        assert (await read_retrieval(rig, domain, answer["retrievalId"]))["candidates"] == candidates
        scores = sorted(candidate["relevanceScore"] for candidate in candidates)
        narrowed = await search(rig, domain, "paid leave", threshold=(scores[-2] + scores[-1]) / 2)
        assert [candidate["aboveThreshold"] for candidate in narrowed["candidates"]].count(True) == 1
        # The last digits may differ from search to search.
        assert [candidate["relevanceScore"] for candidate in narrowed["candidates"]] == pytest.approx(
            [candidate["relevanceScore"] for candidate in candidates], rel=1e-6
        )
        assert len(narrowed["hits"]) == 1
        assert (await search(rig, domain, "paid leave", threshold=1))["hits"] == []


async def test_the_playground_shows_the_rerankers_changes(tmp_path: Path) -> None:
    name = write_reranker(tmp_path / "models")
    async with Rig(tmp_path, model_cache=tmp_path / "models") as rig:
        domain = await rig.domain(reranker=name)
        await rig.upload(domain, "a.md", TEXT)
        answer = await search(rig, domain, "paid leave", topK=2)
        assert (answer["reranked"], "note" in answer) == (True, False)
        gold = next(candidate for candidate in answer["candidates"] if candidate["headingPath"] == ["Gold"])
        assert gold["fusedRank"] > gold["rerankedRank"] == gold["hit"] == 1
        assert gold["reranked"] == max(candidate["reranked"] for candidate in answer["candidates"])
        assert answer["hits"][0]["headingPath"] == ["Gold"]
        assert (await read_retrieval(rig, domain, answer["retrievalId"]))["candidates"] == answer["candidates"]


async def test_hits_beyond_the_budget_are_not_shown_to_the_model(tmp_path: Path) -> None:
    text = "\n\n".join(f"# Part {part}\n\n" + f"Paid leave {part} of the handbook. " * 30 for part in range(4))
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(retrievalTokens=300)
        await rig.upload(domain, "a.md", text.encode())
        answer = await search(rig, domain, "paid leave")
        assert len(answer["hits"]) < 4
        hit_numbers = [candidate["hit"] for candidate in answer["candidates"] if "hit" in candidate]
        assert sorted(set(hit_numbers)) == list(range(1, len(answer["hits"]) + 1))
