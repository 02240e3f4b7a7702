"""Batches of model requests: answers within a day, at a lower price.

Owns the protocol of models whose service has batches, and their answers. `models/anthropic/model.py` implements it with
the SDK's ``messages.batches``. Knows no run and no store: the caller stores a batch's id before it asks for the batch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import clean_text
from agentic_rag.models.base import ModelRequest, token_count

MAX_REQUESTS = 2_000
"""Most requests that callers put into one batch. The service allows 100 000 requests or 256 MB."""
MAX_FAILURE = 300
"""Characters quoted of a service's error about one request."""
READ_SECONDS = 300.0
"""Time limit for one call about a batch."""
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BATCH_ID = re.compile(r"[a-zA-Z0-9_-]{1,100}")
NO_BATCHES = "no_batches"
"""Kind of the `ModelError` for a service without batches."""


class BatchState(StrEnum):
    """The progress of a batch: processing, or ended with a result for each request."""

    PROCESSING = "processing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer to one request of a batch. ``failure`` is the reason if there is none."""

    text: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    failure: str = ""


@runtime_checkable
class BatchingModel(Protocol):
    """A model whose service may have batches. ``model``: the name of the requests' model.

    Each method raises `ModelError` if the service refuses or fails, with kind `NO_BATCHES` if it has no batches.
    """

    async def submit_batch(self, model: str, requests: Mapping[str, ModelRequest]) -> str:
        """Submit requests by custom id (`CUSTOM_ID`) and return the id of the batch."""
        ...

    async def read_batch(self, model: str, batch_id: str) -> BatchState:
        """Return the progress of a batch."""
        ...

    async def batch_answers(self, model: str, batch_id: str) -> dict[str, BatchAnswer]:
        """Return the answers of an ended batch by custom id, in any order."""
        ...

    async def cancel_batch(self, model: str, batch_id: str) -> None:
        """Cancel a batch. The service ends the batch a while later, and some requests may still be answered."""
        ...


def without_batches(name: str) -> ModelError:
    """Return the error for a model whose service has no batches."""
    return ModelError(f"The service of the model {name!r} has no batches.", kind=NO_BATCHES)


def read_line(result: Any, prefix: str = "") -> BatchAnswer:
    """Return the answer in the ``result`` of one line of a batch's results. ``prefix``: put before the model's name."""
    kind = result.get("type") if isinstance(result, dict) else None
    if kind == "succeeded" and isinstance(result.get("message"), dict):
        message = result["message"]
        content = message.get("content")
        blocks = [block for block in (content if isinstance(content, list) else ()) if isinstance(block, dict)]
        text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
        reported = message.get("usage")
        used: Json = reported if isinstance(reported, dict) else {}
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        usage = Usage(*(token_count(used.get(name)) for name in names))
        refused = "the model declined to answer" if message.get("stop_reason") == "refusal" else ""
        name = clean_text(f"{prefix}{message.get('model') or ''}"[:200])
        return BatchAnswer(clean_text(text), name, usage, refused)
    if kind == "errored":
        sent = result.get("error")
        error = sent.get("error") if isinstance(sent, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        return BatchAnswer(failure=f"the service refused the request: {clean_text(str(message)[:MAX_FAILURE])}")
    if kind == "expired":
        return BatchAnswer(failure="the batch expired before the service answered this request")
    if kind == "canceled":
        return BatchAnswer(failure="the batch was canceled before the service answered this request")
    return BatchAnswer(failure=f"the service gave a result of the unknown type {str(kind)[:40]!r}")
