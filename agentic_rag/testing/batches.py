"""Message batches of the fake Messages API: their checks, their state and their results.

Owns the service's rules for ``POST /v1/messages/batches`` and the JSON of a batch. A request's own parameters are
checked when the batch is processed, as the service does, so a wrong one is an ``errored`` result. Knows no HTTP.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from agentic_rag.base.json_form import Json

MAX_REQUESTS: Final = 100_000
_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CREATED: Final = "2026-11-01T00:00:00Z"
_EXPIRES: Final = "2026-11-02T00:00:00Z"


def batch_problems(body: Json) -> list[str]:
    """Return the problems for which the service refuses a whole batch."""
    return list(_problems(body))


def _problems(body: Json) -> Iterator[str]:
    for key in sorted(body.keys() - {"requests"}):
        yield f"{key}: Extra inputs are not permitted"
    requests = body.get("requests")
    if not isinstance(requests, list) or not 1 <= len(requests) <= MAX_REQUESTS:
        yield f"requests: List should have at least 1 and at most {MAX_REQUESTS} items"
        return
    idents: set[Any] = set()
    for index, entry in enumerate(requests):
        if not isinstance(entry, dict) or entry.keys() != {"custom_id", "params"}:
            yield f"requests.{index}: Input should have custom_id and params, and nothing else"
            continue
        ident, params = entry["custom_id"], entry["params"]
        if not isinstance(ident, str) or not _CUSTOM_ID.fullmatch(ident):
            yield f"requests.{index}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        elif ident in idents:
            yield f"requests.{index}.custom_id: {ident!r} must be unique within the batch"
        else:
            idents.add(ident)
        if not isinstance(params, dict):
            yield f"requests.{index}.params: Input should be a valid dictionary"
        elif params.get("stream"):
            yield f"requests.{index}.params.stream: streaming is not supported in batches"


class FakeBatch:
    """One batch. ``results`` is None while the batch is processed; then its lines, not in the order of the requests."""

    def __init__(self, ident: str, requests: list[Json]) -> None:
        self.id = ident
        self.requests = requests
        self.canceled = False
        self.results: list[Json] | None = None

    def end(self, answer: Callable[[Json], Json], expired: int) -> None:
        """Process the requests. A canceled batch answers none, and the last ``expired`` ones expire."""
        answered_count = len(self.requests) - expired
        results = []
        for index, entry in enumerate(self.requests):
            if self.canceled:
                result: Json = {"type": "canceled"}
            else:
                result = answer(entry["params"]) if index < answered_count else {"type": "expired"}
            results.append({"custom_id": entry["custom_id"], "result": result})
        self.results = results[::-1]  # the service promises no order, so no client may rely on one

    def cancel(self) -> None:
        """Note that a client canceled the batch. Requests that are not answered yet get a ``canceled`` result."""
        self.canceled = True

    def result_lines(self) -> str:
        """Return the results as JSON lines."""
        return "".join(json.dumps(line) + "\n" for line in self.results or ())

    def to_json(self, url: str) -> Json:
        """Return the batch as the service shows it."""
        kinds = ("succeeded", "errored", "canceled", "expired")
        types = [line["result"]["type"] for line in self.results or ()]
        ended = self.results is not None
        running = "canceling" if self.canceled else "in_progress"
        return {
            "id": self.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else running,
            "request_counts": {
                "processing": 0 if ended else len(self.requests),
                **{kind: types.count(kind) for kind in kinds},
            },
            "created_at": _CREATED,
            "expires_at": _EXPIRES,
            "ended_at": _EXPIRES if ended else None,
            "archived_at": None,
            "cancel_initiated_at": _CREATED if self.canceled else None,
            "results_url": f"{url}/v1/messages/batches/{self.id}/results" if ended else None,
        }
