"""Reactions of roles, models and MCP servers to changes of a domain. Implements `DomainLifecycle`.

Knows no database.
"""

from collections.abc import Sequence
from pathlib import Path

from agentic_rag.directory.server_map import enabled_hashes
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.models.profiles import profile_of
from agentic_rag.models.retirement import retirements_of
from agentic_rag.roles.roles import Roles
from agentic_rag.store.clock import today
from agentic_rag.tools.entries.reading import Note
from agentic_rag.tools.pool import McpPool
from mcp_servers.retriever.model_files import reranker_problem


class Lifecycle:
    """Implements `agentic_rag.domains.lifecycle.DomainLifecycle`.

    ``model_cache`` is the folder of the rerankers. ``default_model`` is used by domains that name no model.
    """

    def __init__(self, roles: Roles, pool: McpPool, model_cache: Path, default_model: str = "") -> None:
        self._default_model = default_model
        self._roles = roles
        self._pool = pool
        self._model_cache = model_cache

    def changing(self, workspace: Path, before: DomainSettings | None, after: DomainSettings) -> Sequence[Note]:
        """See `DomainLifecycle.changing`."""
        is_new, before = before is None, before or DomainSettings()
        notes = []
        if after.sub_role_ids != before.sub_role_ids:
            references = [(f"subRoleIds.{at}", role) for at, role in enumerate(after.sub_role_ids)]
            if is_new:
                notes += [(path, self._roles.missing_role(workspace, role)) for path, role in references]
            else:
                self._roles.check_ids(workspace, [(f"settings.{path}", role) for path, role in references])
        if after.primary_role_id != before.primary_role_id:
            notes.append(("primaryRoleId", self._roles.missing_role(workspace, after.primary_role_id)))
        if (after.temperature, after.model) != (before.temperature, before.model):
            notes.append(("temperature", self._unused_temperature(after)))
        used = {before.model, *(before.fallback_models or ()), *before.allowed_models}
        named_models = {"model": [after.model], "fallbackModel": after.fallback_models or ()}
        for key, names in {**named_models, "allowedModels": after.allowed_models}.items():
            new = [name for name in names if name and name not in used]
            notes += [(key, notice.text(today())) for notice in retirements_of(new, today())]
        if after.reranker is not None and after.reranker != before.reranker:
            notes.append(("reranker", reranker_problem(after.reranker, self._model_cache)))
        return [Note(f"settings.{key}", problem) for key, problem in notes if problem]

    def _unused_temperature(self, settings: DomainSettings) -> str:
        """Return why the temperature has no effect; empty if it has one or none is set."""
        model = settings.model or self._default_model
        if settings.temperature is None or not model or (profile := profile_of(model)).sampling:
            return ""
        return f"{profile.name} takes no temperature, so {settings.temperature:g} is stored but not sent to this model."

    async def settings_changed(self, domain_id: str, before: DomainSettings, after: DomainSettings) -> None:
        """See `DomainLifecycle.changed`."""
        if after.mcp_servers != before.mcp_servers:
            await self._pool.servers_changed(domain_id, enabled_hashes(after))

    async def leaving(self, domain_id: str) -> None:
        """See `DomainLifecycle.leaving`."""
        await self._pool.servers_changed(domain_id, None)
