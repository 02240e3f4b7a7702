"""Stored searches hold no text: they show the passages that still exist."""

from pathlib import Path

import pytest

from agentic_rag.testing.steps import Cite, say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig, events_of

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"
OTHER = b"# Travel\n\nPaid travel is by train. Leave early.\n"
WORDS = ("twenty-five", "Holidays")


async def search_paid_leave(rig: Rig, domain: str) -> Json:
    answer: Json = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "paid leave"})
    return answer


async def read_retrieval(rig: Rig, domain: str, retrieval: str) -> Json:
    trace: Json = await rig.ok("GET", f"/api/domains/{domain}/retrievals/{retrieval}")
    return trace


def stored_bytes(rig: Rig) -> bytes:
    """Return all bytes of the database's files."""
    return b"".join(path.read_bytes() for path in rig.settings.data.glob("agentic-rag.db*"))


async def test_a_stored_search_shows_a_deleted_documents_hit_as_removed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        deleted = await rig.upload(domain, "secret plan.md", TEXT)
        remaining = await rig.upload(domain, "travel.md", OTHER)
        answer = await search_paid_leave(rig, domain)
        assert {hit["documentId"] for hit in answer["hits"]} == {deleted["id"], remaining["id"]}
        assert (await read_retrieval(rig, domain, answer["retrievalId"]))["hits"] == answer["hits"]
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{deleted['id']}")
        trace = await read_retrieval(rig, domain, answer["retrievalId"])
        hits = {hit["documentId"]: hit for hit in trace["hits"]}
        before = {hit["documentId"]: hit for hit in answer["hits"]}
        deleted_hit = hits[deleted["id"]]
        assert deleted_hit == before[deleted["id"]] | {
            "documentName": "[removed]",
            "headingPath": [],
            "sentences": [],
        }
        assert hits[remaining["id"]] == before[remaining["id"]]
        assert not any(word in str(trace) for word in (*WORDS, "secret plan"))


@pytest.mark.sqlite("reads the file")
async def test_no_text_of_a_passage_is_in_the_database_after_a_search(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        await search_paid_leave(rig, domain)
    assert b"paid leave" in stored_bytes(rig), "the question is kept"
    assert b"twenty-five" not in stored_bytes(rig)


async def test_a_stored_search_of_a_changed_document_shows_its_name_without_text(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        document = await rig.upload(domain, "a.md", TEXT)
        answer = await search_paid_leave(rig, domain)
        await rig.ok("POST", f"{path}?replace=true", files={"f": ("a.md", OTHER)})
        await rig.settled(domain, document["id"])
        (hit,) = (await read_retrieval(rig, domain, answer["retrievalId"]))["hits"]
        assert (hit["documentId"], hit["documentName"], hit["sentences"]) == (document["id"], "a.md", [])


async def test_without_the_index_a_stored_search_has_names_and_scores(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        answer = await search_paid_leave(rig, domain)
    async with Rig(tmp_path, qdrant_url="http://127.0.0.1:9") as rig:
        (hit,) = (await read_retrieval(rig, domain, answer["retrievalId"]))["hits"]
        assert (hit["documentName"], hit["score"], hit["sentences"]) == ("a.md", answer["hits"][0]["score"], [])


async def test_hits_beyond_the_weighed_candidates_are_shown_too(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        texts = [("file", (f"{number}.md", b"The leave number %d is paid." % number)) for number in range(60)]
        await rig.ok("POST", f"/api/domains/{domain}/documents", files=texts)
        await rig.taken_up(domain)
        search = {"query": "paid leave", "topK": 50}
        answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", search)
        assert len(answer["hits"]) == 50
        assert (await read_retrieval(rig, domain, answer["retrievalId"]))["hits"] == answer["hits"]


async def test_a_search_by_the_model_is_stored_the_same_way(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("search_documents", query="paid leave"), say("Many.", Cite(0))) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        await rig.say(await rig.conversation(domain), "How many?")
        (line,) = (await rig.ok("GET", f"/api/domains/{domain}/retrievals"))["items"]
        (hit,) = (await read_retrieval(rig, domain, line["retrievalId"]))["hits"]
        assert "twenty-five" in hit["sentences"][-1]["text"]


async def test_a_member_reads_the_searches_of_own_conversations_and_no_others(tmp_path: Path) -> None:
    search = use("search_documents", query="paid leave")
    async with Rig(tmp_path, search, say("Read."), search, say("Read too.")) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        admin_search = await search_paid_leave(rig, domain)
        keys = {name: bearer(await make_key(rig, name, "member", domain, other_domain)) for name in ("ann", "bob")}
        member_searches = {}
        for name, key in keys.items():
            created = await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=key)
            path = f"/api/conversations/{created['id']}/messages"
            text = (await rig.http.post(path, json={"content": "Leave?"}, headers=key)).text
            (retrieval_event,) = [event for event in events_of(text) if event["type"] == "retrieval"]
            member_searches[name] = (created["id"], retrieval_event["turnId"], retrieval_event["retrievalId"])
        path, (conversation, turn, retrieval) = f"/api/domains/{domain}/retrievals", member_searches["ann"]
        listing = await rig.ok("GET", path, params={"conversationId": conversation}, headers=keys["ann"])
        (line,) = listing["items"]
        assert (line["retrievalId"], line["conversationId"], line["turnId"]) == (retrieval, conversation, turn)
        assert line["query"] == "paid leave"
        own_trace = await rig.ok("GET", f"{path}/{retrieval}", headers=keys["ann"])
        assert own_trace["hits"]
        assert (own_trace["conversationId"], own_trace["turnId"]) == (conversation, turn)
        for other_id in (admin_search["retrievalId"], member_searches["bob"][2]):
            refusal = await rig.refused("GET", f"{path}/{other_id}", headers=keys["ann"])
            assert refusal[:2] == (404, "RETRIEVAL_NOT_FOUND")
        params_of_bob = {"conversationId": member_searches["bob"][0]}
        assert (await rig.refused("GET", path, params=params_of_bob, headers=keys["ann"]))[:2] == (
            404,
            "CONVERSATION_NOT_FOUND",
        )
        other_path = f"/api/domains/{other_domain}/retrievals"
        params_of_ann = {"conversationId": conversation}
        assert (await rig.ok("GET", other_path, params=params_of_ann, headers=keys["ann"]))["items"] == []
        assert (await rig.refused("GET", path, headers=keys["ann"]))[:2] == (403, "FORBIDDEN")
        all_traces = (await rig.ok("GET", path))["items"]
        assert [trace["retrievalId"] for trace in all_traces] == [
            member_searches["bob"][2],
            retrieval,
            admin_search["retrievalId"],
        ]
        assert "conversationId" not in all_traces[2]
        assert len((await rig.ok("GET", path, params=params_of_bob))["items"]) == 1


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
