"""Converts an untrusted input schema to a form that a model's service accepts. Pure.

Owns the conversion, its limits, and the argument names that a model is shown. A service refuses the whole request for
one invalid schema, so `adapt` never returns a schema that a service would refuse. A `SchemaFamily` describes the
refusals of a family of services; the table of families is `agentic_rag.models.tool_rules`. Models return arguments
under the shown names, and `restore_names` converts them to the server's own.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from anyascii import anyascii

from agentic_rag.base.json_form import is_finite_number

Schema = dict[str, Any]
Document = Mapping[str, Any]
"""A read-only schema."""

MAX_DEPTH = 24
"""Levels of nested schemas that are kept; deeper ones accept any value."""
MAX_NODES = 4_000
"""Schemas inside one tool's schema that are kept, after references are expanded; further ones accept any value."""
MAX_BYTES = 48 * 1024
"""A schema that is longer in its final form is refused."""
MAX_VISITED = 100_000
"""JSON values of the original that are visited; a schema with more is refused."""
MAX_PATTERN = 500
"""Maximum length of a regular expression; longer ones are dropped."""
MAX_ALTERNATIVES = 800
"""Maximum length of the sentence on the alternatives of a union."""
MAX_BRANCHES = 256
"""Branches of a top-level union that are merged, at all levels together."""

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
COMBINATORS = ("anyOf", "oneOf", "allOf")

_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_ODD = re.compile(r"[^a-zA-Z0-9_.-]+")
_PYTHON_ONLY = re.compile(r"\(\?[PaiLmsux#-]|\\[AZ]|\(\?\(")
"""Constructs of Python's regular expressions that JSON Schema's do not have."""


@dataclass(frozen=True, slots=True)
class SchemaFamily:
    """The parts of a tool's input schema that the services of one family accept.

    ``references``: ``$ref``; without it references are expanded.
    ``recursion``: a schema may refer to itself.
    ``formats``: the keyword ``format``.
    ``tuples``: ``prefixItems``; without it an array always has one ``items``.
    ``bare_objects``: an object at the top without ``properties``.
    ``max_tools``: tools in one request, None for no limit.
    ``max_description``: characters of a tool's description, None for no limit.
    """

    name: str
    references: bool = True
    recursion: bool = True
    formats: bool = True
    tuples: bool = True
    bare_objects: bool = True
    max_tools: int | None = None
    max_description: int | None = None


@dataclass(frozen=True, slots=True)
class AdaptedSchema:
    """A schema that the family accepts.

    ``argument_map``: property names as the model is shown them → as the server knows them, where these differ.
    ``notes``: sentences for the model that the schema cannot express, such as the alternatives of a union.
    """

    schema: Schema
    argument_map: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedSchema:
    """The reason why a schema cannot be adapted, as a text that follows the tool's name."""

    reason: str


def adapt(schema: object, family: SchemaFamily) -> AdaptedSchema | RefusedSchema:
    """Return a tool's input schema in a form that a family accepts; the same object if nothing changes."""
    problem = find_top_problem(schema)
    if problem:
        return RefusedSchema(problem)
    assert isinstance(schema, dict)
    if not _is_bounded(schema):
        return RefusedSchema(f"its input schema has more than {MAX_VISITED} parts or is nested too deeply to be read")
    work = _SchemaConversion(schema, family)
    try:
        converted, notes = work.top()
        size = len(json.dumps(converted, allow_nan=False))
    except (RecursionError, TypeError, ValueError):
        return RefusedSchema("its input schema is not plain JSON")
    if size > MAX_BYTES:
        return RefusedSchema(
            f"its input schema comes to {size} bytes for the model's service; {MAX_BYTES} are the most"
        )
    return AdaptedSchema(schema if converted == schema else converted, work.argument_map(), tuple(notes))


def find_top_problem(schema: object) -> str:
    """Return why a tool with this input schema can take no arguments object, or an empty text."""
    if schema is None:
        return "its inputSchema is null"
    if not isinstance(schema, dict):
        return f"its inputSchema is {_kind(schema)}, not an object"
    kinds = schema.get("type")
    if isinstance(kinds, str) and kinds.lower() in TYPES and kinds.lower() != "object":
        return f"its inputSchema describes {_article(kinds.lower())}, not an object"
    if isinstance(kinds, list) and kinds and all(kind in TYPES and kind != "object" for kind in kinds):
        return "its inputSchema describes no object"
    return ""


def argument_map_of(schema: Document) -> dict[str, str]:
    """Return the shown names of properties whose own names no service accepts: shown → own.

    The map depends on the schema alone, never on the family. No shown name equals another property's name.
    """
    names = list(dict.fromkeys(_property_names(schema)))
    valid_names = {name for name in names if _KEY.fullmatch(name)}
    shown_names: dict[str, str] = {}
    # The last number tried for each name: thousands of names may become one, and each would try all numbers again.
    last_numbers: dict[str, int] = {}
    for name in names:
        if name not in valid_names:
            unique = fitting = _fit_key(name)
            while unique in valid_names or unique in shown_names:
                last_numbers[fitting] = last_numbers.get(fitting, 1) + 1
                unique = f"{fitting[:58]}_{last_numbers[fitting]}"
            shown_names[unique] = name
    return shown_names


def restore_names(arguments: Any, schema: Document, argument_map: Mapping[str, str]) -> Any:
    """Return arguments under the server's own names, at any depth.

    A name is changed only where the schema has that property, so that the keys of a free map are kept.
    """
    return _ArgumentRestorer(schema, argument_map).value(arguments, [schema]) if argument_map else arguments


# --- names ----------------------------------------------------------------------------------------------------------


def _fit_key(name: str) -> str:
    try:
        latin = name if name.isascii() else anyascii(name[:200])
    except (UnicodeError, ValueError):
        latin = ""
    return _ODD.sub("_", latin).strip("_")[:64] or "field"


def _property_names(schema: Document) -> Iterator[str]:
    """Yield the names of all properties in every part of the document, in document order."""
    for inner in _all_schemas(schema):
        properties = inner.get("properties")
        if isinstance(properties, dict):
            yield from properties
        required = inner.get("required")
        if isinstance(required, list):
            yield from (name for name in required if isinstance(name, str))
        for keyword in ("dependentRequired", "dependencies", "dependentSchemas"):
            members = inner.get(keyword)
            if isinstance(members, dict):
                for name, dependent_names in members.items():
                    yield name
                    if isinstance(dependent_names, list):
                        yield from (other for other in dependent_names if isinstance(other, str))


def _all_schemas(value: Any) -> Iterator[Document]:
    """Yield every object inside a document, level by level: a reference may lead to any of them."""
    level = [value]
    while level:
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                yield node
                inner += node.values()
            elif isinstance(node, list):
                inner += node
        level = inner


class _ArgumentRestorer:
    """Walks arguments along the schemas that describe them."""

    def __init__(self, root: Document, argument_map: Mapping[str, str]) -> None:
        self._references, self._map = _References(root), argument_map

    def value(self, value: Any, schemas: Sequence[Any]) -> Any:
        if not isinstance(value, dict | list) or not schemas:
            return value
        fitting = self._expand(schemas)
        if isinstance(value, list):
            return [self.value(item, self._items(fitting, place)) for place, item in enumerate(value)]
        declared = self._find_declared(fitting)
        restored: Schema = {}
        for name, item in value.items():
            own = self._map.get(name)
            # A name that the schema declares itself is the server's own, even if it is also a shown name elsewhere.
            key = own if own is not None and own in declared and name not in declared else name
            inner = declared[key] if key in declared else self._others(fitting)
            restored[key] = self.value(item, inner)
        return restored

    def _expand(self, schemas: Sequence[Any]) -> list[Document]:
        """Return all schemas that describe the same value, including alternatives and referenced ones."""
        by_id: dict[int, Document] = {}
        queue = list(schemas)
        while queue and len(by_id) < MAX_NODES:
            schema = queue.pop()
            if not isinstance(schema, dict) or id(schema) in by_id:
                continue
            by_id[id(schema)] = schema
            if isinstance(schema.get("$ref"), str):
                queue.append(self._references.target(schema["$ref"]))
            for keyword in COMBINATORS:
                if isinstance(schema.get(keyword), list):
                    queue += schema[keyword]
            queue += [schema[keyword] for keyword in ("if", "then", "else") if keyword in schema]
            for keyword in ("dependentSchemas", "dependencies"):
                if isinstance(schema.get(keyword), dict):
                    queue += schema[keyword].values()
        return list(by_id.values())

    def _find_declared(self, schemas: Sequence[Document]) -> dict[str, list[Any]]:
        declared: dict[str, list[Any]] = {}
        for schema in schemas:
            properties = schema.get("properties")
            for name, inner in properties.items() if isinstance(properties, dict) else ():
                declared.setdefault(name, []).append(inner)
            required = schema.get("required")
            for name in required if isinstance(required, list) else ():
                if isinstance(name, str):
                    declared.setdefault(name, [])
        return declared

    def _others(self, schemas: Sequence[Document]) -> list[Any]:
        extra_schemas: list[Any] = []
        for schema in schemas:
            extra_schemas += [schema[key] for key in ("additionalProperties", "unevaluatedProperties") if key in schema]
            patterns = schema.get("patternProperties")
            extra_schemas += patterns.values() if isinstance(patterns, dict) else ()
        return extra_schemas

    def _items(self, schemas: Sequence[Document], place: int) -> list[Any]:
        described: list[Any] = []
        for schema in schemas:
            for keyword in ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"):
                inner = schema.get(keyword)
                described += inner[place : place + 1] if isinstance(inner, list) else [inner]
        return described


# --- references ------------------------------------------------------------------------------------------------------


class _References:
    """The targets of the references inside one document; nothing is fetched."""

    def __init__(self, root: Document) -> None:
        self._root = root
        self._targets: Schema = {}
        self._named: Schema | None = None

    def target(self, reference: object) -> Any:
        """Return the schema that a reference leads to, or None."""
        if not isinstance(reference, str):
            return None
        if reference not in self._targets:
            self._targets[reference] = self._resolve(reference)
        return self._targets[reference]

    def _resolve(self, reference: str) -> Any:
        own = self._root.get("$id") or self._root.get("id")
        base = own.rstrip("#") if isinstance(own, str) else ""
        local = reference[len(base) :] if base and reference.startswith(base) else reference
        if local in ("", "#"):
            return self._root
        if not local.startswith("#/"):
            return self._by_name().get(local)
        value: Any = self._root
        for step in unquote(local[2:]).split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(value):
                value = value[int(step[:9])]
            elif isinstance(value, dict) and step in value:
                value = value[step]
            else:
                return None
        return value if isinstance(value, dict | bool) else None

    def _by_name(self) -> Schema:
        """Return the schemas that have an anchor or an id, by the references that name them."""
        if self._named is None:
            self._named = {}
            for schema in _all_schemas(self._root):
                for keyword, mark in (("$anchor", "#"), ("$id", ""), ("id", "")):
                    name = schema.get(keyword)
                    if isinstance(name, str):
                        self._named.setdefault(mark + name, schema)
        return self._named


# --- the conversion --------------------------------------------------------------------------------------------------


class _SchemaConversion:
    """The conversion of one schema for one family."""

    def __init__(self, root: Schema, family: SchemaFamily) -> None:
        self._root, self._family = root, family
        self._references = _References(root)
        self._shown = {own: shown_name for shown_name, own in argument_map_of(root).items()}
        self._nodes = 0
        self._defs: Schema = {}
        self._pending: list[tuple[str, Schema]] = []
        self._recursive: dict[int, bool] = {}
        self._branches = 0
        self._def_names: dict[int, str] = {}
        self._last_numbers: dict[str, int] = {}
        """The last number tried for each name of a definition."""
        self._above: list[int] = []
        """Identities of the referenced schemas that are being expanded."""

    def argument_map(self) -> dict[str, str]:
        return {shown_name: own for own, shown_name in self._shown.items()}

    def top(self) -> tuple[Schema, list[str]]:
        """Return the converted document and the notes on it."""
        notes: list[str] = []
        # The services accept no union at the top: it must be an object.
        merged = self._fold(self._root, notes) if self._has_union(self._root) else self._root
        converted = self._object({**merged, "type": "object"}, 0)
        converted["type"] = "object"
        for keyword in (*COMBINATORS, "enum", "const", "not"):
            converted.pop(keyword, None)
        if not self._family.bare_objects:
            converted.setdefault("properties", {})
        # A definition may refer to further ones, so the list grows while it is worked off.
        while self._pending:
            name, target = self._pending.pop()
            self._defs[name] = self._object(target, 1)
        if self._defs:
            converted["$defs"] = self._defs
        if notes:
            description = converted.get("description")
            converted["description"] = "\n".join([*([description] if description else []), *notes])
        return converted, notes

    # The top level

    def _has_union(self, schema: Schema) -> bool:
        return "$ref" in schema or any(isinstance(schema.get(keyword), list) for keyword in COMBINATORS)

    def _fold(self, root: Schema, notes: list[str]) -> Schema:
        """Merge the unions at the top into one object: all properties, and those required by all branches."""
        folded = {key: value for key, value in root.items() if key not in (*COMBINATORS, "$ref")}
        properties, required = self._branch(root, notes, (), top=True)
        folded["properties"] = {
            name: alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
            for name, alternatives in properties.items()
        }
        # In the order of the properties; a required name without a property follows.
        folded["required"] = [name for name in properties if name in required]
        folded["required"] += sorted(required - properties.keys())
        if not isinstance(root.get("properties"), dict) or folded["properties"].keys() != root["properties"].keys():
            folded.pop("additionalProperties", None)  # applied to fewer properties than the merged ones
            folded.pop("unevaluatedProperties", None)
        return folded

    def _branch(
        self, schema: Any, notes: list[str], above: tuple[int, ...], *, top: bool = False
    ) -> tuple[dict[str, list[Any]], set[str]]:
        """Return the properties of a branch, each with its different schemas, and the required names."""
        properties: dict[str, list[Any]] = {}
        required: set[str] = set()
        self._branches += 1
        # By the path, not by all visited: two branches may share a schema, and only a cycle is an end.
        if not isinstance(schema, dict) or id(schema) in above or self._branches > MAX_BRANCHES or len(above) > 16:
            return properties, required
        above = (*above, id(schema))
        self._collect(schema, properties, required)
        inner = [self._references.target(schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
        if isinstance(schema.get("allOf"), list):
            inner += schema["allOf"]
        for part in inner:
            more, needed = self._branch(part, notes, above, top=top)
            _add(properties, more)
            required |= needed
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if not isinstance(branches, list) or not branches:
                continue
            results = [self._branch(branch, notes, above) for branch in branches]
            for more, _ in results:
                _add(properties, more)
            required |= set.intersection(*(needed for _, needed in results))
            if top:
                notes += self._alternatives(branches, [needed for _, needed in results], keyword)
        return properties, required

    def _collect(self, schema: Schema, properties: dict[str, list[Any]], required: set[str]) -> None:
        own = schema.get("properties")
        if isinstance(own, dict):
            _add(properties, {name: [inner] for name, inner in own.items()})
            required |= {
                name for name, inner in own.items() if isinstance(inner, dict) and inner.get("required") is True
            }
        if isinstance(schema.get("required"), list):
            required |= {name for name in schema["required"] if isinstance(name, str)}

    def _alternatives(self, branches: Sequence[Any], required: Sequence[set[str]], keyword: str) -> list[str]:
        """Return the sentence on a union, which lists the requirements of each branch."""
        forms = []
        for branch, needed in zip(branches, required, strict=True):
            resolved = self._resolve_branch(branch)
            own: Schema = resolved["properties"] if isinstance(resolved.get("properties"), dict) else {}
            fixed = []
            for name, inner in own.items():
                if isinstance(inner, dict) and (
                    "const" in inner or (isinstance(inner.get("enum"), list) and len(inner["enum"]) == 1)
                ):
                    value = inner["const"] if "const" in inner else inner["enum"][0]
                    fixed.append(f"{self._key(name)} = {_quote(value)}")
            names = [self._key(name) for name in sorted(needed) if f"{self._key(name)} = " not in "".join(fixed)]
            title = resolved.get("title")
            form = ", ".join([*fixed, *names]) or (", ".join(map(self._key, own)) if own else "")
            forms.append(
                f"{title} ({form})" if isinstance(title, str) and form else str(form or title or "other arguments")
            )
        forms = list(dict.fromkeys(forms))
        if len(forms) < 2:
            return []
        quantifier = "exactly one" if keyword == "oneOf" else "at least one"
        return [f"The arguments must fit {quantifier} of these forms: {'; or '.join(forms)}"[:MAX_ALTERNATIVES] + "."]

    def _resolve_branch(self, branch: Any) -> Schema:
        if isinstance(branch, dict) and isinstance(branch.get("$ref"), str):
            branch = self._references.target(branch["$ref"])
        return branch if isinstance(branch, dict) else {}

    # Any level

    def schema(self, schema: Any, depth: int) -> Any:
        """Return a schema that is nested in another one; an invalid value becomes a schema for any value."""
        self._nodes += 1
        if isinstance(schema, bool):
            return schema
        if isinstance(schema, str) and schema in TYPES:
            return {"type": schema}
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._nodes > MAX_NODES:
            return {}
        return self._object(schema, depth)

    def _object(self, schema: Schema, depth: int) -> Schema:
        converted: Schema = {}
        for key, value in schema.items():
            keep = _PLAIN.get(key)
            if keep is not None:
                if keep(value):
                    converted[key] = value
            elif key in _CONVERTED:
                _CONVERTED[key](self, converted, value, schema, depth)
        self._finish(converted, schema)
        reference = schema.get("$ref")
        if isinstance(reference, str) and depth > 0:
            return self._follow_reference(reference, converted, depth)
        return converted

    def _finish(self, converted: Schema, schema: Schema) -> None:
        """Finish the parts that depend on several keywords."""
        kinds = converted.get("type")
        if schema.get("nullable") is True and isinstance(kinds, str) and kinds != "null":
            converted["type"] = [kinds, "null"]
        if not self._family.formats:
            converted.pop("format", None)
        is_array = kinds == "array" or (isinstance(kinds, list) and "array" in kinds)
        if not self._family.tuples:
            places = converted.pop("prefixItems", None)
            if places:
                rest = converted.get("items")
                item_schemas = [*places, *([rest] if isinstance(rest, dict) and rest else [])]
                converted["items"] = item_schemas[0] if len(item_schemas) == 1 else {"anyOf": item_schemas}
            if is_array and not isinstance(converted.get("items"), dict):
                converted["items"] = {}
        self._require(converted, schema)

    def _require(self, converted: Schema, schema: Schema) -> None:
        """Collect the required names: from the list, and from properties marked as required (drafts 3 and older)."""
        listed = schema.get("required")
        names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        properties = schema.get("properties")
        for name, inner in properties.items() if isinstance(properties, dict) else ():
            if isinstance(inner, dict) and inner.get("required") is True:
                names.append(name)
        required = list(dict.fromkeys(map(self._key, names)))
        if not required:
            converted.pop("required", None)
            return
        members = converted.setdefault("properties", {})
        for name in required:
            # Required, and never allowed: no arguments could be valid, so any value is allowed instead.
            if members.setdefault(name, {}) is False:
                members[name] = {}
        converted["required"] = required

    def _key(self, name: str) -> str:
        return self._shown.get(name, name)

    def _properties(self, converted: Schema, value: Any, schema: Schema, depth: int) -> None:
        if not isinstance(value, dict):
            return
        converted["properties"] = {
            self._key(name): {} if inner_schema is True else inner_schema
            for name, inner in value.items()
            if (inner_schema := self.schema(inner, depth + 1)) is not False
        }

    def _put_named(
        self, keyword: str, converted: Schema, value: Any, depth: int, name_of: Callable[[str], str]
    ) -> None:
        if isinstance(value, dict) and value:
            converted[keyword] = {name_of(name): self.schema(inner, depth + 1) for name, inner in value.items()}

    def _patterns(self, converted: Schema, value: Any, schema: Schema, depth: int) -> None:
        if isinstance(value, dict):
            fitting = {name: inner for name, inner in value.items() if _is_pattern(name)}
            self._put_named("patternProperties", converted, fitting, depth, str)

    def _dependent(self, converted: Schema, value: Any, schema: Schema, depth: int) -> None:
        if not isinstance(value, dict):
            return
        schemas = {name: inner for name, inner in value.items() if isinstance(inner, dict)}
        self._put_named("dependentSchemas", converted, schemas, depth, self._key)
        needed = {
            self._key(name): list(dict.fromkeys(self._key(item) for item in names if isinstance(item, str)))
            for name, names in value.items()
            if isinstance(names, list)
        }
        if needed:
            converted["dependentRequired"] = needed

    def _items(self, converted: Schema, value: Any, schema: Schema, depth: int) -> None:
        if isinstance(value, list):  # drafts before 2020-12
            if value:
                converted["prefixItems"] = [self.schema(inner, depth + 1) for inner in value]
            rest = schema.get("additionalItems")
            if isinstance(rest, dict | bool):
                converted["items"] = self.schema(rest, depth + 1)
        else:
            converted["items"] = self.schema(value, depth + 1)

    def _prefix(self, converted: Schema, value: Any, schema: Schema, depth: int) -> None:
        if isinstance(value, list) and value:
            converted["prefixItems"] = [self.schema(inner, depth + 1) for inner in value]

    def _union(self, keyword: str, converted: Schema, value: Any, depth: int) -> None:
        if isinstance(value, list) and value:
            converted[keyword] = [self.schema(inner, depth + 1) for inner in value]

    def _single(self, keyword: str, converted: Schema, value: Any, depth: int) -> None:
        if isinstance(value, dict | bool):
            converted[keyword] = self.schema(value, depth + 1)

    def _exact(self, keyword: str, converted: Schema, value: Any, depth: int) -> None:
        """Keep a negated or conditional schema only if it is unchanged: a wider form would change its meaning."""
        if isinstance(value, dict) and '"$ref"' not in json.dumps(value) and self.schema(value, depth + 1) == value:
            converted[keyword] = value

    def _type(self, converted: Schema, value: Any, schema: Schema, depth: int) -> None:
        kinds = value if isinstance(value, list) else [value]
        lower = [kind.lower() if isinstance(kind, str) else "" for kind in kinds]
        if lower and all(kind in TYPES for kind in lower):
            unique = list(dict.fromkeys(lower))
            converted["type"] = unique if isinstance(value, list) else unique[0]

    def _exclusive_bound(self, keyword: str, plain: str, converted: Schema, value: Any, schema: Schema) -> None:
        """Keep an exclusive bound; in draft 4 it is a Boolean that makes the plain bound exclusive."""
        if is_finite_number(value):
            converted[keyword] = value
        elif value is True and is_finite_number(schema.get(plain)):
            converted[keyword] = schema[plain]

    def _plain_bound(self, keyword: str, exclusive: str, converted: Schema, value: Any, schema: Schema) -> None:
        if is_finite_number(value) and schema.get(exclusive) is not True:
            converted[keyword] = value

    # References

    def _follow_reference(self, reference: str, beside: Schema, depth: int) -> Schema:
        """Return the replacement for a reference: another reference, its target, or a schema for any value."""
        target = self._target(reference)
        if not isinstance(target, dict):
            return beside
        if not self._family.references or (not self._family.recursion and self._is_recursive(target)):
            if id(target) in self._above or depth > MAX_DEPTH or self._nodes > MAX_NODES:
                return beside
            # Expanded in place. `_above` ends a recursion: inside itself, the schema accepts any value.
            self._above.append(id(target))
            target_schema = self.schema(target, depth + 1)
            self._above.pop()
            return {**target_schema, **beside} if isinstance(target_schema, dict) else beside
        name = self._def_names.get(id(target))
        if name is None:
            if self._nodes > MAX_NODES:
                return beside
            name = self._name_def(reference)
            self._def_names[id(target)] = name
            # Converted later, with the depth of the top: nesting is counted from each definition.
            self._defs[name] = {}
            self._pending.append((name, target))
        return {"$ref": f"#/$defs/{name}", **beside}

    def _target(self, reference: str) -> Any:
        """Return the final target of a reference; None if there is none or the reference is circular."""
        visited: list[str] = []
        target: Any = None
        ahead: object = reference
        while isinstance(ahead, str):
            if ahead in visited or len(visited) > MAX_DEPTH:
                return None
            visited.append(ahead)
            referenced = self._references.target(ahead)
            # A reference that leads to a bare reference is followed to the end of the chain.
            if target is None or (isinstance(target, dict) and target.keys() == {"$ref"}):
                target = referenced
            ahead = referenced.get("$ref") if isinstance(referenced, dict) else None
        return target

    def _name_def(self, reference: str) -> str:
        base = _fit_key(unquote(reference).rpartition("/")[2].lstrip("#") or "root").replace(".", "_")
        name = base
        while name in self._defs:
            self._last_numbers[base] = self._last_numbers.get(base, 1) + 1
            name = f"{base[:58]}_{self._last_numbers[base]}"
        return name

    def _is_recursive(self, target: Schema) -> bool:
        """Return whether a schema refers to itself, directly or indirectly."""
        if id(target) not in self._recursive:
            self._recursive[id(target)] = self._reaches(target)
        return self._recursive[id(target)]

    def _reaches(self, target: Schema) -> bool:
        queue, visited = [target], {id(target)}
        while queue:
            for inner in _all_schemas(queue.pop()):
                referenced = self._references.target(inner.get("$ref"))
                if referenced is target:
                    return True
                if isinstance(referenced, dict) and id(referenced) not in visited:
                    visited.add(id(referenced))
                    queue.append(referenced)
        return False


def _add(properties: dict[str, list[Any]], more: Mapping[str, list[Any]]) -> None:
    for name, schemas in more.items():
        existing = properties.setdefault(name, [])
        existing += [schema for schema in schemas if schema not in existing]


# --- keywords --------------------------------------------------------------------------------------------------------


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_pattern(value: object) -> bool:
    if not isinstance(value, str) or len(value) > MAX_PATTERN or _PYTHON_ONLY.search(value):
        return False
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("title", "description", "$comment", "format", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), _is_flag),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("default", "const"), _is_json),
    "examples": lambda value: isinstance(value, list) and _is_json(value),
    "enum": lambda value: isinstance(value, list) and bool(value) and _is_json(value),
    "multipleOf": lambda value: is_finite_number(value) and value > 0,
    "pattern": _is_pattern,
}
"""Keywords whose values are data, with the form they must have; in another form a keyword is left out."""

_Convert = Callable[[_SchemaConversion, Schema, Any, Schema, int], None]
_CONVERTED: Mapping[str, _Convert] = {
    "type": _SchemaConversion._type,
    "properties": _SchemaConversion._properties,
    "patternProperties": _SchemaConversion._patterns,
    "dependentSchemas": _SchemaConversion._dependent,
    "dependentRequired": _SchemaConversion._dependent,
    "dependencies": _SchemaConversion._dependent,
    "items": _SchemaConversion._items,
    "prefixItems": _SchemaConversion._prefix,
    "minimum": lambda work, converted, value, schema, _: work._plain_bound(
        "minimum", "exclusiveMinimum", converted, value, schema
    ),
    "maximum": lambda work, converted, value, schema, _: work._plain_bound(
        "maximum", "exclusiveMaximum", converted, value, schema
    ),
    "exclusiveMinimum": lambda work, converted, value, schema, _: work._exclusive_bound(
        "exclusiveMinimum", "minimum", converted, value, schema
    ),
    "exclusiveMaximum": lambda work, converted, value, schema, _: work._exclusive_bound(
        "exclusiveMaximum", "maximum", converted, value, schema
    ),
}


def _convert_union(keyword: str) -> _Convert:
    return lambda work, converted, value, schema, depth: work._union(keyword, converted, value, depth)


def _convert_single(keyword: str) -> _Convert:
    return lambda work, converted, value, schema, depth: work._single(keyword, converted, value, depth)


def _convert_exact(keyword: str) -> _Convert:
    return lambda work, converted, value, schema, depth: work._exact(keyword, converted, value, depth)


_CONVERTED = {
    **_CONVERTED,
    **{keyword: _convert_union(keyword) for keyword in COMBINATORS},
    **{
        keyword: _convert_single(keyword)
        for keyword in (
            "additionalProperties",
            "propertyNames",
            "contains",
            "unevaluatedItems",
            "unevaluatedProperties",
        )
    },
    **{keyword: _convert_exact(keyword) for keyword in ("not", "if", "then", "else")},
}


# --- bounds and words ------------------------------------------------------------------------------------------------


def _is_bounded(schema: Schema) -> bool:
    """Return whether a document is small enough to be read; checked level by level, up to the limits."""
    level: list[Any] = [schema]
    count = depth = 0
    while level:
        depth += 1
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        if count > MAX_VISITED or depth > 400:
            return False
        level = inner
    return True


def _kind(value: object) -> str:
    kinds = {bool: str(value).lower(), str: "text", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), f"of type {type(value).__name__}")


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else kind if kind == "null" else f"a {kind}"


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]
