"""Build the OpenAPI 3.1 document of the declared routes.

A declaration becomes an operation; its forms and answers become components with pydantic's schemas. This module knows
no route by name. The document is built on first use, because it would add 0.1 s to every start.
"""

import inspect
import re
import types
import typing
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter
from starlette.responses import HTMLResponse, RedirectResponse, Response

from agentic_rag import __version__
from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.json_form import Json, camel
from agentic_rag.server.doors.durable_streams import StreamAnswer
from agentic_rag.server.doors.mcp import RpcAnswer
from agentic_rag.server.error_shapes import keeps_error_form
from agentic_rag.server.json_response import CollectedAnswer
from agentic_rag.server.replies import Attachment, CsvTable, ErrorAnswer, Headed, Items, MetricsText, Redacted
from agentic_rag.server.routes.bundles import BundleStream
from agentic_rag.server.routes.console import PageAnswer
from agentic_rag.server.routes.originals import OriginalFile
from agentic_rag.server.routes.page_images import PageFile
from agentic_rag.server.routing import FREE_NAMES, Declaration
from agentic_rag.server.sse import EventStream

REFS = "#/components/schemas/{model}"
FILES: Json = {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
"""Schema of a multipart body with files under any names."""

_Key = tuple[str, Literal["query", "body", "answer"]]
"""Key of a schema: the operation's id, and its part."""


class OpenApi:
    """The OpenAPI document of some declarations. Thread-safe."""

    def __init__(self, declarations: Sequence[Declaration]) -> None:
        self._declarations = declarations

    @cached_property
    def document(self) -> bytes:
        """The document as JSON."""
        schemas, components = self._schemas()
        paths: dict[str, Json] = {}
        for declared in self._declarations:
            paths.setdefault(declared.path, {})[declared.method.lower()] = _operation(declared, schemas, components)
        answer = _content(schemas[_ERROR])
        errors = {_name_of(status): {"description": text, **answer} for status, text in _COMMON.items()}
        return orjson.dumps(
            {
                "openapi": "3.1.0",
                "info": {"title": "Agentic RAG", "version": __version__, "description": _INTRODUCTION},
                "paths": paths,
                "components": {
                    "schemas": components,
                    "responses": errors,
                    "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}},
                },
                "security": [{"key": []}, {}],
            }
        )

    def _schemas(self) -> tuple[dict[_Key, Json], dict[str, Json]]:
        """Return the schemas of bodies and answers, and their shared components."""
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

_COMMON = {
    400: "`BAD_REQUEST`: what came is no HTTP request.",
    401: "`UNAUTHENTICATED`: no key was sent, or the key is not valid.",
    403: "`FORBIDDEN`: this is for others, or the page of another origin asks.",
    404: "`…_NOT_FOUND`: there is nothing of this id, or not for the caller.",
    408: "`REQUEST_TIMEOUT`: the request did not arrive in time.",
    409: "`WORKSPACE_REFUSED`: something else stands in place of a folder of the domain's workspace.",
    413: "`BODY_TOO_LARGE`: the body has more bytes than `details.limit`.",
    422: "`VALIDATION_ERROR`: a value does not fit; `details` names its `path` and the `problem`.",
    429: "`RATE_LIMITED`, `BUDGET_EXCEEDED`: try again after as many seconds as `Retry-After` says.",
    431: "`HEADERS_TOO_LARGE`: address and header fields are larger than the server reads.",
    500: "`INTERNAL_ERROR`: a mistake of the server's; its log has the reason under `requestId`.",
    503: "`OIDC_UNAVAILABLE`, `STORAGE_UNAVAILABLE`, `STORAGE_DAMAGED`, `SERVER_BUSY`, `SERVER_STOPPING`: not now.",
    507: "`STORAGE_FULL`: the server's disk is full.",
}
"""Refusals common to all operations, by status. `_common` selects those that apply to an operation."""

_RPC = {
    "202": "A notification was taken.",
    "405": "The newer era of the protocol has no sessions.",
    "406": "`Accept` has to name both kinds of answers, JSON and event streams.",
    "413": "The body is too long.",
}
"""Additional answers of MCP's streamable HTTP, by status."""

_INTRODUCTION = """\
Errors have one form: `{"error": {"code", "message", "details?", "requestId"}}`. `x-allow` says who may use an
operation: anyone, any user with a key, members or admins of the domain in its path, or operators. A server that listens
on loopback only and has no keys takes everybody for its operator. Conversations happen over the WebSocket `/ws` or the
event streams described here."""


def operation_id(declared: Declaration) -> str:
    """Return the id of an operation, made from the class and the method."""
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
        "responses": {**_responses(declared, schemas.get((ident, "answer"))), **_refusals(declared, schemas[_ERROR])},
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


_TEXTS = {HTMLResponse: "text/html", CsvTable: "text/csv", MetricsText: "text/plain"}
"""Media types of text answers."""


def _responses(declared: Declaration, schema: Json | None) -> Json:
    responses: Json = {}
    for kind in _kinds(declared.answer):
        if kind is EventStream:
            content = {"text/event-stream": {"schema": {"type": "string"}}}
            responses["200"] = {
                "description": "The turn's events, in the dialect that was asked for.",
                "content": content,
            }
        elif kind in (Attachment, OriginalFile, PageFile, PageAnswer, BundleStream):
            responses |= _file_responses(kind)
        elif kind in _TEXTS:
            response = responses.setdefault("200", {"description": "Done.", "content": {}})
            response["content"][_TEXTS[kind]] = {"schema": {"type": "string"}}
        elif kind is RedirectResponse:
            responses["303"] = {"description": "Where to go on."}
        elif kind is StreamAnswer:
            content = {"text/event-stream": {"schema": {"type": "string"}}, **_content({"type": "array"})["content"]}
            responses["200"] = {"description": "Events, and in the header where they end.", "content": content}
            responses["204"] = {"description": "Nothing came; the header says where to go on."}
            responses["304"] = {"description": "The same as before."}
        elif kind is RpcAnswer:
            content = _content({"type": "object"})["content"]
            if declared.rule.streams:
                content["text/event-stream"] = {"schema": {"type": "string"}}
            responses["200"] = {
                "description": "The message's answer, or a stream that ends with it.",
                "content": content,
            }
            responses |= {status: {"description": text} for status, text in _RPC.items()}
        elif kind is CollectedAnswer:
            document = responses.setdefault("200", {"description": "The answer.", "content": {}})
            document["content"] |= _content({"type": "object"})["content"]
        elif kind is types.NoneType:
            responses[str(declared.status)] = {"description": "Done."}
        else:
            response = responses.setdefault(str(declared.status), {"description": "Done.", "content": {}})
            response["content"] |= _content(schema or {"type": "object"})["content"]
    return responses


def _file_responses(kind: type) -> Json:
    """Return the responses of a route that sends a file."""
    content = {"image/png" if kind is PageFile else "*/*": {"schema": {"type": "string", "format": "binary"}}}
    responses: Json = {"200": {"description": "The file.", "content": content}}
    if kind is OriginalFile:
        responses["206"] = {"description": "The part that `Range` names.", "content": content}
        responses["416"] = {"description": "The file has no such part."}
    elif kind in (PageFile, PageAnswer):
        responses["304"] = {"description": "The client has it: `If-None-Match` names its `ETag`."}
    return responses


def _refusals(declared: Declaration, schema: Json) -> Json:
    """Return the refusals and failures of an operation, by status."""
    refusals: Json
    if keeps_error_form(declared.path):
        refusals = {str(status): {"$ref": f"#/components/responses/{_name_of(status)}"} for status in _common(declared)}
    else:  # another protocol's error
        schema = {"type": "object"}
        refusals = {str(status): {"description": _COMMON[status], **_content(schema)} for status in _common(declared)}
    for status in sorted({error.status for error in declared.errors}):
        kinds = [error for error in declared.errors if error.status == status]
        lines = [f"`{_code_of(error)}`: {inspect.getdoc(error) or ''}".partition("\n")[0] for error in kinds]
        # The own refusals replace the reference to the common ones of this status, so its text is added to theirs.
        if str(status) in refusals:
            lines.append(_COMMON[status])
        refusals[str(status)] = {"description": "\n\n".join(lines), **_content(schema)}
    return dict(sorted(refusals.items()))


def _common(declared: Declaration) -> list[int]:
    """Return the statuses of the common refusals that apply to an operation."""
    names = set(re.findall(r"{(\w+)", declared.path))
    body, query = declared.reads.keys() & {"body"}, declared.reads.keys() & {"query"}
    # Statuses that are not listed here apply to every operation.
    some = {
        404: names,
        409: names & {"domain"},
        413: body,
        422: body or query or declared.refuses_parameters or names & FREE_NAMES,
    }
    if declared.takes != "application/json":
        some[422] = {"body"}
    return [status for status in _COMMON if status not in some or some[status]]


def _name_of(status: int) -> str:
    return f"Error{status}"


def _code_of(error: type[AgenticRagError]) -> str:
    return error.code if isinstance(error.code, str) else "…_NOT_FOUND"


def documented_statuses(declared: Declaration) -> set[int]:
    """Return every documented status of an operation."""
    return {int(status) for status in {**_responses(declared, None), **_refusals(declared, {})}}


def _kinds(answer: Any) -> tuple[Any, ...]:
    """Return the alternatives of an answer type."""
    if answer is None:
        return (types.NoneType,)
    return typing.get_args(answer) if typing.get_origin(answer) in (types.UnionType, typing.Union) else (answer,)


_NO_JSON = (
    EventStream,
    StreamAnswer,
    CollectedAnswer,
    Attachment,
    CsvTable,
    MetricsText,
    OriginalFile,
    PageFile,
    BundleStream,
    RpcAnswer,
    PageAnswer,
    Response,
    HTMLResponse,
    RedirectResponse,
    types.NoneType,
)


def _json_kinds(answer: Any) -> list[Any]:
    """Return the alternatives of an answer type that have a JSON schema."""
    return [_answer_type(kind) for kind in _kinds(answer) if kind not in _NO_JSON]


def _answer_type(kind: Any) -> Any:
    """Return the type of the sent JSON, without wrappers such as `Headed` and `Redacted`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Headed, Redacted):
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
    """Return a schema with property names in camelCase, as in the JSON form (see ``json_form``)."""
    if isinstance(schema, list):
        return [_name_in_camel_case(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _name_in_camel_case(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        renamed["properties"] = {camel(name): value for name, value in renamed["properties"].items()}
        renamed["required"] = [camel(name) for name in schema.get("required", ())]
    return renamed
