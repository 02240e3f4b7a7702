"""The models of several providers as one model. The name of a request's model selects the provider.

Owns the check of model names and its messages for admins. Knows no adapter and no turn.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol, runtime_checkable

import anyio

from agentic_rag.base.errors import ModelError
from agentic_rag.models.base import Model, ModelEvent, ModelRequest
from agentic_rag.models.batches import BatchAnswer, BatchingModel, BatchState, without_batches
from agentic_rag.models.names import ModelNames

SHOWN = 20
"""Most model names that the message for an unknown model lists."""


@runtime_checkable
class WarmModel(Protocol):
    """A model whose first call needs slow preparation."""

    async def warm_up(self) -> None:
        """Prepare for the first call. Idempotent."""
        ...


@runtime_checkable
class ListedModel(Protocol):
    """A model whose service can list its models."""

    async def list_names(self) -> tuple[str, ...] | None:
        """Return the names of the service's models, or None if the service does not say."""
        ...


@runtime_checkable
class KnowingModel(Protocol):
    """A model whose service can check a model name."""

    async def knows(self, model: str) -> bool | None:
        """Return whether the service has this model, or None if the service does not say."""
        ...


class ModelPool(Model):
    """All providers' models as one.

    ``offered``: by provider, the models that the operator allows. Providers without an entry allow any model.
    """

    def __init__(self, models: Mapping[str, Model], names: ModelNames, offered: Mapping[str, tuple[str, ...]]) -> None:
        self._models = models
        self._offered = offered
        self.names = names

    @property
    def name(self) -> str:
        return self._models[self.names.default].name

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Open a call at the provider of the request's model; see `Model.stream`.

        Raises:
            ModelError: the provider is no longer configured, or the call failed.
        """
        provider, bare = self.names.split(request.model)
        model = self._models.get(provider)
        if model is None:
            raise ModelError(
                f"There is no provider of the model {request.model!r} any more. "
                "Choose another one in the domain's settings."
            )
        return model.stream(_for_model(request, bare))

    async def submit_batch(self, model: str, requests: Mapping[str, ModelRequest]) -> str:
        """Submit a batch at the provider of the requests' model; see `BatchingModel`."""
        batching, bare = self._batching(model)
        return await batching.submit_batch(bare, {key: _for_model(request, bare) for key, request in requests.items()})

    async def read_batch(self, model: str, batch_id: str) -> BatchState:
        """Return the progress of a batch; see `BatchingModel`."""
        batching, bare = self._batching(model)
        return await batching.read_batch(bare, batch_id)

    async def batch_answers(self, model: str, batch_id: str) -> dict[str, BatchAnswer]:
        """Return the answers of an ended batch; see `BatchingModel`."""
        batching, bare = self._batching(model)
        return await batching.batch_answers(bare, batch_id)

    async def cancel_batch(self, model: str, batch_id: str) -> None:
        """Cancel a batch; see `BatchingModel`."""
        batching, bare = self._batching(model)
        await batching.cancel_batch(bare, batch_id)

    def _batching(self, name: str) -> tuple[BatchingModel, str]:
        """Return the model of a name's provider, and the name there.

        Raises:
            ModelError: the provider has no batches or is no longer configured.
        """
        provider, bare = self.names.split(name)
        model: object = self._models.get(provider)
        if not isinstance(model, BatchingModel):
            raise without_batches(name)
        return model, bare

    async def warm_up(self) -> None:
        """Prepare the default provider's model. The others prepare at their first call."""
        model = self._models[self.names.default]
        if isinstance(model, WarmModel):
            await model.warm_up()

    async def aclose(self) -> None:
        # At the same time: one service that does not answer must not delay the others.
        async with anyio.create_task_group() as closing:
            for model in self._models.values():
                closing.start_soon(model.aclose)

    async def refusal(self, name: str) -> str | None:
        """Return why domains cannot use this model name, with the names they can use.

        Returns None if they can use the name, or if the service does not say.
        """
        provider, bare = self.names.split(name)
        offered = self._offered.get(provider)
        model = self._models[provider]
        if not bare:
            return f"{name!r} names no model. {self._list()}"
        if offered:  # the operator's list needs no call of the service
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
