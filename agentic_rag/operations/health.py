"""How the parts of the server are: the model, the embedder, the index, the store, the MCP servers.

Owns what is shown of them together. Each part knows its own state. Knows no request.
"""

from typing import Protocol

from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.json_form import Json
from agentic_rag.models.base import Model
from agentic_rag.tools.launch.policy import LaunchPolicy


class ServerStates(Protocol):
    """Where MCP servers run."""

    def status(self) -> list[Json]:
        """Return ``{name, state, domain?}`` of each connection."""
        ...


class Health:
    """Asks every part. ``store``: the name of the database that is used."""

    def __init__(self, model: Model, knowledge: Knowledge, servers: ServerStates, policy: LaunchPolicy, store: str):
        self._model = model
        self._knowledge = knowledge
        self._servers = servers
        self._policy = policy
        self._store = store

    def report(self) -> Json:
        """Return the states as JSON; their reasons are not redacted."""
        return {
            "status": "ok",
            "model": {"name": self._model.name, "state": "ready"},
            **self._knowledge.health(),
            "store": {"name": self._store, "state": "ready"},
            "servers": self._servers.status(),
            "anyCommand": self._policy.any_command,
            "unsandboxed": self._policy.unsandboxed,
        }
