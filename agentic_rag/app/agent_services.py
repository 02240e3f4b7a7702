"""Provide turns with the services of other parts, as `AgentServices`.

The composition root creates the object.
"""

from collections.abc import Set as AbstractSet
from datetime import date

from agentic_rag.access.document_views import DocumentReader, DocumentViews
from agentic_rag.access.keys import Access
from agentic_rag.base.messages import is_attachment
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.documents.search import missing_chunks
from agentic_rag.domains.turn_tools import TurnTools
from agentic_rag.models.base import Model
from agentic_rag.models.calls import ModelCalls
from agentic_rag.roles.roles import Roles
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.store.database import Database
from agentic_rag.tools.base import Toolset


class Services:
    """Implements `agentic_rag.runtime.services.AgentServices`."""

    def __init__(
        self,
        model: Model,
        calls: ModelCalls,
        tools: TurnTools,
        roles: Roles,
        knowledge: Knowledge,
        database: Database,
        access: Access,
        directory: Directory,
    ) -> None:
        self._model = model
        self._calls = calls
        self._tools = tools
        self._roles = roles
        self._knowledge = knowledge
        self._database = database
        self._access = access
        self._directory = directory

    @property
    def alone(self) -> bool:
        """See `AgentServices.alone`."""
        return self._access.alone

    @property
    def today(self) -> date:
        """See `AgentServices.today`."""
        return date.today()

    def documents_mark(self, domain_id: str) -> object:
        """See `AgentServices.documents_mark`."""
        return self._directory.documents_mark(domain_id)

    @property
    def model_calls(self) -> ModelCalls:
        """See `AgentServices.model_calls`."""
        return self._calls

    def model(self, domain_id: str) -> Model:
        """See `AgentServices.model`."""
        return self._model

    async def open_toolset(self, definition: Definition) -> Toolset:
        """See `AgentServices.open_toolset`."""
        return await self._tools.open(definition)

    async def role_hash(self, domain_id: str, role: str) -> str | None:
        """See `AgentServices.role_hash`."""
        return await self._roles.hash(domain_id, role)

    async def missing_chunks(self, domain_id: str, chunk_ids: set[str]) -> set[str]:
        """See `AgentServices.missing_chunks`."""
        return await missing_chunks(self._knowledge.index, self._database, domain_id, chunk_ids)


class HiddenFromReaders:
    """Names the documents that a turn's reader may not see now. Implements `runtime.services.HiddenDocuments`."""

    def __init__(self, views: DocumentViews) -> None:
        self._views = views

    async def __call__(self, definition: Definition, document_ids: AbstractSet[str]) -> AbstractSet[str]:
        binding = definition.binding
        reader = DocumentReader(binding.user, binding.key, trusted=binding.trusted)
        view = await self._views.of_reader(reader, definition.domain_id)
        return frozenset(
            document_id
            for document_id in document_ids
            if not is_attachment(document_id) and not view.shows(document_id)
        )
