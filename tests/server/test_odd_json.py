"""JSON that no client should send, in every body that is read: each is answered, and none breaks the server."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.routing import Route

from agentic_rag.base.ids import ConversationId
from agentic_rag.server.routing import Declaration, RouteEndpoint
from agentic_rag.store.conversations import update
from tests.server.rig import Rig

DEEP = 900
"""Levels of nesting: the parser of bodies accepts 1 024, the serialiser of answers 254."""


def nest(levels: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    return value


ODD = [
    *('"\\ud800"', '"\\u0000"', '"\\u202e\\u0007"', '""', f'"{"x" * 30_000}"'),
    *("NaN", "1e999", str(2**70), str(-(2**70)), "9" * 5000, "-0.0", "true", "null"),
    *("{}", "[]", '{"a": 1, "a": 2}', '{"": {"": ""}}', '{"\\u0000": 1}', '{"\\ud800": 1}'),
    *(json.dumps(nest(DEEP)), json.dumps(nest(DEEP, "dict")), "[" * 10_000, '{"a":' * 10_000),
    *(json.dumps([{"type": "x"}] * 500), json.dumps({f"k{n}": n for n in range(500)})),
]
"""As texts, because most of them cannot be written as Python values."""


def bodies(kind: Any) -> list[str]:
    """Return bodies: each odd value as the whole, and in the place of each field."""
    fields = [field.alias or name for name, field in kind.model_fields.items()] if issubclass(kind, BaseModel) else []
    return ODD + [f'{{"{field}": {value}}}' for field in fields for value in ODD]


@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.nightly("every body of every route"))])
async def test_no_request_body_causes_a_server_error(tmp_path: Path, every: int) -> None:
    async with Rig(tmp_path, scripted=False) as rig:
        domain = await rig.domain()
        conversation = await rig.conversation(domain)
        endpoints = [route.endpoint for route in rig.application.app.routes if isinstance(route, Route)]
        declarations = [endpoint.declared for endpoint in endpoints if isinstance(endpoint, RouteEndpoint)]
        with_body = [declaration for declaration in declarations if "body" in declaration.reads]
        assert len(with_body) > 15
        # A different start for each route, so that each odd value is used.
        for number, declaration in enumerate(with_body):
            for body in bodies(declaration.reads["body"])[number % every :: every]:
                path = path_of(declaration, domain, conversation)
                answer = await rig.http.request(
                    declaration.method, path, content=body.encode(), headers={"content-type": "application/json"}
                )
                assert answer.status_code < 500, (declaration.method, declaration.path, body[:200], answer.text[:300])
        assert (await rig.http.get("/api/conversations")).status_code == 200
        assert (await rig.http.get("/api/domains")).status_code == 200


def path_of(declaration: Declaration, domain: str, conversation: str) -> str:
    idents = {"domain": domain, "conversation": conversation}
    names = [part[1:-1].partition(":")[0] for part in declaration.path.split("/") if part.startswith("{")]
    path = declaration.path
    for name in names:
        path = path.replace(f"{{{name}:path}}", "x").replace(f"{{{name}}}", idents.get(name, "x"))
    return path


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (nest(20, "dict"), "levels"),
        ({"a": nest(20)}, "levels"),
        ({f"k{n}": n for n in range(300)}, "keys"),
        ({"a": "x" * 20_000}, "bytes"),
        ({"a": nest(DEEP)}, "levels"),
    ],
    ids=["deep", "deep list", "keys", "size", "very deep"],
)
async def test_metadata_is_limited_in_depth_size_and_keys(tmp_path: Path, metadata: Any, words: str) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        status, code, message = await rig.refused("PATCH", path, {"metadata": metadata})
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert words in message
        assert message.startswith(("metadata: ", "body: "))
        small_metadata = {"ticket": "A-1", "tags": ["a", "b"], "nested": {"a": {"b": 1}}}
        assert (await rig.ok("PATCH", path, {"metadata": small_metadata}))["metadata"] == small_metadata


async def test_a_list_shows_values_nested_deeper_than_the_limit(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation()
        for levels in (200, 300, 450):
            meta = {"big": 2**70, "deep": nest(levels)}
            await rig.application.database.write(
                partial(update, conversation_id=ConversationId(conversation), meta=meta)
            )
            conversations = (await rig.ok("GET", "/api/conversations"))["items"]
            assert [item["id"] for item in conversations] == [conversation]
            assert conversations[0]["metadata"]["big"] == 2**70
