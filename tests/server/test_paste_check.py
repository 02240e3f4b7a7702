"""One paste, one report: a document of MCP servers as other clients write it, checked and then saved row by row."""

from pathlib import Path
from typing import Any

from tests.server.rig import Rig
from tests.tools.captives import allow_captive, needs_bubblewrap

HEAD = {"content-type": "application/json"}


async def check(rig: Rig, domain: str, text: str | bytes) -> dict[str, dict[str, Any]]:
    """Return the rows of a pasted text by their keys."""
    response = await rig.http.post(f"/api/domains/{domain}/mcp-servers/check", content=text, headers=HEAD)
    assert response.status_code == 200, response.text
    return {row["key"]: row for row in response.json()["items"]}


async def refusal(rig: Rig, domain: str, text: str | bytes) -> dict[str, Any]:
    response = await rig.http.post(f"/api/domains/{domain}/mcp-servers/check", content=text, headers=HEAD)
    assert response.status_code == 422, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


FOUR = """
{ // what four people sent
  "servers": {
    "ready": %(ready)s, /* tested at once */
    "maps": {"type": "streamableHttp", "url": "https://maps.example.org/mcp?key=${input:maps-key}"},
    "new": {"command": "npx", "args": ["-y", "@acme/unknown@1.2.3"]},
    "files": {"command": "cmd", "args": ["/c", "npx", "-y", "@modelcontextprotocol/server-filesystem", "C:\\\\Users\\\\me"],},
  },
  "inputs": [{"id": "maps-key", "type": "promptString", "description": "Key of the maps", "password": true}],
}
"""


@needs_bubblewrap
async def test_a_pasted_file_of_four_servers_is_one_report_and_only_what_is_accepted_is_saved(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        spec = await allow_captive(rig.application.machinery.policy)
        domain = await rig.domain()
        entry = spec.entry.to_json()
        ready = {"command": entry["command"], "args": entry["args"]}
        text = FOUR % {"ready": __import__("json").dumps(ready)}
        before = await rig.ok("GET", f"/api/domains/{domain}")
        rows = await check(rig, domain, text)
        assert {key: row["status"] for key, row in rows.items()} == {
            "ready": "ready",
            "maps": "needs_secret",
            "new": "needs_approval",
            "files": "change_proposed",
        }
        assert [tool["name"] for tool in rows["ready"]["connection"]["tools"]] != []
        assert rows["maps"]["secrets"] == ["maps_key"]
        assert rows["maps"]["needs"][0]["description"] == "Key of the maps"
        assert rows["new"]["approval"]["request"] == f"/api/domains/{domain}/mcp-servers/new/request"
        problem = rows["files"]["problems"][0]
        assert (problem["path"], problem["value"]) == ("mcpServers.files.args.2", "C:\\Users\\me")
        assert rows["files"]["proposed"]["args"][-1] == "."
        assert await rig.ok("GET", f"/api/domains/{domain}") == before

        path = f"/api/domains/{domain}/mcp-servers/add"
        status, code, message = await rig.refused("POST", path, {"document": text, "accept": ["files", "new"]})
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert message.startswith("mcpServers.new: ")
        saved = await rig.ok("POST", path, {"document": text, "accept": ["ready", "files"]})
        assert saved["names"] == ["ready", "files"]
        stored = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]
        assert {name for name, each in stored.items() if each["origin"] == "user"} == {"ready", "files"}
        assert stored["files"]["args"][-1] == "."
