"""Lists over REST: sorted, filtered and paged, and each says whether there is more."""

from itertools import pairwise
from pathlib import Path

import pytest

from agentic_rag.testing.steps import say, use
from tests.server.rig import Rig

CONVERSATIONS = "/api/conversations"
SORTED = ("startedAt", "updatedAt", "lastMessageAt", "title", "messageCount")


async def test_conversations_are_sorted_by_each_field_and_paged_without_gaps(tmp_path: Path) -> None:
    async with Rig(tmp_path, *(say("Yes.") for _ in range(4))) as rig:
        domain = await rig.domain()
        conversations = [await rig.conversation(domain, title=title) for title in ("b", "A", "c", "a", "d")]
        for conversation, times in ((conversations[1], 2), (conversations[3], 1), (conversations[0], 1)):
            for _ in range(times):
                await rig.say(conversation, "Hi")
        for field in SORTED:
            for order in ("asc", "desc"):
                items = []
                for page, has_more in ((1, True), (2, True), (3, False)):
                    params = {"sortBy": field, "sortOrder": order, "page": page, "pageSize": 2}
                    page_of_items = await rig.ok("GET", CONVERSATIONS, params=params)
                    assert (page_of_items["total"], page_of_items["page"], page_of_items["pageSize"]) == (5, page, 2)
                    assert page_of_items["hasMore"] is has_more
                    items += page_of_items["items"]
                assert sorted(item["id"] for item in items) == sorted(conversations), (field, order)
                values = [item[field] for item in items if item[field] is not None]
                assert [item[field] for item in items][: len(values)] == values, "those without one come last"
                for a, b in pairwise(values):
                    assert a == b or (a < b) == (order == "asc"), (field, order)
        past = await rig.ok("GET", CONVERSATIONS, params={"page": 9, "pageSize": 2})
        assert (past["items"], past["total"], past["hasMore"]) == ([], 5, False)


async def test_filters_are_combined_and_invalid_ones_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        first, second_domain = await rig.domain(), (await rig.ok("POST", "/api/domains", {"name": "Tax"}))["id"]
        first_match = await rig.conversation(first, title="100 % leave_days")
        archived_id = await rig.conversation(first, title="100 other days")
        three = await rig.conversation(second_domain, title="100 % LEAVE_DAYS")
        await rig.ok("PATCH", f"{CONVERSATIONS}/{archived_id}", {"status": "archived"})
        for params, expected in (
            ({"q": "% leave_"}, {first_match, three}),
            ({"q": "% leave_", "domainId": second_domain}, {three}),
            ({"q": "% leave_", "assistantId": second_domain}, {three}),
            ({"status": "archived"}, {archived_id}),
            ({"status": "active", "domainId": first}, {first_match}),
            ({"domain_id": first, "page_size": 100}, {first_match, archived_id}),
            ({"domainId": "dom_none"}, set()),
        ):
            page = await rig.ok("GET", CONVERSATIONS, params=params)
            assert {item["id"] for item in page["items"]} == expected, params
            assert page["total"] == len(expected)
        for params, place in (
            ({"pageSize": 101}, "pageSize"),
            ({"pageSize": 0}, "pageSize"),
            ({"page": 0}, "page"),
            ({"sortBy": "ownerId"}, "sortBy"),
            ({"sortOrder": "up"}, "sortOrder"),
            ({"status": "gone"}, "status"),
            ({"colour": "red"}, "colour"),
            ({"domainId": first, "assistantId": second_domain}, "assistantId"),
        ):
            status, code, message = await rig.refused("GET", CONVERSATIONS, params=params)
            assert (status, code, message.split(":")[0]) == (422, "VALIDATION_ERROR", place)


async def test_every_truncated_list_says_so(tmp_path: Path) -> None:
    steps = [step for _ in range(3) for step in (use("search_documents", query="leave"), say("Yes."))]
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        text = "\n\n".join(f"# Part {number}\n\n" + "Leave is paid for. " * 60 for number in range(4))
        document = (await rig.upload(domain, "leave.md", text.encode()))["id"]
        conversation = await rig.conversation(domain)
        for _ in range(3):
            await rig.say(conversation, "Hi")
        chunks = f"/api/domains/{domain}/documents/{document}/chunks"
        all_chunks = await rig.ok("GET", chunks)
        assert (len(all_chunks["items"]) > 2, all_chunks["hasMore"]) == (True, False)
        assert (await rig.ok("GET", chunks, params={"offset": 1_000_000_000}))["items"] == []
        for offset in (2**64, 10**30, -1):
            assert (await rig.refused("GET", f"{chunks}?offset={offset}"))[:2] == (422, "VALIDATION_ERROR"), offset
        for path, many in (
            (chunks, len(all_chunks["items"])),
            (f"/api/domains/{domain}/retrievals", 3),
            (f"{CONVERSATIONS}/{conversation}/tool-calls", 3),
            (f"{CONVERSATIONS}/{conversation}/messages", 6),
        ):
            for limit, has_more in ((many - 1, True), (many, False), (many + 1, False)):
                page = await rig.ok("GET", path, params={"limit": limit})
                assert (len(page["items"]), page["hasMore"]) == (min(limit, many), has_more), (path, limit)
        calls = await rig.ok("GET", f"{CONVERSATIONS}/{conversation}/tool-calls")
        newest_page = await rig.ok("GET", f"{CONVERSATIONS}/{conversation}/tool-calls", params={"limit": 1})
        assert newest_page["items"] == calls["items"][-1:]
        newest_entries = await rig.ok("GET", "/api/audit", params={"limit": 1})
        assert (len(newest_entries["items"]), newest_entries["hasMore"]) == (1, True)
        older_entries = await rig.ok(
            "GET", "/api/audit", params={"limit": 200, "before": newest_entries["items"][0]["seq"]}
        )
        assert (len(older_entries["items"]) > 0, older_entries["hasMore"]) == (True, False)


@pytest.mark.parametrize("html", [True, False])
async def test_messages_are_paged_backwards_without_a_gap_in_both_forms(tmp_path: Path, html: bool) -> None:
    async with Rig(tmp_path, *(say(f"*{number}*") for number in range(4))) as rig:
        conversation = await rig.conversation()
        for number in range(4):
            await rig.say(conversation, f"**{number}**")
        path, params = (
            f"{CONVERSATIONS}/{conversation}/messages",
            {"limit": "3", **({"format": "html"} if html else {})},
        )
        messages: list[dict[str, str]] = []
        while True:
            page = await rig.ok("GET", path, params=params)
            messages = [*page["items"], *messages]
            if not page["hasMore"]:
                break
            params["before"] = page["items"][0]["id"]
        assert [message["content"] for message in messages] == [
            text for n in range(4) for text in (f"**{n}**", f"*{n}*")
        ]
        html_texts = ["<p><strong>0</strong></p>", "<p><em>0</em></p>"]
        assert [message.get("html", "").strip() for message in messages[:2]] == (html_texts if html else ["", ""])
