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
        made = [await rig.conversation(domain, title=title) for title in ("b", "A", "c", "a", "d")]
        for which, times in ((made[1], 2), (made[3], 1), (made[0], 1)):
            for _ in range(times):
                await rig.say(which, "Hi")
        for field in SORTED:
            for order in ("asc", "desc"):
                listed = []
                for page, has_more in ((1, True), (2, True), (3, False)):
                    params = {"sortBy": field, "sortOrder": order, "page": page, "pageSize": 2}
                    found = await rig.ok("GET", CONVERSATIONS, params=params)
                    assert (found["total"], found["page"], found["pageSize"]) == (5, page, 2)
                    assert found["hasMore"] is has_more
                    listed += found["items"]
                assert sorted(each["id"] for each in listed) == sorted(made), (field, order)
                given = [each[field] for each in listed if each[field] is not None]
                assert [each[field] for each in listed][: len(given)] == given, "those without one come last"
                for one, other in pairwise(given):
                    assert one == other or (one < other) == (order == "asc"), (field, order)
        past = await rig.ok("GET", CONVERSATIONS, params={"page": 9, "pageSize": 2})
        assert (past["items"], past["total"], past["hasMore"]) == ([], 5, False)


async def test_filters_are_combined_and_invalid_ones_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        first, second = await rig.domain(), (await rig.ok("POST", "/api/domains", {"name": "Tax"}))["id"]
        one = await rig.conversation(first, title="100 % leave_days")
        two = await rig.conversation(first, title="100 other days")
        three = await rig.conversation(second, title="100 % LEAVE_DAYS")
        await rig.ok("PATCH", f"{CONVERSATIONS}/{two}", {"status": "archived"})
        for params, wanted in (
            ({"q": "% leave_"}, {one, three}),
            ({"q": "% leave_", "domainId": second}, {three}),
            ({"q": "% leave_", "assistantId": second}, {three}),
            ({"status": "archived"}, {two}),
            ({"status": "active", "domainId": first}, {one}),
            ({"domain_id": first, "page_size": 100}, {one, two}),
            ({"domainId": "dom_none"}, set()),
        ):
            found = await rig.ok("GET", CONVERSATIONS, params=params)
            assert {item["id"] for item in found["items"]} == wanted, params
            assert found["total"] == len(wanted)
        for params, place in (
            ({"pageSize": 101}, "pageSize"),
            ({"pageSize": 0}, "pageSize"),
            ({"page": 0}, "page"),
            ({"sortBy": "ownerId"}, "sortBy"),
            ({"sortOrder": "up"}, "sortOrder"),
            ({"status": "gone"}, "status"),
            ({"colour": "red"}, "colour"),
            ({"domainId": first, "assistantId": second}, "assistantId"),
        ):
            status, code, message = await rig.refused("GET", CONVERSATIONS, params=params)
            assert (status, code, message.split(":")[0]) == (422, "VALIDATION_ERROR", place)


async def test_every_truncated_list_says_so(tmp_path: Path) -> None:
    steps = [step for _ in range(3) for step in (use("search_documents", query="leave"), say("Yes."))]
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        text = "\n\n".join(f"# Part {number}\n\n" + "Leave is paid for. " * 60 for number in range(4))
        document = (await rig.upload(domain, "leave.md", text.encode()))["id"]
        talk = await rig.conversation(domain)
        for _ in range(3):
            await rig.say(talk, "Hi")
        chunks = f"/api/domains/{domain}/documents/{document}/chunks"
        whole = await rig.ok("GET", chunks)
        assert (len(whole["items"]) > 2, whole["hasMore"]) == (True, False)
        for path, many in (
            (chunks, len(whole["items"])),
            (f"/api/domains/{domain}/retrievals", 3),
            (f"{CONVERSATIONS}/{talk}/tool-calls", 3),
            (f"{CONVERSATIONS}/{talk}/messages", 6),
        ):
            for limit, has_more in ((many - 1, True), (many, False), (many + 1, False)):
                found = await rig.ok("GET", path, params={"limit": limit})
                assert (len(found["items"]), found["hasMore"]) == (min(limit, many), has_more), (path, limit)
        calls = await rig.ok("GET", f"{CONVERSATIONS}/{talk}/tool-calls")
        last = await rig.ok("GET", f"{CONVERSATIONS}/{talk}/tool-calls", params={"limit": 1})
        assert last["items"] == calls["items"][-1:]
        audited = await rig.ok("GET", "/api/audit", params={"limit": 1})
        assert (len(audited["items"]), audited["hasMore"]) == (1, True)
        rest = await rig.ok("GET", "/api/audit", params={"limit": 200, "before": audited["items"][0]["seq"]})
        assert (len(rest["items"]) > 0, rest["hasMore"]) == (True, False)


@pytest.mark.parametrize("html", [True, False])
async def test_messages_are_paged_backwards_without_a_gap_in_both_forms(tmp_path: Path, html: bool) -> None:
    async with Rig(tmp_path, *(say(f"*{number}*") for number in range(4))) as rig:
        talk = await rig.conversation()
        for number in range(4):
            await rig.say(talk, f"**{number}**")
        path, params = f"{CONVERSATIONS}/{talk}/messages", {"limit": "3", **({"format": "html"} if html else {})}
        read: list[dict[str, str]] = []
        while True:
            page = await rig.ok("GET", path, params=params)
            read = [*page["items"], *read]
            if not page["hasMore"]:
                break
            params["before"] = page["items"][0]["id"]
        assert [each["content"] for each in read] == [text for n in range(4) for text in (f"**{n}**", f"*{n}*")]
        shown = ["<p><strong>0</strong></p>", "<p><em>0</em></p>"]
        assert [each.get("html", "").strip() for each in read[:2]] == (shown if html else ["", ""])
