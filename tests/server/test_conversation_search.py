"""The list of conversations and the search over titles and messages, over REST."""

from pathlib import Path

from agentic_rag.base.errors import ModelError
from agentic_rag.testing.steps import say
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig

SEARCH = "/api/conversation-search"
LIST = "/api/conversations"
FOLDERS = "/api/conversation-folders"


async def find(rig: Rig, q: str, **params: str | int) -> list[Json]:
    hits: list[Json] = (await rig.ok("GET", SEARCH, params={"q": q, **params}))["items"]
    return hits


async def test_a_search_finds_titles_questions_and_answers_and_shows_the_newest_place(tmp_path: Path) -> None:
    answers = (
        "It opens at **night**: the\n\n| bypass | flap |\n|---|---|\n| open | 20 °C |",
        "Yes.",
        "上海办公室的年假。",
    )
    async with Rig(tmp_path, *(say(answer) for answer in answers)) as rig:
        domain = await rig.domain()
        first_id, second_id = await rig.conversation(domain, title="Bypass in summer"), await rig.conversation(domain)
        events = await rig.say(first_id, "When does it open?")
        await rig.say(second_id, "Does the bypass close again?")
        await rig.say(second_id, "Where?")
        titled_and_answered, hit_in_question = sorted(
            await find(rig, "bypass"), key=lambda hit: hit["conversation"]["id"]
        )
        assert titled_and_answered["conversation"] == await rig.ok("GET", f"{LIST}/{first_id}")
        assert titled_and_answered["titleMarks"] == [[0, 6]]
        message = titled_and_answered["message"]
        assert (message["id"], message["role"]) == (events[-1]["messageId"], "assistant")
        text, marks = message["excerpt"]["text"], message["excerpt"]["marks"]
        assert text == "It opens at night: the bypass flap open 20 °C"
        assert [text[start:end] for start, end in marks] == ["bypass"]
        assert (hit_in_question["message"]["role"], hit_in_question["count"]) == ("user", 1)
        [chinese] = await find(rig, "年假")
        assert (chinese["conversation"]["id"], chinese["message"]["excerpt"]["marks"]) == (second_id, [[6, 8]])
        assert [hit["conversation"]["id"] for hit in await find(rig, "summer")] == [first_id]
        assert await find(rig, "bypass", domainId="dom_none") == []
        assert await find(rig, "?!") == []
        assert len(await find(rig, "bypass", limit=1)) == 1
        await rig.ok("PATCH", f"{LIST}/{first_id}", {"status": "archived"})
        assert len(await find(rig, "bypass")) == 2
        await rig.ok("DELETE", f"{LIST}/{first_id}")
        assert [hit["conversation"]["id"] for hit in await find(rig, "bypass")] == [second_id]


async def test_a_search_is_limited_to_the_conversations_of_its_user(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("A vault code."), say("Another vault code.")) as rig:
        domain = await rig.domain()
        own_id = await rig.conversation(domain)
        await rig.say(own_id, "Which vault?")
        key = await make_key(rig, "ben", "member", domain)
        foreign_id = (await rig.http.post(LIST, json={"domainId": domain}, headers=bearer(key))).json()["id"]
        await rig.http.post(f"{LIST}/{foreign_id}/messages", json={"content": "Vault?"}, headers=bearer(key))
        hits = (await rig.http.get(SEARCH, params={"q": "vault"}, headers=bearer(key))).json()["items"]
        assert [hit["conversation"]["id"] for hit in hits] == [foreign_id]


async def test_a_repeated_or_imported_question_is_found_once(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("First."), say("Second.")) as rig:
        conversation = await rig.conversation()
        events = await rig.say(conversation, "Which pump?")
        message = events[0]["userMessageId"]
        await rig.http.post(f"{LIST}/{conversation}/messages/{message}/retry", json={})
        [hit] = await find(rig, "pump")
        assert (hit["count"], hit["message"]["id"]) == (1, message)
        assert [hit["count"] for hit in await find(rig, "first")] == [1]


async def test_the_list_shows_how_conversations_ended_with_pinned_ones_first(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes."), ModelError("no", http_status=400), say("Again.")) as rig:
        domain = await rig.domain()
        good, bad = await rig.conversation(domain), await rig.conversation(domain)
        await rig.say(good, "Hi")
        await rig.say(bad, "Hi")
        params = {"sortBy": "lastMessageAt", "pinnedFirst": "true"}
        conversations = (await rig.ok("GET", LIST, params=params))["items"]
        assert [
            (conversation["id"], conversation["outcome"], "pinned" in conversation) for conversation in conversations
        ] == [
            (bad, "failed", False),
            (good, "done", False),
        ]
        pinned = await rig.ok("PATCH", f"{LIST}/{good}", {"pinned": True})
        assert pinned["pinned"] is True
        assert [item["id"] for item in (await rig.ok("GET", LIST, params=params))["items"]] == [good, bad]
        await rig.say(bad, "Once more")
        assert (await rig.ok("GET", f"{LIST}/{bad}"))["outcome"] == "done"
        assert "pinned" not in await rig.ok("PATCH", f"{LIST}/{good}", {"pinned": False})


async def test_conversations_are_kept_in_folders_that_only_their_owner_sees(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        ids = [await rig.conversation(domain, title=f"Talk {number}") for number in range(4)]
        distant = await rig.conversation(other_domain)

        async def move(conversation: str, folder: str | None) -> Json:
            record: Json = await rig.ok("PATCH", f"{LIST}/{conversation}", {"folder": folder})
            return record

        async def list_folder(folder: str, **params: str) -> Json:
            page: Json = await rig.ok("GET", LIST, params={"folder": folder, "sortBy": "title", **params})
            return page | {"items": [item["title"] for item in page["items"]]}

        async def list_folders(**params: str) -> list[tuple[str, str, int]]:
            page = await rig.ok("GET", FOLDERS, params=params)
            assert page["hasMore"] is False
            return [(item["domainId"], item["name"], item["count"]) for item in page["items"]]

        assert "folder" not in await rig.ok("GET", f"{LIST}/{ids[0]}")
        assert (await move(ids[0], "  Cafe\u0301\x00\n plans "))["folder"] == "Café plans"
        for conversation in (*ids[1:3], distant):
            assert (await move(conversation, "Café plans"))["folder"] == "Café plans"
        assert (await move(ids[3], "x" * 60))["folder"] == "x" * 60
        assert (await rig.ok("PATCH", f"{LIST}/{ids[0]}", {"pinned": True}))["folder"] == "Café plans"
        first = await list_folder("Cafe\u0301 plans", domainId=domain, pageSize="2")
        assert (first["items"], first["total"], first["hasMore"]) == (["Talk 2", "Talk 1"], 3, True)
        second_page = await list_folder("Café plans", domainId=domain, pageSize="2", page="2")
        assert (second_page["items"], second_page["total"], second_page["hasMore"]) == (["Talk 0"], 3, False)
        assert (await list_folder("café plans"))["items"] == []
        assert await list_folders(domainId=domain) == [(domain, "Café plans", 3), (domain, "x" * 60, 1)]
        assert (other_domain, "Café plans", 1) in await list_folders()

        for bad in ("x" * 61, "x" * 100_000, "\u200b"):
            status, code, message = await rig.refused("PATCH", f"{LIST}/{ids[0]}", {"folder": bad})
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert message.startswith("folder: ")
        assert (await rig.refused("PATCH", f"{LIST}/{ids[0]}", {"folder": ["a"]}))[:2] == (422, "VALIDATION_ERROR")
        assert (await rig.refused("GET", LIST, params={"folder": "x" * 61}))[:2] == (422, "VALIDATION_ERROR")
        assert (await rig.ok("GET", f"{LIST}/{ids[0]}"))["folder"] == "Café plans"

        key = await make_key(rig, "bea", "member", domain, other_domain)
        stranger = {"headers": bearer(key)}
        assert (await rig.refused("PATCH", f"{LIST}/{ids[0]}", {"folder": "Mine"}, **stranger))[0] == 404
        assert (await rig.ok("GET", FOLDERS, **stranger))["items"] == []
        assert (await rig.ok("GET", LIST, params={"folder": "Café plans"}, **stranger))["items"] == []

        await rig.ok("PATCH", f"{LIST}/{ids[0]}", {"status": "archived"})
        assert await list_folders(domainId=domain, status="archived") == [(domain, "Café plans", 1)]
        assert "folder" not in await move(ids[3], "\t ")
        assert "folder" not in await move(ids[2], None)
        assert (await list_folder("", domainId=domain))["items"] == ["Talk 3", "Talk 2"]
        await rig.ok("DELETE", f"{LIST}/{ids[1]}")
        assert await list_folders(domainId=domain, status="active") == []
