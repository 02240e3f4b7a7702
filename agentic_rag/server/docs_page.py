"""Render the OpenAPI document as an HTML page without scripts. Pure.

This module also defines the page's Content-Security-Policy: no scripts, no loading, and one style sheet allowed by its
hash. It knows no route.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import Any, Final

from agentic_rag.base.json_form import Json

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid; }
h3 { margin: 2.5rem 0 .5rem; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: 1.05rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .5rem; border: 1px solid; border-radius: .25rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #8884; }
nav ul { columns: 18rem; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""The ``Content-Security-Policy`` of the page."""

_CODE = re.compile(r"``?([^`]+)``?")
_DEEPEST = 4
"""Maximum nesting of an example."""


def make_page(document: Json) -> str:
    """Return the page of an OpenAPI 3.1 document that our routes define."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    operations = list(_operations(document))
    groups = {tag: list(each) for tag, each in groupby(sorted(operations, key=_tag), key=_tag)}
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
        f"<h1>{title}</h1>{_prose(info['description'])}",
        '<p>The same for programs: <a href="/api/openapi.json"><code>/api/openapi.json</code></a> (OpenAPI 3.1).</p>',
        '<nav aria-label="Contents"><ul>',
        *(f'<li><a href="#{escape(tag)}">{escape(tag)}</a></li>' for tag in groups),
        '<li><a href="#schemas">Schemas</a></li></ul></nav><main>',
    ]
    for tag, members in groups.items():
        parts.append(f'<section><h2 id="{escape(tag)}">{escape(tag)}</h2>')
        parts += (_operation(document, method, path, each) for method, path, each in members)
        parts.append("</section>")
    parts.append('<section><h2 id="schemas">Schemas</h2>')
    parts += (_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return "".join([*parts, "</section></main></body></html>"])


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def _tag(member: tuple[str, str, Json]) -> str:
    return str(member[2]["tags"][0])


def _prose(text: str) -> str:
    """Return a docstring as HTML paragraphs."""
    paragraphs = (escape(each.strip()) for each in text.split("\n\n") if each.strip())
    return "".join("<p>" + _CODE.sub(r"<code>\1</code>", each) + "</p>" for each in paragraphs)


def _operation(document: Json, method: str, path: str, operation: Json) -> str:
    name = escape(operation["operationId"])
    parts = [
        f'<article><h3 id="{name}">{method.upper()} {escape(path)}</h3>',
        _prose(operation["summary"]),
        _prose(operation.get("description", "")),
        f"<p>For: {escape(operation['x-allow'])}.{' Kept in the audit log.' if operation['x-audited'] else ''}</p>",
    ]
    if operation["parameters"]:
        rows = (
            (
                f"<code>{escape(each['name'])}</code>",
                escape(each["in"]),
                _type(each["schema"]),
                "required" if each["required"] else _default(each["schema"]),
            )
            for each in operation["parameters"]
        )
        parts.append(_table(("Parameter", "In", "Type", "Default"), rows))
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Takes <code>{escape(media_type)}</code>: {_type(content['schema'])}</p>")
        if media_type == "application/json":
            parts.append(_example(content["schema"], document))
    parts.append(_table(("Status", "Answer"), _answers(document, operation)))
    first: Json = next((each for status, each in operation["responses"].items() if status < "300"), {})
    schema = first.get("content", {}).get("application/json", {}).get("schema")
    if schema is not None:
        parts.append(_example(schema, document))
    return "".join([*parts, "</article>"])


def _answers(document: Json, operation: Json) -> Iterator[tuple[str, str]]:
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
        kinds = (
            f"<code>{escape(media_type)}</code>: {_type(content['schema'])}"
            for media_type, content in answer.get("content", {}).items()
            if status < "400"
        )
        yield escape(status), _prose(answer["description"]) + "<br>".join(kinds)


def _schema(name: str, schema: Json) -> str:
    required = schema.get("required", ())
    rows = [
        (f"<code>{escape(key)}</code>", _type(each), "required" if key in required else _default(each))
        for key, each in schema.get("properties", {}).items()
    ]
    body = _table(("Member", "Type", "Default"), iter(rows)) if rows else f"<p>{_type(schema)}</p>"
    title = f'<h3 id="schema-{escape(name)}">{escape(name)}</h3>'
    return f"<article>{title}{_prose(schema.get('description', ''))}{body}</article>"


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _type(schema: Json) -> str:
    """Return a readable type of a value, with links to the schemas that it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(f"<code>{escape(json.dumps(each))}</code>" for each in values)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(map(_type, schema[key]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "at most"), ("pattern", "like"))
        if key in schema
    ]
    return escape(" ".join([str(kind), *bounds]))


def _default(schema: Json) -> str:
    return f"<code>{escape(json.dumps(schema['default'], ensure_ascii=False))}</code>" if "default" in schema else ""


def _example(schema: Json, document: Json) -> str:
    value = example_of(schema, document["components"]["schemas"])
    return f"<pre><code>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</code></pre>"


def example_of(schema: Json, components: Json, levels: int = _DEEPEST) -> Any:
    """Return an example value for a schema. Optional members nested deeper than ``levels`` are left out."""
    if "$ref" in schema:
        return example_of(components[schema["$ref"].rpartition("/")[2]], components, levels)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return example_of(schema[key][0], components, levels)
    if schema.get("default") is not None:
        return schema["default"]
    match schema.get("type"):
        case "object":
            members = schema.get("properties", {})
            named = {key for key in members if levels > 0 or key in schema.get("required", ())}
            return {key: example_of(members[key], components, levels - 1) for key in members if key in named}
        case "array":
            return [example_of(schema["items"], components, levels - 1)] if levels > 0 and "items" in schema else []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "string":
            return "text"
        case _:
            return None
