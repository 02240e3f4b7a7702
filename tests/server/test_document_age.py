"""Dates of documents: in citations and lists, in searches, and in the report of stale documents."""

from datetime import date, timedelta
from pathlib import Path

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Cite, Say, Step, Use
from tests.server.rig import Json, Rig, events_of


def day(offset: int) -> str:
    return (date.today() + timedelta(days=offset)).isoformat()


def answer(request: ModelRequest) -> Step:
    """Search for the words of the question, then cite every passage of the result."""
    content = request.messages[-1]["content"]
    results = [part for block in content for part in block.get("content", ()) if part["type"] == "search_result"]
    if any(block["type"] == "tool_result" for block in content):
        return Step((Say("The bar is here.", tuple(Cite(index) for index in range(len(results)))),))
    question = next(block["text"] for block in reversed(content) if block["type"] == "text")
    return Step((Use("search_documents", {"query": question, "top_k": 1}),))


async def ask(rig: Rig, domain: str, question: str) -> list[Json]:
    conversation = await rig.ok("POST", "/api/conversations", {"domainId": domain})
    response = await rig.http.post(f"/api/conversations/{conversation['id']}/messages", json={"content": question})
    return events_of(response.text)


async def test_the_report_lists_the_most_cited_stale_documents_first(tmp_path: Path) -> None:
    async with Rig(tmp_path, instead=ScriptedModel(then=answer)) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}"
        facts: dict[str, Json] = {
            "alpha bar.md": {"reviewBy": day(-1)},
            "beta bar 2023.md": {"date": "2023-05-01"},
            "beta bar 2024.md": {"date": "2024-05-01", "reviewBy": day(30)},
            "gamma bar.md": {"date": day(-800)},
            "delta bar.md": {"reviewBy": day(0)},
            "omega bar.md": {"reviewBy": day(-400)},
        }
        ids = {}
        for name, changes in facts.items():
            word = name.removesuffix(".md").replace(" bar", "").replace(" ", "")
            document = await rig.upload(domain, name, f"# Title\n\nThe {word} bar is here.".encode())
            ids[name] = document["id"]
            document_record = await rig.ok("PATCH", f"{path}/documents/{document['id']}", changes)
            assert {key: document_record[key] for key in changes} == changes
        for word, times in (("beta2023", 3), ("gamma", 2), ("alpha", 1), ("delta", 4), ("beta2024", 5)):
            for _ in range(times):
                events = await ask(rig, domain, word)
        reference = next(event for event in events if event["type"] == "source_reference")
        assert (reference["documentDate"], reference["reviewBy"]) == ("2024-05-01", day(30))
        report = (await rig.ok("GET", f"{path}/stale-documents"))["items"]
        rows = [(entry["documentName"], entry["reason"], entry["citations"], entry["answers"]) for entry in report]
        assert rows == [
            ("beta bar 2023.md", "superseded", 3, 3),
            ("gamma bar.md", "old", 2, 2),
            ("alpha bar.md", "review", 1, 1),
            ("omega bar.md", "review", 0, 0),
        ]
        assert report[0]["newerId"] == ids["beta bar 2024.md"]
        assert (await rig.ok("GET", f"{path}/stale-documents?limit=1"))["hasMore"] is True
        none_old = (await rig.ok("GET", f"{path}/stale-documents?olderThan=900"))["items"]
        assert "gamma bar.md" not in [document["documentName"] for document in none_old]
        page = await rig.ok("GET", f"{path}/documents")
        assert {item["name"]: item["date"] for item in page["items"]}["gamma bar.md"] == day(-800)
        for wrong in ("2024-13-01", "20240501", "2024-05-01T10:00", 20240501):
            refusal = await rig.refused("PATCH", f"{path}/documents/{ids['gamma bar.md']}", {"date": wrong})
            assert refusal[:2] == (422, "VALIDATION_ERROR")
        await rig.ok("PATCH", f"{path}/documents/{ids['gamma bar.md']}", {"date": None})
        back = await rig.ok("GET", f"{path}/documents/{ids['gamma bar.md']}")
        assert back["date"] == back["createdAt"][:10]


async def test_searches_prefer_newer_versions_only_by_setting(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}"
        before, after = (
            b"# Travel\n\nHotel nights are paid up to ninety euros.",
            b"# Travel\n\nNights in a hotel: we pay more.",
        )
        old = await rig.upload(domain, "Travel policy 2023.md", before)
        new = await rig.upload(domain, "Travel policy 2024.md", after)
        for document, date in ((old, "2023-01-01"), (new, "2024-01-01")):
            await rig.ok("PATCH", f"{path}/documents/{document['id']}", {"date": date})

        async def hits(count: int) -> list[str]:
            body = {"query": "hotel nights are paid up to", "topK": count}
            search_result = await rig.ok("POST", f"{path}/documents/search", body)
            assert search_result["topK"] == count
            return [hit["documentId"] for hit in search_result["hits"]]

        assert await hits(2) == [old["id"], new["id"]]
        await rig.ok("PATCH", path, {"settings": {"retrievalPreferNewer": True}})
        assert await hits(2) == [new["id"], old["id"]]
        assert await hits(1) == [new["id"]]
