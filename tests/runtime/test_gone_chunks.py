"""Missing passages are looked up once until a document changes; then all are looked up before anything is sent."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.testing.fake_api import FakeMessagesAPI
from tests.databases import POSTGRESQL
from tests.runtime.test_append_only import World, ask, brain, delete_document, open_world, system_texts, tools_of


@dataclass
class Library(World):
    """A world that reports changes of documents, if it can, and records the requested ones."""

    mark: object = field(default_factory=object)
    queries: list[set[str]] = field(default_factory=list)

    def documents_mark(self, domain_id: str) -> object:
        return self.mark

    async def missing_chunks(self, domain_id: str, chunk_ids: set[str]) -> set[str]:
        self.queries.append(set(chunk_ids))
        return await super().missing_chunks(domain_id, chunk_ids)


@pytest.mark.parametrize("has_mark", [True, False])
async def test_removed_passages_are_queried_again_after_a_documents_change(tmp_path: Path, has_mark: bool) -> None:
    is_queried_once = has_mark and not POSTGRESQL  # where another server may delete a document, all are looked up
    async with FakeMessagesAPI(then=brain) as api:
        model = AnthropicModel(api.key, api.url)
        library = Library(model, tools_of())
        if not has_mark:
            library.mark = None
        async with open_world(tmp_path, api, library) as (b, world):
            for _ in range(3):
                await ask(b, world, "How many days?")
            assert set.union(*library.queries) == {"doc_1-c0"}
            assert (len(library.queries) == 1) is is_queried_once
            library.queries.clear()
            delete_document(world)
            library.mark = object() if has_mark else None
            await ask(b, world, "Sure?")
            assert library.queries[0] == {"doc_1-c0"}
            assert (len(library.queries) == 1) is is_queried_once
        await model.aclose()
    assert "doc_1.md was deleted" in system_texts(api.requests[-1])
    assert api.refused == []
