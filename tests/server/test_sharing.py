"""Conversations are exported with their sources, and shared as read-only links."""

from pathlib import Path

from agentic_rag.testing.steps import Cite, Step, Use, say
from tests.access.tenants import as_operator, audited, bearer, make_key
from tests.server.rig import Rig

LIST = "/api/conversations"
LEAVE = b"# Leave\n\nFull-time staff have twenty-five days of paid leave a year.\n"
SEARCH = Step((Use("search_documents", {"query": "paid leave"}),))
ANSWER = say("They have **25 days** <script>x</script>.", Cite(0))


async def make_conversation(rig: Rig) -> tuple[str, str]:
    domain = await rig.domain()
    await rig.upload(domain, "handbook.md", LEAVE)
    conversation = await rig.conversation(domain, title="Leave & rest")
    await rig.say(conversation, "How many days of <b>leave</b>?")
    return domain, conversation


async def test_a_conversation_is_exported_in_three_forms_with_its_sources(tmp_path: Path) -> None:
    async with Rig(tmp_path, SEARCH, ANSWER) as rig:
        domain, conversation = await make_conversation(rig)
        path = f"{LIST}/{conversation}/export"
        markdown = await rig.http.get(path)
        assert markdown.headers["content-disposition"] == f'attachment; filename="{conversation}.md"'
        assert markdown.text.startswith("# Leave & rest\n\nLaw · ")
        assert "They have **25 days** <script>x</script>. [1]" in markdown.text
        assert "1. handbook.md: “Full-time staff have twenty-five days of paid leave a year.”" in markdown.text
        export = await rig.ok("GET", path, params={"format": "json"})
        assert (export["domainId"], [message["role"] for message in export["messages"]]) == (
            domain,
            ["user", "assistant"],
        )
        assert export["messages"][1]["references"][0]["documentName"] == "handbook.md"
        page = (await rig.http.get(path, params={"format": "html", "language": "zh"})).text
        assert "<strong>25 days</strong>" in page
        assert "<script" not in page
        assert "How many days of &lt;b&gt;leave&lt;/b&gt;?" in page
        assert "来源" in page
        assert (await rig.refused("GET", path, params={"format": "pdf"}))[0] == 422


async def test_links_are_off_unless_the_operator_allows_them(tmp_path: Path) -> None:
    async with Rig(tmp_path, SEARCH, ANSWER) as rig:
        _, conversation = await make_conversation(rig)
        path = f"{LIST}/{conversation}/share"
        assert await rig.ok("GET", path) == {"readers": "off", "createdAt": None}
        status, code, message = await rig.refused("POST", path)
        assert (status, code) == (403, "FORBIDDEN")
        assert "operator" in message


async def test_a_link_shows_the_messages_so_far_and_passages_only_to_people_of_the_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path, SEARCH, ANSWER, say("Later."), share_links="anyone") as rig:
        domain, conversation = await make_conversation(rig)
        path = f"{LIST}/{conversation}/share"
        link = await rig.ok("POST", path)
        await rig.say(conversation, "And a question that is not shared?")
        other_domain = (await rig.ok("POST", "/api/domains", {"name": "Tax"}))["id"]
        member, outsider = (
            await make_key(rig, "ann", "member", domain),
            await make_key(rig, "ben", "member", other_domain),
        )
        rig.http.headers.pop("authorization", None)
        nobody = await rig.http.get(link["path"])
        assert "default-src 'none'" in nobody.headers["content-security-policy"]
        pages = [nobody.text]
        pages += [(await rig.http.get(link["path"], headers=bearer(key))).text for key in (outsider, member)]
        for text in pages:
            assert "<strong>25 days</strong>" in text
            assert "handbook.md" in text
            assert "not shared" not in text
            assert conversation not in text
        assert ["twenty-five days of paid leave" in text for text in pages] == [False, False, True]
        as_operator(rig)
        second_link = await rig.ok("POST", path)
        assert (await rig.http.get(link["path"])).status_code == 404
        assert (await rig.http.get(second_link["path"])).status_code == 200
        await rig.ok("DELETE", path)
        assert (await rig.http.get(second_link["path"])).status_code == 404
        assert (await rig.ok("GET", path))["createdAt"] is None
        assert len(await audited(rig, action="conversation.share")) == 2
        assert len(await audited(rig, action="conversation.unshare")) == 1
        third_link = await rig.ok("POST", path)
        await rig.ok("DELETE", f"{LIST}/{conversation}")
        assert (await rig.http.get(third_link["path"])).status_code == 404


async def test_an_mcp_server_can_show_links_only_to_its_users(tmp_path: Path) -> None:
    async with Rig(tmp_path, SEARCH, ANSWER, share_links="users") as rig:
        domain, conversation = await make_conversation(rig)
        link = await rig.ok("POST", f"{LIST}/{conversation}/share")
        key = await make_key(rig, "ben", "member", domain)
        rig.http.headers.pop("authorization", None)
        assert (await rig.http.get(link["path"])).status_code == 401
        assert (await rig.http.get(link["path"], headers=bearer(key))).status_code == 200
