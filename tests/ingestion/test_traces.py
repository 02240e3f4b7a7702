"""Stored searches hold no text: they show the passages that still exist."""

from pathlib import Path

import pytest

from agentic_rag.testing.steps import Cite, say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig, events_of

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
    """Return all bytes of the database's files."""
    return b"".join(path.read_bytes() for path in rig.settings.data.glob("agentic-rag.db*"))


async def test_a_stored_search_shows_a_deleted_documents_hit_as_removed(tmp_path: Path) -> None:
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


@pytest.mark.sqlite("reads the file")
async def test_no_text_of_a_passage_is_in_the_database_after_a_search(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        await searched(rig, domain)
    assert b"paid leave" in stored_bytes(rig), "the question is kept"
    assert b"twenty-five" not in stored_bytes(rig)


async def test_a_stored_search_of_a_changed_document_shows_its_name_without_text(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        document = await rig.upload(domain, "a.md", TEXT)
        made = await searched(rig, domain)
        await rig.ok("POST", f"{path}?replace=true", files={"f": ("a.md", OTHER)})
        await rig.settled(domain, document["id"])
        (hit,) = (await kept(rig, domain, made["retrievalId"]))["hits"]
        assert (hit["documentId"], hit["documentName"], hit["sentences"]) == (document["id"], "a.md", [])


async def test_without_the_index_a_stored_search_has_names_and_scores(tmp_path: Path) -> None:
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
        texts = [("file", (f"{number}.md", b"The leave number %d is paid." % number)) for number in range(60)]
        await rig.ok("POST", f"/api/domains/{domain}/documents", files=texts)
        await rig.taken_up(domain)
        search = {"query": "paid leave", "topK": 50}
        made = await rig.ok("POST", f"/api/domains/{domain}/documents/search", search)
        assert len(made["hits"]) == 50
        assert (await kept(rig, domain, made["retrievalId"]))["hits"] == made["hits"]


async def test_a_search_by_the_model_is_stored_the_same_way(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("search_documents", query="paid leave"), say("Many.", Cite(0))) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        await rig.say(await rig.conversation(domain), "How many?")
        (line,) = (await rig.ok("GET", f"/api/domains/{domain}/retrievals"))["items"]
        (hit,) = (await kept(rig, domain, line["retrievalId"]))["hits"]
        assert "twenty-five" in hit["sentences"][-1]["text"]


async def test_a_member_reads_the_searches_of_own_conversations_and_no_others(tmp_path: Path) -> None:
    search = use("search_documents", query="paid leave")
    async with Rig(tmp_path, search, say("Read."), search, say("Read too.")) as rig:
        domain, other = await rig.domain(), await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        by_admin = await searched(rig, domain)
        keys = {name: bearer(await make_key(rig, name, "member", domain, other)) for name in ("ann", "bob")}
        spoken = {}
        for name, key in keys.items():
            made = await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=key)
            path = f"/api/conversations/{made['id']}/messages"
            text = (await rig.http.post(path, json={"content": "Leave?"}, headers=key)).text
            (found,) = [event for event in events_of(text) if event["type"] == "retrieval"]
            spoken[name] = (made["id"], found["turnId"], found["retrievalId"])
        path, (conversation, turn, retrieval) = f"/api/domains/{domain}/retrievals", spoken["ann"]
        listed = await rig.ok("GET", path, params={"conversationId": conversation}, headers=keys["ann"])
        (line,) = listed["items"]
        assert (line["retrievalId"], line["conversationId"], line["turnId"]) == (retrieval, conversation, turn)
        assert line["query"] == "paid leave"
        shown = await rig.ok("GET", f"{path}/{retrieval}", headers=keys["ann"])
        assert shown["hits"]
        assert (shown["conversationId"], shown["turnId"]) == (conversation, turn)
        for others in (by_admin["retrievalId"], spoken["bob"][2]):
            refused = await rig.refused("GET", f"{path}/{others}", headers=keys["ann"])
            assert refused[:2] == (404, "RETRIEVAL_NOT_FOUND")
        theirs = {"conversationId": spoken["bob"][0]}
        assert (await rig.refused("GET", path, params=theirs, headers=keys["ann"]))[:2] == (
            404,
            "CONVERSATION_NOT_FOUND",
        )
        elsewhere = f"/api/domains/{other}/retrievals"
        named = {"conversationId": conversation}
        assert (await rig.ok("GET", elsewhere, params=named, headers=keys["ann"]))["items"] == []
        assert (await rig.refused("GET", path, headers=keys["ann"]))[:2] == (403, "FORBIDDEN")
        by_all = (await rig.ok("GET", path))["items"]
        assert [each["retrievalId"] for each in by_all] == [spoken["bob"][2], retrieval, by_admin["retrievalId"]]
        assert "conversationId" not in by_all[2]
        assert len((await rig.ok("GET", path, params=theirs))["items"]) == 1


async def test_searches_are_deleted_with_their_conversation(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("search_documents", query="paid leave"), say("Read.")) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Leave?")
        path = f"/api/domains/{domain}/retrievals"
        assert len((await rig.ok("GET", path))["items"]) == 1
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        assert (await rig.ok("GET", path))["items"] == []
