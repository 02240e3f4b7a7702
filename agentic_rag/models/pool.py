"""The models of several providers as one: each request goes to the provider that its model's name names.

Owns which names there are, and what an admin is told of one that is not. Knows no adapter and no turn.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol, runtime_checkable

import anyio

from agentic_rag.base.errors import ModelError
from agentic_rag.models.base import Model, ModelEvent, ModelRequest
from agentic_rag.models.names import ModelNames

SHOWN = 20
"""Models that are named to whoever asked for one that is not there."""


@runtime_checkable
class WarmModel(Protocol):
    """A model that is slow to be ready the first time."""

    async def warm_up(self) -> None:
        """Get ready. Idempotent."""
        ...


@runtime_checkable
class ListedModel(Protocol):
    """A model whose service lists what it has."""

    async def list_names(self) -> tuple[str, ...] | None:
        """Return the names; None where nobody knows."""
        ...


@runtime_checkable
class KnowingModel(Protocol):
    """A model whose service can be asked of a name."""

    async def knows(self, model: str) -> bool | None:
        """Return whether there is such a model; None where nobody knows."""
        ...


class ModelPool(Model):
    """All providers' models; ``offered``: the names that a provider may be asked for, where the operator says."""

    def __init__(self, models: Mapping[str, Model], names: ModelNames, offered: Mapping[str, tuple[str, ...]]) -> None:
        self._models = models
        self._offered = offered
        self.names = names

    @property
    def name(self) -> str:
        return self._models[self.names.default].name

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """See `Model.stream`; a provider that is gone is an error of the call."""
        provider, bare = self.names.split(request.model)
        model = self._models.get(provider)
        if model is None:
            raise ModelError(
                f"There is no provider of the model {request.model!r} any more. "
                "Choose another one in the domain's settings."
            )
        return model.stream(_for_model(request, bare))

    async def warm_up(self) -> None:
        """Get the default provider's model ready; the others are when they are first asked."""
        model = self._models[self.names.default]
        if isinstance(model, WarmModel):
            await model.warm_up()

    async def aclose(self) -> None:
        async with anyio.create_task_group() as closing:
            for model in self._models.values():
                closing.start_soon(model.aclose)

    async def refusal(self, name: str) -> str | None:
        """Return why no domain can name this model, with those that it can; None when one can, or nobody knows."""
        provider, bare = self.names.split(name)
        offered = self._offered.get(provider)
        model = self._models[provider]
        if not bare:
            return f"{name!r} names no model. {self._list()}"
        if offered:
            return None if bare in offered else f"{provider!r} has no model {bare!r}. {self._list()}"
        if isinstance(model, KnowingModel):
            if await model.knows(bare) is False:
                return f"the service does not know the model {bare!r}. {self._list()}"
            return None
        listed = await model.list_names() if isinstance(model, ListedModel) else None
        if listed is None or bare in listed:
            return None
        shown = ", ".join(listed[:SHOWN]) + (", …" if len(listed) > SHOWN else "")
        return f"{provider!r} has no model {bare!r}; it has {shown}."

    def _list(self) -> str:
        parts = []
        for provider in self._models:
            offered = self._offered.get(provider)
            parts += [f"{provider}:{model}" for model in offered[:SHOWN]] if offered else [f"{provider}:NAME"]
        return f"This server has {', '.join(parts)}."


def _for_model(request: ModelRequest, model: str) -> ModelRequest:
    return request if request.model == model else replace(request, model=model)
