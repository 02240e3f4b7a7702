"""The page docs/settings.md, generated from the settings class. ``scripts/write_settings`` writes it.

This module words types and defaults. The docstrings in the class explain the settings.
"""

import ast
import inspect
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo

from agentic_rag.base import settings
from agentic_rag.base.settings import Settings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

_HEAD = """\
# Settings of the process

What the operator decides: environment variables, or lines of a file `.env` in the working folder. A variable of the
environment goes before the file, an option of `agentic-rag serve` before both. A variable with an empty value has its
default. What a domain's admin decides is in its settings (`PATCH /api/domains/{id}`). `scripts/write_settings` writes
this page from `agentic_rag/base/settings.py`.

| variable | type | default | description |
|---|---|---|---|
"""
_WORDS = {Path: "path", SecretStr: "secret", str: "text", int: "integer", float: "number", bool: "`true` or `false`"}


def docs_of_fields() -> dict[str, str]:
    """Return the docstrings of the settings by name."""
    (kind,) = [
        node
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ]
    docs: dict[str, str] = {}
    name = ""
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            docs[name] = " ".join(inspect.cleandoc(str(node.value.value)).split())
            name = ""
        else:
            name = ""
    return docs


def variable_of(name: str, field: FieldInfo) -> str:
    """Return the environment variables that set a field, joined."""
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return " or ".join(f"`{choice}`" for choice in alias.choices if isinstance(choice, str) and choice.isupper())
    return f"`AGENTIC_RAG_{name.upper()}`"


def type_of(annotation: Any, bounds: str = "") -> str:
    """Return a field's type in words."""
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if isinstance(annotation, UnionType):
        return type_of(next(kind for kind in get_args(annotation) if kind is not NoneType), bounds)
    return f"{_WORDS[annotation]}{bounds}"


def bounds_of(field: FieldInfo) -> str:
    """Return the bounds of a field's number."""
    words = []
    for bound in field.metadata:
        for key, word in (("gt", "more than"), ("ge", "from"), ("le", "to"), ("lt", "less than")):
            if getattr(bound, key, None) is not None:
                words.append(f" {word} {getattr(bound, key)}")
    return "".join(words)


def default_of(value: object) -> str:
    """Return a default as a user would write it."""
    if value is None or value == "":
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def make_page() -> str:
    """Return the page's text."""
    docs = docs_of_fields()
    rows = [
        f"| {variable_of(name, field)} | {type_of(field.annotation, bounds_of(field))} | {default_of(field.default)} "
        f"| {docs.get(name, '').replace('``', '`').replace('|', chr(92) + '|')} |\n"
        for name, field in Settings.model_fields.items()
    ]
    return _HEAD + "".join(rows)
