"""A server with keys, and mallory, a malicious admin of one domain. It returns his refusals and their traces."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from agentic_rag.store import tool_lists
from agentic_rag.store.audit import AuditRecord
from tests.access.tenants import as_operator, bearer, make_key
from tests.server.rig import Json, Rig
from tests.tools.captives import beats, find_processes

CANARY = "swordfish-0123456789-canary"
"""A value that must not appear in any row, file or answer."""

STORES = ("agentic-rag.db", "agentic-rag.db-wal", "agentic-rag.db-shm")
"""Files that grow with the rows themselves."""


@dataclass
class Admin:
    """Mallory with his key and his domain."""

    rig: Rig
    key: str
    domain: str
    seen: int = 0

    @property
    def path(self) -> str:
        return f"/api/domains/{self.domain}"

    async def ask(self, method: str, path: str, json: Any = None) -> httpx2.Response:
        body: dict[str, Any] = {} if json is None else {"json": json}
        return await self.rig.http.request(method, path, headers=bearer(self.key), **body)

    async def save(self, servers: object) -> httpx2.Response:
        return await self.ask("PUT", self.path, {"settings": {"mcpServers": servers}})

    async def test(self, servers: object) -> httpx2.Response:
        return await self.ask("POST", f"{self.path}/mcp-servers/test", {"mcpServers": servers})

    async def new_audit_rows(self) -> list[AuditRecord]:
        """Return the audit rows added since the last call, oldest first."""
        rows = [row for row in await self.rig.application.parts.audit.page(200) if row.seq > self.seen]
        self.seen = max([self.seen, *(row.seq for row in rows)])
        return rows[::-1]

    async def state(self) -> list[Any]:
        """Return all possible traces of an entry: settings, secrets, tool lists, files, processes, heartbeats."""
        policy = self.rig.application.parts.policy
        database = self.rig.application.database
        lists = await database.read(lambda conn: tool_lists.of_domain(conn, self.domain))
        folder = self.rig.settings.data
        # A separate process writes the index, at any time.
        paths = (path for path in folder.rglob("*") if path.name not in STORES)
        files = sorted(str(path) for path in paths if not path.is_relative_to(folder / "index"))
        responses: list[Json] = [(await self.ask("GET", place)).json() for place in (self.path, f"{self.path}/secrets")]
        return [responses, lists, files, find_processes(policy.marker), beats(policy.homes)]


@asynccontextmanager
async def admin(folder: Path, *steps: Any, **settings: Any) -> AsyncIterator[Admin]:
    """Run mallory's server. At the end the audit log's chain must be intact."""
    async with Rig(folder, *steps, requests_per_second=10_000, **settings) as rig:
        domain = await rig.domain()
        administrator = Admin(rig, await make_key(rig, "mallory", "admin", domain), domain)
        await administrator.new_audit_rows()
        yield administrator
        as_operator(rig)
        verdict = await rig.ok("GET", "/api/audit/verify")
        assert verdict["intact"], verdict
