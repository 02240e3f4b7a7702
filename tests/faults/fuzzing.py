"""Send valid and invalid requests by the OpenAPI document to every operation of the whole application.

Schemathesis generates the requests from the document. This module checks the answers: their status and shape must be in
the document, and they must be neither a server error nor contain internal details. Most ids in paths exist, so that
requests pass the look-up.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.from_thread
import httpx2
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from schemathesis import Case, GenerationMode

from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import say
from tests.access.tenants import as_operator
from tests.server.rig import Json, Rig

URL = "http://127.0.0.1"
REAL_IDS = 0.7
"""Share of ids in requests that exist."""
INSIDES = ("Traceback", "sqlalchemy", "site-packages", "agentic_rag/", "sqlite3.", "psycopg")

schemathesis.serializer.alias("application/zip", "application/octet-stream")  # any bytes


@dataclass(slots=True)
class Fuzzing:
    """The counts of a run, and one line for each problem with an answer."""

    statuses: Counter[int] = field(default_factory=Counter)
    operations: int = 0
    problems: list[str] = field(default_factory=list)


def fuzz(folder: Path, examples: int, number: int, *, every: int = 1) -> Fuzzing:
    """Send each operation ``examples`` valid and as many invalid requests.

    ``number`` seeds them. With ``every``, only each n-th operation is tested, starting with that number. Most of the
    time is spent on analysing an operation's parameters before the first request.
    """
    result = Fuzzing()
    with _quiet(), anyio.from_thread.start_blocking_portal() as portal:
        model = ScriptedModel(then=say("Yes."), strict=False)
        wide: dict[str, Any] = {"requests_per_second": 100_000, "messages_per_minute": 1_000_000}
        rig = Rig(folder, instead=model, quota_conversations=100_000, **wide)
        with portal.wrap_async_context_manager(rig):
            ids = portal.call(_furnish, rig)
            document = portal.call(rig.ok, "GET", "/api/openapi.json")
            for operation in list(_operations(document))[number % every :: every]:
                result.operations += 1
                for mode in _modes(operation):
                    _fuzz_operation(portal, rig, Judge(document, result), operation, mode, ids, examples, number)
    return result


@contextmanager
def _quiet() -> Iterator[None]:
    """Log only errors meanwhile, because a line for each request would take most of the time."""
    chatty = [logging.getLogger(name) for name in ("agentic_rag", "httpx2", "mcp")]
    before = [logger.level for logger in chatty]
    for logger in chatty:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(chatty, before, strict=True):
            logger.setLevel(level)


def _operations(document: Json) -> Iterator[Any]:
    """Yield the operations. Those that delete come last."""
    results: list[Any] = list(schemathesis.openapi.from_dict(document).get_all_operations())
    operations = [result.ok() for result in results]
    yield from sorted(operations, key=lambda operation: operation.method.upper() == "DELETE")


def _modes(operation: Any) -> list[GenerationMode]:
    """Return the kinds of requests to send. A path takes any text, so only other parts of a request can be invalid.

    Without such a part, Hypothesis would draw 459 requests in vain.
    """
    has_other_parts = any(map(list, (operation.query, operation.headers, operation.cookies, operation.body)))
    return list(GenerationMode) if has_other_parts else [GenerationMode.POSITIVE]


async def _furnish(rig: Rig) -> dict[str, str]:
    """Create one object of every kind. Return their ids by the names of path parameters."""
    as_operator(rig)  # keys created during the run must not lock us out
    domain = await rig.domain()
    document = await rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days.")
    conversation = await rig.conversation(domain)
    turn = (await rig.say(conversation, "Hi"))[-1]
    chunks = (await rig.ok("GET", f"/api/domains/{domain}/documents/{document['id']}/chunks"))["items"]
    turn_details = await rig.ok("GET", f"/api/turns/{turn['turnId']}")
    return {
        "domain": domain,
        "document": document["id"],
        "chunk": chunks[0]["chunkId"],
        "conversation": conversation,
        "message": turn["messageId"],
        "turn": turn["turnId"],
        "image": turn_details["imageId"],
        "role": "assistant",
        "name": "TOKEN",
    }


def _fuzz_operation(
    portal: anyio.from_thread.BlockingPortal,
    rig: Rig,
    judge: "Judge",
    operation: Any,
    mode: GenerationMode,
    ids: dict[str, str],
    examples: int,
    number: int,
) -> None:
    names = [parameter.name for parameter in operation.path_parameters]
    deletes = operation.method.upper() == "DELETE"

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(case=operation.as_strategy(mode), draws=st.lists(st.floats(0, 1), min_size=len(names), max_size=len(names)))
    def send(case: Case[Any], draws: list[float]) -> None:
        for name, draw in zip(names, draws, strict=True):
            if name in ids and draw < REAL_IDS and not deletes:
                case.path_parameters[name] = ids[name]
        prepared_request = requests.Request(**_plain(case.as_transport_kwargs(base_url=URL))).prepare()
        portal.call(_send, rig, prepared_request, judge, operation)

    with suppress(Unsatisfiable):  # an operation without possible requests is no problem
        send()


def _plain(request: dict[str, Any]) -> dict[str, Any]:
    names = ("method", "url", "headers", "files", "data", "params", "cookies", "json")
    return {name: value for name, value in request.items() if name in names}


async def _send(rig: Rig, prepared_request: requests.PreparedRequest, judge: "Judge", operation: Any) -> None:
    label, body = f"{operation.method.upper()} {operation.path}", prepared_request.body or b""
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)  # type: ignore[arg-type]
    headers = prepared_request.headers.items()
    sent_headers = {name: str(value) for name, value in headers if name.lower() in ("content-type", "if-match")}
    try:
        request = rig.http.build_request(
            str(prepared_request.method), str(prepared_request.url), content=content, headers=sent_headers
        )
    except (httpx2.InvalidURL, UnicodeError):
        return  # cannot be sent
    try:
        judge.judge(label, operation, await rig.http.send(request))
    except AssertionError as exc:  # from the rig: the document does not contain this answer
        judge.found.problems.append(f"{label}: {exc} ({prepared_request.url} {content[:300]!r})")


class Judge:
    """Checks answers."""

    def __init__(self, document: Json, result: Fuzzing) -> None:
        self._document = document
        self.found = result

    def judge(self, label: str, operation: Any, answer: httpx2.Response) -> None:
        self.found.statuses[answer.status_code] += 1
        exchange = f"{label} {answer.request.url.query!r} {answer.request.content[:300]!r} → {answer.status_code}"
        if answer.status_code >= 500 and answer.status_code != 503:
            self.found.problems.append(f"{exchange}: {answer.text[:300]}")
        if any(word in answer.text for word in INSIDES) and answer.status_code >= 400:
            self.found.problems.append(f"{exchange} shows insides: {answer.text[:300]}")
        responses = self._document["paths"][operation.path][operation.method.lower()]["responses"]
        definition = responses.get(str(answer.status_code), {})
        if "$ref" in definition:
            definition = self._document["components"]["responses"][definition["$ref"].rpartition("/")[2]]
        schema = definition.get("content", {}).get("application/json", {}).get("schema")
        if schema is None or not answer.headers.get("content-type", "").startswith("application/json"):
            return
        try:
            Draft202012Validator({**schema, "components": self._document["components"]}).validate(answer.json())
        except ValidationError as exc:
            self.found.problems.append(f"{exchange} is not as described: {exc.message[:300]}")
