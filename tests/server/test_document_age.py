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
    last = request.messages[-1]["content"]
    found = [part for block in last for part in block.get("content", ()) if part["type"] == "search_result"]
    if any(block["type"] == "tool_result" for block in last):
        return Step((Say("The bar is here.", tuple(Cite(at) for at in range(len(found)))),))
    question = next(block["text"] for block in reversed(last) if block["type"] == "text")
    return Step((Use("search_documents", {"query": question, "top_k": 1}),))


async def ask(rig: Rig, domain: str, question: str) -> list[Json]:
    made = await rig.ok("POST", "/api/conversations", {"domainId": domain})
    sent = await rig.http.post(f"/api/conversations/{made['id']}/messages", json={"content": question})
    return events_of(sent.text)


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
        for name, given in facts.items():
            word = name.removesuffix(".md").replace(" bar", "").replace(" ", "")
            made = await rig.upload(domain, name, f"# Title\n\nThe {word} bar is here.".encode())
            ids[name] = made["id"]
            changed = await rig.ok("PATCH", f"{path}/documents/{made['id']}", given)
            assert {key: changed[key] for key in given} == given
        for word, times in (("beta2023", 3), ("gamma", 2), ("alpha", 1), ("delta", 4), ("beta2024", 5)):
            for _ in range(times):
                events = await ask(rig, domain, word)
        cited = next(event for event in events if event["type"] == "source_reference")
        assert (cited["documentDate"], cited["reviewBy"]) == ("2024-05-01", day(30))
        report = (await rig.ok("GET", f"{path}/stale-documents"))["items"]
        shown = [(each["documentName"], each["reason"], each["citations"], each["answers"]) for each in report]
        assert shown == [
            ("beta bar 2023.md", "superseded", 3, 3),
            ("gamma bar.md", "old", 2, 2),
            ("alpha bar.md", "review", 1, 1),
            ("omega bar.md", "review", 0, 0),
        ]
        assert report[0]["newerId"] == ids["beta bar 2024.md"]
        assert (await rig.ok("GET", f"{path}/stale-documents?limit=1"))["hasMore"] is True
        none_old = (await rig.ok("GET", f"{path}/stale-documents?olderThan=900"))["items"]
        assert "gamma bar.md" not in [each["documentName"] for each in none_old]
        listed = await rig.ok("GET", f"{path}/documents")
        assert {item["name"]: item["date"] for item in listed["items"]}["gamma bar.md"] == day(-800)
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
        for each, given in ((old, "2023-01-01"), (new, "2024-01-01")):
            await rig.ok("PATCH", f"{path}/documents/{each['id']}", {"date": given})

        async def hits(count: int) -> list[str]:
            body = {"query": "hotel nights are paid up to", "topK": count}
            found = await rig.ok("POST", f"{path}/documents/search", body)
            assert found["topK"] == count
            return [hit["documentId"] for hit in found["hits"]]

        assert await hits(2) == [old["id"], new["id"]]
        await rig.ok("PATCH", path, {"settings": {"retrievalPreferNewer": True}})
        assert await hits(2) == [new["id"], old["id"]]
        assert await hits(1) == [new["id"]]
