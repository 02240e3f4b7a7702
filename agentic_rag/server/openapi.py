"""The OpenAPI 3.1 document of the declared routes.

Owns the translation: a declaration becomes an operation, the forms it takes and the records it answers become
components, with schemas by pydantic. Knows no route by name. The document is made when it is first asked for: all
models together would cost every start a tenth of a second.
"""

import re
import types
import typing
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter
from starlette.responses import Response

from agentic_rag import __version__
from agentic_rag.json_form import Json, camel
from agentic_rag.server.replies import Attachment, ErrorAnswer, Items, Redacted
from agentic_rag.server.routes import Declaration
from agentic_rag.server.sse import EventStream

REFS = "#/components/schemas/{model}"
ERROR: Json = {"$ref": "#/components/responses/Error"}
FILES: Json = {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
"""A multipart body: files under any names."""

_Key = tuple[str, Literal["query", "body", "answer"]]
"""Which schema: an operation's id, and what of it."""


class OpenApi:
    """The document of some declarations; safe to be asked for from several threads."""

    def __init__(self, declarations: Sequence[Declaration]) -> None:
        self._declarations = declarations

    @cached_property
    def document(self) -> bytes:
        """The document as JSON."""
        schemas, components = self._schemas()
        paths: dict[str, Json] = {}
        for declared in self._declarations:
            paths.setdefault(declared.path, {})[declared.method.lower()] = _operation(declared, schemas, components)
        error = {"description": "Why it was refused or failed.", **_content(schemas[_ERROR])}
        return orjson.dumps(
            {
                "openapi": "3.1.0",
                "info": {"title": "Agentic RAG", "version": __version__, "description": _INTRODUCTION},
                "paths": paths,
                "components": {
                    "schemas": components,
                    "responses": {"Error": error},
                    "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}},
                },
                "security": [{"key": []}, {}],
            }
        )

    def _schemas(self) -> tuple[dict[_Key, Json], dict[str, Json]]:
        """Return the schemas of bodies and answers, and the components they refer to."""
        inputs: list[Any] = [(_ERROR, "serialization", TypeAdapter(ErrorAnswer))]
        for declared in self._declarations:
            ident = operation_id(declared)
            kinds = _json_kinds(declared.answer)
            inputs += [((ident, "answer"), "serialization", TypeAdapter(kind)) for kind in kinds]
            forms: tuple[Literal["query", "body"], ...] = ("query", "body")
            for name in forms:
                if name in declared.reads:
                    inputs.append(((ident, name), "validation", TypeAdapter(declared.reads[name])))
        by_key, shared = TypeAdapter.json_schemas(inputs, ref_template=REFS)
        schemas = {key: _name_in_camel_case(schema) for (key, _), schema in by_key.items()}
        return schemas, {name: _name_in_camel_case(schema) for name, schema in shared["$defs"].items()}


_ERROR: _Key = ("", "answer")

_INTRODUCTION = """\
Errors have one form: `{"error": {"code", "message", "details?", "requestId"}}`. `x-allow` says who may use an
operation: anyone, any user with a key, members or admins of the domain in its path, or operators. A server that listens
on loopback only and has no keys takes everybody for its operator. Conversations happen over the WebSocket `/ws` or the
event streams described here."""


def operation_id(declared: Declaration) -> str:
    """Return the name of an operation: its noun and its verb."""
    return declared.handler.__qualname__.replace("Routes.", "_")


def _operation(declared: Declaration, schemas: dict[_Key, Json], components: dict[str, Json]) -> Json:
    ident = operation_id(declared)
    query = schemas.get((ident, "query"))
    form = {} if query is None else components[query["$ref"].rpartition("/")[2]]
    summary, _, description = declared.doc.partition("\n")
    operation: Json = {
        "operationId": ident,
        "tags": [ident.partition("_")[0]],
        "summary": summary,
        "parameters": [*_path_parameters(declared.path), *_query_parameters(form)],
        "responses": {**_responses(declared, schemas.get((ident, "answer"))), "default": ERROR},
        "x-allow": declared.rule.allow,
        "x-audited": declared.rule.audited,
    }
    if description.strip():
        operation["description"] = description.strip()
    if declared.rule.allow == "anyone":
        operation["security"] = []
    if declared.takes != "application/json":
        operation["requestBody"] = {"required": True, "content": {declared.takes: {"schema": FILES}}}
    elif (ident, "body") in schemas:
        operation["requestBody"] = _content(schemas[ident, "body"])
    return operation


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", path)
    ]


def _query_parameters(form: Json) -> list[Json]:
    required = form.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in form.get("properties", {}).items()
    ]


def _responses(declared: Declaration, schema: Json | None) -> Json:
    responses: Json = {}
    for kind in _kinds(declared.answer):
        if kind is EventStream:
            content = {"text/event-stream": {"schema": {"type": "string"}}}
            responses["200"] = {
                "description": "The turn's events, in the dialect that was asked for.",
                "content": content,
            }
        elif kind is Attachment:
            content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
            responses["200"] = {"description": "The file.", "content": content}
        elif kind is types.NoneType:
            responses[str(declared.status)] = {"description": "Done."}
        else:
            responses[str(declared.status)] = {"description": "Done.", **_content(schema or {"type": "object"})}
    return responses


def _kinds(answer: Any) -> tuple[Any, ...]:
    """Return the alternatives of an answer."""
    if answer is None:
        return (types.NoneType,)
    return typing.get_args(answer) if typing.get_origin(answer) in (types.UnionType, typing.Union) else (answer,)


_NO_JSON = (EventStream, Attachment, Response, types.NoneType)


def _json_kinds(answer: Any) -> list[Any]:
    """Return the alternatives of an answer that have a schema."""
    return [_answer_type(kind) for kind in _kinds(answer) if kind not in _NO_JSON]


def _answer_type(kind: Any) -> Any:
    """Return the type of what is sent, where the server still has to take secrets out of it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Redacted:
        return _answer_type(arguments[0])
    if origin in (types.UnionType, typing.Union):
        return typing.Union[tuple(map(_answer_type, arguments))]  # noqa: UP007  # made of types that are known now
    if isinstance(origin, type) and issubclass(origin, Items):
        generic: Any = origin
        return generic[_answer_type(arguments[0])]
    return kind


def _content(schema: Json) -> Json:
    return {"content": {"application/json": {"schema": schema}}}


def _name_in_camel_case(schema: Any) -> Any:
    """Return a schema whose properties have the names of the JSON form (see ``json_form``)."""
    if isinstance(schema, list):
        return [_name_in_camel_case(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _name_in_camel_case(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        renamed["properties"] = {camel(name): value for name, value in renamed["properties"].items()}
        renamed["required"] = [camel(name) for name in schema.get("required", ())]
    return renamed
