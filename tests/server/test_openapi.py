"""The declared routes and the OpenAPI document generated from them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.routing import Route, WebSocketRoute

from agentic_rag.access.users import User
from agentic_rag.server.routing import Declaration, RouteEndpoint, route
from agentic_rag.testing.steps import say
from tests.server.rig import Json, Rig

FIELDS = ("operationId", "summary", "description", "tags", "parameters", "requestBody", "responses", "security")
METHODS = ("get", "post", "put", "patch", "delete")

SHAPE: Json = {
    "type": "object",
    "required": ["openapi", "info", "paths", "components", "security"],
    "additionalProperties": False,
    "properties": {
        "openapi": {"const": "3.1.0"},
        "info": {
            "type": "object",
            "required": ["title", "version"],
            "properties": {"title": {"type": "string"}, "version": {"type": "string"}},
        },
        "paths": {
            "type": "object",
            "propertyNames": {"pattern": "^/"},
            "additionalProperties": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": {"enum": list(METHODS)},
                "additionalProperties": {"$ref": "#/$defs/operation"},
            },
        },
        "security": {"$ref": "#/$defs/security"},
        "components": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: {"type": "object", "propertyNames": {"pattern": r"^[a-zA-Z0-9._-]+$"}}
                for name in ("schemas", "responses", "securitySchemes")
            },
        },
    },
    "$defs": {
        "security": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "array"}}},
        "content": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": r"^(\*/\*|[a-z]+/[a-z.+-]+)$"},
            "additionalProperties": {"type": "object", "required": ["schema"]},
        },
        "operation": {
            "type": "object",
            "required": ["operationId", "summary", "tags", "parameters", "responses"],
            "propertyNames": {
                "pattern": "^(x-.*|operationId|summary|description|tags|parameters|requestBody|responses|security)$"
            },
            "properties": {
                "operationId": {"type": "string", "pattern": "^[A-Za-z_]+$"},
                "summary": {"type": "string", "minLength": 5},
                "description": {"type": "string", "minLength": 5},
                "security": {"$ref": "#/$defs/security"},
                "parameters": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "in", "schema"],
                        "properties": {"in": {"enum": ["path", "query"]}, "required": {"type": "boolean"}},
                        "if": {"properties": {"in": {"const": "path"}}},
                        "then": {"required": ["required"], "properties": {"required": {"const": True}}},
                    },
                },
                "requestBody": {
                    "type": "object",
                    "required": ["content"],
                    "properties": {"content": {"$ref": "#/$defs/content"}},
                },
                "responses": {
                    "type": "object",
                    "required": ["401", "403", "429", "500", "503"],
                    "propertyNames": {"pattern": r"^(20[0-6]|30[34]|[45]\d\d)$"},
                    "additionalProperties": {
                        "type": "object",
                        "oneOf": [{"required": ["$ref"]}, {"required": ["description"]}],
                        "properties": {"content": {"$ref": "#/$defs/content"}},
                    },
                },
            },
        },
    },
}
"""The requirements of OpenAPI 3.1 for the parts that our document has."""


def declarations_of(rig: Rig) -> list[Declaration]:
    """Return the declarations of all routes; nothing else answers requests."""
    declarations = []
    for app_route in rig.application.app.routes:
        if isinstance(app_route, WebSocketRoute):
            assert app_route.path in ("/ws", "/api/ag-ui/{domain}")
            continue
        assert isinstance(app_route, Route)
        assert isinstance(app_route.endpoint, RouteEndpoint)
        assert app_route.app is app_route.endpoint, "something was put over a route after its declaration"
        declarations.append(app_route.endpoint.declared)
    return declarations


def references(value: Any) -> Iterator[str]:
    """Yield every ``$ref`` in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


async def test_the_openapi_document_is_valid_and_its_references_exist(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        document = await rig.ok("GET", "/api/openapi.json")
        Draft202012Validator.check_schema(SHAPE)
        Draft202012Validator(SHAPE).validate(document)
        for schema in document["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
        for reference in references(document):
            part: Any = document
            for step in reference.removeprefix("#/").split("/"):
                part = part[step]
        operations = [
            document["paths"][path][method] for path in document["paths"] for method in document["paths"][path]
        ]
        ids = [operation["operationId"] for operation in operations]
        assert len(ids) == len(set(ids))
        names = [name for schema in document["components"]["schemas"].values() for name in schema.get("properties", ())]
        assert not [name for name in names if "_" in name], "the wire has camelCase"


PAGE = ("/", "/web/{path:path}")
"""The console and its files, which are no part of the API."""


async def test_the_openapi_document_has_every_route_with_rule_parameters_and_answers(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        document, routes = await rig.ok("GET", "/api/openapi.json"), declarations_of(rig)
    documented = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    routes = [declaration for declaration in routes if declaration.path not in PAGE]
    assert documented == {(declaration.method, declaration.path) for declaration in routes}
    for declaration in routes:
        operation = document["paths"][declaration.path][declaration.method.lower()]
        assert (operation["x-allow"], operation["x-audited"]) == (declaration.rule.allow, declaration.rule.audited)
        assert operation["summary"] == declaration.doc.partition("\n")[0]
        in_path = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", declaration.path)
        assert ("requestBody" in operation) == ("body" in declaration.reads or declaration.takes != "application/json")
        assert any(parameter["in"] == "query" for parameter in operation["parameters"]) == (
            "query" in declaration.reads
        )
        assert declaration.rule.streams == ("text/event-stream" in str(operation["responses"]))


async def test_a_route_without_a_declared_rule_is_closed(tmp_path: Path) -> None:
    async def handler(self: object) -> None:
        """Do something new."""

    default_rule = route("POST", "/api/domains/{domain}/new")(handler).rule
    assert (default_rule.allow, default_rule.audited) == ("admin", True)
    default_rules = [
        route(method, path)(handler).rule for method in ("GET", "POST") for path in ("/api/new", "/api/domains")
    ]
    assert [rule.allow for rule in default_rules] == ["operator"] * 4
    assert [rule.audited for rule in default_rules] == [False, False, True, True]
    async with Rig(tmp_path) as rig:
        for declaration in declarations_of(rig):
            if declaration.rule.allow in ("admin", "operator") and declaration.method != "GET":
                assert declaration.rule.audited or declaration.path.endswith("/search"), (
                    f"{declaration.method} {declaration.path}"
                )


def test_a_declaration_that_cannot_be_served_is_refused_on_definition() -> None:
    async def unknown(self: object, user: User, nothing: str) -> None:
        """Ask for what is not in the path."""

    async def silent(self: object, user: User) -> None: ...

    async def vague(self: object, request: Request):  # type: ignore[no-untyped-def]
        """Say nothing of the answer."""

    for handler in (unknown, silent, vague):
        with pytest.raises(TypeError, match="GET /api/new"):
            route("GET", "/api/new")(handler)


async def test_answers_of_routes_match_the_openapi_document(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Yes.")) as rig:
        document = await rig.ok("GET", "/api/openapi.json")
        domain = await rig.domain()
        leave_document = await rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days.")
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "Hi")
        ids = {"domain": domain, "conversation": conversation, "turn": events[0]["turnId"], "role": "assistant"}
        ids["document"] = leave_document["id"]
        checked_paths = []
        for path, item in document["paths"].items():
            if "get" not in item or not set(re.findall(r"{(\w+)}", path)) <= set(ids):
                continue
            response = await rig.http.get(path.format(**ids), params={"role": "assistant"} if "export" in path else {})
            if response.status_code != 200:
                continue
            content = item["get"]["responses"]["200"]["content"].get("application/json")
            if content is None:
                continue
            schema = {**content["schema"], "components": document["components"]}
            Draft202012Validator(schema).validate(response.json())
            checked_paths.append(path)
        assert len(checked_paths) >= 24, checked_paths


async def test_every_operation_with_a_body_documents_the_size_error(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        paths = (await rig.http.get("/api/openapi.json")).json()["paths"]
        large = await rig.http.post("/api/domains", json={"name": "x" * 2_000_000})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "BODY_TOO_LARGE")
    with_body = [operation for path in paths.values() for operation in path.values() if "requestBody" in operation]
    assert with_body
    assert [operation["operationId"] for operation in with_body if "413" not in operation["responses"]] == []


@pytest.mark.parametrize(("method", "path"), [("POST", "/oauth/revoke"), ("DELETE", "/mcp/{domain}")])
async def test_refusals_in_the_form_of_another_protocol_match_the_document(
    tmp_path: Path, method: str, path: str
) -> None:
    async with Rig(tmp_path) as rig:
        document = await rig.ok("GET", "/api/openapi.json")
        refusal = await rig.http.request(method, path.format(domain="dom_none"))
    assert refusal.is_client_error
    response = document["paths"][path][method.lower()]["responses"][str(refusal.status_code)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    schema = {**response["content"]["application/json"]["schema"], "components": document["components"]}
    Draft202012Validator(schema).validate(refusal.json())
