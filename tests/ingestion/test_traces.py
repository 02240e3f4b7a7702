"""Kept searches hold no text: what they show is what there still is of the passages they found."""

from pathlib import Path

from agentic_rag.testing.steps import Cite, say, use
from tests.server.rig import Json, Rig

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"
OTHER = b"# Travel\n\nPaid travel is by train. Leave early.\n"
WORDS = ("twenty-five", "Holidays")


async def searched(rig: Rig, domain: str) -> Json:
    made: Json = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "paid leave"})
    return made


async def kept(rig: Rig, domain: str, retrieval: str) -> Json:
    found: Json = await rig.ok("GET", f"/api/domains/{domain}/retrievals/{retrieval}")
    return found


def stored_bytes(rig: Rig) -> bytes:
    """Return all that is in the database's files."""
    return b"".join(path.read_bytes() for path in rig.settings.data.glob("agentic-rag.db*"))


async def test_a_kept_search_shows_a_deleted_documents_hit_as_removed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        gone = await rig.upload(domain, "secret plan.md", TEXT)
        stays = await rig.upload(domain, "travel.md", OTHER)
        made = await searched(rig, domain)
        assert {hit["documentId"] for hit in made["hits"]} == {gone["id"], stays["id"]}
        assert (await kept(rig, domain, made["retrievalId"]))["hits"] == made["hits"]
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{gone['id']}")
        shown = await kept(rig, domain, made["retrievalId"])
        hits = {hit["documentId"]: hit for hit in shown["hits"]}
        before = {hit["documentId"]: hit for hit in made["hits"]}
        removed = hits[gone["id"]]
        assert removed == before[gone["id"]] | {
            "documentName": "[removed]",
            "headingPath": [],
            "sentences": [],
        }
        assert hits[stays["id"]] == before[stays["id"]]
        assert not any(word in str(shown) for word in (*WORDS, "secret plan"))


async def test_no_word_of_a_passage_is_in_the_database_after_a_search(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        await searched(rig, domain)
    assert b"paid leave" in stored_bytes(rig), "the question is kept"
    assert b"twenty-five" not in stored_bytes(rig)


async def test_a_kept_search_of_a_document_that_changed_shows_its_name_and_no_text(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        document = await rig.upload(domain, "a.md", TEXT)
        made = await searched(rig, domain)
        await rig.ok("POST", f"{path}?replace=true", files={"f": ("a.md", OTHER)})
        await rig.settled(domain, document["id"])
        (hit,) = (await kept(rig, domain, made["retrievalId"]))["hits"]
        assert (hit["documentId"], hit["documentName"], hit["sentences"]) == (document["id"], "a.md", [])


async def test_without_the_index_a_kept_search_has_names_and_scores(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        made = await searched(rig, domain)
    async with Rig(tmp_path, qdrant_url="http://127.0.0.1:9") as rig:
        (hit,) = (await kept(rig, domain, made["retrievalId"]))["hits"]
        assert (hit["documentName"], hit["score"], hit["sentences"]) == ("a.md", made["hits"][0]["score"], [])


async def test_hits_beyond_the_weighed_candidates_are_shown_too(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for number in range(60):
            await rig.upload(domain, f"{number}.md", b"The leave number %d is paid." % number)
        search = {"query": "paid leave", "topK": 50}
        made = await rig.ok("POST", f"/api/domains/{domain}/documents/search", search)
        assert len(made["hits"]) == 50
        assert (await kept(rig, domain, made["retrievalId"]))["hits"] == made["hits"]


async def test_a_search_by_the_model_is_kept_in_the_same_way(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("search_documents", query="paid leave"), say("Many.", Cite(0))) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        await rig.say(await rig.conversation(domain), "How many?")
        (line,) = (await rig.ok("GET", f"/api/domains/{domain}/retrievals"))["items"]
        (hit,) = (await kept(rig, domain, line["retrievalId"]))["hits"]
        assert "twenty-five" in hit["sentences"][-1]["text"]
