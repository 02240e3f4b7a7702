"""A domain's token budget for one search."""

from pathlib import Path

from agentic_rag.testing.steps import Step, Use, say
from mcp_servers.retriever.sentences import estimate_tokens
from tests.server.rig import Json, Rig

SECTION = "## Leave of office {0}\n\n" + "Everyone in office {0} has twenty-five days of paid leave. " * 12 + "\n\n"


def tokens_of(hits: list[Json]) -> int:
    return sum(estimate_tokens(sentence["text"]) for hit in hits for sentence in hit["sentences"])


async def test_a_search_finds_whole_passages_within_the_domains_budget_and_always_the_best(tmp_path: Path) -> None:
    text = "# Offices\n\n" + "".join(SECTION.format(number) for number in range(8))
    async with Rig(tmp_path, Step((Use("search_documents", {"query": "paid leave"}),)), say("Done.")) as rig:
        domain = await rig.domain(retrievalTopK=8)
        await rig.upload(domain, "offices.md", text.encode())
        path = f"/api/domains/{domain}/documents/search"
        all_hits = (await rig.ok("POST", path, {"query": "paid leave"}))["hits"]
        assert len(all_hits) == 8
        budget = tokens_of(all_hits[:3]) + 10
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"retrievalTokens": budget}})
        budget_hits = (await rig.ok("POST", path, {"query": "paid leave"}))["hits"]
        assert [hit["sentences"] for hit in budget_hits] == [hit["sentences"] for hit in all_hits[:3]], "none is cut"
        events = await rig.say(await rig.conversation(domain), "How many days?")
        (event_hits,) = [event["hits"] for event in events if event["type"] == "retrieval"]
        assert len(event_hits) == 3
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"retrievalTokens": 100}})
        best_hits = (await rig.ok("POST", path, {"query": "paid leave"}))["hits"]
        assert [hit["sentences"] for hit in best_hits] == [all_hits[0]["sentences"]]
