"""A domain that was only described: nuwa writes its role in the first conversation, and the role becomes primary."""

from pathlib import Path

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.steps import Step, Use, say
from tests.access.tenants import audited
from tests.server.rig import Json, Rig, events_of

CLERK = "<role><personality>Answers about leave.</personality></role>"


async def test_nuwas_role_for_a_described_domain_becomes_primary(
    tmp_path: Path,
) -> None:
    requests: list[ModelRequest] = []

    def write(request: ModelRequest) -> Step:
        requests.append(request)
        role = domains[0]["id"] + "-domain"
        return Step((Use("role_write", {"role": role, "files": [{"kind": "role", "id": role, "content": CLERK}]}),))

    domains: list[Json] = []
    async with Rig(tmp_path, say("Shall it be friendly?"), write, say("It is written.")) as rig:
        domain = await rig.ok("POST", "/api/domains", {"name": "HR", "describe": "Answers staff about leave."})
        domains.append(domain)
        assert domain["settings"]["primaryRoleId"] == "nuwa"
        turn = await rig.http.get(f"/api/turns/{domain['turnId']}/events")
        assert events_of(turn.text)[-1]["type"] == "done"
        (question, _) = (await rig.ok("GET", f"/api/conversations/{domain['conversationId']}/messages"))["items"]
        assert "Answers staff about leave." in question["content"]
        assert f"{domain['id']}-domain" in question["content"]
        domain_before = await rig.ok("GET", f"/api/domains/{domain['id']}")
        assert domain_before["settings"]["primaryRoleId"] == "nuwa", "nothing is written yet"
        events = await rig.say(domain["conversationId"], "Yes, friendly.")
        assert [event["status"] for event in events if event["type"] == "tool_result"] == ["ok"]
        assert "role_write" in [tool["name"] for tool in requests[0].tools]
        settings = (await rig.ok("GET", f"/api/domains/{domain['id']}"))["settings"]
        assert settings["primaryRoleId"] == f"{domain['id']}-domain"
        assert settings["toolPolicy"] == {}
        assert settings["adoptRole"] is False
        rows = [row for row in await audited(rig, outcome="done") if row["action"] == "domain.update"]
        assert [row["actor"] for row in rows] == ["system"]


async def test_a_described_domain_needs_a_description_and_names_no_role(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        body: Json = {"name": "HR", "describe": " "}
        assert (await rig.refused("POST", "/api/domains", body))[2].startswith("describe: ")
        body = {"name": "HR", "describe": "Leave.", "settings": {"primaryRoleId": "assistant"}}
        assert (await rig.refused("POST", "/api/domains", body))[2].startswith("settings.primaryRoleId: ")
        assert (await rig.ok("GET", "/api/domains"))["items"] == []
