"""The quotas of a domain: every way in refuses more with a code, and other domains are unaffected."""

from collections.abc import Sequence
from pathlib import Path

import anyio

from agentic_rag.testing.steps import say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig

ENGRAM = {"content": "The archive closes at five.", "schema": "archive\nhours", "type": "ATOMIC", "strength": 0.8}


async def upload(rig: Rig, domain: str, name: str, content: bytes, **params: str) -> tuple[int, Json]:
    answer = await rig.http.post(
        f"/api/domains/{domain}/documents", files={"file": (name, content)}, params=params or None
    )
    return answer.status_code, answer.json()


async def read_quotas(rig: Rig, domain: str) -> dict[str, tuple[int, int]]:
    items = (await rig.ok("GET", f"/api/domains/{domain}/quotas"))["items"]
    return {item["noun"]: (item["used"], item["limit"]) for item in items}


def files(rig: Rig, domain: str) -> Sequence[str]:
    folder = rig.settings.workspaces / domain / "documents"
    return sorted(path.name for path in folder.iterdir() if path.is_file())


async def test_documents_have_a_number_and_a_size(tmp_path: Path) -> None:
    async with Rig(tmp_path, quota_documents=2, quota_document_bytes=1000) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        assert (await upload(rig, domain, "a.md", b"# A\n\nOne."))[0] == 202
        status, answer = await upload(rig, domain, "big.md", b"x" * 1000)
        assert (status, answer["error"]["code"]) == (409, "QUOTA_EXCEEDED")
        assert "AGENTIC_RAG_QUOTA_DOCUMENT_BYTES" in answer["error"]["message"]
        assert (await upload(rig, domain, "b.md", b"# B\n\nTwo."))[0] == 202
        status, answer = await upload(rig, domain, "c.md", b"# C\n\nThree.")
        assert (status, answer["error"]["details"]) == (409, {"noun": "documents", "limit": 2})
        assert files(rig, domain) == ["a.md", "b.md"]
        assert (await upload(rig, other_domain, "c.md", b"# C\n\nThree."))[0] == 202
        quotas = await read_quotas(rig, domain)
        assert quotas["documents"] == (2, 2)
        assert quotas["documentBytes"] == (18, 1000)


async def test_a_file_in_the_folder_waits_for_free_quota(tmp_path: Path) -> None:
    async with Rig(tmp_path, quota_documents=1) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", b"# A\n\nOne.")
        (rig.settings.workspaces / domain / "documents" / "b.md").write_text("# B\n\nTwo.")
        scan = rig.application.services.documents.rescan
        assert await scan(domain) == 0
        assert (await read_quotas(rig, domain))["documents"] == (1, 1)
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        assert await scan(domain) == 1


async def test_concurrently_created_conversations_keep_the_limit(tmp_path: Path) -> None:
    async with Rig(tmp_path, quota_conversations=3) as rig:
        domain = await rig.domain()
        codes: list[int] = []

        async def begin() -> None:
            answer = await rig.http.post("/api/conversations", json={"domainId": domain})
            codes.append(answer.status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(begin)
        assert sorted(codes) == [201] * 3 + [409] * 7
        assert (await read_quotas(rig, domain))["conversations"] == (3, 3)


async def test_a_full_memory_refuses_the_whole_batch_and_the_model_reads_why(tmp_path: Path) -> None:
    remember = use("promptx_remember", engrams=[ENGRAM, {**ENGRAM, "content": "And opens at nine."}])
    async with Rig(tmp_path, remember, say("It is full."), quota_memories=1) as rig:
        domain = await rig.domain()
        events = await rig.say(await rig.conversation(domain), "Remember both.")
        (result,) = [event for event in events if event["type"] == "tool_result"]
        assert result["status"] == "error"
        assert "may hold 1 memories" in result["content"]
        assert (await rig.ok("GET", f"/api/domains/{domain}/memories"))["total"] == 0


async def test_quotas_are_shown_to_admins_of_the_domain_only(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        admin, member = await make_key(rig, "ann", "admin", domain), await make_key(rig, "max", "member", domain)
        answers = [
            (await rig.http.get(f"/api/domains/{domain_id}/quotas", headers=bearer(key))).status_code
            for domain_id, key in ((domain, admin), (domain, member), (other_domain, admin))
        ]
        assert answers == [200, 403, 404]
