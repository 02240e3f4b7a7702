"""Domains with content of every kind, their bundles, and malformed bundles."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentic_rag.access.users import LOCAL
from mcp_servers.promptx.memory import Memory, memory_folder
from mcp_servers.promptx.new_engrams import NewEngram
from tests.server.rig import Rig

ROLE = "<role>\n  <personality>\n    You know the law.\n  </personality>\n</role>\n"
BROKEN_ROLE = "<role>\n  <personality>\n    never closed\n"
TOKEN = "ghp_0123456789abcdefghij"
URL = "https://tools.example/mcp"
DOCUMENTS = {"pump.md": b"# Pump\n\nThe pump holds 3 litres.\n", "请假 é.md": b"# Leave\n\nTwenty-five days.\n"}
SETTINGS: dict[str, Any] = {
    "language": "de",
    "retrievalTopK": 7,
    "turnTimeoutSeconds": 90,
    "variables": {"HOST": "tools.example"},
    "toolPolicy": {"tools__*": "ask"},
    "mcpServers": {
        "tools": {"type": "http", "url": URL, "headers": {"Authorization": TOKEN, "X-Team": "${TEAM}"}},
        "open": {"type": "http", "url": "https://open.example/mcp", "headers": {"A": {"value": "b", "secret": False}}},
    },
}


async def fill(rig: Rig, name: str = "Law") -> str:
    """Create a domain with content of every kind and return its id."""
    body = {"name": name, "description": "What holds.\nAnd what not.", "settings": SETTINGS}
    domain = str((await rig.ok("POST", "/api/domains", body))["id"])
    files = [{"kind": "role", "id": "lawyer", "content": ROLE}]
    await rig.ok("PUT", f"/api/domains/{domain}/roles/lawyer", {"files": files})
    await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"primaryRoleId": "lawyer"}})
    await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/01-tone.md", {"content": "Be calm.\n"})
    await rig.ok("PUT", f"/api/domains/{domain}/secrets/TEAM", {"value": "team-secret-value"})
    workspace = rig.settings.workspaces / domain
    skill = workspace / "skills" / "sums"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: sums\ndescription: Adds up.\n---\nAdd.\n")
    for file_name, content in DOCUMENTS.items():
        await rig.upload(domain, file_name, content)
    remember(workspace, "law")
    return domain


def remember(workspace: Path, role: str) -> None:
    memory = Memory(memory_folder(workspace, "domain", LOCAL.id, role))
    memory.remember([NewEngram("The pump was new in 2020.", "pump 2020", 0.9, "ATOMIC")], 1_700_000_000_000)
    memory.close()


async def export(rig: Rig, domain: str, **params: str) -> bytes:
    answer = await rig.http.get(f"/api/domains/{domain}/bundle", params=params)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == int(answer.headers["content-length"])
    return answer.content


async def bring(rig: Rig, data: bytes, **params: str) -> dict[str, Any]:
    """Import a bundle as a new domain."""
    answer = await rig.http.post("/api/bundles", content=data, params=params, headers=ZIP)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def bring_over(rig: Rig, domain: str, data: bytes, **params: str) -> dict[str, Any]:
    answer = await rig.http.post(f"/api/domains/{domain}/bundle", content=data, params=params, headers=ZIP)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


ZIP = {"content-type": "application/zip"}


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {info.filename: archive.read(info) for info in archive.infolist()}


def pack(members: Mapping[str, bytes], *, listed: Mapping[str, bytes] | None = None, **manifest: Any) -> bytes:
    """Return a bundle of members as another program would write it. ``listed`` are the members in its manifest."""
    files = [
        {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for path, content in (members if listed is None else listed).items()
        if path != "bundle.json"
    ]
    head = {"format": "agentic-rag domain bundle", "version": 1, "secrets": [], "files": files, **manifest}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", json.dumps(head))
        for path, content in members.items():
            if path != "bundle.json":
                archive.writestr(path, content)
    return buffer.getvalue()


def plain(name: str = "Law", servers: Mapping[str, Any] | None = None, **settings: Any) -> dict[str, bytes]:
    """Return the members that every bundle has."""
    domain_record = {"name": name, "description": "", "settings": settings}
    return {
        "domain.json": json.dumps(domain_record).encode(),
        "mcp-servers.json": json.dumps({"mcpServers": servers or {}}).encode(),
    }
